# SPDX-License-Identifier: MIT
from ._nodes import allreduce_multi_nodes as allreduce_multi_nodes
