/* SPDX-License-Identifier: MIT */
/* Which path a size's calls took, as the library itself has counted it: plans and windows are up to the buffers of a call. */
#include <string.h>
#include "bench_rank.h"

void bench_path_note(struct bench_rank *r)
{
	for (int lib = 0; lib < r->o->nlibs; lib++) {
		struct bench_counted *c = &r->counted[lib];

		c->n = 0;
		if (!r->nccl[lib].counters || r->nccl[lib].counters(r->comm[lib], c->rows, BENCH_COUNTERS, &c->n))
			continue;
		c->n = c->n < BENCH_COUNTERS ? c->n : BENCH_COUNTERS;
	}
}

static uint64_t counted_before(const struct bench_counted *c, const struct shunt_counter *row)
{
	for (size_t i = 0; i < c->n; i++)
		if (!strcmp(c->rows[i].op, row->op) && !strcmp(c->rows[i].path, row->path) && !strcmp(c->rows[i].reason, row->reason))
			return c->rows[i].calls;
	return 0;
}

const char *bench_path_taken(const struct bench_rank *r, int lib)
{
	struct shunt_counter rows[BENCH_COUNTERS];
	const char *path = "-";
	uint64_t most = 0;
	size_t n;

	if (!r->nccl[lib].counters || r->nccl[lib].counters(r->comm[lib], rows, BENCH_COUNTERS, &n))
		return path;
	for (size_t i = 0; i < n && i < BENCH_COUNTERS; i++) {
		uint64_t calls = rows[i].calls - counted_before(&r->counted[lib], &rows[i]);

		if (!strcmp(rows[i].op, r->o->coll->op) && calls > most) {
			most = calls;
			path = rows[i].path;
		}
	}
	return path;
}
