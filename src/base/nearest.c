/* SPDX-License-Identifier: MIT */
#include "base/nearest.h"
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { MAX_LETTERS = 48 };

static bool same(char a, char b)
{
	return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Optimal string alignment distance: counts insertions, deletions, substitutions and transpositions of neighbours. */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned d[MAX_LETTERS + 1][MAX_LETTERS + 1];
	size_t na = strlen(a), nb = strlen(b);

	if (na > MAX_LETTERS || nb > MAX_LETTERS)
		return MAX_LETTERS;
	for (size_t i = 0; i <= na; i++) {
		for (size_t j = 0; j <= nb; j++) {
			unsigned best;

			if (!i || !j) {
				d[i][j] = (unsigned)(i + j);
				continue;
			}
			best = d[i - 1][j - 1] + !same(a[i - 1], b[j - 1]);
			best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
			best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
			if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]) &&
			    d[i - 2][j - 2] + 1 < best)
				best = d[i - 2][j - 2] + 1;
			d[i][j] = best;
		}
	}
	return d[na][nb];
}

void shunt_nearest_try(struct shunt_nearest *n, const char *name)
{
	unsigned d = edit_distance(n->text, name);

	if (n->name && d >= n->distance)
		return;
	n->name = name;
	n->distance = d;
}

const char *shunt_nearest_name(const struct shunt_nearest *n, size_t prefix)
{
	return n->name && n->distance * 3 <= strlen(n->name) - prefix + 1 ? n->name : NULL;
}
