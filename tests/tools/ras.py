#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ras.py SHUNT LIBSHUNT: `shunt ras` and ncclras against stand-ins of NCCL's service and of Shunt's processes."""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

NAMES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
failed = []


def alone():
    """A network namespace of our own, where the system gives one: processes of others are not asked then."""
    if "RAS_ALONE" not in os.environ:
        command = ["unshare", "-rn", sys.executable, *sys.argv]
        probe = subprocess.run(["unshare", "-rn", "true"], stderr=subprocess.DEVNULL, check=False)
        if probe.returncode == 0:
            os.execvpe("unshare", command, {**os.environ, "RAS_ALONE": "1"})
        return
    with socket.socket() as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sH", b"lo", 1))  # SIOCSIFFLAGS: up


def check(name, good, seen=""):
    print(f"{'ok' if good else 'not ok'}: {name}{'' if good else f': {seen}'}")
    if not good:
        failed.append(name)


class Process:
    """Answers as a process of Shunt's does, with communicators: (key, rank, nranks, counts or None).

    later: what it answers to the second question, the third, ...; the last stays.
    """

    def __init__(self, comms, *later, **fields):
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(tell)
            os.read(ready, 1)
            os.close(ready)
            return
        signal.alarm(120)
        texts = []
        for answer in (comms, *later):
            rows = []
            old = False
            for key, rank, nranks, counts in answer:
                row = {
                    "id": key,
                    "key": key,
                    "rank": rank,
                    "nranks": nranks,
                    "device": rank,
                    "state": "ready",
                    **fields,
                }
                row.update(calls=9, collectives=9, captured_calls=0, operations=[])
                old = counts is None
                if not old:
                    row["counters"] = [
                        {"op": o, "path": "ll128", "reason": "", "calls": n, "bytes": 0} for o, n in counts
                    ]
                rows.append(row)
            head = {"shunt_dump": 2 if old else 3, "version": "1", "reason": "asked", "host": "node7"}
            head.update(pid=os.getpid(), pid_namespace=0, program="stand-in", time_ns=1, communicators=rows)
            texts.append(json.dumps(head).encode())
        with socket.socket(socket.AF_UNIX) as listener:
            space = os.stat("/proc/self/ns/pid").st_ino
            listener.bind(f"\0shunt-doctor-{os.geteuid()}-{space}-{os.getpid()}")
            listener.listen(4)
            os.write(tell, b"1")
            while True:
                with listener.accept()[0] as client:
                    client.recv(256)
                    client.sendall(texts.pop(0) if len(texts) > 1 else texts[0])

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Service:
    """NCCL's RAS: answers each client with these JSON and text."""

    def __init__(self, answer, protocol="SERVER PROTOCOL 2\n"):
        self.answer, self.protocol = answer, protocol
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            with client, client.makefile("rw", newline="\n") as f:
                kind = "text"
                for line in f:
                    if line.startswith("CLIENT PROTOCOL"):
                        f.write(self.protocol)
                    elif line.startswith("SET FORMAT"):
                        kind = line.split()[2]
                        f.write("OK\n")
                    elif line.startswith("TIMEOUT"):
                        f.write("OK\n")
                    else:
                        f.write(self.answer if kind == "json" else "NCCL version 2.30.7\n")
                        f.flush()
                        break
                    f.flush()

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def rank(number, pid, host="127.0.0.1", **more):
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": number,
        "host": host,
        "pid": pid,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": status,
        "collective_counts": dict.fromkeys(NAMES, 1),
        **more,
    }


def comm(code, pids, size=None, ranks=None, **more):
    ranks = ranks or [rank(i, pid) for i, pid in enumerate(pids)]
    size = size or len(ranks)
    row = {"hash": code, "secondary_hash": "0x1:0x2", "size": size, "ranks_count": len(ranks)}
    return {**row, "missing_ranks_count": size - len(ranks), "ranks": ranks, "missing_ranks": [], **more}


def job(*comms, **more):
    head = {"nccl_version": "2.30.7+cuda13.0", "cuda_runtime_version": 13000, "cuda_driver_version": 13000}
    head = {**head, "timestamp": "2026-11-26 15:49:20", "communicators_count": len(comms), **more}
    return json.dumps({**head, "communicators": comms, "ras": {"collection_time_sec": 0.01, "timeouts_count": 0}})


def ask(service, *options, name="shunt", env=None):
    where = ["-p", str(service.port)] if service else ["-p", "1"]
    command = [shunt, "ras"] if name == "shunt" else [name, "-h", "127.0.0.1"]
    host = ["--host", "127.0.0.1"] if name == "shunt" else []
    run = subprocess.run(
        [*command, *host, *where, *options], capture_output=True, text=True, check=False, env=env, timeout=60
    )
    return run.returncode, run.stdout, run.stderr


def answer(text, *options):
    """The communicators of the answer to a service that has this text."""
    service = Service(text)
    status, out, err = ask(service, "-f", "json", *options)
    service.end()
    if status:
        raise SystemExit(f"not ok: status {status}: {err}")
    return json.loads(out)


