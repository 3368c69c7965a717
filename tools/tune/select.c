/* SPDX-License-Identifier: MIT */
/* Candidates of shunt tune, and decisions from their times. */
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "algos/plugins.h"
#include "tools/tune/tune.h"

/* Ratio of times that measurement noise may cause. */
#define NOISE_MARGIN 1.02

enum shunt_kind tune_kind(enum bench_coll_id coll)
{
	int k = 0;

	while (k < SHUNT_NKINDS && strcmp(shunt_kind_name((enum shunt_kind)k), bench_colls[coll].op))
		k++;
	return (enum shunt_kind)k;
}

/* True: both candidates make the same launch. Known only for an algorithm that reports its geometry. */
static bool launch_equal(const struct tune_opts *o, const struct tune_candidate *a, const struct tune_candidate *b,
    uint64_t part, int nranks, bool sim)
{
	struct shunt_work x, y;

	if (a->algo != b->algo || !a->algo->geometry)
		return false;
	for (int i = 0; i < 2; i++) {
		const struct tune_candidate *c = i ? b : a;
		struct shunt_sel_key key = {
			.topology = &shunt_topology_one_island, .nranks = nranks, .sim = sim, .staged = o->link
		};
		struct shunt_limits limits = {
			.key = &key, .max_ctas = c->geometry.blocks, .max_threads = c->geometry.threads
		};

		c->algo->geometry(&limits, part, i ? &y : &x);
	}
	return x.blocks == y.blocks && x.threads == y.threads;
}

static int candidate_add(const struct tune_opts *o, struct tune_candidate *list, int n, struct tune_candidate c,
    uint64_t part, int nranks, bool sim)
{
	if (n == TUNE_MAX_CANDIDATES)
		return n;
	for (int i = 0; i < n && c.algo; i++)
		if (list[i].algo && launch_equal(o, &list[i], &c, part, nranks, sim))
			return n;
	list[n] = c;
	return n + 1;
}

int tune_candidates(const struct tune_opts *o, enum bench_coll_id coll, uint64_t part, int nranks, bool sim, bool nccl,
    struct tune_candidate *list)
{
	enum shunt_kind kind = tune_kind(coll);
	const struct shunt_algo *a;
	int n = candidate_add(o, list, 0, (struct tune_candidate){ 0 }, part, nranks, sim);

	if (nccl)
		n = candidate_add(o, list, n, (struct tune_candidate){ .nccl = true }, part, nranks, sim);
	for (size_t i = 0; (a = shunt_algo_row(i)); i++) {
		if (a->kind != kind || a->fuse == SHUNT_FUSE_SYMMEM || a->over_islands != o->over_hosts)
			continue;
		if (!(a->links >> (o->link ? o->link : SHUNT_LINK_NVLINK) & 1) || (a->by_parts && !o->islands))
			continue;
		if (a->among == (nranks == 2 ? SHUNT_AMONG_MORE : SHUNT_AMONG_TWO)) /* equals another row */
			continue;
		n = candidate_add(o, list, n, (struct tune_candidate){ .algo = a }, part, nranks, sim);
		/*
		 * The channels of a message between two ranks depend on its size only; over hosts the set-up fixes
		 * the launch; steps among some ranks choose their own.
		 */
		for (int b = 0; b < o->blocks.n && kind != SHUNT_SEND && !a->over_islands && !a->by_parts; b++)
			for (int t = 0; t < o->threads.n; t++)
				n = candidate_add(o, list, n,
				    (struct tune_candidate){ .algo = a,
				        .geometry = { (uint16_t)o->blocks.at[b], (uint16_t)o->threads.at[t], 0 } },
				    part, nranks, sim);
	}
	/* What a plug-in takes, and with which geometry, it says itself. */
	for (size_t i = 0; !o->over_hosts && !o->link && (a = shunt_plugin_row_at(i)); i++)
		if (a->kind == kind)
			n = candidate_add(o, list, n, (struct tune_candidate){ .algo = a }, part, nranks, sim);
	return n;
}

