/* SPDX-License-Identifier: MIT */
/* The order of a communicator's launches, over a device that only keeps books. */
#include "tests/comm/order_books.h"

static struct shunt_order o; /* of a communicator whose graphs may mix; a few tests make others */

static int start(void **state)
{
	books_reset();
	shunt_order_init(&o, true);
	return 0;
}

static int stop(void **state)
{
	shunt_order_finish(&o);
	return books_live_events() ? -1 : 0;
}

/* Eager calls. */

TEST(test_order_same_stream_asks_only_for_the_capture)
{
	for (int i = 0; i < 100; i++)
		assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books.captures_asked, 100);
	assert_int_equal(books.calls, 100);
}

TEST(test_order_changed_stream_costs_one_event)
{
	for (int i = 0; i < 100; i++)
		assert_int_equal(books_collective(&o, &books.streams[i % 3]), 0);
	assert_int_equal(books.records, 1 + 99); /* the first late, each other one by its call */
	assert_int_equal(books.waits, 99);
	assert_int_equal(books.captures_asked, 1 + 100);
	assert_int_equal(books.creates, 1);
	for (int i = 0; i < SHUNT_ORDER_KEEP; i++)
		assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books_calls_reset();
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books.calls, 1);
}

TEST(test_order_null_and_legacy_are_one_stream)
{
	for (uintptr_t i = 0; i < 10; i++)
		assert_int_equal(books_collective(&o, (void *)(i % 2)), 0);
	assert_int_equal(books.calls, 10);
}

static void *on_other_thread(void *order)
{
	books_other_thread = true;
	for (int i = 0; i < 3; i++)
		if (books_collective(order, (void *)2))
			return order;
	return NULL;
}

TEST(test_order_per_thread_stream_is_another_in_each_thread)
{
	pthread_t thread;
	void *failed;

	for (int i = 0; i < 4; i++) {
		assert_int_equal(books_collective(&o, (void *)2), 0);
		books_calls_reset();
		assert_int_equal(pthread_create(&thread, NULL, on_other_thread, &o), 0);
		pthread_join(thread, &failed);
		assert_null(failed);
		assert_int_equal(books.waits, 1);
		/* What has no name here was recorded there. */
		assert_int_equal(books.records, 3);
		assert_int_equal(books_collective(&o, &books.streams[1]), 0);
		assert_int_equal(books_collective(&o, NULL), 0);
	}
}

/* The driver would not survive a question about it. */
TEST(test_order_destroyed_stream_is_not_asked)
{
	shunt_order_set_progress(&o, &books.progress);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books_finish();
	books.streams[0].gone = true;
	/* Each of these has recorded the event, so that it may be under way. */
	for (int i = 1; i < 4; i++) {
		assert_int_equal(books_collective(&o, &books.streams[i]), 0);
		books.streams[i].gone = true;
	}
	assert_int_equal(books.captures_asked, 4);
	for (int i = 0; i < 2 * SHUNT_ORDER_KEEP; i++)
		assert_int_equal(books_collective(&o, &books.streams[4]), 0);
	books_finish();
	books.streams[4].gone = true;
	books.streams[0].gone = false;
	books_calls_reset();
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books.captures_asked, 1);
	assert_int_equal(books.syncs, 0);
}

TEST(test_order_account_begins_anew_after_graphs)
{
	struct graph *g;

	shunt_order_set_progress(&o, &books.progress);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	g = books_capture_begin(&books.streams[1]);
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	books_capture_end(g);
	for (int i = 0; i < 3; i++)
		books_graph_launch(g, &books.streams[2]);
	books_graph_destroy(g);
	/* As long as something of the graph runs, the event goes on. */
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books.streams[0].gone = true;
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	for (int i = 0; i < SHUNT_ORDER_KEEP; i++)
		assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	books_finish();
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	books_calls_reset();
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	assert_int_equal(books.calls, 1);
	books_finish();
	books.streams[1].gone = true;
	assert_int_equal(books_collective(&o, &books.streams[2]), 0);
	assert_int_equal(books.captures_asked, 2);
	assert_int_equal(books.syncs, 0);
}

static bool all_done(const struct shunt_order *o)
{
	bool done;

	assert_int_equal(shunt_order_done(o, &books_ops, 0, &done), 0);
	return done;
}

