/* SPDX-License-Identifier: MIT */
#include "plan/program.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct range {
	uint64_t begin, end; /* chunks */
};

struct ranges {
	struct range *v;
	size_t n, room;
};

/* Which chunks of this rank's buffers are read and written, by anyone. */
struct usage {
	struct ranges read[2], written[2];
};

struct builder {
	const struct shunt_plan *plan;
	const struct shunt_plan_gpu *gpu;
	struct shunt_program *program;
	uint32_t rank;
	struct usage usage;
	/* The block's program so far. */
	char *image;
	size_t bytes, room;
	/* Since the block last met, threads have moved packets as lines; waited or moved other data by themselves. */
	bool loose_lines, loose_others;
	bool in_loop;
	size_t last;    /* the last operation */
	int err;
};

/* ---- ranges */

static void ranges_add(struct ranges *r, uint64_t begin, uint64_t end, int *err)
{
	if (r->n == r->room) {
		size_t room = r->room ? 2 * r->room : 16;
		struct range *v = reallocarray(r->v, room, sizeof(*v));

		if (!v) {
			*err = -ENOMEM;
			return;
		}
		r->v = v;
		r->room = room;
	}
	r->v[r->n++] = (struct range){ begin, end };
}

static int range_order(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorts, and makes one of those that overlap or touch. */
static void ranges_merge(struct ranges *r)
{
	size_t n = 0;

	if (r->n)
		qsort(r->v, r->n, sizeof(*r->v), range_order);
	for (size_t i = 0; i < r->n; i++) {
		if (n && r->v[i].begin <= r->v[n - 1].end) {
			if (r->v[i].end > r->v[n - 1].end)
				r->v[n - 1].end = r->v[i].end;
		} else {
			r->v[n++] = r->v[i];
		}
	}
	r->n = n;
}

static bool ranges_within(const struct ranges *r, uint64_t begin, uint64_t end)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->v[i].begin < begin || r->v[i].end > end)
			return false;
	return true;
}

/* ---- buffers */

static bool is_gather(const struct shunt_plan *plan)
{
	return plan->collective == SHUNT_PLAN_ALLGATHER;
}

static bool is_scatter(const struct shunt_plan *plan)
{
	return plan->collective == SHUNT_PLAN_REDUCESCATTER;
}

/* Not a collective with a meaning of its own: what it does to which buffer is all that is known. */
static bool is_free(const struct shunt_plan *plan)
{
	return plan->collective == SHUNT_PLAN_TEST || plan->collective == SHUNT_PLAN_CUSTOM;
}

static void choose_buffers(struct builder *b)
{
	const uint64_t *chunks = b->gpu->chunks;
	struct shunt_program *p = b->program;

	p->merged = b->plan->inplace;
	if (p->merged) {
		p->work = is_gather(b->plan) || (!is_scatter(b->plan) && chunks[SHUNT_PLAN_OUTPUT] > chunks[SHUNT_PLAN_INPUT]);
		p->extent[p->work] = chunks[p->work];
	} else {
		p->extent[0] = chunks[SHUNT_PLAN_INPUT];
		p->extent[1] = chunks[SHUNT_PLAN_OUTPUT];
	}
	p->used[0] = p->extent[0];
	p->used[1] = p->extent[1];
}

/* A slice as an operand on one rank: with merged buffers it may be in the other one, at another place. */
static struct shunt_prog_operand operand(const struct builder *b, uint32_t buffer, uint32_t rank, uint64_t index)
{
	struct shunt_prog_operand o = { .buffer = buffer, .rank = rank, .index = index };

	if (buffer == SHUNT_PLAN_SCRATCH || !b->program->merged || buffer == b->program->work)
		return o;
	o.buffer = b->program->work;
	if (is_gather(b->plan) || is_scatter(b->plan))
		o.index += rank * b->plan->part_chunks;
	return o;
}

static uint32_t places(const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *s)
{
	return s->place == SHUNT_PLAN_MULTI ? gpu->switches[s->target].nranks : 1;
}

/* The i-th place of a slice in an operation of `gpu`. */
static struct shunt_prog_operand place(const struct builder *b, const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *s, uint32_t i)
{
	return operand(b, s->buffer, s->place == SHUNT_PLAN_MULTI ? gpu->switches[s->target].ranks[i] : s->target, s->index);
}

