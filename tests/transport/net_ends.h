/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What the tests of a network's providers share: an end of a connection, which notes all that is told of it, and all
 * that is added to its words. One thread uses an end at a time.
 */
#include "tests/support/pause.h"
#include "tests/support/unit.h"
#include "transport/net/net.h"

#define NET_CHANNELS 64

struct net_end {
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_blob blob;
	bool ready, ended, dead;
	int err;
	char text[512];
	uint64_t done, told; /* puts that are done; events */
	uint64_t signals[NET_CHANNELS];
	uint64_t signalled; /* of all channels */
	void (*on_signal)(struct net_end *end, const struct shunt_net_event *event);
	void *arg;
	/* With net_adds: by channel, what peers have added, and what of it was noted. */
	uint64_t word[NET_CHANNELS], seen[NET_CHANNELS];
	struct shunt_net_memory *words;
	struct shunt_net_device *device;
	struct net_end *next;
};

/* Signals of net_signal() are additions to words (SHUNT_NET_ADD), which are noted as if they were told. */
extern bool net_adds;
/* How long to sleep for a signal: additions wake nobody. */
#define NET_NAP_MS (net_adds ? 1 : 100)

/* Opens device 0, which must be there, and as many rails as SHUNT_IB_RAILS says. */
struct shunt_net_device *net_open(const struct shunt_net_ops *ops);
void net_create(
    const struct shunt_net_ops *ops, struct shunt_net_device *device, struct net_end *end, uint8_t key, int64_t ms);
/* Closes it, and its words. */
void net_end_close(const struct shunt_net_ops *ops, struct net_end *end);
/* Makes the put a signal of this channel to that end. */
void net_signal(const struct shunt_net_ops *ops, const struct net_end *to, struct shunt_net_put *put, uint16_t channel,
    uint16_t count);
/* One progress, with its events noted: their number. */
int net_step(const struct shunt_net_ops *ops, struct shunt_net_device *device);
/* As net_step; sleeps for a moment, by arm and fd, when there is nothing to do. */
int net_step_or_sleep(const struct shunt_net_ops *ops, struct shunt_net_device *device, int ms);
/* Posts one put, however long it takes to have room. */
void net_put(const struct shunt_net_ops *ops, struct shunt_net_device *device, struct net_end *end,
    const struct shunt_net_put *put);
struct shunt_net_memory *net_register(
    const struct shunt_net_ops *ops, struct shunt_net_device *device, void *start, size_t bytes);
/* All bytes there are that value. */
void net_expect_only(uint8_t value, const uint8_t *at, size_t n);
/* Open descriptors of this process. */
int net_descriptors(void);

/* Two devices with an end on each, connected. */
struct net_pair {
	const struct shunt_net_ops *ops;
	struct shunt_net_device *device[2];
	struct net_end end[2];
};
void net_pair_open(struct net_pair *pair, const struct shunt_net_ops *ops);
void net_pair_close(struct net_pair *pair);
static inline int net_pair_step(struct net_pair *pair)
{
	int n = net_step(pair->ops, pair->device[0]);

	return pair->device[1] == pair->device[0] ? n : n + net_step(pair->ops, pair->device[1]);
}

/* Goes on with `step` until it is so; fails after AT_ONCE_MS. It leaves the CPU to the other end now and then. */
#define NET_UNTIL(cond, step) \
	do { \
		int64_t net_end_ms = unit_now_ms() + AT_ONCE_MS; \
		for (uint32_t net_looks = 1; !(cond); net_looks++) { \
			step; \
			if (net_looks % 16 == 0) \
				pause_us(PAUSE_POLL, 20); \
			if (unit_now_ms() > net_end_ms) \
				fail_msg("did not come: %s", #cond); \
		} \
	} while (0)
