/* SPDX-License-Identifier: MIT */
/*
 * The order of a communicator's launches over a device that only keeps books. Launches are numbered in the order of
 * issue; a stream, an event and a node know the highest number that precedes them. A launch that is not preceded by the
 * one before it fails the test, and so, by induction, each is known to follow all before it.
 */
#include "tests/support/unit.h"
#include "comm/stream_order.h"

enum { STREAMS = 5, GRAPHS = 6, NODES = 64, EDGES = 16, EVENTS = 8, WARPS = 4 };

enum kind { KERNEL, OTHER, WAIT, RECORD };

struct event {
	bool live;
	long clock;
};

struct node {
	enum kind kind;
	struct event *event;
	struct node *preds[EDGES];
	unsigned npreds;
	long clock; /* of the current launch */
};

struct graph {
	uint64_t id;
	bool capturing, ready;
	struct node nodes[NODES];
	unsigned nnodes;
	void (*drop)(void *);
	void *arg;
	unsigned drops;
	long last; /* number of its latest launch */
};

struct stream {
	struct graph *graph; /* into which it captures */
	struct node *tips[EDGES];
	unsigned ntips;
	long clock;
	bool gone;
};

static struct {
	long issued, done; /* launches */
	struct shunt_progress progress;
	uint64_t captures;
	struct stream streams[STREAMS], legacy, mine, theirs;
	struct graph graphs[GRAPHS];
	struct event events[EVENTS];
	enum shunt_capture state; /* what every stream says, unless it is none */
	bool check;               /* that launches follow each other */
	long broken;
	/* calls of the driver */
	long calls, captures_asked, records, waits, creates, syncs, infos, nodes, joins, moves, looks;
	long fail_at;
} dev;

static __thread bool other_thread;

static struct stream *stream_of(void *handle)
{
	if ((uintptr_t)handle <= 1)
		return &dev.legacy;
	if ((uintptr_t)handle == 2)
		return other_thread ? &dev.theirs : &dev.mine;
	return handle;
}

#define CALL(counter) \
	do { \
		dev.counter++; \
		if (++dev.calls == dev.fail_at) \
			return -EIO; \
	} while (0)

static long later(long a, long b)
{
	return a > b ? a : b;
}

/* The device. */

static int stream_capture(int device, void *stream, enum shunt_capture *state_p)
{
	CALL(captures_asked);
	if (stream_of(stream)->gone)
		return -EINVAL;
	*state_p = dev.state ? dev.state : stream_of(stream)->graph ? SHUNT_CAPTURE_ACTIVE : SHUNT_CAPTURE_NONE;
	return 0;
}

static int event_create(int device, bool timing, void **event_p)
{
	CALL(creates);
	assert_false(timing);
	for (int i = 0; i < EVENTS; i++) {
		if (dev.events[i].live)
			continue;
		dev.events[i] = (struct event){ .live = true };
		*event_p = &dev.events[i];
		return 0;
	}
	return -ENOMEM;
}

static void event_destroy(int device, void *event)
{
	assert_true(((struct event *)event)->live);
	((struct event *)event)->live = false;
}

static int event_record(int device, void *event, void *stream)
{
	struct stream *s = stream_of(stream);
	struct event *e = event;

	CALL(records);
	assert_true(e->live && !s->graph); /* else it would go into the capture */
	e->clock = s->clock;
	return s->gone ? -EINVAL : 0;
}

static int event_wait(int device, void *event, void *stream)
{
	struct stream *s = stream_of(stream);
	struct event *e = event;

	CALL(waits);
	assert_true(e->live && !s->graph);
	s->clock = later(s->clock, e->clock);
	return 0;
}

static void wait_for_all(long number)
{
	struct stream *all[] = { &dev.legacy, &dev.mine, &dev.theirs };

	for (int i = 0; i < STREAMS; i++)
		dev.streams[i].clock = later(dev.streams[i].clock, number);
	for (int i = 0; i < 3; i++)
		all[i]->clock = later(all[i]->clock, number);
}

