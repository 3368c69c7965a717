/* SPDX-License-Identifier: MIT */
/* From one call, or a group's calls, to launches on the program's streams. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "comm/core/net_tell.h"
#include "comm/core/communicator.h"
#include "comm/core/fault.h"
#include "base/log.h"
#include "base/rlimits.h"
#include "comm/core/deferred_free.h"
#include "comm/core/plugin_check.h"
#include "algos/algos.h"
#include "algos/plugins.h"
#include "shunt/plugin.h"

struct launcher {
	struct shunt_comm *comm;
	void *stream;
	struct shunt_kargs *base; /* of the launches to come */
	bool symmem;              /* one of them uses windows */
	bool forked;              /* they run at the same time as NCCL's part of the group */
	void *launched;           /* an event for the next launch to record; NULL: none */
};

/*
 * Blocks of a cluster for this launch; 0: no clusters. Clusters need more room than single blocks. Ranks may use
 * communicators in different orders: then two launches must find room at once, or each may wait for the blocks that the
 * other keeps out. Where the room is not certain, only a communicator that is alone on the device launches clusters.
 */
static unsigned cluster_of(const struct shunt_comm *comm, const struct shunt_work *work, bool forked)
{
	if (!work->cluster || comm->no_clusters)
		return 0;
	return work->blocks <= comm->gpu->cluster_blocks(comm->device) || (!forked && shunt_deferred_free_alone(comm)) ?
	    work->cluster :
	    0;
}

/* The only place that launches kernels of Shunt. */
static inline int emit_kernel(struct launcher *e, const struct shunt_work *work, unsigned kernel, bool counted)
{
	struct shunt_gpu_launch l = {
		.kernel = kernel,
		.blocks = work->blocks + (work->args.k.check.what != 0),
		.threads = work->threads,
		.args = &work->args,
		.stream = e->stream,
		.cluster = cluster_of(e->comm, work, e->forked),
		.shared = work->shared,
		.launched = e->launched,
	};

	int err = shunt_ce_join(e->comm, e->stream);

	e->base->check.what = 0; /* the first launch has compared all collectives */
	if (!err)
		err = e->comm->gpu->launch(e->comm->device, &l);
	if (err)
		return err;
	e->launched = NULL;
	shunt_order_add_warps(&e->comm->order, work->uncounted || !counted ? 0 : l.blocks * l.threads / 32);
	return 0;
}

static int emit(void *ctx, const struct shunt_work *work)
{
	return emit_kernel(ctx, work, work->kernel, true);
}

/*
 * The same for a step of a call, among the ranks of an island or of a rail, whose ctrl is not the one that keeps the
 * account.
 */
static int emit_step(struct launcher *e, const struct shunt_work *work)
{
	const struct shunt_kargs *k = &work->args.k, *island = &e->comm->islands->part[SHUNT_PART_ISLAND].kargs;
	bool near = k->peer[k->rank] == island->peer[island->rank];

	shunt_order_uncounted(&e->comm->order);
	return emit_kernel(e, work, near ? work->kernel : shunt_algo_staged(work->kernel), false);
}

/* The same where the ranks do not have NVLink. */
static int emit_staged(void *ctx, const struct shunt_work *work)
{
	struct launcher *e = ctx;
	const struct shunt_kargs *k = &work->args.k, *all = &e->comm->kargs;

	if (e->comm->islands && k->peer[k->rank] != all->peer[all->rank])
		return emit_step(e, work);
	return emit_kernel(e, work, shunt_algo_staged(work->kernel), true);
}

/* Records an event for which there was no launch, as with calls that only copy. */
__attribute__((cold, noinline)) static int record_launched(struct launcher *e)
{
	void *event = e->launched;

	e->launched = NULL;
	return event ? e->comm->gpu->event_record(e->comm->device, event, e->stream) : 0;
}

/* The next launches are those of these calls. */
static int begin(void *ctx, const struct shunt_coll *const *calls, size_t n)
{
	struct launcher *e = ctx;
	int err = record_launched(e);

	for (size_t i = 0; i < n && !e->launched; i++)
		e->launched = calls[i]->launched;
	if (e->comm->profiled && !err)
		shunt_profiler_launches(e->comm->profiled, calls, n);
	return err;
}

static int copy(void *ctx, const struct shunt_copy *copy)
{
	struct launcher *e = ctx;

	return shunt_ce_copy(e->comm, e->stream, copy);
}

