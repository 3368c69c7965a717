/* SPDX-License-Identifier: MIT */
/* Puts of all sizes, their signals, and the order of both. */
#include "tests/transport/net_suite.h"

/* ---- puts */

TEST(test_bytes_arrive_at_any_size_and_offset)
{
	static const uint32_t sizes[] = { 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 1000, 4095, 4097, 16383, 16384, 16385,
		65535, 65536, 65537, 131071, 131072, 131073, 262145, 1000003, 4 << 20, 8 << 20 };
	struct lane lane;

	lane_open(&lane, 9 * MIB);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		/* The largest are for what is more than a socket has room for, wherever they lie. */
		for (int turn = 0; turn < (sizes[i] > MIB ? 1 : 3); turn++) {
			size_t from = below(100), to = 1 + below(100), before = lane.pair.end[1].signalled;
			struct shunt_net_put put = lane_put(&lane, from, to, sizes[i], 1);

			memset(lane.to, 0xee, to + sizes[i] + 100);
			net_put(ops, lane.pair.device[0], &lane.pair.end[0], &put);
			NET_UNTIL(lane.pair.end[1].signalled == before + 1, net_pair_step(&lane.pair));
			assert_memory_equal(lane.to + to, lane.from + from, sizes[i]);
			assert_int_equal(lane.to[to - 1], 0xee);
			net_expect_only(0xee, lane.to + to + sizes[i], 64);
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
		uint32_t bytes = below(4) ? below(3000) : below(3) ? below(70000) : below(300000);

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

TEST(test_a_signal_comes_after_all_earlier_puts)
{
	static struct stream stream;
	struct lane lane;

	lane_open(&lane, 8 * MIB);
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

TEST(test_devices_work_in_threads_of_their_own)
{
	/* Not on the stack, where ThreadSanitizer takes later tests' variables for these. */
	static struct stream stream;
	static struct lane lane;
	static struct runner runner = { &lane, &stream };
	pthread_t thread;

	lane_open(&lane, 12 * MIB);
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

TEST(test_many_endpoints_of_one_device)
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

TEST(test_packets_appear_8_bytes_at_once)
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
		assert_int_equal(memcmp(&reader.words[at], lane.from + 8, words * 8), 0);
	}
	atomic_store(&reader.stop, 1);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&reader.torn), 0);
	lane_close(&lane);
}

/* ---- posting */

TEST(test_post_has_an_end_and_room_again)
{
	struct lane lane;
	struct shunt_net_put put, puts[16];
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
	for (int i = 0; i < 16; i++)
		puts[i] = lane_put(&lane, 0, (size_t)i * 8, 8, 1);
	for (posted = 0; posted < 20000;) {
		taken = ops->post(lane.pair.end[0].endpoint, puts, 16);
		assert_in_range(taken, 0, 16);
		posted += (uint64_t)taken;
		if (!taken && !net_pair_step(&lane.pair))
			pause_us(PAUSE_POLL, 20);
		assert_true(lane.pair.end[0].done <= posted);
	}
	NET_UNTIL(lane.pair.end[1].signalled == posted && lane.pair.end[0].done == posted, net_pair_step(&lane.pair));
	assert_int_equal(lane.pair.end[1].signals[3], posted);
	lane_close(&lane);
}

TEST(test_more_is_sent_when_no_more_comes)
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

TEST(test_a_signal_alone_and_a_put_of_nothing)
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

TEST(test_post_refuses_what_is_out_of_bounds)
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
	put.flags = SHUNT_NET_LAST; /* has no data, a count of 1, and no other flag */
	expect_invalid(&lane, put);
	put.bytes = 0;
	put.count = 2;
	expect_invalid(&lane, put);
	put.count = 1;
	put.flags |= SHUNT_NET_MORE;
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

TEST(test_post_needs_a_connection)
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