static int device_sync(int device)
{
	CALL(syncs);
	wait_for_all(dev.issued);
	return 0;
}

/* The device comes to the end of all that was issued. */
static void finish(void)
{
	dev.done = dev.issued;
	dev.progress.ended = dev.progress.begun;
	wait_for_all(dev.issued);
}

static int event_done(int device, void *event, bool *done_p)
{
	struct event *e = event;

	CALL(looks);
	assert_true(e->live);
	*done_p = e->clock <= dev.done;
	return 0;
}

static int copy(int device, void *dst, const void *src, size_t bytes)
{
	CALL(looks);
	memcpy(dst, src, bytes);
	return 0;
}

/* A node behind what the stream holds. */
static struct node *add_node(struct stream *s, enum kind kind, struct event *event)
{
	struct node *n = &s->graph->nodes[s->graph->nnodes++];

	assert_true(s->graph->nnodes <= NODES);
	*n = (struct node){ .kind = kind, .event = event, .npreds = s->ntips };
	memcpy(n->preds, s->tips, sizeof(s->tips));
	s->tips[0] = n;
	s->ntips = 1;
	return n;
}

static int capture_info(int device, void *stream, struct shunt_gpu_capture *info_p)
{
	struct stream *s = stream_of(stream);

	CALL(infos);
	*info_p = (struct shunt_gpu_capture){ .state = dev.state };
	if (!s->graph || dev.state)
		return 0;
	*info_p = (struct shunt_gpu_capture){ .state = SHUNT_CAPTURE_ACTIVE,
		.id = s->graph->id,
		.graph = s->graph,
		.node = s->ntips == 1 ? s->tips[0] : NULL };
	return 0;
}

static int capture_wait(int device, void *event, void *stream)
{
	CALL(nodes);
	assert_non_null(stream_of(stream)->graph);
	add_node(stream_of(stream), WAIT, event);
	return 0;
}

static int capture_join(int device, void *stream, void *node)
{
	struct stream *s = stream_of(stream);

	CALL(joins);
	assert_true(s->graph && s->ntips < EDGES);
	assert_true((struct node *)node >= s->graph->nodes && (struct node *)node < s->graph->nodes + s->graph->nnodes);
	s->tips[s->ntips++] = node;
	return 0;
}

static int capture_record(int device, const struct shunt_gpu_capture *info, void *event, void **record_p)
{
	struct graph *g = info->graph;

	CALL(nodes);
	assert_true(g->capturing && g->nnodes < NODES);
	g->nodes[g->nnodes] = (struct node){ .kind = RECORD, .event = event, .npreds = 1, .preds = { info->node } };
	*record_p = &g->nodes[g->nnodes++];
	return 0;
}

static int capture_move_record(int device, const struct shunt_gpu_capture *info, void *from, void *record)
{
	struct node *r = record;

	CALL(moves);
	assert_true(((struct graph *)info->graph)->capturing && r->kind == RECORD && r->npreds == 1);
	assert_ptr_equal(r->preds[0], from);
	r->preds[0] = info->node;
	return 0;
}

static int capture_retain(int device, const struct shunt_gpu_capture *info, void (*drop)(void *), void *arg)
{
	struct graph *g = info->graph;

	dev.calls++;
	if (dev.calls == dev.fail_at) {
		drop(arg);
		return -EIO;
	}
	assert_true(g->capturing && !g->drops);
	g->drop = drop;
	g->arg = arg;
	g->drops = 1;
	return 0;
}

static const struct shunt_gpu_ops ops = {
	.name = "books",
	.stream_capture = stream_capture,
	.event_create = event_create,
	.event_destroy = event_destroy,
	.event_record = event_record,
	.event_wait = event_wait,
	.device_sync = device_sync,
	.capture_info = capture_info,
	.capture_wait = capture_wait,
	.capture_join = capture_join,
	.capture_record = capture_record,
	.capture_move_record = capture_move_record,
	.capture_retain = capture_retain,
	.event_done = event_done,
	.copy = copy,
};

/* The program. */

