/* SPDX-License-Identifier: MIT */
/* One rank of shunt plan run: registers the plan, selects it, and runs all sizes. */
#include "tools/plan/rank.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void plan_rank_note(struct plan_rank *r, enum ranks_stage stage)
{
	ranks_progress_set(r->progress, stage, 0, -1);
}

int plan_rank_gather(struct plan_rank *r, const void *mine, size_t bytes, void *all)
{
	plan_rank_note(r, RANKS_ALLGATHER);
	int err = ranks_allgather(r->ranks, mine, bytes, all);

	return ranks_error(r->rank, err);
}

int plan_rank_device(const struct plan_rank *r, const char *what, int err)
{
	return ranks_device_error(r->rank, r->device, what, err);
}

/* ---- set-up ---- */

/* Selects the plan by name, which also runs plans that do not cover every call. The same name on all ranks. */
static const char *want_plan(void *arg, const struct shunt_plan_request *request)
{
	return arg;
}

static int plan_register(struct plan_rank *r)
{
	__typeof__(shunt_plan_register_file) *add = (__typeof__(add))dlsym(r->lib.handle, "shunt_plan_register_file");
	__typeof__(shunt_plan_set_selector) *select =
	    (__typeof__(select))dlsym(r->lib.handle, "shunt_plan_set_selector");
	char reason[PLAN_REASON_BYTES] = "";
	int err;

	if (!add || !select) {
		tool_error("%s knows no plans: it is not the libshunt.so of this version", r->lib.path);
		return -ENOSYS;
	}
	err = add(r->o->file, reason, sizeof(reason));
	/* With --threads another rank has registered it. */
	if (err && err != -EEXIST) {
		tool_error("rank %d: %s", r->rank, reason);
		return err;
	}
	select(want_plan, (void *)(uintptr_t)r->o->plan->name);
	return 0;
}

static int comm_create(struct plan_rank *r)
{
	ncclUniqueId id, ids[RANKS_MAX];
	int err;

	plan_rank_note(r, RANKS_INIT);
	memset(&id, 0, sizeof(id));
	err = r->rank ? 0 : bench_nccl_check(&r->nccl, 0, "ncclGetUniqueId", r->nccl.GetUniqueId(&id));
	if (!err)
		err = plan_rank_gather(r, &id, sizeof(id), ids);
	plan_rank_note(r, RANKS_INIT);
	return err ? err :
	             bench_nccl_check(&r->nccl, r->rank, "ncclCommInitRank",
	                 r->nccl.CommInitRank(&r->comm, r->nranks, ids[0], r->rank));
}

/* The requested sizes, limited to the plan's. */
static void sizes_choose(struct plan_rank *r, bool sim)
{
	const struct bench_opts *b = &r->o->base;
	const struct shunt_plan *p = r->o->plan;
	uint64_t first = 1 << 10, last = sim ? 256 << 10 : 64 << 20;

	/* By default, sizes that are multiples of all types' sizes. */
	while (first < p->min_bytes && first < UINT64_MAX / 2)
		first *= 2;
	r->first = b->first ? b->first : first < p->max_bytes ? first : p->max_bytes;
	if (b->last && r->first > b->last)
		r->first = b->last;
	r->last = b->last ? b->last : r->first > last ? r->first : last;
	if (r->last > p->max_bytes)
		r->last = p->max_bytes;
}

static int buffer_alloc(struct plan_rank *r, char **buffer_p)
{
	return plan_rank_device(
	    r, "cannot allocate a buffer", r->lib.malloc((void **)buffer_p, r->last + 64 + PLAN_RANK_GUARD));
}

static int rank_open(struct plan_rank *r)
{
	bool sim = !strcmp(r->shared->launch.kind, "sim");
	const char *missing;
	int err;

	plan_rank_note(r, RANKS_RENDEZVOUS);
	err = ranks_join(r->shared, r->o->base.ranks.worker_fd, r->rank, r->o->base.ranks.timeout_s, &r->ranks);
	if (err)
		return err;
	plan_rank_note(r, RANKS_INIT);
	err = tool_lib_open(&r->lib);
	if (!err)
		err = bench_nccl_open(&r->nccl, "shunt", &r->lib);
	if (err)
		return err;
	missing = bench_coll_missing(r->o->base.coll, &r->nccl);
	if (missing) {
		tool_error("%s has no nccl%s", r->lib.path, missing);
		return -ENOSYS;
	}
	r->iters = r->o->base.iters > 0 ? r->o->base.iters : sim ? 2 : 20;
	r->rounds = r->o->base.rounds > 0 ? r->o->base.rounds : sim ? 3 : 10;
	sizes_choose(r, sim);
	err = plan_register(r);
	if (!err)
		err = plan_rank_device(r, "cannot be used", r->lib.device_set(r->device));
	if (!err)
		err = plan_rank_device(r, "cannot make a stream", r->lib.stream_create(&r->stream));
	if (!err)
		err = buffer_alloc(r, &r->send);
	if (!err)
		err = buffer_alloc(r, &r->recv);
	r->block = malloc(PLAN_RANK_BLOCK);
	if (!err && !r->block)
		err = plan_rank_device(r, "host memory", -ENOMEM);
	return err ? err : comm_create(r);
}

