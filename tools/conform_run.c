/* SPDX-License-Identifier: MIT */
/* One rank of a conformance run: runs each case with each library and says what it found; rank 0 hears all. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "conform.h"

enum { WRONG_BYTES = 4096 };

/* One library with its communicators. */
struct side {
	struct bench_nccl nccl;
	ncclComm_t comm[CONFORM_NCOMMS];
	uint64_t lacks;              /* bit set of enum bench_coll_id */
	bool strict;                 /* Shunt alone: sums are in rank order, so the result is known to the bit */
};

struct rank {
	const struct conform_opts *o;
	struct bench_shared *shared;
	struct bench_progress *progress;
	int rank, nranks, device;
	struct bench_team *team;
	struct tool_lib lib;
	struct side side[BENCH_MAX_LIBS];
	void *stream[2];
	void *send, *recv;           /* the arenas on the device */
	size_t send_bytes, recv_bytes;
	struct conform_report *report; /* rank 0 */
};

/* One case while it runs: what every rank does and has. */
struct run {
	const struct conform_case *c;
	struct conform_script script[BENCH_MAX_RANKS];
	struct conform_image image[BENCH_MAX_RANKS], got;
	unsigned char *expected, *like; /* like: what the first library gave */
	struct conform_outcome *out;
};

static void note(struct rank *r, enum bench_stage stage, int lib)
{
	atomic_store(&r->progress->stage, stage);
	atomic_store(&r->progress->lib, lib);
	atomic_store(&r->progress->way, -1);
	atomic_fetch_add(&r->progress->beats, 1);
}

static int gather(struct rank *r, const void *mine, size_t bytes, void *all)
{
	note(r, BENCH_WAIT, -1);
	int err = bench_team_gather(r->team, mine, bytes, all);

	if (err && err != -ECANCELED)
		tool_error("rank %d: waiting for the other ranks: %s", r->rank, strerror(-err));
	return err;
}