/* ---- who uses what, over the programs of all ranks */

static void use(struct builder *b, const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *s, bool write)
{
	for (uint32_t i = 0; i < places(gpu, s); i++) {
		struct shunt_prog_operand o = place(b, gpu, s, i);
		struct ranges *r;

		if (o.buffer == SHUNT_PLAN_SCRATCH) {
			/* Peers' scratch is safe in launches of any size if a launch cannot begin before all ranks have left the last but one. */
			if (s->place != SHUNT_PLAN_LOCAL && !(s->packet && b->plan->double_scratch && b->plan->collective <= SHUNT_PLAN_ALLTOALL))
				b->program->flags |= SHUNT_PROG_RESYNC;
			continue;
		}
		if (s->place != SHUNT_PLAN_LOCAL)
			b->program->shadow[o.buffer] = true;
		if (o.rank != b->rank)
			continue;
		r = write ? &b->usage.written[o.buffer] : &b->usage.read[o.buffer];
		ranges_add(r, o.index, o.index + s->size, &b->err);
	}
}

static void use_all(struct builder *b)
{
	struct shunt_program *p = b->program;

	for (uint32_t r = 0; r < b->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &b->plan->gpus[r];

		for (uint32_t k = 0; k < gpu->nblocks; k++)
			for (uint32_t i = 0; i < gpu->blocks[k].nops; i++) {
				const struct shunt_plan_op *op = &gpu->blocks[k].ops[i];

				for (uint32_t j = 0; j < op->nsrc; j++)
					use(b, gpu, &op->src[j], false);
				for (uint32_t j = 0; j < op->ndst; j++)
					use(b, gpu, &op->dst[j], true);
			}
	}
	for (int i = 0; i < 2; i++) {
		ranges_merge(&b->usage.read[i]);
		ranges_merge(&b->usage.written[i]);
	}
	if (p->shadow[0] || p->shadow[1])
		p->flags |= SHUNT_PROG_SHADOWED;
	if (b->plan->double_scratch)
		p->flags |= SHUNT_PROG_DOUBLE;
	p->preserves_input = !b->usage.written[0].n;
	if (p->merged) {
		uint64_t part = b->plan->part_chunks, mine = b->rank * part;

		p->preserves_input = !is_scatter(b->plan) || ranges_within(&b->usage.written[p->work], mine, mine + part);
	}
	p->loads_output = !p->merged && is_free(b->plan) && b->usage.read[1].n;
}

/* ---- emitting */

static void *append(struct builder *b, size_t bytes)
{
	void *at;

	if (b->err)
		return NULL;
	if (b->bytes + bytes > b->room) {
		size_t room = 2 * (b->bytes + bytes);
		char *image = realloc(b->image, room);

		if (!image) {
			b->err = -ENOMEM;
			return NULL;
		}
		b->image = image;
		b->room = room;
	}
	at = b->image + b->bytes;
	memset(at, 0, bytes);
	b->bytes += bytes;
	if (b->bytes > UINT32_MAX / 2)
		b->err = -E2BIG;
	return b->err ? NULL : at;
}

/* The operation's offset; its operands are to be appended before the next one begins. */
static size_t emit(struct builder *b, enum shunt_prog_code code, uint32_t nsrc, uint32_t ndst, uint64_t size)
{
	size_t at = b->bytes;
	struct shunt_prog_op *op = append(b, sizeof(*op));

	if (op) {
		op->code = (uint8_t)code;
		op->nsrc = nsrc;
		op->ndst = ndst;
		op->size = size;
		op->parts = 1;
		op->next = (uint32_t)(at + sizeof(*op) + ((size_t)nsrc + ndst) * sizeof(struct shunt_prog_operand));
	}
	b->last = at;
	return at;
}

static void emit_operand(struct builder *b, struct shunt_prog_operand o)
{
	struct shunt_prog_operand *at = append(b, sizeof(*at));

	if (at)
		*at = o;
}

static void met(struct builder *b)
{
	b->loose_lines = b->loose_others = false;
}

static void went_apart(struct builder *b, bool lines)
{
	b->loose_lines |= lines;
	b->loose_others |= !lines;
}

