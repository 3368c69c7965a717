/* SPDX-License-Identifier: MIT */
/* Every provider of src/transport/net/net.h does what that header says. */
#include "tests/transport/net_ends.h"
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "base/config.h"
#include "tests/support/own.h"
#include "tests/support/pause.h"
#include "transport/net/providers.h"

#define MIB ((size_t)1 << 20)

static const struct shunt_net_ops *ops; /* the provider that is tested */

static uint64_t random_state = 88172645463325252u;

static uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 20) % n);
}

static void fill(uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		at[i] = (uint8_t)below(256);
}

/* Memory of both ends of a pair: end 0 puts from `from` to `to`, which is at end 1. */
struct lane {
	struct net_pair pair;
	uint8_t *from, *to;
	size_t bytes;
	struct shunt_net_memory *source, *target;
};

static void lane_open(struct lane *lane, size_t bytes)
{
	*lane = (struct lane){ .bytes = bytes };
	net_pair_open(&lane->pair, ops);
	lane->from = aligned_alloc(64, bytes);
	lane->to = aligned_alloc(64, bytes);
	assert_true(lane->from && lane->to);
	fill(lane->from, bytes < 65536 ? bytes : 65536);
	for (size_t i = 65536; i < bytes; i++)
		lane->from[i] = (uint8_t)(lane->from[i % 65521] + i / 65536);
	memset(lane->to, 0xee, bytes);
	lane->source = net_register(ops, lane->pair.device[0], lane->from, bytes);
	lane->target = net_register(ops, lane->pair.device[1], lane->to, bytes);
}

static void lane_close(struct lane *lane)
{
	for (int i = 0; i < 2; i++)
		net_end_close(ops, &lane->pair.end[i]);
	ops->mem_deregister(lane->source);
	ops->mem_deregister(lane->target);
	for (int i = 0; i < 2; i++)
		ops->close(lane->pair.device[i]);
	free(lane->from);
	free(lane->to);
}

static struct shunt_net_put lane_put(const struct lane *lane, size_t from, size_t to, uint32_t bytes, uint16_t count)
{
	struct shunt_net_put put = { .source = lane->from + from,
		.memory = lane->source,
		.remote = ops->mem_remote(lane->target),
		.remote_offset = to,
		.bytes = bytes };

	net_signal(ops, &lane->pair.end[1], &put, 3, count);
	return put;
}

/* ---- devices */

static void test_devices_are_alike_each_time(void **state)
{
	struct shunt_net_info a[SHUNT_NET_MAX_DEVICES], b[SHUNT_NET_MAX_DEVICES];
	int n = ops->devices(a, SHUNT_NET_MAX_DEVICES);

	assert_true(n > 0);
	assert_int_equal(ops->devices(b, SHUNT_NET_MAX_DEVICES), n);
	assert_int_equal(ops->devices(b, 0), 0);
	for (int i = 0; i < n; i++) {
		assert_string_equal(a[i].name, b[i].name);
		assert_string_equal(a[i].where, b[i].where);
		assert_true(a[i].name[0] && a[i].where[0]);
		assert_true(a[i].numa >= -1);
	}
}

static void test_nothing_is_closed_without_harm(void **state)
{
	ops->close(NULL);
	ops->endpoint_close(NULL);
	ops->mem_deregister(NULL);
}

/* ---- puts */

static void test_bytes_arrive_at_any_size_and_offset(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 1000, 4095, 4097, 16383, 16384, 16385,
		65535, 65536, 65537, 131071, 131072, 131073, 262145, 1000003, 4 << 20, 8 << 20 };
	struct lane lane;

	lane_open(&lane, 9 * MIB);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (int turn = 0; turn < 3; turn++) {
			size_t from = below(100), to = 1 + below(100), before = lane.pair.end[1].signalled;
			struct shunt_net_put put = lane_put(&lane, from, to, sizes[i], 1);

			memset(lane.to, 0xee, to + sizes[i] + 100);
			net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
			NET_UNTIL(lane.pair.end[1].signalled == before + 1, net_pair_step(&lane.pair));
			assert_memory_equal(lane.to + to, lane.from + from, sizes[i]);
			assert_int_equal(lane.to[to - 1], 0xee);
			for (size_t j = 0; j < 64; j++)
				assert_int_equal(lane.to[to + sizes[i] + j], 0xee);
		}
	}
	assert_false(lane.pair.end[0].dead || lane.pair.end[1].dead);
	lane_close(&lane);
}

/* What the receiver of a stream checks at each signal: all bytes of the puts before it. */
struct stream {
	struct lane *lane;
	struct {
		size_t from, to;
		uint32_t bytes;
		uint32_t signals; /* of this and all before */
	} put[2048];
	int nputs, checked;
	uint64_t seen;
};

static void check_stream(struct net_end *end, const struct shunt_net_event *event)
{
	struct stream *stream = end->arg;

	assert_int_equal(event->channel, 3);
	stream->seen += event->count;
	/* Puts up to the one that made this signal; those after it may be there as well. */
	while (stream->checked < stream->nputs &&
	    (stream->checked ? stream->put[stream->checked - 1].signals : 0) < stream->seen) {
		assert_memory_equal(stream->lane->to + stream->put[stream->checked].to,
		    stream->lane->from + stream->put[stream->checked].from, stream->put[stream->checked].bytes);
		stream->checked++;
	}
}

static void plan_stream(struct stream *stream, struct lane *lane, int nputs)
{
	uint32_t signals = 0;
	size_t at = 0;

	*stream = (struct stream){ .lane = lane };
	for (int i = 0; i < nputs; i++) {
		uint32_t bytes = below(4) ? below(3000) : below(3) ? below(70000) : below(700000);

		if (at + bytes > lane->bytes)
			break;
		signals += below(3) == 0;
		stream->put[i].bytes = bytes;
		stream->put[i].to = at;
		stream->put[i].from = below((uint32_t)(lane->bytes - bytes));
		stream->put[i].signals = signals;
		at += bytes;
		stream->nputs++;
	}
	stream->put[stream->nputs - 1].signals += 1; /* the last one has a signal in any case */
}

