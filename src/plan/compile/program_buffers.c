/* SPDX-License-Identifier: MIT */
/*
 * Finds the memory that a program uses from the operations of all blocks of all ranks: the caller's buffers (merged or
 * two), peers' buffers, scratch.
 */
#include "plan/compile/program_priv.h"

static void choose_buffers(struct program_builder *b)
{
	const uint64_t *chunks = b->gpu->chunks;
	struct shunt_program *p = b->program;

	p->merged = b->plan->inplace;
	if (p->merged) {
		p->merged_into = shunt_plan_gathers(b->plan->collective) ||
		    (!shunt_plan_scatters(b->plan->collective) && chunks[SHUNT_PLAN_OUTPUT] > chunks[SHUNT_PLAN_INPUT]);
		/*
		 * The plan may say that the merged buffer has no chunks, if it uses only the part that the other one
		 * is. The merged buffer has all parts nevertheless.
		 */
		p->extent[p->merged_into] = shunt_plan_is_custom(b->plan->collective) ?
		    chunks[p->merged_into] :
		    b->plan->parts[p->merged_into] * b->plan->part_chunks;
	} else {
		p->extent[0] = chunks[SHUNT_PLAN_INPUT];
		p->extent[1] = chunks[SHUNT_PLAN_OUTPUT];
	}
	p->used[0] = p->extent[0];
	p->used[1] = p->extent[1];
}

struct shunt_prog_operand shunt_program_operand(
    const struct program_builder *b, const struct shunt_plan_slice *s, uint32_t rank)
{
	struct shunt_prog_operand o = { .buffer = (uint8_t)s->buffer, .rank = (uint16_t)rank, .index = s->index };

	if (s->buffer == SHUNT_PLAN_SCRATCH || !b->program->merged || s->buffer == b->program->merged_into)
		return o;
	o.buffer = b->program->merged_into;
	if (shunt_plan_gathers(b->plan->collective) || shunt_plan_scatters(b->plan->collective))
		o.index += rank * b->plan->part_chunks;
	return o;
}

/* Notes a slice that an operation of `gpu` reads or writes. */
static int note_access(
    struct program_builder *b, const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *s, bool write)
{
	const uint32_t *ranks;
	uint32_t n = shunt_plan_slice_ranks(gpu, s, &ranks);

	for (uint32_t i = 0; i < n; i++) {
		struct shunt_prog_operand o = shunt_program_operand(b, s, ranks[i]);
		struct shunt_ranges *r;
		int err;

		if (o.buffer == SHUNT_PLAN_SCRATCH) {
			*(s->packet ? &b->program->packets : &b->program->plain) = true;
			/*
			 * Peers' scratch is safe with chunks of any size if no launch can begin before all ranks have
			 * left the last but one.
			 */
			if (s->place != SHUNT_PLAN_LOCAL &&
			    !(s->packet && b->plan->double_scratch && b->plan->collective < SHUNT_PLAN_SENDRECV))
				b->program->flags |= SHUNT_PROG_RESYNC;
			if (s->packet || !write || o.rank != b->rank)
				continue;
		}
		if (s->place != SHUNT_PLAN_LOCAL && o.buffer != SHUNT_PLAN_SCRATCH)
			b->program->staging[o.buffer] = true;
		if (o.rank != b->rank)
			continue;
		r = write ? &b->written[o.buffer] : &b->read[o.buffer];
		err = shunt_ranges_add(r, o.index, o.index + s->size);
		if (err)
			return err;
	}
	return 0;
}

static void port_buffer(struct program_builder *b, const struct shunt_plan_slice *s)
{
	uint8_t buffer = shunt_program_operand(b, s, b->rank).buffer;

	b->program->ported[buffer] = true;
	if (buffer != SHUNT_PLAN_SCRATCH)
		b->program->staging[buffer] = true;
}

/* Notes what a rank's operation sends to other hosts. Its own input or output is sent from a staging buffer, too. */
static void note_ports(struct program_builder *b, uint32_t r, const struct shunt_plan_op *op)
{
	for (uint32_t j = 0; j < op->ndst && op->nids; j++) {
		if (!shunt_program_leaves(b, r, op, op->ids[j]))
			continue;
		port_buffer(b, &op->src[op->nsrc == 1 ? 0 : j]);
		port_buffer(b, &op->dst[j]);
	}
}

static void find_reach(struct program_builder *b)
{
	struct shunt_program *p = b->program;

	for (uint32_t r = 0; r < b->plan->nranks; r++)
		p->reach[r] = b->host_of[r] == b->host_of[b->rank] ? SHUNT_PLAN_BY_MEMORY : SHUNT_PLAN_NEVER;
	for (uint32_t r = 0; r < b->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &b->plan->gpus[r];

		for (uint32_t k = 0; k < gpu->nchannels[SHUNT_PLAN_PORT]; k++) {
			uint32_t peer = gpu->channels[SHUNT_PLAN_PORT][k].peer, other = r == b->rank ? peer : r;

			if ((r == b->rank || peer == b->rank) && p->reach[other] == SHUNT_PLAN_NEVER)
				p->reach[other] = SHUNT_PLAN_BY_PORT;
		}
	}
}

/* Notes the slices of all ranks, since these use each other's buffers. */
static int note_all_accesses(struct program_builder *b)
{
	for (uint32_t r = 0; r < b->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &b->plan->gpus[r];

		for (uint32_t k = 0; k < gpu->nblocks; k++)
			for (uint32_t i = 0; i < gpu->blocks[k].nops; i++) {
				const struct shunt_plan_op *op = &gpu->blocks[k].ops[i];
				int err = 0;

				note_ports(b, r, op);

				for (uint32_t j = 0; j < op->nsrc && !err; j++)
					err = note_access(b, gpu, &op->src[j], false);
				for (uint32_t j = 0; j < op->ndst && !err; j++)
					err = note_access(b, gpu, &op->dst[j], true);
				if (err)
					return err;
			}
	}
	for (int i = 0; i < 2; i++)
		shunt_ranges_merge(&b->read[i]);
	for (int i = 0; i < 3; i++)
		shunt_ranges_merge(&b->written[i]);
	return 0;
}

int shunt_program_buffers(struct program_builder *b)
{
	struct shunt_program *p = b->program;
	int err;

	choose_buffers(b);
	p->over_hosts = b->host_of != NULL;
	p->table = p->over_hosts ? SHUNT_PLAN_PORTS_TABLE(b->plan->nranks) : b->plan->nranks;
	if (p->over_hosts)
		find_reach(b);
	err = note_all_accesses(b);
	if (err)
		return err;
	/* Over hosts a rank does not hear of all others: ranks synchronize in each launch, not only where chunks
	 * change. */
	if (p->staging[0] || p->staging[1] || (p->over_hosts && (p->flags & SHUNT_PROG_RESYNC)))
		p->flags |= SHUNT_PROG_STAGED;
	if (b->plan->double_scratch)
		p->flags |= SHUNT_PROG_DOUBLE_SCRATCH;
	p->preserves_input = !b->written[0].n;
	if (p->merged) {
		uint64_t part = b->plan->part_chunks, mine = b->rank * part;

		p->preserves_input = !shunt_plan_scatters(b->plan->collective) ||
		    shunt_ranges_within(&b->written[p->merged_into], mine, mine + part);
	}
	p->loads_output = !p->merged && shunt_plan_is_custom(b->plan->collective) && b->read[1].n;
	return 0;
}
