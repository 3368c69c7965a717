/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "gpu/sim.h"
#include "gpu/sim_hooks.h"

struct sim_op *sim_op_create(const struct sim_op_kind *kind)
{
	struct sim_op *op = (struct sim_op *)sim_new(sizeof(*op));

	if (op)
		op->kind = kind;
	else
		shunt_error("sim: no memory for an operation");
	return op;
}

void sim_op_destroy(struct sim_op *op)
{
	if (op->kind->drop)
		op->kind->drop(op);
	sim_delete(op);
}

struct sim_mark *sim_mark_create(void)
{
	struct sim_mark *mark = (struct sim_mark *)sim_new(sizeof(*mark));

	if (mark)
		mark->refs = 1;
	else
		shunt_error("sim: no memory for an event");
	return mark;
}

void sim_mark_put(struct sim_mark *mark)
{
	if (mark && __atomic_sub_fetch(&mark->refs, 1, __ATOMIC_ACQ_REL) == 0)
		sim_delete(mark);
}

static int run_launch(struct sim_stream *stream, struct sim_op *op) { return sim_team_run(&stream->team, &op->launch); }

static void drop_launch(struct sim_op *op) { sim_delete(op->launch.args); }

static int run_copy(struct sim_stream *, struct sim_op *op)
{
	if (op->copy.bytes)
		memmove(op->copy.dst, op->copy.src, op->copy.bytes);
	return 0;
}

static int run_fill(struct sim_stream *, struct sim_op *op)
{
	if (op->copy.bytes)
		memset(op->copy.dst, op->copy.value, op->copy.bytes);
	return 0;
}

static void pass(struct sim_mark *mark)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	mark->ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	tsan_release(mark);
	__atomic_store_n(&mark->done, 1, __ATOMIC_RELEASE);
	sim_wake(&mark->done);
}

static void await(struct sim_mark *mark)
{
	while (!__atomic_load_n(&mark->done, __ATOMIC_ACQUIRE))
		sim_wait(&mark->done, 0);
	tsan_acquire(mark);
}

static int run_record(struct sim_stream *, struct sim_op *op)
{
	pass(op->mark);
	return 0;
}

static int run_wait(struct sim_stream *, struct sim_op *op)
{
	await(op->mark);
	return 0;
}

static void drop_mark(struct sim_op *op) { sim_mark_put(op->mark); }

static void drop_event(struct sim_op *op) { sim_event_put(op->event); }

/* An error ends the work and not the records: others wait for them. */
static void run_nodes(struct sim_stream *stream, const struct sim_graph *graph, struct sim_mark ***mark_p, int *err_p)
{
	for (struct sim_op *i = graph->first; i; i = i->next) {
		if (i->kind == &sim_op_graph) {
			run_nodes(stream, i->replay.graph, mark_p, err_p);
		} else if (i->kind == &sim_op_external_record) {
			pass(*(*mark_p)++);
		} else if (i->kind == &sim_op_external_wait) {
			if (**mark_p)
				await(**mark_p);
			(*mark_p)++;
		} else if (!*err_p) {
			*err_p = i->kind->run(stream, i);
		}
	}
}

static int run_graph(struct sim_stream *stream, struct sim_op *op)
{
	struct sim_mark **marks = op->replay.marks;
	int err = 0;

	run_nodes(stream, op->replay.graph, &marks, &err);
	return err;
}

static void drop_graph(struct sim_op *op)
{
	for (unsigned i = 0; op->replay.marks && i < op->replay.graph->externals; i++)
		sim_mark_put(op->replay.marks[i]);
	sim_delete(op->replay.marks);
	sim_graph_put(op->replay.graph);
}

const struct sim_op_kind sim_op_launch = { run_launch, drop_launch };
const struct sim_op_kind sim_op_copy = { run_copy, nullptr };
const struct sim_op_kind sim_op_fill = { run_fill, nullptr };
const struct sim_op_kind sim_op_record = { run_record, drop_mark };
const struct sim_op_kind sim_op_wait = { run_wait, drop_mark };
const struct sim_op_kind sim_op_graph = { run_graph, drop_graph };
const struct sim_op_kind sim_op_external_record = { nullptr, drop_event };
const struct sim_op_kind sim_op_external_wait = { nullptr, drop_event };

int shunt_sim_launch_fn(shunt_sim_kernel *fn, int device, unsigned blocks, unsigned threads, const void *args,
    size_t arg_bytes, void *handle)
{
	struct sim_stream *stream;
	struct sim_op *op;
	int err;

	if (!fn || !args || !blocks || blocks > SIM_MAX_BLOCKS || !threads || threads % SIM_LANES ||
	    threads > SIM_MAX_THREADS) {
		shunt_error("sim: cannot launch %u blocks of %u threads", blocks, threads);
		return -EINVAL;
	}
	stream = sim_stream_get(device, handle);
	if (!stream)
		return -EINVAL;
	err = sim_team_reserve(&stream->team, blocks, threads);
	if (err) {
		shunt_error("sim: no resources for %u blocks of %u threads: %s", blocks, threads, strerror(-err));
		return err;
	}
	op = sim_op_create(&sim_op_launch);
	if (!op)
		return -ENOMEM;
	op->launch.device = device;
	op->launch.fn = fn;
	op->launch.blocks = blocks;
	op->launch.threads = threads;
	op->launch.args = sim_new(arg_bytes);
	if (!op->launch.args) {
		sim_op_destroy(op);
		return -ENOMEM;
	}
	memcpy(op->launch.args, args, arg_bytes);
	return sim_stream_submit(stream, op);
}

int sim_launch(int device, const struct shunt_gpu_launch *launch)
{
	shunt_sim_kernel *fn = sim_kernel(launch->kernel);

	if (!fn || !launch->args || launch->arg_bytes != sim_kernel_desc(launch->kernel)->arg_bytes) {
		shunt_error("sim: kernel %u is not in this build, or its arguments have %zu bytes", launch->kernel,
		    launch->arg_bytes);
		return -EINVAL;
	}
	return shunt_sim_launch_fn(
	    fn, device, launch->blocks, launch->threads, launch->args, launch->arg_bytes, launch->stream);
}

static int submit_bytes(
    const struct sim_op_kind *kind, int device, void *dst, const void *src, int value, size_t bytes, void *handle)
{
	struct sim_stream *stream = sim_stream_get(device, handle);
	struct sim_op *op;

	if (!stream)
		return -EINVAL;
	if (bytes && (!dst || !src)) {
		shunt_error("sim: null address in a copy of %zu bytes", bytes);
		return -EINVAL;
	}
	op = sim_op_create(kind);
	if (!op)
		return -ENOMEM;
	op->copy = { dst, src, bytes, value };
	return sim_stream_submit(stream, op);
}

int sim_copy_async(int device, void *dst, const void *src, size_t bytes, void *stream)
{
	return submit_bytes(&sim_op_copy, device, dst, src, 0, bytes, stream);
}

int sim_memset_async(int device, void *dst, int value, size_t bytes, void *stream)
{
	return submit_bytes(&sim_op_fill, device, dst, dst, value, bytes, stream);
}
