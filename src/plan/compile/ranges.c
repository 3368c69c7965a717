/* SPDX-License-Identifier: MIT */
#include "plan/compile/ranges.h"
#include <errno.h>
#include <stdlib.h>

int shunt_ranges_add(struct shunt_ranges *r, uint64_t begin, uint64_t end)
{
	if (r->n == r->capacity) {
		size_t capacity = r->capacity ? 2 * r->capacity : 16;
		struct shunt_range *v = reallocarray(r->v, capacity, sizeof(*v));

		if (!v)
			return -ENOMEM;
		r->v = v;
		r->capacity = capacity;
	}
	r->v[r->n++] = (struct shunt_range){ begin, end };
	return 0;
}

static int by_begin(const void *a, const void *b)
{
	const struct shunt_range *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

void shunt_ranges_merge(struct shunt_ranges *r)
{
	size_t n = 0;

	if (r->n)
		qsort(r->v, r->n, sizeof(*r->v), by_begin);
	for (size_t i = 0; i < r->n; i++) {
		if (n && r->v[i].begin <= r->v[n - 1].end) {
			if (r->v[i].end > r->v[n - 1].end)
				r->v[n - 1].end = r->v[i].end;
		} else {
			r->v[n++] = r->v[i];
		}
	}
	r->n = n;
}

bool shunt_ranges_within(const struct shunt_ranges *r, uint64_t begin, uint64_t end)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->v[i].begin < begin || r->v[i].end > end)
			return false;
	return true;
}

bool shunt_ranges_overlap(const struct shunt_ranges *r, uint64_t begin, uint64_t end)
{
	size_t low = 0, high = r->n; /* the first range that ends behind begin */

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (r->v[middle].end <= begin)
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->n && r->v[low].begin < end;
}

void shunt_ranges_finish(struct shunt_ranges *r)
{
	free(r->v);
	*r = (struct shunt_ranges){ 0 };
}
