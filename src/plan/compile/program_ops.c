/* SPDX-License-Identifier: MIT */
/*
 * Translates the plan's operations to the kernel's. Adjacent packings, or unpackings, become one operation. Threads
 * synchronize where the format orders the work of several threads.
 */
#include <errno.h>
#include "plan/compile/program_priv.h"

/* Sync before an operation on a port channel, which the format orders behind others of one thread. */
static void sync_for_port(struct program_builder *b, const struct shunt_plan_op *op)
{
	if (op->type == SHUNT_PLAN_PORT)
		shunt_bytecode_sync_if_needed(&b->bc);
}

static uint32_t channel_index(const struct shunt_plan_gpu *gpu, uint32_t type, uint32_t channel)
{
	return type == SHUNT_PLAN_PORT ? gpu->nchannels[SHUNT_PLAN_MEMORY] + channel : channel;
}

static void emit_signal(struct program_builder *b, const struct shunt_plan_op *op)
{
	shunt_bytecode_emit(&b->bc, SHUNT_PROG_SIGNAL, op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *c = &b->gpu->channels[op->type][op->ids[j]];

		shunt_bytecode_operand(&b->bc,
		    (struct shunt_prog_operand){ .rank = (uint16_t)c->peer,
		        .index = channel_index(&b->plan->gpus[c->peer], op->type, c->pair) });
	}
}

static void emit_wait(struct program_builder *b, const struct shunt_plan_op *op)
{
	shunt_bytecode_emit(&b->bc, SHUNT_PROG_WAIT, op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++)
		shunt_bytecode_operand(&b->bc,
		    (struct shunt_prog_operand){ .rank = (uint16_t)b->gpu->channels[op->type][op->ids[j]].peer,
		        .index = channel_index(b->gpu, op->type, op->ids[j]) });
	shunt_bytecode_mark_unsynced(&b->bc, false);
}

static void emit_semaphores(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code)
{
	shunt_bytecode_emit(&b->bc, code, op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++)
		shunt_bytecode_operand(
		    &b->bc, (struct shunt_prog_operand){ .rank = (uint16_t)b->rank, .index = op->ids[j] });
	if (code == SHUNT_PROG_SEM_ACQUIRE)
		shunt_bytecode_mark_unsynced(&b->bc, false);
}

static bool same_slice(const struct shunt_plan_slice *a, const struct shunt_plan_slice *b)
{
	return a->place == b->place && a->buffer == b->buffer && a->packet == b->packet && a->target == b->target &&
	    a->index == b->index && a->size == b->size;
}

static uint32_t slice_nranks(const struct program_builder *b, const struct shunt_plan_slice *s)
{
	const uint32_t *ranks;

	return shunt_plan_slice_ranks(b->gpu, s, &ranks);
}

/* True if source j of an operation, or destination j, is packets. */
static bool source_is_ll(enum shunt_prog_code code, uint32_t j)
{
	return code == SHUNT_PROG_UNPACK_PACKETS || code == SHUNT_PROG_FORWARD_PACKETS ||
	    (code == SHUNT_PROG_REDUCE_PACKETS && j);
}

static bool dest_is_ll(enum shunt_prog_code code, uint32_t j)
{
	return code == SHUNT_PROG_PACK_PACKETS || code == SHUNT_PROG_FORWARD_PACKETS ||
	    (code == SHUNT_PROG_REDUCE_PACKETS && j);
}

/* Appends an operand for each rank of the slice. ll128: the operation is one on LL128. */
static void emit_slice(struct program_builder *b, const struct shunt_plan_slice *s, bool packets, bool ll128)
{
	const uint32_t *ranks;
	uint32_t n = shunt_plan_slice_ranks(b->gpu, s, &ranks);

	for (uint32_t i = 0; i < n; i++) {
		struct shunt_prog_operand o = shunt_program_operand(b, s, ranks[i]);

		o.as = packets ? ll128 ? SHUNT_PROG_AS_LL128 : SHUNT_PROG_AS_LL :
		    ll128      ? SHUNT_PROG_AS_PART :
		                 SHUNT_PROG_AS_SLICE;
		shunt_bytecode_operand(&b->bc, o);
	}
}

