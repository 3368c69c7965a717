/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_COMPILE_RANGES_H
#define SHUNT_PLAN_COMPILE_RANGES_H
/* Sets of chunks of a buffer, as ranges. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shunt_range {
	uint64_t begin, end; /* chunks */
};

/* Zeroed: empty. */
struct shunt_nvtx_enabled {
	struct shunt_range *v;
	size_t n, capacity;
};

/* 0 or -ENOMEM. */
int shunt_ranges_add(struct shunt_nvtx_enabled *r, uint64_t begin, uint64_t end);
/* Sorts, and makes one of those that overlap or touch. */
void shunt_ranges_merge(struct shunt_nvtx_enabled *r);
/* Does all of it lie in there? */
bool shunt_ranges_within(const struct shunt_nvtx_enabled *r, uint64_t begin, uint64_t end);
void shunt_ranges_finish(struct shunt_nvtx_enabled *r);
#endif
