/* SPDX-License-Identifier: MIT */
#include "comm/parts/stream_order.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define LEGACY ((void *)1)
#define PER_THREAD ((void *)2)

/* Shared with the graphs whose nodes refer to it; the last user frees it. */
struct shunt_order_event {
	atomic_uint refs; /* the communicator and every graph */
	const struct shunt_gpu_ops *gpu;
	int device;
	void *event;
	struct shunt_order_event *next; /* in dead_events */
};

/*
 * The driver reports the end of a graph in a callback, where calls of the driver are not allowed. The event waits in
 * this list for the next caller that may make them.
 */
static struct shunt_order_event *_Atomic dead_events;

static void free_dead_events(void)
{
	struct shunt_order_event *e = atomic_exchange(&dead_events, NULL), *next;

	for (; e; e = next) {
		next = e->next;
		e->gpu->event_destroy(e->device, e->event);
		free(e);
	}
}

static void event_put(struct shunt_order_event *e)
{
	if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1)
		return;
	e->next = atomic_load(&dead_events);
	while (!atomic_compare_exchange_weak(&dead_events, &e->next, e))
		;
}

static void graph_released(void *arg)
{
	event_put(arg);
}

unsigned shunt_order_graphs(const struct shunt_order *order)
{
	return order->event ? atomic_load_explicit(&order->event->refs, memory_order_acquire) - 1 : 0;
}

static int event_ensure(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device)
{
	struct shunt_order_event *e;
	int err;

	if (order->event)
		return 0;
	free_dead_events();
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	err = gpu->event_create(device, false, &e->event);
	if (err) {
		free(e);
		return err;
	}
	e->gpu = gpu;
	e->device = device;
	atomic_init(&e->refs, 1);
	order->event = e;
	return 0;
}

static struct shunt_order_stream stream_of(void *handle)
{
	static atomic_uint_least64_t threads;
	static _Thread_local uint64_t me; /* a number: unlike an address, it is not used again */

	if (handle != PER_THREAD)
		return (struct shunt_order_stream){ .handle = handle == LEGACY ? NULL : handle };
	if (!me)
		me = atomic_fetch_add(&threads, 1) + 1;
	return (struct shunt_order_stream){ .handle = handle, .thread = me };
}

static bool same_stream(const struct shunt_order_stream *a, const struct shunt_order_stream *b)
{
	return a->handle == b->handle && a->thread == b->thread;
}

/* The events of enum shunt_order_last. */

static void last_launched(struct shunt_order *order, struct shunt_order_stream stream)
{
	order->last = stream;
	order->last_state = SHUNT_ORDER_BARE;
}

static void last_covered(struct shunt_order *order)
{
	order->last_state = SHUNT_ORDER_COVERED;
}

static void last_ended(struct shunt_order *order)
{
	order->last_state = SHUNT_ORDER_NONE;
}

/* The events of enum shunt_order_account. */

static void account_opened(struct shunt_order *order, const struct shunt_progress *progress)
{
	order->progress = progress;
	order->account = SHUNT_ACCOUNT_EXACT;
}

static void account_captured(struct shunt_order *order)
{
	if (order->account == SHUNT_ACCOUNT_EXACT)
		order->account = SHUNT_ACCOUNT_GRAPHS;
}

static void account_restarted(struct shunt_order *order, uint64_t warps)
{
	order->warps = warps;
	order->account = SHUNT_ACCOUNT_EXACT;
}

static void account_failed(struct shunt_order *order)
{
	if (order->account != SHUNT_ACCOUNT_NONE)
		order->account = SHUNT_ACCOUNT_EVENT;
}

static void account_lost(struct shunt_order *order)
{
	order->account = SHUNT_ACCOUNT_NONE;
}

/* True: all warps of eager launches have ended. False also if the account cannot tell. */
static bool all_warps_ended(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device)
{
	uint64_t ended;

	return order->account == SHUNT_ACCOUNT_EXACT &&
	    !gpu->copy(device, &ended, &order->progress->ended, sizeof(ended)) && ended == order->warps;
}

/* Once all graphs are gone and all that they launched is done, the account is that of eager launches again. */
static int restart_account(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device)
{
	uint64_t ended;
	bool done;
	int err;

	if (order->account != SHUNT_ACCOUNT_GRAPHS || !order->mixing || shunt_order_graphs(order) ||
	    order->last_state == SHUNT_ORDER_BARE)
		return 0;
	err = gpu->event_done(device, order->event->event, &done);
	if (err || !done)
		return err;
	err = gpu->copy(device, &ended, &order->progress->ended, sizeof(ended));
	if (err)
		return err;
	account_restarted(order, ended);
	last_ended(order);
	return 0;
}

