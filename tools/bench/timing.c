/* SPDX-License-Identifier: MIT */
/* Calls of one rank, and their times. */
#include "tools/common/libc.h"
#include "tools/bench/rank.h"

/* ---- one call ---- */

int bench_call(struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned first)
{
	const struct bench_nccl *nccl = &r->nccl[lib];
	struct bench_args a = { .count = t->count,
		.dtype = bench_nccl_dtype(t->dtype),
		.redop = shunt_dtype_is_format(t->dtype) ? r->format_op[lib] : (ncclRedOp_t)t->redop,
		.root = r->o->root,
		.rank = r->rank,
		.nranks = r->shared->launch.nranks,
		.comm = r->comm[lib],
		.stream = r->stream };
	int err = 0;

	if (r->o->group > 1)
		err = bench_nccl_check(nccl, r->rank, "ncclGroupStart", nccl->GroupStart());
	for (unsigned i = 0; !err && i < r->o->group; i++) {
		unsigned set = (first + i) % r->sets;

		a.send = bench_send_at(r, t, lib, place, set);
		a.recv = bench_recv_at(r, t, lib, place, set);
		err = bench_nccl_check(nccl, r->rank, r->o->coll->name, r->o->coll->call(nccl, &a));
	}
	if (!err && r->o->group > 1)
		err = bench_nccl_check(nccl, r->rank, "ncclGroupEnd", nccl->GroupEnd());
	return err;
}

int bench_sync(struct bench_rank *r, int lib)
{
	int err = r->lib.stream_synchronize(r->stream);

	if (err)
		tool_error("rank %d: %s: waiting for the device: %s", r->rank, r->nccl[lib].label, strerror(-err));
	return err;
}

int bench_capture(
    struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned calls, void **graph_p)
{
	unsigned spread;
	int err, end;

	bench_rank_progress(r, RANKS_CAPTURE, lib, BENCH_GRAPH * BENCH_NPLACES + place);
	err = bench_rank_check(r, "capture", r->lib.capture_begin(r->stream));
	if (err)
		return err;
	/* Spread the calls over the sets, to keep the buffers of two calls as far apart as possible. */
	spread = r->sets / (calls * r->o->group);
	for (unsigned i = 0; !err && i < calls; i++)
		err = bench_call(r, t, lib, place, i * r->o->group * (spread ? spread : 1));
	end = r->lib.capture_end(r->stream, graph_p);
	return err ? err : bench_rank_check(r, "capture", end);
}

/* ---- timing ---- */

static double cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* --skew: waits for a random time, and returns it. *seed is the same at the start of every library. */
static double skew_sleep(const struct bench_rank *r, unsigned *seed)
{
	double start, us;

	if (!r->o->skew_us)
		return 0;
	us = (double)r->o->skew_us * rand_r(seed) / RAND_MAX;
	start = ranks_now_us();
	while (ranks_now_us() - start < us)
		;
	return ranks_now_us() - start;
}

int bench_calls_run(struct bench_rank *r, const struct bench_task *t, const struct bench_burst *burst, double *waited_p)
{
	unsigned seed = burst->seed;
	int err = 0;

	*waited_p = 0;
	for (int i = 0; !err && i < burst->calls; i += burst->graph ? BENCH_GRAPH_CALLS : 1) {
		*waited_p += skew_sleep(r, &seed);
		if (burst->graph) {
			err = bench_rank_check(r, "graph launch", r->lib.graph_launch(burst->graph, r->stream));
			continue;
		}
		err = bench_call(r, t, burst->lib, burst->way % BENCH_NPLACES, r->next_set);
		r->next_set = (r->next_set + r->o->group) % r->sets;
	}
	return err;
}

/* A graph is launched as a whole. */
static int calls_per_launch(const struct bench_rank *r, const void *graph)
{
	return graph ? (r->o->iters + BENCH_GRAPH_CALLS - 1) / BENCH_GRAPH_CALLS * BENCH_GRAPH_CALLS : r->o->iters;
}

static int round_time(struct bench_rank *r, const struct bench_task *t, const struct bench_burst *burst, int round)
{
	double *us_p = bench_sample_at(r, BENCH_US, burst->way, burst->lib) + round,
	       *cpu_us_p = bench_sample_at(r, BENCH_CPU_US, burst->way, burst->lib) + round;
	double start, cpu, waited, each = (double)burst->calls * r->o->group;
	int err;

	/* The first barrier may sleep; the second one releases all ranks at once. */
	err = bench_barrier(r);
	if (!err)
		err = bench_barrier(r);
	if (err)
		return err;
	bench_rank_progress(r, RANKS_TIME, burst->lib, burst->way);
	start = ranks_now_us();
	cpu = cpu_us();
	err = bench_calls_run(r, t, burst, &waited);
	if (r->o->host) {
		*cpu_us_p = (cpu_us() - cpu) / each;
		*us_p = (ranks_now_us() - start - waited) / each;
	}
	if (!err)
		err = bench_sync(r, burst->lib);
	if (!r->o->host)
		*us_p = (ranks_now_us() - start - waited) / each;
	return err;
}

bool bench_way_wanted(const struct bench_opts *o, int way)
{
	return o->modes[way / BENCH_NPLACES] && o->places[way % BENCH_NPLACES];
}

double *bench_sample_at(const struct bench_rank *r, enum bench_sample kind, int way, int lib)
{
	return r->samples + r->nsamples * kind + (way * RANKS_MAX_LIBS + lib) * r->o->rounds;
}

int bench_task_time(struct bench_rank *r, const struct bench_task *t)
{
	void *graph[BENCH_NWAYS][RANKS_MAX_LIBS] = { 0 };
	int err = 0;

	for (int way = 0; !err && way < BENCH_NWAYS; way++) {
		for (int lib = 0; !err && lib < r->o->ranks.nlibs && bench_way_wanted(r->o, way); lib++) {
			if (way / BENCH_NPLACES == BENCH_GRAPH)
				err =
				    bench_capture(r, t, lib, way % BENCH_NPLACES, BENCH_GRAPH_CALLS, &graph[way][lib]);
			if (err)
				break;
			bench_rank_progress(r, RANKS_WARMUP, lib, way);
			if (r->o->warmup) {
				const struct bench_burst burst = {
					.lib = lib, .way = way, .graph = graph[way][lib], .calls = r->o->warmup
				};
				double waited;

				err = bench_calls_run(r, t, &burst, &waited);
				if (!err)
					err = bench_sync(r, lib);
			}
		}
	}
	for (int round = 0; !err && round < r->o->rounds; round++)
		for (int way = 0; !err && way < BENCH_NWAYS; way++)
			for (int i = 0; !err && i < r->o->ranks.nlibs && bench_way_wanted(r->o, way); i++) {
				/* Each library is first in turn. */
				int lib = (i + round) % r->o->ranks.nlibs;
				const struct bench_burst burst = { .lib = lib,
					.way = way,
					.graph = graph[way][lib],
					.calls = calls_per_launch(r, graph[way][lib]),
					.seed =
					    (unsigned)(r->o->seed + (uint64_t)(round * RANKS_MAX + r->rank) * 7919) };

				err = round_time(r, t, &burst, round);
				if (!err && r->o->gemm)
					err = bench_gemm_round(r, t, &burst, round);
			}
	for (int way = 0; way < BENCH_NWAYS; way++)
		for (int lib = 0; lib < r->o->ranks.nlibs; lib++)
			if (graph[way][lib])
				r->lib.graph_destroy(graph[way][lib]);
	return err;
}
