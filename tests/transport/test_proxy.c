/* SPDX-License-Identifier: MIT */
/*
 * The proxy thread: two proxies of one process, each with a FIFO that the test fills as a kernel does, over tcp on
 * loopback, or over the provider that the first argument names.
 */
#include "tests/support/unit.h"
#include <sched.h>
#include "kernels/net_rings.h"
#include "base/config.h"
#include "tests/support/limits.h"
#include "tests/support/own.h"
#include "tests/support/pause.h"
#include "tests/transport/net_ends.h"
#include "transport/net/providers.h"
#include "transport/net/proxy/proxy.h"
#include "transport/net/proxy/proxy_priv.h"

enum { PAYLOAD = 4096, SLOTS = 64 };

static const struct shunt_net_ops *net;
static bool adds;    /* signals are additions to words */
static bool goes_on; /* sides go on without their peers */
static int64_t patience_ms;

/* One side: its memory is words | slots to send | slots to receive. */
struct side {
	struct shunt_proxy *proxy;
	struct shunt_net_words *words;
	size_t bytes;
	struct shunt_proxy_offer offer;
	uint64_t pushed;
	atomic_int failures, err, lost;
	char text[256];
};

#define OUT_AT ((sizeof(struct shunt_net_words) + 4095) & ~(size_t)4095)
#define IN_AT (OUT_AT + (size_t)SLOTS * PAYLOAD)
#define MEMORY (IN_AT + (size_t)SLOTS * PAYLOAD)

static void side_failed(void *ctx, int connection, int err, const char *text)
{
	struct side *side = ctx;

	assert_int_equal(connection, 0);
	snprintf(side->text, sizeof(side->text), "%s", text);
	atomic_store(&side->err, err);
	atomic_fetch_add(&side->failures, 1);
}

static void side_lost(void *ctx, int connection, const char *text)
{
	struct side *side = ctx;

	assert_int_equal(connection, 0);
	snprintf(side->text, sizeof(side->text), "%s", text ? text : "has finished");
	atomic_fetch_add(&side->lost, 1);
}

/* gpu: another one has another thread. */
static void side_create(struct side *side, int gpu)
{
	struct shunt_net_peer peer = { .name = "rank 3 on node2", .connect_ms = AT_ONCE_MS };

	memset(side, 0, sizeof(*side));
	memset(peer.key, 5, sizeof(peer.key));
	side->words = aligned_alloc(4096, MEMORY);
	assert_non_null(side->words);
	memset(side->words, 0, MEMORY);
	assert_int_equal(shunt_proxy_create(&(struct shunt_proxy_config){ .net = net,
	                                        .gpu = gpu,
	                                        .adds = adds,
	                                        .memory = side->words,
	                                        .bytes = MEMORY,
	                                        .npeers = 1,
	                                        .peers = &peer,
	                                        .ranks = (const uint8_t[]){ 3 },
	                                        .failed = side_failed,
	                                        .gone = goes_on ? side_lost : NULL,
	                                        .patience_ms = patience_ms,
	                                        .ctx = side },
	                     &side->offer, &side->proxy),
	    0);
}

static struct side side[2]; /* of the test that runs */

/* A peer that never connects: whoever waits for it says its name. By tcp one end alone may connect. */
TEST(test_proxy_names_the_peer_that_does_not_come)
{
	char text[256];

	if (!strcmp(net->name, "tcp"))
		return;
	for (int i = 0; i < 2; i++)
		side_create(&side[i], i);
	assert_int_equal(shunt_proxy_connect(side[0].proxy, &side[1].offer, 50, NULL, text), -ETIMEDOUT);
	assert_non_null(strstr(text, "rank 3 on node2"));
	for (int i = 0; i < 2; i++) {
		shunt_proxy_destroy(side[i].proxy);
		free(side[i].words);
	}
}

struct connecting {
	struct side *side;
	const struct shunt_proxy_offer *theirs;
	int err;
};

static void *connect_side(void *arg)
{
	struct connecting *c = arg;
	char text[256];

	c->err = shunt_proxy_connect(c->side->proxy, c->theirs, AT_ONCE_MS, NULL, text);
	return NULL;
}

