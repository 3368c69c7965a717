# SPDX-License-Identifier: MIT
"""Packages under the names of others. They lie in folders that no program sees until it asks for them."""

from __future__ import annotations

import importlib.machinery
import os
import sys


def enable(folder: str, name: str, call: str) -> None:
    """From now on `import NAME` is the package in the folder, here and in children. call: what the program called."""
    other = sys.modules.get(name)
    if other is not None and not (getattr(other, "__file__", None) or "").startswith(folder):
        raise ImportError(f"{name} is imported already: call {call} before that")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])


def hidden(name: str, file: str) -> str | None:
    """Where a package of this name lies that a program would find without ours, whose file is given."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(file)))
    found = importlib.machinery.PathFinder.find_spec(name, [path for path in sys.path if os.path.abspath(path) != ours])
    return found.origin if found is not None else None
