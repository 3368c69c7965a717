/* SPDX-License-Identifier: MIT */
/*
 * A stream is a queue and a thread that runs its operations. The thread starts with the first operation.
 * ThreadSanitizer learns only of the order that CUDA promises: enqueue before execution, an operation before the next
 * one, the last operation before the accesses of a host that has synchronised.
 */
#include <errno.h>
#include "base/rlimits.h"
#include "device/sim/sim.h"

static struct sim_lock default_lock;
static struct sim_stream *default_stream[SIM_MAX_DEVICES];

/*
 * All streams, for sim_device_drain. A thread that waits for a stream counts in its drainers, and a stream leaves the
 * list only when drainers is 0.
 */
static struct sim_lock all_streams_lock;
static struct sim_stream *all;

void sim_stream_forget(void)
{
	default_lock = all_streams_lock = {};
	all = nullptr;
	for (struct sim_stream *&s : default_stream)
		s = nullptr;
}

static struct sim_stream *stream_new(int device)
{
	struct sim_stream *s = (struct sim_stream *)sim_new(sizeof(*s));

	if (!s) {
		shunt_error("sim: no memory for a stream");
		return nullptr;
	}
	s->device = device;
	s->last = &s->first;
	sim_lock(&all_streams_lock);
	s->next = all;
	all = s;
	sim_unlock(&all_streams_lock);
	return s;
}

static void stream_unlist(struct sim_stream *s)
{
	uint32_t drainers;

	sim_lock(&all_streams_lock);
	while ((drainers = __atomic_load_n(&s->drainers, __ATOMIC_RELAXED))) {
		sim_unlock(&all_streams_lock);
		sim_wait(&s->drainers, drainers);
		sim_lock(&all_streams_lock);
	}
	struct sim_stream **at = &all;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	sim_unlock(&all_streams_lock);
}

struct sim_stream *sim_stream_get(int device, void *handle)
{
	struct sim_stream *s = (struct sim_stream *)handle;

	if (!sim_device_ok(device))
		return nullptr;
	if ((uintptr_t)handle <= 2) {
		sim_lock(&default_lock);
		s = default_stream[device];
		if (!s && (s = stream_new(device))) {
			s->is_default = true;
			default_stream[device] = s;
		}
		sim_unlock(&default_lock);
		return s;
	}
	if (!sim_handle_ok(handle, SIM_STREAM))
		return nullptr;
	if (s->device != device) {
		shunt_error("sim: stream %p belongs to device %d, not %d", handle, s->device, device);
		return nullptr;
	}
	return s;
}

int sim_stream_create(int device, void **stream_p)
{
	struct sim_stream *s;
	int err;

	if (!sim_device_ok(device))
		return -EINVAL;
	s = stream_new(device);
	if (!s)
		return -ENOMEM;
	err = sim_handle_add(s, SIM_STREAM);
	if (err) {
		stream_unlist(s);
		sim_delete(s);
		return err;
	}
	*stream_p = s;
	return 0;
}

static struct sim_op *dequeue_op(struct sim_stream *s)
{
	struct sim_op *op;

	sim_lock(&s->lock);
	op = s->first;
	if (op) {
		s->first = op->next;
		if (!s->first)
			s->last = &s->first;
	}
	sim_unlock(&s->lock);
	return op;
}

static void *stream_main(void *arg)
{
	struct sim_stream *s = (struct sim_stream *)arg;

	for (;;) {
		uint32_t submitted = __atomic_load_n(&s->submitted, __ATOMIC_ACQUIRE);
		struct sim_op *op = dequeue_op(s);
		int ok = 0, err;

		if (!op) {
			if (__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE))
				return nullptr;
			sim_wait(&s->submitted, submitted);
			continue;
		}
		tsan_acquire(op);
		err = op->kind->run(s, op);
		if (err)
			__atomic_compare_exchange_n(&s->err, &ok, err, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
		sim_op_destroy(op);
		tsan_release(&s->order);
		__atomic_add_fetch(&s->completed, 1, __ATOMIC_RELEASE);
		sim_wake(&s->completed);
	}
}

int sim_stream_submit(struct sim_stream *s, struct sim_op *op)
{
	int err = 0;

	tsan_release(op);
	sim_lock(&s->lock);
	if (s->capture) {
		sim_lock(&s->capture->lock);
		sim_graph_append(s->capture, op);
		sim_unlock(&s->capture->lock);
		op = nullptr;
	} else if (!s->started) {
		err = sim_thread_create(&s->thread, stream_main, s);
		s->started = !err;
	}
	if (op && !err) {
		*s->last = op;
		s->last = &op->next;
		op = nullptr;
		__atomic_add_fetch(&s->submitted, 1, __ATOMIC_RELEASE);
	}
	sim_unlock(&s->lock);
	if (err) {
		shunt_error("sim: cannot start a thread: %s", shunt_thread_error_text(err).s);
		sim_op_destroy(op);
		return err;
	}
	sim_wake(&s->submitted);
	return 0;
}

/* Waits for all operations submitted so far. */
static void drain_stream(struct sim_stream *s)
{
	uint32_t until = __atomic_load_n(&s->submitted, __ATOMIC_ACQUIRE), completed;

	while ((int32_t)((completed = __atomic_load_n(&s->completed, __ATOMIC_ACQUIRE)) - until) < 0)
		sim_wait(&s->completed, completed);
	tsan_acquire(&s->order);
}

struct sim_graph *sim_stream_graph(struct sim_stream *s)
{
	struct sim_graph *graph;

	sim_lock(&s->lock);
	graph = s->capture;
	if (graph)
		__atomic_add_fetch(&graph->refs, 1, __ATOMIC_RELAXED);
	sim_unlock(&s->lock);
	return graph;
}