/*
 * Makes the event cover the last eager launch, unless its stream captures now (see the header). The record covers all
 * that the old stream holds by now, which may be more than our launch.
 */
static int cover_last(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device)
{
	enum shunt_capture state;
	int err;

	if (order->last_state != SHUNT_ORDER_BARE)
		return 0;
	if (all_warps_ended(order, gpu, device)) {
		last_ended(order);
		return 0;
	}
	err = event_ensure(order, gpu, device);
	if (err)
		return err;
	err = gpu->stream_capture(device, order->last.handle, &state);
	if (!err && state != SHUNT_CAPTURE_NONE)
		return 0;
	/* The record replaces a graph's, which may have come after our launch: the new one has to cover that, too. */
	if (!err && shunt_order_graphs(order))
		err = gpu->event_wait(device, order->event->event, order->last.handle);
	if (!err)
		err = gpu->event_record(device, order->event->event, order->last.handle);
	if (err) {
		/* The old stream was destroyed: wait for all that it had. */
		err = gpu->device_sync(device);
		if (!err)
			last_ended(order);
		return err;
	}
	last_covered(order);
	return 0;
}

static struct shunt_order_capture *capture_find(struct shunt_order *order, uint64_t id)
{
	for (unsigned i = 0; i < SHUNT_ORDER_CAPTURES; i++)
		if (order->captures[i].id == id)
			return &order->captures[i];
	return NULL;
}

/* The end of a capture is not reported, so the oldest entry is replaced. */
static struct shunt_order_capture *capture_new(struct shunt_order *order)
{
	struct shunt_order_capture *c = &order->captures[order->next_capture++ % SHUNT_ORDER_CAPTURES];

	memset(c, 0, sizeof(*c));
	return c;
}

static int first_in_capture(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream,
    struct shunt_gpu_capture *info)
{
	int err;

	if (!order->mixing)
		return 0;
	err = event_ensure(order, gpu, device);
	if (!err)
		err = cover_last(order, gpu, device);
	if (err)
		return err;
	/* From here on the graph refers to the event. */
	atomic_fetch_add_explicit(&order->event->refs, 1, memory_order_relaxed);
	err = gpu->capture_retain(device, info, graph_released, order->event);
	if (!err)
		err = gpu->capture_wait(device, order->event->event, stream);
	if (!err)
		err = gpu->capture_info(device, stream, info);
	return err;
}

static int begin_captured(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream)
{
	struct shunt_order_stream where = stream_of(stream);
	struct shunt_gpu_capture info;
	struct shunt_order_capture *c;
	int err;

	err = gpu->capture_info(device, stream, &info);
	if (err)
		return err;
	if (info.state != SHUNT_CAPTURE_ACTIVE) {
		shunt_error("a collective on stream %p of device %d: its capture was invalidated, or a capture on a "
		            "blocking stream rules the "
		            "legacy stream out; end that capture, or use a stream of your own",
		    stream, device);
		return -EBUSY;
	}
	c = capture_find(order, info.id);
	if (!c) {
		err = first_in_capture(order, gpu, device, stream, &info);
		if (err)
			return err;
		c = capture_new(order);
		c->id = info.id;
		account_captured(order);
		c->last_node = order->mixing ? info.node : NULL;
	} else if (c->last_node && c->last_node != info.node && !same_stream(&c->stream, &where)) {
		err = gpu->capture_join(device, stream, c->last_node);
		if (err)
			return err;
	}
	c->stream = where;
	order->current = c;
	return 0;
}

static int end_captured(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream)
{
	struct shunt_order_capture *c = order->current;
	struct shunt_gpu_capture info;
	int err;

	order->current = NULL;
	err = gpu->capture_info(device, stream, &info);
	if (err)
		return err;
	if (info.id != c->id) {
		shunt_error(
		    "a collective on stream %p of device %d: its capture ended or was changed while the call was made",
		    stream, device);
		return -EBUSY;
	}
	/* A launch is always the one node that its stream continues from. */
	if (!info.node || info.node == c->last_node)
		return 0;
	if (!order->mixing)
		err = 0;
	else if (c->record)
		err = gpu->capture_move_record(device, &info, c->last_node, c->record);
	else
		err = gpu->capture_record(device, &info, order->event->event, &c->record);
	c->last_node = info.node;
	return err;
}

