/* SPDX-License-Identifier: MIT */
/*
 * Translates the plan's operations to the kernel's. Adjacent packings, or unpackings, become one operation. Threads
 * synchronize where the format orders the work of several threads.
 */
#include "plan/compile/program_priv.h"
#include "plan/format/op_rows.h"

/* The operands of each of the interpreter's operations that are packets: bit 0 the first, bit 1 the others. */
#define PROG_CODE(code, src, dst) SRC_OF_##code = (src), DST_OF_##code = (dst),
enum {
#include "kernels/plan/codes.def"
};
static const struct {
	uint8_t src, dst;
} prog_packets[] = {
#define PROG_CODE(code, src, dst) [SHUNT_PROG_##code] = { src, dst },
#include "kernels/plan/codes.def"
};

/* The interpreter's operation for each of the plan's: [1] if it is on a port channel. */
static const uint8_t prog_codes[SHUNT_PLAN_NOPCODES][2] = {
#define PLAN_OP(code, name, types, src, dst, port_src, ids, effects, prog, port_prog, words) \
	[SHUNT_PLAN_##code] = { SHUNT_PROG_##prog, SHUNT_PROG_##port_prog },
#include "plan/format/op_rows.def"
};

/* Both tables agree: a list has packets where the interpreter's operation has them. */
#define PACKETS_AT(list, i) (((list) >> 4 * (i) & SHUNT_PLAN_SLICE_PACKETS) != 0)
#define PACKETS_AGREE(list, bits) \
	(!(list) || \
	    (PACKETS_AT(list, 0) == ((bits) & 1) && (!((list) >> 4) || PACKETS_AT(list, 1) == ((bits) >> 1)) && \
	        (!((list) >> 8) || PACKETS_AT(list, 2) == ((bits) >> 1))))
#define PLAN_OP(code, name, types, src, dst, port_src, ids, effects, prog, port_prog, words) \
	_Static_assert(PACKETS_AGREE(src, SRC_OF_##prog) && PACKETS_AGREE(dst, DST_OF_##prog) && \
	        PACKETS_AGREE(port_src, SRC_OF_##port_prog) && PACKETS_AGREE(dst, DST_OF_##port_prog), \
	    name ": the interpreter has packets elsewhere");
#include "plan/format/op_rows.def"
/*
 * An effect on counters is the interpreter's operation for it, on both types of channels: the proof counts on the order
 * that this operation gives. PWS signals with an operation of its own.
 */
#define SAME(effects, effect, prog, code) \
	((((effects) & SHUNT_PLAN_##effect) != 0) == (SHUNT_PROG_##prog == SHUNT_PROG_##code))
#define PLAN_OP(code, name, types, src, dst, port_src, ids, effects, prog, port_prog, words) \
	_Static_assert(SAME(effects, WAITS, prog, WAIT) && SAME(effects, ACQUIRES, prog, SEM_ACQUIRE) && \
	        SAME(effects, RELEASES, prog, SEM_RELEASE) && SAME(effects, SYNCS_BLOCKS, prog, BARRIER) && \
	        SAME(effects, REPEATS, prog, LOOP) && ((src) || SAME(effects, SIGNALS, prog, SIGNAL)) && \
	        SAME(effects, WAITS, port_prog, WAIT) && ((src) || SAME(effects, SIGNALS, port_prog, SIGNAL)), \
	    name ": the interpreter's operation has other effects");
#include "plan/format/op_rows.def"
/* The kernels tell operations on packets by their place in the enum (kernels/plan/ll128_packets.h). */
#define PROG_CODE(code, src, dst) \
	_Static_assert(((src) || (dst)) == \
	        (SHUNT_PROG_##code >= SHUNT_PROG_PACK_PACKETS && SHUNT_PROG_##code <= SHUNT_PROG_REDUCE_PACKETS), \
	    #code ": operations on packets are neighbours");
#include "kernels/plan/codes.def"

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

/* The peer's end of one of the operation's channels. */
static struct shunt_prog_operand far_slot(const struct program_builder *b, const struct shunt_plan_op *op, uint32_t j)
{
	const struct shunt_plan_channel *c = &b->gpu->channels[op->type][op->ids[j]];

	return (struct shunt_prog_operand){ .rank = (uint16_t)c->peer,
		.index = channel_index(&b->plan->gpus[c->peer], op->type, c->pair) };
}

static struct shunt_prog_operand own_slot(const struct program_builder *b, const struct shunt_plan_op *op, uint32_t j)
{
	return (struct shunt_prog_operand){ .rank = (uint16_t)b->gpu->channels[op->type][op->ids[j]].peer,
		.index = channel_index(b->gpu, op->type, op->ids[j]) };
}

/* An operation on those of the channels that leave the host, or on the others, if there are any. */
static void emit_slots(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code, bool leave,
    struct shunt_prog_operand (*slot)(const struct program_builder *, const struct shunt_plan_op *, uint32_t))
{
	uint32_t n = 0;

	for (uint32_t j = 0; j < op->nids; j++)
		n += shunt_program_leaves(b, b->rank, op, op->ids[j]) == leave;
	if (!n)
		return;
	shunt_bytecode_emit(&b->bc, code, n, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++)
		if (shunt_program_leaves(b, b->rank, op, op->ids[j]) == leave)
			shunt_bytecode_operand(&b->bc, slot(b, op, j));
}

static void emit_signal(struct program_builder *b, const struct shunt_plan_op *op)
{
	emit_slots(b, op, SHUNT_PROG_PORT_SIGNAL, true, far_slot);
	emit_slots(b, op, SHUNT_PROG_SIGNAL, false, far_slot);
}

static void emit_wait(struct program_builder *b, const struct shunt_plan_op *op)
{
	emit_slots(b, op, SHUNT_PROG_PORT_WAIT, true, own_slot);
	emit_slots(b, op, SHUNT_PROG_WAIT, false, own_slot);
	shunt_bytecode_mark_unsynced(&b->bc, false);
}

static void emit_semaphores(struct program_builder *b, const struct shunt_plan_op *op)
{
	shunt_bytecode_emit(&b->bc, prog_codes[op->code][0], op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++)
		shunt_bytecode_operand(
		    &b->bc, (struct shunt_prog_operand){ .rank = (uint16_t)b->rank, .index = op->ids[j] });
}

static void emit_acquire(struct program_builder *b, const struct shunt_plan_op *op)
{
	emit_semaphores(b, op);
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
	return prog_packets[code].src >> (j > 0) & 1;
}

static bool dest_is_ll(enum shunt_prog_code code, uint32_t j)
{
	return prog_packets[code].dst >> (j > 0) & 1;
}

/* Appends an operand for each rank of the slice. ll128: the operation is one on LL128. */
static void emit_slice(struct program_builder *b, const struct shunt_plan_slice *s, bool packets, bool ll128)
{
	const uint32_t *ranks;
	uint32_t n = shunt_plan_slice_ranks(b->gpu, s, &ranks);

	for (uint32_t i = 0; i < n; i++) {
		struct shunt_prog_operand o = shunt_program_operand(b, s, ranks[i]);

		if (b->program->ported[o.buffer])
			o.rank += (uint16_t)b->plan->nranks;
		o.as = packets ? ll128 ? SHUNT_PROG_AS_LL128 : SHUNT_PROG_AS_LL :
		    ll128      ? SHUNT_PROG_AS_PART :
		                 SHUNT_PROG_AS_SLICE;
		shunt_bytecode_operand(&b->bc, o);
	}
}

/* Some of an operation's sources or destinations. */
struct slices {
	const struct shunt_plan_slice *v;
	uint32_t n;
};

/* Appends one operation on some sources and destinations of the plan's. */
static void emit_data(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code,
    struct slices src, struct slices dst)
{
	bool packets = shunt_plan_op_has_packets(op), ll128 = packets && b->bc.ll128;
	struct shunt_prog_op *out;
	uint32_t sources = 0, destinations = 0;
	size_t at;

	shunt_bytecode_sync_before(&b->bc, ll128);
	for (uint32_t j = 0; j < src.n; j++)
		sources += slice_nranks(b, &src.v[j]);
	for (uint32_t j = 0; j < dst.n; j++)
		destinations += slice_nranks(b, &dst.v[j]);
	if (code == SHUNT_PROG_COPY && (sources > 1 || destinations > 1))
		code = SHUNT_PROG_REDUCE;
	at = shunt_bytecode_emit(&b->bc, code, sources, destinations, src.v[0].size);
	if (ll128)
		shunt_bytecode_operand(&b->bc, (struct shunt_prog_operand){ .as = SHUNT_PROG_AS_SHARE });
	for (uint32_t j = 0; j < src.n; j++)
		emit_slice(b, &src.v[j], source_is_ll(code, j), ll128);
	for (uint32_t j = 0; j < dst.n; j++)
		emit_slice(b, &dst.v[j], dest_is_ll(code, j), ll128);
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
			emit_data(b, op, code, (struct slices){ &op->src[j], 1 }, (struct slices){ &op->dst[j], n });
	}
}

/* Puts to other hosts read their source later: the source is not written before this flush. */
static void emit_flush(struct program_builder *b, const struct shunt_plan_op *op)
{
	emit_slots(b, op, SHUNT_PROG_PORT_FLUSH, true, own_slot);
}

/* A nop, or a flush. */
static void emit_sync(struct program_builder *b, const struct shunt_plan_op *op)
{
	emit_flush(b, op);
	shunt_bytecode_sync(&b->bc);
}

/* Chunks of this rank's that a put reads. */
struct put_source {
	uint8_t buffer;
	uint64_t begin, end;
};

/* True: the operation, of rank r, writes there. */
static bool op_writes(
    const struct program_builder *b, uint32_t r, const struct shunt_plan_op *op, const struct put_source *at)
{
	for (uint32_t j = 0; j < op->ndst; j++) {
		const uint32_t *ranks;
		uint32_t n = shunt_plan_slice_ranks(&b->plan->gpus[r], &op->dst[j], &ranks);

		for (uint32_t i = 0; i < n; i++) {
			struct shunt_prog_operand o = shunt_program_operand(b, &op->dst[j], ranks[i]);

			if (ranks[i] == b->rank && !op->dst[j].packet && o.buffer == at->buffer && o.index < at->end &&
			    at->begin < o.index + op->dst[j].size)
				return true;
		}
	}
	return false;
}

/*
 * True: the plan may write the source of the put after the put has ended. The proof assumes that the source has been
 * read by then, so a flush must ensure that. Packets are written once in a launch, or over equal packets. Operations
 * before the put in its own block are over, unless a pipeline repeats them. The next launch begins when all puts of
 * this launch have been read.
 */
static bool is_rewritten(
    const struct program_builder *b, const struct shunt_plan_op *put, const struct shunt_plan_slice *s)
{
	struct shunt_prog_operand o = shunt_program_operand(b, s, b->rank);
	struct put_source at = { o.buffer, o.index, o.index + s->size };

	if (s->packet || !shunt_ranges_overlap(&b->written[at.buffer], at.begin, at.end))
		return false;
	for (uint32_t r = 0; r < b->plan->nranks; r++)
		for (uint32_t k = 0; k < b->plan->gpus[r].nblocks; k++) {
			const struct shunt_plan_block *block = &b->plan->gpus[r].blocks[k];
			uint32_t first = block == b->block && !b->bc.in_loop ? (uint32_t)(put - block->ops) : 0;

			for (uint32_t i = first; i < block->nops; i++)
				if (op_writes(b, r, &block->ops[i], &at))
					return true;
		}
	return false;
}

/* Destination j, if its port leaves the host, with the operation's signal. */
static void emit_port(struct program_builder *b, const struct shunt_plan_op *op, uint32_t j)
{
	const struct shunt_plan_slice *src = &op->src[op->nsrc == 1 ? 0 : j], *dst = &op->dst[j];
	struct shunt_prog_operand signal = far_slot(b, op, j);
	struct shunt_prog_op *out;
	size_t at =
	    shunt_bytecode_emit(&b->bc, dst->packet ? SHUNT_PROG_PORT_PACKETS : SHUNT_PROG_PORT_PUT, 1, 1, src->size);

	if (!shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS))
		signal.index = SHUNT_PLAN_NO_SLOT;
	emit_slice(b, src, src->packet, false);
	emit_slice(b, dst, dst->packet, false);
	shunt_bytecode_operand(&b->bc, signal);
	out = shunt_bytecode_op(&b->bc, at);
	if (!out)
		return;
	out->part = op->part;
	out->parts = op->parts;
	out->flags = b->bc.in_loop && dst->packet ? SHUNT_PROG_WHOLE : 0;
	if (is_rewritten(b, op, src)) {
		shunt_bytecode_emit(&b->bc, SHUNT_PROG_PORT_FLUSH, 1, 0, 0);
		shunt_bytecode_operand(&b->bc, own_slot(b, op, j));
	}
}

/* An operation on ports, of which some leave the host: these first, as they take longer. */
static void emit_ports(struct program_builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code)
{
	uint32_t local = 0;

	for (uint32_t j = 0; j < op->ndst; j++)
		if (shunt_program_leaves(b, b->rank, op, op->ids[j]))
			emit_port(b, op, j);
	for (uint32_t j = 0; j < op->ndst; j++)
		if (!shunt_program_leaves(b, b->rank, op, op->ids[j])) {
			emit_data(b, op, code, (struct slices){ &op->src[op->nsrc == 1 ? 0 : j], 1 },
			    (struct slices){ &op->dst[j], 1 });
			local++;
		}
	if (shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS) && local) {
		shunt_bytecode_sync(&b->bc);
		emit_slots(b, op, SHUNT_PROG_SIGNAL, false, far_slot);
	}
	if (shunt_plan_op_does(op, SHUNT_PLAN_COMPLETES)) {
		emit_flush(b, op);
		shunt_bytecode_sync(&b->bc);
	}
}

static bool any_leaves(const struct program_builder *b, const struct shunt_plan_op *op)
{
	for (uint32_t j = 0; j < op->nids; j++)
		if (shunt_program_leaves(b, b->rank, op, op->ids[j]))
			return true;
	return false;
}

static void emit_barrier(struct program_builder *b, const struct shunt_plan_op *op)
{
	struct shunt_prog_op *barrier =
	    shunt_bytecode_op(&b->bc, shunt_bytecode_emit(&b->bc, SHUNT_PROG_BARRIER, 0, 0, op->barrier));

	if (barrier)
		barrier->nsrc = op->nblocks;
	shunt_bytecode_mark_synced(&b->bc);
}

/* Operations without slices: by the interpreter's code. */
static void (*const emit_control[])(struct program_builder *b, const struct shunt_plan_op *op) = {
	[SHUNT_PROG_SYNC] = emit_sync,
	[SHUNT_PROG_BARRIER] = emit_barrier,
	[SHUNT_PROG_SIGNAL] = emit_signal,
	[SHUNT_PROG_WAIT] = emit_wait,
	[SHUNT_PROG_SEM_ACQUIRE] = emit_acquire,
	[SHUNT_PROG_SEM_RELEASE] = emit_semaphores,
};

static void emit_op(struct program_builder *b, const struct shunt_plan_op *op)
{
	enum shunt_prog_code code = prog_codes[op->code][op->type == SHUNT_PLAN_PORT];
	bool pairwise = shunt_plan_op_does(op, SHUNT_PLAN_PAIRWISE);

	if (op->nsrc || shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS))
		sync_for_port(b, op);
	if (!op->nsrc) {
		emit_control[code](b, op);
		return;
	}
	if (any_leaves(b, op)) {
		emit_ports(b, op, code);
		return;
	}
	/* A copy or a packing has one source. FORWARD_PACKETS waits for packets: the format leaves that to the program.
	 */
	if (pairwise || op->nsrc + op->ndst == 2)
		emit_pairs(b, op, code);
	else
		emit_data(b, op, code, (struct slices){ op->src, op->nsrc }, (struct slices){ op->dst, op->ndst });
	if (shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS)) {
		shunt_bytecode_sync(&b->bc);
		emit_signal(b, op);
	}
}

uint32_t shunt_program_translate(struct program_builder *b, const struct shunt_plan_op *ops)
{
	struct shunt_bytecode *blk = &b->bc;
	struct shunt_prog_op *loop;
	size_t at;

	if (!shunt_plan_op_does(ops, SHUNT_PLAN_REPEATS)) {
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