static void run(long *clock)
{
	long n = ++dev.issued;

	if (dev.check && *clock != n - 1)
		fail_msg("launch %ld follows %ld only", n, *clock);
	dev.broken += *clock != n - 1;
	*clock = n;
	dev.progress.begun += WARPS;
}

/* A collective, as a communicator makes it. */
static int collective(struct shunt_order *order, void *stream)
{
	struct stream *s = stream_of(stream);
	int err = shunt_order_begin(order, &ops, 0, stream);

	if (err)
		return err;
	if (s->graph)
		add_node(s, KERNEL, NULL);
	else
		run(&s->clock);
	shunt_order_add_warps(order, WARPS);
	return shunt_order_end(order, &ops, 0, stream);
}

static struct graph *capture_begin(struct stream *s)
{
	for (int i = 0; i < GRAPHS; i++) {
		struct graph *g = &dev.graphs[i];

		if (g->capturing || g->ready)
			continue;
		memset(g, 0, sizeof(*g));
		g->id = ++dev.captures;
		g->capturing = true;
		s->graph = g;
		s->ntips = 0;
		return g;
	}
	return NULL;
}

/* The program's own fork and join. */
static void fork_to(struct stream *from, struct stream *to)
{
	to->graph = from->graph;
	to->ntips = from->ntips;
	memcpy(to->tips, from->tips, sizeof(to->tips));
}

static void capture_end(struct graph *g)
{
	for (int i = 0; i < STREAMS; i++)
		if (dev.streams[i].graph == g)
			dev.streams[i].graph = NULL;
	g->capturing = false;
	g->ready = true;
}

static void graph_launch(struct graph *g, struct stream *s)
{
	long end = s->clock, bound[NODES];

	assert_true(g->ready);
	for (unsigned i = 0; i < g->nnodes; i++)
		bound[i] = g->nodes[i].event ? g->nodes[i].event->clock : 0;
	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < g->nnodes; i++) {
			struct node *n = &g->nodes[i];
			long clock = n->npreds ? 0 : s->clock;

			if ((n->kind == RECORD) != pass)
				continue; /* a record may have been moved behind what was added later */
			for (unsigned p = 0; p < n->npreds; p++)
				clock = later(clock, n->preds[p]->clock);
			assert_true(!n->event || n->event->live);
			if (n->kind == KERNEL)
				run(&clock);
			else if (n->kind == WAIT)
				clock = later(clock, bound[i]);
			else if (n->kind == RECORD)
				n->event->clock = clock;
			n->clock = clock;
			end = later(end, clock);
		}
	}
	s->clock = end;
	g->last = dev.issued;
}

static void graph_destroy(struct graph *g)
{
	/* Launches that run hold the graph. */
	wait_for_all(g->last);
	g->ready = false;
	if (g->drops)
		g->drop(g->arg);
	g->drops = 0;
}

static int live_events(void)
{
	int n = 0;

	for (int i = 0; i < EVENTS; i++)
		n += dev.events[i].live;
	return n;
}

static int start(void **state)
{
	memset(&dev, 0, sizeof(dev));
	dev.check = true;
	return 0;
}

static int stop(void **state)
{
	return live_events() ? -1 : 0;
}

static void calls_reset(void)
{
	dev.calls = dev.captures_asked = dev.records = dev.waits = dev.creates = dev.syncs = dev.infos = dev.nodes =
	    dev.joins = dev.moves = dev.looks = 0;
}

/* Eager calls. */

static void test_order_same_stream_asks_only_for_the_capture(void **state)
{
	struct shunt_order o;

	shunt_order_init(&o, true);
	for (int i = 0; i < 100; i++)
		assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(dev.captures_asked, 100);
	assert_int_equal(dev.calls, 100);
	shunt_order_finish(&o);
}