static void emit_sync(struct builder *b)
{
	emit(b, SHUNT_PROG_SYNC, 0, 0, 0);
	met(b);
}

/* Operations on lines share out a slice by warps, all others by threads: those that follow each other on the same bytes must not mix. */
static void separate(struct builder *b, bool lines)
{
	if ((b->program->flags & SHUNT_PROG_LINES) && (lines ? b->loose_others : b->loose_lines))
		emit_sync(b);
}

/* Where the format orders an operation on a port channel behind others of one thread. */
static void tighten(struct builder *b, const struct shunt_plan_op *op)
{
	if (op->type == SHUNT_PLAN_PORT && (b->loose_lines || b->loose_others))
		emit_sync(b);
}

static uint32_t slot(const struct shunt_plan_gpu *gpu, uint32_t type, uint32_t channel)
{
	return type == SHUNT_PLAN_PORT ? gpu->nchannels[SHUNT_PLAN_MEMORY] + channel : channel;
}

static void emit_signal(struct builder *b, const struct shunt_plan_op *op)
{
	emit(b, SHUNT_PROG_SIGNAL, op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *c = &b->gpu->channels[op->type][op->ids[j]];

		emit_operand(b, (struct shunt_prog_operand){ .rank = c->peer, .index = slot(&b->plan->gpus[c->peer], op->type, c->pair) });
	}
}

static void emit_wait(struct builder *b, const struct shunt_plan_op *op)
{
	emit(b, SHUNT_PROG_WAIT, op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++)
		emit_operand(b, (struct shunt_prog_operand){ .rank = b->gpu->channels[op->type][op->ids[j]].peer,
		    .index = slot(b->gpu, op->type, op->ids[j]) });
	went_apart(b, false);
}

static void emit_semaphores(struct builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code)
{
	emit(b, code, op->nids, 0, 0);
	for (uint32_t j = 0; j < op->nids; j++)
		emit_operand(b, (struct shunt_prog_operand){ .rank = b->rank, .index = op->ids[j] });
	if (code == SHUNT_PROG_TAKE)
		went_apart(b, false);
}

static bool same_slice(const struct shunt_plan_slice *a, const struct shunt_plan_slice *b)
{
	return a->place == b->place && a->buffer == b->buffer && a->packet == b->packet && a->target == b->target && a->index == b->index &&
	    a->size == b->size;
}

/* One operation on nsrc sources and ndst destinations of the plan's. */
static void emit_data(struct builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code, const struct shunt_plan_slice *src,
    uint32_t nsrc, const struct shunt_plan_slice *dst, uint32_t ndst)
{
	bool packets = code == SHUNT_PROG_PACK || code == SHUNT_PROG_UNPACK || code == SHUNT_PROG_RELAY || code == SHUNT_PROG_FOLD;
	bool lines = packets && (b->program->flags & SHUNT_PROG_LINES);
	struct shunt_prog_op *out;
	uint32_t sources = 0, destinations = 0;
	size_t at;

	separate(b, lines);
	for (uint32_t j = 0; j < nsrc; j++)
		sources += places(b->gpu, &src[j]);
	for (uint32_t j = 0; j < ndst; j++)
		destinations += places(b->gpu, &dst[j]);
	if (code == SHUNT_PROG_COPY && (sources > 1 || destinations > 1))
		code = SHUNT_PROG_REDUCE;
	at = emit(b, code, sources, destinations, src[0].size);
	for (uint32_t j = 0; j < nsrc; j++)
		for (uint32_t i = 0; i < places(b->gpu, &src[j]); i++)
			emit_operand(b, place(b, b->gpu, &src[j], i));
	for (uint32_t j = 0; j < ndst; j++)
		for (uint32_t i = 0; i < places(b->gpu, &dst[j]); i++)
			emit_operand(b, place(b, b->gpu, &dst[j], i));
	went_apart(b, lines);
	if (b->err)
		return;
	out = (struct shunt_prog_op *)(b->image + at);
	out->redop = (uint8_t)(op->redop == SHUNT_AVG ? SHUNT_SUM : op->redop);
	out->part = op->part;
	out->parts = op->parts;
	out->flags = b->in_loop && packets ? SHUNT_PROG_WHOLE : 0;
}

