#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""measure.py MEASURE.PY BUILD NCCL OLDER_NCCL: what tools/measure.sh runs, keeps, leaves out and says.

On the sim with the command of BUILD; and as if there were GPUs, with an nvidia-smi and a command that only pretend. NCCL and OLDER_NCCL are
libraries that say versions of NCCL.
"""

import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

MEASURE, BUILD, NCCL, OLDER_NCCL = (os.path.abspath(path) for path in sys.argv[1:5])

SMI = """#!/bin/sh
case "$*" in
*query*) for gpu in $(seq "$GPUS"); do echo "NVIDIA H100 80GB HBM3, 580.65, 9.0"; done ;;
*topo*) echo "GPU0 NV18" ;;
esac
"""
# Writes what `shunt bench --json` does: 3 us, and 6 and 4.5 us for the others. It sleeps, or has wrong values, where a file says so.
SHUNT = (
    f"#!{sys.executable} -S"
    + """
import json, os, sys, time
if sys.argv[1] == "--help":
    sys.exit(0)
if sys.argv[1] == "info":
    print("algorithms\\n  oneshot     allreduce      every rank sends\\n  pairwise    allgather      two ranks\\n  ce          scatter        windows, no SMs")
    sys.exit(0)
print("NVLS", os.environ["NCCL_NVLS_ENABLE"], "TIMEOUT", os.environ.get("SHUNT_TIMEOUT", "unset"))
if os.path.exists("@DIR/sleep"):
    time.sleep(600)  # pause: late: this one hangs
if sys.argv[1] == "conform":
    print("5 passed, 1 failed, 0 skipped" if os.path.exists("@DIR/fail") else "6 passed, 0 failed, 0 skipped")
    sys.exit(os.path.exists("@DIR/fail"))
if sys.argv[1] == "torture":
    print("62 ops, 98 results and 475374 elements checked, wrong values in 0, 0.1 s, seed 1")
if "--json" in sys.argv:
    libs = ["shunt"] + [sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "--vs"]
    cells = [{"time_us": us, "path": path, "wrong": 0 if us > 3 else int(os.path.exists("@DIR/wrong"))}
             for us, path in ((3, "oneshot"), (6, "nccl"), (4.5, "nccl"))][:len(libs)]
    report = {"libraries": [{"label": lib} for lib in libs], "comms": 4,
              "results": [{"bytes": 1024, "mode": "graph", "place": "out", "libraries": cells}],
              "geometric_means": [{"of": lib, "all": 2} for lib in libs[1:]]}
    if "--init" in sys.argv:
        report["init"] = [{"library": "shunt", "step": "init", "time_us": 9, "rounds_us": [9], "memory_bytes": 2 << 20}]
    json.dump(report, open(sys.argv[sys.argv.index("--json") + 1], "w"))