static struct shunt_net_put stream_put(const struct stream *stream, int i)
{
	uint32_t before = i ? stream->put[i - 1].signals : 0;

	return lane_put(stream->lane, stream->put[i].from, stream->put[i].to, stream->put[i].bytes,
	    (uint16_t)(stream->put[i].signals - before));
}

static void test_a_signal_comes_after_all_earlier_puts(void **state)
{
	static struct stream stream;
	struct lane lane;

	lane_open(&lane, 16 * MIB);
	for (int turn = 0; turn < 3; turn++) {
		struct net_end *end = &lane.pair.end[1];
		int posted = 0;

		memset(lane.to, 0xee, lane.bytes);
		plan_stream(&stream, &lane, 1000);
		end->on_signal = check_stream;
		end->arg = &stream;
		while (posted < stream.nputs) {
			struct shunt_net_put puts[20];
			int n = 1 + (int)below(20), taken;

			for (int i = 0; i < n && posted + i < stream.nputs; i++) {
				puts[i] = stream_put(&stream, posted + i);
				puts[i].flags |= below(2) ? SHUNT_NET_MORE : 0;
			}
			if (n > stream.nputs - posted)
				n = stream.nputs - posted;
			taken = ops->post(lane.pair.end[0].endpoint, puts, n);
			assert_in_range(taken, 0, n);
			posted += taken;
			if (!taken || !below(4))
				net_pair_step(&lane.pair);
		}
		NET_UNTIL(stream.seen == stream.put[stream.nputs - 1].signals, net_pair_step(&lane.pair));
		assert_int_equal(stream.checked, stream.nputs);
		NET_UNTIL(lane.pair.end[0].done == (uint64_t)stream.nputs, net_pair_step(&lane.pair));
		lane.pair.end[0].done = 0;
	}
	lane_close(&lane);
}

/* ---- each end in a thread */

struct runner {
	struct lane *lane;
	struct stream *stream;
};

static void *send_stream(void *arg)
{
	struct runner *r = arg;
	struct net_end *end = &r->lane->pair.end[0];

	for (int i = 0; i < r->stream->nputs; i++) {
		struct shunt_net_put put = stream_put(r->stream, i);

		while (!ops->post(end->endpoint, &put, 1))
			net_step_or_sleep(ops, r->lane->pair.device[0], NET_NAP_MS);
	}
	while (end->done < (uint64_t)r->stream->nputs && !end->dead)
		net_step_or_sleep(ops, r->lane->pair.device[0], NET_NAP_MS);
	return NULL;
}

static void test_devices_work_in_threads_of_their_own(void **state)
{
	/* Not on the stack, where ThreadSanitizer takes later tests' variables for these. */
	static struct stream stream;
	static struct lane lane;
	static struct runner runner = { &lane, &stream };
	pthread_t thread;

	lane_open(&lane, 24 * MIB);
	plan_stream(&stream, &lane, 600);
	lane.pair.end[1].on_signal = check_stream;
	lane.pair.end[1].arg = &stream;
	assert_int_equal(pthread_create(&thread, NULL, send_stream, &runner), 0);
	NET_UNTIL(stream.seen == stream.put[stream.nputs - 1].signals,
	    net_step_or_sleep(ops, lane.pair.device[1], NET_NAP_MS));
	pthread_join(thread, NULL);
	assert_int_equal(stream.checked, stream.nputs);
	assert_int_equal(lane.pair.end[0].done, stream.nputs);
	lane_close(&lane);
}

/* ---- many endpoints, one device */

static void test_many_endpoints_of_one_device(void **state)
{
	enum { N = 32, PUTS = 20 };
	static struct net_end end[2 * N];
	static uint64_t from[N], to[N][PUTS];
	struct shunt_net_device *device = net_open(ops);
	struct shunt_net_memory *source = net_register(ops, device, from, sizeof(from));
	struct shunt_net_memory *target = net_register(ops, device, to, sizeof(to));

	/* Two of one device are connected with each other. */
	for (int i = 0; i < 2 * N; i++)
		net_create(ops, device, &end[i], (uint8_t)(i / 2), AT_ONCE_MS);
	for (int i = 0; i < 2 * N; i++)
		assert_int_equal(ops->endpoint_connect(end[i].endpoint, &end[i ^ 1].blob), 0);
	for (int i = 0; i < 2 * N; i++)
		NET_UNTIL(end[i].ready, net_step(ops, device));
	for (int i = 0; i < N; i++)
		from[i] = 1000 + (uint64_t)i;
	for (int p = 0; p < PUTS; p++)
		for (int i = 0; i < N; i++) {
			struct shunt_net_put put = { .source = &from[i],
				.memory = source,
				.remote = ops->mem_remote(target),
				.remote_offset = (size_t)(i * PUTS + p) * 8,
				.bytes = 8 };

			net_signal(ops, &end[2 * i + 1], &put, (uint16_t)(p % NET_CHANNELS), (uint16_t)(1 + i));
			net_put(ops, device, &end[2 * i], &put);
		}
	for (int i = 0; i < N; i++) {
		NET_UNTIL(end[2 * i + 1].signalled == (uint64_t)(PUTS * (1 + i)), net_step(ops, device));
		for (int p = 0; p < PUTS; p++) {
			assert_int_equal(end[2 * i + 1].signals[p], 1 + i);
			assert_int_equal(to[i][p], 1000 + i);
		}
		assert_int_equal(end[2 * i].signalled, 0);
	}
	for (int i = 0; i < 2 * N; i++)
		net_end_close(ops, &end[i]);
	ops->mem_deregister(source);
	ops->mem_deregister(target);
	ops->close(device);
}

