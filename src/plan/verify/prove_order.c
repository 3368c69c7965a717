/* SPDX-License-Identifier: MIT */
/* Which accesses are over when a task happens: clocks of blocks, counters, barriers, and chains of packets. */
#include <string.h>
#include "plan/format/hosts.h"
#include "plan/format/op_rows.h"
#include "plan/verify/prove.h"

static uint32_t peer_of(const struct proof *p, uint32_t block, const struct shunt_plan_op *op, uint32_t operand)
{
	return p->plan->gpus[p->sim->states[block].rank].channels[op->type][op->ids[operand]].peer;
}

uint32_t shunt_proof_puts_at(const struct proof *p, uint32_t block, const struct shunt_plan_op *op, uint32_t operand)
{
	uint32_t peer = peer_of(p, block, op, operand);

	for (uint32_t i = 0; i < p->nputs; i++)
		if (p->puts[i].block == block && p->puts[i].peer == peer)
			return p->sim->nstates + i;
	return block;
}

/* Plain data; packets tell by themselves that they are there. */
static bool puts_data(const struct shunt_plan_op *op)
{
	return op->type == SHUNT_PLAN_PORT && op->nsrc && !shunt_plan_op_has_packets(op);
}

/* Finds what is put for other islands. */
static void find_puts(struct proof *p)
{
	uint32_t *island_of = shunt_proof_alloc(p, p->plan->nranks, sizeof(*island_of)), most = 0;

	if (p->failed || p->one_host)
		return;
	shunt_plan_islands(p->plan, island_of);
	for (uint32_t b = 0; b < p->sim->nstates; b++)
		for (uint32_t i = 0; i < p->sim->states[b].block->nops; i++)
			most += puts_data(&p->sim->states[b].block->ops[i]) ? p->sim->states[b].block->ops[i].nids : 0;
	p->puts = shunt_proof_alloc(p, most, sizeof(*p->puts));
	for (uint32_t b = 0; b < p->sim->nstates && !p->failed; b++)
		for (uint32_t i = 0; i < p->sim->states[b].block->nops; i++) {
			const struct shunt_plan_op *op = &p->sim->states[b].block->ops[i];

			for (uint32_t j = 0; puts_data(op) && j < op->nids; j++) {
				uint32_t peer = peer_of(p, b, op, j);

				if (island_of[peer] != island_of[p->sim->states[b].rank] &&
				    shunt_proof_puts_at(p, b, op, j) == b)
					p->puts[p->nputs++] = (struct proof_puts){ b, peer };
			}
		}
	p->nclocks += p->nputs;
}

static uint32_t number_of(const struct proof *p, const struct block_state *a)
{
	return (uint32_t)(a - p->sim->states);
}

int shunt_proof_order_init(struct proof *p)
{
	uint32_t n = p->sim->nstates;
	uint64_t all = p->plan->nranks >= 64 ? UINT64_MAX : ((uint64_t)1 << p->plan->nranks) - 1;

	p->nclocks = n;
	find_puts(p);
	p->blocks = shunt_proof_alloc(p, n, sizeof(*p->blocks));
	p->producers = shunt_proof_alloc(p, p->sim->nresources, sizeof(struct proof_user *));
	p->consumers = shunt_proof_alloc(p, p->sim->nresources, sizeof(struct proof_user *));
	p->gathered = shunt_proof_alloc(p, p->sim->nresources, sizeof(uint32_t *));
	p->gathered_started = shunt_proof_alloc(p, p->sim->nresources, sizeof(uint64_t));
	for (uint32_t i = 0; i < n && !p->failed; i++) {
		struct proof_block *b = &p->blocks[i];

		b->clock = shunt_proof_alloc(p, p->nclocks, sizeof(uint32_t));
		b->pending = shunt_proof_alloc(p, p->nclocks, sizeof(uint32_t));
		b->pending0 = shunt_proof_alloc(p, p->nclocks, sizeof(uint32_t));
		b->epoch = 1;
		b->started = p->staged ? all : (uint64_t)1 << p->sim->states[i].rank;
	}
	return p->failed ? -ENOMEM : 0;
}

static void join(const struct proof *p, uint32_t *clock, const uint32_t *with)
{
	for (uint32_t i = 0; i < p->nclocks; i++)
		clock[i] = clock[i] < with[i] ? with[i] : clock[i];
}

/*
 * A copy of the block's clock that does not change any more; thread0: with the clocks that its first thread has
 * received since by waits.
 */
const uint32_t *shunt_proof_snapshot(struct proof *p, uint32_t block, bool thread0)
{
	struct proof_block *b = &p->blocks[block];
	const uint32_t **kept = thread0 && b->is_pending0 ? &b->snapshot0 : &b->snapshot;
	uint32_t *copy;

	if (*kept)
		return *kept; /* cppcheck-suppress identicalInnerCondition; it is asked once */
	copy = shunt_proof_alloc(p, p->nclocks, sizeof(*copy));
	if (!copy)
		return NULL;
	memcpy(copy, b->clock, p->nclocks * sizeof(*copy));
	if (kept == &b->snapshot0)
		join(p, copy, b->pending0);
	*kept = copy;
	return copy;
}