int tune_best(const struct tune_candidate *list, const double *us, int n)
{
	int best = -1, own = -1;

	for (int i = 0; i < n; i++) {
		if (!list[i].algo)
			continue;
		if (best < 0 || us[i] < us[best])
			best = i;
		if (!list[i].geometry.blocks && (own < 0 || us[i] < us[own]))
			own = i;
	}
	return own >= 0 && us[own] <= us[best] * NOISE_MARGIN ? own : best;
}

bool tune_forwards(double us, double nccl_us, double eager_us, double nccl_eager_us, double margin)
{
	return (nccl_us > 0 && us > nccl_us * (1 - margin)) || (nccl_eager_us > 0 && eager_us > nccl_eager_us);
}

bool tune_windows_from(const struct tune_point *points, size_t n, enum bench_coll_id coll, uint64_t *from_p)
{
	uint64_t most_of_ours = 0;
	bool any = false, ours = false;

	*from_p = UINT64_MAX;
	for (size_t i = 0; i < n; i++)
		if (points[i].coll == coll && points[i].windows_us > 0) {
			any = true;
			if (!points[i].windows_forward && points[i].part >= most_of_ours) {
				ours = true;
				most_of_ours = points[i].part;
			}
		}
	for (size_t i = 0; i < n; i++)
		if (points[i].coll == coll && points[i].windows_us > 0 && points[i].windows_forward &&
		    (!ours || points[i].part > most_of_ours) && points[i].part < *from_p)
			*from_p = points[i].part;
	return any;
}

static int by_kind_and_size(const void *a, const void *b)
{
	const struct tune_point *x = *(const struct tune_point *const *)a, *y = *(const struct tune_point *const *)b;

	if (tune_kind(x->coll) != tune_kind(y->coll))
		return tune_kind(x->coll) < tune_kind(y->coll) ? -1 : 1;
	return (x->part > y->part) - (x->part < y->part);
}

static bool row_equal(const struct shunt_tuning_row *a, const struct shunt_tuning_row *b)
{
	return a->kind == b->kind && a->forward == b->forward && a->algo == b->algo &&
	    a->geometry.blocks == b->geometry.blocks && a->geometry.threads == b->geometry.threads &&
	    a->geometry.channels == b->geometry.channels;
}

/* Appends a row, or extends the last one if it has the same decision. */
static size_t row_add(struct shunt_tuning_row *rows, size_t n, struct shunt_tuning_row row)
{
	if (n && row_equal(&rows[n - 1], &row)) {
		rows[n - 1].upto = row.upto;
		return n;
	}
	rows[n] = row;
	return n + 1;
}

size_t tune_rows(const struct tune_point *points, size_t n, struct shunt_tuning_row *rows)
{
	const struct tune_point **sorted = malloc((n ? n : 1) * sizeof(*sorted)), *last = NULL;
	size_t out = 0;

	if (!sorted)
		return 0;
	for (size_t i = 0; i < n; i++)
		sorted[i] = &points[i];
	qsort(sorted, n, sizeof(*sorted), by_kind_and_size);
	for (size_t i = 0; i < n; i++) {
		const struct tune_point *p = sorted[i];
		struct shunt_tuning_row row = { .kind = tune_kind(p->coll),
			.forward = p->forward,
			.upto = p->part,
			.algo = p->algo,
			.geometry = p->geometry };

		if (last && tune_kind(last->coll) == row.kind) {
			if (last->part == p->part)
				continue; /* the same number of elements */
			if (last->forward && !p->forward && p->part > last->part + 1) {
				struct shunt_tuning_row between = row;

				between.forward = true;
				between.upto = p->part - 1;
				out = row_add(rows, out, between);
			}
		}
		out = row_add(rows, out, row);
		last = p;
	}
	free(sorted);
	return out;
}
