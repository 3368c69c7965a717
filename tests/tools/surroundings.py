#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
surroundings.py SHUNT MOCK LIBSHUNT PLANS TUNING: every command on a full disk, before a reader that has gone, without
a terminal and at a narrow one, with names that are no text, and given the files of others.
"""

import atexit
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

SHUNT, MOCK, LIB, PLANS, TUNING = map(os.path.abspath, sys.argv[1:])
DIR = tempfile.mkdtemp().encode()
atexit.register(shutil.rmtree, DIR, ignore_errors=True)
ODD = DIR + b'/\xff\xc3(<"\n'  # no UTF-8, no HTML and no line
PLAN, TUNED = f"{PLANS}/all_reduce_twoshot-ll_2.json", f"{TUNING}/nvidia-h200-2.json"
# The columns and the variables of who runs the test are none of these.
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("SHUNT_", "NCCL_", "MSCCLPP_", "COLUMNS", "LD_"))}
CLEAN.update(HOME=os.fsdecode(DIR), NCCL_SOCKET_IFNAME="lo", SHUNT_LIB=MOCK)
REAL = {"SHUNT_LIB": LIB, "SHUNT_DEVICE": "sim", "SHUNT_NCCL_LIB": "none", "SHUNT_LOG": "error"}
SMALL = "-n 2 -e 64 -r 1 -i 1"
failed = False

# What prints, by families: the words, and whether it needs the library instead of the one that stands for it.
PRINTS = [
    ("--version", False),
    ("help", False),
    ("help --man tune", False),
    ("help --completion fish", False),
    ("info", False),
    ("info select --ranks 2", True),
    ("run --print", False),
    ("path lib", False),
    (f"bench {SMALL}", False),
    ("bench p2p -n 2 -i 1 -r 1 --large 1027", False),
    ("bench report bench.json -o /dev/stdout", False),
    ("conform -n 2 --case types.all_reduce.int8.sum.n1000.out", False),
    ("torture -n 2 --ops 20 --seed 1", False),
    (f"plan check {PLAN}", False),
    (f"plan show {PLAN}", False),
    (f"plan show --svg /dev/stdout {PLAN}", False),
    ("plan new all_reduce ring -n 2", False),
    (f"plan run {PLAN} -b 32K -e 32K -r 1 -i 1", True),
    ("tune --show tuned.json", False),
    ("doctor", False),
    ("doctor --json", False),
    ("doctor dumps --fields", False),
    (f"top --once --every 0.1 --below {os.getpid()}", False),
    ("plugin --help", False),
    ("ras --help", False),
]
# What writes JSON that has a user's text: the words (ODD is such a path), and where a text of the user's stands.
WRITES = [
    ("info --json OUT", False, ("libraries", "shunt")),
    ("info select --ranks 2 --json OUT 32K", True, ("rows", 0, "source")),
    (f"bench {SMALL} --json OUT", False, ("libraries", 0, "path")),
    (f"bench {SMALL} --init --json OUT", False, ("libraries", 0, "path")),
    ("bench p2p -n 2 -i 1 -r 1 --large 1027 --json OUT", False, ("libraries", 0, "path")),
    ("bench ep -n 2 -r 1 -i 1 --json OUT --link-source ODD", True, ("link_source",)),
    ("conform -n 2 --case types.all_reduce.int8.sum.n1000.out --json OUT", False, ("libraries", 0, "path")),
    ("plan run ODD.json -b 32K -e 32K -r 1 -i 1 --json OUT", True, ("file",)),
    ("plan check --json ODD.json", False, (0, "file")),
    ("doctor --json", False, ("findings", 0, "text")),
]
# Files of others: words that read FILE, and for what each kind of file has them say.
READS = ["bench report FILE -o page.html", "plan check FILE", "plan show FILE", "plan run FILE", "tune --show FILE"]
READS += ["tune --share FILE --output shared.json", "doctor dumps FILE", "doctor job FILE"]
SAYS = {
    "later tuning": ({"shunt_tuning": 99}, {"tune": "format 99, and this is Shunt .* run `shunt tune` again"}),
    "plan of none": ({"name": "x", "version": 9}, {"plan": "collective is missing"}),
    "later results": (
        {"collective": "all_reduce", "results": [{"bytes": 8, "libraries": [{"seconds": 1}]}]},
        {"bench": "there is nothing to show"},
    ),
    "later dump": ({"shunt_dump": 99, "version": "7.1"}, {"doctor": "another version|no dump|not a dump|no line"}),
    "no object": ([[3]], {}),
    "empty": (None, {}),
}


def check(name, good, seen=""):
    global failed
    print(f"{'ok' if good else 'not ok'}: {name}{'' if good else f': {seen}'}")
    failed = failed or not good


def run(words, real=False, out=subprocess.PIPE, before=None, **env):
    words = [ODD + word[3:].encode() if isinstance(word, str) and word[:3] == "ODD" else word for word in words]
    return subprocess.run(
        [SHUNT, *words],
        env={**CLEAN, **(REAL if real else {}), **env},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        preexec_fn=before,
        cwd=DIR,
        timeout=120,
        check=False,
    )


def outputs(command, real):
    """In a locale without UTF-8: plain letters and no colours. Then where nothing can be written."""
    words = command.split()
    ran = run(words, real, LC_ALL="C")
    # The doctor's status is what it thinks of this machine.
    good = ran.returncode == 0 or words[0] == "doctor"
    check(f"{command}: plain without a terminal", good and re.fullmatch(rb"[\t\n -~]+", ran.stdout), ran)
    with open("/dev/full", "wb") as full:
        ran = run(words, real, full)
    lines = ran.stderr.splitlines()
    said = len(lines) == 1 and re.fullmatch(rb"shunt.*: cannot write .*: No space left on device", lines[0])
    check(f"{command}: says that the disk is full", ran.returncode in (1, 2) and said, ran)
    read, write = os.pipe()
    os.close(read)
    # A parent that ignores the signal, as Python does, makes no difference.
    ran = run(words, real, write, lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
    os.close(write)
    # Ranks die by it, and the command says so by its status.
    check(f"{command}: is quiet for a reader that has gone", ran.returncode in (-13, 141) and not ran.stderr, ran)


def narrow(words, until=None, number=None, **env):
    """At a terminal of 40 columns: text, status, and whether it is left as it was. A signal comes after a text."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    before, text = termios.tcgetattr(slave), b""
    process = subprocess.Popen([SHUNT, *words.split()], env={**CLEAN, **env}, stdin=slave, stdout=slave, stderr=slave)
    while True:
        ended = process.poll() is not None
        if select.select([master], [], [], 0 if ended else 0.02)[0]:
            text += os.read(master, 65536)
        elif ended:
            break
        if until and until in text:
            until = process.send_signal(number)
    same = termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
    return text.decode().replace("\r", ""), process.returncode, same