static void test_order_changed_stream_costs_one_event(void **state)
{
	struct shunt_order o;

	shunt_order_init(&o, true);
	for (int i = 0; i < 100; i++)
		assert_int_equal(collective(&o, &dev.streams[i % 3]), 0);
	assert_int_equal(dev.records, 1 + 99); /* the first late, each other one by its call */
	assert_int_equal(dev.waits, 99);
	assert_int_equal(dev.captures_asked, 1 + 100);
	assert_int_equal(dev.creates, 1);
	for (int i = 0; i < SHUNT_ORDER_KEEP; i++)
		assert_int_equal(collective(&o, &dev.streams[0]), 0);
	calls_reset();
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(dev.calls, 1);
	shunt_order_finish(&o);
}

static void test_order_null_and_legacy_are_one_stream(void **state)
{
	struct shunt_order o;

	shunt_order_init(&o, true);
	for (uintptr_t i = 0; i < 10; i++)
		assert_int_equal(collective(&o, (void *)(i % 2)), 0);
	assert_int_equal(dev.calls, 10);
	shunt_order_finish(&o);
}

static void *on_other_thread(void *order)
{
	other_thread = true;
	for (int i = 0; i < 3; i++)
		if (collective(order, (void *)2))
			return order;
	return NULL;
}

static void test_order_per_thread_stream_is_another_in_each_thread(void **state)
{
	struct shunt_order o;
	pthread_t thread;
	void *failed;

	shunt_order_init(&o, true);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(collective(&o, (void *)2), 0);
		calls_reset();
		assert_int_equal(pthread_create(&thread, NULL, on_other_thread, &o), 0);
		pthread_join(thread, &failed);
		assert_null(failed);
		assert_int_equal(dev.waits, 1);
		/* What has no name here was recorded there. */
		assert_int_equal(dev.records, 3);
		assert_int_equal(collective(&o, &dev.streams[1]), 0);
		assert_int_equal(collective(&o, NULL), 0);
	}
	shunt_order_finish(&o);
}

/* The driver would not survive a question about it. */
static void test_order_destroyed_stream_is_not_asked(void **state)
{
	struct shunt_order o;

	shunt_order_init(&o, true);
	shunt_order_set_progress(&o, &dev.progress);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	finish();
	dev.streams[0].gone = true;
	/* Each of these has recorded the event, so that it may be under way. */
	for (int i = 1; i < 4; i++) {
		assert_int_equal(collective(&o, &dev.streams[i]), 0);
		dev.streams[i].gone = true;
	}
	assert_int_equal(dev.captures_asked, 4);
	for (int i = 0; i < 2 * SHUNT_ORDER_KEEP; i++)
		assert_int_equal(collective(&o, &dev.streams[4]), 0);
	finish();
	dev.streams[4].gone = true;
	dev.streams[0].gone = false;
	calls_reset();
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(dev.captures_asked, 1);
	assert_int_equal(dev.syncs, 0);
	shunt_order_finish(&o);
}

static void test_order_account_begins_anew_after_graphs(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, true);
	shunt_order_set_progress(&o, &dev.progress);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	g = capture_begin(&dev.streams[1]);
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	capture_end(g);
	for (int i = 0; i < 3; i++)
		graph_launch(g, &dev.streams[2]);
	graph_destroy(g);
	/* As long as something of the graph runs, the event goes on. */
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	dev.streams[0].gone = true;
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	for (int i = 0; i < SHUNT_ORDER_KEEP; i++)
		assert_int_equal(collective(&o, &dev.streams[1]), 0);
	finish();
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	calls_reset();
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	assert_int_equal(dev.calls, 1);
	finish();
	dev.streams[1].gone = true;
	assert_int_equal(collective(&o, &dev.streams[2]), 0);
	assert_int_equal(dev.captures_asked, 2);
	assert_int_equal(dev.syncs, 0);
	shunt_order_finish(&o);
}

static bool all_done(const struct shunt_order *o)
{
	bool done;

	assert_int_equal(shunt_order_done(o, &ops, 0, &done), 0);
	return done;
}

