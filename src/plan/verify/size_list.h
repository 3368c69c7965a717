/* SPDX-License-Identifier: MIT */
#pragma once
/* The sizes at which a plan is simulated: units of a chunk, each size once, within bounds. */
#include <stdint.h>

#define SIZE_LIST_ROOM 32

struct size_list {
	uint64_t units[SIZE_LIST_ROOM], low, high;
	unsigned n, most; /* most: at most SIZE_LIST_ROOM */
};

/* Adds the size, or the bound that it exceeds, if there is room; a size is at least 1. */
static inline void size_list_add(struct size_list *l, uint64_t units)
{
	units = units < l->low ? l->low : units;
	units = units > l->high ? l->high : units;
	units = units ? units : 1;
	for (unsigned i = 0; i < l->n; i++)
		if (l->units[i] == units)
			return;
	if (l->n < l->most)
		l->units[l->n++] = units;
}
