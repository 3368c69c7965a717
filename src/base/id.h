/* SPDX-License-Identifier: MIT */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Unique id of a communicator, the same on all its ranks. A secret of the job. */
struct shunt_id {
	uint8_t b[16];
};

/*
 * The id in logs and dumps: its first four bytes, which do not reveal the secret. Use within one statement:
 * shunt_id_text(id.b).s.
 */
struct shunt_id_text {
	char s[9];
};
static inline struct shunt_id_text shunt_id_text(const uint8_t id[16])
{
	struct shunt_id_text text;

	snprintf(text.s, sizeof(text.s), "%02x%02x%02x%02x", id[0], id[1], id[2], id[3]);
	return text;
}
/* Derives a child's id; the same inputs give the same id on every rank. tag: "split", "shrink", "all", ... */
struct shunt_id shunt_id_derive(const void *secret, size_t bytes, const char *tag, uint64_t a, uint64_t b);
