/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_OBSERVE_COUNTERS_H
#define SHUNT_COMM_OBSERVE_COUNTERS_H
/*
 * What a communicator's calls did: calls and bytes by (collective, kernel), or by (collective, reason) for those that
 * went to NCCL. Adding is lock-free, from any thread; zeroed memory is an empty table, and it needs no clean-up.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "shunt/shunt.h"

/* Kernels that are told apart; calls of any further one are counted under the name "other". */
#define SHUNT_COUNTER_PATHS 24

struct shunt_counters_table {
	_Atomic(const char *) paths[SHUNT_COUNTER_PATHS]; /* filled from the front */
	struct {
		atomic_uint_fast64_t calls, bytes;
	} ours[SHUNT_NKINDS][SHUNT_COUNTER_PATHS + 1], nccl[SHUNT_NKINDS][SHUNT_NREASONS];
};

/*
 * path: the kernel's name, with static storage (compared as a pointer), or NULL for NCCL; reason is looked at only
 * then.
 */
void shunt_counters_add(struct shunt_counters_table *table, enum shunt_kind kind, const char *path,
    enum shunt_reason reason, uint64_t bytes);
/* Copies at most cap rows that are not zero to rows; returns how many there are. A snapshot only while nobody adds. */
size_t shunt_counters_list(const struct shunt_counters_table *table, struct shunt_counter *rows, size_t cap);
/* Prints the table as banner lines under a title; nothing if it is empty. */
void shunt_counters_print(const struct shunt_counters_table *table, const char *title);
#endif
