/* SPDX-License-Identifier: MIT */
/* Accesses of a proof: each element of each operation reads and writes cells, in an order or in a race. */
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/verify/prove.h"

#define MAX_CELLS 400000u

static uint64_t extent_of(const struct proof *p, uint32_t rank, unsigned space)
{
	const struct shunt_plan *plan = p->plan;
	uint64_t chunks = plan->gpus[rank].chunks[space == PROOF_PACKETS ? SHUNT_PLAN_SCRATCH : space], least;

	if (space >= PROOF_SCRATCH || shunt_plan_is_custom(plan->collective))
		return chunks;
	least = plan->parts[space] * plan->part_chunks;
	return chunks > least ? chunks : least;
}

int shunt_proof_data_init(struct proof *p)
{
	uint32_t n = p->plan->nranks * PROOF_NSPACES;
	uint64_t total = 0;
	struct proof_cell *at;

	p->spaces = shunt_proof_alloc(p, n, sizeof(struct proof_cell *));
	p->extents = shunt_proof_alloc(p, n, sizeof(*p->extents));
	p->edges = shunt_proof_alloc(p, PROOF_BUCKETS, sizeof(struct proof_edge *));
	p->max_steps = 256;
	p->steps = shunt_proof_alloc(p, p->max_steps, sizeof(*p->steps));
	p->nsteps = 1;
	if (p->failed)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t chunks = extent_of(p, i / PROOF_NSPACES, i % PROOF_NSPACES);

		if (chunks > MAX_CELLS || p->chunk > MAX_CELLS || (total += chunks * p->chunk) > MAX_CELLS) {
			p->sim->overrun = true;
			return 0;
		}
		p->extents[i] = chunks * p->chunk;
	}
	p->cells = at = shunt_proof_alloc(p, total, sizeof(*at));
	if (!at)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		p->spaces[i] = at;
		at += p->extents[i];
	}
	return 0;
}

/* at: the place in a clock that says when it is over. */
static uint32_t add_step(struct proof *p, const struct block_state *a, const struct shunt_plan_op *op, uint32_t at)
{
	uint32_t block = (uint32_t)(a - p->sim->states);

	if (p->nsteps == p->max_steps) {
		struct proof_step *more = shunt_proof_alloc(p, 2 * (size_t)p->max_steps, sizeof(*more));

		if (!more)
			return 0;
		memcpy(more, p->steps, p->nsteps * sizeof(*more));
		p->steps = more;
		p->max_steps *= 2;
	}
	p->steps[p->nsteps] = (struct proof_step){
		.op = op,
		.clock = shunt_proof_snapshot(p, block, false),
		.started = p->blocks[block].started,
		.block = block,
		.epoch = p->blocks[block].epoch,
		.at = at,
	};
	return p->failed ? 0 : p->nsteps++;
}

/* The work of one element of an operation. */
struct task {
	struct proof *p;
	struct proof_access by;
	uint64_t started;
	bool packets;           /* the cells at hand are packets */
	uint32_t reads;         /* the execution, which has read its sources when it ends */
	const uint32_t *writes; /* for each dst: the same, or what stands for the arrival of what a port puts */
};

static void add_reader(struct task *t, struct proof_reader **list)
{
	struct proof_reader *r;

	if (*list && (*list)->by.step == t->by.step && (*list)->by.element == t->by.element)
		return;
	r = shunt_proof_alloc(t->p, 1, sizeof(*r));
	if (!r)
		return;
	*r = (struct proof_reader){ *list, t->by };
	*list = r;
}

/* The task has read a packet: it knows what that packet's writer did before, for the same bytes. */
static void add_edge(struct task *t, struct proof_access from)
{
	struct proof *p = t->p;
	struct proof_step *to = &p->steps[t->by.step];
	struct proof_block *b = &p->blocks[to->block];
	struct proof_edge *e = shunt_proof_alloc(p, 1, sizeof(*e)),
	                  **list = &p->edges[(t->by.step * 31 + t->by.element) % PROOF_BUCKETS];

	if (!e)
		return;
	*e = (struct proof_edge){ .next = *list, .next_of_block = b->edges, .to = t->by, .from = from };
	e->epoch = to->epoch;
	*list = b->edges = e;
	t->started |= p->steps[from.step].started;
	b->pending_started |= p->steps[from.step].started;
}

static uint32_t read_cell(struct task *t, struct proof_cell *c)
{
	struct proof *p = t->p;
	bool once = t->packets && c->last.step == c->first.step && c->last.element == c->first.element;

	if (c->last.step && once)
		add_edge(t, c->last);
	else if (c->last.step && !shunt_proof_ordered(p, c->last, t->by, false))
		shunt_proof_report_race(p, c, c->last, t->by, "read");
	add_reader(t, &c->readers);
	return c->value;
}

static void write_cell(struct task *t, struct proof_cell *c, uint32_t value)
{
	struct proof *p = t->p;

	/* If a packet is written twice with the same value, its reader need not know which of the two it reads. */
	if (t->packets && c->last.step && c->value == value)
		return;
	if (c->last.step && !shunt_proof_ordered(p, c->last, t->by, true))
		shunt_proof_report_race(p, c, c->last, t->by, "write");
	for (const struct proof_reader *r = c->readers; r && !p->failed; r = r->next)
		if (!shunt_proof_ordered(p, r->by, t->by, true))
			shunt_proof_report_race(p, c, r->by, t->by, "write");
	if (!c->first.step) {
		c->first = t->by;
		c->first_started = t->started;
	}
	c->last = t->by;
	c->readers = NULL;
	c->value = value;
}

