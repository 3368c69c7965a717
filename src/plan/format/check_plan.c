/* SPDX-License-Identifier: MIT */
/* Static checks of a plan: the range of every number, and both ends of every channel. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/format/plan_priv.h"

#define NIL SHUNT_PLAN_NIL

struct check {
	struct shunt_plan_log *log;
	struct shunt_plan *plan;
	struct shunt_plan_gpu *gpus;
};

/* Checks that the sizes of input and output are the same on all ranks and fit the collective. */
static int check_chunks(struct check *c)
{
	static const char *const keys[] = { "input_chunks", "output_chunks" };
	struct shunt_plan *p = c->plan;
	const uint64_t *chunks = p->gpus[0].chunks;
	uint64_t each[2];

	for (uint32_t r = 1; r < p->nranks; r++)
		for (int b = 0; b < 2; b++)
			if (p->gpus[r].chunks[b] != chunks[b]) {
				c->log->at.rank = r;
				return shunt_json_fail(&c->log->json, EINVAL,
				    "%s is %" PRIu64 ", expected %" PRIu64 " as on rank 0", keys[b],
				    p->gpus[r].chunks[b], chunks[b]);
			}
	for (int b = 0; b < 2; b++) {
		p->parts[b] = (uint32_t)shunt_plan_parts(p->collective, (enum shunt_side)b, (int)p->nranks);
		each[b] = chunks[b] / p->parts[b];
		if (chunks[b] % p->parts[b])
			return shunt_json_fail(&c->log->json, EINVAL,
			    "%s is %" PRIu64 ", expected a multiple of the %u ranks (%s)", keys[b], chunks[b],
			    p->nranks, shunt_plan_collective_name(p->collective));
	}
	p->part_chunks = each[0] ? each[0] : each[1];
	if (!shunt_plan_is_custom(p->collective) && each[0] && each[1] && each[0] != each[1])
		return shunt_json_fail(&c->log->json, EINVAL,
		    "output_chunks is %" PRIu64 ", expected %" PRIu64 " (%s with input_chunks %" PRIu64 ")", chunks[1],
		    each[0] * p->parts[1], shunt_plan_collective_name(p->collective), chunks[0]);
	for (uint32_t r = 0; r < p->nranks; r++) {
		if (p->gpus[r].chunks[SHUNT_PLAN_SCRATCH] > p->scratch_chunks)
			p->scratch_chunks = p->gpus[r].chunks[SHUNT_PLAN_SCRATCH];
		if (p->gpus[r].nblocks > p->max_blocks)
			p->max_blocks = p->gpus[r].nblocks;
	}
	return 0;
}

/* Channel i of rank a, which leads to rank b; in order of (a, b, i). */
struct end {
	uint32_t a, b, i;
};

static int by_pair(const void *x, const void *y)
{
	const struct end *p = x, *q = y;

	if (p->a != q->a)
		return p->a < q->a ? -1 : 1;
	if (p->b != q->b)
		return p->b < q->b ? -1 : 1;
	return p->i < q->i ? -1 : p->i > q->i;
}

