/* SPDX-License-Identifier: MIT */
/*
 * An event names the mark of its last record; who waits keeps that mark, whatever the event does later. Inside a capture the
 * order of the queue is all the order there is: records and waits of one capture need no operation, and as on CUDA a capture
 * can neither wait for work outside nor be waited for.
 */
#include <errno.h>
#include "gpu/sim.h"

struct sim_event {
	struct sim_lock lock;
	bool timing;
	struct sim_mark *mark;  /* NULL: not recorded, or in a capture */
	uint64_t capture;       /* which; 0: none */
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
	e->timing = timing;
	err = sim_handle_add(e, SIM_EVENT);
	if (err) {
		sim_delete(e);
		return err;
	}
	*event_p = e;
	return 0;
}

void sim_event_destroy(int device, void *handle)
{
	struct sim_event *e = (struct sim_event *)handle;

	if (!handle || !sim_handle_remove(handle, SIM_EVENT))
		return;
	sim_mark_put(e->mark);
	sim_delete(e);
}

static uint64_t capture_of(struct sim_stream *s)
{
	uint64_t capture;

	sim_lock(&s->lock);
	capture = s->capture ? s->capture->capture : 0;
	sim_unlock(&s->lock);
	return capture;
}

static void event_set(struct sim_event *e, struct sim_mark *mark, uint64_t capture)
{
	struct sim_mark *old;

	sim_lock(&e->lock);
	old = e->mark;
	e->mark = mark;
	e->capture = capture;
	sim_unlock(&e->lock);
	sim_mark_put(old);
}

/* A reference to the last record's mark, or NULL. */
static struct sim_mark *event_mark(struct sim_event *e, uint64_t *capture_p)
{
	struct sim_mark *mark;

	sim_lock(&e->lock);
	mark = e->mark;
	*capture_p = e->capture;
	if (mark)
		__atomic_add_fetch(&mark->refs, 1, __ATOMIC_RELAXED);
	sim_unlock(&e->lock);
	return mark;
}

int sim_event_record(int device, void *handle, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	struct sim_event *e = (struct sim_event *)handle;
	struct sim_mark *mark;
	struct sim_op *op;
	uint64_t capture;

	if (!s || !sim_handle_ok(handle, SIM_EVENT))
		return -EINVAL;
	capture = capture_of(s);
	if (capture) {
		event_set(e, nullptr, capture);
		return 0;
	}
	mark = sim_mark_create();
	if (!mark)
		return -ENOMEM;
	op = sim_op_create(&sim_op_record);
	if (!op) {
		sim_mark_put(mark);
		return -ENOMEM;
	}
	op->mark = mark;
	mark->refs = 2;
	event_set(e, mark, 0);
	return sim_stream_submit(s, op);
}

int sim_event_wait(int device, void *handle, void *stream)
{
	struct sim_stream *s = sim_stream_get(device, stream);
	struct sim_event *e = (struct sim_event *)handle;
	struct sim_mark *mark;
	struct sim_op *op;
	uint64_t mine, theirs;

	if (!s || !sim_handle_ok(handle, SIM_EVENT))
		return -EINVAL;
	mine = capture_of(s);
	mark = event_mark(e, &theirs);
	if ((mark || theirs) && mine != theirs) {
		shunt_error("sim: a wait cannot cross the border of a capture (stream %p, event %p)", stream, handle);
		sim_mark_put(mark);
		return -EINVAL;
	}
	if (!mark)
		return 0;
	op = sim_op_create(&sim_op_wait);
	if (!op) {
		sim_mark_put(mark);
		return -ENOMEM;
	}
	op->mark = mark;
	return sim_stream_submit(s, op);
}

int sim_event_elapsed_us(int device, void *start, void *stop, float *us_p)
{
	struct sim_event *e[2] = { (struct sim_event *)start, (struct sim_event *)stop };
	struct sim_mark *mark[2] = { nullptr, nullptr };
	uint64_t capture;
	int err = 0;

	for (int i = 0; i < 2 && !err; i++) {
		if (!sim_handle_ok(e[i], SIM_EVENT)) {
			err = -EINVAL;
			break;
		}
		mark[i] = event_mark(e[i], &capture);
		if (!e[i]->timing || !mark[i]) {
			shunt_error("sim: event %p has no time stamp", (void *)e[i]);
			err = -EINVAL;
		}
	}
	for (int i = 0; i < 2 && !err; i++)
		if (!__atomic_load_n(&mark[i]->done, __ATOMIC_ACQUIRE))
			err = -EAGAIN;
	if (!err)
		*us_p = (float)((double)(int64_t)(mark[1]->ns - mark[0]->ns) / 1000);
	sim_mark_put(mark[0]);
	sim_mark_put(mark[1]);
	return err;
}
