/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A communicator's counters: calls and bytes by (collective, path), or by (collective, reason) for calls that went to
 * NCCL. Adding is lock-free, from any thread. Zeroed memory is an empty table, and needs no clean-up.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "shunt/shunt.h"

/* Paths with a row of their own; calls of all others are counted under the name "other". */
#define SHUNT_COUNTER_PATHS 24

struct shunt_counters_table {
	_Atomic(const char *) paths[SHUNT_COUNTER_PATHS]; /* filled from the front */
	struct {
		atomic_uint_fast64_t calls, bytes;
	} ours[SHUNT_NKINDS][SHUNT_COUNTER_PATHS + 1], nccl[SHUNT_NKINDS][SHUNT_NREASONS];
};

/* path: with static storage (compared as a pointer), or NULL for NCCL; reason counts only then. */
void shunt_counters_add(struct shunt_counters_table *table, enum shunt_kind kind, const char *path,
    enum shunt_reason reason, uint64_t bytes);
/* Copies at most cap rows that are not zero; returns how many there are. It is a snapshot only while no thread adds. */
size_t shunt_counters_list(const struct shunt_counters_table *table, struct shunt_counter *rows, size_t cap);
/* Prints the table as banner lines under a title; prints nothing if it is empty. */
void shunt_counters_print(const struct shunt_counters_table *table, const char *title);