int sim_stream_join(struct sim_stream *s, uint64_t capture)
{
	struct sim_graph *graph = nullptr;
	int err = -EINVAL;

	if (s->is_default)
		return err;
	sim_lock(&all_streams_lock);
	for (struct sim_stream *t = all; t && !graph; t = t->next) {
		sim_lock(&t->lock);
		if (t->capture && t->capture->capture == capture) {
			graph = t->capture;
			__atomic_add_fetch(&graph->refs, 1, __ATOMIC_RELAXED);
		}
		sim_unlock(&t->lock);
	}
	if (graph) {
		sim_lock(&s->lock);
		if (!s->capture) {
			s->capture = graph;
			err = 0;
		}
		sim_unlock(&s->lock);
	}
	sim_unlock(&all_streams_lock);
	if (graph && err)
		sim_graph_put(graph);
	return err;
}

void sim_stream_release(struct sim_graph *graph)
{
	sim_lock(&all_streams_lock);
	for (struct sim_stream *t = all; t; t = t->next) {
		bool mine;

		sim_lock(&t->lock);
		mine = t->capture == graph;
		if (mine)
			t->capture = nullptr;
		sim_unlock(&t->lock);
		if (mine)
			sim_graph_put(graph); /* not the last reference: the caller has one */
	}
	sim_unlock(&all_streams_lock);
}

static bool is_capturing(struct sim_stream *s)
{
	bool yes;

	sim_lock(&s->lock);
	yes = s->capture;
	sim_unlock(&s->lock);
	return yes;
}

int sim_stream_sync(int device, void *handle)
{
	struct sim_stream *s = sim_stream_get(device, handle);

	if (!s)
		return -EINVAL;
	if (is_capturing(s)) {
		shunt_error("sim: stream %p is being captured and cannot be waited for", handle);
		return -EINVAL;
	}
	drain_stream(s);
	return __atomic_load_n(&s->err, __ATOMIC_RELAXED);
}

int sim_stream_idle(int device, void *handle, bool *idle_p)
{
	struct sim_stream *s = sim_stream_get(device, handle);

	if (!s || is_capturing(s))
		return -EINVAL;
	*idle_p = __atomic_load_n(&s->completed, __ATOMIC_ACQUIRE) == __atomic_load_n(&s->submitted, __ATOMIC_ACQUIRE);
	if (*idle_p)
		tsan_acquire(&s->order);
	return __atomic_load_n(&s->err, __ATOMIC_RELAXED);
}

/* Spoils the device's captures, as on CUDA, in any mode of the capture. True: there was one. */
static bool invalidate_captures(int device)
{
	bool any = false;

	sim_lock(&all_streams_lock);
	for (struct sim_stream *s = all; s; s = s->next) {
		sim_lock(&s->lock);
		if (s->device == device && s->capture) {
			__atomic_store_n(&s->capture->invalidated, true, __ATOMIC_RELAXED);
			any = true;
		}
		sim_unlock(&s->lock);
	}
	sim_unlock(&all_streams_lock);
	return any;
}

int sim_device_sync(int device)
{
	if (!sim_device_ok(device))
		return -EINVAL;
	if (invalidate_captures(device)) {
		shunt_error(
		    "sim: device %d cannot be waited for while a stream captures; the capture is spoiled", device);
		return -EBUSY;
	}
	return sim_device_drain(device);
}

int sim_device_drain(int device)
{
	int err = 0;

	sim_lock(&all_streams_lock);
	for (struct sim_stream *s = all; s; s = s->next) {
		if (s->device != device)
			continue;
		__atomic_add_fetch(&s->drainers, 1, __ATOMIC_RELAXED);
		sim_unlock(&all_streams_lock);
		drain_stream(s);
		if (!err)
			err = __atomic_load_n(&s->err, __ATOMIC_RELAXED);
		sim_lock(&all_streams_lock);
		__atomic_sub_fetch(&s->drainers, 1, __ATOMIC_RELAXED);
		sim_wake(&s->drainers);
	}
	sim_unlock(&all_streams_lock);
	return err;
}

void sim_stream_destroy(int device, void *handle)
{
	struct sim_stream *s = (struct sim_stream *)handle;
	struct sim_graph *graph;

	if ((uintptr_t)handle <= 2 || !sim_handle_remove(handle, SIM_STREAM))
		return;
	graph = sim_stream_graph(s);
	if (graph && graph->origin == s)
		sim_stream_release(graph);
	if (graph)
		sim_graph_put(graph);
	drain_stream(s);
	stream_unlist(s);
	if (s->started) {
		__atomic_store_n(&s->stop, true, __ATOMIC_RELEASE);
		__atomic_add_fetch(&s->submitted, 1, __ATOMIC_RELEASE);
		sim_wake(&s->submitted);
		pthread_join(s->thread, nullptr);
	}
	if (s->capture)
		sim_graph_put(s->capture);
	sim_pool_finish(&s->pool);
	sim_delete(s);
}

int sim_stream_capture(int device, void *handle, enum shunt_capture *state_p)
{
	struct sim_stream *s = sim_stream_get(device, handle);

	if (!s)
		return -EINVAL;
	sim_lock(&s->lock);
	*state_p = !s->capture                                          ? SHUNT_CAPTURE_NONE :
	    __atomic_load_n(&s->capture->invalidated, __ATOMIC_RELAXED) ? SHUNT_CAPTURE_INVALID :
	                                                                  SHUNT_CAPTURE_ACTIVE;
	sim_unlock(&s->lock);
	return 0;
}
