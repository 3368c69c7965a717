/* SPDX-License-Identifier: MIT */
/* One rank of a torture run: set-up, lifecycles, and the summary at the end. */
#include <jansson.h>
#include "tools/common/libc.h"
#include "tools/common/where.h"
#include "tools/torture/rank.h"

void torture_rank_progress(struct torture_rank *r, enum ranks_stage stage)
{
	ranks_progress_set(r->progress, stage, 0, -1);
}

void torture_device_error(struct torture_rank *r, const char *what, int err)
{
	if (err && !r->err)
		r->err = ranks_device_error(r->rank, r->device, what, err);
}

void torture_nccl_error(struct torture_rank *r, const char *call, ncclResult_t result)
{
	int err = bench_nccl_check(&r->nccl, r->rank, call, result);

	if (err && !r->err) {
		tool_error("rank %d: that was in %s", r->rank, r->progress->what);
		r->err = err;
	}
}

int torture_allgather(struct torture_rank *r, const void *mine, size_t bytes, void *all)
{
	int err;

	torture_rank_progress(r, RANKS_WAIT);
	err = ranks_error(r->rank, ranks_allgather(r->ranks, mine, bytes, all));
	if (err && !r->err)
		r->err = err;
	return err;
}

void torture_rendezvous(struct torture_rank *r)
{
	char token = 0, all[RANKS_MAX];

	if (!r->serialized || r->err)
		return;
	torture_check_all(r);
	torture_allgather(r, &token, 1, all);
}

