/* SPDX-License-Identifier: MIT */
/* One rank of shunt plan run: registers the plan, makes it the choice, checks its values and measures. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "plan_run.h"

enum {
	GUARD_BYTES = 256,     /* behind every buffer; nobody may write there */
	BLOCK_BYTES = 1 << 20, /* host memory through which data is made and checked */
	POISON = 0xa5,
};

struct rank {
	const struct plan_run_opts *o;
	struct bench_shared *shared;
	struct bench_progress *progress;
	struct bench_team *team;
	struct tool_lib lib;
	struct bench_nccl nccl;
	ncclComm_t comm;
	void *stream;
	int rank, nranks, device, iters, rounds;
	uint64_t first, last;
	char *send, *recv, *block;
	uint64_t wrong; /* of all sizes and, on rank 0, of all ranks */
	unsigned sizes;
};

/* One line of the table. */
struct task {
	uint64_t count, bytes; /* bytes: of the message */
	enum bench_place place;
};

static void note(struct rank *r, enum bench_stage stage)
{
	atomic_store(&r->progress->stage, stage);
	atomic_fetch_add(&r->progress->beats, 1);
}

static int gather(struct rank *r, const void *mine, size_t bytes, void *all)
{
	note(r, BENCH_GATHER);
	int err = bench_team_gather(r->team, mine, bytes, all);

	return bench_round_error(r->rank, err);
}

static int device_check(const struct rank *r, const char *what, int err)
{
	return bench_device_error(r->rank, r->device, what, err);
}

/* ---- set-up ---- */

/* By name, so that plans run that are not for every call. It is the same on all ranks. */
static const char *want_plan(void *arg, const struct shunt_plan_request *request)
{
	return arg;
}

static int plan_register(struct rank *r)
{
	__typeof__(shunt_plan_register_file) *add = (__typeof__(add))dlsym(r->lib.handle, "shunt_plan_register_file");
	__typeof__(shunt_plan_set_selector) *select = (__typeof__(select))dlsym(r->lib.handle, "shunt_plan_set_selector");
	char why[PLAN_WHY_BYTES] = "";
	int err;

	if (!add || !select) {
		tool_error("%s knows no plans: it is not the libshunt.so of this version", r->lib.path);
		return -ENOSYS;
	}
	err = add(r->o->file, why, sizeof(why));
	/* With --threads another rank was first. */
	if (err && err != -EEXIST) {
		tool_error("rank %d: %s", r->rank, why);
		return err;
	}
	select(want_plan, (void *)(uintptr_t)r->o->plan->name);
	return 0;
}

static int comm_create(struct rank *r)
{
	ncclUniqueId id, ids[BENCH_MAX_RANKS];
	int err;

	note(r, BENCH_INIT);
	memset(&id, 0, sizeof(id));
	err = r->rank ? 0 : bench_nccl_check(&r->nccl, 0, "ncclGetUniqueId", r->nccl.GetUniqueId(&id));
	if (!err)
		err = gather(r, &id, sizeof(id), ids);
	note(r, BENCH_INIT);
	return err ? err
	           : bench_nccl_check(
	                 &r->nccl, r->rank, "ncclCommInitRank", r->nccl.CommInitRank(&r->comm, r->nranks, ids[0], r->rank));
}

/* The sizes that were asked for, within those of the plan. */
static void sizes_choose(struct rank *r, bool sim)
{
	const struct bench_opts *b = &r->o->base;
	const struct shunt_plan *p = r->o->plan;
	uint64_t first = 1 << 10, last = sim ? 256 << 10 : 64 << 20;

	/* Where nothing was asked for, sizes that elements of all types fill. */
	while (first < p->min_bytes && first < UINT64_MAX / 2)
		first *= 2;
	r->first = b->first ? b->first : first < p->max_bytes ? first : p->max_bytes;
	if (b->last && r->first > b->last)
		r->first = b->last;
	r->last = b->last ? b->last : r->first > last ? r->first : last;
	if (r->last > p->max_bytes)
		r->last = p->max_bytes;
}

static int rank_open(struct rank *r)
{
	bool sim = !strcmp(r->shared->launch.kind, "sim");
	const char *missing;
	int err;

	note(r, BENCH_MEET);
	err = bench_team_join(r->shared, r->o->base.worker_fd, r->rank, r->o->base.timeout_s, &r->team);
	if (err)
		return err;
	note(r, BENCH_INIT);
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
		err = device_check(r, "cannot be used", r->lib.device_set(r->device));
	if (!err)
		err = device_check(r, "cannot make a stream", r->lib.stream_create(&r->stream));
	if (!err)
		err = device_check(r, "cannot allocate a buffer", r->lib.malloc((void **)&r->send, r->last + 64 + GUARD_BYTES));
	if (!err)
		err = device_check(r, "cannot allocate a buffer", r->lib.malloc((void **)&r->recv, r->last + 64 + GUARD_BYTES));
	r->block = malloc(BLOCK_BYTES);
	if (!err && !r->block)
		err = device_check(r, "host memory", -ENOMEM);
	return err ? err : comm_create(r);
}