/*
 * Adds a packing or unpacking to the operation before it, if that was one of the same kind and size: one waits for memory or peers, then,
 * and not one after the other. Plain scratch may be what another of them has written.
 */
static bool emit_joined(struct builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code, const struct shunt_plan_slice *src,
    const struct shunt_plan_slice *dst)
{
	enum shunt_prog_code joined = code == SHUNT_PROG_PACK ? SHUNT_PROG_PACKS : SHUNT_PROG_UNPACKS;
	struct shunt_prog_op *last = b->err ? NULL : (struct shunt_prog_op *)(b->image + b->last);

	if (!last || last->next != b->bytes || (code != SHUNT_PROG_PACK && code != SHUNT_PROG_UNPACK) || last->ndst != last->nsrc ||
	    (last->code != code && last->code != joined) || last->size != src->size || last->part != op->part || last->parts != op->parts ||
	    places(b->gpu, dst) != 1 || (code == SHUNT_PROG_PACK ? src : dst)->buffer == SHUNT_PLAN_SCRATCH)
		return false;
	last->code = (uint8_t)joined;
	last->nsrc++;
	last->ndst++;
	last->next += 2 * sizeof(struct shunt_prog_operand);
	emit_operand(b, place(b, b->gpu, src, 0));
	emit_operand(b, place(b, b->gpu, dst, 0));
	return true;
}

/* Pairs in order; neighbours with the same source are read once. */
static void emit_pairs(struct builder *b, const struct shunt_plan_op *op, enum shunt_prog_code code)
{
	uint32_t n;

	for (uint32_t j = 0; j < op->ndst; j += n) {
		for (n = 1; j + n < op->ndst && same_slice(&op->src[j], &op->src[j + n]);)
			n++;
		if (n > 1 || !emit_joined(b, op, code, &op->src[j], &op->dst[j]))
			emit_data(b, op, code, &op->src[j], 1, &op->dst[j], n);
	}
}

static void emit_loop(struct builder *b, const struct shunt_plan_op *op, uint32_t *i);

static void emit_op(struct builder *b, const struct shunt_plan_op *op)
{
	switch ((enum shunt_plan_opcode)op->code) {
	case SHUNT_PLAN_NOP:
	case SHUNT_PLAN_FLUSH: /* what was sent was read when its operation ended, by all threads that have met */
		emit_sync(b);
		break;
	case SHUNT_PLAN_BARRIER:
		emit(b, SHUNT_PROG_BARRIER, 0, 0, op->barrier);
		if (!b->err)
			((struct shunt_prog_op *)(b->image + b->bytes) - 1)->nsrc = op->nblocks;
		met(b);
		break;
	case SHUNT_PLAN_SIGNAL:
	case SHUNT_PLAN_RLXSIGNAL: /* programs end with these after stores that the peer is to see */
		tighten(b, op);
		emit_signal(b, op);
		break;
	case SHUNT_PLAN_WAIT:
	case SHUNT_PLAN_RLXWAIT:
		emit_wait(b, op);
		break;
	case SHUNT_PLAN_SEM_ACQUIRE:
		emit_semaphores(b, op, SHUNT_PROG_TAKE);
		break;
	case SHUNT_PLAN_SEM_RELEASE:
		emit_semaphores(b, op, SHUNT_PROG_GIVE);
		break;
	case SHUNT_PLAN_COPY:
	case SHUNT_PLAN_PUT:
	case SHUNT_PLAN_GET:
		tighten(b, op);
		emit_pairs(b, op, SHUNT_PROG_COPY);
		break;
	case SHUNT_PLAN_PWS:
	case SHUNT_PLAN_PWSF:
		tighten(b, op);
		emit_pairs(b, op, SHUNT_PROG_COPY);
		emit_sync(b);
		emit_signal(b, op);
		break;
	case SHUNT_PLAN_CPKT:
		if (!emit_joined(b, op, SHUNT_PROG_PACK, op->src, op->dst))
			emit_data(b, op, SHUNT_PROG_PACK, op->src, 1, op->dst, 1);
		break;
	case SHUNT_PLAN_UPKT:
		if (!emit_joined(b, op, SHUNT_PROG_UNPACK, op->src, op->dst))
			emit_data(b, op, SHUNT_PROG_UNPACK, op->src, 1, op->dst, 1);
		break;
	case SHUNT_PLAN_PPKT:
		tighten(b, op);
		/* Packets that are still being written are waited for: the format leaves that to the program. */
		emit_pairs(b, op, op->type == SHUNT_PLAN_PORT ? SHUNT_PROG_RELAY : SHUNT_PROG_PACK);
		break;
	case SHUNT_PLAN_RPPKT:
		tighten(b, op);
		emit_data(b, op, SHUNT_PROG_RELAY, op->src, 1, op->dst, op->ndst);
		break;
	case SHUNT_PLAN_GSTOREPKT:
		emit_data(b, op, SHUNT_PROG_RELAY, op->src, 1, op->dst, op->ndst);
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
		emit_data(b, op, SHUNT_PROG_FOLD, op->src, op->nsrc, op->dst, op->ndst);
		break;
	default:
		b->err = -EINVAL;
		break;
	}
}

