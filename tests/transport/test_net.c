/* SPDX-License-Identifier: MIT */
/* Every provider of src/transport/net/net.h does what that header says. The tests stand in net_*.c. */
#include "tests/transport/net_suite.h"
#include "base/config.h"
#include "tests/support/own.h"
#include "transport/net/providers.h"

const struct shunt_net_ops *ops;

static uint64_t random_state = 88172645463325252u;

uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 20) % n);
}

void fill(uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		at[i] = (uint8_t)below(256);
}

enum { PERIOD = 65521 }; /* no multiple of a piece's bytes: pieces that change places are noticed */

void lane_open(struct lane *lane, size_t bytes)
{
	*lane = (struct lane){ .bytes = bytes };
	net_pair_open(&lane->pair, ops);
	lane->from = aligned_alloc(64, bytes);
	lane->to = aligned_alloc(64, bytes);
	assert_true(lane->from && lane->to);
	fill(lane->from, bytes < PERIOD ? bytes : PERIOD);
	for (size_t at = PERIOD; at < bytes; at += PERIOD) {
		memcpy(lane->from + at, lane->from, bytes - at < PERIOD ? bytes - at : PERIOD);
		lane->from[at] = (uint8_t)(at / PERIOD);
	}
	memset(lane->to, 0xee, bytes);
	lane->source = net_register(ops, lane->pair.device[0], lane->from, bytes);
	lane->target = net_register(ops, lane->pair.device[1], lane->to, bytes);
}

void lane_close(struct lane *lane)
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

struct shunt_net_put lane_put(const struct lane *lane, size_t from, size_t to, uint32_t bytes, uint16_t count)
{
	struct shunt_net_put put = { .source = lane->from + from,
		.memory = lane->source,
		.remote = ops->mem_remote(lane->target),
		.remote_offset = to,
		.bytes = bytes };

	net_signal(ops, &lane->pair.end[1], &put, 3, count);
	return put;
}

void expect_invalid(struct lane *lane, struct shunt_net_put bad)
{
	struct shunt_net_put puts[2] = { lane_put(lane, 0, 0, 8, 1), bad };

	assert_int_equal(ops->post(lane->pair.end[0].endpoint, puts, 2), -EINVAL);
}

/* ---- devices */

TEST(test_devices_are_alike_each_time)
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

TEST(test_nothing_is_closed_without_harm)
{
	ops->close(NULL);
	ops->endpoint_close(NULL);
	ops->mem_deregister(NULL);
}

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
	failed = tests_run(NULL, NULL);
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
