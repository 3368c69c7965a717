/* SPDX-License-Identifier: MIT */
/* Schedule of shunt tune: points, their order, and an estimate of their time. */
#include <stdlib.h>
#include "tools/tune/tune.h"

/* Few calls of a large size, many of a small one: a round must be long in comparison with its start and end. */
struct tune_burst tune_burst(bool sim, uint64_t bytes)
{
	static const struct {
		uint64_t upto;
		struct tune_burst burst;
	} bursts[] = { { 64 << 10, { 20, 8 } }, { 1 << 20, { 20, 4 } }, { 4 << 20, { 20, 1 } }, { 64 << 20, { 5, 1 } },
		{ UINT64_MAX, { 2, 1 } } };
	size_t i = 0;

	while (bytes > bursts[i].upto)
		i++;
	return sim ? (struct tune_burst){ 1, 1 } : bursts[i].burst;
}

/*
 * An estimate in microseconds. It weighs the remaining tasks; the actual pace of the run corrects it. A call gets half
 * the bandwidth of an NVLink link, since most candidates are not the best one.
 */
static double task_cost(const struct tune_opts *o, const struct tune_task *t, int nranks, bool sim, bool nccl)
{
	enum { CAPTURE_US = 20, GRAPH_US = 1000, ROUND_US = 100, ELEMENT_NS = 50 };
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	struct tune_burst b = tune_burst(sim, t->bytes);
	int n = tune_candidates(o, t->coll, t->part, nranks, sim, nccl, list),
	    last = n < TUNE_FINALISTS + 3 ? n : TUNE_FINALISTS + 3;
	double call = sim ? 1000 : 8 + (double)t->bytes * bench_coll_bus_factor(&bench_colls[t->coll], nranks) / 200e3;
	double burst = call * b.calls * b.launches, graph = call * b.calls + CAPTURE_US * b.calls + GRAPH_US;
	double checked = o->base.check && t->bytes <= TUNE_CHECK_BYTES ?
	    (double)t->bytes / shunt_dtype_bytes[o->dtype] * ELEMENT_NS / 1e3 :
	    0;
	int quick = sim ? 1 : TUNE_QUICK_ROUNDS;

	return n * (call + checked + graph + quick * (burst + ROUND_US)) +
	    last * (graph + o->base.rounds * (burst + ROUND_US)) +
	    (nccl ? 2 * (call + o->base.rounds * (burst + ROUND_US)) : 0);
}

bool tune_task_make(const struct tune_opts *o, enum bench_coll_id coll, uint64_t bytes, int nranks, struct tune_task *t)
{
	const struct bench_coll *c = &bench_colls[coll];
	size_t size = shunt_dtype_bytes[o->dtype];

	*t = (struct tune_task){ .coll = coll, .count = bench_coll_count(c, bytes, size, nranks) };
	t->part = t->count * size;
	t->bytes = t->part * bench_coll_blocks(c, c->send_many || c->recv_many, nranks);
	return t->count > 0;
}

/* First the ends of the range and every eighth size, counted from the last; then those between. */
static unsigned task_level(size_t i, size_t n)
{
	size_t from_end = n - 1 - i;

	return !i || !(from_end % 8) ? 0 : !(from_end % 4) ? 1 : !(from_end % 2) ? 2 : 3;
}

static int by_level(const void *a, const void *b)
{
	const struct tune_task *x = a, *y = b;

	if (x->level != y->level)
		return x->level < y->level ? -1 : 1;
	if (x->coll != y->coll)
		return x->coll < y->coll ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

size_t tune_schedule(
    const struct tune_opts *o, unsigned colls, int nranks, bool sim, bool nccl, struct tune_task *tasks)
{
	size_t n = 0;

	for (int coll = 0; bench_colls[coll].name; coll++) {
		size_t first = n;

		for (uint64_t bytes = o->base.first; colls >> coll & 1 && bytes <= o->base.last;
		    bytes *= o->base.factor) {
			struct tune_task *t = &tasks[n];

			/* Two small sizes may have the same number of elements. */
			if (n < TUNE_MAX_POINTS && tune_task_make(o, (enum bench_coll_id)coll, bytes, nranks, t) &&
			    (n == first || tasks[n - 1].bytes != t->bytes)) {
				t->cost_us = task_cost(o, t, nranks, sim, nccl);
				n++;
			}
			if (bytes > UINT64_MAX / o->base.factor)
				break;
		}
		for (size_t i = first; i < n; i++)
			tasks[i].level = task_level(i - first, n - first);
	}
	qsort(tasks, n, sizeof(*tasks), by_level);
	return n;
}

const struct tune_point *tune_point_find(const struct tune_results *r, enum bench_coll_id coll, uint64_t bytes)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->points[i].coll == coll && r->points[i].bytes == bytes)
			return &r->points[i];
	return NULL;
}

bool tune_coll_covered(const struct tune_results *r, const struct tune_task *tasks, size_t n, enum bench_coll_id coll)
{
	for (size_t i = 0; i < n; i++)
		if (tasks[i].coll == coll && !tasks[i].level && !tune_point_find(r, coll, tasks[i].bytes))
			return false;
	return true;
}