/* It would spoil a capture that has nothing to do with us. */
static void test_order_done_asks_neither_streams_nor_the_device(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, true);
	shunt_order_set_progress(&o, &dev.progress);
	assert_true(all_done(&o));
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_false(all_done(&o));
	finish();
	assert_true(all_done(&o));
	g = capture_begin(&dev.streams[1]);
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	assert_true(all_done(&o));
	capture_end(g);
	for (int i = 0; i < 3; i++) {
		graph_launch(g, &dev.streams[2]);
		assert_false(all_done(&o));
		dev.progress.ended = dev.progress.begun; /* between two launches that were issued */
		assert_false(all_done(&o));
		finish();
		assert_true(all_done(&o));
	}
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_false(all_done(&o));
	graph_destroy(g);
	finish();
	assert_true(all_done(&o));
	assert_int_equal(dev.syncs, 0);
	assert_int_equal(dev.captures_asked, 3);
	shunt_order_finish(&o);
}

/* A call that fails half-way: what it has launched is waited for, and what would have ended its warps never comes. */
static void test_order_done_after_a_failed_call(void **state)
{
	struct stream *s = &dev.streams[0];
	struct shunt_order o;

	shunt_order_init(&o, true);
	shunt_order_set_progress(&o, &dev.progress);
	assert_int_equal(collective(&o, s), 0);
	finish();
	assert_int_equal(shunt_order_begin(&o, &ops, 0, s), 0);
	run(&s->clock);
	shunt_order_add_warps(&o, WARPS + 1);
	shunt_order_end_partial(&o, &ops, 0, s);
	assert_false(all_done(&o));
	finish();
	assert_true(all_done(&o));
	assert_int_equal(dev.syncs, 0);
	shunt_order_finish(&o);
}

static void test_order_destroyed_stream_waits_for_the_device(void **state)
{
	struct shunt_order o;

	shunt_order_init(&o, true);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	dev.streams[0].gone = true;
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	assert_int_equal(dev.syncs, 1);
	assert_int_equal(collective(&o, &dev.streams[2]), 0);
	assert_int_equal(dev.syncs, 1);
	shunt_order_finish(&o);
}

static void test_order_invalidated_capture_is_busy(void **state)
{
	struct shunt_order o;
	struct unit_capture c;
	int err;

	shunt_order_init(&o, true);
	dev.state = SHUNT_CAPTURE_INVALID;
	unit_capture_begin(&c);
	err = collective(&o, NULL);
	unit_capture_end(&c);
	assert_int_equal(err, -EBUSY);
	assert_int_equal(dev.issued, 0);
	shunt_order_finish(&o);
}

/* Graphs. */

static void test_order_graph_has_one_wait_and_one_record(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, true);
	g = capture_begin(&dev.streams[0]);
	for (int i = 0; i < 20; i++) {
		add_node(&dev.streams[0], OTHER, NULL);
		assert_int_equal(collective(&o, &dev.streams[0]), 0);
	}
	capture_end(g);
	assert_int_equal(g->nnodes, 42);
	assert_int_equal(dev.nodes, 2);
	assert_int_equal(dev.moves, 19);
	assert_int_equal(dev.joins, 0);
	/* A chain, and the record beside its end: nothing follows that. */
	for (unsigned i = 0; i < g->nnodes; i++)
		for (unsigned p = 0; p < g->nodes[i].npreds; p++)
			assert_int_not_equal(g->nodes[i].preds[p]->kind, RECORD);
	assert_int_equal(g->nodes[1].kind, WAIT);
	graph_launch(g, &dev.streams[1]);
	graph_launch(g, &dev.streams[2]);
	assert_int_equal(collective(&o, &dev.streams[3]), 0);
	graph_destroy(g);
	shunt_order_finish(&o);
}

static void test_order_forked_capture_is_chained(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, true);
	g = capture_begin(&dev.streams[0]);
	fork_to(&dev.streams[0], &dev.streams[1]);
	fork_to(&dev.streams[0], &dev.streams[2]);
	for (int i = 0; i < 12; i++)
		assert_int_equal(collective(&o, &dev.streams[i / 2 % 3]), 0);
	capture_end(g);
	assert_int_equal(dev.joins, 5);
	assert_int_equal(g->nnodes, 14);
	graph_launch(g, &dev.streams[3]);
	assert_int_equal(collective(&o, &dev.streams[4]), 0);
	graph_destroy(g);
	shunt_order_finish(&o);
}

