# SPDX-License-Identifier: MIT
"""Where Megatron-Core imports these from."""

from libshunt.deep_ep.events import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