"""
)
failures = 0


def check(name, good, *more):
    global failures
    print("%s %s" % ("ok" if good else "not ok", name))
    if not good:
        failures += 1
        for text in more:
            print(str(text)[-4000:])


def program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, stat.S_IRWXU)


class Place:
    """A folder with a state and results of its own."""

    def __init__(self, folder, name, gpus=0):
        self.dir = os.path.join(folder, name)
        self.out, self.state = os.path.join(self.dir, "out"), os.path.join(self.dir, "state")
        program(os.path.join(self.dir, "bin", "nvidia-smi"), SMI)
        program(os.path.join(self.dir, "build", "tools", "shunt"), SHUNT.replace("@DIR", self.dir))
        program(os.path.join(self.dir, "build", "src", "libshunt.so"), "")
        shutil.copytree(os.path.join(BUILD, "plans", "examples"), os.path.join(self.dir, "build", "plans", "examples"))
        self.env = dict(
            os.environ,
            GPUS=str(gpus),
            PATH=os.path.join(self.dir, "bin") + ":" + os.environ["PATH"],
            NCCL_NVLS_ENABLE="1",
            SHUNT_TIMEOUT="1s",
        )
        self.env.pop("SHUNT_NCCL_LIB", None)

    def run(self, *args, build=None):
        command = [
            sys.executable,
            MEASURE,
            "--build",
            build or os.path.join(self.dir, "build"),
            "--out",
            self.out,
            "--state",
            self.state,
            "--commit",
            "1234567",
            *args,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=self.env, timeout=300)
        return done.returncode, done.stdout + done.stderr

    def result(self):
        files = glob.glob(os.path.join(self.out, "*.json"))
        assert len(files) == 1, files
        with open(files[0], encoding="utf-8") as f:
            return os.path.basename(files[0]), json.load(f)


def on_the_sim(folder):
    p = Place(folder, "sim")
    some = [
        "--device",
        "sim",
        "--only",
        "values/all_gather",
        "--only",
        "conformance/",
        "--only",
        "replays/reduce/",
        "--only",
        "beside",
        "--only",
        "plans/all_reduce_ring/eager",
        "--only",
        "expert parallel/low latency",
    ]
    status, text = p.run(*some, build=BUILD)
    name, data = p.result()
    check("sim_passes", status == 0 and "5 steps done, 0 failed" in text, text)
    check("sim_names_the_file", name.endswith("-sim-1234567.json") and data["commit"] == "1234567", name)
    check("sim_has_values", [e["result"] for e in data["entries"]] == ["passed"] * 5, data)
    check(
        "sim_shows_commands",
        "SHUNT_NCCL_LIB=none shunt bench all_gather " in data["entries"][0]["command"],
        data["entries"][0],
    )
    check("sim_writes_no_times", not any("rows" in e for e in data["entries"]), data)
    check(
        "sim_leaves_times_out",
        {e["group"]: len(e["steps"]) for e in data["left_out"]} == {"plans beside kernels": 5, "beside NCCL": 18},
        data["left_out"],
    )
    check("sim_says_how", "tools/measure.sh --only 'beside NCCL/'" in text, text)
    status, text = p.run(*some, build=BUILD)
    check(
        "done_is_not_done_again",
        status == 0 and "passed" not in text and p.result()[1]["entries"] == data["entries"],
        text,
    )
    status, text = p.run("--again", *some, build=BUILD)
    check("again_does_it_again", status == 0 and len(re.findall(r"passed, \d+ s:", text)) == 5, text)


def on_two_gpus(folder):
    p = Place(folder, "own", gpus=2)
    status, text = p.run(
        "--nccl",
        NCCL,
        "--only",
        "beside NCCL/reduce/",
        "--only",
        "communicators",
        "--only",
        "plans beside",
        "--only",
        "conformance",
    )
    name, data = p.result()
    entries = {e["step"]: e for e in data["entries"]}
    check("own_passes", status == 0 and name.endswith("-2xH100-80GB-HBM3-1234567.json"), name, text)
    check(
        "own_knows_the_machine",
        data["machine"]["driver"] == "580.65" and data["machine"]["topology"] == "GPU0 NV18",
        data["machine"],
    )
    check("own_knows_nccl", data["nccl"].count(".") == 2, data["nccl"])
    row = entries["beside NCCL/reduce/graph/2"]
    check(
        "own_has_times",
        row["columns"] == ["bytes", "mode", "place", "path", "us", "us of nccl", "us of nccl:reg"]
        and row["rows"] == [[1024, "graph", "out", "oneshot", 3, 6, 4.5]],
        row,
    )
    check("own_hides_the_path", row["command"].startswith("SHUNT_NCCL_LIB=$NCCL shunt bench reduce "), row)
    check(
        "own_costs_of_communicators",
        entries["communicators/2"]["rows"] == [["shunt", "init", 9, 9, 2]],
        entries["communicators/2"],
    )
    check("own_in_front_of_nccl", "conformance in front of NCCL/2" in entries, list(entries))
    check(
        "own_plans",
        "SHUNT_PLAN_DIR=$BUILD/plans/examples/all_reduce_twoshot-ll_2.json"
        in entries["plans beside kernels/all_reduce_twoshot-ll/plan/2"]["command"],
        entries,
    )
    logs = [open(path, encoding="utf-8").read() for path in glob.glob(os.path.join(p.state, "*.log"))]
    check("no_multicast", logs and all("NVLS 0 " in log for log in logs if "NVLS" in log), logs[:1])
    check("own_variables_only", all("TIMEOUT unset" in log for log in logs if "NVLS" in log), logs[:1])
    status, text = p.run("--list", "--ranks", "2,3")
    check("too_many_ranks", status == 1 and "--ranks 3: there are 2 GPUs" in text, text)
    status, text = p.run("--nccl", "none", "--list", "--only", "beside NCCL/reduce/")
    check("own_without_nccl", status == 0 and "there is no real NCCL: --nccl PATH names one" in text, text)
    status, text = p.run("--nccl", "/etc/passwd")
    check("no_library", status == 1 and "--nccl /etc/passwd: not a library of NCCL" in text, text)
    two_nccls(p, data["nccl"])
    # Kernels that are wrong, and conformance that is not: said, and the exit status.
    for flaw, only in (("wrong", "values/reduce/"), ("fail", "conformance/")):
        open(os.path.join(p.dir, flaw), "w", encoding="utf-8").close()
        status, text = p.run("--again", "--nccl", "none", "--only", only)
        check("found_" + flaw, status == 1 and "1 failed" in text and "failed: " + only in text, text)


def two_nccls(p, version):
    """Each step in front of NCCL with both, in turns; the others once."""
    status, text = p.run(
        "--nccl", NCCL, "--nccl", OLDER_NCCL, "--only", "beside NCCL/reduce/graph", "--only", "conformance/"
    )
    data = p.result()[1]
    both = ["beside NCCL/reduce/graph/2/NCCL " + v for v in data["nccl"].split(", ")]
    check(
        "two_nccls_in_turns",
        status == 0 and [e["step"] for e in data["entries"]] == [both[0], both[1], "conformance/2"],
        text,
    )
    check(
        "two_nccls_are_named",
        data["nccl"].startswith(version + ", ") and len(set(data["nccl"].split(", "))) == 2,
        data["nccl"],
    )
    check(
        "two_nccls_rows",
        ["%s %s" % (e.get("nccl"), e["command"][: e["command"].index(" shunt")]) for e in data["entries"]]
        == ["%s SHUNT_NCCL_LIB=$NCCL_%s" % (v, v.replace(".", "_")) for v in data["nccl"].split(", ")]
        + ["None SHUNT_NCCL_LIB=none"],
        data["entries"],
    )
    status, text = p.run("--nccl", NCCL, "--nccl", NCCL)
    check(
        "one_nccl_twice",
        status == 1 and "NCCL %s is named twice; each --nccl takes another version" % version in text,
        text,
    )
    status, text = p.run("--nccl", NCCL, "--nccl", "none")
    check("one_nccl_and_none", status == 1 and "measure: --nccl none: it goes alone" in text, text)


def on_one_gpu(folder):
    p = Place(folder, "shared", gpus=1)
    status, text = p.run(
        "--nccl", "none", "--only", "values/reduce/", "--only", "beside NCCL/reduce/graph", "--only", "algorithms/"
    )
    data = p.result()[1]
    check(
        "shared_passes",
        status == 0 and [e["ranks"] for e in data["entries"] if e["step"].startswith("values")] == [2, 4],
        text,
    )
    check(
        "shared_says_so",
        all(
            e["command"].startswith(("SHUNT_MULTI", "SHUNT_ALGO")) and "SHUNT_MULTI_RANK_GPU=1" in e["command"]
            for e in data["entries"]
        ),
        data["entries"],
    )
    check(
        "shared_writes_no_times",
        not any("rows" in e for e in data["entries"]) and data["left_out"][0]["group"] == "beside NCCL",
        data,
    )
    names = [e["step"] for e in data["entries"] if e["step"].startswith("algorithms")]
    check(
        "algorithms_of_the_library",
        names
        == [
            "algorithms/allreduce/oneshot/2",
            "algorithms/allgather/pairwise/2",
            "algorithms/scatter/ce/2",
            "algorithms/allreduce/oneshot/4",
            "algorithms/scatter/ce/4",
        ],
        names,
    )


def time_limits(folder):
    p = Place(folder, "late", gpus=0)
    sleep = os.path.join(p.dir, "sleep")
    open(sleep, "w", encoding="utf-8").close()
    status, text = p.run("--budget", "3", "--only", "values/reduce/", "--only", "torture/")
    check("ends_in_time", status == 0, status, text)
    check(
        "says_what_is_left",
        "0 steps done, 0 failed, 3 left out" in text
        and "the next one goes on with it\n  tools/measure.sh --only 'values/'" in text,
        text,
    )
    os.unlink(sleep)
    status, text = p.run("--only", "values/reduce/", "--only", "torture/")
    check("goes_on", status == 0 and "3 steps done, 0 failed, 0 left out" in text, text)
    open(os.path.join(p.dir, "build", "src", "libshunt.so"), "a", encoding="utf-8").write("another")
    status, text = p.run("--only", "values/reduce/")
    check("another_library_is_measured", status == 0 and text.count("passed,") == 1, text)


def own_build(folder):
    """In a copy of the sources, with a Meson and a Ninja that only pretend."""
    p = Place(folder, "own build", gpus=2)
    source = os.path.join(p.dir, "source")
    shutil.copytree(os.path.dirname(MEASURE), os.path.join(source, "tools", "measure"))
    program(os.path.join(p.dir, "bin", "meson"), '#!/bin/sh\nmkdir -p "$2" && echo "$*" >"$2/build.ninja"\n')
    program(
        os.path.join(p.dir, "bin", "ninja"),
        '#!/bin/sh\n[ ! -e "%s/sleep" ] || exec sleep 600\n[ ! -e "%s/fail" ] || { echo no jansson; exit 1; }\n'
        'cp -r "%s/build/"* "$2"\n' % ((p.dir,) * 3),
    )
    command = [
        sys.executable,
        os.path.join(source, "tools", "measure", "measure.py"),
        "--out",
        p.out,
        "--state",
        p.state,
        "--nccl",
        "none",
        "--only",
        "values/reduce/",
        "--commit",
        "1",
    ]

    def run(*more):
        done = subprocess.run(command + list(more), capture_output=True, text=True, env=p.env, timeout=120)
        return done.returncode, done.stdout + done.stderr

    for flaw, words in (
        ("fail", "no jansson\n\nmeasure: the build failed: ninja -C "),
        ("sleep", "measure: the build did not end in this run's time: run it again"),
    ):
        open(os.path.join(p.dir, flaw), "w", encoding="utf-8").close()
        status, text = run("--budget", "3" if flaw == "sleep" else "1000")
        check("build_" + flaw, status == 1 and words in text and "Traceback" not in text, text)
        os.unlink(os.path.join(p.dir, flaw))
    status, text = run()
    with open(os.path.join(source, "build-measure", "build.ninja"), encoding="utf-8") as f:
        setup = f.read()
    check("build_own", status == 0 and "1 steps done, 0 failed" in text, text)
    check("build_for_the_gpus", setup.endswith("-Dtests=disabled -Dcuda=enabled -Dgpu_archs=90\n"), setup)
    os.unlink(os.path.join(p.dir, "bin", "ninja"))
    p.env["PATH"] = os.path.join(p.dir, "bin")
    status, text = run()
    check(
        "build_no_ninja",
        status == 1 and "measure: there is no ninja: build elsewhere, and name the folder by --build DIR" in text,
        text,
    )


def bad_input(folder):
    p = Place(folder, "bad", gpus=0)
    for name, args, want, words in (
        ("gpu_wanted", ["--device", "gpu"], 1, "--device gpu: nvidia-smi shows no GPU here"),
        ("ranks", ["--ranks", "9"], 2, "9: 2 to 8 ranks, separated by commas"),
        ("ranks_text", ["--ranks", "two"], 2, "--ranks"),
        ("budget", ["--budget", "soon"], 2, "--budget"),
        ("option", ["--fast"], 2, "--fast"),
        ("no_step", ["--only", "nothing"], 1, "no step's name contains"),
    ):
        status, text = p.run(*args)
        check("bad_" + name, status == want and words in text and "Traceback" not in text, status, text)
    status, text = p.run(build=os.path.join(folder, "empty"))
    check("bad_build", status == 1 and "there is no tools/shunt in " in text, text)
    program(os.path.join(p.dir, "broken", "tools", "shunt"), "#!/bin/sh\necho no libm >&2; exit 127\n")
    for needed in "src/libshunt.so", "plans/examples/all_reduce_ring_2.json":
        program(os.path.join(p.dir, "broken", needed), "")
    status, text = p.run(build=os.path.join(p.dir, "broken"))
    check("bad_command", status == 1 and "does not start here: no libm" in text, text)


with tempfile.TemporaryDirectory() as folder:
    for part in (on_the_sim, on_two_gpus, on_one_gpu, time_limits, own_build, bad_input):
        part(folder)
sys.exit(1 if failures else 0)
