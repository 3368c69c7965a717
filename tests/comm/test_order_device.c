/* SPDX-License-Identifier: MIT */
/*
 * The order of launches on one device, by what the device did: without arguments on the first GPU (skipped with 77
 * without one), with the argument sim on the sim. A launch is two copies: they move a tape on by one cell, from one
 * place to another, and put the launch's name in front. The tape then tells in which order the launches ran, and shows
 * any two that overlapped. Copies are long against the time between two launches.
 */

#include "comm/parts/stream_order.h"
#include "kernels/set.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

enum { CELLS = 512, NAMES = 64, STREAMS = 4, GRAPHS = 2, FORKED = 4 };

static const struct shunt_gpu_ops *ops = &shunt_gpu_cuda_ops;
static size_t cell = 64 << 10;

static struct shunt_order order;
static char *tape[2], *names;
static uint32_t issued_names[CELLS]; /* names, oldest first */
static unsigned nissued_names;
static unsigned turn; /* which tape is the source; launches come in pairs so that those of a graph fit in */
static void *streams[STREAMS];

static void launch(uint32_t name, void *stream)
{
	char *to = tape[!turn], *from = tape[turn];

	assert_int_equal(shunt_order_begin(&order, ops, 0, stream), 0);
	assert_int_equal(ops->copy_async(0, to + cell, from, (CELLS - 1) * cell, stream), 0);
	assert_int_equal(ops->copy_async(0, to, names + name * cell, cell, stream), 0);
	assert_int_equal(shunt_order_end(&order, ops, 0, stream), 0);
	turn = !turn;
}

static void record_issue(uint32_t name)
{
	assert_true(nissued_names < CELLS);
	issued_names[nissued_names++] = name;
}

static void launch_eager(uint32_t name, void *stream)
{
	launch(name, stream);
	record_issue(name);
}

/* The graph's names begin with first. */
static void *capture(uint32_t first, unsigned count, void *s, void *other)
{
	void *graph, *event;

	assert_int_equal(ops->event_create(0, false, &event), 0);
	assert_int_equal(ops->capture_begin(0, s), 0);
	if (other) {
		assert_int_equal(ops->event_record(0, event, s), 0);
		assert_int_equal(ops->event_wait(0, event, other), 0);
	}
	for (unsigned i = 0; i < count; i++)
		launch(first + i, other && i % 2 ? other : s);
	if (other) {
		assert_int_equal(ops->event_record(0, event, other), 0);
		assert_int_equal(ops->event_wait(0, event, s), 0);
	}
	assert_int_equal(ops->capture_end(0, s, &graph), 0);
	ops->event_destroy(0, event);
	return graph;
}

static void replay(void *graph, uint32_t first, unsigned count, void *stream)
{
	assert_int_equal(ops->graph_launch(0, graph, stream), 0);
	for (unsigned i = 0; i < count; i++)
		record_issue(first + i);
}

static void check_tape(void)
{
	uint32_t *all = malloc(CELLS * cell);

	for (int s = 0; s < STREAMS; s++)
		assert_int_equal(ops->stream_sync(0, streams[s]), 0);
	assert_int_equal(ops->copy(0, all, tape[turn], CELLS * cell), 0);
	for (unsigned i = 0; i < nissued_names; i++)
		for (size_t w = 0; w < cell / 4; w++)
			if (all[i * cell / 4 + w] != issued_names[nissued_names - 1 - i])
				fail_msg("word %zu of the launch before the last %u is of %u, not of %u (%u launches)",
				    w, i, all[i * cell / 4 + w], issued_names[nissued_names - 1 - i], nissued_names);
	free(all);
	nissued_names = 0;
}