/* It would spoil a capture that has nothing to do with us. */
TEST(test_order_done_asks_neither_streams_nor_the_device)
{
	struct graph *g;

	shunt_order_set_progress(&o, &books.progress);
	assert_true(all_done(&o));
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_false(all_done(&o));
	books_finish();
	assert_true(all_done(&o));
	g = books_capture_begin(&books.streams[1]);
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	assert_true(all_done(&o));
	books_capture_end(g);
	for (int i = 0; i < 3; i++) {
		books_graph_launch(g, &books.streams[2]);
		assert_false(all_done(&o));
		books.progress.ended = books.progress.begun; /* between two launches that were issued */
		assert_false(all_done(&o));
		books_finish();
		assert_true(all_done(&o));
	}
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_false(all_done(&o));
	books_graph_destroy(g);
	books_finish();
	assert_true(all_done(&o));
	assert_int_equal(books.syncs, 0);
	assert_int_equal(books.captures_asked, 3);
}

/* A call that fails half-way: what it has launched is waited for, and what would have ended its warps never comes. */
TEST(test_order_done_after_a_failed_call)
{
	struct stream *s = &books.streams[0];

	shunt_order_set_progress(&o, &books.progress);
	assert_int_equal(books_collective(&o, s), 0);
	books_finish();
	assert_int_equal(shunt_order_begin(&o, &books_ops, 0, s), 0);
	books_run(&s->clock);
	shunt_order_add_warps(&o, WARPS + 1);
	shunt_order_end_partial(&o, &books_ops, 0, s);
	assert_false(all_done(&o));
	books_finish();
	assert_true(all_done(&o));
	assert_int_equal(books.syncs, 0);
}

TEST(test_order_destroyed_stream_waits_for_the_device)
{
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books.streams[0].gone = true;
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	assert_int_equal(books.syncs, 1);
	assert_int_equal(books_collective(&o, &books.streams[2]), 0);
	assert_int_equal(books.syncs, 1);
}

TEST(test_order_invalidated_capture_is_busy)
{
	struct unit_capture c;
	int err;

	books.state = SHUNT_CAPTURE_INVALID;
	unit_capture_begin(&c);
	err = books_collective(&o, NULL);
	unit_capture_end(&c);
	assert_int_equal(err, -EBUSY);
	assert_int_equal(books.issued, 0);
}

/* Graphs. */

TEST(test_order_graph_has_one_wait_and_one_record)
{
	struct graph *g;

	g = books_capture_begin(&books.streams[0]);
	for (int i = 0; i < 20; i++) {
		books_add_node(&books.streams[0], OTHER, NULL);
		assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	}
	books_capture_end(g);
	assert_int_equal(g->nnodes, 42);
	assert_int_equal(books.nodes, 2);
	assert_int_equal(books.moves, 19);
	assert_int_equal(books.joins, 0);
	/* A chain, and the record beside its end: nothing follows that. */
	for (unsigned i = 0; i < g->nnodes; i++)
		for (unsigned p = 0; p < g->nodes[i].npreds; p++)
			assert_int_not_equal(g->nodes[i].preds[p]->kind, RECORD);
	assert_int_equal(g->nodes[1].kind, WAIT);
	books_graph_launch(g, &books.streams[1]);
	books_graph_launch(g, &books.streams[2]);
	assert_int_equal(books_collective(&o, &books.streams[3]), 0);
	books_graph_destroy(g);
}

TEST(test_order_forked_capture_is_chained)
{
	struct graph *g;

	g = books_capture_begin(&books.streams[0]);
	books_fork_to(&books.streams[0], &books.streams[1]);
	books_fork_to(&books.streams[0], &books.streams[2]);
	for (int i = 0; i < 12; i++)
		assert_int_equal(books_collective(&o, &books.streams[i / 2 % 3]), 0);
	books_capture_end(g);
	assert_int_equal(books.joins, 5);
	assert_int_equal(g->nnodes, 14);
	books_graph_launch(g, &books.streams[3]);
	assert_int_equal(books_collective(&o, &books.streams[4]), 0);
	books_graph_destroy(g);
}