static void test_order_eager_pays_only_while_a_graph_lives(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, true);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	g = capture_begin(&dev.streams[1]);
	assert_int_equal(collective(&o, &dev.streams[1]), 0);
	assert_int_equal(dev.records, 1); /* what is under way is covered */
	capture_end(g);
	assert_int_equal(shunt_order_graphs(&o), 1);
	calls_reset();
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(dev.waits, 2);
	assert_int_equal(dev.records, 2);
	assert_int_equal(dev.captures_asked, 2);
	assert_int_equal(dev.calls, 6);
	graph_launch(g, &dev.streams[2]);
	graph_destroy(g);
	assert_int_equal(shunt_order_graphs(&o), 0);
	calls_reset();
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(dev.calls, 1);
	shunt_order_finish(&o);
}

static void test_order_graph_of_the_last_eager_stream_is_not_forgotten(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, true);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	wait_for_all(dev.issued);
	g = capture_begin(&dev.streams[0]);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	capture_end(g);
	graph_launch(g, &dev.streams[1]);
	/* The eager call was on the stream that was captured then: it is recorded now, behind the graph. */
	assert_int_equal(collective(&o, &dev.streams[2]), 0);
	graph_destroy(g);
	shunt_order_finish(&o);
}

static void test_order_without_mixing_adds_no_node(void **state)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, false);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	g = capture_begin(&dev.streams[0]);
	fork_to(&dev.streams[0], &dev.streams[1]);
	for (int i = 0; i < 6; i++)
		assert_int_equal(collective(&o, &dev.streams[i % 2]), 0);
	capture_end(g);
	assert_int_equal(g->nnodes, 6);
	assert_int_equal(dev.nodes, 0);
	assert_int_equal(shunt_order_graphs(&o), 0);
	graph_launch(g, &dev.streams[0]); /* the program's order */
	calls_reset();
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	assert_int_equal(dev.calls, 1);
	graph_destroy(g);
	shunt_order_finish(&o);
}

static void test_order_call_that_launches_nothing_does_no_harm(void **state)
{
	for (int mixing = 0; mixing < 2; mixing++) {
		struct stream *s = &dev.streams[0];
		struct shunt_order o;
		struct graph *g;

		shunt_order_init(&o, mixing);
		assert_int_equal(shunt_order_begin(&o, &ops, 0, s), 0);
		assert_int_equal(shunt_order_end(&o, &ops, 0, s), 0);
		g = capture_begin(s);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(shunt_order_begin(&o, &ops, 0, s), 0);
			assert_int_equal(shunt_order_end(&o, &ops, 0, s), 0);
			assert_int_equal(collective(&o, s), 0);
		}
		capture_end(g);
		assert_int_equal(g->nnodes, mixing ? 4 : 2);
		graph_launch(g, s);
		assert_int_equal(collective(&o, mixing ? &dev.streams[1] : s), 0);
		graph_destroy(g);
		shunt_order_finish(&o);
	}
}

static void test_order_two_communicators_in_one_graph_keep_apart(void **state)
{
	struct shunt_order a, b;
	struct graph *g;

	dev.check = false; /* the two share the numbers */
	shunt_order_init(&a, true);
	shunt_order_init(&b, true);
	g = capture_begin(&dev.streams[0]);
	assert_int_equal(collective(&a, &dev.streams[0]), 0);
	assert_int_equal(collective(&a, &dev.streams[0]), 0);
	capture_end(g);
	graph_destroy(g);
	g = capture_begin(&dev.streams[0]);
	assert_int_equal(collective(&b, &dev.streams[0]), 0);
	capture_end(g);
	assert_int_equal(shunt_order_graphs(&a), 0);
	assert_int_equal(shunt_order_graphs(&b), 1);
	calls_reset();
	assert_int_equal(collective(&a, &dev.streams[1]), 0);
	assert_int_equal(collective(&a, &dev.streams[1]), 0);
	assert_int_equal(dev.records, 0);
	graph_destroy(g);
	shunt_order_finish(&a);
	shunt_order_finish(&b);
}