def as_ray_reads(root):
    """The fields that Ray's reader needs, and what it takes for a hang: counts that differ."""
    assert isinstance(root["timestamp"], str)
    hung = set()
    for c in root["communicators"]:
        counts = []
        for r in c["ranks"]:
            assert isinstance(r["rank"], int)
            assert isinstance(r["status"]["init_state"], int)
            assert {type(r["status"][x]) for x in ("finalize_called", "destroy_flag", "abort_flag")} == {bool}
            assert set(NAMES) <= set(r["collective_counts"])
            counts.append(r["collective_counts"])
        if any(x != counts[0] for x in counts):
            hung.add(c["hash"])
    return hung


def told(root, i=0):
    return root["communicators"][i]["shunt"]


def merged():
    """One communicator whose rank 1 has made a call less, and two of the same ranks."""
    counts = [("allreduce", 4), ("allreduce", 2), ("alltoall", 1), ("send", 9)]
    ranks = [Process([("aa01", i, 3, counts[i == 1 :])]) for i in range(3)]
    pids = [p.pid for p in ranks]
    root = answer(job(comm("0x7", pids)))
    c = root["communicators"][0]
    check("counts are Shunt's", [r["collective_counts"]["AllReduce"] for r in c["ranks"]] == [6, 2, 6], c)
    check("no count is lost", c["ranks"][0]["collective_counts"].get("AlltoAll") == 1, c)
    check("the key is the hash", c["hash"] == "0xaa01" and told(root) == {"merged": True, "nccl_hash": "0x7"}, c)
    check("Ray sees the hang", as_ray_reads(root) == {"0xaa01"})
    root = answer(job(comm("0x7", pids, new={"a": [1]}), newer=True).replace("2.30.7", "2.32.1"), "-t", "3", "-v")
    check(
        "fields of a newer NCCL stay",
        root["newer"] and root["communicators"][0]["new"] == {"a": [1]} and told(root)["merged"],
    )
    root = answer(job(comm("0x7", pids), comm("0x8", pids)))
    check("two communicators for one are none", not told(root, 0)["merged"] and not told(root, 1)["merged"], root)
    check("and their counts are NCCL's", root["communicators"][0]["ranks"][0]["collective_counts"]["AllReduce"] == 1)
    root = answer(job(comm("0x7", [*pids[:2], 999999999])))
    check(
        "a silent rank is told",
        told(root)["reason"] == "rank 2 (pid 999999999) gives no answer as a rank of Shunt's",
        root,
    )
    check("half a communicator is none", as_ray_reads(root) == set())
    root = answer(job(comm("0x7", [], ranks=[rank(0, pids[0]), rank(1, pids[1]), rank(2, pids[2], "192.0.2.9")])))
    check("another host is told", "rank 2 is on host 192.0.2.9" in told(root)["reason"], root)
    missing = job(
        comm("0x7", pids[:2], size=3, missing_ranks=[{"rank": 2, "nvml_dev": 2, "status": {"unresponsive": True}}])
    )
    old = missing.replace('"nvml_dev": 2, "status": {"un', '"nvml_dev": 2\n          "status": {"un').replace(
        "2.30.7", "2.28.9"
    )
    check("the old answer lacks its comma", old.count("2\n") == 1)
    root = answer(old)
    check("an old NCCL is understood", told(root)["reason"] == "NCCL has the answers of 2 of its 3 ranks", root)

    service = Service(job(comm("0x7", pids)))
    status, out, _ = ask(service)
    check("text is NCCL's, and then Shunt's", status == 0 and out.startswith("NCCL version 2.30.7\n\nShunt\n"), out)
    check("text names the rank", "    AllReduce: 6 calls, and rank 1 only 2\n" in out, out)
    other = [Process([("aa00", i, 3, [("reduce", 1)]), ("new", -1, -1, [("reduce", 1)])]) for i in range(3)]
    options(service)
    service.end()

    status, out, err = ask(None, "-f", "json")
    root = json.loads(out) if status == 0 else {"communicators": []}
    mine = [c for c in root["communicators"] if c["hash"] in ("0xaa00", "0xaa01")]
    check("without RAS the answer is Shunt's", [c["hash"] for c in mine] == ["0xaa00", "0xaa01"], out + err)
    check("and Ray reads it", "0xaa01" in as_ray_reads(root) and "0xaa00" not in as_ray_reads(root))
    ranks[2].end()
    root = json.loads(ask(None, "-f", "json")[1])
    c = next(c for c in root["communicators"] if c["hash"] == "0xaa01")
    check("a rank that died is missing", [r["rank"] for r in c["missing_ranks"]] == [2], c)
    check("and the others' counts are no hang", "0xaa01" not in as_ray_reads(root), c)
    for p in [*ranks[:2], *other]:
        p.end()