/* The slices of an operation for one of its elements. */
struct piece {
	const struct shunt_plan_slice *slice;
	const uint32_t *ranks;
	uint32_t nranks;
	uint64_t low;
};

static struct piece piece_of(struct proof *p, const struct block_state *a, const struct shunt_plan_op *op,
    const struct shunt_plan_slice *s, uint64_t *n_p)
{
	struct shunt_plan_window w = { .chunk_units = p->sim->chunk_units };
	const struct shunt_plan_op *pipeline;
	struct shunt_plan_units u;
	struct piece piece = { .slice = s };

	if (a->pipeline != SHUNT_PLAN_NIL) {
		pipeline = &a->block->ops[a->pipeline];
		w.units = pipeline->unit_size / p->plan->alignment;
		w.number = shunt_plan_windows(p->plan, pipeline, w.chunk_units) - a->windows;
	}
	u = shunt_plan_slice_units(op, s, &w);
	piece.nranks = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], s, &piece.ranks);
	piece.low = u.low;
	*n_p = u.high - u.low;
	return piece;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static void count_units(struct proof *p, const struct block_state *a, const struct shunt_plan_op *op)
{
	for (uint32_t i = 0; i < op->nsrc + op->ndst; i++) {
		uint64_t n;
		struct piece at = piece_of(p, a, op, i < op->nsrc ? &op->src[i] : &op->dst[i - op->nsrc], &n);

		if (n)
			p->unit = gcd(gcd(p->unit, at.low), n);
	}
}

static struct proof_cell *cell_of(struct task *t, const struct piece *at, uint32_t member, uint64_t i)
{
	struct proof *p = t->p;
	uint64_t base;
	unsigned space = shunt_proof_space(p, at->slice, at->ranks[member], &base);

	t->packets = space == PROOF_PACKETS;
	return &proof_cells(p, at->ranks[member], space)[base + at->low / p->unit + i];
}

#define MAX_PIECES 4096

/* One element: sources first..first+nsrc, then the destinations likewise. */
static void do_element(
    struct task *t, const struct shunt_plan_op *op, const struct piece *src, const struct piece *dst, uint64_t i)
{
	struct proof *p = t->p;
	bool pairwise = shunt_plan_op_does(op, SHUNT_PLAN_PAIRWISE);
	uint32_t values[MAX_PIECES], n = 0, value = 0;

	for (uint32_t j = 0; j < op->ndst && pairwise && !p->failed; j++) {
		t->by.step = t->reads;
		value = read_cell(t, cell_of(t, &src[j], 0, i));
		t->by.step = t->writes[j];
		for (uint32_t m = 0; m < dst[j].nranks && !p->failed; m++)
			write_cell(t, cell_of(t, &dst[j], m, i), value);
	}
	if (pairwise)
		return;
	for (uint32_t j = 0; j < op->nsrc; j++)
		for (uint32_t m = 0; m < src[j].nranks && n < MAX_PIECES && !p->failed; m++)
			values[n++] = read_cell(t, cell_of(t, &src[j], m, i));
	value = n == 1 || p->failed ? values[0] : shunt_proof_reduce(p, (enum shunt_redop)op->redop, values, n);
	for (uint32_t j = 0; j < op->ndst; j++)
		for (uint32_t m = 0; m < dst[j].nranks && !p->failed; m++)
			write_cell(t, cell_of(t, &dst[j], m, i), value);
}

void shunt_proof_data(void *follower, const struct block_state *a, const struct shunt_plan_op *op)
{
	struct proof *p = follower;
	struct piece *pieces;
	uint64_t n = 0, each = 0;
	struct task t = { .p = p };
	uint32_t block = (uint32_t)(a - p->sim->states), *writes;

	if (p->failed || !op->nsrc)
		return;
	if (p->counting) {
		count_units(p, a, op);
		return;
	}
	pieces = shunt_proof_alloc(p, op->nsrc + op->ndst, sizeof(*pieces));
	writes = shunt_proof_alloc(p, op->ndst, sizeof(*writes));
	t.reads = t.by.step = add_step(p, a, op, block);
	t.writes = writes;
	for (uint32_t j = 0; j < op->ndst && !p->failed; j++) {
		bool puts = p->nputs && op->type == SHUNT_PLAN_PORT && !shunt_plan_op_has_packets(op);
		uint32_t at = puts ? shunt_proof_puts_at(p, block, op, j) : block;

		writes[j] = at == block ? t.reads : add_step(p, a, op, at);
	}
	if (p->failed)
		return;
	for (uint32_t i = 0; i < op->nsrc + op->ndst; i++) {
		pieces[i] = piece_of(p, a, op, i < op->nsrc ? &op->src[i] : &op->dst[i - op->nsrc], &n);
		each += pieces[i].nranks;
	}
	n /= p->unit;
	for (uint64_t i = 0; i < n && !p->failed && shunt_simulation_spend(p->sim, each); i++) {
		t.by.element = (uint32_t)i;
		t.started = p->steps[t.by.step].started;
		do_element(&t, op, pieces, pieces + op->nsrc, i);
	}
}
