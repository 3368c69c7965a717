/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_CONFORM_PATTERNS_H
#define SHUNT_TOOLS_CONFORM_PATTERNS_H
/* Patterns of many calls, as real programs make them. A case's count says about how many elements a message has. */
#include "tools/conform/conform.h"

#define CONFORM_BIT(coll) (1u << BENCH_COLL_##coll)
#define CONFORM_ALL_COLLS \
	(CONFORM_BIT(ALL_REDUCE) | CONFORM_BIT(ALL_GATHER) | CONFORM_BIT(REDUCE_SCATTER) | CONFORM_BIT(BROADCAST) | \
	    CONFORM_BIT(REDUCE) | CONFORM_BIT(ALLTOALL) | CONFORM_BIT(GATHER) | CONFORM_BIT(SCATTER) | \
	    CONFORM_BIT(BCAST))

/* Elements of message i, j: anything from none to c->count, now and then more. */
size_t conform_uneven(const struct conform_build *b, const struct conform_case *c, unsigned i, unsigned j);
/* In a group, to the rank so many steps on and from the one so many behind. */
void conform_ring(struct conform_build *b, size_t count, int step);

/* What builds each. */
#define PATTERN(name, ...) void conform_pattern_##name(struct conform_build *b, const struct conform_case *c);
#include "tools/conform/patterns.def"
#undef PATTERN
#endif
