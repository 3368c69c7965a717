/* SPDX-License-Identifier: MIT */
/* Results of a simulation: the blocks that are stuck, with the reason, or the counters that do not balance. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/verify/simulate.h"

/* True if this operation provides the resource. */
static bool op_provides(const struct simulation *p, const struct block_state *a, const struct shunt_plan_op *op,
    enum resource_kind kind, uint32_t rank, size_t i)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];

	switch (kind) {
	case RESOURCE_MEMORY_CHANNELS:
	case RESOURCE_PORT_CHANNELS:
		for (uint32_t j = 0; shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS) &&
		    channel_resource_kind(op->type) == kind && j < op->nids;
		    j++)
			if (gpu->channels[op->type][op->ids[j]].peer == rank &&
			    gpu->channels[op->type][op->ids[j]].pair == i)
				return true;
		return false;
	case RESOURCE_SEMAPHORES:
		for (uint32_t j = 0; shunt_plan_op_does(op, SHUNT_PLAN_RELEASES) && a->rank == rank && j < op->nids;
		    j++)
			if (op->ids[j] == i)
				return true;
		return false;
	case RESOURCE_BARRIERS:
		return shunt_plan_op_does(op, SHUNT_PLAN_SYNCS_BLOCKS) && a->rank == rank && op->barrier == i;
	default:
		return shunt_simulation_ll_provides(p, a, op, rank, i);
	}
}

/* The kind, rank and number of a resource. For segments the number is that of its lower end. */
static enum resource_kind resource_identify(const struct simulation *p, size_t resource, uint32_t *rank_p, size_t *i_p)
{
	int kind = RESOURCE_SEGMENTS;
	uint32_t rank = p->plan->nranks - 1;

	if (resource < p->nresources)
		do
			kind--;
		while (kind > 0 && p->base[kind][0] > resource);
	while (p->base[kind][rank] > resource)
		rank--;
	*rank_p = rank;
	*i_p = kind == RESOURCE_SEGMENTS ? resource - p->nresources : resource - p->base[kind][rank];
	return (enum resource_kind)kind;
}

/* A block that has not reached an operation that provides what a waits for; NULL: none. */
static const struct block_state *provider(
    struct simulation *p, const struct block_state *a, const struct shunt_plan_op **op_p)
{
	uint32_t rank;
	size_t i;
	enum resource_kind kind = resource_identify(p, a->resource, &rank, &i);