static void connect_sides(struct side side[2], bool one_thread)
{
	struct connecting c[2];
	pthread_t thread;

	for (int i = 0; i < 2; i++)
		side_create(&side[i], one_thread ? 0 : i);
	for (int i = 0; i < 2; i++)
		c[i] = (struct connecting){ &side[i], &side[!i].offer, 0 };
	assert_int_equal(pthread_create(&thread, NULL, connect_side, &c[0]), 0);
	connect_side(&c[1]);
	pthread_join(thread, NULL);
	assert_int_equal(c[0].err, 0);
	assert_int_equal(c[1].err, 0);
}

static void open_sides(struct side side[2], bool one_thread)
{
	connect_sides(side, one_thread);
	for (int i = 0; i < 2; i++)
		shunt_proxy_start(side[i].proxy);
}

static void close_sides(struct side side[2])
{
	for (int i = 0; i < 2; i++) {
		shunt_proxy_destroy(side[i].proxy);
		free(side[i].words);
	}
}

/* Waits with an end. */
#define COMES(cond) NET_UNTIL(cond, sched_yield())

static uint64_t taken(const struct side *side)
{
	return __atomic_load_n(&side->words->taken, __ATOMIC_ACQUIRE);
}

static uint64_t raised(const struct side *side, unsigned channel)
{
	return __atomic_load_n(&side->words->raised[0][channel], __ATOMIC_ACQUIRE);
}

/* As net_push() of the kernels does. */
static void push(struct side *side, unsigned channel, unsigned what, uint32_t bytes, uint64_t from, uint64_t to)
{
	uint64_t number = side->pushed++, flag = (uint64_t)(uint32_t)(number + 1) << 32;
	uint64_t *half = side->words->fifo[number & (SHUNT_NET_FIFO - 1)].half;
	const uint64_t value[4] = { SHUNT_NET_TRIGGER(0, channel, what), bytes, from, to };

	COMES(number < taken(side) + SHUNT_NET_FIFO);
	for (int i = 0; i < 4; i++)
		__atomic_store_n(&half[i], value[i] | flag, __ATOMIC_RELEASE);
	shunt_proxy_wake(side->proxy);
}

enum { SIGNAL = SHUNT_NET_TRIGGER_SIGNAL, PUT = SHUNT_NET_TRIGGER_SIGNAL | SHUNT_NET_TRIGGER_PUT };

/* ---- what is carried */

/* Beyond the FIFO's length and what 16 bits count, with credits that come back as signals. */
static void carry(bool one_thread, uint32_t times)
{
	uint32_t *out, *in;

	open_sides(side, one_thread);
	for (uint32_t k = 0; k < times; k++) {
		uint64_t slot = (uint64_t)(k % SLOTS) * PAYLOAD;

		COMES(k < raised(&side[0], SHUNT_NET_CREDIT_CHANNEL) + SLOTS);
		out = (uint32_t *)((char *)side[0].words + OUT_AT + slot);
		for (int i = 0; i < 16; i++)
			out[i] = k * 31 + (uint32_t)i;
		push(&side[0], 1, PUT, 64, OUT_AT + slot, IN_AT + slot);
		if (k % SLOTS < SLOTS / 2 - 1 || (k + 1) % (SLOTS / 2))
			continue;
		COMES(raised(&side[1], 1) == k + 1);
		for (uint32_t j = k + 1 - SLOTS / 2; j <= k; j++) {
			in = (uint32_t *)((char *)side[1].words + IN_AT + (size_t)(j % SLOTS) * PAYLOAD);
			for (int i = 0; i < 16; i++)
				assert_int_equal(in[i], j * 31 + (uint32_t)i);
		}
		push(&side[1], SHUNT_NET_CREDIT_CHANNEL, SIGNAL, SLOTS / 2, 0, 0);
	}
	assert_int_equal(taken(&side[0]) + SHUNT_NET_FIFO >= times, 1);
	assert_int_equal(side[0].failures + side[1].failures, 0);
	for (int i = 0; i < 2; i++)
		shunt_proxy_finish(side[i].proxy);
	COMES(shunt_proxy_ended(side[0].proxy) && shunt_proxy_ended(side[1].proxy));
	close_sides(side);
}

/* Multiples of a half of the slots; above 2^16, but under ThreadSanitizer, to which all after a few rounds are alike.
 */
#ifdef __SANITIZE_THREAD__
enum { TIMES = 8192 };
#else
enum { TIMES = 70016 };
#endif

