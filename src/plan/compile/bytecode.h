/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Builder of a block's bytecode (kernels/plan/args.h): operations one after the other, with syncs of the block's
 * threads where these are needed.
 *
 * LL128 operations divide a slice among warps, all others among threads. Two operations of different kinds on the same
 * bytes need a sync between them. So the builder tracks the kinds that may still be running since the last sync: these
 * are unsynced.
 */
#include <stdbool.h>
#include <stddef.h>
#include "kernels/plan/args.h"

/* Zeroed: empty. */
struct shunt_bytecode {
	char *bytes;
	size_t n, capacity;
	size_t last_op; /* offset of the latest operation */
	bool ll128;     /* packets travel as LL128 */
	bool unsynced_ll128, unsynced_other;
	bool in_loop;
	int err; /* sticky: after an error nothing is appended */
};

/* Appends zeroed bytes; NULL after an error. */
void *shunt_bytecode_append(struct shunt_bytecode *bc, size_t bytes);
/* Appends an operation and returns its offset. Its operands must come before the next operation. */
size_t shunt_bytecode_emit(
    struct shunt_bytecode *bc, enum shunt_prog_code code, uint32_t nsrc, uint32_t ndst, uint64_t size);
/* Appends an operand to the latest operation; o.back is filled in here. */
void shunt_bytecode_operand(struct shunt_bytecode *bc, struct shunt_prog_operand o);
/* The operation at an offset, valid until the next append; NULL after an error. */
struct shunt_prog_op *shunt_bytecode_op(const struct shunt_bytecode *bc, size_t at);

/*
 * synced: an operation other than a sync has synchronized the threads. unsynced: threads may be at different places of
 * an operation, LL128 or not.
 */
void shunt_bytecode_mark_synced(struct shunt_bytecode *bc);
void shunt_bytecode_mark_unsynced(struct shunt_bytecode *bc, bool ll128);
void shunt_bytecode_sync(struct shunt_bytecode *bc);
/* Appends a sync if threads need one before an operation of this kind. */
void shunt_bytecode_sync_before(struct shunt_bytecode *bc, bool ll128);
/* Appends a sync if anything is unsynced. */
void shunt_bytecode_sync_if_needed(struct shunt_bytecode *bc);

void shunt_bytecode_finish(struct shunt_bytecode *bc);
