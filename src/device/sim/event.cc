/* SPDX-License-Identifier: MIT */
/*
 * An event refers to the completion of its last record. A waiter keeps that completion, whatever the event does
 * later.
 *
 * The order of the queue is the only order inside a capture, also for streams that joined: records and waits within
 * one capture need no operation. As on CUDA a capture can neither wait for work outside nor be waited for, except by
 * a node for an external event, which refers to the event at the launch of the graph.
 */
#include <errno.h>
#include "device/sim/sim.h"

struct sim_lock sim_enqueue_lock;

struct sim_event {
	uint32_t refs; /* of the handle, and of each node of a graph */
	struct sim_lock lock;
	bool timing;
	struct sim_completion *completion; /* NULL: not recorded, or in a capture */
	uint64_t capture;                  /* the capture's number; 0: none */
};

int sim_event_create(int device, bool timing, void **event_p)
{
	struct sim_event *e;
	int err;

	if (!sim_device_ok(device))
		return -EINVAL;
	e = (struct sim_event *)sim_new(sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->refs = 1;
	e->timing = timing;
	err = sim_handle_add(e, SIM_EVENT);
	if (err) {
		sim_delete(e);
		return err;
	}
	*event_p = e;
	return 0;
}

void sim_event_put(struct sim_event *e)
{
	if (__atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL))
		return;
	sim_completion_put(e->completion);
	sim_delete(e);
}

void sim_event_destroy(int device, void *handle)
{
	if (handle && sim_handle_remove(handle, SIM_EVENT))
		sim_event_put((struct sim_event *)handle);
}

static uint64_t stream_capture_id(struct sim_stream *s)
{
	uint64_t capture;

	sim_lock(&s->lock);
	capture = s->capture ? s->capture->capture : 0;
	sim_unlock(&s->lock);
	return capture;
}

static void event_set(struct sim_event *e, struct sim_completion *completion, uint64_t capture)
{
	struct sim_completion *old;

	sim_lock(&e->lock);
	old = e->completion;
	e->completion = completion;
	e->capture = capture;
	sim_unlock(&e->lock);
	sim_completion_put(old);
}

/* A reference to the last record's completion, or NULL. */
static struct sim_completion *event_completion(struct sim_event *e, uint64_t *capture_p)
{
	struct sim_completion *completion;

	sim_lock(&e->lock);
	completion = e->completion;
	*capture_p = e->capture;
	if (completion)
		__atomic_add_fetch(&completion->refs, 1, __ATOMIC_RELAXED);
	sim_unlock(&e->lock);
	return completion;
}

int sim_event_record(int device, void *handle, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	struct sim_event *e = (struct sim_event *)handle;
	struct sim_completion *completion;
	struct sim_op *op;
	uint64_t capture;
	int err;

	if (!s || !sim_handle_ok(handle, SIM_EVENT))
		return -EINVAL;
	capture = stream_capture_id(s);
	if (capture) {
		event_set(e, nullptr, capture);
		return 0;
	}
	completion = sim_completion_create();
	if (!completion)
		return -ENOMEM;
	op = sim_op_create(&sim_op_record);
	if (!op) {
		sim_completion_put(completion);
		return -ENOMEM;
	}
	op->completion = completion;
	completion->refs = 2;
	sim_lock(&sim_enqueue_lock);
	event_set(e, completion, 0);
	err = sim_stream_submit(s, op);
	sim_unlock(&sim_enqueue_lock);
	return err;
}

int sim_event_launched(void *handle, struct sim_stream *s, struct sim_completion **completion_p)
{
	struct sim_event *e = (struct sim_event *)handle;
	uint64_t capture = stream_capture_id(s);

	*completion_p = nullptr;
	if (!sim_handle_ok(handle, SIM_EVENT))
		return -EINVAL;
	if (!capture && !(*completion_p = sim_completion_create()))
		return -ENOMEM;
	if (*completion_p)
		(*completion_p)->refs = 2;
	event_set(e, *completion_p, capture);
	return 0;
}

static int event_wait(struct sim_stream *s, struct sim_event *e)
{
	struct sim_completion *completion;
	struct sim_op *op;
	uint64_t mine, theirs;

	mine = stream_capture_id(s);
	completion = event_completion(e, &theirs);
	if (!mine && theirs && !sim_stream_join(s, theirs))
		return 0;
	if ((completion || theirs) && mine != theirs) {
		shunt_error(
		    "sim: a wait cannot cross the border of a capture (stream %p, event %p)", (void *)s, (void *)e);
		sim_completion_put(completion);
		return -EINVAL;
	}
	if (!completion)
		return 0;
	op = sim_op_create(&sim_op_wait);
	if (!op) {
		sim_completion_put(completion);
		return -ENOMEM;
	}
	op->completion = completion;
	return sim_stream_submit(s, op);
}