static void rank_close(struct plan_rank *r, bool clean)
{
	plan_rank_note(r, RANKS_DESTROY);
	/* After an error the library may wait for ranks that will not come. The process ends anyway. */
	if (clean) {
		bench_nccl_check(&r->nccl, r->rank, "ncclCommDestroy", r->nccl.CommDestroy(r->comm));
		r->lib.free(r->send);
		r->lib.free(r->recv);
		r->lib.stream_destroy(r->stream);
	}
	free(r->block);
	plan_rank_note(r, RANKS_DONE);
	ranks_leave(r->ranks);
}

/* ---- the table ---- */

static int task_run(struct plan_rank *r, const struct plan_task *t)
{
	uint64_t wrong = 0, all[RANKS_MAX];
	void *graph = NULL;
	double us = 0;
	int err = 0;

	atomic_store(&r->progress->bytes, t->bytes);
	atomic_store(&r->progress->lib, 0);
	atomic_store(&r->progress->way, (r->o->graph ? BENCH_GRAPH : BENCH_EAGER) * BENCH_NPLACES + (int)t->place);
	if (r->o->graph)
		err = plan_rank_capture(r, t, &graph);
	if (!err)
		err = plan_rank_check(r, t, graph, &wrong);
	if (!err)
		err = plan_rank_used(r);
	if (!err)
		err = plan_rank_measure(r, t, graph, &us);
	if (graph)
		r->lib.graph_destroy(graph);
	if (!err)
		err = plan_rank_gather(r, &wrong, sizeof(wrong), all);
	if (err)
		return err;
	wrong = 0;
	for (int i = 0; i < r->nranks; i++)
		wrong += all[i];
	r->wrong += wrong;
	r->sizes++;
	if (!r->rank) {
		double algbw = (double)t->bytes / us / 1e3;

		printf("%12llu %12llu  %-12s %-5s %10.1f %10.3f %10.3f %10llu\n", (unsigned long long)t->bytes,
		    (unsigned long long)t->count, bench_place_names[t->place], bench_mode_names[r->o->graph], us, algbw,
		    algbw * bench_coll_bus_factor(r->o->base.coll, r->nranks), (unsigned long long)wrong);
		fflush(stdout);
	}
	return 0;
}

static int tasks_run(struct plan_rank *r)
{
	const struct bench_opts *b = &r->o->base;
	const struct shunt_plan *p = r->o->plan;
	int err = 0;

	if (!r->rank)
		printf("# %s: %s of %d ranks on %s, %s%s%s\n#%11s %12s  %-12s %-5s %10s %10s %10s %10s\n", p->name,
		    b->coll->name, r->nranks, r->shared->launch.kind, shunt_dtype_name(r->o->dtype),
		    p->redops ? ", " : "", p->redops ? shunt_redop_name(r->o->redop) : "", "bytes", "count", "place",
		    "mode", "time us", "algbw GB/s", "busbw GB/s", "wrong");
	for (uint64_t bytes = r->first; !err && bytes <= r->last;
	    bytes = bytes > UINT64_MAX / b->factor ? UINT64_MAX : bytes * b->factor) {
		struct plan_task t = { .count = bench_coll_count(b->coll, bytes, r->element, r->nranks) };

		if (!shunt_plan_message_bytes(p->collective, r->nranks, t.count, r->o->dtype, &t.bytes) || !t.count ||
		    t.bytes < p->min_bytes || t.bytes > p->max_bytes)
			continue;
		for (int place = 0; !err && place < BENCH_NPLACES; place++) {
			t.place = (enum bench_place)place;
			if (b->places[place])
				err = task_run(r, &t);
		}
	}
	return err;
}

int plan_run_rank(const void *arg, const struct ranks_slot *rank_slot)
{
	struct plan_rank *r = calloc(1, sizeof(*r));
	int err, status = TOOL_FAIL;

	if (!r) {
		ranks_abort(NULL, rank_slot->shared);
		return TOOL_FAIL;
	}
	r->o = arg;
	r->shared = rank_slot->shared;
	r->progress = rank_slot->progress;
	r->rank = rank_slot->rank;
	r->device = rank_slot->device;
	r->nranks = rank_slot->shared->launch.nranks;
	r->element = shunt_dtype_bytes[r->o->dtype];
	err = r->nranks == (int)r->o->plan->nranks ? rank_open(r) : -EINVAL;
	if (err == -EINVAL && !r->ranks)
		tool_error("%s is for %u ranks, and there are %d", r->o->plan->name, r->o->plan->nranks, r->nranks);
	if (!err)
		err = tasks_run(r);
	/* No rank destroys what others still use. */
	if (!err)
		err = ranks_barrier(r->ranks);
	if (!err && !r->rank && !r->sizes)
		tool_error("no size from %llu to %llu bytes is one that the plan admits", (unsigned long long)r->first,
		    (unsigned long long)r->last);
	if (!err && !r->rank && r->sizes)
		printf("# %s\n", r->wrong ? "there are wrong values" : "all values are right, and the plan made them");
	if (!err)
		status = r->wrong || !r->sizes ? TOOL_FAIL : TOOL_OK;
	else
		ranks_abort(r->ranks, r->shared);
	rank_close(r, !err);
	free(r);
	return status;
}