/* ---- packets */

struct reader {
	uint64_t *words;
	size_t n;
	atomic_int stop, torn;
};

/* Both halves of each word are the same number. */
static void *read_packets(void *arg)
{
	struct reader *r = arg;

	while (!atomic_load(&r->stop))
		for (size_t i = 0; i < r->n; i++) {
			uint64_t word = __atomic_load_n(&r->words[i], __ATOMIC_RELAXED);

			if ((uint32_t)word != (uint32_t)(word >> 32))
				atomic_store(&r->torn, 1);
		}
	return NULL;
}

static void test_packets_appear_8_bytes_at_once(void **state)
{
	enum { WORDS = 40000 };
	struct lane lane;
	struct reader reader = { .n = WORDS };
	pthread_t thread;

	lane_open(&lane, (WORDS + 8) * sizeof(uint64_t));
	memset(lane.to, 0, lane.bytes);
	reader.words = (uint64_t *)(void *)lane.to;
	assert_int_equal(pthread_create(&thread, NULL, read_packets, &reader), 0);
	for (uint32_t turn = 1; turn <= 150; turn++) {
		uint64_t done = lane.pair.end[0].done;
		uint32_t words = turn % 4 ? 1 + below(500) : 1 + below(WORDS), at = below(WORDS - words + 1);
		struct shunt_net_put put = lane_put(&lane, 8, at * 8, words * 8, 1);

		for (size_t i = 0; i < words; i++) {
			uint32_t half = turn * 65599u + (uint32_t)i;
			uint64_t word = (uint64_t)half << 32 | half;

			memcpy(lane.from + 8 + 8 * i, &word, sizeof(word));
		}
		put.flags |= SHUNT_NET_PACKETS;
		net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
		NET_UNTIL(
		    lane.pair.end[1].signalled == turn && lane.pair.end[0].done == done + 1, net_pair_step(&lane.pair));
		for (size_t i = 0; i < words; i++)
			assert_int_equal(__atomic_load_n(&reader.words[at + i], __ATOMIC_RELAXED),
			    ((uint64_t *)(void *)lane.from)[1 + i]);
	}
	atomic_store(&reader.stop, 1);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&reader.torn), 0);
	lane_close(&lane);
}

/* ---- posting */

static void test_post_has_an_end_and_room_again(void **state)
{
	struct lane lane;
	struct shunt_net_put put;
	uint64_t posted = 0;
	int taken;

	lane_open(&lane, 8 * MIB);
	put = lane_put(&lane, 0, 0, 8 << 20, 1);
	/* The other end reads nothing: this cannot go on. */
	while ((taken = ops->post(lane.pair.end[0].endpoint, &put, 1)) == 1 && posted < 1000000)
		posted++;
	assert_int_equal(taken, 0);
	NET_UNTIL(lane.pair.end[0].done > 0, net_pair_step(&lane.pair));
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	/* All of them would be gigabytes. */
	lane_close(&lane);

	/* Small ones run to the end. */
	lane_open(&lane, 4096);
	for (posted = 0; posted < 20000;) {
		struct shunt_net_put puts[16];

		for (int i = 0; i < 16; i++)
			puts[i] = lane_put(&lane, 0, (size_t)i * 8, 8, 1);
		taken = ops->post(lane.pair.end[0].endpoint, puts, 16);
		assert_in_range(taken, 0, 16);
		posted += (uint64_t)taken;
		if (!taken)
			net_pair_step(&lane.pair);
		assert_true(lane.pair.end[0].done <= posted);
	}
	NET_UNTIL(lane.pair.end[1].signalled == posted && lane.pair.end[0].done == posted, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].signals[3], posted);
	lane_close(&lane);
}

static void test_more_is_sent_when_no_more_comes(void **state)
{
	struct lane lane;
	struct shunt_net_put put;

	lane_open(&lane, 4096);
	put = lane_put(&lane, 0, 100, 50, 7);
	put.flags |= SHUNT_NET_MORE;
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	assert_false(ops->arm(lane.pair.device[0]));
	NET_UNTIL(lane.pair.end[1].signals[3] == 7, net_pair_step(&lane.pair));
	assert_memory_equal(lane.to + 100, lane.from, 50);
	lane_close(&lane);
}

static void test_a_signal_alone_and_a_put_of_nothing(void **state)
{
	struct lane lane;
	struct shunt_net_put signal = { .channel = SHUNT_NET_MAX_CHANNELS - 1, .count = SHUNT_NET_MAX_COUNT };
	struct shunt_net_put nothing = { .bytes = 0 };

	lane_open(&lane, 64);
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &nothing, 1), 1);
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &signal, 1), 1);
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &nothing, 1), 1);
	NET_UNTIL(
	    lane.pair.end[1].signalled == SHUNT_NET_MAX_COUNT && lane.pair.end[0].done == 3, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].signals[(SHUNT_NET_MAX_CHANNELS - 1) % NET_CHANNELS], SHUNT_NET_MAX_COUNT);
	lane_close(&lane);
}

static void expect_invalid(struct lane *lane, struct shunt_net_put bad)
{
	struct shunt_net_put puts[2] = { lane_put(lane, 0, 0, 8, 1), bad };

	assert_int_equal(ops->post(lane->pair.end[0].endpoint, puts, 2), -EINVAL);
}