static void say(struct conform_outcome *out, enum conform_verdict verdict, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The first failure stays; it comes before a skip. */
static void say(struct conform_outcome *out, enum conform_verdict verdict, const char *fmt, ...)
{
	va_list args;

	if (out->verdict >= (int)verdict)
		return;
	out->verdict = verdict;
	va_start(args, fmt);
	vsnprintf(out->text, sizeof(out->text), fmt, args);
	va_end(args);
}

static bool device_ok(struct conform_outcome *out, const char *label, const char *what, int err)
{
	if (err)
		say(out, CONFORM_FAIL, "%s: %s: %s", label, what, strerror(-err));
	return !err;
}

/* ---- scripts ---- */

static ncclResult_t step_run(struct rank *r, struct side *s, const struct conform_step *step)
{
	const struct bench_coll *coll = &bench_colls[step->coll];
	struct bench_args a = { .count = step->count, .dtype = (ncclDataType_t)step->dtype, .redop = (ncclRedOp_t)step->redop,
		.root = step->root, .comm = s->comm[step->comm], .stream = r->stream[step->stream] };
	bool made = coll->reduces && step->redop == SHUNT_PREMUL;
	ncclResult_t result, end;
	uint64_t scalar;

	if (step->send != CONFORM_NULL)
		a.send = (char *)(step->in_place ? r->recv : r->send) + step->send;
	if (step->recv != CONFORM_NULL)
		a.recv = (char *)r->recv + step->recv;
	if (made) {
		conform_scalar(step->dtype, r->rank, &scalar);
		result = s->nccl.RedOpCreatePreMulSum(&a.redop, &scalar, a.dtype, ncclScalarHostImmediate, a.comm);
		if (result)
			return result;
	}
	result = coll->call(&s->nccl, &a);
	if (made) { /* at once, as torch does; what was called keeps it */
		end = s->nccl.RedOpDestroy(a.redop, a.comm);

		if (!result)
			result = end;
	}
	return result;
}

static void steps_run(struct rank *r, struct side *s, const struct conform_script *script, struct conform_outcome *out)
{
	for (size_t i = 0; i < script->n; i++) {
		const struct conform_step *step = &script->steps[i];
		const char *name = bench_colls[step->coll].name;
		ncclResult_t result = ncclSuccess;

		switch (step->kind) {
		case CONFORM_CALL:
			result = step_run(r, s, step);
			break;
		case CONFORM_GROUP_START:
			name = "ncclGroupStart";
			result = s->nccl.GroupStart();
			break;
		case CONFORM_GROUP_END:
			name = "ncclGroupEnd";
			result = s->nccl.GroupEnd();
			break;
		case CONFORM_DELAY:
			nanosleep(&(struct timespec){ .tv_nsec = (long)step->delay_us * 1000 }, NULL);
			break;
		}
		/* Go on: the others may be waiting for what follows. */
		if (result)
			say(out, CONFORM_FAIL, "%s: step %zu (%s) returned %d: %s", s->nccl.label, i, name, (int)result,
				s->nccl.GetErrorString(result));
	}
}

static void streams_sync(struct rank *r, struct side *s, struct conform_outcome *out)
{
	for (int i = 0; i < 2; i++)
		device_ok(out, s->nccl.label, "waiting for the device", r->lib.stream_synchronize(r->stream[i]));
}

static void graph_run(struct rank *r, struct side *s, const struct conform_script *script, struct conform_outcome *out)
{
	void *graph = NULL;
	bool in_place = false;

	for (size_t i = 0; i < script->n; i++)
		in_place |= script->steps[i].in_place;
	if (!device_ok(out, s->nccl.label, "capture", r->lib.capture_begin(r->stream[0])))
		return;
	steps_run(r, s, script, out);
	if (!device_ok(out, s->nccl.label, "capture", r->lib.capture_end(r->stream[0], &graph)))
		return;
	/* Twice, where the second run has the first one's inputs. */
	for (int i = 0; i < (in_place ? 1 : 2) && !out->verdict; i++)
		device_ok(out, s->nccl.label, "graph launch", r->lib.graph_launch(graph, r->stream[0]));
	streams_sync(r, s, out);
	r->lib.graph_destroy(graph);
}

/* Makes the communicators that a script needs, on all ranks alike. False: the library cannot. */
static bool comms_prepare(struct rank *r, struct side *s, const struct run *run)
{
	for (int rank = 0; rank < r->nranks; rank++)
		for (size_t i = 0; i < run->script[rank].n; i++) {
			enum conform_comm comm = run->script[rank].steps[i].comm;
			int members[BENCH_MAX_RANKS], me = 0;
			ncclResult_t result;

			if (s->comm[comm])
				continue;
			if (!s->nccl.CommSplit)
				return false;
			conform_members(comm, r->rank, r->nranks, members, &me);
			result = s->nccl.CommSplit(
				s->comm[CONFORM_WORLD], comm == CONFORM_HALVES ? members[0] : 0, me, &s->comm[comm], NULL);
			if (result) {
				say(run->out, CONFORM_FAIL, "%s: ncclCommSplit returned %d: %s", s->nccl.label, (int)result,
					s->nccl.GetErrorString(result));
				return true;
			}
		}
	return true;
}

/* What the library lacks of what a script needs, or NULL. */
static const char *script_lacks(const struct rank *r, const struct side *s, const struct run *run)
{
	for (int rank = 0; rank < r->nranks; rank++)
		for (size_t i = 0; i < run->script[rank].n; i++) {
			const struct conform_step *step = &run->script[rank].steps[i];
			const struct bench_coll *coll = &bench_colls[step->coll];

			if (step->kind == CONFORM_CALL && s->lacks >> step->coll & 1)
				return coll->name;
			if (step->kind == CONFORM_GROUP_START && (!s->nccl.GroupStart || !s->nccl.GroupEnd))
				return "groups";
			if (step->kind == CONFORM_CALL && coll->reduces && step->redop == SHUNT_PREMUL &&
				(!s->nccl.RedOpCreatePreMulSum || !s->nccl.RedOpDestroy))
				return "PreMulSum";
		}
	return NULL;
}

static void side_run(struct rank *r, int lib, struct run *run)
{
	const struct conform_script *script = &run->script[r->rank];
	const struct conform_image *image = &run->image[r->rank];
	struct side *s = &r->side[lib];
	const char *label = s->nccl.label;
	struct conform_image copy = { run->got.send, run->got.recv };
	struct conform_outcome *out = run->out;
	char text[400];

	note(r, BENCH_CHECK, lib);
	if (!comms_prepare(r, s, run)) {
		say(out, CONFORM_SKIP, "%s lacks ncclCommSplit", label);
		return;
	}
	if (!device_ok(out, label, "copy", r->lib.memcpy(r->send, image->send, script->send_bytes)) ||
		!device_ok(out, label, "copy", r->lib.memcpy(r->recv, image->recv, script->recv_bytes)))
		return;
	if (run->c->graph) {
		graph_run(r, s, script, out);
	} else {
		steps_run(r, s, script, out);
		streams_sync(r, s, out);
	}
	if (!device_ok(out, label, "copy", r->lib.memcpy(copy.send, r->send, script->send_bytes)) ||
		!device_ok(out, label, "copy", r->lib.memcpy(copy.recv, r->recv, script->recv_bytes)) || out->verdict)
		return;
	if (lib && !conform_check(run->script, run->image, run->expected, r->rank, r->nranks, s->strict, &copy, run->like,
		r->side[0].nccl.label, text, sizeof(text)))
		say(out, CONFORM_FAIL, "%s: %s", label, text);
	else if (!lib)
		memcpy(run->like, copy.recv, script->recv_bytes);
	r->lib.memcpy(copy.recv, r->recv, script->recv_bytes); /* the check has changed it */
	if (!conform_check(
			run->script, run->image, run->expected, r->rank, r->nranks, s->strict, &copy, NULL, NULL, text, sizeof(text)))
		say(out, CONFORM_FAIL, "%s: %s", label, text);
}

static int arena_grow(struct rank *r, void **arena, size_t *have, size_t bytes)
{
	if (*have >= bytes)
		return 0;
	if (*arena)
		r->lib.free(*arena);
	*arena = NULL;
	*have = 0;
	int err = r->lib.malloc(arena, 2 * bytes);

	*have = err ? 0 : 2 * bytes;
	return err;
}

static void run_finish(struct rank *r, struct run *run)
{
	for (int i = 0; i < r->nranks; i++) {
		conform_script_finish(&run->script[i]);
		free(run->image[i].send);
		free(run->image[i].recv);
	}
	free(run->got.send);
	free(run->got.recv);
	free(run->expected);
	free(run->like);
}

static int run_prepare(struct rank *r, struct run *run)
{
	const struct conform_script *mine = &run->script[r->rank];
	int err;

	for (int i = 0; i < r->nranks; i++) {
		struct conform_script *s = &run->script[i];
		struct conform_build b = {.script = s,
			.rank = i,
			.nranks = r->nranks,
			.seed = run->c->seed,
			.dtype = run->c->dtype,
			.redop = run->c->redop,
			.place = run->c->place,
			.misalign = run->c->misalign};

		run->c->build(&b, run->c);
		s->send_bytes += CONFORM_GAP;
		s->recv_bytes += CONFORM_GAP;
		run->image[i].send = malloc(s->send_bytes);
		run->image[i].recv = malloc(s->recv_bytes);
		if (s->failed || !run->image[i].send || !run->image[i].recv)
			return -ENOMEM;
		conform_image_fill(run->c, s, i, &run->image[i]);
	}
	run->got.send = malloc(mine->send_bytes);
	run->got.recv = malloc(mine->recv_bytes);
	run->expected = malloc(mine->recv_bytes);
	run->like = malloc(mine->recv_bytes);
	if (!run->got.send || !run->got.recv || !run->expected || !run->like)
		return -ENOMEM;
	err = arena_grow(r, &r->send, &r->send_bytes, mine->send_bytes);
	if (!err)
		err = arena_grow(r, &r->recv, &r->recv_bytes, mine->recv_bytes);
	return err ? err : conform_expect(run->c, run->script, run->image, r->rank, r->nranks, run->expected);
}

static void script_run(struct rank *r, const struct conform_case *c, struct conform_outcome *out)
{
	struct run run = { .c = c, .out = out };
	int err = run_prepare(r, &run);

	if (err)
		say(out, CONFORM_FAIL, "cannot be prepared: %s", strerror(-err));
	for (int i = 0; !err && i < r->o->base.nlibs; i++) {
		const char *what = script_lacks(r, &r->side[i], &run);

		if (what)
			say(out, CONFORM_SKIP, "%s lacks %s", r->side[i].nccl.label, what);
	}
	for (int i = 0; !out->verdict && i < r->o->base.nlibs; i++)
		side_run(r, i, &run);
	run_finish(r, &run);
}

/* ---- wrong calls ---- */

static const char *result_text(const struct side *s, ncclResult_t result)
{
	return s->nccl.GetErrorString(result);
}

/* Does the communicator still work? */
static void usable_check(struct rank *r, struct side *s, struct conform_outcome *out)
{
	int32_t one = r->rank + 1, sum = 0;
	ncclResult_t result;

	if (!device_ok(out, s->nccl.label, "copy", r->lib.memcpy(r->send, &one, sizeof(one))))
		return;
	result = s->nccl.AllReduce(r->send, r->recv, 1, ncclInt32, ncclSum, s->comm[CONFORM_WORLD], r->stream[0]);
	if (result)
		say(out, CONFORM_FAIL, "%s: an all-reduce afterwards returned %d: %s", s->nccl.label, (int)result,
			result_text(s, result));
	streams_sync(r, s, out);
	if (device_ok(out, s->nccl.label, "copy", r->lib.memcpy(&sum, r->recv, sizeof(sum))) &&
		sum != r->nranks * (r->nranks + 1) / 2)
		say(out, CONFORM_FAIL, "%s: an all-reduce afterwards gave %d, not %d", s->nccl.label, sum,
			r->nranks * (r->nranks + 1) / 2);
}

static void wrong_run(struct rank *r, const struct conform_case *c, struct conform_outcome *out)
{
	const struct conform_wrong *w = &conform_wrongs[c->wrong];
	int err = arena_grow(r, &r->send, &r->send_bytes, WRONG_BYTES), first = 0;

	if (!err)
		err = arena_grow(r, &r->recv, &r->recv_bytes, WRONG_BYTES);
	if (!device_ok(out, "device", "memory", err))
		return;
	for (int i = 0; i < r->o->base.nlibs; i++)
		if (w->coll >= 0 && r->side[i].lacks >> w->coll & 1)
			say(out, CONFORM_SKIP, "%s lacks %s", r->side[i].nccl.label, bench_colls[w->coll].name);
	for (int i = 0; !out->verdict && i < r->o->base.nlibs; i++) {
		struct side *s = &r->side[i];
		struct conform_wrong_env e = {&s->nccl, s->comm[CONFORM_WORLD], r->stream[0], r->send, r->recv, r->rank, r->nranks};
		ncclResult_t result;

		note(r, BENCH_CHECK, i);
		result = w->run(&e);
		if (w->want >= 0 && (int)result != w->want)
			say(out, CONFORM_FAIL, "%s: returned %d (%s), not %d (%s)", s->nccl.label, (int)result,
				result_text(s, result), w->want, result_text(s, (ncclResult_t)w->want));
		if (i && (int)result != first)
			say(out, CONFORM_FAIL, "%s: returned %d (%s); %s returned %d", s->nccl.label, (int)result,
				result_text(s, result), r->side[0].nccl.label, first);
		if (!i)
			first = (int)result;
		usable_check(r, s, out);
	}
}

/* ---- set-up ---- */

/* A collective that is no symbol or that answers "invalid usage" to a plain call is one that the library does not have. */
static int side_probe(struct rank *r, struct side *s)
{
	uint64_t lacks = 0, all[BENCH_MAX_RANKS];
	int err;

	for (int id = 0; id < BENCH_NCOLLS; id++) {
		const struct bench_coll *coll = &bench_colls[id];
		struct bench_args a = {.send = r->send,
			.recv = r->recv,
			.count = 1,
			.dtype = ncclInt32,
			.rank = r->rank,
			.nranks = r->nranks,
			.comm = s->comm[CONFORM_WORLD],
			.stream = r->stream[0]};

		if (id == BENCH_COLL_SEND || id == BENCH_COLL_RECV) /* the ring has tried them */
			lacks |= (lacks >> BENCH_COLL_SENDRECV & 1) << id;
		else if (bench_coll_missing(coll, &s->nccl) || coll->call(&s->nccl, &a) == ncclInvalidUsage)
			lacks |= 1ull << id;
	}
	err = r->lib.stream_synchronize(r->stream[0]);
	if (err) {
		tool_error("rank %d: %s: waiting for the device: %s", r->rank, s->nccl.label, strerror(-err));
		return err;
	}
	err = gather(r, &lacks, sizeof(lacks), all);
	for (int i = 0; !err && i < r->nranks; i++)
		s->lacks |= all[i];
	return err;
}

static int side_open(struct rank *r, int lib)
{
	struct side *s = &r->side[lib];
	ncclUniqueId id, ids[BENCH_MAX_RANKS];
	__typeof__(shunt_real_nccl_path) *real_path;
	int err = bench_nccl_open(&s->nccl, r->o->base.libs[lib], &r->lib);

	note(r, BENCH_INIT, lib);
	memset(&id, 0, sizeof(id));
	if (!err && !r->rank)
		err = bench_nccl_check(&s->nccl, r->rank, "ncclGetUniqueId", s->nccl.GetUniqueId(&id));
	if (!err)
		err = gather(r, &id, sizeof(id), ids);
	note(r, BENCH_INIT, lib);
	if (!err)
		err = bench_nccl_check(
			&s->nccl, r->rank, "ncclCommInitRank", s->nccl.CommInitRank(&s->comm[0], r->nranks, ids[0], r->rank));
	if (err)
		return err;
	real_path = (__typeof__(shunt_real_nccl_path) *)dlsym(s->nccl.handle, "shunt_real_nccl_path");
	s->strict = real_path && !real_path();
	return side_probe(r, s);
}

static int rank_open(struct rank *r, int fd)
{
	/* Longer than the parent waits, which knows better what to say. */
	int err = bench_team_join(r->shared, fd, r->rank, r->o->base.timeout_s + 10, &r->team);

	note(r, BENCH_INIT, -1);
	if (!err)
		err = tool_lib_open(&r->lib);
	if (!err)
		err = r->lib.device_set(r->device);
	for (int i = 0; !err && i < 2; i++)
		err = r->lib.stream_create(&r->stream[i]);
	if (!err)
		err = arena_grow(r, &r->send, &r->send_bytes, WRONG_BYTES);
	if (!err)
		err = arena_grow(r, &r->recv, &r->recv_bytes, WRONG_BYTES);
	if (err && err != -ECANCELED)
		tool_error("rank %d: device %d cannot be used: %s", r->rank, r->device, strerror(-err));
	for (int i = 0; !err && i < r->o->base.nlibs; i++)
		err = side_open(r, i);
	return err;
}

static void rank_close(struct rank *r, bool clean)
{
	note(r, BENCH_DESTROY, -1);
	/* After an error a library may wait for ranks that will not come; the process ends anyway. */
	for (int i = 0; clean && i < r->o->base.nlibs; i++)
		for (int k = CONFORM_NCOMMS - 1; k >= 0; k--)
			if (r->side[i].comm[k])
				r->side[i].nccl.CommDestroy(r->side[i].comm[k]);
	if (clean) {
		r->lib.free(r->send);
		r->lib.free(r->recv);
		for (int i = 0; i < 2; i++)
			r->lib.stream_destroy(r->stream[i]);
	}
	conform_report_destroy(r->report);
	note(r, BENCH_DONE, -1);
	bench_team_leave(r->team);
}

static int cases_run(struct rank *r, const struct conform_list *list)
{
	struct conform_outcome *all = calloc((size_t)r->nranks, sizeof(*all));
	int err = all ? 0 : -ENOMEM;

	for (size_t i = 0; !err && i < list->n; i++) {
		const struct conform_case *c = &list->cases[i];
		struct conform_outcome out = { 0 };

		snprintf(r->progress->what, sizeof(r->progress->what), "%s", c->name);
		if (c->wrong >= 0)
			wrong_run(r, c, &out);
		else
			script_run(r, c, &out);
		/* If the others do not come, the parent says this. */
		if (out.verdict == CONFORM_FAIL)
			snprintf(
				r->progress->what, sizeof(r->progress->what), "%s, where it had failed: %.300s", c->name, out.text);
		err = gather(r, &out, sizeof(out), all);
		if (!err && !r->rank)
			conform_report_case(r->report, c, all);
	}
	free(all);
	return err;
}

static int seat_run(const void *arg, const struct bench_seat *seat)
{
	struct rank *r = calloc(1, sizeof(*r));
	struct conform_list list = { 0 };
	int status = TOOL_OK, statuses[BENCH_MAX_RANKS], err = -ENOMEM;

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
	err = rank_open(r, r->o->base.worker_fd);
	if (!err)
		err = conform_cases(r->nranks, r->o->full, r->o->base.seed, r->o->filter, r->o->only, &list);
	if (!err && !r->rank) {
		struct bench_nccl libs[BENCH_MAX_LIBS];

		for (int i = 0; i < r->o->base.nlibs; i++)
			libs[i] = r->side[i].nccl;
		r->report = conform_report_create(r->o, &r->shared->launch, libs);
		err = r->report ? 0 : -ENOMEM;
	}
	if (!err)
		err = cases_run(r, &list);
	if (!err && !r->rank)
		status = conform_report_finish(r->report);
	if (!err)
		err = gather(r, &status, sizeof(status), statuses);
	if (!err) {
		status = statuses[0];
	} else {
		status = TOOL_FAIL;
		if (r->team)
			bench_team_fail(r->team);
		else
			atomic_store(&r->shared->hall.failed, 1);
	}
	rank_close(r, !err);
	free(list.cases);
	free(r);
	return status;
}

int conform_worker(const struct conform_opts *o)
{
	return bench_seats_run(&o->base, seat_run, o);
}