static void emit_loop(struct builder *b, const struct shunt_plan_op *op, uint32_t *i)
{
	size_t at = emit(b, SHUNT_PROG_LOOP, 1, 0, op->num_chunks);

	emit_operand(b, (struct shunt_prog_operand){ .index = op->unit_size / b->plan->alignment });
	b->in_loop = b->loose_lines = b->loose_others = true;
	for (uint32_t k = 1; k <= op->nbody; k++)
		emit_op(b, &op[k]);
	*i += op->nbody;
	b->in_loop = false;
	b->loose_lines = b->loose_others = true;
	b->last = at; /* what follows is not to join the body */
	if (!b->err)
		((struct shunt_prog_op *)(b->image + at))->next = (uint32_t)b->bytes;
}

/* Between the caller's memory and ours; `user` 0 is what is sent, 1 what is received. */
static void emit_stage(struct builder *b, enum shunt_prog_code code, uint32_t user, uint64_t user_index, uint32_t ours, uint64_t index, uint64_t size)
{
	struct shunt_prog_operand u = { .buffer = user, .rank = b->rank, .index = user_index };
	struct shunt_prog_operand o = { .buffer = ours, .rank = b->rank, .index = index };

	if (!size)
		return;
	emit(b, code, 1, 1, size);
	emit_operand(b, code == SHUNT_PROG_LOAD ? u : o);
	emit_operand(b, code == SHUNT_PROG_LOAD ? o : u);
}

static void emit_ranges(struct builder *b, enum shunt_prog_code code, uint32_t buffer, const struct ranges *r)
{
	for (size_t i = 0; i < r->n; i++)
		emit_stage(b, code, buffer, r->v[i].begin, buffer, r->v[i].begin, r->v[i].end - r->v[i].begin);
}

static void emit_loads(struct builder *b)
{
	const struct shunt_program *p = b->program;
	uint64_t part = b->plan->part_chunks;

	if (p->merged)
		emit_stage(b, SHUNT_PROG_LOAD, 0, 0, p->work, is_gather(b->plan) ? b->rank * part : 0, is_gather(b->plan) ? part : p->extent[p->work]);
	else
		emit_ranges(b, SHUNT_PROG_LOAD, 0, &b->usage.read[0]);
	if (p->loads_output)
		emit_ranges(b, SHUNT_PROG_LOAD, 1, &b->usage.read[1]);
}

static void emit_stores(struct builder *b)
{
	const struct shunt_program *p = b->program;
	uint64_t part = b->plan->part_chunks;

	if (p->merged)
		emit_stage(b, SHUNT_PROG_STORE, 1, 0, p->work, is_scatter(b->plan) ? b->rank * part : 0,
		    is_scatter(b->plan) ? part : p->extent[p->work]);
	else
		emit_ranges(b, SHUNT_PROG_STORE, 1, &b->usage.written[1]);
}

