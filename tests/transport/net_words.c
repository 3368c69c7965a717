/* SPDX-License-Identifier: MIT */
/* Additions to words, and puts that a peer must not post. */
#include "tests/transport/net_suite.h"

/* ---- additions to words */

TEST(test_additions_are_refused_where_they_were_not_agreed_on)
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
TEST(test_a_word_has_64_bits)
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

TEST(test_additions_out_of_bounds)
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
TEST(test_many_endpoints_add_to_one_word)
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
	net_expect_only(0xee, lane.to, lane.bytes);
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

TEST(test_a_put_out_of_bounds_kills_the_endpoint)
{
	expect_refused(beyond_the_end, false);
	expect_refused(beyond_the_end, true);
	expect_refused(far_beyond, false);
	expect_refused(no_such_memory, false);
	expect_refused(memory_that_is_gone, false);
}

TEST(test_a_large_put_out_of_bounds_kills_the_endpoint)
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
	net_expect_only(0xee, guard, MIB / 2);
	lane_close(&lane);
}