void shunt_order_init(struct shunt_order *order, bool mixing)
{
	*order = (struct shunt_order){ .mixing = mixing };
}

void shunt_order_set_progress(struct shunt_order *order, const struct shunt_progress *progress)
{
	account_opened(order, progress);
}

void shunt_order_add_warps(struct shunt_order *order, uint64_t warps)
{
	order->warps += order->current ? 0 : warps;
}

void shunt_order_uncounted(struct shunt_order *order)
{
	account_captured(order);
}

int shunt_order_begin(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream)
{
	struct shunt_order_stream where = stream_of(stream);
	enum shunt_capture state;
	bool same;
	int err;

	order->current = NULL;
	err = gpu->stream_capture(device, stream, &state);
	if (err)
		return err;
	if (state != SHUNT_CAPTURE_NONE)
		return begin_captured(order, gpu, device, stream);

	err = restart_account(order, gpu, device);
	if (err)
		return err;
	same = order->last_state != SHUNT_ORDER_NONE && same_stream(&order->last, &where);
	if (!shunt_order_graphs(order) && (same || order->last_state == SHUNT_ORDER_NONE))
		return 0;
	if (!same) {
		order->keep = SHUNT_ORDER_KEEP;
		err = cover_last(order, gpu, device);
		if (err)
			return err;
	}
	/* Without graphs, an event that does not cover the last launch says nothing. */
	if (!order->event || (order->last_state != SHUNT_ORDER_COVERED && !shunt_order_graphs(order)))
		return 0;
	return gpu->event_wait(device, order->event->event, stream);
}

int shunt_order_end(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream)
{
	int err = 0;

	if (order->current)
		return end_captured(order, gpu, device, stream);
	last_launched(order, stream_of(stream));
	/* Only this thread can name its stream 2, so it records now. */
	if (!order->last.thread && !order->keep && order->account != SHUNT_ACCOUNT_GRAPHS && !shunt_order_graphs(order))
		return 0;
	order->keep -= order->keep != 0;
	err = event_ensure(order, gpu, device);
	if (!err)
		err = gpu->event_record(device, order->event->event, stream);
	if (!err)
		last_covered(order);
	return err;
}

void shunt_order_end_partial(struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, void *stream)
{
	if (order->current) { /* a spoiled capture is not launched */
		order->current = NULL;
		return;
	}
	/* Without mixing the event says nothing about graphs. */
	if ((order->account == SHUNT_ACCOUNT_GRAPHS && !order->mixing) || event_ensure(order, gpu, device) ||
	    gpu->event_record(device, order->event->event, stream))
		account_lost(order);
	else
		account_failed(order);
}

int shunt_order_done(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, bool *done_p)
{
	uint64_t ended = 0;
	int err;

	*done_p = true;
	if (order->account == SHUNT_ACCOUNT_NONE || (order->account == SHUNT_ACCOUNT_GRAPHS && !order->mixing))
		return gpu->device_sync(device);
	if (order->account == SHUNT_ACCOUNT_EVENT)
		return gpu->event_done(device, order->event->event, done_p);
	err = gpu->copy(device, &ended, &order->progress->ended, sizeof(ended));
	if (order->account == SHUNT_ACCOUNT_EXACT) {
		*done_p = ended == order->warps;
		return err;
	}
	/*
	 * How many warps graphs had is not known. But each of their launches records the event, and so does each eager
	 * launch since then.
	 */
	*done_p = ended >= order->warps;
	return err || !*done_p ? err : gpu->event_done(device, order->event->event, done_p);
}

int shunt_order_graphs_idle(const struct shunt_order *order, const struct shunt_gpu_ops *gpu, int device, bool *idle_p)
{
	bool captured = false;

	for (unsigned i = 0; i < SHUNT_ORDER_CAPTURES; i++)
		captured |= order->captures[i].id != 0;
	*idle_p = !captured || (order->mixing && !shunt_order_graphs(order));
	/* The event's last record is that of the last launch of a graph, or of a call behind it. */
	return *idle_p || !order->mixing ? 0 : gpu->event_done(device, order->event->event, idle_p);
}

void shunt_order_finish(struct shunt_order *order)
{
	if (order->event)
		event_put(order->event);
	free_dead_events();
	shunt_order_init(order, order->mixing);
}