TEST(test_triggers_are_carried)
{
	carry(false, TIMES);
	carry(true, 4096);
}

/* A FIFO that was full many times over is carried in its order, and signals are counted, however many come at once. */
TEST(test_a_full_fifo_is_carried)
{
	open_sides(side, false);
	for (unsigned k = 0; k < 5 * SHUNT_NET_FIFO; k++)
		push(&side[0], k % 7, SIGNAL, 1 + k % 3, 0, 0);
	for (unsigned c = 0; c < 7; c++) {
		uint64_t want = 0;

		for (unsigned k = c; k < 5 * SHUNT_NET_FIFO; k += 7)
			want += 1 + k % 3;
		COMES(raised(&side[1], c) == want);
	}
	COMES(taken(&side[0]) == 5 * SHUNT_NET_FIFO);
	close_sides(side);
}

/*
 * A kernel may tell of packets before they are there. The put waits until each has its flag, which the trigger has in
 * place of a channel; what the thread carries meanwhile shows that it has looked.
 */
TEST(test_packets_are_awaited)
{
	enum { FLAGGED = SHUNT_NET_TRIGGER_PUT | SHUNT_NET_TRIGGER_PACKETS | SHUNT_NET_TRIGGER_FLAGGED, N = 6 };
	const uint64_t flag = 0x12345678;
	uint64_t *out, *in;

	open_sides(side, true);
	out = (uint64_t *)((char *)side[0].words + OUT_AT);
	in = (uint64_t *)((char *)side[1].words + IN_AT);
	push(&side[0], flag & 0xffff, FLAGGED, N * 8, OUT_AT, IN_AT);
	push(&side[0], 1, SIGNAL, 1, 0, 0);
	for (unsigned i = 0; i < N; i++) {
		for (unsigned k = 0; k < 2; k++)
			push(&side[1], 2, SIGNAL, 1, 0, 0);
		COMES(raised(&side[0], 2) == 2 * (i + 1));
		assert_int_equal(taken(&side[0]), 0);
		__atomic_store_n(&out[N - 1 - i], (flag - 4) << 32, __ATOMIC_RELEASE); /* of the slot's last use */
		__atomic_store_n(&out[N - 1 - i], flag << 32 | (i + 1), __ATOMIC_RELEASE);
	}
	COMES(raised(&side[1], 1) == 1);
	for (unsigned i = 0; i < N; i++)
		assert_true(__atomic_load_n(&in[i], __ATOMIC_ACQUIRE) == (flag << 32 | (N - i)));
	for (unsigned c = 0; c < SHUNT_NET_SIGNAL_CHANNELS; c++)
		assert_int_equal(raised(&side[1], c), c == 1);
	assert_int_equal(side[0].failures + side[1].failures, 0);
	close_sides(side);
}

/* ---- ends */

TEST(test_what_is_left_is_carried_before_the_end)
{
	int before = 0;

	for (int round = 0; round < 2; round++) {
		open_sides(side, false);
		for (int k = 0; k < 900; k++)
			push(&side[0], 2, SIGNAL, 1, 0, 0);
		shunt_proxy_finish(side[0].proxy);
		COMES(raised(&side[1], 2) == 900);
		assert_false(shunt_proxy_ended(side[0].proxy)); /* the other one may still send */
		push(&side[1], 3, SIGNAL, 5, 0, 0);
		COMES(raised(&side[0], 3) == 5);
		shunt_proxy_finish(side[1].proxy);
		COMES(shunt_proxy_ended(side[0].proxy) && shunt_proxy_ended(side[1].proxy));
		assert_int_equal(side[0].failures + side[1].failures, 0);
		close_sides(side);
		if (round)
			assert_int_equal(net_descriptors(), before);
		before = net_descriptors();
	}
}

/* What has ended keeps no connections, though its owner has not destroyed it. */
TEST(test_what_has_ended_gives_its_descriptors_back)
{
	struct side other[2];
	int before;

	open_sides(other, false); /* keeps the threads */
	before = net_descriptors();
	open_sides(side, false);
	for (int i = 0; i < 2; i++)
		shunt_proxy_finish(side[i].proxy);
	COMES(shunt_proxy_ended(side[0].proxy) && shunt_proxy_ended(side[1].proxy));
	assert_int_equal(net_descriptors(), before);
	close_sides(side);
	close_sides(other);
}

