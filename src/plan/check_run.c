/* SPDX-License-Identifier: MIT */
/*
 * Plays a plan: every block of every rank goes through its operations as far as signals, semaphores, barriers and packets let it.
 * No data is moved, so a launch takes microseconds. If blocks are left that cannot go on, no order of events would have let all of
 * them: what they wait for is only ever added to, except by semaphores that several blocks take, where one order is played for all.
 *
 * How many units a chunk has decides how often a pipeline runs and where the parts of a group begin, so several numbers are played.
 * Work is limited: by MAX_STEPS, and linear in the plan's size otherwise.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "plan/ops.h"
#include "plan/priv.h"

#define NIL SHUNT_PLAN_NIL
#define MAX_STEPS ((uint64_t)30000000)
#define MAX_SIZES 16

/* One block while it runs. */
struct actor {
	const struct shunt_plan_block *block;
	uint32_t rank, number;
	uint32_t pc, pipeline; /* the operation that comes next; the pipeline around it or NIL */
	uint64_t windows;      /* of it that are left, this one included */
	uint32_t got;          /* of the next operation: ids that are served; of a barrier: 1 arrived, 2 let go */
	uint32_t next;         /* among those who wait for the same thing, or NIL */
	size_t thing;          /* that it waits for */
};

/*
 * Everything that a block can wait for has a number: memory channels, port channels, semaphores, barriers, and the segments into
 * which the ends of all packet slices divide each rank's scratch.
 */
enum things { MEMORY_CHANNELS, PORT_CHANNELS, SEMAPHORES, BARRIERS, SEGMENTS, NTHINGS };

struct range {
	size_t first, end;
};

struct play {
	struct shunt_plan_log *log;
	const struct shunt_plan *plan;
	uint64_t chunk_units;
	uint64_t steps; /* that are left */
	bool overrun;
	struct actor *actors;
	uint32_t nactors, *ready, nready; /* a stack */
	size_t *base[NTHINGS];            /* of each rank */
	size_t nthings;                   /* without segments */
	uint64_t *count,
	    *taken;        /* of each thing: signals that came, semaphore's value, blocks at a barrier; waits that were served */
	uint32_t *waiting; /* of each thing, segments included: the first actor, or NIL */
	/* Ends of segments, in order, for each rank from base[SEGMENTS][rank] - nthings on; segment i lies between ends i and i
	 * + 1. */
	uint64_t *ends;
	size_t nends, *nends_of;
	size_t *valid; /* for each end: itself, or a later one before which all is valid */
};

static bool spend(struct play *p, uint64_t steps)
{
	if (p->steps < steps) {
		p->overrun = true;
		return false;
	}
	p->steps -= steps;
	return true;
}

static size_t thing_of(const struct play *p, enum things kind, uint32_t rank, size_t i)
{
	return p->base[kind][rank] + i;
}

static void block(struct play *p, struct actor *a, size_t thing)
{
	a->thing = thing;
	a->next = p->waiting[thing];
	p->waiting[thing] = (uint32_t)(a - p->actors);
}

static void wake(struct play *p, size_t thing, uint32_t got)
{
	uint32_t next;

	for (uint32_t i = p->waiting[thing]; i != NIL; i = next) {
		next = p->actors[i].next;
		if (got)
			p->actors[i].got = got;
		p->ready[p->nready++] = i;
		p->steps -= p->steps > 0;
	}
	p->waiting[thing] = NIL;
}

/* What of a slice is ours, in units of scratch. */
static void slice_units(
    const struct play *p, const struct shunt_plan_op *op, const struct shunt_plan_slice *s, uint64_t *low_p, uint64_t *high_p)
{
	uint64_t first, n;

	shunt_plan_group_part(s->size * p->chunk_units, op->part, op->parts, &first, &n);
	*low_p = s->index * p->chunk_units + first;
	*high_p = *low_p + n;
}

/* The ranks in whose scratch a slice lies. */
static uint32_t slice_ranks(const struct play *p, uint32_t rank, const struct shunt_plan_slice *s, const uint32_t **ranks_p)
{
	const struct shunt_plan_switch *w;

	if (s->place != SHUNT_PLAN_MULTI) {
		*ranks_p = &s->target;
		return 1;
	}
	w = &p->plan->gpus[rank].switches[s->target];
	*ranks_p = w->ranks;
	return w->nranks;
}