static void emit_block(struct builder *b, uint32_t k)
{
	_Static_assert(sizeof(struct shunt_prog_head) % 16 == 0, "images are read in pieces of 16 bytes");
	uint32_t first = (uint32_t)(sizeof(struct shunt_prog_head) + (b->plan->nranks + (b->plan->nranks & 1)) * sizeof(char *));

	size_t body;

	b->bytes = b->last = 0;
	b->in_loop = false;
	met(b);
	append(b, first);
	if (b->program->flags & SHUNT_PROG_SHADOWED)
		emit(b, SHUNT_PROG_READY, 0, 0, 0);
	emit_loads(b);
	emit(b, SHUNT_PROG_ENTER, 0, 0, 0);
	body = b->bytes;
	for (uint32_t i = 0; k < b->gpu->nblocks && i < b->gpu->blocks[k].nops && !b->err; i++) {
		const struct shunt_plan_op *op = &b->gpu->blocks[k].ops[i];

		if (op->code == SHUNT_PLAN_PIPELINE)
			emit_loop(b, op, &i);
		else
			emit_op(b, op);
	}
	emit(b, SHUNT_PROG_LEAVE, 0, 0, 0);
	emit_stores(b);
	emit(b, SHUNT_PROG_END, 0, 0, 0);
	if (!b->err) {
		((struct shunt_prog_head *)b->image)->first = first;
		((struct shunt_prog_head *)b->image)->body = (uint32_t)body;
	}
}

/* ---- layout */

/* Counters of an arena, all on lines of their own; large enough for any rank. */
static int lay_out(const struct shunt_plan *plan, struct shunt_prog_head *h, uint32_t *bytes_p)
{
	uint64_t blocks = 1, slots = 0, semaphores = 0, barriers = 0, at;

	for (uint32_t r = 0; r < plan->nranks; r++) {
		const struct shunt_plan_gpu *g = &plan->gpus[r];
		uint64_t channels = (uint64_t)g->nchannels[0] + g->nchannels[1];

		blocks = g->nblocks > blocks ? g->nblocks : blocks;
		slots = channels > slots ? channels : slots;
		semaphores = g->nsemaphores > semaphores ? g->nsemaphores : semaphores;
		barriers = g->nbarriers > barriers ? g->nbarriers : barriers;
	}
	at = blocks * sizeof(struct shunt_plan_state);
	if (at + (plan->nranks + slots + semaphores + barriers) * 64 + 4096 > UINT32_MAX)
		return -E2BIG;
	h->grid_at = (uint32_t)at;
	at += sizeof(struct shunt_plan_grid);
	h->peers_at = (uint32_t)at;
	at += plan->nranks * sizeof(struct shunt_plan_peer);
	h->slots_at = (uint32_t)at;
	at += slots * sizeof(struct shunt_plan_slot);
	h->semaphores_at = (uint32_t)at;
	at += semaphores * 64;
	h->barriers_at = (uint32_t)at;
	at += barriers * 64;
	*bytes_p = (uint32_t)((at + 511) / 512 * 512);
	return 0;
}

static int build(struct builder *b, bool lines)
{
	struct shunt_program *p = b->program;
	struct shunt_prog_head head = { .rank = b->rank, .nranks = b->plan->nranks, .unit = b->plan->alignment,
		.dense = b->plan->dense };
	size_t *bytes = NULL, largest = 0;
	char **images = NULL;
	int err;

	choose_buffers(b);
	use_all(b);
	if (lines && b->plan->lines) {
		p->flags |= SHUNT_PROG_LINES;
		p->sparse = b->plan->dense - 1;
	}
	p->nblocks = b->gpu->nblocks ? b->gpu->nblocks : 1;
	p->scratch = b->plan->scratch_chunks * (b->plan->packets ? 2 : 1);
	p->nsemaphores = b->gpu->nsemaphores;
	p->semaphores = b->gpu->semaphores;
	head.nblocks = p->nblocks;
	head.flags = p->flags;
	for (int i = 0; i < 2; i++)
		head.chunks[i] = !is_free(b->plan) ? b->plan->part_chunks : p->merged ? p->extent[p->work] : b->gpu->chunks[i];
	err = b->err ? b->err : lay_out(b->plan, &head, &p->counters_bytes);
	if (err)
		return err;
	p->semaphores_at = head.semaphores_at;

	images = calloc(p->nblocks, sizeof(*images));
	bytes = calloc(p->nblocks, sizeof(*bytes));
	err = images && bytes ? 0 : -ENOMEM;
	for (uint32_t k = 0; k < p->nblocks && !err; k++) {
		emit_block(b, k);
		err = b->err;
		images[k] = b->image;
		bytes[k] = b->bytes;
		largest = b->bytes > largest ? b->bytes : largest;
		b->image = NULL;
		b->room = 0;
	}
	if (!err && (uint64_t)largest * p->nblocks > UINT32_MAX)
		err = -E2BIG;
	if (!err && !(p->images = calloc(p->nblocks, largest)))
		err = -ENOMEM;
	for (uint32_t k = 0; k < p->nblocks && !err; k++) {
		struct shunt_prog_head *h = (struct shunt_prog_head *)(p->images + k * largest);

		memcpy(h, images[k], bytes[k]);
		head.first = h->first;
		head.body = h->body;
		*h = head;
	}
	p->image_bytes = (uint32_t)largest;
	for (uint32_t k = 0; images && k < p->nblocks; k++)
		free(images[k]);
	free(images);
	free(bytes);
	return err;
}