static void test_post_refuses_what_is_out_of_bounds(void **state)
{
	struct lane lane;
	struct shunt_net_put put;

	lane_open(&lane, 4096);
	expect_invalid(&lane, lane_put(&lane, 4090, 0, 7, 1));
	expect_invalid(&lane, lane_put(&lane, 0, 0, 4097, 1));
	put = lane_put(&lane, 0, 0, 8, 1);
	put.source = lane.from - 1;
	expect_invalid(&lane, put);
	put = lane_put(&lane, 0, 0, 8, SHUNT_NET_MAX_COUNT + 1);
	expect_invalid(&lane, put);
	put = lane_put(&lane, 0, 0, 8, 1);
	put.channel = SHUNT_NET_MAX_CHANNELS;
	expect_invalid(&lane, put);
	put = lane_put(&lane, 0, 0, 8, 1);
	put.flags = 0x80;
	expect_invalid(&lane, put);
	put = lane_put(&lane, 0, 4, 8, 1);
	put.flags = SHUNT_NET_PACKETS;
	expect_invalid(&lane, put);
	put = lane_put(&lane, 0, 8, 12, 1);
	put.flags = SHUNT_NET_PACKETS;
	expect_invalid(&lane, put);
	put = lane_put(&lane, 0, 0, 8, 1);
	put.memory = NULL;
	expect_invalid(&lane, put);
	/* None of them was taken, and nothing was hurt. */
	put = lane_put(&lane, 0, 0, 4096, 1);
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	NET_UNTIL(lane.pair.end[1].signalled == 1, net_pair_step(&lane.pair));
	NET_UNTIL(lane.pair.end[0].done == 1, net_pair_step(&lane.pair));
	lane_close(&lane);
}

static void test_post_needs_a_connection(void **state)
{
	struct shunt_net_device *device = net_open(ops);
	struct shunt_net_put signal = { .count = 1 };
	struct net_end end[2] = { 0 };

	for (int i = 0; i < 2; i++)
		net_create(ops, device, &end[i], 1, AT_ONCE_MS);
	assert_int_equal(ops->post(end[0].endpoint, &signal, 1), -ENOTCONN);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(end[i].endpoint, &end[!i].blob), 0);
	assert_false(ops->arm(device));
	NET_UNTIL(end[0].ready && end[1].ready, net_step(ops, device));
	assert_int_equal(ops->post(end[0].endpoint, &signal, 1), 1);
	ops->finish(end[0].endpoint);
	assert_int_equal(ops->post(end[0].endpoint, &signal, 1), -ENOTCONN);
	NET_UNTIL(end[1].ended, net_step(ops, device));
	assert_int_equal(end[1].signalled, 1);
	/* After the peer's end puts are still taken. */
	assert_int_equal(ops->post(end[1].endpoint, &signal, 1), 1);
	NET_UNTIL(end[0].signalled == 1, net_step(ops, device));
	for (int i = 0; i < 2; i++)
		net_end_close(ops, &end[i]);
	ops->close(device);
}

/* ---- additions to words */

static void test_additions_are_refused_where_they_were_not_agreed_on(void **state)
{
	struct shunt_net_put put = { .count = 1, .flags = SHUNT_NET_ADD };
	struct net_pair pair;

	if (net_adds)
		skip();
	net_pair_open(&pair, ops);
	assert_int_equal(ops->post(pair.end[0].endpoint, &put, 1), -EINVAL);
	net_pair_close(&pair);
}

/* Carries go through all 64 bits, and signals that are told may come beside additions. */
static void test_a_word_has_64_bits(void **state)
{
	struct lane lane;
	struct shunt_net_put put, told = { .channel = 4, .count = 2 };
	uint64_t *word;

	if (!net_adds)
		skip();
	lane_open(&lane, 4096);
	word = &lane.pair.end[1].word[3];
	*word = lane.pair.end[1].seen[3] = 0xfffffff0;
	for (int i = 0; i < 100; i++) {
		put = lane_put(&lane, 0, 0, i % 2 ? 100 : 0, SHUNT_NET_MAX_COUNT);
		net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
		net_put(ops, lane.pair.device[0], &lane.pair.end[0], &told);
	}
	NET_UNTIL(lane.pair.end[1].signalled == 100 * (2 + SHUNT_NET_MAX_COUNT), net_pair_step(&lane.pair));
	assert_int_equal(*word, 0xfffffff0 + (uint64_t)100 * SHUNT_NET_MAX_COUNT);
	assert_int_equal(lane.pair.end[1].signals[4], 200);
	lane_close(&lane);
}

static void expect_bad_addition(struct lane *lane, uint64_t offset, uint16_t count)
{
	struct shunt_net_put put = lane_put(lane, 0, 0, 8, 1);

	put.word_offset = offset;
	put.count = count;
	expect_invalid(lane, put);
}

static void test_additions_out_of_bounds(void **state)
{
	for (int what = 0; net_adds && what < 3; what++) {
		struct lane lane;
		struct shunt_net_put put;

		lane_open(&lane, 4096);
		expect_bad_addition(&lane, 4, 1);
		expect_bad_addition(&lane, 0, 0);
		put = lane_put(&lane, 0, 0, 8, 1);
		if (what == 0) /* behind the words */
			put.word_offset = sizeof(lane.pair.end[1].word);
		else if (what == 1) /* in memory that is not for it */
			put.words = ops->mem_remote(lane.target);
		else
			put.words.word[1] ^= 0x5a5a0007;
		assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
		NET_UNTIL(lane.pair.end[0].dead && lane.pair.end[1].dead, net_pair_step(&lane.pair));
		assert_int_equal(lane.pair.end[1].signalled, 0);
		assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), -ENOTCONN);
		lane_close(&lane);
	}
	if (!net_adds)
		skip();
}

