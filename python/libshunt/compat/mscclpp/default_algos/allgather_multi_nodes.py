# SPDX-License-Identifier: MIT
from ._nodes import allgather_multi_nodes as allgather_multi_nodes