TEST(test_order_eager_pays_only_while_a_graph_lives)
{
	struct graph *g;

	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	g = books_capture_begin(&books.streams[1]);
	assert_int_equal(books_collective(&o, &books.streams[1]), 0);
	assert_int_equal(books.records, 1); /* what is under way is covered */
	books_capture_end(g);
	assert_int_equal(shunt_order_graphs(&o), 1);
	books_calls_reset();
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books.waits, 2);
	assert_int_equal(books.records, 2);
	assert_int_equal(books.captures_asked, 2);
	assert_int_equal(books.calls, 6);
	books_graph_launch(g, &books.streams[2]);
	books_graph_destroy(g);
	assert_int_equal(shunt_order_graphs(&o), 0);
	books_calls_reset();
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books.calls, 1);
}

TEST(test_order_graph_of_the_last_eager_stream_is_not_forgotten)
{
	struct graph *g;

	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books_wait_for_all(books.issued);
	g = books_capture_begin(&books.streams[0]);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books_capture_end(g);
	books_graph_launch(g, &books.streams[1]);
	/* The eager call was on the stream that was captured then: it is recorded now, behind the graph. */
	assert_int_equal(books_collective(&o, &books.streams[2]), 0);
	books_graph_destroy(g);
}

TEST(test_order_without_mixing_adds_no_node)
{
	struct shunt_order o;
	struct graph *g;

	shunt_order_init(&o, false);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	g = books_capture_begin(&books.streams[0]);
	books_fork_to(&books.streams[0], &books.streams[1]);
	for (int i = 0; i < 6; i++)
		assert_int_equal(books_collective(&o, &books.streams[i % 2]), 0);
	books_capture_end(g);
	assert_int_equal(g->nnodes, 6);
	assert_int_equal(books.nodes, 0);
	assert_int_equal(shunt_order_graphs(&o), 0);
	books_graph_launch(g, &books.streams[0]); /* the program's order */
	books_calls_reset();
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	assert_int_equal(books.calls, 1);
	books_graph_destroy(g);
	shunt_order_finish(&o);
}

/* The event says nothing about a graph that nothing orders. */
TEST(test_order_done_after_a_failed_call_without_mixing_asks_the_device)
{
	struct shunt_order o;
	struct graph *g;
	bool done;

	shunt_order_init(&o, false);
	shunt_order_set_progress(&o, &books.progress);
	g = books_capture_begin(&books.streams[0]);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books_capture_end(g);
	assert_int_equal(books_collective_partial(&o, &books.streams[1]), 0);
	assert_int_equal(books.syncs, 0);
	assert_int_equal(shunt_order_done(&o, &books_ops, 0, &done), 0);
	assert_int_equal(books.syncs, 1);
	books_graph_destroy(g);
	shunt_order_finish(&o);
}

TEST(test_order_call_that_launches_nothing_does_no_harm)
{
	for (int mixing = 0; mixing < 2; mixing++) {
		struct stream *s = &books.streams[0];
		struct shunt_order o;
		struct graph *g;

		shunt_order_init(&o, mixing);
		assert_int_equal(shunt_order_begin(&o, &books_ops, 0, s), 0);
		assert_int_equal(shunt_order_end(&o, &books_ops, 0, s), 0);
		g = books_capture_begin(s);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(shunt_order_begin(&o, &books_ops, 0, s), 0);
			assert_int_equal(shunt_order_end(&o, &books_ops, 0, s), 0);
			assert_int_equal(books_collective(&o, s), 0);
		}
		books_capture_end(g);
		assert_int_equal(g->nnodes, mixing ? 4 : 2);
		books_graph_launch(g, s);
		assert_int_equal(books_collective(&o, mixing ? &books.streams[1] : s), 0);
		books_graph_destroy(g);
		shunt_order_finish(&o);
	}
}