/* Endpoints of one device lose none of each other's additions. */
static void test_many_endpoints_add_to_one_word(void **state)
{
	enum { N = 8, TIMES = 400 };
	struct shunt_net_device *device[2];
	struct net_end from[N], to[N];

	if (!net_adds)
		skip();
	for (int i = 0; i < 2; i++)
		device[i] = net_open(ops);
	for (int i = 0; i < N; i++) {
		net_create(ops, device[0], &from[i], 1, AT_ONCE_MS);
		net_create(ops, device[1], &to[i], 1, AT_ONCE_MS);
		assert_int_equal(ops->endpoint_connect(from[i].endpoint, &to[i].blob), 0);
		assert_int_equal(ops->endpoint_connect(to[i].endpoint, &from[i].blob), 0);
	}
	for (int i = 0; i < N; i++)
		NET_UNTIL(from[i].ready && to[i].ready, (net_step(ops, device[0]), net_step(ops, device[1])));
	for (int turn = 0; turn < TIMES; turn++)
		for (int i = 0; i < N; i++) {
			struct shunt_net_put put = { 0 };

			net_signal(ops, &to[0], &put, 5, 1);
			net_put(ops, device[0], &from[i], &put);
		}
	NET_UNTIL(to[0].signals[5] == N * TIMES, (net_step(ops, device[0]), net_step(ops, device[1])));
	for (int i = 0; i < N; i++) {
		net_end_close(ops, &from[i]);
		net_end_close(ops, &to[i]);
	}
	for (int i = 0; i < 2; i++)
		ops->close(device[i]);
}

/* ---- what a peer must not do */

/* This put must kill the target's end, with nothing written; the sender's end dies of it as well. */
static void expect_refused(struct shunt_net_put (*make)(struct lane *lane), bool packets)
{
	struct lane lane;
	struct shunt_net_put put;

	lane_open(&lane, 256 * 1024);
	put = make(&lane);
	put.flags |= packets ? SHUNT_NET_PACKETS : 0;
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	NET_UNTIL(lane.pair.end[0].dead && (lane.pair.end[1].dead || lane.pair.end[0].err == -EPROTO),
	    net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].signalled, 0);
	for (size_t i = 0; i < lane.bytes; i++)
		assert_int_equal(lane.to[i], 0xee);
	if (lane.pair.end[1].dead)
		assert_non_null(strstr(lane.pair.end[1].text, "rank 3 on node2"));
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), -ENOTCONN);
	lane_close(&lane);
}

static struct shunt_net_put beyond_the_end(struct lane *lane)
{
	return lane_put(lane, 0, lane->bytes - 8, 16, 1);
}

static struct shunt_net_put far_beyond(struct lane *lane)
{
	struct shunt_net_put put = lane_put(lane, 0, 0, 16, 1);

	put.remote_offset = UINT64_MAX - 7;
	return put;
}

static struct shunt_net_put large_beyond(struct lane *lane)
{
	return lane_put(lane, 0, 16, (uint32_t)lane->bytes, 1);
}

static struct shunt_net_put no_such_memory(struct lane *lane)
{
	struct shunt_net_put put = lane_put(lane, 0, 0, 16, 1);

	put.remote.word[0] ^= 0x5a5a0007;
	put.remote.word[1] ^= 0x5a5a0007;
	return put;
}

static struct shunt_net_put memory_that_is_gone(struct lane *lane)
{
	struct shunt_net_put put = lane_put(lane, 0, 0, 16, 1);

	ops->mem_deregister(lane->target);
	lane->target = NULL;
	return put;
}

static void test_a_put_out_of_bounds_kills_the_endpoint(void **state)
{
	expect_refused(beyond_the_end, false);
	expect_refused(beyond_the_end, true);
	expect_refused(far_beyond, false);
	expect_refused(no_such_memory, false);
	expect_refused(memory_that_is_gone, false);
}

static void test_a_large_put_out_of_bounds_kills_the_endpoint(void **state)
{
	struct lane lane;
	struct shunt_net_put put;
	uint8_t *guard;

	/* The pieces that are inside may have been written; nothing behind the memory is. */
	lane_open(&lane, MIB);
	ops->mem_deregister(lane.target);
	lane.target = net_register(ops, lane.pair.device[1], lane.to, MIB / 2);
	guard = lane.to + MIB / 2;
	put = large_beyond(&lane);
	put.bytes = MIB / 2 + 4096;
	put.remote_offset = 0;
	assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	NET_UNTIL(lane.pair.end[0].dead && (lane.pair.end[1].dead || lane.pair.end[0].err == -EPROTO),
	    net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].signalled, 0);
	for (size_t i = 0; i < MIB / 2; i++)
		assert_int_equal(guard[i], 0xee);
	lane_close(&lane);
}

/* ---- the end */

static void test_finish_loses_nothing(void **state)
{
	for (int turn = 0; turn < 10; turn++) {
		struct lane lane;
		struct shunt_net_put put;

		lane_open(&lane, 4 * MIB);
		for (uint32_t i = 0; i < 20; i++) {
			put = lane_put(&lane, 0, 0, i % 4 ? 100 : 1000000, 1);
			net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
		}
		put = lane_put(&lane, 0, 0, 4 << 20, 1);
		net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
		ops->finish(lane.pair.end[0].endpoint);
		ops->finish(lane.pair.end[1].endpoint);
		/* The sender closes as soon as it may, and its device as well. */
		NET_UNTIL(lane.pair.end[0].done == 21 && lane.pair.end[0].ended, net_pair_step(&lane.pair));
		net_end_close(ops, &lane.pair.end[0]);
		ops->mem_deregister(lane.source);
		ops->close(lane.pair.device[0]);
		NET_UNTIL(lane.pair.end[1].ended, net_step(ops, lane.pair.device[1]));
		assert_int_equal(lane.pair.end[1].signalled, 21);
		assert_memory_equal(lane.to, lane.from, 4 * MIB);
		for (int i = 0; i < 100; i++)
			net_step(ops, lane.pair.device[1]);
		assert_false(lane.pair.end[1].dead);
		net_end_close(ops, &lane.pair.end[1]);
		ops->mem_deregister(lane.target);
		ops->close(lane.pair.device[1]);
		free(lane.from);
		free(lane.to);
	}
}

