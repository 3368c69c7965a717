/* SPDX-License-Identifier: MIT */
/* The compiler: makes the bytecode of one rank's blocks. */
#include "plan/compile/program.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plan/compile/program_priv.h"

/* Chunks of one of the caller's buffers (0 send, 1 receive) or of ours, from `index` on. */
struct staged {
	uint8_t buffer;
	uint64_t index;
};

static void emit_staging(
    struct program_builder *b, enum shunt_prog_code code, struct staged user, struct staged ours, uint64_t size)
{
	struct shunt_prog_op *op;
	size_t at;

	if (!size)
		return;
	at = shunt_bytecode_emit(&b->bc, code, 1, 1, size);
	shunt_bytecode_operand(&b->bc, (struct shunt_prog_operand){ .buffer = user.buffer, .index = user.index });
	shunt_bytecode_operand(&b->bc,
	    (struct shunt_prog_operand){
	        .as = SHUNT_PROG_AS_SLICE, .buffer = ours.buffer, .rank = (uint16_t)b->rank, .index = ours.index });
	op = shunt_bytecode_op(&b->bc, at);
	if (op)
		op->flags = ours.buffer;
}

static void emit_ranges(
    struct program_builder *b, enum shunt_prog_code code, uint8_t buffer, const struct shunt_ranges *r)
{
	for (size_t i = 0; i < r->n; i++)
		emit_staging(b, code, (struct staged){ buffer, r->v[i].begin },
		    (struct staged){ buffer, r->v[i].begin }, r->v[i].end - r->v[i].begin);
}

static void emit_loads(struct program_builder *b)
{
	const struct shunt_program *p = b->program;
	uint64_t part = b->plan->part_chunks;

	if (p->merged)
		emit_staging(b, SHUNT_PROG_LOAD, (struct staged){ 0, 0 },
		    (struct staged){ p->merged_into, shunt_plan_gathers(b->plan->collective) ? b->rank * part : 0 },
		    shunt_plan_gathers(b->plan->collective) ? part : p->extent[p->merged_into]);
	else
		emit_ranges(b, SHUNT_PROG_LOAD, 0, &b->read[0]);
	if (p->loads_output)
		emit_ranges(b, SHUNT_PROG_LOAD, 1, &b->read[1]);
}

static void emit_stores(struct program_builder *b)
{
	const struct shunt_program *p = b->program;
	uint64_t part = b->plan->part_chunks;

	if (p->merged)
		emit_staging(b, SHUNT_PROG_STORE, (struct staged){ 1, 0 },
		    (struct staged){ p->merged_into, shunt_plan_scatters(b->plan->collective) ? b->rank * part : 0 },
		    shunt_plan_scatters(b->plan->collective) ? part : p->extent[p->merged_into]);
	else
		emit_ranges(b, SHUNT_PROG_STORE, 1, &b->written[1]);
}

/*
 * Builds block k's bytecode in b->bc. A rank without blocks takes part in the launch with one block that does nothing.
 */
static int build_block(struct program_builder *b, uint32_t k)
{
	_Static_assert(sizeof(struct shunt_prog_head) % 16 == 0, "bytecode is read in pieces of 16 bytes");
	uint32_t first = SHUNT_PROG_OPS_AT(b->program->table);
	struct shunt_bytecode *blk = &b->bc;
	size_t body;

	*blk = (struct shunt_bytecode){ .ll128 = b->program->flags & SHUNT_PROG_LL128 };
	shunt_bytecode_append(blk, first);
	if (b->program->flags & SHUNT_PROG_STAGED)
		shunt_bytecode_emit(blk, SHUNT_PROG_READY, 0, 0, 0);
	emit_loads(b);
	shunt_bytecode_emit(blk, SHUNT_PROG_ENTER, 0, 0, 0);
	body = blk->n;
	b->block = k < b->gpu->nblocks ? &b->gpu->blocks[k] : NULL;
	for (uint32_t i = 0; b->block && i < b->block->nops && !blk->err;)
		i += shunt_program_translate(b, &b->block->ops[i]);
	shunt_bytecode_emit(blk, SHUNT_PROG_LEAVE, 0, 0, 0);
	emit_stores(b);
	shunt_bytecode_emit(blk, SHUNT_PROG_END, 0, 0, 0);
	if (!blk->err) {
		((struct shunt_prog_head *)blk->bytes)->first = first;
		((struct shunt_prog_head *)blk->bytes)->body = (uint32_t)body;
	}
	return blk->err;
}

