/* SPDX-License-Identifier: MIT */
/*
 * One point of shunt tune: calls, checks and times the candidates, times the fastest few again, and compares the best
 * one with NCCL.
 */
#include "tools/common/libc.h"
#include "algos/algos.h"
#include "tools/tune/rank.h"

/* ---- calls ---- */

/* Directs the next calls to the candidate. */
static int candidate_force(struct tune_rank *r, const struct tune_task *t, const struct tune_candidate *c)
{
	char rule[128];

	if (c->nccl)
		return 0;
	if (c->algo)
		snprintf(rule, sizeof(rule), "%s:0-inf:%s@%ux%ux%u", shunt_kind_name(tune_kind(t->coll)), c->algo->name,
		    c->geometry.blocks, c->geometry.threads, c->geometry.channels);
	return r->force(c->algo ? rule : NULL);
}

static int lib_of(const struct tune_candidate *c)
{
	return c->windows ? TUNE_WINDOWS : c->nccl ? TUNE_NCCL : TUNE_SHUNT;
}

static int lib_call(struct tune_rank *r, const struct tune_candidate *c)
{
	return bench_call(&r->bench, &r->call, lib_of(c), BENCH_OUT, 0);
}

/* ---- candidates that run ---- */

/*
 * Calls every candidate once, so that no set-up falls into the measurement, and drops those that Shunt does not run:
 * forcing an algorithm has no effect on a communicator that forwards all calls, or for a call that the algorithm cannot
 * do. The same on all ranks.
 */
static int candidates_try(struct tune_rank *r, const struct tune_task *t, int *n_p)
{
	const struct bench_nccl *shunt = &r->bench.nccl[TUNE_SHUNT];
	const char *path = "?";
	int ncandidates = 0, ours = 0, err = 0;

	for (int i = 0; !err && i < *n_p; i++) {
		const struct tune_candidate *c = &r->list[i];

		bench_rank_progress(&r->bench, RANKS_WARMUP, c->nccl, -1);
		err = candidate_force(r, t, c);
		if (!err)
			err = lib_call(r, c);
		if (!err)
			err = bench_sync(&r->bench, lib_of(c));
		if (err)
			return err;
		if (c->algo && shunt->path_of &&
		    (shunt->path_of(
		         r->bench.comm[TUNE_SHUNT], bench_colls[t->coll].op, t->count, r->o->dtype, SHUNT_SUM, &path) ||
		        (c->algo->planned ? shunt_algo_find(tune_kind(t->coll), path) != NULL :
		                            strcmp(path, c->algo->name) != 0)))
			continue;
		ours += c->algo != NULL;
		r->list[ncandidates++] = *c;
	}
	*n_p = ncandidates;
	if (!ours && !r->bench.rank)
		tool_error("%s of %llu bytes: none of Shunt's algorithms runs it on these ranks, its path is %s; "
		           "NCCL_DEBUG=INFO says why",
		    bench_colls[t->coll].name, (unsigned long long)t->bytes, path);
	return ours ? 0 : -ENOENT;
}

/* ---- results ---- */

static int result_check(struct tune_rank *r, const struct tune_task *t, const struct tune_candidate *c)
{
	uint64_t wrong = 0;
	int err = candidate_force(r, t, c);

	if (!err)
		err = bench_way_check(&r->bench, &r->call, lib_of(c), BENCH_EAGER * BENCH_NPLACES + BENCH_OUT, &wrong);
	if (err || !wrong)
		return err;
	tool_error("rank %d: %s, %llu bytes, %s with %u blocks of %u threads: %llu wrong", r->bench.rank,
	    bench_colls[t->coll].name, (unsigned long long)t->bytes,
	    c->nccl     ? "nccl" :
	        c->algo ? c->algo->name :
	                  "as now",
	    c->geometry.blocks, c->geometry.threads, (unsigned long long)wrong);
	return -EBADMSG;
}

/* ---- time ---- */

/* Medians over rounds of the slowest rank's time; samples: [candidate][round]. The same on all ranks. */
static int medians_reduce(struct tune_rank *r, int n, int rounds, double *us)
{
	double heard[RANKS_MAX * TUNE_MAX_ROUNDS] = { 0 };
	int err = 0;

	for (int i = 0; !err && i < n; i++) {
		double slowest[TUNE_MAX_ROUNDS] = { 0 };

		err = bench_allgather(
		    &r->bench, r->samples + (size_t)i * (size_t)rounds, (size_t)rounds * sizeof(double), heard);
		for (int k = 0; !err && k < r->nranks * rounds; k++)
			if (heard[k] > slowest[k % rounds])
				slowest[k % rounds] = heard[k];
		us[i] = err ? 0 : bench_median(slowest, rounds, NULL);
	}
	return err;
}

