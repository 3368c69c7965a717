/* SPDX-License-Identifier: MIT */
#include "plan/compile/bytecode.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *shunt_bytecode_append(struct shunt_bytecode *bc, size_t bytes)
{
	void *at;

	if (bc->err)
		return NULL;
	if (bc->n + bytes > bc->capacity) {
		size_t capacity = 2 * (bc->n + bytes);
		char *enlarged = realloc(bc->bytes, capacity);

		if (!enlarged) {
			bc->err = -ENOMEM;
			return NULL;
		}
		bc->bytes = enlarged;
		bc->capacity = capacity;
	}
	at = bc->bytes + bc->n;
	memset(at, 0, bytes);
	bc->n += bytes;
	if (bc->n > UINT32_MAX / 2)
		bc->err = -E2BIG;
	return bc->err ? NULL : at;
}

size_t shunt_bytecode_emit(
    struct shunt_bytecode *bc, enum shunt_prog_code code, uint32_t nsrc, uint32_t ndst, uint64_t size)
{
	size_t at = bc->n;
	struct shunt_prog_op *op = shunt_bytecode_append(bc, sizeof(*op));

	if (op) {
		op->code = (uint8_t)code;
		op->nsrc = nsrc;
		op->ndst = ndst;
		op->size = size;
		op->parts = 1;
		op->next = (uint32_t)bc->n;
	}
	bc->last_op = at;
	return at;
}

void shunt_bytecode_operand(struct shunt_bytecode *bc, struct shunt_prog_operand o)
{
	size_t back = bc->n - bc->last_op;
	struct shunt_prog_operand *at = shunt_bytecode_append(bc, sizeof(*at));

	o.back = (uint32_t)(back / sizeof(o));
	if (!at)
		return;
	*at = o;
	shunt_bytecode_op(bc, bc->last_op)->next = (uint32_t)bc->n;
}

struct shunt_prog_op *shunt_bytecode_op(const struct shunt_bytecode *bc, size_t at)
{
	return bc->err ? NULL : (struct shunt_prog_op *)(bc->bytes + at);
}

void shunt_bytecode_mark_synced(struct shunt_bytecode *bc)
{
	bc->unsynced_ll128 = bc->unsynced_other = false;
}

void shunt_bytecode_mark_unsynced(struct shunt_bytecode *bc, bool ll128)
{
	bc->unsynced_ll128 |= ll128;
	bc->unsynced_other |= !ll128;
}

void shunt_bytecode_sync(struct shunt_bytecode *bc)
{
	shunt_bytecode_emit(bc, SHUNT_PROG_SYNC, 0, 0, 0);
	shunt_bytecode_mark_synced(bc);
}

void shunt_bytecode_sync_before(struct shunt_bytecode *bc, bool ll128)
{
	if (bc->ll128 && (ll128 ? bc->unsynced_other : bc->unsynced_ll128))
		shunt_bytecode_sync(bc);
}

void shunt_bytecode_sync_if_needed(struct shunt_bytecode *bc)
{
	if (bc->unsynced_ll128 || bc->unsynced_other)
		shunt_bytecode_sync(bc);
}

void shunt_bytecode_finish(struct shunt_bytecode *bc)
{
	free(bc->bytes);
	*bc = (struct shunt_bytecode){ 0 };
}