static void sync_block(struct proof *p, uint32_t block)
{
	struct proof_block *b = &p->blocks[block];

	if (b->is_pending) {
		join(p, b->clock, b->pending);
		memset(b->pending, 0, p->nclocks * sizeof(*b->pending));
		memset(b->pending0, 0, p->nclocks * sizeof(*b->pending0));
	}
	b->is_pending = b->is_pending0 = false;
	b->started |= b->pending_started;
	b->pending_started = b->pending0_started = 0;
	b->clock[block] = b->epoch++;
	b->snapshot = b->snapshot0 = NULL;
}

void shunt_proof_sync(void *follower, const struct block_state *a)
{
	struct proof *p = follower;

	if (!p->counting)
		sync_block(p, number_of(p, a));
}

static struct proof_user *user_of(struct proof *p, struct proof_user **list, uint32_t block)
{
	struct proof_user *u = *list;

	while (u && u->block != block)
		u = u->next;
	if (u)
		return u;
	u = shunt_proof_alloc(p, 1, sizeof(*u));
	if (u) {
		*u = (struct proof_user){ .next = *list, .block = block };
		*list = u;
	}
	return u;
}

/* The clock that a signal of the block carries: on a port it comes behind what its rank has put for the same peer. */
static const uint32_t *signal_clock(struct proof *p, uint32_t block, const struct shunt_plan_op *op, uint32_t operand)
{
	const uint32_t *clock = shunt_proof_snapshot(p, block, operand == 0);
	uint32_t *copy = NULL;

	if (!clock || op->type != SHUNT_PLAN_PORT || !shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS))
		return clock;
	for (uint32_t i = 0; i < p->nputs; i++) {
		const struct proof_puts *puts = &p->puts[i];

		if (p->sim->states[puts->block].rank != p->sim->states[block].rank ||
		    puts->peer != peer_of(p, block, op, operand) || clock[p->sim->nstates + i] >= clock[puts->block])
			continue;
		if (!copy) {
			copy = shunt_proof_alloc(p, p->nclocks, sizeof(*copy));
			if (!copy)
				return NULL;
			memcpy(copy, clock, p->nclocks * sizeof(*copy));
		}
		copy[p->sim->nstates + i] = clock[puts->block];
	}
	return copy ? copy : clock;
}

void shunt_proof_release(void *follower, const struct block_state *a, uint32_t operand, size_t resource)
{
	struct proof *p = follower;
	struct proof_user *u;
	const struct proof_block *b;

	if (p->failed)
		return;
	u = user_of(p, &p->producers[resource], number_of(p, a));
	if (!u || (p->counting && ++u->total))
		return;
	if (!u->releases)
		u->releases = shunt_proof_alloc(p, u->total, sizeof(*u->releases));
	if (!u->releases || u->count >= u->total)
		return;
	b = &p->blocks[u->block];
	u->releases[u->count++] = (struct proof_release){
		.clock = signal_clock(p, u->block, &a->block->ops[a->pc], operand),
		.started = b->started | (operand == 0 ? b->pending0_started : 0),
	};
}

/* The block knows of a release when it has synchronized; its first thread at once. */
static void learn(struct proof *p, struct proof_block *b, const struct proof_release *r, bool thread0)
{
	if (!r->clock)
		return;
	join(p, b->pending, r->clock);
	b->pending_started |= r->started;
	b->is_pending = true;
	if (!thread0)
		return;
	join(p, b->pending0, r->clock);
	b->pending0_started |= r->started;
	b->is_pending0 = true;
	b->snapshot0 = NULL;
}

void shunt_proof_acquire(
    void *follower, const struct block_state *a, uint32_t operand, size_t resource, uint64_t initial)
{
	struct proof *p = follower;
	struct proof_user *u;
	uint64_t all = 0, k;

	if (p->failed)
		return;
	u = user_of(p, &p->consumers[resource], number_of(p, a));
	if (!u)
		return;
	u->count++;
	if (p->counting)
		return;
	k = u->count > initial ? u->count - initial : 0;
	for (struct proof_user *v = p->producers[resource]; v; v = v->next)
		all += v->total;
	if ((p->producers[resource] && p->producers[resource]->next && k < all) || p->consumers[resource]->next)
		p->undecided = true;
	for (struct proof_user *v = p->producers[resource]; v; v = v->next) {
		uint64_t others = all - v->total;

		/* Without this block's release number k - others fewer than k have come. */
		if (k > others && k - others <= v->count)
			learn(p, &p->blocks[u->block], &v->releases[k - others - 1], operand == 0);
	}
}

