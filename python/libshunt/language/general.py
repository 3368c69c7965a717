# SPDX-License-Identifier: MIT
from __future__ import annotations

from .current import get_program


def JSON() -> str:
    """The open program as a plan."""
    return get_program().to_json()
