/* SPDX-License-Identifier: MIT */
#pragma once
/* Sets of chunks of a buffer, as ranges. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shunt_range {
	uint64_t begin, end; /* chunks */
};

/* Zeroed: empty. */
struct shunt_ranges {
	struct shunt_range *v;
	size_t n, capacity;
};

/* 0 or -ENOMEM. */
int shunt_ranges_add(struct shunt_ranges *r, uint64_t begin, uint64_t end);
/* Sorts, and merges ranges that overlap or touch. */
void shunt_ranges_merge(struct shunt_ranges *r);
/* True if all ranges lie in [begin, end). */
bool shunt_ranges_within(const struct shunt_ranges *r, uint64_t begin, uint64_t end);
/* True if some range has a chunk of [begin, end). They are merged. */
bool shunt_ranges_overlap(const struct shunt_ranges *r, uint64_t begin, uint64_t end);
void shunt_ranges_finish(struct shunt_ranges *r);
