/* SPDX-License-Identifier: MIT */
/*
 * shunt bench --init: time and memory that a communicator costs before it does useful work. Each round creates a
 * communicator, makes one call with it, splits --comms others from it by ncclCommSplit, makes one call with each of
 * these, and destroys all.
 */
#include "tools/common/libc.h"
#include "tools/bench/rank.h"

/* Reads the device's free memory between two barriers: no rank changes it meanwhile. */
static int free_memory_read(struct bench_rank *r, double *bytes_p)
{
	size_t free_bytes = 0, total = 0;
	int err = bench_barrier(r);

	if (!err)
		err = bench_rank_check(r, "cannot be asked for its memory", r->lib.mem_info(&free_bytes, &total));
	*bytes_p = (double)free_bytes;
	return err ? err : bench_barrier(r);
}

/* The first call of every rank; returns when the call's work is done. */
static int first_call_run(struct bench_rank *r, const struct bench_task *t, int lib, ncclComm_t comm)
{
	ncclComm_t before = r->comm[lib];
	int err;

	bench_rank_progress(r, RANKS_WARMUP, lib, -1);
	r->comm[lib] = comm;
	err = bench_call(r, t, lib, r->o->places[BENCH_OUT] ? BENCH_OUT : BENCH_IN, 0);
	r->comm[lib] = before;
	return err ? err : bench_sync(r, lib);
}

static int comms_split(struct bench_rank *r, int lib, ncclComm_t parent, ncclComm_t *comms)
{
	const struct bench_nccl *nccl = &r->nccl[lib];
	int err = 0;

	bench_rank_progress(r, RANKS_INIT, lib, -1);
	for (unsigned i = 0; !err && i < r->o->comms; i++)
		err = bench_nccl_check(
		    nccl, r->rank, "ncclCommSplit", nccl->CommSplit(parent, 0, r->rank, &comms[i], NULL));
	return err;
}

/* Ends a step: its time on this rank, and the device memory that it took. */
static int step_end(struct bench_rank *r, double start, double *before_p, struct bench_init_step *step)
{
	double now;
	int err;

	step->us = ranks_now_us() - start;
	err = free_memory_read(r, &now);
	step->bytes = *before_p - now;
	*before_p = now;
	return err;
}

static int round_run(
    struct bench_rank *r, const struct bench_task *t, int lib, ncclComm_t *comms, struct bench_init_step *steps)
{
	const struct bench_nccl *nccl = &r->nccl[lib];
	bool splits = r->o->comms && nccl->CommSplit;
	ncclComm_t first = NULL;
	double memory, start;
	int err = free_memory_read(r, &memory);

	if (!err)
		err = bench_comm_create(r, lib, &first, &steps[BENCH_INIT_COMM].us);
	if (!err) {
		double us = steps[BENCH_INIT_COMM].us;

		err = step_end(r, 0, &memory, &steps[BENCH_INIT_COMM]);
		steps[BENCH_INIT_COMM].us = us;
	}
	start = ranks_now_us();
	if (!err)
		err = first_call_run(r, t, lib, first);
	if (!err)
		err = step_end(r, start, &memory, &steps[BENCH_INIT_CALL]);
	start = ranks_now_us();
	if (!err && splits)
		err = comms_split(r, lib, first, comms);
	if (!err && splits)
		err = step_end(r, start, &memory, &steps[BENCH_INIT_SPLIT]);
	start = ranks_now_us();
	for (unsigned i = 0; !err && splits && i < r->o->comms; i++)
		err = first_call_run(r, t, lib, comms[i]);
	if (!err && splits)
		err = step_end(r, start, &memory, &steps[BENCH_INIT_SPLIT_CALL]);
	/* Not after an error: other ranks might never call it, too. */
	for (unsigned i = 0; !err && splits && i < r->o->comms; i++)
		err = bench_nccl_check(nccl, r->rank, "ncclCommDestroy", nccl->CommDestroy(comms[i]));
	return err ? err : bench_nccl_check(nccl, r->rank, "ncclCommDestroy", nccl->CommDestroy(first));
}