static void rank_close(struct rank *r, bool clean)
{
	note(r, BENCH_DESTROY);
	/* After an error the library may wait for ranks that will not come; the process ends anyway. */
	if (clean) {
		bench_nccl_check(&r->nccl, r->rank, "ncclCommDestroy", r->nccl.CommDestroy(r->comm));
		r->lib.free(r->send);
		r->lib.free(r->recv);
		r->lib.stream_destroy(r->stream);
	}
	free(r->block);
	note(r, BENCH_DONE);
	bench_team_leave(r->team);
}

/* ---- a call ---- */

static size_t element(const struct rank *r)
{
	return shunt_dtype_bytes[r->o->dtype];
}

/* In place both lie in recv. */
static char *send_at(const struct rank *r, const struct task *t)
{
	if (t->place == BENCH_OUT)
		return r->send;
	return r->recv + bench_coll_send_offset(r->o->base.coll, t->count, r->rank) * element(r);
}

static char *recv_at(const struct rank *r, const struct task *t)
{
	return r->recv + (t->place == BENCH_IN ? bench_coll_recv_offset(r->o->base.coll, t->count, r->rank) * element(r) : 0);
}

static int call(struct rank *r, const struct task *t)
{
	struct bench_args a = {.send = send_at(r, t),
	    .recv = recv_at(r, t),
	    .count = t->count,
	    .dtype = (ncclDataType_t)r->o->dtype,
	    .redop = (ncclRedOp_t)r->o->redop,
	    .rank = r->rank,
	    .nranks = r->nranks,
	    .comm = r->comm,
	    .stream = r->stream};

	return bench_nccl_check(&r->nccl, r->rank, r->o->base.coll->name, r->o->base.coll->call(&r->nccl, &a));
}

static int capture(struct rank *r, const struct task *t, void **graph_p)
{
	int err, end;

	note(r, BENCH_CAPTURE);
	err = device_check(r, "capture", r->lib.capture_begin(r->stream));
	if (err)
		return err;
	err = call(r, t);
	end = r->lib.capture_end(r->stream, graph_p);
	return err ? err : device_check(r, "capture", end);
}

static int calls_run(struct rank *r, const struct task *t, void *graph, int n)
{
	int err = 0;

	for (int i = 0; !err && i < n; i++)
		err = graph ? device_check(r, "graph launch", r->lib.graph_launch(graph, r->stream)) : call(r, t);
	return err ? err : device_check(r, "waiting for the device", r->lib.stream_synchronize(r->stream));
}

/* ---- values ---- */

static int input_write(struct rank *r, const struct bench_data *data, const struct task *t)
{
	uint64_t count = t->count * bench_coll_blocks(r->o->base.coll, r->o->base.coll->send_many, r->nranks),
	         per_block = BLOCK_BYTES / element(r);
	int err = 0;

	for (uint64_t first = 0; !err && first < count; first += per_block) {
		size_t n = count - first < per_block ? count - first : per_block;

		bench_data_input(data, r->rank, first, n, r->block);
		err = device_check(r, "copy", r->lib.memcpy(send_at(r, t) + first * element(r), r->block, n * element(r)));
	}
	return err;
}

static int result_check(struct rank *r, const struct bench_data *data, const struct task *t, uint64_t *wrong_p)
{
	const struct bench_coll *coll = r->o->base.coll;
	int blocks = coll->recv_many ? r->nranks : 1, err;
	uint64_t per_block = BLOCK_BYTES / element(r), wrong = 0;
	char text[512] = "";

	for (int k = 0; k < blocks; k++) {
		struct bench_block b = bench_coll_block(coll, r->rank, r->nranks, 0, k, t->count);

		for (uint64_t first = 0; first < b.count; first += per_block) {
			size_t n = b.count - first < per_block ? b.count - first : per_block;

			err = device_check(
			    r, "copy", r->lib.memcpy(r->block, recv_at(r, t) + (b.at + first) * element(r), n * element(r)));
			if (err)
				return err;
			wrong += b.from < 0
			             ? bench_data_check(data, b.from_at + first, n, r->block, *text ? NULL : text, sizeof(text))
			             : bench_data_check_copy(
			                   data, b.from, b.from_at + first, n, r->block, *text ? NULL : text, sizeof(text));
			atomic_fetch_add(&r->progress->beats, 1);
		}
	}
	if (wrong)
		tool_error("rank %d: %llu bytes, %s place: %llu wrong; %s", r->rank, (unsigned long long)t->bytes,
		    t->place == BENCH_IN ? "in" : "out of", (unsigned long long)wrong, text);
	*wrong_p += wrong;
	return 0;
}

