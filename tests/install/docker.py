#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docker.py SOURCE BUILD STAGE: Dockerfile and Dev Container file are well formed, and their commands do their work, as
far as that shows without a registry: options are those of the build, files and stages that are named exist, the entry
point starts programs from the installation STAGE.
"""

import json
import os
import re
import shlex
import subprocess
import sys

SOURCE, BUILD, STAGE = sys.argv[1:]
INSTRUCTIONS = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "ENTRYPOINT", "CMD"}


def read(*parts):
    with open(os.path.join(SOURCE, *parts), encoding="utf-8") as file:
        return file.read()


def check_meson(command):
    """Options of `meson setup` are options of this project."""
    known = json.loads(subprocess.check_output(["meson", "introspect", "--buildoptions", BUILD], text=True))
    names = {option["name"] for option in known}
    words = shlex.split(command)
    used = {word[2:].partition("=")[0] for word in words if word.startswith("-D")}
    used |= {word[2:] for word in words if word.startswith("--")}
    assert words[:2] == ["meson", "setup"] and used <= names, used - names


def started(entry, command, path):
    """What the container's default user would see."""
    env = dict(os.environ, PATH=path, SHUNT_NCCL_LIB="none")
    run = subprocess.run([*entry, *command], env=env, capture_output=True, text=True)
    # doctor's own status depends on the machine; these are of a program that does not start, or dies.
    assert run.returncode not in (126, 127) and 0 <= run.returncode < 128, run.stdout + run.stderr
    return run.stdout


def main():
    text = re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.M).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    assert {word for word, _ in lines} <= INSTRUCTIONS, lines
    of = {word: [rest for name, rest in lines if name == word] for word in INSTRUCTIONS}
    arguments = {rest.split("=")[0] for rest in of["ARG"]}
    stages = {rest.split(" AS ")[1] for rest in of["FROM"] if " AS " in rest}
    assert all(set(re.findall(r"\$\{(\w+)\}", rest)) <= arguments for rest in of["FROM"]), of["FROM"]
    assert {rest.split(" ")[0].partition(":")[0] for rest in of["FROM"]} <= stages | {"nvidia/cuda"}, of["FROM"]
    assert {word[7:] for rest in of["COPY"] for word in rest.split() if word.startswith("--from=")} <= stages
    for rest in of["RUN"]:
        assert subprocess.run(["sh", "-n", "-c", rest]).returncode == 0, rest
        if "apt-get install" in rest:
            assert "-y --no-install-recommends" in rest and rest.strip().endswith("rm -rf /var/lib/apt/lists/*"), rest
    (setup,) = [rest for rest in of["RUN"] if rest.startswith("meson setup")]
    check_meson(setup)
    ignored = read(".dockerignore").split()
    assert all(line in read(".gitignore").replace("*\n", "*/\n").replace(".deps\n", ".deps/\n") for line in ignored)

    dev = json.loads(read(".devcontainer", "devcontainer.json"))
    assert dev["build"]["target"] in stages
    assert os.path.samefile(os.path.join(SOURCE, ".devcontainer", dev["build"]["dockerfile"]), SOURCE + "/Dockerfile")
    check_meson(dev["postCreateCommand"].split(" && ")[0])

    # Where the image has /opt/shunt/bin, the installation has its bin.
    folder = min(
        (place for place, _, files in os.walk(STAGE) if "shunt" in files and os.path.basename(place) == "bin"), key=len
    )
    (image,) = re.findall(r"^PATH=/opt/shunt/bin:\$PATH$", "\n".join(of["ENV"]), re.M)
    path = f"{folder}:{os.environ['PATH']}"
    (entry,), (command,) = map(json.loads, of["ENTRYPOINT"]), map(json.loads, of["CMD"])
    assert image and "libshunt.so" in started(entry, ["sh", "-c", "echo $LD_PRELOAD"], path)
    assert "shunt" in started(entry, command, path).lower()


main()