static size_t end_at(const struct play *p, uint32_t rank, uint64_t unit)
{
	size_t low = p->base[SEGMENTS][rank] - p->nthings, high = low + p->nends_of[rank];

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (p->ends[middle] < unit)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The segments of a slice on one rank; they are whole. */
static struct range slice_segments(
    const struct play *p, const struct shunt_plan_op *op, uint32_t rank, const struct shunt_plan_slice *s)
{
	uint64_t low, high;

	slice_units(p, op, s, &low, &high);
	return low == high ? (struct range){0, 0} : (struct range){end_at(p, rank, low), end_at(p, rank, high)};
}

static size_t first_invalid(struct play *p, size_t i)
{
	while (p->valid[i] != i) {
		p->valid[i] = p->valid[p->valid[i]];
		i = p->valid[i];
	}
	return i;
}

/* True if all packets that the operation reads are there; else the actor waits for the first that is not. */
static bool packets_there(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	for (uint32_t i = 0; i < op->nsrc; i++) {
		struct range r;
		size_t hole;

		if (!op->src[i].packet)
			continue;
		r = slice_segments(p, op, a->rank, &op->src[i]);
		if (r.first == r.end)
			continue;
		hole = first_invalid(p, r.first);
		if (hole < r.end) {
			block(p, a, p->nthings + hole);
			return false;
		}
	}
	return true;
}

static void write_packets(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	for (uint32_t i = 0; i < op->ndst; i++) {
		const uint32_t *ranks;
		uint32_t n;

		if (!op->dst[i].packet)
			continue;
		n = slice_ranks(p, a->rank, &op->dst[i], &ranks);
		for (uint32_t m = 0; m < n && spend(p, 8); m++) {
			struct range r = slice_segments(p, op, ranks[m], &op->dst[i]);

			for (size_t s = r.first == r.end ? r.end : first_invalid(p, r.first); s < r.end; s = first_invalid(p, s)) {
				p->valid[s] = s + 1;
				wake(p, p->nthings + s, 0);
			}
		}
	}
}

static void signal_ids(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];

	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *c = &gpu->channels[op->type][op->ids[j]];
		size_t thing = thing_of(p, op->type == SHUNT_PLAN_MEMORY ? MEMORY_CHANNELS : PORT_CHANNELS, c->peer, c->pair);

		p->count[thing]++;
		wake(p, thing, 0);
	}
}

static bool wait_ids(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	for (; a->got < op->nids; a->got++) {
		size_t thing =
		    thing_of(p, op->type == SHUNT_PLAN_MEMORY ? MEMORY_CHANNELS : PORT_CHANNELS, a->rank, op->ids[a->got]);

		if (p->taken[thing] == p->count[thing]) {
			block(p, a, thing);
			return false;
		}
		p->taken[thing]++;
	}
	return true;
}

static bool acquire_ids(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	for (; a->got < op->nids; a->got++) {
		size_t thing = thing_of(p, SEMAPHORES, a->rank, op->ids[a->got]);

		if (!p->count[thing]) {
			block(p, a, thing);
			return false;
		}
		p->count[thing]--;
	}
	return true;
}

static void release_ids(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		size_t thing = thing_of(p, SEMAPHORES, a->rank, op->ids[j]);

		p->count[thing]++;
		wake(p, thing, 0);
	}
}

static bool meet(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	size_t thing = thing_of(p, BARRIERS, a->rank, op->barrier);

	if (a->got == 2)
		return true;
	if (++p->count[thing] < op->nblocks) {
		a->got = 1;
		block(p, a, thing);
		return false;
	}
	p->count[thing] = 0;
	wake(p, thing, 2);
	return true;
}

/* True if the operation is over; false: the actor waits. */
static bool perform(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	switch (op->code) {
	case SHUNT_PLAN_BARRIER:
		return meet(p, a, op);
	case SHUNT_PLAN_SIGNAL:
	case SHUNT_PLAN_RLXSIGNAL:
	case SHUNT_PLAN_PWS:
	case SHUNT_PLAN_PWSF:
		signal_ids(p, a, op);
		return true;
	case SHUNT_PLAN_WAIT:
	case SHUNT_PLAN_RLXWAIT:
		return wait_ids(p, a, op);
	case SHUNT_PLAN_SEM_ACQUIRE:
		return acquire_ids(p, a, op);
	case SHUNT_PLAN_SEM_RELEASE:
		release_ids(p, a, op);
		return true;
	default:
		if (!packets_there(p, a, op))
			return false;
		write_packets(p, a, op);
		return true;
	}
}