int sim_event_wait(int device, void *handle, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	int err;

	if (!s || !sim_handle_ok(handle, SIM_EVENT))
		return -EINVAL;
	sim_lock(&sim_enqueue_lock);
	err = event_wait(s, (struct sim_event *)handle);
	sim_unlock(&sim_enqueue_lock);
	return err;
}

/* A node that refers to the event. The caller puts it into a graph. */
static struct sim_op *external_op(const struct sim_op_kind *kind, void *handle)
{
	struct sim_event *e = (struct sim_event *)handle;
	struct sim_op *op;

	if (!sim_handle_ok(handle, SIM_EVENT) || !(op = sim_op_create(kind)))
		return nullptr;
	__atomic_add_fetch(&e->refs, 1, __ATOMIC_RELAXED);
	op->event = e;
	return op;
}

int sim_capture_wait(int device, void *event, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	struct sim_op *op;

	if (!s)
		return -EINVAL;
	if (!stream_capture_id(s)) {
		shunt_error("sim: stream %p is not being captured", stream);
		return -EINVAL;
	}
	op = external_op(&sim_op_external_wait, event);
	return op ? sim_stream_submit(s, op) : -EINVAL;
}

int sim_capture_record(int device, const struct shunt_gpu_capture *info, void *event, void **record_p)
{
	struct sim_graph *graph = (struct sim_graph *)info->graph;
	struct sim_op *op, *last_node;

	if (!sim_device_ok(device) || !info->node)
		return -EINVAL;
	op = external_op(&sim_op_external_record, event);
	if (!op)
		return -EINVAL;
	sim_lock(&graph->lock);
	last_node = graph->last_node;
	sim_graph_append(graph, op);
	graph->last_node = last_node;
	sim_unlock(&graph->lock);
	*record_p = op;
	return 0;
}

static int bind_nodes(struct sim_graph *graph, struct sim_completion ***completion_p)
{
	uint64_t capture;
	int err = 0;

	for (struct sim_op *i = graph->first; i && !err; i = i->next) {
		if (i->kind == &sim_op_graph_launch) {
			err = bind_nodes(i->graph_launch.graph, completion_p);
		} else if (i->kind == &sim_op_external_wait) {
			*(*completion_p)++ = event_completion(i->event, &capture);
		} else if (i->kind == &sim_op_external_record) {
			struct sim_completion *completion = sim_completion_create();

			if (!completion)
				return -ENOMEM;
			completion->refs = 2;
			*(*completion_p)++ = completion;
			event_set(i->event, completion, 0);
		}
	}
	return err;
}

int sim_graph_bind(struct sim_graph *graph, struct sim_completion **completions)
{
	return bind_nodes(graph, &completions);
}

int sim_event_done(int, void *handle, bool *done_p)
{
	struct sim_completion *completion;
	uint64_t capture;

	if (!sim_handle_ok(handle, SIM_EVENT))
		return -EINVAL;
	completion = event_completion((struct sim_event *)handle, &capture);
	*done_p = !completion || __atomic_load_n(&completion->done, __ATOMIC_ACQUIRE);
	if (completion && *done_p)
		tsan_acquire(completion);
	sim_completion_put(completion);
	return 0;
}

int sim_event_elapsed_us(int device, void *start, void *stop, float *us_p)
{
	struct sim_event *e[2] = { (struct sim_event *)start, (struct sim_event *)stop };
	struct sim_completion *completion[2] = { nullptr, nullptr };
	uint64_t capture;
	int err = 0;

	for (int i = 0; i < 2 && !err; i++) {
		if (!sim_handle_ok(e[i], SIM_EVENT)) {
			err = -EINVAL;
			break;
		}
		completion[i] = event_completion(e[i], &capture);
		if (!e[i]->timing || !completion[i]) {
			shunt_error("sim: event %p has no time stamp", (void *)e[i]);
			err = -EINVAL;
		}
	}
	for (int i = 0; i < 2 && !err; i++)
		if (!__atomic_load_n(&completion[i]->done, __ATOMIC_ACQUIRE))
			err = -EAGAIN;
	if (!err)
		*us_p = (float)((double)(int64_t)(completion[1]->ns - completion[0]->ns) / 1000);
	sim_completion_put(completion[0]);
	sim_completion_put(completion[1]);
	return err;
}
