/* SPDX-License-Identifier: MIT */
/*
 * Pairwise exchanges: all-gathers and all-to-alls between two ranks. Each sends the other the part that it needs and
 * stores the one that comes in.
 */
#include "kernels/pairwise.h"

#define PAIRWISE(parts, shape, op, type) \
	LL128_KERNEL(shape, op, type, shunt_kargs, pair<type, op_copy, is_same<type, v16>::value, parts>)
#define PAIRWISE_WHOLE(shape, op, opn, type, typen) PAIRWISE(false, shape, op, type)
#define SWAP_PARTS(shape, op, opn, type, typen) PAIRWISE(true, shape, op, type)
SHUNT_COPY_ROWS(PAIRWISE_WHOLE, pairwise)
SHUNT_COPY_ROWS(SWAP_PARTS, pairwise_parts)