/* Of every step the time of the slowest rank, and the memory of the rank that lost most. */
static int round_reduce(struct bench_rank *r, const struct bench_init_step *mine, struct bench_init_step *worst)
{
	struct bench_init_step all[RANKS_MAX][BENCH_INIT_NSTEPS];
	int err = bench_allgather(r, mine, sizeof(all[0]), all);

	for (int i = 0; i < BENCH_INIT_NSTEPS; i++)
		worst[i] = mine[i];
	for (int rank = 0; !err && rank < r->shared->launch.nranks; rank++)
		for (int i = 0; i < BENCH_INIT_NSTEPS; i++) {
			worst[i].us = all[rank][i].us > worst[i].us ? all[rank][i].us : worst[i].us;
			worst[i].bytes = all[rank][i].bytes > worst[i].bytes ? all[rank][i].bytes : worst[i].bytes;
		}
	return err;
}

/* Reports all rounds of each library and step. */
static void rounds_report(const struct bench_rank *r, const struct bench_init_step (*rounds)[BENCH_INIT_NSTEPS])
{
	double us[BENCH_MAX_ROUNDS], bytes[BENCH_MAX_ROUNDS];

	for (int lib = 0; lib < r->o->ranks.nlibs; lib++)
		for (int i = 0; i < BENCH_INIT_NSTEPS; i++) {
			for (int round = 0; round < r->o->rounds; round++) {
				us[round] = rounds[round * RANKS_MAX_LIBS + lib][i].us;
				bytes[round] = rounds[round * RANKS_MAX_LIBS + lib][i].bytes;
			}
			bench_report_init(r->report, lib, (enum bench_init_what)i, us, bytes);
		}
}

int bench_init_run(struct bench_rank *r)
{
	const struct bench_coll *coll = r->o->coll;
	int nranks = r->shared->launch.nranks, err = 0;
	struct bench_task t = { .dtype = (enum shunt_dtype)__builtin_ctz(r->o->dtypes),
		.redop = (enum shunt_redop)__builtin_ctz(r->o->redops) };
	struct bench_init_step(*rounds)[BENCH_INIT_NSTEPS];
	ncclComm_t *comms;

	t.count = bench_coll_count(coll, r->o->first, shunt_dtype_bytes[t.dtype], nranks);
	t.bytes =
	    t.count * shunt_dtype_bytes[t.dtype] * bench_coll_blocks(coll, coll->send_many || coll->recv_many, nranks);
	if (!t.count) {
		if (!r->rank)
			tool_error("--first %llu is too small for a call of %d ranks", (unsigned long long)r->o->first,
			    nranks);
		return bench_fail_together(r, -EINVAL);
	}
	rounds = calloc((size_t)r->o->rounds * RANKS_MAX_LIBS, sizeof(*rounds));
	comms = calloc(r->o->comms + 1, sizeof(*comms));
	if (!rounds || !comms) {
		err = bench_rank_check(r, "host memory", -ENOMEM);
		goto out;
	}
	bench_buffers_layout(r, t.bytes);
	atomic_store(&r->progress->bytes, t.bytes);
	for (int round = 0; !err && round < r->o->rounds; round++)
		for (int i = 0; !err && i < r->o->ranks.nlibs; i++) {
			int lib = (i + round) % r->o->ranks.nlibs; /* each library is first in turn */
			struct bench_init_step mine[BENCH_INIT_NSTEPS] = { 0 };

			err = round_run(r, &t, lib, comms, mine);
			if (!err)
				err = round_reduce(r, mine, rounds[round * RANKS_MAX_LIBS + lib]);
		}
	if (!err && !r->rank)
		rounds_report(r, rounds);
out:
	free(comms);
	free(rounds);
	return err;
}