/* Appends one operation on nsrc sources and ndst destinations of the plan. */
static void emit_data(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code,
    const struct shunt_plan_slice *src, uint32_t nsrc, const struct shunt_plan_slice *dst, uint32_t ndst)
{
	bool packets = source_is_ll(code, 1) || dest_is_ll(code, 1), ll128 = packets && b->bc.ll128;
	struct shunt_prog_op *out;
	uint32_t sources = 0, destinations = 0;
	size_t at;

	shunt_bytecode_sync_before(&b->bc, ll128);
	for (uint32_t j = 0; j < nsrc; j++)
		sources += slice_nranks(b, &src[j]);
	for (uint32_t j = 0; j < ndst; j++)
		destinations += slice_nranks(b, &dst[j]);
	if (code == SHUNT_PROG_COPY && (sources > 1 || destinations > 1))
		code = SHUNT_PROG_REDUCE;
	at = shunt_bytecode_emit(&b->bc, code, sources, destinations, src[0].size);
	if (ll128)
		shunt_bytecode_operand(&b->bc, (struct shunt_prog_operand){ .as = SHUNT_PROG_AS_SHARE });
	for (uint32_t j = 0; j < nsrc; j++)
		emit_slice(b, &src[j], source_is_ll(code, j), ll128);
	for (uint32_t j = 0; j < ndst; j++)
		emit_slice(b, &dst[j], dest_is_ll(code, j), ll128);
	shunt_bytecode_mark_unsynced(&b->bc, ll128);
	out = shunt_bytecode_op(&b->bc, at);
	if (!out)
		return;
	out->redop = (uint8_t)(op->redop == SHUNT_AVG ? SHUNT_SUM : op->redop);
	out->part = op->part;
	out->parts = op->parts;
	out->flags = b->bc.in_loop && packets ? SHUNT_PROG_WHOLE : 0;
}

/*
 * Adds a packing or unpacking to the operation before it, if that has the same kind and size. Then their waits for
 * memory or peers overlap. Not if it uses plain scratch, which the operation before may have written.
 */
static bool emit_fused(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code,
    const struct shunt_plan_slice *src, const struct shunt_plan_slice *dst)
{
	enum shunt_prog_code fused = code == SHUNT_PROG_PACK_PACKETS ? SHUNT_PROG_PACK_PAIRS : SHUNT_PROG_UNPACK_PAIRS;
	struct shunt_prog_op *last = shunt_bytecode_op(&b->bc, b->bc.last_op);

	if (code != SHUNT_PROG_PACK_PACKETS && code != SHUNT_PROG_UNPACK_PACKETS)
		return false;
	if (!last || last->next != b->bc.n || (last->code != code && last->code != fused) || last->ndst != last->nsrc)
		return false;
	if (last->size != src->size || last->part != op->part || last->parts != op->parts)
		return false;
	if (slice_nranks(b, dst) != 1 || (code == SHUNT_PROG_PACK_PACKETS ? src : dst)->buffer == SHUNT_PLAN_SCRATCH)
		return false;
	last->code = (uint8_t)fused;
	last->nsrc++;
	last->ndst++;
	emit_slice(b, src, source_is_ll(code, 0), b->bc.ll128);
	emit_slice(b, dst, dest_is_ll(code, 0), b->bc.ll128);
	return true;
}

/* Appends pairs in order. Neighbours with the same source become one operation, which reads it once. */
static void emit_pairs(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code)
{
	uint32_t n;

	for (uint32_t j = 0; j < op->ndst; j += n) {
		for (n = 1; j + n < op->ndst && same_slice(&op->src[j], &op->src[j + n]);)
			n++;
		if (n > 1 || !emit_fused(b, op, code, &op->src[j], &op->dst[j]))
			emit_data(b, op, code, &op->src[j], 1, &op->dst[j], n);
	}
}