def pairs():
    """As many communicators of Shunt's as NCCL has; an older Shunt; one that broke."""
    two = [Process([("bb02", i, 2, []), ("bb01", i, 2, [("reduce", 3)])]) for i in range(2)]
    root = answer(job(comm("0x7", [p.pid for p in two]), comm("0x8", [p.pid for p in two])))
    check("two are two", [c["hash"] for c in root["communicators"]] == ["0xbb01", "0xbb02"], root)
    old = [Process([("cc01", i, 2, None if i else [])]) for i in range(2)]
    root = answer(job(comm("0x7", [p.pid for p in old])))
    check("an older Shunt is told", "the Shunt of rank 1" in told(root)["reason"], root)
    broken = [Process([("dd01", i, 2, [])], error="ECANCELED", aborted=True) for i in range(2)]
    root = answer(job(comm("0x7", [p.pid for p in broken])))
    status = root["communicators"][0]["ranks"][0]["status"]
    check("an abort is told", status["abort_flag"] is True and status["async_error"] == 6, status)
    for p in [*two, *old, *broken]:
        p.end()


def come_and_go():
    """Communicators that begin or end while the ranks are asked one after the other."""
    one, two = [[("ee01", i, 2, [])] for i in range(2)], [[("ee02", i, 2, [])] for i in range(2)]
    ranks = [Process(one[0] + two[0], one[0]), Process([], one[1])]
    root = json.loads(ask(None, "-f", "json")[1])
    rows = [(c["hash"], c["shunt"]["merged"]) for c in root["communicators"]]
    check("begun and ended meanwhile", rows == [("0xee01", True)], rows)
    for p in ranks:
        p.end()
    ranks = [Process(one[i], one[i] + two[i]) for i in range(2)]
    root = answer(job(comm("0x7", [p.pid for p in ranks]), comm("0x8", [p.pid for p in ranks])))
    check("NCCL has one more already", [told(root, i)["merged"] for i in range(2)] == [True, True], root)
    for p in ranks:
        p.end()
    ranks = [Process(one[0]), Process([])]
    root = json.loads(ask(None, "-f", "json")[1])
    check("a rank that never comes is told", [r["rank"] for r in root["communicators"][0]["missing_ranks"]] == [1])
    for p in ranks:
        p.end()
    endless = [Process(*([one[i], one[i] + two[i]] * 40)) for i in range(2)]
    root = answer(job(comm("0x7", [p.pid for p in endless]), *[comm(f"0x{k}", [p.pid for p in endless]) for k in "89"]))
    check("and it comes to an end", "Shunt 2" in told(root)["reason"], root)
    for p in endless:
        p.end()


def options(service):
    with tempfile.TemporaryDirectory() as scratch:
        link, real = os.path.join(scratch, "ncclras"), os.path.join(scratch, "real")
        os.symlink(shunt, link)
        os.mkdir(real)
        env = {**os.environ, "PATH": scratch}
        status, out, err = ask(service, "-fjson", "-t8", name=link)
        check("ncclras is the same command", status == 0 and told(json.loads(out))["merged"], out + err)
        status, _, err = ask(service, "-m", name=link, env=env)
        check(
            "what is NCCL's is refused", status == 1 and "-m is for NCCL's own ncclras, and there is none" in err, err
        )
        with open(os.path.join(real, "ncclras"), "w") as f:
            f.write('#!/bin/sh\necho "real $*"\n')
        os.chmod(os.path.join(real, "ncclras"), 0o755)
        env["PATH"] = f"{scratch}:{real}:/usr/bin:/bin"
        status, out, err = ask(service, "--monitor=trace", name=link, env=env)
        check("and left to the next one", status == 0 and out.endswith("--monitor=trace\n"), out + err)
    for bad in (["-f", "xml"], ["-t", "soon"], ["-t"], ["more"]):
        check(f"{bad} is refused", ask(service, *bad)[0] == 1)


def strangers():
    """What is no answer of NCCL's is one line, and no answer of ours."""
    deep = '{"communicators": ' + "[" * 5000 + "]" * 5000 + "}"
    for name, text in (
        ("nothing", ""),
        ("no JSON", "hello"),
        ("half of it", job(comm("0x7", [1]))[:200]),
        ("a list", "[]"),
        ("other things", '{"communicators": [{"ranks": 3}]}'),
        ("sizes", '{"communicators": [{"ranks": [], "size": "3"}]}'),
        ("depth", deep),
        ("a comma's place", '{"nvml_dev": 1\n"status"' * 9),
    ):
        service = Service(text)
        status, out, err = ask(service, "-f", "json")
        check(f"{name}: one line", status == 1 and not out and err.count("\n") == 1, (status, out[:200], err))
        service.end()
    service = Service("", "220 mail\x1b[31m\n")
    status, _, err = ask(service)
    check("another service is named", status == 1 and 'is not NCCL\'s RAS: it says "220 mail?[31m"' in err, err)
    service.end()
    root = answer(job(comm("0x7", [], ranks=[{"rank": 0}, 7, None]), comm("0x7", [], size=1, ranks=[{}])))
    check("ranks without fields are none", not told(root, 0)["merged"] and not told(root, 1)["merged"], root)


if __name__ == "__main__":
    alone()
    shunt = os.path.realpath(sys.argv[1])
    os.environ["SHUNT_LIB"] = os.path.realpath(sys.argv[2])
    os.environ["SHUNT_NCCL_LIB"] = "none"
    merged()
    pairs()
    come_and_go()
    strangers()
    sys.exit(1 if failed else 0)
