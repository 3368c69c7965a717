# SPDX-License-Identifier: MIT
"""Shunt for Python programs: what stands behind NCCL's ABI, and what it does with each call.

The package has no dependency and opens libshunt.so by ctypes. Importing it loads and changes nothing.
"""

from libshunt._lib import Error, __version__, library_path

__all__ = ["Error", "__version__", "library_path"]