static int start(void **state)
{
	uint32_t *host = malloc(NAMES * cell);

	for (size_t i = 0; i < NAMES * cell / 4; i++)
		host[i] = (uint32_t)(i / (cell / 4));
	for (int t = 0; t < 2; t++)
		assert_int_equal(ops->mem_alloc(0, CELLS * cell, (void **)&tape[t]), 0);
	assert_int_equal(ops->mem_alloc(0, NAMES * cell, (void **)&names), 0);
	assert_int_equal(ops->copy(0, names, host, NAMES * cell), 0);
	free(host);
	for (int s = 0; s < STREAMS; s++)
		assert_int_equal(ops->stream_create(0, &streams[s]), 0);
	shunt_order_init(&order, true);
	turn = nissued_names = 0;
	return 0;
}

static int stop(void **state)
{
	ops->device_sync(0);
	shunt_order_finish(&order);
	for (int s = 0; s < STREAMS; s++)
		ops->stream_destroy(0, streams[s]);
	for (int t = 0; t < 2; t++)
		ops->mem_free(tape[t]);
	ops->mem_free(names);
	return 0;
}

TEST(test_device_order_eager_on_changing_streams)
{
	for (int i = 0; i < 100; i++) {
		void *s = i % 10 == 9 ? (void *)(uintptr_t)(i / 10 % 3) : streams[i % STREAMS];

		launch_eager((uint32_t)i % 50, s);
		launch_eager((uint32_t)i % 50, streams[(i + i / 4) % STREAMS]);
	}
	ops->device_sync(0);
	check_tape();
}

TEST(test_device_order_graph_beside_eager)
{
	void *graph = capture(50, 2, streams[0], NULL);

	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 100; i++) {
			replay(graph, 50, 2, streams[0]);
			launch_eager((uint32_t)i % 50, streams[1]);
			launch_eager((uint32_t)i % 50, streams[1]);
		}
		check_tape();
	}
	ops->graph_destroy(0, graph);
}

TEST(test_device_order_whatever_is_launched)
{
	void *graph[GRAPHS] = { capture(50, 2, streams[0], NULL), capture(54, FORKED, streams[1], streams[2]) };
	unsigned seed = 5;

	for (int round = 0; round < 8; round++) {
		for (int i = 0; i < 120; i++) {
			int what = rand_r(&seed) % 4;
			void *s = streams[rand_r(&seed) % STREAMS];

			if (what == 0) {
				replay(graph[0], 50, 2, s);
			} else if (what == 1) {
				replay(graph[1], 54, FORKED, s);
			} else {
				launch_eager((uint32_t)i % 50, s);
				launch_eager((uint32_t)i % 50, streams[rand_r(&seed) % STREAMS]);
			}
		}
		check_tape();
	}
	assert_int_equal(shunt_order_graphs(&order), GRAPHS);
	for (int g = 0; g < GRAPHS; g++)
		ops->graph_destroy(0, graph[g]);
	for (int i = 0; i < 1000 && shunt_order_graphs(&order); i++)
		pause_us(PAUSE_POLL, 1000); /* the driver tells it from a thread of its own */
	assert_int_equal(shunt_order_graphs(&order), 0);
	for (int i = 0; i < 20; i++)
		launch_eager((uint32_t)i, streams[i % STREAMS]);
	check_tape();
}

TEST(test_device_order_destroyed_with_a_graph_alive)
{
	void *graph = capture(50, 2, streams[0], NULL);

	replay(graph, 50, 2, streams[0]);
	check_tape();
	shunt_order_finish(&order);
	ops->graph_destroy(0, graph);
	assert_int_equal(ops->device_sync(0), 0);
	shunt_order_init(&order, true);
	launch_eager(1, streams[1]);
	launch_eager(2, streams[2]);
	check_tape();
}

int main(int argc, char **argv)
{
	int count;

	if (argc > 1 && !strcmp(argv[1], "sim")) {
		ops = &shunt_gpu_sim_ops;
		cell = 4096;
	}
	if (ops->open(&shunt_kernels) || ops->device_count(&count) || count < 1) {
		printf("skipped: test_order_device needs a GPU and a build with CUDA kernels\n");
		return 77;
	}
	tests_each(start, stop);
	return tests_run(NULL, NULL);
}