static void test_close_leaves_sources_alone(void **state)
{
	struct lane lane;
	struct shunt_net_put put;
	uint8_t *pages = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct shunt_net_memory *memory;

	assert_true(pages != MAP_FAILED);
	lane_open(&lane, 8 * MIB);
	memory = net_register(ops, lane.pair.device[0], pages, 8 * MIB);
	put = lane_put(&lane, 0, 0, 8 << 20, 1);
	put.source = pages;
	put.memory = memory;
	for (int i = 0; i < 20; i++)
		assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	for (int i = 0; i < 3; i++)
		net_pair_step(&lane.pair);
	net_end_close(ops, &lane.pair.end[0]);
	ops->mem_deregister(memory);
	munmap(pages, 8 * MIB); /* a touch is the end of this process */
	NET_UNTIL(lane.pair.end[1].dead, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].err, -EOWNERDEAD);
	assert_true(lane.pair.end[1].signalled < 20);
	lane_close(&lane);
}

static void test_closing_the_target_kills_the_sender(void **state)
{
	struct lane lane;
	struct shunt_net_put put;

	lane_open(&lane, 8 * MIB);
	put = lane_put(&lane, 0, 0, 8 << 20, 1);
	for (int i = 0; i < 5; i++)
		assert_int_equal(ops->post(lane.pair.end[0].endpoint, &put, 1), 1);
	for (int i = 0; i < 3; i++)
		net_pair_step(&lane.pair);
	net_end_close(ops, &lane.pair.end[1]);
	ops->mem_deregister(lane.target);
	lane.target = NULL;
	memset(lane.to, 0xdd, lane.bytes);
	NET_UNTIL(lane.pair.end[0].dead, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[0].err, -EOWNERDEAD);
	for (size_t i = 0; i < lane.bytes; i++)
		assert_int_equal(lane.to[i], 0xdd);
	lane_close(&lane);
}

/* ---- connecting */

static void test_another_key_is_refused(void **state)
{
	struct shunt_net_device *device[2] = { net_open(ops), net_open(ops) };
	struct net_end end[2] = { 0 };

	for (int i = 0; i < 2; i++)
		net_create(ops, device[i], &end[i], (uint8_t)(1 + i), 1500);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ops->endpoint_connect(end[i].endpoint, &end[!i].blob), 0);
	for (int i = 0; i < 2; i++)
		NET_UNTIL(end[i].dead, (net_step(ops, device[0]), net_step(ops, device[1])));
	for (int i = 0; i < 2; i++) {
		assert_false(end[i].ready);
		assert_true(end[i].err == -EACCES || end[i].err == -ETIMEDOUT || end[i].err == -EOWNERDEAD);
		assert_non_null(strstr(end[i].text, "rank 3 on node2"));
		net_end_close(ops, &end[i]);
	}
	assert_true(end[0].err == -EACCES || end[1].err == -EACCES);
	for (int i = 0; i < 2; i++)
		ops->close(device[i]);
}

static void test_a_blob_of_nobody_is_refused(void **state)
{
	struct shunt_net_device *device = net_open(ops);
	struct unit_capture capture;
	struct net_end end = { 0 };
	struct shunt_net_blob blob = { 0 };
	const char *text;

	net_create(ops, device, &end, 1, 1000);
	unit_capture_begin(&capture);
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), -EPROTO);
	memset(&blob, 0xa5, sizeof(blob));
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), -EPROTO);
	/* Its own. */
	assert_int_equal(ops->endpoint_connect(end.endpoint, &end.blob), -EPROTO);
	text = unit_capture_end(&capture);
	assert_int_equal(unit_count(text, "rank 3 on node2"), 3);
	net_end_close(ops, &end);
	ops->close(device);
}

static void test_a_peer_that_does_not_connect_is_given_up(void **state)
{
	/* Both ways round: who connects depends on the blobs. */
	for (int turn = 0; turn < 6; turn++) {
		struct shunt_net_device *device = net_open(ops), *silent = net_open(ops);
		struct net_end end = { 0 }, other = { 0 };
		int64_t start;

		net_create(ops, device, &end, 1, 300);
		net_create(ops, silent, &other, 1, 300);
		start = unit_now_ms();
		assert_int_equal(ops->endpoint_connect(end.endpoint, &other.blob), 0);
		/* It needs no time-out of the caller's. */
		NET_UNTIL(end.dead, net_step_or_sleep(ops, device, AT_ONCE_MS));
		assert_true(unit_now_ms() - start >= 290);
		assert_int_equal(end.err, -ETIMEDOUT);
		assert_non_null(strstr(end.text, "rank 3 on node2"));
		net_end_close(ops, &end);
		net_end_close(ops, &other);
		ops->close(device);
		ops->close(silent);
	}
}

static void test_one_side_may_connect_later(void **state)
{
	for (int turn = 0; turn < 6; turn++) {
		struct net_pair pair = { .ops = ops };

		for (int i = 0; i < 2; i++) {
			pair.device[i] = net_open(ops);
			net_create(ops, pair.device[i], &pair.end[i], 9, AT_ONCE_MS);
		}
		assert_int_equal(ops->endpoint_connect(pair.end[0].endpoint, &pair.end[1].blob), 0);
		for (int i = 0; i < 200; i++)
			net_pair_step(&pair);
		assert_false(pair.end[1].ready);
		assert_int_equal(ops->endpoint_connect(pair.end[1].endpoint, &pair.end[0].blob), 0);
		NET_UNTIL(pair.end[0].ready && pair.end[1].ready, net_pair_step(&pair));
		net_pair_close(&pair);
	}
}