/* The first in ends[0..n) that is not before (a, b, 0). */
static size_t find_first(const struct end *ends, size_t n, uint32_t a, uint32_t b)
{
	const struct end key = { a, b, 0 };
	size_t low = 0, high = n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (by_pair(&ends[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Pairs channels: the k-th channel of a to b and the k-th of b to a are the ends of one channel. */
static int pair_channels(struct check *c, int type)
{
	size_t n = 0, at = 0;
	struct end *ends;

	for (uint32_t r = 0; r < c->plan->nranks; r++)
		n += c->gpus[r].nchannels[type];
	ends = calloc(n ? n : 1, sizeof(*ends));
	if (shunt_plan_no_memory(c->log, ends))
		return -ENOMEM;
	for (uint32_t r = 0; r < c->plan->nranks; r++)
		for (uint32_t i = 0; i < c->gpus[r].nchannels[type]; i++)
			ends[at++] = (struct end){ r, c->gpus[r].channels[type][i].peer, i };
	qsort(ends, n, sizeof(*ends), by_pair);
	for (size_t i = 0; i < n;) {
		uint32_t a = ends[i].a, b = ends[i].b;
		size_t other = find_first(ends, n, b, a);

		for (; i < n && ends[i].a == a && ends[i].b == b; i++, other++) {
			struct shunt_plan_channel *channel =
			    (struct shunt_plan_channel *)&c->gpus[a].channels[type][ends[i].i];

			channel->pair = other < n && ends[other].a == b && ends[other].b == a ? ends[other].i : NIL;
		}
	}
	free(ends);
	return 0;
}

struct group {
	const struct shunt_plan_switch *s;
	uint32_t rank, i;
};

static int by_members(const struct group *p, const struct group *q)
{
	if (p->s->buffer != q->s->buffer)
		return p->s->buffer < q->s->buffer ? -1 : 1;
	if (p->s->nranks != q->s->nranks)
		return p->s->nranks < q->s->nranks ? -1 : 1;
	return p->s->nranks ? memcmp(p->s->ranks, q->s->ranks, p->s->nranks * sizeof(*p->s->ranks)) : 0;
}

static int by_group(const void *x, const void *y)
{
	const struct group *p = x, *q = y;
	int order = by_members(p, q);

	if (order)
		return order;
	if (p->rank != q->rank)
		return p->rank < q->rank ? -1 : 1;
	return p->i < q->i ? -1 : p->i > q->i;
}

static int check_members(struct check *c, uint32_t rank, uint32_t i, uint32_t *seen, uint32_t stamp)
{
	const struct shunt_plan_switch *s = &c->gpus[rank].switches[i];
	bool own = false;

	c->log->at.rank = rank;
	for (uint32_t m = 0; m < s->nranks; m++) {
		if (seen[s->ranks[m]] == stamp)
			return shunt_json_fail(
			    &c->log->json, EINVAL, "switch channel %u: ranks names rank %u twice", i, s->ranks[m]);
		seen[s->ranks[m]] = stamp;
		own |= s->ranks[m] == rank;
	}
	if (!own)
		return shunt_json_fail(&c->log->json, EINVAL, "switch channel %u: ranks lacks rank %u itself", i, rank);
	c->log->at.rank = NIL;
	return 0;
}

/* Checks that all members of a switch channel list it equally often. */
static int check_switches(struct check *c)
{
	uint32_t *seen = calloc(c->plan->nranks, sizeof(*seen)), stamp = 0;
	struct group *groups = NULL;
	size_t n = 0, at = 0;
	int err = 0;

	for (uint32_t r = 0; r < c->plan->nranks; r++)
		n += c->gpus[r].nswitches;
	groups = calloc(n ? n : 1, sizeof(*groups));
	if (shunt_plan_no_memory(c->log, seen) || shunt_plan_no_memory(c->log, groups)) {
		err = -ENOMEM;
		goto out;
	}
	for (uint32_t r = 0; r < c->plan->nranks; r++)
		for (uint32_t i = 0; i < c->gpus[r].nswitches; i++) {
			groups[at++] = (struct group){ &c->gpus[r].switches[i], r, i };
			err = check_members(c, r, i, seen, ++stamp);
			if (err)
				goto out;
		}
	qsort(groups, n, sizeof(*groups), by_group);
	for (size_t i = 0; i < n;) {
		const struct group *g = &groups[i];
		size_t run = 0, same = 0;

		/* All listings of one group, by rank: every rank must have as many as the first one. */
		while (i + run < n && !by_members(g, &groups[i + run]))
			run++;
		while (same < run && g[same].rank == g->rank)
			same++;
		stamp++;
		for (size_t k = 0; k < run; k++)
			seen[g[k].rank] = stamp;
		for (uint32_t m = 0; m < g->s->nranks; m++)
			if (seen[g->s->ranks[m]] != stamp) {
				c->log->at.rank = g->s->ranks[m];
				err = shunt_json_fail(&c->log->json, EINVAL,
				    "channels lacks the switch channel of the %u ranks that rank %u lists as its %u",
				    g->s->nranks, g->rank, g->i);
				goto out;
			}
		/* All members, and no other ranks, list the group: so equal counts make run a multiple. */
		for (size_t k = 0; k < run; k++)
			if (g[k].rank != g[k - k % same].rank || run != same * g->s->nranks) {
				c->log->at.rank = g[k].rank;
				err = shunt_json_fail(&c->log->json, EINVAL,
				    "channels does not list switch channel %u as often as rank %u does, %zu times",
				    g[k].i, g->rank, same);
				goto out;
			}
		i += run;
	}
out:
	free(groups);
	free(seen);
	return err;
}

/* Name of a slice in the text. */
static const char *slice_name(const struct shunt_plan_op *op, bool dst, uint32_t i, char text[32])
{
	if (shunt_plan_op_does(op, SHUNT_PLAN_OWN_KEYS))
		snprintf(text, 32, "%s", dst ? "dst_chunk" : "buffer_offset");
	else
		snprintf(text, 32, "%s[%u]", dst ? "dst_buff" : "src_buff", i);
	return text;
}

static int check_bounds(struct check *c, const char *name, const struct shunt_plan_slice *s, uint32_t rank)
{
	uint64_t chunks = c->gpus[rank].chunks[s->buffer], last = s->index + s->size - 1;

	if (last < chunks)
		return 0;
	return shunt_json_fail(&c->log->json, EINVAL,
	    "%s.index %" PRIu64 " and size %" PRIu64 " reach chunk %" PRIu64 ", expected at most %" PRId64
	    ": the %s of rank %u has %" PRIu64 " chunks",
	    name, s->index, s->size, last, (int64_t)chunks - 1,
	    shunt_plan_buffer_name((enum shunt_plan_buffer)s->buffer), rank, chunks);
}

static int check_slice(struct check *c, const struct shunt_plan_op *op, uint32_t rank, bool dst, uint32_t i,
    const struct shunt_plan_slice *s)
{
	const struct shunt_plan_slice *first = op->nsrc ? &op->src[0] : &op->dst[0];
	const uint32_t *ranks;
	uint32_t n = shunt_plan_slice_ranks(&c->gpus[rank], s, &ranks);
	uint8_t bit = (uint8_t)(1u << s->buffer);
	char text[32];
	int err;

	slice_name(op, dst, i, text);
	if (!c->plan->part_chunks)
		return shunt_json_fail(&c->log->json, EINVAL,
		    "%s: input_chunks and output_chunks are 0, expected one that says how large a chunk is", text);
	if (s->size != first->size)
		return shunt_json_fail(&c->log->json, EINVAL,
		    "%s.size is %" PRIu64 ", expected %" PRIu64 " as the operation's first has", text, s->size,
		    first->size);
	if (s->packet && s->buffer != SHUNT_PLAN_SCRATCH)
		return shunt_json_fail(&c->log->json, EINVAL, "%s is in %s, expected scratch: it holds packets", text,
		    shunt_plan_buffer_name((enum shunt_plan_buffer)s->buffer));
	if (s->packet && !c->plan->ll)
		return shunt_json_fail(
		    &c->log->json, EINVAL, "%s holds packets, expected none unless protocol is \"LL\"", text);
	if (s->place != SHUNT_PLAN_LOCAL && c->plan->reuse_resources && s->buffer != SHUNT_PLAN_SCRATCH)
		return shunt_json_fail(&c->log->json, EINVAL,
		    "%s is a peer's %s, expected scratch: reuse_resources is true", text,
		    shunt_plan_buffer_name((enum shunt_plan_buffer)s->buffer));
	for (uint32_t m = 0; m < n; m++) {
		struct shunt_plan_gpu *gpu = &c->gpus[ranks[m]];

		if (!gpu->nblocks)
			return shunt_json_fail(&c->log->json, EINVAL,
			    "%s reaches rank %u, expected a rank that has a thread block: it would never know", text,
			    ranks[m]);
		err = check_bounds(c, text, s, ranks[m]);
		if (err)
			return err;
		*(dst ? &gpu->written : &gpu->read) |= bit;
		if (s->place != SHUNT_PLAN_LOCAL)
			*(dst ? &gpu->peers_write : &gpu->peers_read) |= bit;
	}
	return 0;
}

static int check_ids(struct check *c, const struct shunt_plan_op *op, const struct shunt_plan_gpu *gpu)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *channel;

		if (shunt_plan_op_rows[op->code].ids == SHUNT_PLAN_IDS_SEMAPHORES)
			break;
		channel = &gpu->channels[op->type][op->ids[j]];
		if (shunt_plan_op_rows[op->code].ids == SHUNT_PLAN_IDS_PORTS) {
			if (op->nids != op->ndst)
				return shunt_json_fail(&c->log->json, EINVAL,
				    "channel_ids has %u entries, expected %u as dst_buff has", op->nids, op->ndst);
			if (channel->peer != op->dst[j].target)
				return shunt_json_fail(&c->log->json, EINVAL,
				    "channel_ids[%u] leads to rank %u, expected rank %u whose buffer dst_buff[%u] is",
				    j, channel->peer, op->dst[j].target, j);
		}
		if (channel->pair == NIL && shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS | SHUNT_PLAN_WAITS))
			return shunt_json_fail(&c->log->json, EINVAL,
			    "channel_ids[%u] is %s channel %u of the rank, expected one to which rank %u has an other "
			    "end: it "
			    "lists too few to rank %u",
			    j, shunt_plan_type_names[op->type], op->ids[j], channel->peer, c->log->at.rank);
	}
	return 0;
}

static int check_op(struct check *c, const struct shunt_plan_op *op, uint32_t rank)
{
	int err = check_ids(c, op, &c->gpus[rank]);

	for (uint32_t i = 0; !err && i < op->nsrc; i++)
		err = check_slice(c, op, rank, false, i, &op->src[i]);
	for (uint32_t i = 0; !err && i < op->ndst; i++)
		err = check_slice(c, op, rank, true, i, &op->dst[i]);
	if (!err && shunt_plan_op_does(op, SHUNT_PLAN_REPEATS) && op->unit_size % c->plan->alignment)
		err = shunt_json_fail(&c->log->json, EINVAL,
		    "iter_context.unit_size is %" PRIu64 ", expected a multiple of buffer_alignment, %u", op->unit_size,
		    c->plan->alignment);
	if (shunt_plan_op_does(op, SHUNT_PLAN_REDUCES))
		c->plan->redops |= 1u << op->redop;
	return err;
}

/* One use of a barrier. */
struct barrier_use {
	struct shunt_plan_op *op;
	uint32_t block, order;
};

static int by_barrier(const void *x, const void *y)
{
	const struct barrier_use *p = x, *q = y;

	if (p->op->barrier != q->op->barrier)
		return p->op->barrier < q->op->barrier ? -1 : 1;
	return p->order < q->order ? -1 : p->order > q->order;
}

static void set_location(struct check *c, uint32_t rank, uint32_t block, const struct shunt_plan_op *op)
{
	c->log->at =
	    (struct shunt_plan_location){ rank, block, op->at, op->inner, shunt_plan_op_names[op->code], op->lines };
}

/*
 * Checks that all uses of a barrier give the same number of blocks, and that as many blocks use it. Then gives barriers
 * dense numbers.
 */
static int check_barriers(struct check *c, uint32_t rank, struct barrier_use *barrier_uses, size_t n)
{
	struct shunt_plan_gpu *gpu = &c->gpus[rank];

	if (!n)
		return 0;
	qsort(barrier_uses, n, sizeof(*barrier_uses), by_barrier);
	for (size_t i = 0; i < n;) {
		const struct barrier_use *first = &barrier_uses[i];
		uint32_t id = first->op->barrier, blocks = 0;
		size_t run = 0;

		for (; i + run < n && first[run].op->barrier == id; run++) {
			blocks += !run || first[run].block != first[run - 1].block;
			if (first[run].op->nblocks == first->op->nblocks)
				continue;
			set_location(c, rank, first[run].block, first[run].op);
			return shunt_json_fail(&c->log->json, EINVAL,
			    "num_threadblocks is %u, expected %u as in block %u, operation %u, for barrier_id %u",
			    first[run].op->nblocks, first->op->nblocks, first->block, first->op->at, id);
		}
		if (blocks != first->op->nblocks) {
			set_location(c, rank, first->block, first->op);
			return shunt_json_fail(&c->log->json, EINVAL,
			    "num_threadblocks is %u, expected %u, the number of blocks that use barrier_id %u",
			    first->op->nblocks, blocks, id);
		}
		for (size_t k = 0; k < run; k++)
			barrier_uses[i + k].op->barrier = gpu->nbarriers;
		gpu->nbarriers++;
		i += run;
	}
	return 0;
}

static int check_gpu(struct check *c, uint32_t rank)
{
	struct shunt_plan_gpu *gpu = &c->gpus[rank];
	struct barrier_use *barrier_uses;
	size_t n = 0, at = 0;
	int err = 0;

	for (uint32_t b = 0; b < gpu->nblocks; b++)
		for (uint32_t i = 0; i < gpu->blocks[b].nops; i++)
			n += shunt_plan_op_does(&gpu->blocks[b].ops[i], SHUNT_PLAN_SYNCS_BLOCKS);
	barrier_uses = calloc(n ? n : 1, sizeof(*barrier_uses));
	if (shunt_plan_no_memory(c->log, barrier_uses))
		return -ENOMEM;
	for (uint32_t b = 0; !err && b < gpu->nblocks; b++)
		for (uint32_t i = 0; !err && i < gpu->blocks[b].nops; i++) {
			struct shunt_plan_op *op = (struct shunt_plan_op *)&gpu->blocks[b].ops[i];

			set_location(c, rank, b, op);
			err = check_op(c, op, rank);
			if (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS_BLOCKS)) {
				barrier_uses[at] = (struct barrier_use){ op, b, (uint32_t)at };
				at++;
			}
		}
	if (!err)
		err = check_barriers(c, rank, barrier_uses, n);
	free(barrier_uses);
	return err;
}

int shunt_plan_check(struct shunt_plan_log *log, struct shunt_plan *plan)
{
	struct check c = { log, plan, (struct shunt_plan_gpu *)plan->gpus };
	int err = check_chunks(&c);

	for (int type = 0; !err && type < 2; type++)
		err = pair_channels(&c, type);
	if (!err)
		err = check_switches(&c);
	for (uint32_t r = 0; !err && r < plan->nranks; r++)
		err = check_gpu(&c, r);
	log->at = (struct shunt_plan_location){ NIL, NIL, NIL, NIL, NULL, NULL };
	return err;
}
