# SPDX-License-Identifier: MIT
"""MSCCL++'s enumerations, and what they are in NCCL's terms."""

from __future__ import annotations

from enum import Enum

from libshunt import Error

# Of kernels of a program's own.
NO_NATIVE = (
    "kernels for MSCCL++'s channels do not run here: write the kernel over for libshunt.algorithm() "
    "(docs/plugins_mscclpp.md), or a plan (docs/dsl.md)"
)


class DataType(Enum):
    """Values are NCCL's names of the types; None: NCCL has none such."""

    int32 = "int32"
    uint32 = "uint32"
    uint8 = "uint8"
    float16 = "float16"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float8_e4m3fn = "float8e4m3"
    float8_e5m2 = "float8e5m2"
    float8_e4m3b15 = "e4m3b15"  # NCCL's uint8, with an operator of Shunt's
    # Of other machines' floats, and the library's own choice.
    float8_e4m3fnuz = "e4m3fnuz"
    float8_e5m2fnuz = "e5m2fnuz"
    AUTO = "auto"


class ReduceOp(Enum):
    """NOP: what the plan says."""

    SUM = "sum"
    MIN = "min"
    NOP = "nop"


class ErrorCode(Enum):
    """For programs that name it. Shunt's functions raise libshunt.Error."""

    SystemError = 0
    InternalError = 1
    RemoteError = 2
    InvalidUsage = 3
    Timeout = 4
    Aborted = 5
    ExecutorError = 6


class PacketType(Enum):
    """Accepted and of no effect: Shunt chooses how packets travel."""

    LL8 = "LL8"
    LL16 = "LL16"


class CollectiveBufferMode(Enum):
    ANY = "any"
    IN_PLACE = "in_place"
    OUT_OF_PLACE = "out_of_place"


class GpuBufferGranularity(Enum):
    """Accepted and of no effect."""

    MultiCastMinimum = 0
    MultiCastRecommended = 1


_BYTES = {
    "int32": 4,
    "uint32": 4,
    "uint8": 1,
    "float16": 2,
    "float32": 4,
    "bfloat16": 2,
    "float8e4m3": 1,
    "float8e5m2": 1,
    "e4m3b15": 1,
}


def nccl_name(dtype: DataType) -> str:
    return "uint8" if dtype is DataType.float8_e4m3b15 else dtype.value


def accumulator(dtype: DataType, accum_dtype: DataType | None) -> str:
    """Shunt's word for what sums of dtype are kept in (docs/numbers.md)."""
    if accum_dtype in (None, DataType.AUTO):
        return "default"
    bits8 = dtype.value in ("float8e4m3", "float8e5m2", "e4m3b15")
    floats = bits8 or dtype in (DataType.float16, DataType.bfloat16)
    if accum_dtype is dtype:
        return "own" if floats else "default"
    if accum_dtype is DataType.float32 and floats:
        return "fp32"
    if accum_dtype is DataType.float16 and bits8:
        return "fp16"
    raise Error(
        f"accum_dtype is {getattr(accum_dtype, 'name', accum_dtype)}, for elements of "
        f"{dtype.name}: it is None, AUTO, {dtype.name}{', float32' * floats}{' or float16' * bits8}"
    )


def element_bytes(dtype: DataType) -> int:
    try:
        return _BYTES[dtype.value]
    except KeyError:
        raise Error(f"there is no data type {dtype} in NCCL; it is one of {', '.join(_BYTES)}") from None