static uint64_t offset(void *ctx, const void *ptr)
{
	struct launcher *e = ctx;

	return shunt_symmem_offset(e->comm, ptr);
}

static void *peer_ptr(void *ctx, const void *ptr, uint64_t bytes, int peer)
{
	struct launcher *e = ctx;

	return shunt_symmem_peer_ptr(e->comm, ptr, bytes, peer);
}

static int plan_work(void *ctx, void *exec, const struct shunt_coll *coll, struct shunt_work *work)
{
	struct launcher *e = ctx;

	return shunt_comm_plans_work(e->comm, coll, exec, e->base, work, &e->symmem);
}

/* ---- plug-ins */

/* The call of this thread that is in a plug-in's enqueue. */
static _Thread_local struct enqueuing {
	const struct shunt_enqueue_ctx *enqueue;
	const struct shunt_plugin_call *call;
	void *stream;
} enqueuing;

static struct launcher *launcher_of(const struct shunt_plugin_call *call, void *stream)
{
	bool known = call && enqueuing.call == call && enqueuing.stream == stream;

	return known ? enqueuing.enqueue->ctx : NULL;
}

static int plugin_copy(const struct shunt_plugin_call *call, void *to, const void *from, uint64_t bytes, void *stream)
{
	struct launcher *e = launcher_of(call, stream);

	if (!e)
		return -EINVAL;
	return bytes ? e->comm->gpu->copy_async(e->comm->device, to, from, bytes, stream) : 0;
}

/* FIRST and LAST: a launch of its own, with an account of its own. */
static int plugin_barrier(const struct shunt_plugin_call *call, void *stream)
{
	return launcher_of(call, stream) ?
	    shunt_barrier_enqueue(enqueuing.enqueue, NULL, 0, SHUNT_K_FIRST_BARRIER | SHUNT_K_LAST_BARRIER) :
	    -EINVAL;
}

static const struct shunt_plugin_host plugin_host = { sizeof(plugin_host), plugin_copy, plugin_barrier };

/* Of the user's: an error names the plug-in, and breaks the communicator, as the peers may have launched. */
static int plugin_enqueue(const struct shunt_enqueue_ctx *enqueue, struct shunt_plugin_run *run, void *stream)
{
	struct launcher *e = enqueue->ctx;
	struct shunt_callback_inside here;
	bool live;
	int err;

	run->call.host = &plugin_host;
	enqueuing = (struct enqueuing){ enqueue, &run->call, stream };
	live = shunt_callback_enter(&run->use->entry->functions, &here);
	err = live ? run->plugin->enqueue(run->plugin->arg, &run->call, stream) : -ECANCELED;
	shunt_callback_leave(&here);
	enqueuing = (struct enqueuing){ 0 };
	if (!err)
		return 0;
	err = err < 0 && err > -4096 ? err : -EIO;
	shunt_comm_fail_saying(e->comm, err, "plug-in %s: its enqueue %s %d (%s): the communicator is broken",
	    run->plugin->name, live ? "gave" : "has been ended by the program:", err, shunt_error_text(err).s);
	return err;
}

/* The fields of the call that a kernel with parameters of its own takes. */
static void fill_params(const struct shunt_plugin_run *run, const void **params)
{
	const struct shunt_plugin_call *call = &run->call;

	for (uint64_t i = 0; i < run->plugin->nparams; i++) {
		uint16_t word = run->plugin->params[i];
		size_t at = word & 0xfff;

		if (word & SHUNT_PLUGIN_PARAM_AFTER(0))
			at += (call->rank + (word >> 12 & 7)) % call->nranks * sizeof(void *);
		params[i] = (const char *)call + at;
	}
}

static int plugin_launch(struct launcher *e, const struct shunt_plugin_run *run)
{
	const struct shunt_plugin_launch *l = &run->launch;
	const void *params[SHUNT_PLUGIN_MAX_PARAMS];
	const struct shunt_gpu_launch launch = {
		.blocks = l->blocks,
		.threads = l->threads,
		.args = run->plugin->nparams ? (const void *)params : &run->call,
		.stream = e->stream,
		.cluster = l->cluster,
		.shared = l->shared_bytes,
		.launched = e->launched,
	};
	int err;

	fill_params(run, params);
	err = e->comm->gpu->launch_function(e->comm->device, &run->state->function, &launch, sizeof(run->call));
	if (err)
		shunt_comm_fail_saying(e->comm, err,
		    "plug-in %s: its kernel of %u blocks of %u threads cannot be launched: %s", run->plugin->name,
		    l->blocks, l->threads, shunt_error_text(err).s);
	else
		e->launched = NULL;
	return err;
}