/* Behind the result nothing was written, nor was the input. */
static int rest_check(struct rank *r, const struct bench_data *data, const struct task *t, uint64_t *wrong_p)
{
	const struct bench_coll *coll = r->o->base.coll;
	uint64_t sent = t->count * bench_coll_blocks(coll, coll->send_many, r->nranks) * element(r), half = BLOCK_BYTES / 2,
	         touched = 0;
	uint64_t used =
	    t->place == BENCH_IN ? t->bytes : t->count * bench_coll_blocks(coll, coll->recv_many, r->nranks) * element(r);
	int err = device_check(r, "copy", r->lib.memcpy(r->block, r->recv + used, GUARD_BYTES));

	for (int i = 0; !err && i < GUARD_BYTES; i++)
		touched += (unsigned char)r->block[i] != POISON;
	if (touched)
		tool_error("rank %d: %llu bytes: %llu bytes behind the result were written", r->rank, (unsigned long long)t->bytes,
		    (unsigned long long)touched);
	*wrong_p += touched;
	for (uint64_t first = 0; !err && t->place == BENCH_OUT && first < sent; first += half) {
		size_t n = sent - first < half ? sent - first : half;

		err = device_check(r, "copy", r->lib.memcpy(r->block, r->send + first, n));
		bench_data_input(data, r->rank, first / element(r), n / element(r), r->block + half);
		if (err || !memcmp(r->block, r->block + half, n))
			continue;
		tool_error("rank %d: %llu bytes: the input was written", r->rank, (unsigned long long)t->bytes);
		*wrong_p += 1;
		break;
	}
	return err;
}

static int check(struct rank *r, const struct task *t, void *graph, uint64_t *wrong_p)
{
	int err = 0;

	for (int class = 0; !err && class < BENCH_NCLASSES; class ++) {
		struct bench_data *data;

		if (!bench_data_has(r->o->dtype, class))
			continue;
		note(r, BENCH_CHECK);
		data = bench_data_create(
		    r->o->dtype, r->o->redop, class, r->nranks, r->o->base.seed + (t->bytes * 2 + t->place) * 2 + (uint64_t) class);
		if (!data)
			return device_check(r, "host memory", -ENOMEM);
		/* What is not written must not look right. */
		err = device_check(r, "memset", r->lib.memset_async(r->recv, POISON, t->bytes + GUARD_BYTES, r->stream));
		if (!err)
			err = device_check(r, "memset", r->lib.stream_synchronize(r->stream));
		if (!err)
			err = input_write(r, data, t);
		if (!err)
			err = calls_run(r, t, graph, 1);
		if (!err)
			err = result_check(r, data, t, wrong_p);
		if (!err)
			err = rest_check(r, data, t, wrong_p);
		bench_data_destroy(data);
	}
	return err;
}

/* Calls of ours that did not run the plan, and where they went. */
static uint64_t elsewhere(struct rank *r, const char **path_p, const char **reason_p)
{
	struct shunt_counter rows[64];
	uint64_t calls = 0;
	size_t n = 0;

	if (!r->nccl.counters || r->nccl.counters(r->comm, rows, 64, &n))
		return 0;
	for (size_t i = 0; i < n && i < 64; i++)
		if (!strcmp(rows[i].op, r->o->base.coll->op) && !strstr(rows[i].path, r->o->plan->name)) {
			*path_p = rows[i].path;
			*reason_p = rows[i].reason;
			calls += rows[i].calls;
		}
	return calls;
}

/* Were all calls the plan's? All ranks come to the same answer. */
static int used_check(struct rank *r)
{
	const char *path = "", *reason = "";
	uint64_t mine, all[BENCH_MAX_RANKS];
	int err;

	mine = elsewhere(r, &path, &reason);
	err = gather(r, &mine, sizeof(mine), all);
	for (int i = 0; !err && i < r->nranks; i++) {
		if (!all[i])
			continue;
		if (!r->rank)
			tool_error("the library did not run plan %s: %llu calls of rank %d took the path \"%s\"%s%s; "
			           "SHUNT_LOG=info may say why",
			    r->o->plan->name, (unsigned long long)all[i], i, mine ? path : "?", *reason ? ": " : "", reason);
		err = -EPROTO;
	}
	return err;
}

