/* SPDX-License-Identifier: MIT */
#pragma once
/* Which of the names that exist somebody meant who wrote another one. */
#include <stddef.h>

struct shunt_nearest {
	const char *text; /* what was written */
	const char *name; /* the nearest name of those that were tried; the caller's memory */
	unsigned distance;
};

/* Compares with one more name. Letters' case does not count. Start with { .text = TEXT }. */
void shunt_nearest_try(struct shunt_nearest *n, const char *name);
/*
 * The nearest name, or NULL if too much differs to suggest it: more than about every third letter. The first `prefix`
 * letters, which all names share, do not count.
 */
const char *shunt_nearest_name(const struct shunt_nearest *n, size_t prefix);
