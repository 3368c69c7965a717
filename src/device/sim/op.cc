/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "base/rlimits.h"
#include "device/sim/sim.h"
#include "device/sim/hooks.h"
#include "shunt/plugin.h"

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

struct sim_completion *sim_completion_create(void)
{
	struct sim_completion *completion = (struct sim_completion *)sim_new(sizeof(*completion));

	if (completion)
		completion->refs = 1;
	else
		shunt_error("sim: no memory for an event");
	return completion;
}

void sim_completion_put(struct sim_completion *completion)
{
	if (completion && __atomic_sub_fetch(&completion->refs, 1, __ATOMIC_ACQ_REL) == 0)
		sim_delete(completion);
}

static int run_launch(struct sim_stream *stream, struct sim_op *op) { return sim_pool_run(&stream->pool, &op->launch); }

static void drop_launch(struct sim_op *op)
{
	sim_completion_put(op->launch.launched);
	sim_delete(op->launch.args);
}

static int run_copy(struct sim_stream *, struct sim_op *op)
{
	if (op->copy.bytes)
		memmove(op->copy.dst, op->copy.src, op->copy.bytes);
	return 0;
}

static int run_memset(struct sim_stream *, struct sim_op *op)
{
	if (op->copy.bytes)
		memset(op->copy.dst, op->copy.value, op->copy.bytes);
	return 0;
}

static int run_mark(struct sim_stream *, struct sim_op *op)
{
	__atomic_store_n(op->mark.word, op->mark.value, __ATOMIC_RELEASE);
	return 0;
}

static void completion_signal(struct sim_completion *completion)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	completion->ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	tsan_release(completion);
	__atomic_store_n(&completion->done, 1, __ATOMIC_RELEASE);
	sim_wake(&completion->done);
}

static void completion_wait(struct sim_completion *completion)
{
	while (!__atomic_load_n(&completion->done, __ATOMIC_ACQUIRE))
		sim_wait(&completion->done, 0);
	tsan_acquire(completion);
}

static int run_record(struct sim_stream *, struct sim_op *op)
{
	completion_signal(op->completion);
	return 0;
}

static int run_wait(struct sim_stream *, struct sim_op *op)
{
	completion_wait(op->completion);
	return 0;
}

static void drop_completion(struct sim_op *op) { sim_completion_put(op->completion); }

static void drop_event(struct sim_op *op) { sim_event_put(op->event); }

/* An error ends the work but not the records, which others wait for. */
static void run_nodes(
    struct sim_stream *stream, const struct sim_graph *graph, struct sim_completion ***completion_p, int *err_p)
{
	for (struct sim_op *i = graph->first; i; i = i->next) {
		if (i->kind == &sim_op_graph_launch) {
			run_nodes(stream, i->graph_launch.graph, completion_p, err_p);
		} else if (i->kind == &sim_op_external_record) {
			completion_signal(*(*completion_p)++);
		} else if (i->kind == &sim_op_external_wait) {
			if (**completion_p)
				completion_wait(**completion_p);
			(*completion_p)++;
		} else if (!*err_p) {
			*err_p = i->kind->run(stream, i);
		}
	}
}

static int run_graph(struct sim_stream *stream, struct sim_op *op)
{
	struct sim_completion **completions = op->graph_launch.completions;
	int err = 0;

	run_nodes(stream, op->graph_launch.graph, &completions, &err);
	return err;
}

static void drop_graph(struct sim_op *op)
{
	for (unsigned i = 0; op->graph_launch.completions && i < op->graph_launch.graph->external_nodes; i++)
		sim_completion_put(op->graph_launch.completions[i]);
	sim_delete(op->graph_launch.completions);
	sim_graph_put(op->graph_launch.graph);
}

const struct sim_op_kind sim_op_launch = { run_launch, drop_launch };
const struct sim_op_kind sim_op_copy = { run_copy, nullptr };
const struct sim_op_kind sim_op_memset = { run_memset, nullptr };
const struct sim_op_kind sim_op_mark = { run_mark, nullptr };
const struct sim_op_kind sim_op_record = { run_record, drop_completion };
const struct sim_op_kind sim_op_wait = { run_wait, drop_completion };
const struct sim_op_kind sim_op_graph_launch = { run_graph, drop_graph };
const struct sim_op_kind sim_op_external_record = { nullptr, drop_event };
const struct sim_op_kind sim_op_external_wait = { nullptr, drop_event };

