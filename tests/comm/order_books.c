/* SPDX-License-Identifier: MIT */
#include "tests/comm/order_books.h"

struct books books;
__thread bool books_other_thread;

static struct stream *stream_of(void *handle)
{
	if ((uintptr_t)handle <= 1)
		return &books.legacy;
	if ((uintptr_t)handle == 2)
		return books_other_thread ? &books.theirs : &books.mine;
	return handle;
}

#define CALL(counter) \
	do { \
		books.counter++; \
		if (++books.calls == books.fail_at) \
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
	*state_p = books.state ? books.state : stream_of(stream)->graph ? SHUNT_CAPTURE_ACTIVE : SHUNT_CAPTURE_NONE;
	return 0;
}

static int event_create(int device, bool timing, void **event_p)
{
	CALL(creates);
	assert_false(timing);
	for (int i = 0; i < EVENTS; i++) {
		if (books.events[i].live)
			continue;
		books.events[i] = (struct event){ .live = true };
		*event_p = &books.events[i];
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

void books_wait_for_all(long number)
{
	struct stream *all[] = { &books.legacy, &books.mine, &books.theirs };

	for (int i = 0; i < STREAMS; i++)
		books.streams[i].clock = later(books.streams[i].clock, number);
	for (int i = 0; i < 3; i++)
		all[i]->clock = later(all[i]->clock, number);
}

static int device_sync(int device)
{
	CALL(syncs);
	books_wait_for_all(books.issued);
	books.settled = books.issued;
	return 0;
}

/* The device comes to the end of all that was issued. */
void books_finish(void)
{
	books.done = books.settled = books.issued;
	books.progress.ended = books.progress.begun;
	books_wait_for_all(books.issued);
}

static int event_done(int device, void *event, bool *done_p)
{
	struct event *e = event;

	CALL(looks);
	assert_true(e->live);
	*done_p = e->clock <= books.done;
	return 0;
}

static int copy(int device, void *dst, const void *src, size_t bytes)
{
	CALL(looks);
	memcpy(dst, src, bytes);
	return 0;
}

/* A node behind what the stream holds. */
struct node *books_add_node(struct stream *s, enum node_kind kind, struct event *event)
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
	*info_p = (struct shunt_gpu_capture){ .state = books.state };
	if (!s->graph || books.state)
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
	books_add_node(stream_of(stream), WAIT, event);
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

	books.calls++;
	if (books.calls == books.fail_at) {
		drop(arg);
		return -EIO;
	}
	assert_true(g->capturing && !g->drops);
	g->drop = drop;
	g->arg = arg;
	g->drops = 1;
	return 0;
}

const struct shunt_gpu_ops books_ops = {
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

void books_run(long *clock)
{
	long n = ++books.issued;

	if (books.check && *clock != n - 1)
		fail_msg("launch %ld follows %ld only", n, *clock);
	books.broken += *clock != n - 1;
	*clock = n;
	books.progress.begun += WARPS;
}

/*
 * The tables of comm/parts/stream_order.h: which states may follow a state at the begin of a call. A row of bits for
 * each state.
 */
#define BIT(state) (1u << (state))

static const unsigned last_after_begin[] = {
	[SHUNT_ORDER_NONE] = BIT(SHUNT_ORDER_NONE),
	[SHUNT_ORDER_BARE] = BIT(SHUNT_ORDER_NONE) | BIT(SHUNT_ORDER_BARE) | BIT(SHUNT_ORDER_COVERED),
	[SHUNT_ORDER_COVERED] = BIT(SHUNT_ORDER_NONE) | BIT(SHUNT_ORDER_COVERED),
};

static const unsigned account_after_eager_begin[] = {
	[SHUNT_ACCOUNT_NONE] = BIT(SHUNT_ACCOUNT_NONE),
	[SHUNT_ACCOUNT_EXACT] = BIT(SHUNT_ACCOUNT_EXACT),
	[SHUNT_ACCOUNT_GRAPHS] = BIT(SHUNT_ACCOUNT_GRAPHS) | BIT(SHUNT_ACCOUNT_EXACT),
	[SHUNT_ACCOUNT_EVENT] = 0,
};

static const unsigned account_after_captured_begin[] = {
	[SHUNT_ACCOUNT_NONE] = BIT(SHUNT_ACCOUNT_NONE),
	[SHUNT_ACCOUNT_EXACT] = BIT(SHUNT_ACCOUNT_GRAPHS),
	[SHUNT_ACCOUNT_GRAPHS] = BIT(SHUNT_ACCOUNT_GRAPHS),
	[SHUNT_ACCOUNT_EVENT] = 0,
};

static void check_step(const char *what, unsigned allowed, unsigned to)
{
	if (!(allowed & BIT(to)))
		fail_msg("%s went to state %u", what, to);
}

/* Each state says what the books know. */
static void check_truth(const struct shunt_order *order)
{
	long covered = 0;

	if (!books.check)
		return;
	for (int i = 0; i < EVENTS; i++)
		if (books.events[i].live)
			covered = later(covered, books.events[i].clock);
	if (order->last_state == SHUNT_ORDER_NONE)
		assert_true(books.eager <= books.settled);
	if (order->last_state == SHUNT_ORDER_COVERED)
		assert_true(books.eager <= covered);
	if (order->account == SHUNT_ACCOUNT_EXACT)
		assert_int_equal(books.progress.begun, order->warps);
}

static int begin(struct shunt_order *order, void *stream)
{
	enum shunt_order_last last = order->last_state;
	enum shunt_order_account account = order->account;
	int err = shunt_order_begin(order, &books_ops, 0, stream);

	if (err)
		return err;
	check_step("the last launch, at a begin,", last_after_begin[last], order->last_state);
	if (stream_of(stream)->graph)
		check_step("the account, at a captured begin,", account_after_captured_begin[account], order->account);
	else
		check_step("the account, at an eager begin,", account_after_eager_begin[account], order->account);
	check_truth(order);
	return 0;
}

static void launch(struct shunt_order *order, void *stream)
{
	struct stream *s = stream_of(stream);

	if (s->graph) {
		books_add_node(s, KERNEL, NULL);
	} else {
		books_run(&s->clock);
		books.eager = books.issued;
	}
	shunt_order_add_warps(order, WARPS);
}

int books_collective(struct shunt_order *order, void *stream)
{
	enum shunt_order_account account;
	enum shunt_order_last last;
	int err = begin(order, stream);

	if (err)
		return err;
	launch(order, stream);
	last = order->last_state;
	account = order->account;
	err = shunt_order_end(order, &books_ops, 0, stream);
	assert_int_equal(order->account, account);
	if (stream_of(stream)->graph)
		assert_int_equal(order->last_state, last);
	else
		check_step("the last launch, at an eager end,", BIT(SHUNT_ORDER_BARE) | BIT(SHUNT_ORDER_COVERED),
		    order->last_state);
	check_truth(order);
	return err;
}

int books_collective_partial(struct shunt_order *order, void *stream)
{
	enum shunt_order_account account;
	int err = begin(order, stream);

	if (err)
		return err;
	launch(order, stream);
	shunt_order_add_warps(order, 1); /* of a launch that was not made */
	account = order->account;
	shunt_order_end_partial(order, &books_ops, 0, stream);
	if (stream_of(stream)->graph || account == SHUNT_ACCOUNT_NONE)
		assert_int_equal(order->account, account);
	else if (account == SHUNT_ACCOUNT_GRAPHS && !order->mixing)
		assert_int_equal(order->account, SHUNT_ACCOUNT_NONE);
	else
		assert_int_equal(order->account, SHUNT_ACCOUNT_EVENT);
	return 0;
}

struct graph *books_capture_begin(struct stream *s)
{
	for (int i = 0; i < GRAPHS; i++) {
		struct graph *g = &books.graphs[i];

		if (g->capturing || g->ready)
			continue;
		memset(g, 0, sizeof(*g));
		g->id = ++books.captures;
		g->capturing = true;
		s->graph = g;
		s->ntips = 0;
		return g;
	}
	return NULL;
}

/* The program's own fork and join. */
void books_fork_to(struct stream *from, struct stream *to)
{
	to->graph = from->graph;
	to->ntips = from->ntips;
	memcpy(to->tips, from->tips, sizeof(to->tips));
}

void books_capture_end(struct graph *g)
{
	for (int i = 0; i < STREAMS; i++)
		if (books.streams[i].graph == g)
			books.streams[i].graph = NULL;
	g->capturing = false;
	g->ready = true;
}

void books_graph_launch(struct graph *g, struct stream *s)
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
				books_run(&clock);
			else if (n->kind == WAIT)
				clock = later(clock, bound[i]);
			else if (n->kind == RECORD)
				n->event->clock = clock;
			n->clock = clock;
			end = later(end, clock);
		}
	}
	s->clock = end;
	g->last = books.issued;
}

