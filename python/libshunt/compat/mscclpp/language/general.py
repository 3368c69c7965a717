# SPDX-License-Identifier: MIT
from ._all import *  # noqa: F403