/* As far as it gets. */
static void run_actor(struct play *p, struct actor *a)
{
	while (a->pc < a->block->nops) {
		const struct shunt_plan_op *op = &a->block->ops[a->pc];

		if (!spend(p, 1 + op->nids + op->nsrc + op->ndst))
			return;
		if (op->code == SHUNT_PLAN_PIPELINE) {
			a->windows = shunt_plan_windows(p->plan, op, p->chunk_units);
			if (a->windows) {
				a->pipeline = a->pc;
				a->pc++;
			} else {
				a->pc += 1 + op->nbody;
			}
			continue;
		}
		if (!perform(p, a, op))
			return;
		a->got = 0;
		a->pc++;
		if (a->pipeline != NIL && a->pc == a->pipeline + 1 + a->block->ops[a->pipeline].nbody) {
			if (--a->windows)
				a->pc = a->pipeline + 1;
			else
				a->pipeline = NIL;
		}
	}
}

/* What stuck blocks are told apart by: is this operation one that could have given the thing? */
static bool gives(struct play *p, const struct actor *a, const struct shunt_plan_op *op, enum things kind, uint32_t rank, size_t i)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];
	bool signals = op->code == SHUNT_PLAN_SIGNAL || op->code == SHUNT_PLAN_RLXSIGNAL || op->code == SHUNT_PLAN_PWS ||
	               op->code == SHUNT_PLAN_PWSF;

	switch (kind) {
	case MEMORY_CHANNELS:
	case PORT_CHANNELS:
		for (uint32_t j = 0;
		     signals && op->type == (kind == MEMORY_CHANNELS ? SHUNT_PLAN_MEMORY : SHUNT_PLAN_PORT) && j < op->nids; j++)
			if (gpu->channels[op->type][op->ids[j]].peer == rank && gpu->channels[op->type][op->ids[j]].pair == i)
				return true;
		return false;
	case SEMAPHORES:
		for (uint32_t j = 0; op->code == SHUNT_PLAN_SEM_RELEASE && a->rank == rank && j < op->nids; j++)
			if (op->ids[j] == i)
				return true;
		return false;
	case BARRIERS:
		return op->code == SHUNT_PLAN_BARRIER && a->rank == rank && op->barrier == i;
	default:
		for (uint32_t d = 0; d < op->ndst; d++) {
			const uint32_t *ranks;
			uint32_t n;

			if (!op->dst[d].packet)
				continue;
			n = slice_ranks(p, a->rank, &op->dst[d], &ranks);
			for (uint32_t m = 0; m < n; m++) {
				struct range r;

				if (ranks[m] != rank)
					continue;
				r = slice_segments(p, op, rank, &op->dst[d]);
				if (r.first <= i && i < r.end)
					return true;
			}
		}
		return false;
	}
}

/* The kind, rank and number of a thing. For segments the number is that of its lower end. */
static enum things thing_is(const struct play *p, size_t thing, uint32_t *rank_p, size_t *i_p)
{
	int kind = SEGMENTS;
	uint32_t rank = p->plan->nranks - 1;

	if (thing < p->nthings)
		while (kind > 0 && p->base[--kind][0] > thing)
			;
	while (p->base[kind][rank] > thing)
		rank--;
	*rank_p = rank;
	*i_p = kind == SEGMENTS ? thing - p->nthings : thing - p->base[kind][rank];
	return (enum things)kind;
}

