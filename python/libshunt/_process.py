# SPDX-License-Identifier: MIT
"""Shunt in this process: put in front of NCCL, and what the loader says of it."""

from __future__ import annotations

import dataclasses
import os
import warnings

from libshunt import _arguments, _lib, _loader, _tables


@dataclasses.dataclass(frozen=True)
class Status:
    """What is so now. `active` is the answer; the other fields are what it follows from."""

    active: bool  # whoever calls NCCL here, or will, is answered by Shunt
    reason: str  # in words
    library: str | None  # the libshunt.so of this process; None: it is not loaded
    version: str | None
    nccl: str | None  # the real NCCL behind it, once the first NCCL call has looked for it
    by_name: str | None  # what dlopen("libnccl.so.2") gives; None: nothing is loaded under that name
    users: tuple[_loader.User, ...]  # who calls NCCL in this process, and the file that answers

    def __bool__(self) -> bool:
        return self.active

    def __str__(self) -> str:
        rows = [f"{'active' if self.active else 'not active'}: {self.reason}"]
        rows += [f"library   {self.library} {self.version}"] if self.library else []
        rows += [f"real NCCL {self.nccl}"] if self.nccl else []
        rows += [f"{user.library} is answered by {user.answered_by or 'nobody yet'}" for user in self.users]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        rows: list[tuple[object, object]] = [("active", self.active), ("reason", self.reason)]
        rows += [("library", f"{self.library} {self.version}")] if self.library else []
        rows += [("real NCCL", self.nccl)] if self.nccl else []
        rows += [(user.library, user.answered_by or "nobody yet") for user in self.users]
        return _tables.table(rows)


def _reason(library: str | None, by_name: str | None, users: tuple[_loader.User, ...]) -> tuple[bool, str]:
    if library is None:
        return False, "no libshunt.so is loaded in this process"
    strangers = [
        user for user in users if user.answered_by is not None and not _loader.same_file(user.answered_by, library)
    ]
    if strangers:
        return False, f"{strangers[0].library} calls NCCL in {strangers[0].answered_by}"
    if by_name is not None and not _loader.same_file(by_name, library):
        return False, f'dlopen("libnccl.so.2") gives {by_name}'
    if users:
        return True, f"{users[0].library} calls NCCL in {library}"
    return True, "nobody calls NCCL here yet; who is loaded from now on will find Shunt"


def status() -> Status:
    """Asks the loader which library answers NCCL's calls in this process. Loads and changes nothing."""
    library = _lib.loaded()
    users = tuple(_loader.users())
    by_name = _loader.loaded_nccl()
    active, reason = _reason(library, by_name, users)
    version = nccl = None
    if library is not None:
        shunt = _lib.library(private=True)
        version = _lib.text(shunt.shunt_version())
        nccl = _lib.text(shunt.shunt_real_nccl_path()) or None
    return Status(active, reason, library, version, nccl, by_name, users)


def _has_separator(path: str) -> bool:
    return any(c in path for c in " :\t\n")


def _prepend(variable: str, value: str) -> None:
    old = os.environ.get(variable, "")
    parts = [part for part in old.split(":") if part]
    if value not in parts:
        os.environ[variable] = ":".join([value, *parts])


def _pass_on(path: str) -> None:
    """Lets children have the library, too. LD_PRELOAD splits at blanks and colons; LD_LIBRARY_PATH at colons only."""
    folder, name = os.path.split(path)
    if not _has_separator(path):
        _prepend("LD_PRELOAD", path)
    elif ":" not in folder and ";" not in folder and not _has_separator(name):
        _prepend("LD_LIBRARY_PATH", folder)
        _prepend("LD_PRELOAD", name)
    else:
        warnings.warn(
            f"children of this process run without Shunt: LD_PRELOAD cannot hold {path}; "
            "install the package where the path has no colon",
            stacklevel=3,
        )
        return
    links = os.path.join(folder, "shunt")
    if os.path.exists(os.path.join(links, "libnccl.so")):
        _prepend("LD_LIBRARY_PATH", links)


def enable(nccl: str | os.PathLike[str] | None = None, *, strict: bool = True) -> Status:
    """Puts Shunt in NCCL's place, in this process and its children. To be called before `import torch`.

    nccl: the real NCCL to put it in front of, a path or "none"; as SHUNT_NCCL_LIB.
    strict: an Error if it is too late, which names the command that would work. Else a warning, and a status that is
    not active.
    """
    if nccl is not None:
        nccl = _arguments.path("nccl", nccl)
        if "/" in nccl and not os.path.isfile(nccl):
            _arguments.wrong("nccl", nccl, 'the file of an NCCL, or "none"; this one is not there')
        before = _lib.loaded() and status().nccl
        if before and before != nccl:
            raise _lib.Error(f"Shunt is in front of {before} already: set SHUNT_NCCL_LIB={nccl} before the first call")
        os.environ["SHUNT_NCCL_LIB"] = nccl
    try:
        _lib.library()
    except _lib.Error as error:
        if strict:
            raise
        warnings.warn(str(error), stacklevel=2)
        return status()
    path = _lib.loaded()
    assert path is not None
    _pass_on(path)
    return status()