void books_graph_destroy(struct graph *g)
{
	/* Launches that run hold the graph. */
	books_wait_for_all(g->last);
	g->ready = false;
	if (g->drops)
		g->drop(g->arg);
	g->drops = 0;
}

int books_live_events(void)
{
	int n = 0;

	for (int i = 0; i < EVENTS; i++)
		n += books.events[i].live;
	return n;
}

void books_reset(void)
{
	memset(&books, 0, sizeof(books));
	books.check = true;
}

void books_calls_reset(void)
{
	books.calls = books.captures_asked = books.records = books.waits = books.creates = books.syncs = books.infos =
	    books.nodes = books.joins = books.moves = books.looks = 0;
}
/* A walk's program: one capture at a time, in one or two streams. */
struct walk {
	struct choices *choices;
	struct shunt_order order;
	struct stream *capturing, *forked;
	struct graph *graph; /* of the capture in progress */
};

static int walk_eager(struct walk *w, struct stream *s)
{
	static void *const defaults[] = { (void *)0, (void *)1, (void *)2 };
	void *h = choices_below(w->choices, 5) ? (void *)s : defaults[choices_below(w->choices, 3)];

	return stream_of(h)->graph ? 0 : books_collective(&w->order, h);
}

static int walk_capture_begin(struct walk *w, struct stream *s)
{
	if (w->graph)
		return 0;
	/* As frameworks do, unless a graph lives: then nothing needs it. */
	if (!shunt_order_graphs(&w->order))
		books_finish();
	w->graph = books_capture_begin(s);
	w->capturing = s;
	w->forked = NULL;
	return w->graph ? books_collective(&w->order, s) : 0;
}