static void test_order_event_lives_as_long_as_a_graph(void **state)
{
	struct shunt_order o, next;
	struct graph *g;

	shunt_order_init(&o, true);
	g = capture_begin(&dev.streams[0]);
	assert_int_equal(collective(&o, &dev.streams[0]), 0);
	capture_end(g);
	shunt_order_finish(&o);
	assert_int_equal(live_events(), 1);
	graph_launch(g, &dev.streams[0]);
	graph_destroy(g);
	assert_int_equal(live_events(), 1); /* no call of the driver is allowed there */
	shunt_order_init(&next, true);
	shunt_order_finish(&next);
	assert_int_equal(live_events(), 0);
}

/* Four captures at once, their launches in turns. */
static void test_order_captures_in_progress_are_told_apart(void **state)
{
	struct graph *g[SHUNT_ORDER_CAPTURES];
	struct shunt_order o;

	shunt_order_init(&o, true);
	for (int i = 0; i < SHUNT_ORDER_CAPTURES; i++)
		g[i] = capture_begin(&dev.streams[i]);
	for (int i = 0; i < 5 * SHUNT_ORDER_CAPTURES; i++)
		assert_int_equal(collective(&o, &dev.streams[i % SHUNT_ORDER_CAPTURES]), 0);
	for (int i = 0; i < SHUNT_ORDER_CAPTURES; i++) {
		assert_int_equal(g[i]->nnodes, 7);
		capture_end(g[i]);
	}
	for (int i = 0; i < 20; i++)
		graph_launch(g[i % 3], &dev.streams[i % 4]);
	for (int i = 0; i < SHUNT_ORDER_CAPTURES; i++)
		graph_destroy(g[i]);
	shunt_order_finish(&o);
}

/* What a program may do, at random. mixing false: how often the order was broken, to show that the test can tell. */
static long wander(unsigned seed, bool mixing)
{
	struct stream *capturing = NULL, *forked = NULL;
	struct graph *g = NULL;
	struct shunt_order o;
	int err = 0;

	shunt_order_init(&o, mixing);
	if (seed % 2)
		shunt_order_set_progress(&o, &dev.progress);
	for (int step = 0; step < 2000 && !err; step++) {
		struct stream *s = &dev.streams[rand_r(&seed) % STREAMS];
		struct graph *any = &dev.graphs[rand_r(&seed) % GRAPHS];
		int what = rand_r(&seed) % 100;

		if (what < 35) {
			static void *const defaults[] = { (void *)0, (void *)1, (void *)2 };
			void *h = rand_r(&seed) % 5 ? (void *)s : defaults[rand_r(&seed) % 3];

			if (!stream_of(h)->graph)
				err = collective(&o, h);
		} else if (what < 45 && !g) {
			/* As frameworks do, unless a graph lives: then nothing needs it. */
			if (!shunt_order_graphs(&o))
				finish();
			g = capture_begin(s);
			capturing = s;
			forked = NULL;
			if (g)
				err = collective(&o, s);
		} else if (what < 60 && g && g->nnodes < NODES - 4) {
			if (!forked && s != capturing && !s->graph) {
				forked = s;
				fork_to(capturing, forked);
			}
			err = collective(&o, forked && what % 2 ? forked : capturing);
		} else if (what < 65 && g) {
			capture_end(g);
			g = NULL;
		} else if (what < 95 && any->ready && !s->graph) {
			graph_launch(any, s);
		} else if (any->ready && what > 97) {
			graph_destroy(any);
		}
	}
	assert_int_equal(err, 0);
	if (g)
		capture_end(g);
	for (int i = 0; i < GRAPHS; i++)
		if (dev.graphs[i].ready)
			graph_destroy(&dev.graphs[i]);
	shunt_order_finish(&o);
	return dev.broken;
}