/* The graph of a captured call keeps the plug-in. */
static int plugin_retain(struct shunt_comm *comm, void *stream, struct shunt_plugin_entry *entry)
{
	struct shunt_gpu_capture info;
	int err = comm->gpu->capture_info(comm->device, stream, &info);

	if (err || info.state != SHUNT_CAPTURE_ACTIVE)
		return err;
	return comm->gpu->capture_retain(comm->device, &info, shunt_plugin_unref_later, shunt_plugin_ref(entry));
}

__attribute__((cold, noinline)) static void say_unwatched(const struct shunt_comm *comm)
{
	static atomic_bool said;

	if (comm->rank == 0 && !atomic_exchange(&said, true))
		shunt_warn("SHUNT_CHECK does not look at calls of plug-ins that are captured into graphs, as it copies "
		           "their memory "
		           "to the host: make such calls without a graph to have them checked");
}

/* In place of emit, for a call that a plug-in takes. */
static int plugin(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll)
{
	struct launcher *e = enqueue->ctx;
	bool captured = e->comm->order.current != NULL;
	struct shunt_plugin_watch *watch = NULL;
	struct shunt_coll staged = *coll;
	struct shunt_plugin_run run;
	int err = shunt_ce_join(e->comm, e->stream);

	if (!err && e->base->check.what) /* the kernels of plug-ins do not compare calls */
		err = shunt_barrier_enqueue(enqueue, NULL, 0, SHUNT_K_FIRST_BARRIER | SHUNT_K_LAST_BARRIER);
	if (!err && e->comm->checks && !captured)
		err = shunt_plugin_watch_begin(enqueue, e->comm, e->stream,
		    shunt_plugin_set_find(e->comm->plugins.set, decision->algo->name), coll, &staged, &watch);
	else if (e->comm->checks)
		say_unwatched(e->comm);
	if (!err)
		err = shunt_comm_plugin_run_init(
		    e->comm, &staged, decision->algo, &enqueue->limits, e->base, captured, &run);
	if (!err && captured)
		err = plugin_retain(e->comm, e->stream, run.use->entry);
	if (!err)
		err = run.plugin->enqueue ? plugin_enqueue(enqueue, &run, e->stream) : plugin_launch(e, &run);
	if (err)
		return err;
	if (!run.plugin->enqueue && run.plugin->flags & SHUNT_PLUGIN_COUNTED)
		shunt_order_add_warps(&e->comm->order, run.launch.blocks * run.launch.threads / 32);
	else
		shunt_order_uncounted(&e->comm->order);
	return shunt_plugin_watch_launched(e->comm, e->stream, watch);
}

/* Makes `later` wait for all that is on `earlier` now. */
static int stream_wait(struct shunt_comm *comm, void *later, void *earlier)
{
	void *event;
	int err = comm->gpu->event_create(comm->device, false, &event);

	if (err)
		return err;
	err = comm->gpu->event_record(comm->device, event, earlier);
	if (!err)
		err = comm->gpu->event_wait(comm->device, event, later);
	comm->gpu->event_destroy(comm->device, event);
	return err;
}

/*
 * Makes the streams of a group wait for each other: `stream`, which has the launches, for the others before the first
 * launch; the others for it after the last.
 */
static int join_streams(
    struct shunt_comm *comm, void *stream, const struct shunt_coll *const *calls, size_t n, bool before)
{
	int err = 0;

	for (size_t i = 0; i < n && !err; i++) {
		void *other = calls[i]->stream;
		bool seen = other == stream;

		for (size_t k = 0; k < i && !seen; k++)
			seen = calls[k]->stream == other;
		if (!seen)
			err = before ? stream_wait(comm, stream, other) : stream_wait(comm, other, stream);
	}
	return err;
}

/*
 * All streams of a group must capture into one graph, or none may capture. NCCL has the same rule, because other
 * streams cannot be put in order.
 */
static int check_streams(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n)
{
	struct shunt_gpu_capture first, other;
	int err = comm->gpu->capture_info(comm->device, calls[0]->stream, &first);

	for (size_t i = 1; i < n && !err; i++) {
		if (calls[i]->stream == calls[i - 1]->stream)
			continue;
		err = comm->gpu->capture_info(comm->device, calls[i]->stream, &other);
		if (err ||
		    (other.state == first.state && (other.state != SHUNT_CAPTURE_ACTIVE || other.id == first.id)))
			continue;
		shunt_warn("a group on one communicator: streams %p and %p do not capture into the same graph, or only "
		           "one of them captures",
		    calls[0]->stream, calls[i]->stream);
		err = -EBADMSG;
	}
	return err;
}