/* Times n candidates, interleaved; with graphs, or eager calls. */
static int candidates_measure(struct tune_rank *r, const struct tune_task *t, const struct tune_candidate *list, int n,
    int rounds, bool graphs, double *us)
{
	struct tune_burst burst = tune_burst(r->sim, t->bytes);
	int calls = burst.calls * burst.launches, err = 0;

	memset(r->graph, 0, sizeof(r->graph));
	for (int i = 0; !err && i < n; i++) {
		bench_rank_progress(&r->bench, graphs ? RANKS_CAPTURE : RANKS_WARMUP, list[i].nccl, -1);
		err = candidate_force(r, t, &list[i]);
		if (!err && graphs)
			err = bench_capture(
			    &r->bench, &r->call, lib_of(&list[i]), BENCH_OUT, (unsigned)burst.calls, &r->graph[i]);
		if (!err)
			err = graphs ? bench_rank_check(&r->bench, "graph launch",
			                   r->bench.lib.graph_launch(r->graph[i], r->bench.stream)) :
			               lib_call(r, &list[i]);
		if (!err)
			err = bench_sync(&r->bench, lib_of(&list[i]));
	}
	for (int round = 0; !err && round < rounds; round++)
		for (int k = 0; !err && k < n; k++) {
			int i = (k + round) % n; /* each candidate is first in turn */
			double start;

			err = candidate_force(r, t, &list[i]);
			/* The first barrier may sleep; the second one releases all ranks at once. */
			if (!err)
				err = bench_barrier(&r->bench);
			if (!err)
				err = bench_barrier(&r->bench);
			if (err)
				break;
			bench_rank_progress(&r->bench, RANKS_TIME, list[i].nccl, -1);
			start = ranks_now_us();
			for (int l = 0; !err && graphs && l < burst.launches; l++)
				err = bench_rank_check(
				    &r->bench, "graph launch", r->bench.lib.graph_launch(r->graph[i], r->bench.stream));
			for (int c = 0; !err && !graphs && c < calls; c++)
				err = lib_call(r, &list[i]);
			if (!err)
				err = bench_sync(&r->bench, lib_of(&list[i]));
			r->samples[i * rounds + round] = (ranks_now_us() - start) / calls;
		}
	for (int i = 0; i < n; i++)
		if (r->graph[i])
			r->bench.lib.graph_destroy(r->graph[i]);
	return err ? err : medians_reduce(r, n, rounds, us);
}

/* ---- the point ---- */

/* The fastest of our candidates that is not taken yet; own: among those with the algorithm's own geometry. -1: none. */
static int fastest_find(const struct tune_rank *r, int n, bool own)
{
	int best = -1;

	for (int i = 0; i < n; i++)
		if (r->list[i].algo && r->us[i] >= 0 && !(own && r->list[i].geometry.blocks) &&
		    (best < 0 || r->us[i] < r->us[best]))
			best = i;
	return best;
}

/*
 * Selects the finalists: the present choice, NCCL, and our fastest few, among them one with the algorithm's own
 * geometry. Returns their number.
 */
static int finalists_select(struct tune_rank *r, int n)
{
	struct tune_candidate list[TUNE_FINALISTS + 3];
	int out = 0;

	for (int i = 0; i < n; i++)
		if (!r->list[i].algo)
			list[out++] = r->list[i];
	for (int k = 0; k <= TUNE_FINALISTS; k++) {
		int best = fastest_find(r, n, !k);

		if (best < 0)
			continue;
		list[out++] = r->list[best];
		r->us[best] = -1;
	}
	memcpy(r->list, list, (size_t)out * sizeof(*list));
	return out;
}

static void baseline_name(struct tune_rank *r, const struct tune_task *t, char name[24])
{
	const char *path = "?";

	r->force(NULL);
	if (r->bench.nccl[TUNE_SHUNT].path_of)
		r->bench.nccl[TUNE_SHUNT].path_of(
		    r->bench.comm[TUNE_SHUNT], bench_colls[t->coll].op, t->count, r->o->dtype, SHUNT_SUM, &path);
	snprintf(name, 24, "%s", path);
}

int tune_point_measure(struct tune_rank *r, const struct tune_task *t, struct tune_point *p)
{
	struct tune_candidate interleaved[2] = { { 0 }, { .nccl = true } };
	double eager[2] = { 0 };
	int n = tune_candidates(r->o, t->coll, t->part, r->nranks, r->sim, r->have_nccl, r->list), err, best;

	r->bench.opts.coll = &bench_colls[t->coll];
	r->call = (struct bench_task){ .dtype = r->o->dtype, .redop = SHUNT_SUM, .count = t->count, .bytes = t->bytes };
	err = candidates_try(r, t, &n);
	for (int i = 0; !err && i < n && r->o->base.check && t->bytes <= TUNE_CHECK_BYTES; i++) {
		bench_rank_progress(&r->bench, RANKS_CHECK, r->list[i].nccl, -1);
		err = result_check(r, t, &r->list[i]);
	}
	if (!err)
		err = candidates_measure(r, t, r->list, n, r->sim ? 1 : TUNE_QUICK_ROUNDS, true, r->us);
	if (err)
		return err;
	n = finalists_select(r, n);
	err = candidates_measure(r, t, r->list, n, r->o->base.rounds, true, r->us);
	if (err)
		return err;
	best = tune_best(r->list, r->us, n);
	if (best < 0)
		return -ENOENT;
	*p = (struct tune_point){ .coll = t->coll,
		.bytes = t->bytes,
		.part = t->part,
		.algo = r->list[best].algo,
		.geometry = r->list[best].geometry,
		.us = r->us[best],
		.before_us = r->us[0],
		.nccl_us = r->have_nccl ? r->us[1] : 0 };
	if (r->have_nccl) {
		interleaved[0] = r->list[best];
		err = candidates_measure(r, t, interleaved, 2, r->o->base.rounds, false, eager);
		p->eager_us = eager[0];
		p->nccl_eager_us = eager[1];
	}
	if (!err && r->in_window[0]) {
		double beside[2] = { 0 };

		interleaved[1] = (struct tune_candidate){ .nccl = true, .windows = true };
		err = candidates_measure(r, t, interleaved, 2, r->o->base.rounds, true, beside);
		p->windows_us = beside[1];
		p->windows_forward = tune_forwards(beside[0], beside[1], 0, 0, r->o->margin);
	}
	p->forward = tune_forwards(p->us, p->nccl_us, p->eager_us, p->nccl_eager_us, r->o->margin);
	baseline_name(r, t, p->before);
	return err;
}