TEST(test_an_abort_is_told)
{
	open_sides(side, false);
	shunt_proxy_abort(side[0].proxy, -1);
	for (unsigned k = 0; k < 3 * SHUNT_NET_FIFO; k++) /* dropped, so nobody waits for room */
		push(&side[0], 0, SIGNAL, 1, 0, 0);
	COMES(side[1].failures);
	assert_int_equal(side[1].err, -EOWNERDEAD);
	assert_string_equal(side[1].text, "rank 3 on node2 has given up");
	assert_int_equal(side[0].failures, 0);
	assert_int_equal(raised(&side[1], 0), 0);
	close_sides(side);
	assert_int_equal(side[1].failures, 1);
}

/* The first cause is told with it, even if what was sent before has not come. */
TEST(test_a_rank_that_gives_up_because_of_another_says_so)
{
	for (int at_once = 0; at_once < 2; at_once++) {
		open_sides(side, false);
		for (unsigned k = 0; k < SHUNT_NET_FIFO && at_once; k++)
			push(&side[0], 0, SIGNAL, 1, 0, 0);
		shunt_proxy_abort(side[0].proxy, 7);
		if (at_once) {
			shunt_proxy_destroy(side[0].proxy);
			side[0].proxy = NULL;
		}
		COMES(side[1].failures);
		assert_int_equal(side[1].err, -EOWNERDEAD);
		assert_string_equal(side[1].text, "rank 3 on node2 has given up, because of rank 7");
		close_sides(side);
	}
}

/* Of a rank without a connection here nothing follows; of one with, its death, unless its farewell has come. */
TEST(test_a_death_that_the_network_does_not_tell_is_told_by_others)
{
	int doubt_ms = atomic_load(&shunt_proxy_doubt_ms);
	open_sides(side, false);
	shunt_proxy_died(side[0].proxy, 7);
	shunt_proxy_died(side[0].proxy, 3);
	push(&side[0], 2, SIGNAL, 1, 0, 0);
	COMES(raised(&side[1], 2) == 1);
	if (net->tells_deaths) {
		shunt_proxy_finish(side[0].proxy);
		shunt_proxy_finish(side[1].proxy);
		COMES(shunt_proxy_ended(side[1].proxy));
		assert_int_equal(side[1].failures, 0);
		close_sides(side);
		return;
	}
	COMES(side[1].failures);
	assert_int_equal(side[1].err, -EOWNERDEAD);
	assert_string_equal(side[1].text, "rank 3 on node2 has died, as another rank of its host tells");
	close_sides(side);

	open_sides(side, false);
	atomic_store(&shunt_proxy_doubt_ms, LIMIT_LONG_MS); /* however late the next lines run */
	shunt_proxy_died(side[0].proxy, 3);
	shunt_proxy_finish(side[0].proxy); /* the farewell is behind the word */
	COMES(__atomic_load_n(&side[1].words->left, __ATOMIC_ACQUIRE) == 1);
	shunt_proxy_finish(side[1].proxy);
	COMES(shunt_proxy_ended(side[0].proxy) && shunt_proxy_ended(side[1].proxy));
	assert_int_equal(side[1].failures, 0);
	close_sides(side);
	atomic_store(&shunt_proxy_doubt_ms, doubt_ms);
}

TEST(test_a_peer_that_goes_is_told)
{
	open_sides(side, false);
	shunt_proxy_destroy(side[0].proxy);
	side[0].proxy = NULL;
	COMES(side[1].failures);
	assert_true(side[1].err < 0);
	assert_non_null(strstr(side[1].text, "rank 3 on node2"));
	close_sides(side);
}

/* Where a third rank could not connect, each rank closes what it has. */
TEST(test_a_peer_that_goes_before_the_start_is_told_at_the_start)
{
	for (int starts = 0; starts < 2; starts++) {
		connect_sides(side, false);
		shunt_proxy_destroy(side[0].proxy);
		side[0].proxy = NULL;
		COMES(atomic_load(&side[1].proxy->failed));
		assert_int_equal(side[1].failures, 0);
		if (starts)
			shunt_proxy_start(side[1].proxy);
		close_sides(side);
		assert_int_equal(side[1].failures, starts);
		if (starts)
			assert_non_null(strstr(side[1].text, "rank 3 on node2"));
	}
}

/* ---- an owner that goes on without its peers */