/* NCCL has the same rule. */
__attribute__((cold, noinline)) static int check_events(const struct shunt_coll *const *calls, size_t n)
{
	size_t events = 0;

	for (size_t i = 0; i < n; i++)
		events += calls[i]->launched != NULL;
	if (events < 2)
		return 0;
	shunt_warn("a group on one communicator has %zu calls with a launchCompletionEvent; it may have one", events);
	return -EBADMSG;
}

static int wait_for_streams(struct shunt_comm *comm, void *stream, const struct shunt_coll *const *calls, size_t n)
{
	int err = check_streams(comm, calls, n);

	return err ? err : join_streams(comm, stream, calls, n, true);
}

static bool is_capturing(struct shunt_comm *comm, void *stream)
{
	enum shunt_capture state;

	return !comm->gpu->stream_capture(comm->device, stream, &state) && state != SHUNT_CAPTURE_NONE;
}

/*
 * several: the calls' streams differ from the launches' stream, or from each other. -EBADMSG: a capture is in the way;
 * nothing was launched, and the capture is of no use.
 */
static inline int order_streams(
    struct shunt_comm *comm, void *stream, const struct shunt_coll *const *calls, size_t n, bool several)
{
	int err = several ? wait_for_streams(comm, stream, calls, n) : 0;

	if (!err)
		err = shunt_order_begin(&comm->order, comm->gpu, comm->device, stream);
	return err && is_capturing(comm, n ? calls[0]->stream : stream) ? -EBADMSG : err;
}

/*
 * True: the side stream exists and can be forked from `stream`. A stream that was forked inside a capture belongs to
 * that capture until it ends.
 */
static bool have_side_stream(struct shunt_comm *comm, void *stream)
{
	const struct shunt_gpu_ops *gpu = comm->gpu;
	struct shunt_gpu_capture here, side_stream;

	if (!comm->side_stream && gpu->stream_create(comm->device, &comm->side_stream))
		return false;
	if (gpu->capture_info(comm->device, stream, &here) ||
	    gpu->capture_info(comm->device, comm->side_stream, &side_stream))
		return false;
	return side_stream.state == SHUNT_CAPTURE_NONE ||
	    (side_stream.state == SHUNT_CAPTURE_ACTIVE && side_stream.id == here.id);
}

int shunt_comm_fork_group(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n, bool *forked_p)
{
	void **streams = calloc(n, sizeof(*streams));
	int err = 0;

	*forked_p = false;
	shunt_mutex_lock(&comm->lock);
	if (streams && shunt_comm_life_state(&comm->life) == COMM_READY && !shunt_comm_error(comm) &&
	    have_side_stream(comm, calls[0]->stream)) {
		err = order_streams(comm, comm->side_stream, calls, n, true);
		*forked_p = !err;
	}
	if (*forked_p) {
		for (size_t i = 0; i < n; i++)
			streams[i] = calls[i]->stream;
		free(comm->forked.streams);
		comm->forked.streams = streams;
		comm->forked.n = n;
		streams = NULL;
	}
	shunt_mutex_unlock(&comm->lock);
	free(streams);
	return err;
}

void shunt_comm_join_later(struct shunt_comm *comm)
{
	atomic_store(&comm->forked.due, true);
}

int shunt_comm_join_due(struct shunt_comm *comm)
{
	void **streams;
	int err = 0;

	if (!atomic_load(&comm->forked.due))
		return 0;
	shunt_mutex_lock(&comm->lock);
	streams = comm->forked.streams;
	for (size_t i = 0; i < comm->forked.n && !err; i++) /* none: another thread has joined them */
		if (i == 0 || streams[i] != streams[i - 1])
			err = stream_wait(comm, streams[i], comm->side_stream);
	if (err)
		shunt_comm_fail(comm, err);
	comm->forked.n = 0;
	atomic_store(&comm->forked.due, false);
	shunt_mutex_unlock(&comm->lock);
	return err;
}

/* A plug-in is part of what the ranks must call alike. */
static void check_group(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n, struct shunt_kargs *base)
{
	uint64_t plugins = 0;

	for (size_t i = 0; i < n; i++)
		if (decisions[i].algo->plugin)
			plugins = (plugins + i + 1) * 0x9e3779b97f4a7c15u ^
			    shunt_plugin_set_find(comm->plugins.set, decisions[i].algo->name)->entry->hash;
	shunt_check_group(&comm->check, calls, n, comm->order.current != NULL, plugins, base);
}