def terminals():
    families = "run|info|info select|doctor|doctor job|doctor dumps|top|watch|bench|bench p2p|bench ep|bench report"
    families += "|conform|torture|plan|plan new|plan run|plugin|plugin check|tune|path|ras"
    for family in families.split("|"):
        text, status, _ = narrow(f"{family} --help")
        # A word may be longer than a line.
        wide = [line for line in text.splitlines() if len(line) > 40 and " " in line.strip()]
        check(f"{family} --help: at 40 columns", status == 0 and "usage: shunt" in text and not wide, wide)
        wide = max(run([*family.split(), "--help"]).stdout.decode().splitlines(), key=len)
        check(f"{family} --help: lines of a page", len(wide) <= 124, wide)
    for words in "info -c", "doctor":
        text = narrow(words)[0]
        prose = [line for line in text.splitlines() if re.match(" {6,11}[^ ]+ ", line)]
        check(f"{words}: at 40 columns", len(prose) > 5 and max(map(len, prose)) <= 40, prose)
    marks = b"\x1b[", b"\r"
    plain = narrow(f"top --once --every 0.1 --below {os.getpid()}", NO_COLOR="1", TERM="dumb")
    check("top --once: NO_COLOR", plain[1] == 0 and not any(m.decode() in plain[0] for m in marks), plain)
    for number in signal.SIGINT, signal.SIGTERM:
        ended = narrow(f"top --every 0.1 --below {os.getpid()}", b"no process", number)
        check(f"top: gives the terminal back after {number.name}", ended[1:] == (-number, True), ended)
    with open("/dev/full", "wb") as full:
        ran = run(["top", "--every", "0.1", "--below", str(os.getpid())], out=full)
    check("top: ends on a full disk", ran.returncode == 1 and b"No space left" in ran.stderr, ran)


def texts():
    """A library, files and a text whose bytes are no UTF-8: JSON has all rows, and in them each byte's character."""
    shutil.copy(PLAN, ODD + b".json")
    os.makedirs(ODD)
    shutil.copy(MOCK, ODD + b"/libshunt.so")
    for command, real, place in WRITES:
        words = [os.fsdecode(DIR) + "/out.json" if word == "OUT" else word for word in command.split()]
        odd = {True: ("SHUNT_PLAN_DIR", ODD + b".json"), False: ("SHUNT_LIB", ODD + b"/libshunt.so")}[real]
        ran = run(words, real, **{odd[0]: os.fsdecode(odd[1])})
        if "OUT" in command:
            with open(DIR + b"/out.json", "rb") as file:
                written = file.read()
        else:
            written = ran.stdout
        try:
            value = json.loads(written.decode())
            for step in place:
                value = value[step]
        except (ValueError, LookupError, TypeError) as err:
            value = repr(err)
        check(f"{command}: bytes in JSON", "\xff\xc3" in str(value), (value, ran.stderr, written[-300:]))


def strangers():
    for name, (content, says) in SAYS.items():
        with open(DIR + b"/other.json", "w", encoding="utf-8") as file:
            file.write("" if content is None else json.dumps(content))
        for command in READS:
            words = command.replace("FILE", "other.json").split()
            ran = run(words, words[1] == "run")
            lines = [line for line in (ran.stdout + ran.stderr).decode().splitlines() if not line.startswith("0 right")]
            said = len(lines) == 1 and "other.json" in lines[0] and re.search(says.get(words[0], ""), lines[0])
            check(f"{command}: {name}", ran.returncode in (1, 2) and said, ran)


with open(DIR + b"/bench.json", "wb") as results:
    results.write(run([*f"bench {SMALL} --json /dev/stderr".split()]).stderr)
with open(TUNED, encoding="utf-8") as ready, open(DIR + b"/tuned.json", "w", encoding="utf-8") as file:
    us = dict.fromkeys(["us", "nccl_us", "before_us", "eager_us", "nccl_eager_us", "nccl_windows_us"], 1.0)
    launch = {"blocks": 1, "threads": 32, "channels": 0, "nccl": False, "before": "oneshot", "windows": False}
    point = {"collective": "all_reduce", "bytes": 64, "part": 64, "algorithm": "oneshot", **launch, **us}
    json.dump({**json.load(ready), "points": [point]}, file)
for prints in PRINTS:
    outputs(*prints)
terminals()
texts()
strangers()
sys.exit(failed)
