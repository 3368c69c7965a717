# SPDX-License-Identifier: MIT
"""Runs steps within their time, keeps the outcome of each, and writes the results."""
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import outcomes
from steps import ROOT

LEAST_S = {"sim": 2, "shared": 15, "own": 15}  # a step is not begun with less time than this
NO_TIME = "there was no time for it in this run; the next one goes on with it"


class Runner:
    def __init__(self, machine, nccls, build, options, deadline):
        self.machine, self.build, self.deadline = machine, build, deadline
        # Variables of the shell for the paths.
        self.nccl_names = {nccl.path: "$NCCL" + ("_" + nccl.text().replace(".", "_") if len(nccls) > 1 else "")
                           for nccl in nccls if nccl.path}
        self.nccl_text = ", ".join(nccl.text() for nccl in nccls)
        self.state, self.again, self.ranks = os.path.abspath(options.state), options.again, options.ranks
        with open(os.path.join(build, "src", "libshunt.so"), "rb") as f:
            self.library = hashlib.sha256(f.read()).hexdigest()
        os.makedirs(self.state, exist_ok=True)
        self.entries, self.left_out = {}, []

    def shown(self, step):
        """The command as a user types it: the built command is `shunt`, the paths of NCCL and of the build are variables of the shell."""
        names = {os.path.join(self.build, "tools", "shunt"): "shunt", sys.executable: "python3"}
        words = ["%s=%s" % (k, self.nccl_names.get(v, v)) for k, v in sorted(step.env.items())]
        for word in step.argv:
            if word == "@JSON":
                words.pop()
            else:
                words.append(names.get(word, "compute-sanitizer" if word.endswith("/compute-sanitizer") else word))
        return " ".join(words).replace(self.build + "/", "$BUILD/")

    def stem(self, step):
        """Where the state has a step: of this library, machine, NCCL and command."""
        nccl = step.nccl.text() if step.nccl else self.nccl_text
        key = json.dumps([self.library, self.machine.describe(), nccl, self.shown(step)])
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", step.name)
        return os.path.join(self.state, "%s-%s" % (name, hashlib.sha256(key.encode()).hexdigest()[:10]))

    def run(self, step):
        stem = self.stem(step)
        if os.path.exists(stem + ".json") and not self.again:
            with open(stem + ".json", encoding="utf-8") as f:
                self.entries[step.name] = json.load(f)
            return
        left = self.deadline - time.monotonic()
        if step.why_not or left < LEAST_S[self.machine.kind]:
            self.leave(step, step.why_not or NO_TIME)
            return
        print("%-50s" % step.name, end=" ", flush=True)
        began = time.monotonic()
        status, text, report = self.execute(step, stem, min(step.limit, left))
        if status is None and left < step.limit:
            print("cut short by the end of the run")
            self.leave(step, NO_TIME)
            return
        if status is None:
            found = outcomes.FAILED, "had not ended after %d seconds" % step.limit, [], []
        else:
            found = step.reader(status, text, report)
        if status == 77:
            print("left out: " + found[1])
            self.leave(step, found[1])
            return
        self.keep(step, stem, found)
        print("%s, %.0f s: %s" % (found[0], time.monotonic() - began, found[1]))
        if found[0] == outcomes.FAILED:
            print("  %s\n  its output is in %s.log" % (self.shown(step), stem))

    def keep(self, step, stem, found):
        result, says, columns, rows = found
        entry = {"step": step.name, "what": step.what, "ranks": step.ranks, "command": self.shown(step),
                 "result": result, "says": says}
        if step.nccl:
            entry["nccl"] = step.nccl.text()
        if rows:
            entry.update(columns=columns, rows=rows)
        write_json(stem + ".json", entry)
        self.entries[step.name] = entry

    def execute(self, step, stem, limit):
        """The exit status, or None if it did not end, the output, and the data of --json. Ends all processes that it started."""
        # Without the settings, plans and tuning files of the user who runs this; a step's own variables hold.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SHUNT_", "MSCCLPP_"))}
        env.update(step.env, NCCL_NVLS_ENABLE="0", SHUNT_CACHE_DIR="/dev/null",
                   SHUNT_LIB=os.path.join(self.build, "src", "libshunt.so"))
        argv = [stem + ".report" if word == "@JSON" else word for word in step.argv]
        with open(stem + ".log", "w", encoding="utf-8") as out:
            out.write("# %s\n" % self.shown(step))
            out.flush()
            child = subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = child.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_group(child)
        with open(stem + ".log", encoding="utf-8", errors="replace") as f:
            text = f.read()
        return status, text, take_report(stem + ".report")

    def leave(self, step, why):
        """Steps of one group that lack the same thing are one line, with the command that runs them."""
        group = step.name.split("/")[0]
        for entry in self.left_out:
            if (entry["group"], entry["why"]) == (group, why):
                entry["steps"].append(step.name)
                return
        ranks = " --ranks " + ",".join(map(str, self.ranks)) if self.ranks else ""
        self.left_out.append({"group": group, "why": why, "steps": [step.name],
                              "command": "tools/measure.sh --only '%s/'%s" % (group, ranks)})

    def write(self, path, commit, date):
        env = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
        env.update(NCCL_NVLS_ENABLE="0", SHUNT_CACHE_DIR="/dev/null")
        write_json(path, {"date": date, "commit": commit, "command": "tools/measure.sh", "environment": env,
                          "machine": self.machine.describe(), "nccl": self.nccl_text,
                          "entries": list(self.entries.values()), "left_out": self.left_out})


def end_group(child):
    """The child was made the leader of a process group, which all that it starts are in."""
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        except ProcessLookupError:
            return


def take_report(path):
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except ValueError:
        return None
    finally:
        os.unlink(path)


def on_one_line(value):
    """A scalar, or a list whose members are scalars or lists of these."""
    def scalar(v):
        return not isinstance(v, (dict, list))

    return scalar(value) or isinstance(value, list) and all(
        scalar(v) or isinstance(v, list) and all(map(scalar, v)) for v in value)


def json_lines(value, depth, before, after, in_rows):
    pad = " " * depth
    if isinstance(value, dict) and value:
        lines = [pad + before + "{"]
        for i, (key, item) in enumerate(value.items()):
            comma = "," if i + 1 < len(value) else ""
            lines += json_lines(item, depth + 1, json.dumps(key) + ": ", comma, key in ("rows", "notes", "steps"))
        return lines + [pad + "}" + after]
    if isinstance(value, list) and value and (in_rows or not on_one_line(value)):
        lines = [pad + before + "["]
        for i, item in enumerate(value):
            lines += json_lines(item, depth + 1, "", "," if i + 1 < len(value) else "", False)
        return lines + [pad + "]" + after]
    return [pad + before + json.dumps(value, ensure_ascii=False) + after]


def write_json(path, data):
    """Indented, with each row of a table on a line of its own."""
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write("\n".join(json_lines(data, 0, "", "", False)) + "\n")
    os.replace(path + ".new", path)
