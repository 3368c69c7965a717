/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of test_net share: the provider, random bytes and a pair of ends with memory. */
#include "tests/transport/net_ends.h"

#define MIB ((size_t)1 << 20)

extern const struct shunt_net_ops *ops; /* the provider that is tested */

uint32_t below(uint32_t n);
void fill(uint8_t *bytes, size_t n);

/* Memory of both ends of a pair: end 0 puts from `from` to `to`, which is at end 1. */
struct lane {
	struct net_pair pair;
	uint8_t *from, *to;
	size_t bytes;
	struct shunt_net_memory *source, *target;
};

void lane_open(struct lane *lane, size_t bytes);
void lane_close(struct lane *lane);
struct shunt_net_put lane_put(const struct lane *lane, size_t from, size_t to, uint32_t bytes, uint16_t count);
void expect_invalid(struct lane *lane, struct shunt_net_put bad);
