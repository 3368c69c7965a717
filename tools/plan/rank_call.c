/* SPDX-License-Identifier: MIT */
/* Calls of one rank: call, capture, replay, measurement. */
#include "tools/plan/rank.h"

char *plan_rank_send_at(const struct plan_rank *r, const struct plan_task *t)
{
	if (t->place == BENCH_OUT)
		return r->send;
	return r->recv + bench_coll_send_offset(r->o->base.coll, t->count, r->rank) * r->element;
}

char *plan_rank_recv_at(const struct plan_rank *r, const struct plan_task *t)
{
	return r->recv +
	    (t->place == BENCH_IN ? bench_coll_recv_offset(r->o->base.coll, t->count, r->rank) * r->element : 0);
}

static int coll_call(struct plan_rank *r, const struct plan_task *t)
{
	struct bench_args a = { .send = plan_rank_send_at(r, t),
		.recv = plan_rank_recv_at(r, t),
		.count = t->count,
		.dtype = (ncclDataType_t)r->o->dtype,
		.redop = (ncclRedOp_t)r->o->redop,
		.rank = r->rank,
		.nranks = r->nranks,
		.comm = r->comm,
		.stream = r->stream };

	return bench_nccl_check(&r->nccl, r->rank, r->o->base.coll->name, r->o->base.coll->call(&r->nccl, &a));
}

int plan_rank_capture(struct plan_rank *r, const struct plan_task *t, void **graph_p)
{
	int err, end;

	plan_rank_note(r, RANKS_CAPTURE);
	err = plan_rank_device(r, "capture", r->lib.capture_begin(r->stream));
	if (err)
		return err;
	err = coll_call(r, t);
	end = r->lib.capture_end(r->stream, graph_p);
	return err ? err : plan_rank_device(r, "capture", end);
}

int plan_rank_calls(struct plan_rank *r, const struct plan_task *t, void *graph, int n)
{
	int err = 0;

	for (int i = 0; !err && i < n; i++)
		err = graph ? plan_rank_device(r, "graph launch", r->lib.graph_launch(graph, r->stream)) :
		              coll_call(r, t);
	return err ? err : plan_rank_device(r, "waiting for the device", r->lib.stream_synchronize(r->stream));
}

int plan_rank_measure(struct plan_rank *r, const struct plan_task *t, void *graph, double *us_p)
{
	double slowest[BENCH_MAX_ROUNDS], all[RANKS_MAX], mine, start;
	int err = 0;

	plan_rank_note(r, RANKS_WARMUP);
	err = plan_rank_calls(r, t, graph, r->iters);
	for (int round = 0; !err && round < r->rounds; round++) {
		plan_rank_note(r, RANKS_TIME);
		/* The first barrier may sleep; the second one releases all ranks at once. */
		err = ranks_barrier(r->ranks);
		if (!err)
			err = ranks_barrier(r->ranks);
		start = ranks_now_us();
		if (!err)
			err = plan_rank_calls(r, t, graph, r->iters);
		mine = (ranks_now_us() - start) / r->iters;
		if (!err)
			err = plan_rank_gather(r, &mine, sizeof(mine), all);
		slowest[round] = 0;
		for (int i = 0; !err && i < r->nranks; i++)
			slowest[round] = all[i] > slowest[round] ? all[i] : slowest[round];
	}
	if (err)
		return err;
	*us_p = bench_median(slowest, r->rounds, NULL);
	return 0;
}
