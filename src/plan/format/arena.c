/* SPDX-License-Identifier: MIT */
#include "plan/format/arena.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)4096)
#define ALIGN _Alignof(max_align_t)

struct shunt_arena_block {
	struct shunt_arena_block *before;
	size_t used, bytes; /* of data */
	max_align_t data[];
};

void *shunt_arena_alloc(struct shunt_arena *arena, size_t n, size_t each)
{
	struct shunt_arena_block *b = arena->last;
	size_t bytes, whole;
	void *piece;

	if (__builtin_mul_overflow(n, each, &bytes) || bytes > SIZE_MAX / 2)
		return NULL;
	bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	if (!b || b->bytes - b->used < bytes) {
		/* Twice the last one, so that the number of blocks stays small whatever the plan's size. */
		whole = b && b->bytes < ((size_t)1 << 20) ? 2 * b->bytes : b ? b->bytes : BLOCK_BYTES;
		if (whole < bytes)
			whole = bytes;
		b = calloc(1, sizeof(*b) + whole);
		if (!b)
			return NULL;
		b->bytes = whole;
		b->before = arena->last;
		arena->last = b;
	}
	piece = (char *)b->data + b->used;
	b->used += bytes;
	return piece;
}

char *shunt_arena_strdup(struct shunt_arena *arena, const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = shunt_arena_alloc(arena, bytes, 1);

	return copy ? memcpy(copy, text, bytes) : NULL;
}

void shunt_arena_finish(struct shunt_arena *arena)
{
	struct shunt_arena_block *b = arena->last, *before;

	for (; b; b = before) {
		before = b->before;
		free(b);
	}
	arena->last = NULL;
}
