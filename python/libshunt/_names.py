# SPDX-License-Identifier: MIT
"""Names of data types and operators, with NCCL's numbers. A test compares them with the library's."""

from __future__ import annotations

from libshunt import _arguments
from libshunt._lib import Error

DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8e4m3",
    "float8e5m2",
)
DTYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
# Of selectors' calls alone: behind NCCL's types.
FORMATS = (
    "float8e4m3b15",
    "float8e4m3b15/float16",
    "float8e4m3b15/own",
    "float8e4m3/float16",
    "float8e4m3/own",
    "float8e5m2/float16",
    "float8e5m2/own",
    "float16/own",
    "bfloat16/own",
)
# In the order of enum shunt_accumulate.
ACCUMULATORS = ("default", "fp32", "fp16", "own")
REDOPS = ("sum", "prod", "max", "min", "avg")
# Other names: C's, and those of PyTorch where it calls a type otherwise.
_ALIASES = {
    "char": "int8",
    "int": "int32",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bf16": "bfloat16",
    "bool": "uint8",
    "float8_e4m3fn": "float8e4m3",
    "float8_e5m2": "float8e5m2",
    "product": "prod",
}


def _number(value: object, names: tuple[str, ...], what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(names):
            return value
    else:
        # torch.float16, numpy.float32, numpy.dtype("float32") and "float32" all end in the name.
        try:
            named = str(getattr(value, "name", None) or getattr(value, "__name__", None) or value)
        except Exception:  # there is no name in such a value
            named = ""
        name = named.rsplit(".", 1)[-1].lower()
        name = _ALIASES.get(name, name)
        if name in names:
            return names.index(name)
    raise Error(f"there is no {what} {_arguments.shown(value)}: it is one of {', '.join(names)}")


def dtype_number(value: object) -> int:
    return _number(value, DTYPES, "data type")


def dtype_word(value: object) -> str:
    """For the command, which knows more names, and says which."""
    return _arguments.text("dtype", value) if isinstance(value, str) else DTYPES[dtype_number(value)]


def redop_number(value: object) -> int:
    return _number(value, REDOPS, "operator")


def accumulator_number(value: object) -> int:
    if not isinstance(value, str):
        raise Error(f"accumulate is {_arguments.shown(value)}: it is one of {', '.join(ACCUMULATORS)}")
    return _number(value, ACCUMULATORS, "accumulator")


def dtype_name(number: int) -> str:
    names = DTYPES + FORMATS
    return names[number] if 0 <= number < len(names) else str(number)


def redop_name(number: int) -> str:
    return REDOPS[number] if 0 <= number < len(REDOPS) else "premulsum"