int shunt_program_create(const struct shunt_plan *plan, uint32_t rank, bool lines, struct shunt_program **program_p)
{
	struct builder b = { .plan = plan, .gpu = &plan->gpus[rank], .rank = rank };
	int err;

	b.program = calloc(1, sizeof(*b.program));
	if (!b.program)
		return -ENOMEM;
	err = build(&b, lines);
	free(b.image);
	for (int i = 0; i < 2; i++) {
		free(b.usage.read[i].v);
		free(b.usage.written[i].v);
	}
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
	free(program->images);
	free(program);
}

/* Bytes of one half of scratch, for chunks of up to `units` units. */
static bool half_bytes(const struct shunt_program *p, const struct shunt_plan *plan, uint64_t units, uint64_t limit, uint64_t *bytes_p)
{
	uint64_t dense, sparse = p->sparse < units ? p->sparse : units;

	if (__builtin_mul_overflow(units * plan->alignment, p->scratch, &dense) ||
	    __builtin_mul_overflow(sparse * plan->alignment, 8 * plan->scratch_chunks, &sparse))
		return false;
	if (dense > limit || sparse > limit)
		return false;
	*bytes_p = ((dense > sparse ? dense : sparse) + 127) / 128 * 128;
	return true;
}

/* Where the parts of an arena begin; both shadows first, then scratch. */
static bool arena_layout(const struct shunt_program *p, const struct shunt_plan *plan, uint64_t units, uint64_t shadow_at[2], uint64_t *scratch_at,
    uint64_t *half, uint64_t *end)
{
	uint64_t at = p->counters_bytes, bytes, chunk;
	const uint64_t limit = (uint64_t)1 << 56;

	if (__builtin_mul_overflow(units, plan->alignment, &chunk))
		return false;
	for (int i = 0; i < 2; i++) {
		uint64_t n = p->shadow[i] ? p->extent[i] : 0;

		shadow_at[i] = at;
		if (__builtin_mul_overflow(n, chunk, &bytes) || bytes > limit)
			return false;
		at += bytes;
	}
	*scratch_at = (at + 127) / 128 * 128;
	if (!half_bytes(p, plan, units, limit, half))
		return false;
	*end = *scratch_at + (plan->double_scratch ? 2 : 1) * *half;
	return *end <= limit;
}

bool shunt_program_arena_bytes(const struct shunt_program *p, const struct shunt_plan *plan, uint64_t units, uint64_t *bytes_p)
{
	uint64_t shadow_at[2], scratch_at, half;

	return arena_layout(p, plan, units, shadow_at, &scratch_at, &half, bytes_p);
}

void shunt_program_place(struct shunt_program *p, const struct shunt_plan *plan, uint64_t units, char *const *arenas)
{
	for (uint32_t k = 0; k < p->nblocks; k++) {
		struct shunt_prog_head *h = (struct shunt_prog_head *)(p->images + (size_t)k * p->image_bytes);
		uint64_t end;

		arena_layout(p, plan, units, h->shadow_at, &h->scratch_at, &h->half, &end);
		memcpy(h + 1, arenas, plan->nranks * sizeof(*arenas));
	}
}
