# SPDX-License-Identifier: MIT
"""Sizes: what DeepEP's callers tune, and how much memory calls need."""

from __future__ import annotations

import dataclasses

from libshunt import _arguments
from libshunt.deep_ep import _call

MOST_HIDDEN = 1 << 24  # of a row of normal mode
MOST_SMS = 1024

# Number of ranks: numbers of a Config behind num_sms, of dispatch and of combine.
_NUMBERS = {
    2: ((24, 256, 6, 128), (10, 256, 6, 128)),
    4: ((6, 256, 6, 128), (9, 256, 6, 128)),
    8: ((6, 256, 6, 128), (4, 256, 6, 128)),
    16: ((36, 288, 20, 128), (4, 288, 12, 128)),
    24: ((32, 288, 8, 128), (1, 288, 8, 128)),
    32: ((32, 288, 8, 128), (1, 288, 8, 128)),
    48: ((32, 288, 8, 128), (1, 288, 8, 128)),
    64: ((32, 288, 8, 128), (1, 288, 8, 128)),
    96: ((20, 480, 12, 128), (1, 480, 8, 128)),
    128: ((20, 560, 12, 128), (1, 560, 8, 128)),
    144: ((32, 720, 12, 128), (2, 720, 8, 128)),
    160: ((28, 720, 12, 128), (2, 720, 8, 128)),
}


@dataclasses.dataclass
class Config:
    """Of a call in normal mode. Shunt goes by num_sms alone: it has rings of a fixed size, and no chunks."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _arguments.integer(field.name, getattr(self, field.name), 0, 1 << 30)
        _arguments.integer("num_sms", self.num_sms, 0, MOST_SMS)

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for Buffer's num_nvl_bytes."""
        _arguments.integer("hidden_bytes", hidden_bytes, 1, MOST_HIDDEN)
        return _call.normal_bytes(num_ranks, hidden_bytes, self.num_sms or 20)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for Buffer's num_rdma_bytes: none, since normal mode has its memory by num_nvl_bytes."""
        return 0


def recommended(num_ranks: int, num_sms: int, kind: int) -> Config:
    """The Config for so many ranks. kind: 0 of dispatch, 1 of combine."""
    found = next((n for n in _NUMBERS if n >= num_ranks), 0)
    if num_ranks < 1 or not found or (num_ranks > 8 and found != num_ranks):
        _arguments.wrong("num_ranks", num_ranks, f"up to 8, or one of {', '.join(str(n) for n in _NUMBERS if n > 8)}")
    return Config(num_sms, *_NUMBERS[found][kind])
