#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Weakens each place of the kernels that orders memory, one at a time, and expects that to be noticed.

    planted.py [--some] PROGRAM LIST SRC [FILE:LINE:KIND...]

PROGRAM (planted.c) runs small workloads. It is run once plainly, to find the places (src/device/sim/site.h); each must
also stand in the sources below SRC, and each that stands there must have run. Then every place is weakened, in every
workload that reaches it until one ends with a report of ThreadSanitizer or a wrong value. LIST has the places at which
neither can tell, with the reason; such a place must stay unnoticed, so that the list does not outlive its reasons.
A line "unreached FILE: reason" is for a file that no workload reaches, because another test does.
Where the reason is that other places of the same function do the same, it begins with "together:", and all of them
weakened at once must be noticed.
With arguments behind SRC only these places are weakened, with --some the first one of each kind in each file.
"""
import atexit
import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

RIGHT_S = 600  # kernels' deadline where nothing should be noticed: it ends hangs, and judges nothing else
WEAK_S = 3  # the same where that is one way to notice: until then the kernels keep all CPUs busy
END_S = 6  # what a workload may take longer than its kernels' deadline
TRIES = 8  # of a place that should be noticed: a race has to happen to be seen, which a busy machine can prevent
RACE = 66  # TSan's exit code
# What the names of a server's workloads begin with: test_staged* have links of their own.
SERVERS = ("test_", "test_staged")

# What a function of gpu.h that orders memory does, as the sim's site.h has it.
KINDS = {
    "gpu_sync": ("barrier",),
    "gpu_ld_acquire": ("acquire", "older"),
    "gpu_ld_acquire_gpu": ("acquire", "older"),
    "gpu_ld_acquire_block32": ("acquire", "older"),
    "gpu_ld_credit": ("acquire", "older"),
    "gpu_st_release": ("release",),
    "gpu_st_release_block32": ("release",),
    "gpu_st_credit": ("release",),
    "gpu_add_release": ("release",),
    "gpu_fetch_add_acq_rel": ("acquire", "release"),
    "gpu_sem_acquire": ("acquire", "older"),
    "gpu_sem_release": ("release",),
    "gpu_fence": ("fence",),
    "gpu_ll16_ld": ("acquire",),
    "gpu_ll16_st": ("release",),
    "gpu_ll8_st": ("release",),
    "gpu_ll16_ready": ("older",),
    "gpu_ll32_ready": ("older",),
    "gpu_ll128_st": ("release",),
    "gpu_ll128_ld": ("acquire", "older"),
    "gpu_ll128_ready": ("older", "sum"),
    "gpu_tma_fence": ("fence",),
    "gpu_mbar_wait": ("wait",),
    "gpu_tma_store_wait": ("wait",),
    "gpu_tma_scatter_fence": ("fence",),
    "gpu_tma_scatter_wait": ("wait",),
}


class Site:
    """A place and a way to weaken it. order: among those of its function with the same kind, from 1."""

    def __init__(self, file, line, function, kind):
        self.file, self.line, self.function, self.kind = file, line, function, kind
        self.order = 1
        self.workloads = []

    def where(self):
        return "%s:%d:%s" % (self.file, self.line, self.kind)

    def name(self):
        return "%s %s %s %d" % (self.file, self.function, self.kind, self.order)


class Server:
    """planted.c with --serve, which runs a workload for each connection to its standard input."""

    def __init__(self, program, prefix):
        # A workload has joined its threads before it ends, so that no report comes late.
        options = os.environ.get("TSAN_OPTIONS", "") + " exitcode=%d halt_on_error=1 atexit_sleep_ms=0" % RACE
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("")  # Linux makes up a name that no file has
            listening.listen(64)
            self.address = listening.getsockname()
            self.process = subprocess.Popen([program, "--serve", prefix], env=dict(os.environ, TSAN_OPTIONS=options.strip()), stdin=listening)
        atexit.register(self.process.kill)

    def run(self, workload, deadline_s, sites="-", fault="-"):
        """(exit status or minus the number of the signal that ended it, output, seconds). SIGALRM: it took too long."""
        begun = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.address)
            connection.sendall(("%s %d %d %s %s" % (workload, 1000 * deadline_s, deadline_s + END_S, sites, fault)).encode())
            with connection.makefile("rb") as f:
                out, _, status = f.read().decode(errors="replace").rpartition("\n")
        return int(status), out, time.monotonic() - begun


def find(servers, workloads, pool):
    """{where: Site} of all workloads, which must end well."""
    sites = {}

    def one(workload):
        with tempfile.NamedTemporaryFile("r", prefix="sites") as f:
            status, out, took = servers[workload.startswith("test_staged")].run(workload, RIGHT_S, sites=f.name)
            return workload, status, out, took, f.read()

    for workload, status, out, took, text in pool.map(one, workloads):
        if status != 0:
            sys.exit("%s\n%s does not pass without a fault: status %s" % (out[-6000:], workload, status))
        for line in text.splitlines():
            file, number, function, kind = re.match(r"(\S+) (\d+) (.*) (\S+)$", line).groups()
            site = Site(file, int(number), function.partition("<")[0], kind)
            sites.setdefault(site.where(), site).workloads.append((took, workload))
    seen = {}
    for site in sorted(sites.values(), key=lambda s: (s.file, s.line)):
        key = (site.file, site.function, site.kind)
        seen[key] = site.order = seen.get(key, 0) + 1
        site.workloads.sort()
    return sites


def staged(kernels):
    """Files below SRC/kernels that are built for links without NVLink, too: there lines are sectors, which have a sum."""
    todo, found = [n for n in os.listdir(kernels) if n.startswith("staged_")], set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            with open(os.path.join(kernels, name), encoding="utf-8") as f:
                todo += re.findall(r'#include "kernels/(\S+)"', f.read())
    return {os.path.join("kernels", name) for name in found}


def scan(src):
    """[(file, line, kind)] of the places that stand in the kernels' sources."""
    found = []
    sums = staged(os.path.join(src, "kernels"))
    call = re.compile(r"\b(%s)(?:<\w+>)?\(" % "|".join(sorted(KINDS, key=len, reverse=True)))
    for folder, _, names in os.walk(os.path.join(src, "kernels")):
        for name in names:
            if not name.endswith((".cu", ".h")):
                continue
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as f:
                text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), f.read(), flags=re.S)
            for m in call.finditer(text):
                line = text.count("\n", 0, m.start()) + 1
                file = os.path.relpath(path, src)
                found += [(file, line, kind) for kind in KINDS[m.group(1)] if kind != "sum" or file in sums]
    return found


