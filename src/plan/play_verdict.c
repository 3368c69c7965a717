/* SPDX-License-Identifier: MIT */
/* How a play ended: who is stuck and why, or what is left over. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "plan/ops.h"
#include "plan/play.h"

/* What stuck blocks are told apart by: is this operation one that could have given the thing? */
static bool gives(const struct play *p, const struct play_actor *a, const struct shunt_plan_op *op,
    enum play_things kind, uint32_t rank, size_t i)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];

	switch (kind) {
	case PLAY_MEMORY_CHANNELS:
	case PLAY_PORT_CHANNELS:
		for (uint32_t j = 0; shunt_plan_op_signals(op->code) && play_channels(op->type) == kind && j < op->nids;
		    j++)
			if (gpu->channels[op->type][op->ids[j]].peer == rank &&
			    gpu->channels[op->type][op->ids[j]].pair == i)
				return true;
		return false;
	case PLAY_SEMAPHORES:
		for (uint32_t j = 0; op->code == SHUNT_PLAN_SEM_RELEASE && a->rank == rank && j < op->nids; j++)
			if (op->ids[j] == i)
				return true;
		return false;
	case PLAY_BARRIERS:
		return op->code == SHUNT_PLAN_BARRIER && a->rank == rank && op->barrier == i;
	default:
		return shunt_play_packets_gives(p, a, op, rank, i);
	}
}

/* The kind, rank and number of a thing. For segments the number is that of its lower end. */
static enum play_things thing_is(const struct play *p, size_t thing, uint32_t *rank_p, size_t *i_p)
{
	int kind = PLAY_SEGMENTS;
	uint32_t rank = p->plan->nranks - 1;

	if (thing < p->nthings)
		while (kind > 0 && p->base[--kind][0] > thing)
			;
	while (p->base[kind][rank] > thing)
		rank--;
	*rank_p = rank;
	*i_p = kind == PLAY_SEGMENTS ? thing - p->nthings : thing - p->base[kind][rank];
	return (enum play_things)kind;
}

/* Who has still to come to an operation that gives what a waits for; NULL: nobody. */
static const struct play_actor *giver(struct play *p, const struct play_actor *a, const struct shunt_plan_op **op_p)
{
	uint32_t rank;
	size_t i;
	enum play_things kind = thing_is(p, a->thing, &rank, &i);

	for (uint32_t n = 0; n < p->nactors; n++) {
		const struct play_actor *g = &p->actors[n];
		uint32_t from = g->pipeline == SHUNT_PLAN_NIL ? g->pc : g->pipeline + 1;

		if (kind == PLAY_BARRIERS && g->thing == a->thing)
			continue; /* there already */
		for (uint32_t pc = from; g->pc < g->block->nops && pc < g->block->nops; pc++)
			if (gives(p, g, &g->block->ops[pc], kind, rank, i)) {
				*op_p = &g->block->ops[pc];
				return g;
			}
	}
	return NULL;
}

static void describe_op(char *text, size_t bytes, const struct shunt_plan_op *op)
{
	char inner[16] = "";

	if (op->inner != SHUNT_PLAN_NIL)
		snprintf(inner, sizeof(inner), ".%u", op->inner);
	snprintf(text, bytes, "operation %u%s (%s)", op->at, inner, shunt_plan_op_names[op->code]);
}

static void describe_thing(struct play *p, const struct play_actor *a, char *text, size_t bytes)
{
	const struct shunt_plan_channel *c;
	uint32_t rank;
	size_t i;
	enum play_things kind = thing_is(p, a->thing, &rank, &i);

	switch (kind) {
	case PLAY_MEMORY_CHANNELS:
	case PLAY_PORT_CHANNELS:
		c = &p->plan->gpus[rank]
		         .channels[kind == PLAY_MEMORY_CHANNELS ? SHUNT_PLAN_MEMORY : SHUNT_PLAN_PORT][i];
		snprintf(text, bytes, "signal %" PRIu64 " on its %s channel %zu, from channel %u of rank %u",
		    p->taken[a->thing] + 1, kind == PLAY_MEMORY_CHANNELS ? "memory" : "port", i, c->pair, c->peer);
		break;
	case PLAY_SEMAPHORES:
		snprintf(text, bytes, "semaphore %zu", i);
		break;
	case PLAY_BARRIERS:
		snprintf(text, bytes, "%u blocks at a barrier where %" PRIu64 " are", a->block->ops[a->pc].nblocks,
		    p->count[a->thing]);
		break;
	default:
		snprintf(text, bytes, "packets in its scratch, chunk %" PRIu64, p->ends[i] / p->chunk_units);
		break;
	}
}

static int fail_at(struct play *p, const struct play_actor *a, const char *text)
{
	const struct shunt_plan_op *op = &a->block->ops[a->pc];

	p->log->at = (struct shunt_plan_at){ a->rank, a->number, op->at, op->inner, shunt_plan_op_names[op->code] };
	shunt_json_fail(&p->log->json, EINVAL, "%s", text);
	return -p->log->json.err;
}