/* Who has still to come to an operation that gives what a waits for; NULL: nobody. */
static const struct actor *giver(struct play *p, const struct actor *a, const struct shunt_plan_op **op_p)
{
	uint32_t rank;
	size_t i;
	enum things kind = thing_is(p, a->thing, &rank, &i);

	for (uint32_t n = 0; n < p->nactors; n++) {
		const struct actor *g = &p->actors[n];
		uint32_t from = g->pipeline == NIL ? g->pc : g->pipeline + 1;

		if (kind == BARRIERS && g->thing == a->thing)
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

	if (op->inner != NIL)
		snprintf(inner, sizeof(inner), ".%u", op->inner);
	snprintf(text, bytes, "operation %u%s (%s)", op->at, inner, shunt_plan_op_names[op->code]);
}

static void describe_thing(struct play *p, const struct actor *a, char *text, size_t bytes)
{
	const struct shunt_plan_channel *c;
	uint32_t rank;
	size_t i;
	enum things kind = thing_is(p, a->thing, &rank, &i);

	switch (kind) {
	case MEMORY_CHANNELS:
	case PORT_CHANNELS:
		c = &p->plan->gpus[rank].channels[kind == MEMORY_CHANNELS ? SHUNT_PLAN_MEMORY : SHUNT_PLAN_PORT][i];
		snprintf(text, bytes, "signal %" PRIu64 " on its %s channel %zu, from channel %u of rank %u",
		    p->taken[a->thing] + 1, kind == MEMORY_CHANNELS ? "memory" : "port", i, c->pair, c->peer);
		break;
	case SEMAPHORES:
		snprintf(text, bytes, "semaphore %zu", i);
		break;
	case BARRIERS:
		snprintf(
		    text, bytes, "%u blocks at a barrier where %" PRIu64 " are", a->block->ops[a->pc].nblocks, p->count[a->thing]);
		break;
	default:
		snprintf(text, bytes, "packets in its scratch, chunk %" PRIu64, p->ends[i] / p->chunk_units);
		break;
	}
}

static int fail_at(struct play *p, const struct actor *a, const char *text)
{
	const struct shunt_plan_op *op = &a->block->ops[a->pc];

	p->log->at = (struct shunt_plan_at){a->rank, a->number, op->at, op->inner, shunt_plan_op_names[op->code]};
	shunt_plan_fail(p->log, EINVAL, "%s", text);
	return -p->log->err;
}

/* Follows who waits for whom until nobody gives it, or a block comes up again. */
static int report_stuck(struct play *p)
{
	enum { HOPS = 64, TOLD = 4 };
	const struct actor *chain[HOPS + 1], *a = NULL;
	const struct shunt_plan_op *by[HOPS + 1];
	char text[1024], thing[160], op[64];
	uint32_t n = 0, from = 0, told = 0;
	size_t len;

	for (uint32_t i = 0; !a && i < p->nactors; i++)
		if (p->actors[i].pc < p->actors[i].block->nops)
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
		snprintf(
		    text, sizeof(text), "waits for %s, expected a block that gives it: none does, or none does once more", thing);
		return fail_at(p, chain[n - 1], text);
	}
	/* chain[from..n) is a circle, or n is HOPS and from is too. */
	if (from >= n)
		from = 0;
	describe_thing(p, chain[from], thing, sizeof(thing));
	snprintf(text, sizeof(text), "waits in a circle, expected an order in which all can run: for %s", thing);
	for (uint32_t i = from; i < n && told < TOLD; i++, told++) {
		const struct actor *next = i + 1 < n ? chain[i + 1] : chain[from];

		len = strlen(text);
		describe_op(op, sizeof(op), by[i]);
		snprintf(text + len, sizeof(text) - len, "; rank %u, block %u would give it in %s", next->rank, next->number, op);
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
static int check_balance(struct play *p)
{
	static const char *const names[] = {"memory", "port"};

	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &p->plan->gpus[r];

		p->log->at.rank = r;
		for (int type = 0; type < 2; type++)
			for (uint32_t i = 0; i < gpu->nchannels[type]; i++) {
				size_t thing = thing_of(p, type ? PORT_CHANNELS : MEMORY_CHANNELS, r, i);

				if (p->count[thing] == p->taken[thing])
					continue;
				return shunt_plan_fail(p->log, EINVAL,
				    "%s channel %u: rank %u signals %" PRIu64 " times on its channel %u, expected %" PRIu64
				    ", as often as waits are made here",
				    names[type], i, gpu->channels[type][i].peer, p->count[thing], gpu->channels[type][i].pair,
				    p->taken[thing]);
			}
		for (uint32_t i = 0; i < gpu->nsemaphores; i++) {
			size_t thing = thing_of(p, SEMAPHORES, r, i);

			if (p->count[thing] != gpu->semaphores[i])
				return shunt_plan_fail(p->log, EINVAL,
				    "semaphores[%u] ends as %" PRIu64 ", expected %u, its init_value", i, p->count[thing],
				    gpu->semaphores[i]);
		}
	}
	p->log->at.rank = NIL;
	return 0;
}

static int by_unit(const void *x, const void *y)
{
	uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

	return a < b ? -1 : a > b;
}

/* Adds the ends of all packet slices, or, without p->ends, counts them into nends_of. */
static bool each_end(struct play *p)
{
	memset(p->nends_of, 0, p->plan->nranks * sizeof(*p->nends_of));
	for (uint32_t n = 0; n < p->nactors; n++) {
		const struct actor *a = &p->actors[n];

		for (uint32_t pc = 0; pc < a->block->nops; pc++) {
			const struct shunt_plan_op *op = &a->block->ops[pc];

			for (uint32_t i = 0; i < op->nsrc + op->ndst; i++) {
				const struct shunt_plan_slice *s = i < op->nsrc ? &op->src[i] : &op->dst[i - op->nsrc];
				const uint32_t *ranks;
				uint32_t nranks;
				uint64_t low, high;

				if (!s->packet)
					continue;
				nranks = slice_ranks(p, a->rank, s, &ranks);
				if (!spend(p, nranks))
					return false;
				slice_units(p, op, s, &low, &high);
				for (uint32_t m = 0; m < nranks; m++) {
					size_t *have = &p->nends_of[ranks[m]], at;

					if (p->ends) {
						at = p->base[SEGMENTS][ranks[m]] - p->nthings + *have;
						p->ends[at] = low;
						p->ends[at + 1] = high;
					}
					*have += 2;
				}
			}
		}
	}
	return true;
}

static int make_segments(struct play *p)
{
	size_t at = 0;

	free(p->ends);
	free(p->valid);
	free(p->waiting);
	p->ends = NULL;
	p->valid = NULL;
	p->waiting = NULL;
	if (!each_end(p))
		return 0;
	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		p->base[SEGMENTS][r] = p->nthings + at;
		at += p->nends_of[r];
	}
	p->nends = at;
	p->ends = calloc(at ? at : 1, sizeof(*p->ends));
	p->valid = calloc(at ? at : 1, sizeof(*p->valid));
	p->waiting = calloc(p->nthings + at ? p->nthings + at : 1, sizeof(*p->waiting));
	if (shunt_plan_no_memory(p->log, p->ends) || shunt_plan_no_memory(p->log, p->valid) ||
	    shunt_plan_no_memory(p->log, p->waiting))
		return -ENOMEM;
	if (!each_end(p))
		return 0;
	for (size_t i = 0; i < at; i++)
		p->valid[i] = i;
	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		uint64_t *ends = p->ends + p->base[SEGMENTS][r] - p->nthings;
		size_t n = 0;

		qsort(ends, p->nends_of[r], sizeof(*ends), by_unit);
		for (size_t i = 0; i < p->nends_of[r]; i++)
			if (!n || ends[n - 1] != ends[i])
				ends[n++] = ends[i];
		p->nends_of[r] = n;
	}
	return 0;
}

