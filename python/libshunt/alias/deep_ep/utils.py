# SPDX-License-Identifier: MIT
from libshunt.deep_ep.utils import *  # noqa: F403
