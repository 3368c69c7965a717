/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_COMPILE_BYTECODE_H
#define SHUNT_PLAN_COMPILE_BYTECODE_H
/*
 * A block's bytecode as it grows (kernels/plan/args.h): operations one behind the other, and where its threads must
 * synchronize between them.
 *
 * LL128 operations share out a slice by warps, all others by threads: those that follow each other on the same bytes
 * must not mix. So the bytecode knows which of the two kinds threads may still be at, each at its own place, since the
 * last sync: these are unsynced.
 */
#include <stdbool.h>
#include <stddef.h>
#include "kernels/plan/args.h"

/* Zeroed: empty. */
struct shunt_bytecode {
	char *bytes;
	size_t n, capacity;
	size_t last_op; /* offset */
	bool ll128;     /* packets travel as LL128 */
	bool unsynced_ll128, unsynced_other;
	bool in_loop;
	int err; /* sticky: once there is one, nothing more is written */
};

/* So many zeroed bytes, or NULL. */
void *shunt_bytecode_append(struct shunt_bytecode *bc, size_t bytes);
/* The operation's offset; its operands are to follow before the next one begins. */
size_t shunt_bytecode_emit(
    struct shunt_bytecode *bc, enum shunt_prog_code code, uint32_t nsrc, uint32_t ndst, uint64_t size);
/* Appends an operand to the latest operation; o.back is filled in here. */
void shunt_bytecode_operand(struct shunt_bytecode *bc, struct shunt_prog_operand o);
/* The operation at an offset, until something is appended; NULL after an error. */
struct shunt_prog_op *shunt_bytecode_op(const struct shunt_bytecode *bc, size_t at);

/*
 * Threads have synchronized in an operation of another kind than a sync; or they may have gone on by themselves, on
 * LL128 or not.
 */
void shunt_bytecode_mark_synced(struct shunt_bytecode *bc);
void shunt_bytecode_mark_unsynced(struct shunt_bytecode *bc, bool ll128);
void shunt_bytecode_sync(struct shunt_bytecode *bc);
/* A sync if threads need one before an LL128 operation, or another one. */
void shunt_bytecode_sync_before(struct shunt_bytecode *bc, bool ll128);
/* A sync unless nothing is unsynced. */
void shunt_bytecode_sync_if_needed(struct shunt_bytecode *bc);

void shunt_bytecode_finish(struct shunt_bytecode *bc);
#endif