/* One launch with chunks of this size. */
static int play(struct play *p, uint64_t chunk_units)
{
	int err;

	p->chunk_units = chunk_units;
	p->overrun = false;
	err = make_segments(p);
	if (err || p->overrun)
		return err;
	memset(p->taken, 0, p->nthings * sizeof(*p->taken));
	memset(p->count, 0, p->nthings * sizeof(*p->count));
	memset(p->waiting, 0xff, (p->nthings + p->nends) * sizeof(*p->waiting));
	for (uint32_t r = 0; r < p->plan->nranks; r++)
		for (uint32_t i = 0; i < p->plan->gpus[r].nsemaphores; i++)
			p->count[thing_of(p, SEMAPHORES, r, i)] = p->plan->gpus[r].semaphores[i];
	p->nready = 0;
	for (uint32_t i = p->nactors; i-- > 0;) {
		struct actor *a = &p->actors[i];

		a->pc = a->got = 0;
		a->pipeline = NIL;
		a->thing = SIZE_MAX;
		p->ready[p->nready++] = i;
	}
	while (p->nready && !p->overrun) {
		struct actor *a = &p->actors[p->ready[--p->nready]];

		a->thing = SIZE_MAX;
		run_actor(p, a);
	}
	if (p->overrun)
		return 0;
	for (uint32_t i = 0; i < p->nactors; i++)
		if (p->actors[i].pc < p->actors[i].block->nops)
			return report_stuck(p);
	return check_balance(p);
}