static int seed_broadcast(struct torture_rank *r)
{
	uint64_t mine = r->o->seed, all[RANKS_MAX];
	struct timespec t;

	if (!mine) {
		clock_gettime(CLOCK_REALTIME, &t);
		mine = conform_hash_mix((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec) % 1000000000 + 1;
	}
	if (torture_allgather(r, &mine, sizeof(mine), all))
		return r->err;
	r->seed = all[0];
	r->common.state = r->seed;
	r->own.state = conform_hash_mix(r->seed) + (uint64_t)r->rank;
	return 0;
}

static int rank_open(struct torture_rank *r)
{
	int err = ranks_join(r->shared, r->o->ranks.worker_fd, r->rank, r->o->ranks.timeout_s + 10, &r->ranks);

	torture_rank_progress(r, RANKS_INIT);
	if (!err)
		err = seed_broadcast(r);
	if (!err)
		err = tool_lib_open(&r->lib);
	if (!err)
		err = bench_nccl_open(&r->nccl, r->o->ranks.libs[0], &r->lib);
	if (err)
		return err;
	r->cuda = !strcmp(r->shared->launch.kind, "cuda");
	/*
	 * Without a real NCCL, Shunt itself orders a group's communicators in the same way on all ranks. A real NCCL
	 * takes the program's order for the calls that it gets.
	 */
	r->any_order = bench_nccl_is_alone(&r->nccl);
	r->serialized = r->o->ranks.threads && r->cuda && !r->any_order;
	r->max_bytes = r->o->max_bytes ? r->o->max_bytes : r->cuda ? 16 << 20 : 64 << 10;
	r->delay_bytes = r->cuda ? 64 << 20 : 1 << 20;
	r->env = (struct torture_env){ .lib = &r->lib,
		.nccl = &r->nccl,
		.data = &r->data,
		.bytes = (r->max_bytes + TORTURE_ROOM + 4095) / 4096 * 4096 };
	r->env.host = malloc(r->env.bytes);
	err = r->env.host ? r->lib.device_set(r->device) : -ENOMEM;
	if (!err)
		err = r->lib.stream_create(&r->env.stream);
	for (int i = 0; i < TORTURE_STREAMS && !err; i++) {
		err = r->lib.stream_create(&r->streams[i]);
		if (!err)
			err = r->lib.malloc(&r->delays[i], r->delay_bytes);
	}
	for (int i = 0; i < TORTURE_SLOTS && !err; i++)
		err = torture_slot_open(&r->env, &r->slots[i], i % 2);
	for (int i = 0; i < TORTURE_GRAPHS * TORTURE_GRAPH_OPS && !err; i++)
		err = torture_slot_open(&r->env, &r->graphs[i / TORTURE_GRAPH_OPS].slots[i % TORTURE_GRAPH_OPS], i % 2);
	if (err)
		tool_error("rank %d: device %d cannot be used: %s", r->rank, r->device, strerror(-err));
	for (int i = 0; i < torture_nkinds(); i++) {
		r->kinds |= torture_kind_lacks(i, &r->nccl) ? 0 : 1u << i;
		r->configured |= torture_kind_is_configured(i, &r->nccl) ? 1u << i : 0;
	}
	for (int i = 0; i < CONFORM_NCOMMS; i++)
		if (!conform_comm_is_async(i) && r->nranks >= conform_comm_least(i) && !conform_comm_lacks(&r->nccl, i))
			r->possible |= 1u << i;
	return err;
}

static void rank_close(struct torture_rank *r, bool clean)
{
	/* After an error the device may never become idle. The process ends anyway. */
	for (int i = 0; clean && i < TORTURE_SLOTS; i++)
		torture_slot_close(&r->env, &r->slots[i]);
	for (int i = 0; clean && i < TORTURE_GRAPHS * TORTURE_GRAPH_OPS; i++)
		torture_slot_close(&r->env, &r->graphs[i / TORTURE_GRAPH_OPS].slots[i % TORTURE_GRAPH_OPS]);
	if (clean) {
		for (int i = 0; i < TORTURE_STREAMS; i++) {
			r->lib.free(r->delays[i]);
			r->lib.stream_destroy(r->streams[i]);
		}
		r->lib.stream_destroy(r->env.stream);
	}
	torture_data_destroy(&r->data);
	free(r->env.host);
	torture_rank_progress(r, RANKS_DONE);
	ranks_leave(r->ranks);
}

/* 0 or -1 after a message. */
static int summary_write(const struct torture_rank *r, uint64_t wrong)
{
	json_t *calls = json_object(), *root;
	int err;

	for (int i = 0; i < torture_nkinds(); i++)
		json_object_set_new(calls, torture_kind_name(i), json_integer((json_int_t)r->stats.kinds[i]));
	root = json_pack("{s:o, s:I, s:o, s:I, s:f}", "where", tool_where_json(r->lib.build(), &r->lib, true), "seed",
	    (json_int_t)r->seed, "calls", calls, "wrong", (json_int_t)wrong, "seconds",
	    (ranks_now_us() - r->began_us) / 1e6);
	err = tool_file_json(r->o->ranks.json, root);
	json_decref(root);
	return err;
}

/* False: the file could not be written. */
static bool summary_print(const struct torture_rank *r, const struct torture_stats *all)
{
	uint64_t wrong = 0, checks = 0, elements = 0, delays = 0;
	const struct torture_stats *t = &r->stats;

	for (int i = 0; i < r->nranks; i++) {
		wrong += all[i].wrong;
		checks += all[i].checks;
		elements += all[i].elements;
		delays += all[i].delays;
	}
	for (int i = 0; i < torture_nkinds(); i++)
		if (t->kinds[i])
			printf("%-16s %llu\n", torture_kind_name(i), (unsigned long long)t->kinds[i]);
	for (size_t i = 0; i < t->npaths; i++)
		printf("# rank 0: %s by %s%s%s%s: %llu\n", t->paths[i].op, t->paths[i].path,
		    *t->paths[i].reason ? " (" : "", t->paths[i].reason, *t->paths[i].reason ? ")" : "",
		    (unsigned long long)t->paths[i].calls);
	printf("# %llu groups, %llu graphs, launched %llu times, %llu communicators in %llu lifecycles, %llu aborted, "
	       "%llu windows, %llu delays\n",
	    (unsigned long long)t->groups, (unsigned long long)t->captures, (unsigned long long)t->launches,
	    (unsigned long long)t->comms, (unsigned long long)t->lifecycles, (unsigned long long)t->aborts,
	    (unsigned long long)t->windows, (unsigned long long)delays);
	printf("# rank 0 without communicators, at most in the first %d lifecycles and after the last: ",
	    TORTURE_WARMUP_LIFECYCLES);
	if (r->cuda && !r->o->shared)
		printf("%.1f and %.1f MiB of device memory in use, ", (double)r->baseline.device / (1 << 20),
		    (double)r->latest.device / (1 << 20));
	printf("%llu and %llu descriptors\n", (unsigned long long)r->baseline.descriptors,
	    (unsigned long long)r->latest.descriptors);
	printf("%llu ops, %llu results and %llu elements checked, wrong values in %llu, %.1f s, seed %llu\n",
	    (unsigned long long)t->ops, (unsigned long long)checks, (unsigned long long)elements,
	    (unsigned long long)wrong, (ranks_now_us() - r->began_us) / 1e6, (unsigned long long)r->seed);
	return !r->o->ranks.json || !summary_write(r, wrong);
}

static int rank_run(const void *arg, const struct ranks_slot *rank_slot)
{
	struct torture_rank *r = calloc(1, sizeof(*r));
	struct torture_stats *all = calloc(TORTURE_MAX_RANKS, sizeof(*all));
	int status = TOOL_FAIL;

	if (!r || !all || rank_slot->shared->launch.nranks > TORTURE_MAX_RANKS) {
		tool_error("%s", r && all ? "there may be 8 ranks at most; give -n" : "out of memory");
		ranks_abort(NULL, rank_slot->shared);
		goto out;
	}
	r->o = arg;
	r->shared = rank_slot->shared;
	r->progress = rank_slot->progress;
	r->rank = rank_slot->rank;
	r->device = rank_slot->device;
	r->nranks = rank_slot->shared->launch.nranks;
	r->began_us = ranks_now_us();
	r->err = rank_open(r);
	if (!r->err && !r->rank) {
		printf("# shunt torture %s: %d %s on %s, %s, up to %llu bytes, seed %llu\n", r->lib.version(),
		    r->nranks, r->o->ranks.threads ? "threads" : "processes", r->shared->launch.kind, r->nccl.path,
		    (unsigned long long)r->max_bytes, (unsigned long long)r->seed);
		if (r->serialized)
			printf("# no graphs: a real NCCL connects threads of one process at their first calls, which a "
			       "capture forbids; without --threads there are\n");
		fflush(stdout);
	}
	while (!r->err && !r->stop)
		torture_lifecycle(r);
	if (!r->err && !torture_allgather(r, &r->stats, sizeof(r->stats), all)) {
		status = TOOL_OK;
		for (int i = 0; i < r->nranks; i++)
			status = all[i].wrong ? TOOL_FAIL : status;
		if (!r->rank && !summary_print(r, all))
			status = TOOL_FAIL;
	}
	if (r->err)
		ranks_abort(r->ranks, r->shared);
	rank_close(r, !r->err);
out:
	free(all);
	free(r);
	return status;
}

int torture_worker(const struct torture_opts *o)
{
	return ranks_slots_run(&o->ranks, o->ep ? torture_ep_rank : rank_run, o);
}