static int walk_capture_call(struct walk *w, struct stream *s)
{
	if (!w->graph || w->graph->nnodes >= NODES - 4)
		return 0;
	if (!w->forked && s != w->capturing && !s->graph) {
		w->forked = s;
		books_fork_to(w->capturing, s);
	}
	return books_collective(&w->order, w->forked && choices_below(w->choices, 2) ? w->forked : w->capturing);
}

static void walk_capture_end(struct walk *w)
{
	if (w->graph)
		books_capture_end(w->graph);
	w->graph = NULL;
}

/* What was launched is done when the order says so. */
static void walk_ask(struct walk *w)
{
	bool done;

	assert_int_equal(shunt_order_done(&w->order, &books_ops, 0, &done), 0);
	if (books.check && done)
		assert_int_equal(books.issued, books.settled);
}

static int walk_step(struct walk *w)
{
	struct stream *s = &books.streams[choices_below(w->choices, STREAMS)];
	struct graph *any = &books.graphs[choices_below(w->choices, GRAPHS)];
	unsigned what = choices_below(w->choices, 100);

	if (what < 35)
		return walk_eager(w, s);
	if (what < 45)
		return walk_capture_begin(w, s);
	if (what < 60)
		return walk_capture_call(w, s);
	if (what < 65)
		walk_capture_end(w);
	else if (what < 92 && any->ready && !s->graph)
		books_graph_launch(any, s);
	else if (what == 92)
		books_finish();
	else if (what < 95)
		walk_ask(w);
	else if (what > 97 && any->ready)
		books_graph_destroy(any);
	return 0;
}

long books_walk(struct choices *choices, int steps, bool mixing)
{
	struct walk w = { .choices = choices };

	shunt_order_init(&w.order, mixing);
	if (choices_below(choices, 2))
		shunt_order_set_progress(&w.order, &books.progress);
	for (int step = 0; step < steps && !choices_ended(choices); step++)
		assert_int_equal(walk_step(&w), 0);
	walk_capture_end(&w);
	if (choices_below(choices, 4) == 0)
		assert_int_equal(books_collective_partial(&w.order, &books.streams[0]), 0);
	if (books.check)
		walk_ask(&w);
	books_finish();
	for (int i = 0; i < GRAPHS; i++)
		if (books.graphs[i].ready)
			books_graph_destroy(&books.graphs[i]);
	shunt_order_finish(&w.order);
	return books.broken;
}
