/* SPDX-License-Identifier: MIT */
/*
 * The real kernels of one communicator, eager and in graphs, on streams that nothing else orders. Each call adds up a
 * buffer over the ranks in place, so that a buffer tells how many calls it has seen; two launches that overlap leave
 * wrong sums, or none.
 */
#include "comm/parts/stream_order.h"
#include "device/sim/hooks.h"
#include "tests/algos/world.h"
#include "tests/support/test.h"
#include "kernels/set.h"

enum { RANKS = 3, STREAMS = 3, BUFFERS = 5 };

/* ThreadSanitizer sees a race the first time: there a half of the rounds, which has each buffer on each stream. */
#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 1, WORDS = 1000 };
#else
enum { ROUNDS = 2, WORDS = 2500 };
#endif

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

struct rank {
	struct shunt_order order;
	void *stream[STREAMS];
	uint64_t *buf[BUFFERS];
	void *graph[2];
};

static struct world w;
static struct rank ranks[RANKS];
static unsigned calls[BUFFERS]; /* that were issued */

static const struct {
	const char *shape;
	size_t words;
} what[BUFFERS] = { { "oneshot", 100 }, { "oneshot", WORDS }, { "twoshot", WORDS }, { "oneshot", 7 },
	{ "twoshot", 700 } };

static void allreduce(int r, int b, void *stream)
{
	struct shunt_coll coll = { .kind = SHUNT_ALLREDUCE,
		.dtype = SHUNT_U64,
		.redop = SHUNT_SUM,
		.send = ranks[r].buf[b],
		.recv = ranks[r].buf[b],
		.count = what[b].words,
		.stream = stream };

	assert_int_equal(shunt_order_begin(&ranks[r].order, gpu, r, stream), 0);
	w.stream[r] = stream;
	world_launch(&w, r, &coll, what[b].shape);
	assert_int_equal(shunt_order_end(&ranks[r].order, gpu, r, stream), 0);
}

static uint64_t start_value(int r, int b, size_t i)
{
	return 1 + (uint64_t)r * 1000003 + (uint64_t)b * 77 + i * 31;
}

static void check_buffers(void)
{
	for (int r = 0; r < RANKS; r++)
		for (int b = 0; b < BUFFERS; b++)
			for (size_t i = 0; i < what[b].words; i++) {
				uint64_t want = start_value(r, b, i);

				for (unsigned c = 0; c < calls[b]; c++) {
					uint64_t sum = 0;

					for (int p = 0; p < RANKS; p++)
						sum += c ? want : start_value(p, b, i);
					want = sum;
				}
				if (ranks[r].buf[b][i] != want)
					fail_msg("rank %d, buffer %d, word %zu of %zu, after %u calls", r, b, i,
					    what[b].words, calls[b]);
			}
}

static void wait_for_all(void)
{
	for (int r = 0; r < RANKS; r++) {
		for (int s = 0; s < STREAMS; s++) {
			w.stream[r] = ranks[r].stream[s];
			world_wait(&w, r, "order");
		}
	}
}

/* Graph 0: two shapes, on one stream. Graph 1: two branches. */
static void capture(int r)
{
	struct rank *me = &ranks[r];
	void *event, *s = me->stream[0], *t = me->stream[1];

	assert_int_equal(gpu->capture_begin(r, s), 0);
	allreduce(r, 0, s);
	allreduce(r, 1, s);
	assert_int_equal(gpu->capture_end(r, s, &me->graph[0]), 0);

	assert_int_equal(gpu->event_create(r, false, &event), 0);
	assert_int_equal(gpu->capture_begin(r, s), 0);
	assert_int_equal(gpu->event_record(r, event, s), 0);
	assert_int_equal(gpu->event_wait(r, event, t), 0);
	allreduce(r, 2, s);
	allreduce(r, 1, t);
	allreduce(r, 2, s);
	assert_int_equal(gpu->event_record(r, event, t), 0);
	assert_int_equal(gpu->event_wait(r, event, s), 0);
	assert_int_equal(gpu->capture_end(r, s, &me->graph[1]), 0);
	gpu->event_destroy(r, event);
}