/* profiled: a profiler plug-in may be told. A constant, so that the usual case does not even ask. */
__attribute__((always_inline)) static inline int launch_as(bool profiled, struct shunt_comm *comm,
    const struct shunt_coll *const *calls, const struct shunt_decision *decisions, size_t n, bool forked)
{
	struct shunt_kargs base = comm->kargs;
	struct launcher e = { comm, forked ? comm->side_stream : calls[0]->stream, &base, false, forked, NULL };
	bool checks = comm->checks && comm->nranks > 1;
	struct shunt_enqueue_ctx enqueue = { .sel_key = &comm->sel_key,
		.base = &base,
		.emit = comm->sel_key.staged ? emit_staged : emit,
		.copy = copy,
		.offset = offset,
		.peer_ptr = peer_ptr,
		.plan_work = plan_work,
		.plugin = plugin,
		.check = checks,
		.ctx = &e };
	bool captured, several = false, begun, events = profiled;
	int err = 0;

	for (size_t i = 0; i < n; i++) {
		e.symmem |= shunt_comm_needs_window(&decisions[i]);
		several |= calls[i]->stream != e.stream;
		events |= calls[i]->launched != NULL;
	}
	if (events)
		enqueue.begin = begin;
	err = events ? check_events(calls, n) : 0;
	if (!err && !forked)
		err = order_streams(comm, e.stream, calls, n, several);
	shunt_comm_net_wake(comm);
	begun = !err;
	for (size_t i = 0; i < n && !err; i++)
		base.op = shunt_recorder_add(
		    comm->recorder, calls[i], decisions[i].path, (unsigned)(n - 1 - i), comm->order.current != NULL);
	if (!err && checks)
		check_group(comm, calls, decisions, n, &base);
	if (!err && profiled)
		comm->profiled =
		    shunt_profiler_begin(comm->profiler, calls, decisions, n, comm->order.current != NULL, e.stream);
	if (!err)
		err = shunt_enqueue_calls(&enqueue, calls, decisions, n);
	if (!err && e.launched)
		err = record_launched(&e);
	if (profiled && comm->profiled)
		shunt_profiler_end(comm->profiled);
	if (profiled)
		comm->profiled = NULL;
	captured = comm->order.current != NULL;
	if (!err)
		err = shunt_order_end(&comm->order, comm->gpu, comm->device, e.stream);
	if (!err && e.symmem)
		err = shunt_symmem_note_use(comm, e.stream, captured);
	if (!err && several && !forked)
		err = join_streams(comm, e.stream, calls, n, false);
	if (err && begun && err != -EBADMSG)
		shunt_order_end_partial(&comm->order, comm->gpu, comm->device, e.stream);
	return err;
}

static int launch(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n, bool forked)
{
	return launch_as(false, comm, calls, decisions, n, forked);
}

__attribute__((cold, noinline)) static int launch_profiled(struct shunt_comm *comm,
    const struct shunt_coll *const *calls, const struct shunt_decision *decisions, size_t n, bool forked)
{
	return launch_as(true, comm, calls, decisions, n, forked);
}

static bool may_be_uneven(const struct shunt_coll *const *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (SHUNT_UNEVEN_KINDS >> calls[i]->kind & 1)
			return true;
	return false;
}

int shunt_comm_run_group(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    struct shunt_decision *decisions, size_t n, bool forked)
{
	struct shunt_window *deferred;
	int err = 0;

	shunt_mutex_lock(&comm->lock);
	deferred = shunt_symmem_take_deferred(comm);
	for (size_t i = 0; i < n && !err; i++) {
		if (shunt_comm_can_launch(comm, &decisions[i]))
			continue;
		err = shunt_comm_decide_locked(comm, calls[i], &decisions[i]);
		if (err == -EOPNOTSUPP)
			shunt_comm_count_forward(comm, calls[i], decisions[i].reason);
	}
	if (!err && comm->plugins.watches)
		err = shunt_plugin_watches_look(comm);
	if (!err)
		err = shunt_comm_error(comm);
	if (!err && n > 1 && may_be_uneven(calls, n))
		shunt_uneven_decide(&comm->sel_key, calls, decisions, n);
	if (!err) {
		err = comm->profiler ? launch_profiled(comm, calls, decisions, n, forked) :
		                       launch(comm, calls, decisions, n, forked);
		/*
		 * The peers may have launched, so the call cannot go to NCCL any more. A call that this rank refuses
		 * breaks nothing.
		 */
		if (err && err != -EBADMSG)
			shunt_comm_fail(comm, err = err == -EOPNOTSUPP ? -EIO : err);
		for (size_t i = 0; i < n && !err; i++)
			shunt_counters_add(&comm->counters, calls[i]->kind, decisions[i].path, SHUNT_REASON_NONE,
			    shunt_coll_bytes(calls[i]));
	}
	shunt_mutex_unlock(&comm->lock);
	if (deferred)
		shunt_symmem_free(comm, deferred);
	return err;
}

