/* SPDX-License-Identifier: MIT */
#pragma once
/* Patterns of many calls, as real programs make them. A message has about as many elements as the case's count. */
#include "tools/conform/conform.h"

#define CONFORM_BIT(coll) (1u << BENCH_COLL_##coll)
#define CONFORM_ALL_COLLS \
	(CONFORM_BIT(ALLREDUCE) | CONFORM_BIT(ALLGATHER) | CONFORM_BIT(REDUCESCATTER) | CONFORM_BIT(BROADCAST) | \
	    CONFORM_BIT(REDUCE) | CONFORM_BIT(ALLTOALL) | CONFORM_BIT(GATHER) | CONFORM_BIT(SCATTER) | \
	    CONFORM_BIT(BCAST))

/* Elements of message (i, j): 0 to c->count, sometimes more. */
size_t conform_uneven(const struct conform_build *b, const struct conform_case *c, unsigned i, unsigned j);
/* In a group: sends to the rank `step` after this one, receives from the rank `step` before it. */
void conform_ring(struct conform_build *b, size_t count, int step);

/* The function that builds each pattern. */
#define PATTERN(name, ...) void conform_pattern_##name(struct conform_build *b, const struct conform_case *c);
#include "tools/conform/patterns.def"
#undef PATTERN