/* Follows who waits for whom until nobody gives it, or a block comes up again. */
int shunt_play_report_stuck(struct play *p)
{
	enum { HOPS = 64, TOLD = 4 };
	const struct play_actor *chain[HOPS + 1], *a = NULL;
	const struct shunt_plan_op *by[HOPS + 1];
	char text[1024], thing[160], op[64];
	uint32_t n = 0, from = 0, told = 0;
	size_t len;

	for (uint32_t i = 0; !a && i < p->nactors; i++)
		if (!play_over(&p->actors[i]))
			a = &p->actors[i];
	for (; a && n < HOPS; n++) {
		for (from = 0; from < n && chain[from] != a; from++)
			;
		if (from < n)
			break;
		chain[n] = a;
		a = giver(p, a, &by[n]);
	}
	if (!a) {
		describe_thing(p, chain[n - 1], thing, sizeof(thing));
		snprintf(text, sizeof(text),
		    "waits for %s, expected a block that gives it: none does, or none does once more", thing);
		return fail_at(p, chain[n - 1], text);
	}
	/* chain[from..n) is a circle, or n is HOPS and from is too. */
	if (from >= n)
		from = 0;
	describe_thing(p, chain[from], thing, sizeof(thing));
	snprintf(text, sizeof(text), "waits in a circle, expected an order in which all can run: for %s", thing);
	for (uint32_t i = from; i < n && told < TOLD; i++, told++) {
		const struct play_actor *next = i + 1 < n ? chain[i + 1] : chain[from];

		len = strlen(text);
		describe_op(op, sizeof(op), by[i]);
		snprintf(text + len, sizeof(text) - len, "; rank %u, block %u would give it in %s", next->rank,
		    next->number, op);
		len = strlen(text);
		describe_op(op, sizeof(op), &next->block->ops[next->pc]);
		describe_thing(p, next, thing, sizeof(thing));
		if (i + 1 < n)
			snprintf(text + len, sizeof(text) - len, " but waits in %s for %s", op, thing);
		else
			snprintf(text + len, sizeof(text) - len, ", after this");
	}
	if (told == TOLD && from + told < n) {
		len = strlen(text);
		snprintf(text + len, sizeof(text) - len, "; and so on, %u blocks in all", n - from);
	}
	return fail_at(p, chain[from], text);
}

/* All are through. What is left over would be taken for something else in the next launch. */
int shunt_play_check_balance(struct play *p)
{
	static const char *const names[] = { "memory", "port" };

	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &p->plan->gpus[r];

		p->log->at.rank = r;
		for (int type = 0; type < 2; type++)
			for (uint32_t i = 0; i < gpu->nchannels[type]; i++) {
				size_t thing = play_thing(p, type ? PLAY_PORT_CHANNELS : PLAY_MEMORY_CHANNELS, r, i);

				if (p->count[thing] == p->taken[thing])
					continue;
				return shunt_json_fail(&p->log->json, EINVAL,
				    "%s channel %u: rank %u signals %" PRIu64
				    " times on its channel %u, expected %" PRIu64 ", as often as waits are made here",
				    names[type], i, gpu->channels[type][i].peer, p->count[thing],
				    gpu->channels[type][i].pair, p->taken[thing]);
			}
		for (uint32_t i = 0; i < gpu->nsemaphores; i++) {
			size_t thing = play_thing(p, PLAY_SEMAPHORES, r, i);

			if (p->count[thing] != gpu->semaphores[i])
				return shunt_json_fail(&p->log->json, EINVAL,
				    "semaphores[%u] ends as %" PRIu64 ", expected %u, its init_value", i,
				    p->count[thing], gpu->semaphores[i]);
		}
	}
	p->log->at.rank = SHUNT_PLAN_NIL;
	return 0;
}

/*
 * A launch writes to the half of the launch before the last. Whose packets are there has read them if he has sent
 * anything in the last one, to us or to somebody from whom we have it: not before that launch began on him.
 */
int shunt_play_check_contacts(struct play *p)
{
	uint32_t n = p->plan->nranks;
	uint8_t *c = p->contacts;

	/* Whom the ranks that one hears have heard. */
	for (uint32_t by = 0; c && by < n; by++)
		for (uint32_t a = 0; a < n; a++)
			for (uint32_t b = 0; c[(size_t)a * n + by] & PLAY_HEARS && b < n; b++)
				c[(size_t)a * n + b] |= c[(size_t)by * n + b] & PLAY_HEARS;
	for (uint32_t a = 0; c && a < n; a++)
		for (uint32_t b = 0; b < n; b++)
			if (a != b && (c[(size_t)a * n + b] & (PLAY_HEARS | PLAY_WRITES)) == PLAY_WRITES) {
				p->log->at.rank = a;
				return shunt_json_fail(&p->log->json, EINVAL,
				    "writes packets to rank %u and hears nothing of it, expected a signal or packets "
				    "that come "
				    "from it: "
				    "with use_double_scratch_buffer the launch after the next writes over them",
				    b);
			}
	return 0;
}