def read_list(path):
    """{name: reason}"""
    reasons = {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.partition(":")
                reasons[" ".join(name.split())] = reason.strip()
    return reasons


def weaken(servers, workloads, where, deadline_s):
    """("race", "value" or "" if nothing noticed; what was seen; seconds)"""
    took = 0
    for workload in workloads:
        status, out, seconds = servers[workload.startswith("test_staged")].run(workload, deadline_s, fault=where)
        took += seconds
        if status == RACE and "WARNING: ThreadSanitizer: data race" in out:
            return "race", workload, took
        if status != 0:
            return "value", "%s: %s" % (workload, "no end" if status == -signal.SIGALRM else why(out, status)), took
    return "", " ".join(workloads), took


def together(sites, site):
    """(workloads, where) of all places of the site's function with its kind."""
    alike = [s for s in sites.values() if (s.file, s.function, s.kind) == (site.file, site.function, site.kind)]
    lines = [s.line for s in alike]
    workloads = sorted({w for s in alike for w in s.workloads})
    return workloads, "%s:%d-%d:%s" % (site.file, min(lines), max(lines), site.kind)


def why(out, status):
    lines = [l for l in out.splitlines() if "[  ERROR   ]" in l or "gave up" in l or "ThreadSanitizer" in l]
    return lines[0][:120] if lines else "status %d" % status


def check_places(sites, reasons, src, list_path):
    """Number of differences between what ran, what stands in the sources and what the list has."""
    stand = {"%s:%d:%s" % site for site in scan(src)}
    names = {s.name() for s in sites.values()}
    unreached = {name.split()[1] for name in reasons if name.startswith("unreached ")}
    names |= {"unreached " + file for file in unreached if any(w.startswith(file + ":") for w in stand)}
    wrong = ["%s: no workload of planted.c reaches it" % where for where in stand
             if where not in sites and where.partition(":")[0] not in unreached]
    wrong += ["%s: it is reached, and the list says it is not" % s.where() for s in sites.values() if s.file in unreached]
    wrong += ["%s: planted.py does not find it in the sources" % where for where in sites if where not in stand]
    wrong += ["%s: %s is no such place" % (list_path, name) for name in reasons if name not in names]
    wrong += ["%s: %s has no reason" % (list_path, name) for name in reasons if not reasons[name]]
    for line in sorted(wrong):
        print(line)
    return len(wrong)


def first_of_kinds(sites, reasons):
    """Of those that something should notice."""
    first = {}
    for site in sorted(sites, key=lambda s: (s.file, s.kind, s.line)):
        if site.name() not in reasons:
            first.setdefault((site.file, site.kind), site.where())
    return list(first.values())


def main():
    some = sys.argv[1] == "--some"
    program, list_path, src, *only = sys.argv[1 + some:]
    begun = time.monotonic()
    workloads = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    reasons = read_list(list_path)
    counts = {"race": 0, "value": 0, "": 0}

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:
        servers = [Server(program, prefix) for prefix in SERVERS]
        sites = find(servers, workloads, pool)
        found = time.monotonic() - begun
        wrong = check_places(sites, reasons, src, list_path)
        if some:
            only = first_of_kinds(sites.values(), reasons)
        todo = sorted(sites.values(), key=lambda s: (s.file, s.line, s.kind))
        todo = [(s, s.workloads, s.where()) for s in todo if not only or s.where() in only]
        all_at_once = {}
        for site, _, _ in todo:
            if reasons.get(site.name(), "").startswith("together:"):
                everywhere, where = together(sites, site)
                all_at_once.setdefault(where, (site, everywhere, where))
        todo += all_at_once.values()

        def is_listed(site, where):
            return site.name() in reasons and where not in all_at_once

        def weaken_one(one):
            site, reach, where = one
            order = [w for _, w in sorted(reach)]
            if is_listed(site, where):
                return weaken(servers, order, where, RIGHT_S)
            took = 0
            for _ in range(TRIES):
                noticed, what, seconds = weaken(servers, order, where, WEAK_S)
                took += seconds
                if noticed:
                    break
            return noticed, what, took

        for (site, _, where), (noticed, what, took) in zip(todo, pool.map(weaken_one, todo)):
            listed = is_listed(site, where)
            counts[noticed] += where not in all_at_once
            print("%-5s %5.1f s  %s (%s): %s" % (noticed or "none", took, site.name(), where, what), flush=True)
            if noticed and listed:
                print("    it is listed as one that nothing notices: take it from %s" % list_path)
            elif not noticed and not listed:
                print("    nothing noticed, and %s has no reason why" % list_path)
            wrong += bool(noticed) == listed
    print("%d places: %d noticed by ThreadSanitizer, %d by a value, %d listed; %.0f s, of them %.0f s to find them" %
          (sum(counts.values()), counts["race"], counts["value"], counts[""], time.monotonic() - begun, found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