static int prepare(struct play *p)
{
	const struct shunt_plan *plan = p->plan;
	size_t n = 0;

	for (int kind = 0; kind < NTHINGS; kind++) {
		p->base[kind] = calloc(plan->nranks, sizeof(*p->base[kind]));
		if (shunt_plan_no_memory(p->log, p->base[kind]))
			return -ENOMEM;
		for (uint32_t r = 0; kind < SEGMENTS && r < plan->nranks; r++) {
			const struct shunt_plan_gpu *gpu = &plan->gpus[r];
			const uint32_t counts[] = {gpu->nchannels[0], gpu->nchannels[1], gpu->nsemaphores, gpu->nbarriers};

			p->base[kind][r] = n;
			n += counts[kind];
			if (!kind)
				p->nactors += gpu->nblocks;
		}
	}
	p->nthings = n;
	p->count = calloc(n ? n : 1, sizeof(*p->count));
	p->taken = calloc(n ? n : 1, sizeof(*p->taken));
	p->actors = calloc(p->nactors ? p->nactors : 1, sizeof(*p->actors));
	p->ready = calloc(p->nactors ? p->nactors : 1, sizeof(*p->ready));
	p->nends_of = calloc(plan->nranks, sizeof(*p->nends_of));
	if (shunt_plan_no_memory(p->log, p->count) || shunt_plan_no_memory(p->log, p->taken) ||
	    shunt_plan_no_memory(p->log, p->actors) || shunt_plan_no_memory(p->log, p->ready) ||
	    shunt_plan_no_memory(p->log, p->nends_of))
		return -ENOMEM;
	n = 0;
	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++)
			p->actors[n++] = (struct actor){.block = &plan->gpus[r].blocks[b], .rank = r, .number = b};
	return 0;
}

static void add_size(const struct shunt_plan *plan, uint64_t *sizes, unsigned *n_p, uint64_t units)
{
	uint64_t low = shunt_plan_chunk_units(plan, plan->min_bytes), high = shunt_plan_chunk_units(plan, plan->max_bytes);
	uint64_t fits = ((uint64_t)1 << 62) / (plan->scratch_chunks + 1);

	units = units < low ? low : units;
	units = units > high ? high : units;
	units = units > fits ? fits : units;
	units = units ? units : 1;
	for (unsigned i = 0; i < *n_p; i++)
		if (sizes[i] == units)
			return;
	if (*n_p < MAX_SIZES)
		sizes[(*n_p)++] = units;
}

/* Units of a chunk: one, some that groups do not divide evenly, and such that pipelines run twice and three times. */
static unsigned choose_sizes(const struct play *p, uint64_t sizes[MAX_SIZES])
{
	const struct shunt_plan_op *last = NULL;
	unsigned n = 0;

	add_size(p->plan, sizes, &n, 1);
	add_size(p->plan, sizes, &n, 7);
	add_size(p->plan, sizes, &n, 64);
	for (uint32_t i = 0; i < p->nactors && n < MAX_SIZES; i++)
		for (uint32_t pc = 0; pc < p->actors[i].block->nops && n < MAX_SIZES; pc++) {
			const struct shunt_plan_op *op = &p->actors[i].block->ops[pc];

			if (op->code != SHUNT_PLAN_PIPELINE ||
			    (last && last->unit_size == op->unit_size && last->num_chunks == op->num_chunks))
				continue;
			last = op;
			for (uint64_t windows = 1; windows <= 2; windows++)
				add_size(p->plan, sizes, &n, op->unit_size / p->plan->alignment * windows / op->num_chunks + 1);
		}
	return n;
}

int shunt_plan_check_run(struct shunt_plan_log *log, const struct shunt_plan *plan)
{
	struct play p = {.log = log, .plan = plan, .steps = MAX_STEPS};
	uint64_t sizes[MAX_SIZES];
	unsigned n;
	int err = prepare(&p);

	n = err ? 0 : choose_sizes(&p, sizes);
	for (unsigned i = 0; !err && i < n; i++) {
		/* Each size may use half of what is left, so that a long one does not hide the next. */
		uint64_t rest = p.steps / 2;

		p.steps -= rest;
		err = play(&p, sizes[i]);
		p.steps += rest;
		/* The smallest must be played; that a larger one takes very long is no fault. */
		if (!err && p.overrun && !i)
			err = shunt_plan_fail(log, EINVAL,
			    "the smallest message takes more than %" PRIu64
			    " steps, expected fewer: is a pipeline's unit_size too small?",
			    MAX_STEPS / 2);
	}
	for (int kind = 0; kind < NTHINGS; kind++)
		free(p.base[kind]);
	free(p.actors);
	free(p.ready);
	free(p.count);
	free(p.taken);
	free(p.waiting);
	free(p.nends_of);
	free(p.ends);
	free(p.valid);
	return err;
}