/* ---- processes */

/* Blobs and remotes go through pipes. */
static void exchange(int in, int out, const void *ours, void *theirs, size_t bytes)
{
	assert_int_equal(write(out, ours, bytes), bytes);
	for (size_t got = 0; got < bytes;) {
		ssize_t n = read(in, (char *)theirs + got, bytes - got);

		assert_true(n > 0);
		got += (size_t)n;
	}
}

/* Of an end in another process. */
struct remotes {
	struct shunt_net_remote memory, words;
};

static void exchange_remotes(
    int in, int out, const struct shunt_net_memory *memory, const struct net_end *end, struct remotes *theirs)
{
	struct remotes ours = { .memory = ops->mem_remote(memory) };

	if (net_adds)
		ours.words = ops->mem_remote(end->words);
	exchange(in, out, &ours, theirs, sizeof(ours));
}

/* One signal of channel 0. */
static void signal_to(const struct remotes *to, struct shunt_net_put *put)
{
	put->count = 1;
	put->flags |= net_adds ? SHUNT_NET_ADD : 0;
	put->words = to->words;
}

struct other_process {
	pid_t pid;
	int in, out;
};

/* Connects with this end, registers memory and puts signals until it is told to stop, or killed. */
static void other_body(int in, int out)
{
	static uint64_t words[1024];
	struct shunt_net_device *device = net_open(ops);
	struct shunt_net_memory *memory = net_register(ops, device, words, sizeof(words));
	struct net_end end = { 0 };
	struct remotes theirs;
	struct shunt_net_blob blob;
	struct shunt_net_put put = { .source = &words[5], .memory = memory, .bytes = 8 };

	net_create(ops, device, &end, 1, AT_ONCE_MS);
	exchange(in, out, &end.blob, &blob, sizeof(blob));
	exchange_remotes(in, out, memory, &end, &theirs);
	assert_int_equal(ops->endpoint_connect(end.endpoint, &blob), 0);
	NET_UNTIL(end.ready, net_step_or_sleep(ops, device, NET_NAP_MS));
	words[5] = 4711;
	put.remote = theirs.memory;
	signal_to(&theirs, &put);
	net_put(ops, device, &end, &put);
	NET_UNTIL(end.ended || end.dead, net_step_or_sleep(ops, device, NET_NAP_MS));
	assert_true(end.ended);
	assert_int_equal(end.signalled, 1);
	assert_int_equal(words[7], 815);
	ops->finish(end.endpoint);
	NET_UNTIL(end.done == 1 && ops->arm(device), net_step(ops, device));
	/* The peer closes once it has our end. */
	exchange(in, out, "x", &blob, 1);
	net_end_close(ops, &end);
	ops->mem_deregister(memory);
	ops->close(device);
}

static void other_start(struct other_process *other)
{
	int to[2], from[2];

	assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
	fflush(NULL);
	other->pid = child_fork();
	assert_true(other->pid >= 0);
	if (other->pid == 0) {
		close(to[1]);
		close(from[0]);
		other_body(to[0], from[1]);
		child_exit(0);
	}
	close(to[0]);
	close(from[1]);
	other->in = from[0];
	other->out = to[1];
}

struct here {
	struct shunt_net_device *device;
	struct shunt_net_memory *memory;
	struct remotes remotes; /* the other's */
	struct net_end end;
	uint64_t words[16];
};

static void here_connect(struct here *here, struct other_process *other)
{
	struct shunt_net_blob blob;

	*here = (struct here){ 0 };
	here->device = net_open(ops);
	here->memory = net_register(ops, here->device, here->words, sizeof(here->words));
	net_create(ops, here->device, &here->end, 1, AT_ONCE_MS);
	exchange(other->in, other->out, &here->end.blob, &blob, sizeof(blob));
	exchange_remotes(other->in, other->out, here->memory, &here->end, &here->remotes);
	assert_int_equal(ops->endpoint_connect(here->end.endpoint, &blob), 0);
	NET_UNTIL(here->end.signalled == 1, net_step_or_sleep(ops, here->device, NET_NAP_MS));
	assert_int_equal(here->words[0], 4711);
}

static void here_close(struct here *here, struct other_process *other)
{
	net_end_close(ops, &here->end);
	ops->mem_deregister(here->memory);
	ops->close(here->device);
	close(other->in);
	close(other->out);
}

static void test_two_processes(void **state)
{
	struct other_process other;
	struct here here;
	struct shunt_net_put put;
	int status;
	char x;

	other_start(&other);
	here_connect(&here, &other);
	here.words[3] = 815;
	put = (struct shunt_net_put){ .source = &here.words[3],
		.memory = here.memory,
		.remote = here.remotes.memory,
		.remote_offset = 56,
		.bytes = 8 };
	signal_to(&here.remotes, &put);
	net_put(ops, here.device, &here.end, &put);
	ops->finish(here.end.endpoint);
	NET_UNTIL(here.end.ended, net_step_or_sleep(ops, here.device, NET_NAP_MS));
	exchange(other.in, other.out, "x", &x, 1);
	assert_int_equal(waitpid(other.pid, &status, 0), other.pid);
	assert_int_equal(status, 0);
	here_close(&here, &other);
}

static void test_a_killed_peer_is_told_at_once(void **state)
{
	struct other_process other;
	struct here here;
	int status;

	other_start(&other);
	here_connect(&here, &other);
	kill(other.pid, SIGKILL);
	assert_int_equal(waitpid(other.pid, &status, 0), other.pid);
	NET_UNTIL(here.end.dead, net_step_or_sleep(ops, here.device, AT_ONCE_MS));
	assert_int_equal(here.end.err, -EOWNERDEAD);
	assert_non_null(strstr(here.end.text, "rank 3 on node2"));
	here_close(&here, &other);
}

/* ---- sleeping */

