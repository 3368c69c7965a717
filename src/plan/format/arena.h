/* SPDX-License-Identifier: MIT */
#pragma once
/* Allocator that frees all its memory at once: holds all that belongs to one plan. One thread at a time. */
#include <stddef.h>

struct shunt_arena {
	struct shunt_arena_block *last;
};

/*
 * n zeroed elements of `each` bytes, aligned for anything. NULL if there is no memory or n * each overflows; never NULL
 * for n = 0.
 */
void *shunt_arena_alloc(struct shunt_arena *arena, size_t n, size_t each);
/* A copy of a string. */
char *shunt_arena_strdup(struct shunt_arena *arena, const char *text);
/* Frees all; the arena is empty again. */
void shunt_arena_finish(struct shunt_arena *arena);
