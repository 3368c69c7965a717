/* SPDX-License-Identifier: MIT */
/* The list of patterns, and their common functions. */
#include "tools/conform/patterns.h"

enum { MIXED = -1 }; /* misalign: another value on every rank */

size_t conform_uneven(const struct conform_build *b, const struct conform_case *c, unsigned i, unsigned j)
{
	uint64_t x = conform_random(b, i, j);

	return x % 5 == 0 ? 0 : x % 7 == 0 ? 3 * c->count : (x >> 8) % (c->count + 1);
}

void conform_ring(struct conform_build *b, size_t count, int step)
{
	conform_group_start(b);
	conform_call(b, BENCH_COLL_SEND, (b->rank + step) % b->nranks, count);
	conform_call(b, BENCH_COLL_RECV, (b->rank + b->nranks - step) % b->nranks, count);
	conform_group_end(b);
}

static const struct pattern {
	const char *name;
	void (*build)(struct conform_build *b, const struct conform_case *c);
	unsigned colls;
	size_t counts[2];
	enum shunt_dtype dtype;
	bool graph;
} patterns[] = {
#define PATTERN(name, colls, small, large, dtype, graph) \
	{ #name, conform_pattern_##name, colls, { small, large }, SHUNT_##dtype, graph },
#include "tools/conform/patterns.def"
#undef PATTERN
};

static void pattern_add(struct conform_list *list, const struct pattern *p)
{
	for (int coll = 0; coll < BENCH_NCOLLS; coll++)
		for (int size = 0; size < 2; size++)
			for (int graph = 0; graph < (p->graph ? 2 : 1); graph++) {
				struct conform_case c = { .build = p->build,
					.coll = coll,
					.dtype = p->dtype,
					.redop = SHUNT_SUM,
					.count = p->counts[size],
					.misalign = size ? 0 : MIXED,
					.graph = graph };

				if (p->colls ? !(p->colls >> coll & 1) : coll)
					continue;
				snprintf(c.name, sizeof(c.name), "pattern.%s%s%s.n%zu%s", p->name, p->colls ? "." : "",
				    p->colls ? bench_colls[coll].name : "", c.count, graph ? ".graph" : "");
				conform_case_add(list, &c);
			}
}

void conform_patterns_add(struct conform_list *list)
{
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
		pattern_add(list, &patterns[i]);
}
