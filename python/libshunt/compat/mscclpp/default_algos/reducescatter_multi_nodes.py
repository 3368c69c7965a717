# SPDX-License-Identifier: MIT
from ._nodes import reducescatter_multi_nodes as reducescatter_multi_nodes