TEST(test_order_two_communicators_in_one_graph_keep_apart)
{
	struct shunt_order a, b;
	struct graph *g;

	books.check = false; /* the two share the numbers */
	shunt_order_init(&a, true);
	shunt_order_init(&b, true);
	g = books_capture_begin(&books.streams[0]);
	assert_int_equal(books_collective(&a, &books.streams[0]), 0);
	assert_int_equal(books_collective(&a, &books.streams[0]), 0);
	books_capture_end(g);
	books_graph_destroy(g);
	g = books_capture_begin(&books.streams[0]);
	assert_int_equal(books_collective(&b, &books.streams[0]), 0);
	books_capture_end(g);
	assert_int_equal(shunt_order_graphs(&a), 0);
	assert_int_equal(shunt_order_graphs(&b), 1);
	books_calls_reset();
	assert_int_equal(books_collective(&a, &books.streams[1]), 0);
	assert_int_equal(books_collective(&a, &books.streams[1]), 0);
	assert_int_equal(books.records, 0);
	books_graph_destroy(g);
	shunt_order_finish(&a);
	shunt_order_finish(&b);
}

TEST(test_order_event_lives_as_long_as_a_graph)
{
	struct shunt_order o, next;
	struct graph *g;

	shunt_order_init(&o, true);
	g = books_capture_begin(&books.streams[0]);
	assert_int_equal(books_collective(&o, &books.streams[0]), 0);
	books_capture_end(g);
	shunt_order_finish(&o);
	assert_int_equal(books_live_events(), 1);
	books_graph_launch(g, &books.streams[0]);
	books_graph_destroy(g);
	assert_int_equal(books_live_events(), 1); /* no call of the driver is allowed there */
	shunt_order_init(&next, true);
	shunt_order_finish(&next);
	assert_int_equal(books_live_events(), 0);
}

/* Four captures at once, their launches in turns. */
TEST(test_order_captures_in_progress_are_told_apart)
{
	struct graph *g[SHUNT_ORDER_CAPTURES];

	for (int i = 0; i < SHUNT_ORDER_CAPTURES; i++)
		g[i] = books_capture_begin(&books.streams[i]);
	for (int i = 0; i < 5 * SHUNT_ORDER_CAPTURES; i++)
		assert_int_equal(books_collective(&o, &books.streams[i % SHUNT_ORDER_CAPTURES]), 0);
	for (int i = 0; i < SHUNT_ORDER_CAPTURES; i++) {
		assert_int_equal(g[i]->nnodes, 7);
		books_capture_end(g[i]);
	}
	for (int i = 0; i < 20; i++)
		books_graph_launch(g[i % 3], &books.streams[i % 4]);
	for (int i = 0; i < SHUNT_ORDER_CAPTURES; i++)
		books_graph_destroy(g[i]);
}
TEST(test_order_holds_for_whatever_a_program_does)
{
	long launches = 0;

	for (unsigned seed = 1; seed <= 300; seed++) {
		struct choices choices = { .seed = seed * UINT64_C(0x9e3779b97f4a7c15) };

		books_reset();
		books_walk(&choices, 2000, true);
		launches += books.issued;
		assert_int_equal(books_live_events(), 0);
	}
	assert_true(launches > 300000);
}

TEST(test_order_is_broken_without_mixing)
{
	struct choices choices = { .seed = 1 };

	books.check = false;
	assert_true(books_walk(&choices, 2000, false) > 10);
}

TEST(test_order_every_failure_is_an_error)
{
	struct unit_capture c;
	long n, failures = 0;

	for (n = 1; n < 200; n++) {
		struct shunt_order o;
		struct graph *g;
		int err;

		start(NULL);
		books.check = false;
		shunt_order_init(&o, true);
		books.fail_at = n;
		unit_capture_begin(&c);
		err = books_collective(&o, &books.streams[0]);
		if (!err)
			err = books_collective(&o, &books.streams[1]);
		g = books_capture_begin(&books.streams[2]);
		books_fork_to(&books.streams[2], &books.streams[3]);
		for (int i = 0; i < 4 && !err; i++)
			err = books_collective(&o, &books.streams[2 + i % 2]);
		books_capture_end(g);
		if (!err)
			err = books_collective(&o, &books.streams[1]);
		if (!err)
			err = books_collective(&o, (void *)2);
		unit_capture_end(&c);
		books.fail_at = 0;
		books_graph_destroy(g);
		shunt_order_finish(&o);
		assert_int_equal(books_live_events(), 0);
		if (books.calls < n)
			break;
		/* An old stream that cannot be asked is waited for with the device. */
		assert_true(err || books.syncs);
		failures++;
	}
	assert_true(failures > 20 && n < 200);
}

TESTS_EACH(start, stop)
