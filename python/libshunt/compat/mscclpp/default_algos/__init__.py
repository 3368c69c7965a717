# SPDX-License-Identifier: MIT
from ._nodes import allgather_multi_nodes, allreduce_multi_nodes, reducescatter_multi_nodes

__all__ = ["allgather_multi_nodes", "allreduce_multi_nodes", "reducescatter_multi_nodes"]