int shunt_comm_run(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	return shunt_comm_run_group(comm, &coll, decision, 1, false);
}

/* exec: prepared for the call. */
static int launch_named(struct shunt_comm *comm, struct shunt_comm_exec *exec, const struct shunt_plan_call *call)
{
	struct launcher e = { .comm = comm, .stream = call->stream };
	struct shunt_kargs base = { 0 };
	struct shunt_plan_call c = *call;
	struct shunt_work work;
	int err = shunt_order_begin(&comm->order, comm->gpu, comm->device, c.stream);

	if (err)
		return err;
	e.base = &base;
	c.op = shunt_recorder_pass(comm->recorder, comm->order.current != NULL);
	shunt_comm_net_wake(comm);
	err = shunt_plan_exec_work(exec->exec, &c, &work);
	if (!err)
		err = emit(&e, &work);
	if (!err)
		err = shunt_order_end(&comm->order, comm->gpu, comm->device, c.stream);
	if (err)
		shunt_order_end_partial(&comm->order, comm->gpu, comm->device, c.stream);
	return err;
}

int shunt_comm_run_plan(struct shunt_comm *comm, const char *name, struct shunt_plan_call *call)
{
	const struct shunt_plan *plan = NULL;
	struct shunt_comm_exec *exec = NULL;
	uint64_t bytes = 0;
	int err;

	if (comm->nranks == 1)
		return -EOPNOTSUPP;
	shunt_mutex_lock(&comm->lock);
	err = shunt_comm_error(comm);
	if (!err && shunt_comm_life_state(&comm->life) < COMM_READY) {
		err = shunt_comm_setup_locked(comm);
		shunt_comm_changed(comm);
	}
	if (!err && shunt_comm_life_state(&comm->life) != COMM_READY)
		err = -EOPNOTSUPP;
	if (!err)
		plan = shunt_comm_plans_find(comm, name, call, &bytes, &err);
	if (plan) {
		err = -EINVAL;
		if (shunt_plan_call_fits(plan, call))
			err = shunt_comm_plans_prepare_named(comm, plan, bytes, &exec);
		if (err && err != -EOPNOTSUPP && err != -EINVAL)
			shunt_comm_fail_round(comm, err, "agreeing on what a plan's call needs");
		/*
		 * A peer may have launched by then, so an error breaks the communicator; one that all ranks return
		 * alike does not.
		 */
		if (!err && (err = launch_named(comm, exec, call)))
			err = err == -EOPNOTSUPP || err == -EINVAL ? -EIO : err;
		if (err && err != -EOPNOTSUPP && err != -EINVAL)
			shunt_comm_fail(comm, err);
		shunt_comm_changed(comm);
	}
	shunt_mutex_unlock(&comm->lock);
	return err;
}

int shunt_comm_run_work(struct shunt_comm *comm, const struct shunt_comm_call *call, struct shunt_work *work)
{
	struct shunt_kargs base = comm->kargs;
	struct launcher e = { .comm = comm, .stream = call->stream, .base = &base };
	int err = shunt_order_begin(&comm->order, comm->gpu, comm->device, call->stream);

	if (err)
		return is_capturing(comm, call->stream) ? -EBADMSG : err;
	memcpy(work->args.k.peer, base.peer, sizeof(base.peer));
	work->args.k.rank = base.rank;
	work->args.k.nranks = base.nranks;
	work->args.k.op = shunt_recorder_add_named(
	    comm->recorder, call->name, call->count, call->stream, comm->order.current != NULL);
	err = emit(&e, work);
	if (!err)
		err = shunt_order_end(&comm->order, comm->gpu, comm->device, call->stream);
	if (err) {
		shunt_order_end_partial(&comm->order, comm->gpu, comm->device, call->stream);
		shunt_comm_fail(comm, err);
	}
	return err;
}