	for (uint32_t n = 0; n < p->nstates; n++) {
		const struct block_state *g = &p->states[n];
		uint32_t from = g->pipeline == SHUNT_PLAN_NIL ? g->pc : g->pipeline + 1;

		if (kind == RESOURCE_BARRIERS && g->resource == a->resource)
			continue; /* has arrived already */
		for (uint32_t pc = from; g->pc < g->block->nops && pc < g->block->nops; pc++)
			if (op_provides(p, g, &g->block->ops[pc], kind, rank, i)) {
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

static void describe_resource(struct simulation *p, const struct block_state *a, char *text, size_t bytes)
{
	const struct shunt_plan_channel *c;
	uint32_t rank;
	size_t i;
	enum resource_kind kind = resource_identify(p, a->resource, &rank, &i);

	switch (kind) {
	case RESOURCE_MEMORY_CHANNELS:
	case RESOURCE_PORT_CHANNELS:
		c = &p->plan->gpus[rank]
		         .channels[kind == RESOURCE_MEMORY_CHANNELS ? SHUNT_PLAN_MEMORY : SHUNT_PLAN_PORT][i];
		snprintf(text, bytes, "signal %" PRIu64 " on its %s channel %zu, from channel %u of rank %u",
		    p->taken[a->resource] + 1, kind == RESOURCE_MEMORY_CHANNELS ? "memory" : "port", i, c->pair,
		    c->peer);
		break;
	case RESOURCE_SEMAPHORES:
		snprintf(text, bytes, "semaphore %zu", i);
		break;
	case RESOURCE_BARRIERS:
		snprintf(text, bytes, "%u blocks at a barrier where %" PRIu64 " are", a->block->ops[a->pc].nblocks,
		    p->count[a->resource]);
		break;
	default:
		snprintf(text, bytes, "packets in its scratch, chunk %" PRIu64, p->ends[i] / p->chunk_units);
		break;
	}
}

static int fail_at(struct simulation *p, const struct block_state *a, const char *text)
{
	const struct shunt_plan_op *op = &a->block->ops[a->pc];

	p->log->at = (struct shunt_plan_location){ a->rank, a->number, op->at, op->inner, shunt_plan_op_names[op->code],
		op->lines };
	shunt_json_fail(&p->log->json, EINVAL, "%s", text);
	return -p->log->json.err;
}

/* Follows the chain of waiting blocks until no block provides the resource, or a block comes up again. */
int shunt_simulation_report_deadlock(struct simulation *p)
{
	enum { MAX_HOPS = 64, MAX_SHOWN = 4 };
	const struct block_state *chain[MAX_HOPS + 1], *a = NULL;
	const struct shunt_plan_op *by[MAX_HOPS + 1];
	char text[1024], resource[160], op[64];
	uint32_t n = 0, from = 0, nshown = 0;
	size_t len;

	for (uint32_t i = 0; !a && i < p->nstates; i++)
		if (!block_done(&p->states[i]))
			a = &p->states[i];
	for (; a && n < MAX_HOPS; n++) {
		for (from = 0; from < n && chain[from] != a; from++)
			;
		if (from < n)
			break;
		chain[n] = a;
		a = provider(p, a, &by[n]);
	}
	if (!a) {
		describe_resource(p, chain[n - 1], resource, sizeof(resource));
		snprintf(text, sizeof(text),
		    "waits for %s, expected a block that gives it: none does, or none does once more", resource);
		return fail_at(p, chain[n - 1], text);
	}
	/* chain[from..n) is a cycle, or n is MAX_HOPS and from is too. */
	if (from >= n)
		from = 0;
	describe_resource(p, chain[from], resource, sizeof(resource));
	snprintf(text, sizeof(text), "waits in a cycle, expected an order in which all can run: for %s", resource);
	for (uint32_t i = from; i < n && nshown < MAX_SHOWN; i++, nshown++) {
		const struct block_state *next = i + 1 < n ? chain[i + 1] : chain[from];

		len = strlen(text);
		describe_op(op, sizeof(op), by[i]);
		snprintf(text + len, sizeof(text) - len, "; rank %u, block %u would give it in %s", next->rank,
		    next->number, op);
		len = strlen(text);
		describe_op(op, sizeof(op), &next->block->ops[next->pc]);
		describe_resource(p, next, resource, sizeof(resource));
		if (i + 1 < n)
			snprintf(text + len, sizeof(text) - len, " but waits in %s for %s", op, resource);
		else
			snprintf(text + len, sizeof(text) - len, ", after this");
	}
	if (nshown == MAX_SHOWN && from + nshown < n) {
		len = strlen(text);
		snprintf(text + len, sizeof(text) - len, "; and so on, %u blocks in all", n - from);
	}
	return fail_at(p, chain[from], text);
}

/* The next launch would mistake what is left over for its own. */
int shunt_simulation_check_balance(struct simulation *p)
{
	static const char *const names[] = { "memory", "port" };

	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &p->plan->gpus[r];

		p->log->at.rank = r;
		for (int type = 0; type < 2; type++)
			for (uint32_t i = 0; i < gpu->nchannels[type]; i++) {
				size_t resource =
				    resource_index(p, type ? RESOURCE_PORT_CHANNELS : RESOURCE_MEMORY_CHANNELS, r, i);

				if (p->count[resource] == p->taken[resource])
					continue;
				return shunt_json_fail(&p->log->json, EINVAL,
				    "%s channel %u: rank %u signals %" PRIu64
				    " times on its channel %u, expected %" PRIu64 ", as often as waits are made here",
				    names[type], i, gpu->channels[type][i].peer, p->count[resource],
				    gpu->channels[type][i].pair, p->taken[resource]);
			}
		for (uint32_t i = 0; i < gpu->nsemaphores; i++) {
			size_t resource = resource_index(p, RESOURCE_SEMAPHORES, r, i);

			if (p->count[resource] != gpu->semaphores[i])
				return shunt_json_fail(&p->log->json, EINVAL,
				    "semaphores[%u] ends as %" PRIu64 ", expected %u, its init_value", i,
				    p->count[resource], gpu->semaphores[i]);
		}
	}
	p->log->at.rank = SHUNT_PLAN_NIL;
	return 0;
}

/*
 * A launch writes packets to the half of scratch of the launch before the last. Their receiver has read the old packets
 * there once it has begun the last launch. The writer knows that if it has observed, directly or through other ranks,
 * anything that the receiver sent in the last launch.
 */
int shunt_simulation_check_ordering(struct simulation *p)
{
	uint32_t n = p->plan->nranks;
	uint8_t *c = p->ordering;

	/* Transitive closure of ORDERING_OBSERVES. */
	for (uint32_t by = 0; c && by < n; by++)
		for (uint32_t a = 0; a < n; a++)
			for (uint32_t b = 0; c[(size_t)a * n + by] & ORDERING_OBSERVES && b < n; b++)
				c[(size_t)a * n + b] |= c[(size_t)by * n + b] & ORDERING_OBSERVES;
	for (uint32_t a = 0; c && a < n; a++)
		for (uint32_t b = 0; b < n; b++)
			if (a != b &&
			    (c[(size_t)a * n + b] & (ORDERING_OBSERVES | ORDERING_WRITES)) == ORDERING_WRITES) {
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