static int start(void **state)
{
	memset(calls, 0, sizeof(calls));
	world_start(&w, RANKS);
	for (int r = 0; r < RANKS; r++) {
		struct rank *me = &ranks[r];

		gpu->stream_destroy(r, w.stream[r]);
		shunt_order_init(&me->order, true);
		for (int s = 0; s < STREAMS; s++)
			assert_int_equal(gpu->stream_create(r, &me->stream[s]), 0);
		for (int b = 0; b < BUFFERS; b++) {
			me->buf[b] = (uint64_t *)world_alloc(r, WORDS * sizeof(uint64_t));
			for (size_t i = 0; i < WORDS; i++)
				me->buf[b][i] = start_value(r, b, i);
		}
	}
	return 0;
}

static int stop(void **state)
{
	for (int r = 0; r < RANKS; r++) {
		shunt_order_finish(&ranks[r].order);
		for (int b = 0; b < BUFFERS; b++)
			gpu->mem_free(ranks[r].buf[b]);
		for (int s = 1; s < STREAMS; s++)
			gpu->stream_destroy(r, ranks[r].stream[s]);
		w.stream[r] = ranks[r].stream[0];
	}
	world_stop(&w);
	shunt_sim_set_jitter(0, 0);
	return 0;
}

TEST(test_order_eager_calls_on_changing_streams_do_not_overlap)
{
	shunt_sim_set_jitter(5, 200);
	for (int i = 0; i < ROUNDS * STREAMS * BUFFERS; i++) {
		int b = i % BUFFERS;

		calls[b]++;
		for (int r = 0; r < RANKS; r++)
			allreduce(r, b, ranks[r].stream[i % STREAMS]);
	}
	wait_for_all();
	check_buffers();
}

TEST(test_order_graphs_and_eager_calls_on_unordered_streams_do_not_overlap)
{
	unsigned seed = 3;

	shunt_sim_set_jitter(7, 200);
	for (int r = 0; r < RANKS; r++)
		capture(r);
	for (int i = 0; i < ROUNDS * 30; i++) {
		int act = rand_r(&seed) % 4, stream = rand_r(&seed) % STREAMS;

		for (int r = 0; r < RANKS; r++) {
			if (act < 2)
				assert_int_equal(gpu->graph_launch(r, ranks[r].graph[act], ranks[r].stream[stream]), 0);
			else
				allreduce(r, act + 1, ranks[r].stream[stream]);
		}
		if (act == 0) {
			calls[0]++;
			calls[1]++;
		} else if (act == 1) {
			calls[1]++;
			calls[2] += 2;
		} else {
			calls[act + 1]++;
		}
		if (i % 15 == 14) {
			wait_for_all();
			check_buffers();
		}
	}
	for (int r = 0; r < RANKS; r++) {
		assert_int_equal(shunt_order_graphs(&ranks[r].order), 2);
		for (int g = 0; g < 2; g++)
			gpu->graph_destroy(r, ranks[r].graph[g]);
		assert_int_equal(shunt_order_graphs(&ranks[r].order), 0);
	}
}

/* Warm-up on a stream, then the capture of that very stream, as programs do. */
TEST(test_order_capture_of_the_stream_of_the_last_eager_call_is_seen)
{
	for (int i = 0; i < 3; i++) {
		calls[3]++;
		for (int r = 0; r < RANKS; r++)
			allreduce(r, 3, ranks[r].stream[0]);
	}
	wait_for_all();
	for (int r = 0; r < RANKS; r++)
		capture(r);
	for (int i = 0; i < ROUNDS * 10; i++) {
		calls[0]++;
		calls[1]++;
		calls[3]++;
		for (int r = 0; r < RANKS; r++) {
			assert_int_equal(gpu->graph_launch(r, ranks[r].graph[0], ranks[r].stream[1]), 0);
			allreduce(r, 3, ranks[r].stream[0]);
		}
	}
	wait_for_all();
	check_buffers();
	for (int r = 0; r < RANKS; r++)
		for (int g = 0; g < 2; g++)
			gpu->graph_destroy(r, ranks[r].graph[g]);
}

TESTS_EACH(start, stop)

TESTS_BEGIN
{
	if (gpu->open(&shunt_kernels))
		exit(1);
}
