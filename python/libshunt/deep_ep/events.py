# SPDX-License-Identifier: MIT
"""Events as DeepEP's callers use them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from libshunt import _arguments


class EventHandle:
    """What was enqueued on a stream so far (None: on the current one)."""

    def __init__(self, stream: Any = None) -> None:
        self.event = torch.cuda.Event()
        self.event.record(torch.cuda.current_stream() if stream is None else stream)

    def current_stream_wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """An event, or none, and the tensors that must last until it was waited for. `with` it, the wait comes last."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self._hook: Callable[[], object] | None = None
        self._release = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """What comes later on the current stream comes after the event. release_handle: forgets the event."""
        if self.event is None:
            raise _arguments.ArgumentError("event is None: a call returns an event if it has async_finish=True")
        self.event.current_stream_wait()
        hook, self._hook = self._hook, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], object]) -> None:
        """To be called once, at the next wait."""
        if self._hook is not None:
            _arguments.wrong("hook_after_wait", hook_after_wait, "for an event that has none yet")
        self._hook = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        self._release = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release)
        self._release = False