/* Nothing comes: waits for the device end by themselves, but for a few that one of its timers ends. */
static void test_an_idle_device_sleeps(void **state)
{
	enum { WAITS = 12, WAIT_MS = 50, MOST_AWAKE = 100 };
	struct net_pair pair;
	struct pollfd fd;
	int awake = 0, asleep = 0;

	net_pair_open(&pair, ops);
	for (int i = 0; i < 2; i++)
		NET_UNTIL(ops->arm(pair.device[i]), net_step(ops, pair.device[i]));
	fd = (struct pollfd){ .fd = ops->fd(pair.device[0]), .events = POLLIN };
	while (asleep < WAITS) {
		assert_int_equal(net_step(ops, pair.device[0]), 0);
		if (ops->arm(pair.device[0]) && !poll(&fd, 1, WAIT_MS))
			asleep++;
		else
			assert_true(++awake < MOST_AWAKE);
	}
	net_pair_close(&pair);
}

struct ping {
	struct net_pair *pair;
	int turns;
	bool lost;
};

/* Waits for a signal in poll() alone, and answers it. */
static void answer(struct ping *ping, int i)
{
	struct net_end *end = &ping->pair->end[i];
	struct shunt_net_put signal = { .count = 1 };
	struct pollfd fd = { .fd = ops->fd(ping->pair->device[i]), .events = POLLIN };

	for (int turn = 0; turn < ping->turns; turn++) {
		if (i == 0 && ops->post(end->endpoint, &signal, 1) != 1)
			ping->lost = true;
		while (end->signalled <= (uint64_t)turn && !ping->lost && !end->dead) {
			net_step(ops, ping->pair->device[i]);
			if (end->signalled <= (uint64_t)turn && ops->arm(ping->pair->device[i]) &&
			    poll(&fd, 1, AT_ONCE_MS) != 1)
				ping->lost = true;
		}
		if (i == 1 && ops->post(end->endpoint, &signal, 1) != 1)
			ping->lost = true;
	}
}

static void *answer_thread(void *arg)
{
	answer(arg, 1);
	return NULL;
}

static void test_no_wakeup_is_lost(void **state)
{
	struct net_pair pair;
	struct ping here = { .pair = &pair, .turns = 10000 }, there = here;
	pthread_t thread;

	net_pair_open(&pair, ops);
	assert_int_equal(pthread_create(&thread, NULL, answer_thread, &there), 0);
	answer(&here, 0);
	pthread_join(thread, NULL);
	assert_false(here.lost || there.lost);
	assert_int_equal(pair.end[0].signalled, 10000);
	net_pair_close(&pair);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_devices_are_alike_each_time),
	cmocka_unit_test(test_nothing_is_closed_without_harm),
	cmocka_unit_test(test_bytes_arrive_at_any_size_and_offset),
	cmocka_unit_test(test_a_signal_comes_after_all_earlier_puts),
	cmocka_unit_test(test_devices_work_in_threads_of_their_own),
	cmocka_unit_test(test_many_endpoints_of_one_device),
	cmocka_unit_test(test_packets_appear_8_bytes_at_once),
	cmocka_unit_test(test_post_has_an_end_and_room_again),
	cmocka_unit_test(test_more_is_sent_when_no_more_comes),
	cmocka_unit_test(test_a_signal_alone_and_a_put_of_nothing),
	cmocka_unit_test(test_post_refuses_what_is_out_of_bounds),
	cmocka_unit_test(test_post_needs_a_connection),
	cmocka_unit_test(test_additions_are_refused_where_they_were_not_agreed_on),
	cmocka_unit_test(test_a_word_has_64_bits),
	cmocka_unit_test(test_additions_out_of_bounds),
	cmocka_unit_test(test_many_endpoints_add_to_one_word),
	cmocka_unit_test(test_a_put_out_of_bounds_kills_the_endpoint),
	cmocka_unit_test(test_a_large_put_out_of_bounds_kills_the_endpoint),
	cmocka_unit_test(test_finish_loses_nothing),
	cmocka_unit_test(test_close_leaves_sources_alone),
	cmocka_unit_test(test_closing_the_target_kills_the_sender),
	cmocka_unit_test(test_another_key_is_refused),
	cmocka_unit_test(test_a_blob_of_nobody_is_refused),
	cmocka_unit_test(test_a_peer_that_does_not_connect_is_given_up),
	cmocka_unit_test(test_one_side_may_connect_later),
	cmocka_unit_test(test_two_processes),
	cmocka_unit_test(test_a_killed_peer_is_told_at_once),
	cmocka_unit_test(test_an_idle_device_sleeps),
	cmocka_unit_test(test_no_wakeup_is_lost),
};

/* All tests with one provider; descriptors must be as many as before. */
static int run(const struct shunt_net_ops *provider)
{
	struct shunt_net_info info[1];
	int before, failed;

	ops = provider;
	if (ops->devices(info, 1) <= 0) {
		fprintf(stderr, "%s: no device here, so it was not tested\n", ops->name);
		return 0;
	}
	net_adds = info[0].adds && shunt_config()->ibv_mode == SHUNT_IBV_HOST;
	fprintf(stderr, "provider %s on %s, signals are %s\n", ops->name, info[0].name,
	    net_adds ? "additions to words" : "told");
	before = net_descriptors();
	failed = cmocka_run_group_tests_name(ops->name, tests, NULL, NULL);
	if (net_descriptors() != before) {
		fprintf(stderr, "%s: %d descriptors before, %d after\n", ops->name, before, net_descriptors());
		failed++;
	}
	return failed;
}

int main(int argc, char **argv)
{
	int failed = 0;

	own_environment();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	for (const struct shunt_net_ops *const *p = shunt_net_providers(); *p; p++)
		failed += run(*p);
	return failed;
}
