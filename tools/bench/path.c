/* SPDX-License-Identifier: MIT */
/*
 * The path of a size's calls, from the library's own counters. A query before the call cannot tell: plans and symmetric
 * memory depend on the buffers of a call.
 */
#include <string.h>
#include "tools/bench/rank.h"

void bench_counters_read(const struct bench_rank *r, int lib, struct bench_counters *c)
{
	if (!r->nccl[lib].counters || r->nccl[lib].counters(r->comm[lib], c->rows, BENCH_MAX_COUNTERS, &c->n))
		c->n = 0;
	if (c->n > BENCH_MAX_COUNTERS)
		c->n = BENCH_MAX_COUNTERS;
}

void bench_path_begin(struct bench_rank *r)
{
	for (int lib = 0; lib < r->o->ranks.nlibs; lib++)
		bench_counters_read(r, lib, &r->counters_before[lib]);
}

static uint64_t calls_before(const struct bench_counters *c, const struct shunt_counter *row)
{
	for (size_t i = 0; i < c->n; i++)
		if (!strcmp(c->rows[i].op, row->op) && !strcmp(c->rows[i].path, row->path) &&
		    !strcmp(c->rows[i].reason, row->reason))
			return c->rows[i].calls;
	return 0;
}

const char *bench_path_taken(const struct bench_rank *r, int lib)
{
	struct bench_counters now;
	const char *path = "-";
	uint64_t most = 0;

	bench_counters_read(r, lib, &now);
	for (size_t i = 0; i < now.n; i++) {
		uint64_t calls = now.rows[i].calls - calls_before(&r->counters_before[lib], &now.rows[i]);

		if (!strcmp(now.rows[i].op, r->o->coll->op) && calls > most) {
			most = calls;
			path = now.rows[i].path;
		}
	}
	return path;
}