/* The connection ends alone, and what is to go over it is dropped. */
TEST(test_an_owner_goes_on_without_its_peer)
{
	static const char *const words[] = { "rank 3 on node2", "rank 3 on node2 has given up", "has finished" };

	for (int how = 0; how < 3; how++) {
		struct side side[2];

		goes_on = true;
		open_sides(side, false);
		goes_on = false;
		if (how == 0) {
			shunt_proxy_destroy(side[0].proxy);
			side[0].proxy = NULL;
		} else if (how == 1) {
			shunt_proxy_abort(side[0].proxy, -1);
		} else {
			shunt_proxy_finish(side[0].proxy);
		}
		COMES(side[1].lost);
		for (unsigned k = 0; k < 3 * SHUNT_NET_FIFO; k++)
			push(&side[1], 0, PUT, PAYLOAD, OUT_AT, IN_AT);
		COMES(taken(&side[1]) == 3 * SHUNT_NET_FIFO);
		assert_int_equal(__atomic_load_n(&side[1].words->busy[0], __ATOMIC_ACQUIRE), 0);
		shunt_proxy_finish(side[1].proxy);
		COMES(shunt_proxy_ended(side[1].proxy) && (how < 2 || shunt_proxy_ended(side[0].proxy)));
		assert_non_null(strstr(side[1].text, words[how]));
		close_sides(side);
		assert_int_equal(side[1].lost, 1);
		assert_int_equal(side[1].failures, 0);
	}
}

static void wait_for(struct proxy_thread *thread, void *arg)
{
	(void)thread;
	sem_wait(arg);
}

struct held {
	struct side *side;
	sem_t let_go;
};

static void *hold(void *arg)
{
	struct held *held = arg;

	shunt_proxy_thread_call(held->side->proxy->thread, wait_for, &held->let_go);
	return NULL;
}

/* A peer whose proxy thread stands still: sockets fill up. A NIC would take all. */
TEST(test_a_peer_that_takes_no_data_is_gone_on_without)
{
	struct side side[2];
	struct held held = { .side = side };
	pthread_t thread;

	if (strcmp(net->name, "tcp") != 0)
		return;
	goes_on = true;
	patience_ms = 50;
	open_sides(side, false);
	goes_on = false;
	patience_ms = 0;
	assert_int_equal(sem_init(&held.let_go, 0, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, hold, &held), 0);
	for (int k = 0; k < 200; k++)
		push(&side[1], 0, PUT, SLOTS * PAYLOAD, OUT_AT, IN_AT);
	COMES(side[1].lost);
	COMES(taken(&side[1]) == 200);
	assert_string_equal(side[1].text, "rank 3 on node2 has taken no data for 50 ms");
	sem_post(&held.let_go);
	pthread_join(thread, NULL);
	sem_destroy(&held.let_go);
	close_sides(side);
	assert_int_equal(side[1].failures, 0);
}

/* ---- triggers that nobody should push */

TEST(test_a_trigger_out_of_bounds_is_a_failure)
{
	open_sides(side, false);
	push(&side[0], 0, PUT, 4096, MEMORY - 64, IN_AT);
	COMES(side[0].failures && side[1].failures);
	assert_int_equal(side[0].err, -EINVAL);
	close_sides(side);
	open_sides(side, false);
	push(&side[0], 0, PUT, 4096, OUT_AT, MEMORY - 64); /* the peer finds it */
	COMES(side[0].failures && side[1].failures);
	close_sides(side);
}

TEST(test_a_trigger_of_no_connection_is_a_failure)
{
	uint64_t *half;

	open_sides(side, false);
	half = side[0].words->fifo[0].half;
	for (int i = 0; i < 4; i++)
		__atomic_store_n(
		    &half[i], (i ? 1 : SHUNT_NET_TRIGGER(200, 0, SIGNAL)) | (uint64_t)1 << 32, __ATOMIC_RELEASE);
	COMES(side[0].failures && side[1].failures);
	assert_int_equal(side[0].err, -EINVAL);
	close_sides(side);
}

int main(int argc, char **argv)
{
	own_environment();
	net = shunt_net_find(argc > 1 ? argv[1] : "tcp");
	if (!net)
		return 2;
	adds = shunt_net_usable() & SHUNT_NET_USABLE_ADDS;
	return tests_run(NULL, NULL);
}