/* event: to be recorded when all blocks have begun; NULL: none. */
static int launch_fn(int device, const struct shunt_sim_launch *launch, void *handle, void *event)
{
	unsigned blocks = launch->blocks, threads = launch->threads;
	struct sim_stream *stream;
	struct sim_op *op;
	int err;

	if (!launch->fn || !launch->args || !blocks || blocks > SIM_MAX_BLOCKS || !threads || threads % SIM_LANES ||
	    threads > SIM_MAX_THREADS) {
		shunt_error("sim: cannot launch %u blocks of %u threads", blocks, threads);
		return -EINVAL;
	}
	stream = sim_stream_get(device, handle);
	if (!stream)
		return -EINVAL;
	sim_link_look();
	err = sim_pool_reserve(&stream->pool, blocks, threads);
	if (err) {
		shunt_error("sim: no resources for %u blocks of %u threads: %s", blocks, threads,
		    shunt_thread_error_text(err).s);
		return err;
	}
	op = sim_op_create(&sim_op_launch);
	if (!op)
		return -ENOMEM;
	op->launch.device = device;
	op->launch.fn = launch->fn;
	op->launch.blocks = blocks;
	op->launch.threads = threads;
	op->launch.args = sim_new(launch->arg_bytes);
	if (!op->launch.args) {
		sim_op_destroy(op);
		return -ENOMEM;
	}
	memcpy(op->launch.args, launch->args, launch->arg_bytes);
	if (!event)
		return sim_stream_submit(stream, op);
	sim_lock(&sim_enqueue_lock);
	err = sim_event_launched(event, stream, &op->launch.launched);
	if (err) {
		sim_op_destroy(op);
	} else {
		op->launch.begun = op->launch.launched ? completion_signal : nullptr;
		err = sim_stream_submit(stream, op);
	}
	sim_unlock(&sim_enqueue_lock);
	return err;
}

int shunt_sim_launch_fn(int device, const struct shunt_sim_launch *launch, void *handle)
{
	return launch_fn(device, launch, handle, nullptr);
}

int sim_launch(int device, const struct shunt_gpu_launch *launch)
{
	shunt_sim_kernel *fn = sim_kernel(launch->kernel);

	if (!fn || !launch->args) {
		shunt_error("sim: kernel %u is not in this build, or has no arguments", launch->kernel);
		return -EINVAL;
	}
	struct shunt_sim_launch function = { fn, launch->blocks, launch->threads, launch->args,
		sim_kernel_desc(launch->kernel)->arg_bytes };

	return launch_fn(device, &function, launch->stream, launch->launched);
}

/* The sim, as kernels of the program see it. */
static const uint32_t *user_self(void) { return &shunt_sim_self->tid; }
static uint32_t user_ballot(int vote) { return shunt_sim_ballot(vote); }
static const struct shunt_sim_ops user_ops = { sizeof(user_ops), user_self, user_ballot, shunt_sim_block_barrier,
	shunt_sim_relax, shunt_sim_advanced, shunt_sim_fence, shunt_sim_shared };

/* In front of its arguments. */
struct user_launch {
	shunt_sim_user_kernel *fn;
	uint64_t pad;
};

static void run_user(const void *args)
{
	const struct user_launch *user = (const struct user_launch *)args;

	user->fn(&user_ops, user + 1);
}

int sim_launch_function(
    int device, const struct shunt_gpu_function *function, const struct shunt_gpu_launch *launch, size_t arg_bytes)
{
	const size_t bytes = sizeof(struct user_launch) + arg_bytes;
	struct user_launch *user = (struct user_launch *)sim_new(bytes);
	struct shunt_sim_launch l = { run_user, launch->blocks, launch->threads, user, bytes };
	int err;

	if (!user)
		return -ENOMEM;
	user->fn = function->sim;
	memcpy(user + 1, launch->args, arg_bytes);
	err = launch_fn(device, &l, launch->stream, launch->launched);
	sim_delete(user);
	return err;
}

static int submit_copy(const struct sim_op_kind *kind, int device, const struct sim_copy *copy, void *handle)
{
	struct sim_stream *stream = sim_stream_get(device, handle);
	struct sim_op *op;

	if (!stream)
		return -EINVAL;
	if (copy->bytes && (!copy->dst || !copy->src)) {
		shunt_error("sim: null address in a copy of %zu bytes", copy->bytes);
		return -EINVAL;
	}
	op = sim_op_create(kind);
	if (!op)
		return -ENOMEM;
	op->copy = *copy;
	return sim_stream_submit(stream, op);
}

int sim_copy_async(int device, void *dst, const void *src, size_t bytes, void *stream)
{
	struct sim_copy copy = { dst, src, bytes, 0 };

	return submit_copy(&sim_op_copy, device, &copy, stream);
}

int sim_memset_async(int device, void *dst, int value, size_t bytes, void *stream)
{
	struct sim_copy copy = { dst, dst, bytes, value };

	return submit_copy(&sim_op_memset, device, &copy, stream);
}

int sim_mark(int device, void *handle, uint64_t *word, uint64_t value)
{
	struct sim_stream *stream = sim_stream_get(device, handle);
	struct sim_op *op = stream ? sim_op_create(&sim_op_mark) : nullptr;

	if (!op)
		return stream ? -ENOMEM : -EINVAL;
	op->mark = { word, value };
	return sim_stream_submit(stream, op);
}