/* ---- measuring ---- */

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median over rounds of the slowest rank's time of a call. */
static int measure(struct rank *r, const struct task *t, void *graph, double *us_p)
{
	double slowest[BENCH_MAX_ROUNDS], all[BENCH_MAX_RANKS], mine, start;
	int err = 0;

	note(r, BENCH_WARMUP);
	err = calls_run(r, t, graph, r->iters);
	for (int round = 0; !err && round < r->rounds; round++) {
		note(r, BENCH_TIME);
		/* The first may sleep, the second lets all go at once. */
		err = bench_team_barrier(r->team);
		if (!err)
			err = bench_team_barrier(r->team);
		start = bench_now_us();
		if (!err)
			err = calls_run(r, t, graph, r->iters);
		mine = (bench_now_us() - start) / r->iters;
		if (!err)
			err = gather(r, &mine, sizeof(mine), all);
		slowest[round] = 0;
		for (int i = 0; !err && i < r->nranks; i++)
			slowest[round] = all[i] > slowest[round] ? all[i] : slowest[round];
	}
	if (err)
		return err;
	qsort(slowest, (size_t)r->rounds, sizeof(double), by_time);
	*us_p = slowest[r->rounds / 2];
	return 0;
}

static int task_run(struct rank *r, const struct task *t)
{
	uint64_t wrong = 0, all[BENCH_MAX_RANKS];
	void *graph = NULL;
	double us = 0;
	int err = 0;

	atomic_store(&r->progress->bytes, t->bytes);
	atomic_store(&r->progress->lib, 0);
	atomic_store(&r->progress->way, (r->o->graph ? BENCH_GRAPH : BENCH_EAGER) * BENCH_NPLACES + (int)t->place);
	if (r->o->graph)
		err = capture(r, t, &graph);
	if (!err)
		err = check(r, t, graph, &wrong);
	if (!err)
		err = used_check(r);
	if (!err)
		err = measure(r, t, graph, &us);
	if (graph)
		r->lib.graph_destroy(graph);
	if (!err)
		err = gather(r, &wrong, sizeof(wrong), all);
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

static int tasks_run(struct rank *r)
{
	const struct bench_opts *b = &r->o->base;
	const struct shunt_plan *p = r->o->plan;
	int err = 0;

	if (!r->rank)
		printf("# %s: %s of %d ranks on %s, %s%s%s\n#%11s %12s  %-12s %-5s %10s %10s %10s %10s\n", p->name, b->coll->name,
		    r->nranks, r->shared->launch.kind, shunt_dtype_name(r->o->dtype), p->redops ? ", " : "",
		    p->redops ? shunt_redop_name(r->o->redop) : "", "bytes", "count", "place", "mode", "time us", "algbw GB/s",
		    "busbw GB/s", "wrong");
	for (uint64_t bytes = r->first; !err && bytes <= r->last;
	     bytes = bytes > UINT64_MAX / b->factor ? UINT64_MAX : bytes * b->factor) {
		struct task t = {.count = bench_coll_count(b->coll, bytes, element(r), r->nranks)};

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

int plan_run_rank(const void *arg, const struct bench_seat *seat)
{
	struct rank *r = calloc(1, sizeof(*r));
	int err, status = TOOL_FAIL;

	if (!r) {
		atomic_store(&seat->shared->hall.failed, 1);
		return TOOL_FAIL;
	}
	r->o = arg;
	r->shared = seat->shared;
	r->progress = seat->progress;
	r->rank = seat->rank;
	r->device = seat->device;
	r->nranks = seat->shared->launch.nranks;
	err = r->nranks == (int)r->o->plan->nranks ? rank_open(r) : -EINVAL;
	if (err == -EINVAL && !r->team)
		tool_error("%s is for %u ranks, and there are %d", r->o->plan->name, r->o->plan->nranks, r->nranks);
	if (!err)
		err = tasks_run(r);
	/* Nobody takes away what others still use. */
	if (!err)
		err = bench_team_barrier(r->team);
	if (!err && !r->rank && !r->sizes)
		tool_error("no size from %llu to %llu bytes is one that the plan admits", (unsigned long long)r->first,
		    (unsigned long long)r->last);
	if (!err && !r->rank && r->sizes)
		printf("# %s\n", r->wrong ? "there are wrong values" : "all values are right, and the plan made them");
	if (!err)
		status = r->wrong || !r->sizes ? TOOL_FAIL : TOOL_OK;
	else if (r->team)
		bench_team_fail(r->team);
	else
		atomic_store(&r->shared->hall.failed, 1);
	rank_close(r, !err);
	free(r);
	return status;
}
