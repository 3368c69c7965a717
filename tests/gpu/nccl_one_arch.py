#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A copy of NCCL's library that has machine code for one GPU only, to carry it to a machine with little room.

    nccl_one_arch.py libnccl.so.2 90 OUT

The code for other GPUs, and the PTX, become zeros, which any compressor removes. Nothing moves in the file, so it loads
as before. Prints how many pieces were kept and cleared.
"""
import struct
import sys

CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes behind it
ENTRY = struct.Struct("<HHIQIIHHI")  # kind, version, bytes of this header, of the code, ..., architecture (last)
MAGIC = 0xBA55ED50
ELF = 2


def clear(image, keep):
    """Changes image; (pieces kept, pieces cleared)."""
    kept = cleared = 0
    at = image.find(struct.pack("<I", MAGIC))
    while at >= 0:
        magic, version, header, length = CONTAINER.unpack_from(image, at)
        if version != 1 or header != CONTAINER.size or at + header + length > len(image):
            at = image.find(struct.pack("<I", MAGIC), at + 1)  # the number stands there by chance
            continue
        entry, end = at + header, at + header + length
        while entry < end:
            fields = ENTRY.unpack_from(image, entry)
            kind, size, arch = fields[0], fields[3], fields[8]
            code = entry + fields[2]
            if kind == ELF and arch == keep:
                kept += 1
            else:
                image[code:code + size] = bytes(size)
                cleared += 1
            entry = code + size
        at = image.find(struct.pack("<I", MAGIC), end)
    return kept, cleared


def main():
    if len(sys.argv) != 4 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as f:
        image = bytearray(f.read())
    kept, cleared = clear(image, int(sys.argv[2]))
    if not kept:
        sys.exit("%s: no machine code for sm_%s" % (sys.argv[1], sys.argv[2]))
    with open(sys.argv[3], "wb") as f:
        f.write(image)
    print("%d pieces kept, %d cleared" % (kept, cleared))


if __name__ == "__main__":
    main()
