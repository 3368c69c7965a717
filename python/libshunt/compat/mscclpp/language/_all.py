# SPDX-License-Identifier: MIT
"""
Every name of the language: each module of MSCCL++'s has all of them, so that none is looked for in the wrong place. The
names of the standard library are those that programs get from its modules without asking.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Dict, List, Set  # noqa: UP035

from libshunt import language as _language
from libshunt.language import *  # noqa: F403

__all__ = [
    *_language.__all__,
    "Dict",
    "Enum",
    "List",
    "Set",
    "dataclass",
    "defaultdict",
    "field",
    "json",
]
