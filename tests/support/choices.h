/* SPDX-License-Identifier: MIT */
#pragma once
/* What a random walk does next: as a fuzzer's bytes say, or at random from a seed. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct choices {
	const uint8_t *bytes; /* NULL: at random */
	size_t n;             /* bytes that are left */
	uint64_t seed;        /* not 0 */
};

/* True: a fuzzer's bytes are used up; from here on each choice is 0. */
static inline bool choices_ended(const struct choices *c)
{
	return c->bytes && !c->n;
}

/* 0 to n - 1; n is at most 256. */
static inline unsigned choices_below(struct choices *c, unsigned n)
{
	if (choices_ended(c))
		return 0;
	if (c->bytes) {
		c->n--;
		return *c->bytes++ % n;
	}
	c->seed ^= c->seed << 13;
	c->seed ^= c->seed >> 7;
	c->seed ^= c->seed << 17;
	return (unsigned)(c->seed >> 33) % n;
}
