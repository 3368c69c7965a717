# SPDX-License-Identifier: MIT
from . import channel as channel
from . import collectives as collectives
from . import general as general
from . import loop as loop
from . import program as program
from . import rank as rank
from . import thread_block_group as thread_block_group
from . import utils as utils
from ._all import *  # noqa: F403
from ._all import __all__ as __all__
