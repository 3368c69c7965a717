/* SPDX-License-Identifier: MIT */
/*
 * Pairwise exchanges: all-gathers and all-to-alls between two ranks. Each rank sends the other the part that the
 * other needs, and stores the part that comes in.
 */
#include "kernels/pairwise.h"

#define PAIRWISE(parts, shape, op, type) \
	LL128_KERNEL(shape, op, type, shunt_kargs, pair<type, op_copy, is_same<type, v16>::value, parts>)
#define PAIRWISE_WHOLE(shape, op, opn, type, typen) PAIRWISE(false, shape, op, type)
#define PAIRWISE_SHARES(shape, op, opn, type, typen) PAIRWISE(true, shape, op, type)
SHUNT_COPY_ROWS(PAIRWISE_WHOLE, pairwise)
SHUNT_COPY_ROWS(PAIRWISE_SHARES, pairwise_parts)
