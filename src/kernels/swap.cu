/* SPDX-License-Identifier: MIT */
/*
 * Swaps: all-gathers and all-to-alls between two ranks. Each sends the other the part that it needs and stores the one
 * that comes in.
 */
#include "kernels/pair.h"

#define SWAP(parts, shape, op, type) \
	LINES_KERNEL(shape, op, type, shunt_kargs, pair<type, op_copy, is_same<type, v16>::value, parts>)
#define SWAP_SAME(shape, op, opn, type, typen) SWAP(false, shape, op, type)
#define SWAP_PARTS(shape, op, opn, type, typen) SWAP(true, shape, op, type)
SHUNT_COPY_ROWS(SWAP_SAME, swap)
SHUNT_COPY_ROWS(SWAP_PARTS, swap_parts)