static void emit_op(struct program_builder *b, const struct shunt_plan_op *op)
{
	struct shunt_prog_op *barrier;

	switch ((enum shunt_plan_opcode)op->code) {
	case SHUNT_PLAN_NOP:
	case SHUNT_PLAN_FLUSH: /* data is complete when its operation ends, on all threads that have synchronized */
		shunt_bytecode_sync(&b->bc);
		break;
	case SHUNT_PLAN_BARRIER:
		barrier = shunt_bytecode_op(&b->bc, shunt_bytecode_emit(&b->bc, SHUNT_PROG_BARRIER, 0, 0, op->barrier));
		if (barrier)
			barrier->nsrc = op->nblocks;
		shunt_bytecode_mark_synced(&b->bc);
		break;
	case SHUNT_PLAN_SIGNAL:
	case SHUNT_PLAN_RLXSIGNAL: /* relaxed, but programs end with it after stores that the peer must see */
		sync_for_port(b, op);
		emit_signal(b, op);
		break;
	case SHUNT_PLAN_WAIT:
	case SHUNT_PLAN_RLXWAIT:
		emit_wait(b, op);
		break;
	case SHUNT_PLAN_SEM_ACQUIRE:
		emit_semaphores(b, op, SHUNT_PROG_SEM_ACQUIRE);
		break;
	case SHUNT_PLAN_SEM_RELEASE:
		emit_semaphores(b, op, SHUNT_PROG_SEM_RELEASE);
		break;
	case SHUNT_PLAN_COPY:
	case SHUNT_PLAN_PUT:
	case SHUNT_PLAN_GET:
		sync_for_port(b, op);
		emit_pairs(b, op, SHUNT_PROG_COPY);
		break;
	case SHUNT_PLAN_PWS:
	case SHUNT_PLAN_PWSF:
		sync_for_port(b, op);
		emit_pairs(b, op, SHUNT_PROG_COPY);
		shunt_bytecode_sync(&b->bc);
		emit_signal(b, op);
		break;
	case SHUNT_PLAN_CPKT:
		emit_pairs(b, op, SHUNT_PROG_PACK_PACKETS);
		break;
	case SHUNT_PLAN_UPKT:
		emit_pairs(b, op, SHUNT_PROG_UNPACK_PACKETS);
		break;
	case SHUNT_PLAN_PPKT:
		sync_for_port(b, op);
		/* Waits for packets that are still being written; the format leaves that to the program. */
		emit_pairs(b, op, op->type == SHUNT_PLAN_PORT ? SHUNT_PROG_FORWARD_PACKETS : SHUNT_PROG_PACK_PACKETS);
		break;
	case SHUNT_PLAN_RPPKT:
	case SHUNT_PLAN_GSTOREPKT:
		sync_for_port(b, op);
		emit_data(b, op, SHUNT_PROG_FORWARD_PACKETS, op->src, 1, op->dst, op->ndst);
		break;
	case SHUNT_PLAN_RE:
	case SHUNT_PLAN_RES:
	case SHUNT_PLAN_RRE:
	case SHUNT_PLAN_RRES:
	case SHUNT_PLAN_GLRES:
	case SHUNT_PLAN_GLRE:
	case SHUNT_PLAN_GSTORE:
		emit_data(b, op, SHUNT_PROG_REDUCE, op->src, op->nsrc, op->dst, op->ndst);
		break;
	case SHUNT_PLAN_REPKT:
	case SHUNT_PLAN_RESPKT:
	case SHUNT_PLAN_RECPKT:
	case SHUNT_PLAN_RECSPKT:
		emit_data(b, op, SHUNT_PROG_REDUCE_PACKETS, op->src, op->nsrc, op->dst, op->ndst);
		break;
	default:
		b->bc.err = -EINVAL;
		break;
	}
}

uint32_t shunt_program_translate(struct program_builder *b, const struct shunt_plan_op *ops)
{
	struct shunt_bytecode *blk = &b->bc;
	struct shunt_prog_op *loop;
	size_t at;

	if (ops->code != SHUNT_PLAN_PIPELINE) {
		emit_op(b, ops);
		return 1;
	}
	at = shunt_bytecode_emit(blk, SHUNT_PROG_LOOP, 1, 0, ops->num_chunks);
	shunt_bytecode_operand(blk, (struct shunt_prog_operand){ .index = ops->unit_size / b->plan->alignment });
	/* The operation before a window may be the end of the window before it. */
	blk->in_loop = blk->unsynced_ll128 = blk->unsynced_other = true;
	for (uint32_t k = 1; k <= ops->nbody; k++)
		emit_op(b, &ops[k]);
	blk->in_loop = false;
	blk->unsynced_ll128 = blk->unsynced_other = true;
	blk->last_op = at; /* later operations must not be added to the body */
	loop = shunt_bytecode_op(blk, at);
	if (loop)
		loop->next = (uint32_t)blk->n;
	return 1 + ops->nbody;
}