/*
 * Builds the bytecode of all blocks one after the other, each as long as the longest. head: the part that all heads
 * have in common.
 */
static int build_blocks(struct program_builder *b, struct shunt_prog_head head)
{
	struct shunt_program *p = b->program;
	struct shunt_bytecode *bytecodes = calloc(p->nblocks, sizeof(*bytecodes));
	size_t largest = sizeof(head); /* each block's bytecode begins with a head */
	int err = bytecodes ? 0 : -ENOMEM;

	for (uint32_t k = 0; k < p->nblocks && !err; k++) {
		err = build_block(b, k);
		bytecodes[k] = b->bc;
		largest = b->bc.n > largest ? b->bc.n : largest;
	}
	if (!err && (uint64_t)largest * p->nblocks > UINT32_MAX)
		err = -E2BIG;
	if (!err && !(p->bytecodes = calloc(p->nblocks, largest)))
		err = -ENOMEM;
	for (uint32_t k = 0; k < p->nblocks && !err; k++) {
		struct shunt_prog_head *h = (struct shunt_prog_head *)(p->bytecodes + k * largest);

		memcpy(h, bytecodes[k].bytes, bytecodes[k].n);
		head.first = h->first;
		head.body = h->body;
		*h = head;
	}
	p->bytecode_bytes = (uint32_t)largest;
	for (uint32_t k = 0; bytecodes && k < p->nblocks; k++)
		shunt_bytecode_finish(&bytecodes[k]);
	free(bytecodes);
	return err;
}

static int build_program(struct program_builder *b, bool ll128)
{
	const struct shunt_plan *plan = b->plan;
	struct shunt_program *p = b->program;
	struct shunt_prog_head head = {
		.rank = b->rank, .nranks = plan->nranks, .unit = plan->alignment, .dense = plan->dense
	};
	int err = shunt_program_buffers(b);

	if (err)
		return err;
	if (ll128 && plan->ll128 && !p->over_hosts) {
		p->flags |= SHUNT_PROG_LL128;
		p->sparse = plan->dense - 1;
	}
	p->nblocks = b->gpu->nblocks ? b->gpu->nblocks : 1;
	p->scratch = plan->scratch_chunks * (plan->ll ? 2 : 1);
	p->nsemaphores = b->gpu->nsemaphores;
	p->semaphores = b->gpu->semaphores;
	head.nblocks = p->nblocks;
	head.flags = p->flags;
	for (int i = 0; i < 2; i++)
		head.chunks[i] = !shunt_plan_is_custom(plan->collective) ? plan->part_chunks :
		    p->merged                                            ? p->extent[p->merged_into] :
		                                                           b->gpu->chunks[i];
	err = shunt_program_layout_counters(plan, &head, p);
	if (err)
		return err;
	p->semaphores_at = head.semaphores_at;
	return build_blocks(b, head);
}

int shunt_program_create(
    const struct shunt_plan *plan, uint32_t rank, const uint8_t *host_of, bool ll128, struct shunt_program **program_p)
{
	struct program_builder b = { .plan = plan, .gpu = &plan->gpus[rank], .rank = rank, .host_of = host_of };
	int err;

	b.program = calloc(1, sizeof(*b.program));
	if (!b.program)
		return -ENOMEM;
	err = build_program(&b, ll128);
	for (int i = 0; i < 2; i++)
		shunt_ranges_finish(&b.read[i]);
	for (int i = 0; i < 3; i++)
		shunt_ranges_finish(&b.written[i]);
	if (err) {
		shunt_program_destroy(b.program);
		return err;
	}
	*program_p = b.program;
	return 0;
}

void shunt_program_destroy(struct shunt_program *program)
{
	if (!program)
		return;
	free(program->bytecodes);
	free(program);
}