static void test_order_holds_for_whatever_a_program_does(void **state)
{
	long launches = 0;

	for (unsigned seed = 1; seed <= 300; seed++) {
		start(NULL);
		wander(seed, true);
		launches += dev.issued;
		assert_int_equal(live_events(), 0);
	}
	assert_true(launches > 300000);
}

static void test_order_is_broken_without_mixing(void **state)
{
	dev.check = false;
	assert_true(wander(1, false) > 10);
}

static void test_order_every_failure_is_an_error(void **state)
{
	struct unit_capture c;
	long n, failures = 0;

	for (n = 1; n < 200; n++) {
		struct shunt_order o;
		struct graph *g;
		int err;

		start(NULL);
		dev.check = false;
		shunt_order_init(&o, true);
		dev.fail_at = n;
		unit_capture_begin(&c);
		err = collective(&o, &dev.streams[0]);
		if (!err)
			err = collective(&o, &dev.streams[1]);
		g = capture_begin(&dev.streams[2]);
		fork_to(&dev.streams[2], &dev.streams[3]);
		for (int i = 0; i < 4 && !err; i++)
			err = collective(&o, &dev.streams[2 + i % 2]);
		capture_end(g);
		if (!err)
			err = collective(&o, &dev.streams[1]);
		if (!err)
			err = collective(&o, (void *)2);
		unit_capture_end(&c);
		dev.fail_at = 0;
		graph_destroy(g);
		shunt_order_finish(&o);
		assert_int_equal(live_events(), 0);
		if (dev.calls < n)
			break;
		/* An old stream that cannot be asked is waited for with the device. */
		assert_true(err || dev.syncs);
		failures++;
	}
	assert_true(failures > 20 && n < 200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_order_same_stream_asks_only_for_the_capture, start, stop),
		cmocka_unit_test_setup_teardown(test_order_changed_stream_costs_one_event, start, stop),
		cmocka_unit_test_setup_teardown(test_order_null_and_legacy_are_one_stream, start, stop),
		cmocka_unit_test_setup_teardown(test_order_per_thread_stream_is_another_in_each_thread, start, stop),
		cmocka_unit_test_setup_teardown(test_order_destroyed_stream_is_not_asked, start, stop),
		cmocka_unit_test_setup_teardown(test_order_account_begins_anew_after_graphs, start, stop),
		cmocka_unit_test_setup_teardown(test_order_done_asks_neither_streams_nor_the_device, start, stop),
		cmocka_unit_test_setup_teardown(test_order_done_after_a_failed_call, start, stop),
		cmocka_unit_test_setup_teardown(test_order_destroyed_stream_waits_for_the_device, start, stop),
		cmocka_unit_test_setup_teardown(test_order_invalidated_capture_is_busy, start, stop),
		cmocka_unit_test_setup_teardown(test_order_graph_has_one_wait_and_one_record, start, stop),
		cmocka_unit_test_setup_teardown(test_order_forked_capture_is_chained, start, stop),
		cmocka_unit_test_setup_teardown(test_order_eager_pays_only_while_a_graph_lives, start, stop),
		cmocka_unit_test_setup_teardown(
		    test_order_graph_of_the_last_eager_stream_is_not_forgotten, start, stop),
		cmocka_unit_test_setup_teardown(test_order_without_mixing_adds_no_node, start, stop),
		cmocka_unit_test_setup_teardown(test_order_call_that_launches_nothing_does_no_harm, start, stop),
		cmocka_unit_test_setup_teardown(test_order_two_communicators_in_one_graph_keep_apart, start, stop),
		cmocka_unit_test_setup_teardown(test_order_event_lives_as_long_as_a_graph, start, stop),
		cmocka_unit_test_setup_teardown(test_order_captures_in_progress_are_told_apart, start, stop),
		cmocka_unit_test_setup_teardown(test_order_holds_for_whatever_a_program_does, start, stop),
		cmocka_unit_test_setup_teardown(test_order_is_broken_without_mixing, start, stop),
		cmocka_unit_test_setup_teardown(test_order_every_failure_is_an_error, start, stop),
	};

	return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