void shunt_proof_arrive(void *follower, const struct block_state *a, size_t resource)
{
	struct proof *p = follower;
	uint32_t block;

	if (p->counting || p->failed)
		return;
	block = number_of(p, a);
	sync_block(p, block);
	if (!p->gathered[resource])
		p->gathered[resource] = shunt_proof_alloc(p, p->nclocks, sizeof(uint32_t));
	if (!p->gathered[resource])
		return;
	join(p, p->gathered[resource], p->blocks[block].clock);
	p->gathered_started[resource] |= p->blocks[block].started;
}

static void leave_barrier(struct proof *p, uint32_t block, size_t resource)
{
	struct proof_block *b = &p->blocks[block];

	join(p, b->clock, p->gathered[resource]);
	b->started |= p->gathered_started[resource];
	b->snapshot = b->snapshot0 = NULL;
}

void shunt_proof_synchronize(void *follower, const struct block_state *a, size_t resource)
{
	struct proof *p = follower;

	if (p->counting || p->failed || !p->gathered[resource])
		return;
	leave_barrier(p, number_of(p, a), resource);
	for (uint32_t i = p->sim->waiters[resource]; i != SHUNT_PLAN_NIL; i = p->sim->states[i].next)
		leave_barrier(p, i, resource);
	/* Whoever synchronizes here again knows it all, so that nothing is forgotten. */
}

static bool over(const struct proof *p, struct proof_access x, const uint32_t *clock)
{
	return clock[p->steps[x.step].at] >= p->steps[x.step].epoch;
}

bool shunt_proof_over_by_stores(const struct proof *p, struct proof_access x, const uint32_t *clock)
{
	return clock[p->steps[x.step].block] >= p->steps[x.step].epoch;
}

static void add_edges(const struct proof *p, struct proof_edge **work, const uint32_t *clock)
{
	for (uint32_t b = 0; b < p->sim->nstates; b++)
		for (struct proof_edge *e = clock[b] ? p->blocks[b].edges : NULL; e; e = e->next_of_block)
			if (e->epoch <= clock[b] && e->seen != p->walk) {
				e->seen = p->walk;
				e->work = *work;
				*work = e;
			}
}

static void add_edges_of_task(const struct proof *p, struct proof_edge **work, struct proof_access task)
{
	for (struct proof_edge *e = p->edges[(task.step * 31 + task.element) % PROOF_BUCKETS]; e; e = e->next)
		if (e->to.step == task.step && e->to.element == task.element && e->seen != p->walk) {
			e->seen = p->walk;
			e->work = *work;
			*work = e;
		}
}

/* Follows packets back to their writers. True if x is one of these, or is over before one of them. */
static bool walk(struct proof *p, struct proof_access x, struct proof_edge *work)
{
	while (work) {
		struct proof_edge *e = work;
		const uint32_t *clock = p->steps[e->from.step].clock;

		work = e->work;
		if ((e->from.step == x.step && e->from.element == x.element) || over(p, x, clock))
			return true;
		if (!shunt_simulation_spend(p->sim, 1))
			return true; /* unknown: the result of an overrun is not used */
		add_edges_of_task(p, &work, e->from);
		add_edges(p, &work, clock);
	}
	return false;
}

/*
 * Operations on packets that cover as much give an element to the same thread, which does them in order: the kernels
 * count elements from the beginning of the operation's part (kernels/plan/ll.h, ll128.h).
 */
static bool same_thread(const struct proof *p, struct proof_access x, struct proof_access y)
{
	const struct proof_step *a = &p->steps[x.step], *b = &p->steps[y.step];

	return a->block == b->block && x.element == y.element && x.step <= y.step && shunt_plan_op_has_packets(a->op) &&
	    shunt_plan_op_has_packets(b->op) && a->op->src[0].size == b->op->src[0].size &&
	    a->op->part == b->op->part && a->op->parts == b->op->parts;
}

bool shunt_proof_ordered(struct proof *p, struct proof_access x, struct proof_access task, bool packets)
{
	struct proof_edge *work = NULL;

	if (over(p, x, p->steps[task.step].clock) || (x.step == task.step && x.element == task.element) ||
	    same_thread(p, x, task))
		return true;
	if (!packets)
		return false;
	p->walk++;
	add_edges_of_task(p, &work, task);
	add_edges(p, &work, p->steps[task.step].clock);
	return walk(p, x, work);
}

bool shunt_proof_over_at_end(struct proof *p, struct proof_access x, uint32_t r, bool packets)
{
	struct proof_edge *work = NULL;

	if (over(p, x, p->ends[r]))
		return true;
	if (!packets)
		return false;
	p->walk++;
	add_edges(p, &work, p->ends[r]);
	return walk(p, x, work);
}
