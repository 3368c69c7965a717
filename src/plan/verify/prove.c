/* SPDX-License-Identifier: MIT */
/*
 * Proves a plan at a few sizes. Blocks do the same at every size but for where the parts of a group begin and how often
 * a pipeline runs: sizes are such that parts are equal, unequal and empty, and that pipelines run once to three times,
 * the last window full or not. Cells are as large as divides all slices.
 */
#include <errno.h>
#include <inttypes.h>
#include "plan/format/op_rows.h"
#include "plan/verify/prove.h"
#include "plan/verify/size_list.h"

#define MAX_STEPS ((uint64_t)12000000)
#define MAX_SIZES 12

static struct size_list choose_sizes(const struct simulation *sim)
{
	uint64_t high = shunt_plan_chunk_units(sim->plan, sim->plan->max_bytes);
	struct size_list sizes = { .most = MAX_SIZES, .high = high ? high : UINT64_MAX };
	uint64_t parts = 1, window = 0, chunks = 1;

	for (uint32_t i = 0; i < sim->nstates; i++)
		for (uint32_t pc = 0; pc < sim->states[i].block->nops; pc++) {
			const struct shunt_plan_op *op = &sim->states[i].block->ops[pc];

			parts = op->parts > parts ? op->parts : parts;
			if (!shunt_plan_op_does(op, SHUNT_PLAN_REPEATS))
				continue;
			window = op->unit_size / sim->plan->alignment;
			chunks = op->num_chunks;
		}
	if (window && window / chunks) {
		size_list_add(&sizes, window / chunks);
		size_list_add(&sizes, 3 * (window / chunks));
		size_list_add(&sizes, 2 * (window / chunks) + parts);
	}
	size_list_add(&sizes, 1);
	if (parts > 1) {
		size_list_add(&sizes, parts);
		size_list_add(&sizes, parts + 1);
		size_list_add(&sizes, 2);
		size_list_add(&sizes, 3);
		size_list_add(&sizes, 2 * parts + 1);
	}
	return sizes;
}

/* True if ranks reach each other's input or output: then they enter a launch together. */
static bool is_staged(const struct shunt_plan *plan)
{
	for (uint32_t r = 0; r < plan->nranks; r++)
		if ((plan->gpus[r].peers_read | plan->gpus[r].peers_write) &
		    (1u << SHUNT_PLAN_INPUT | 1u << SHUNT_PLAN_OUTPUT))
			return true;
	return false;
}

static void find_ends(struct proof *p)
{
	uint32_t n = p->sim->nstates;

	p->ends = shunt_proof_alloc(p, p->plan->nranks, sizeof(uint32_t *));
	for (uint32_t r = 0; r < p->plan->nranks && !p->failed; r++) {
		uint32_t *end = shunt_proof_alloc(p, p->nclocks, sizeof(*end));

		p->ends[r] = end;
		for (uint32_t b = 0; b < n && end; b++) {
			if (p->sim->states[b].rank != r)
				continue;
			for (uint32_t i = 0; i < p->nclocks; i++) {
				end[i] = end[i] < p->blocks[b].clock[i] ? p->blocks[b].clock[i] : end[i];
				end[i] = end[i] < p->blocks[b].pending[i] ? p->blocks[b].pending[i] : end[i];
			}
			end[b] = p->blocks[b].epoch;
		}
	}
}

static bool has_failed(const void *follower)
{
	return ((const struct proof *)follower)->failed;
}

static const struct simulation_watch watch = {
	.release = shunt_proof_release,
	.acquire = shunt_proof_acquire,
	.arrive = shunt_proof_arrive,
	.synchronize = shunt_proof_synchronize,
	.data = shunt_proof_data,
	.sync = shunt_proof_sync,
	.failed = has_failed,
};

static int launch(struct proof *p, uint64_t units, bool counting)
{
	int err;

	p->counting = counting;
	p->sim->watch = &watch;
	p->sim->follower = p;
	err = shunt_simulation_launch(p->sim, units);
	p->sim->watch = NULL;
	if (p->failed)
		err = -p->sim->log->json.err;
	return err;
}

/* Why a size that failed is not wrong. */
struct doubt {
	bool undecided; /* an order may be there that the proof does not see */
	bool by_ports;  /* it may be right where ports are stores */
};

/* One size: a pass that counts, and one that proves. */
static int prove_size(struct simulation *sim, uint64_t units, bool one_host, char *unread, struct doubt *doubt_p)
{
	struct proof p = {
		.sim = sim, .plan = sim->plan, .staged = is_staged(sim->plan), .one_host = one_host, .unread = unread
	};
	int err = shunt_proof_order_init(&p);

	p.unit = units;
	if (!err)
		err = launch(&p, units, true);
	p.chunk = units / p.unit;
	if (!err && !sim->overrun)
		err = shunt_proof_data_init(&p);
	if (err || sim->overrun)
		goto out;
	for (size_t i = 0; i < sim->nresources; i++)
		for (struct proof_user *u = p.consumers[i]; u; u = u->next)
			u->count = 0;
	shunt_proof_name_inputs(&p);
	if (!p.failed)
		err = launch(&p, units, false);
	if (!err && !p.failed && !sim->overrun) {
		find_ends(&p);
		if (!p.failed)
			err = shunt_proof_check_end(&p);
	}
	if (p.failed)
		err = -sim->log->json.err;
	*doubt_p = (struct doubt){ .undecided = p.failed && p.undecided, .by_ports = p.failed && p.nputs };
out:
	shunt_arena_finish(&p.arena);
	return err;
}

/* Keeps the log's error as what the plan is doubted for. */
static int forget_error(struct shunt_plan_log *log, struct shunt_plan *plan)
{
	log->json.err = 0;
	log->at =
	    (struct shunt_plan_location){ SHUNT_PLAN_NIL, SHUNT_PLAN_NIL, SHUNT_PLAN_NIL, SHUNT_PLAN_NIL, NULL, NULL };
	if (!log->json.bytes)
		return 0;
	plan->doubt = shunt_arena_strdup(&((struct shunt_plan_owned *)plan)->arena, log->json.reason);
	*log->json.reason = '\0';
	return shunt_plan_no_memory(log, plan->doubt) ? -ENOMEM : 0;
}

static int keep_unread(struct shunt_plan_log *log, struct shunt_plan *plan, const char *unread)
{
	char text[PROOF_TEXT + 260];

	snprintf(text, sizeof(text), "%.255s: %s", plan->source, unread);
	plan->unread = shunt_arena_strdup(&((struct shunt_plan_owned *)plan)->arena, text);
	return shunt_plan_no_memory(log, plan->unread) ? -ENOMEM : 0;
}

int shunt_plan_prove(struct shunt_plan *plan, char *reason, size_t bytes)
{
	char text[1024], unread[PROOF_TEXT] = "";
	struct shunt_plan_log log =
	    shunt_plan_log_init(plan->source, reason ? reason : text, reason ? bytes : sizeof(text));
	struct simulation sim;
	struct size_list sizes = { .n = 0 };
	uint64_t steps = MAX_STEPS;
	bool one_host = false;
	int err = 0;

	plan->status = SHUNT_PLAN_UNDECIDED;
	if (plan->nranks > 64)
		return 0;
	err = shunt_simulation_init(&sim, &log, plan);
	if (!err)
		sizes = choose_sizes(&sim);
	plan->status = SHUNT_PLAN_PROVED;
	for (unsigned i = 0; !err && i < sizes.n; i++) {
		uint64_t rest = steps - steps / (sizes.n - i);
		struct doubt doubt = { 0 };

		sim.steps = steps - rest;
		sim.overrun = false;
		err = prove_size(&sim, sizes.units[i], one_host, unread, &doubt);
		steps = sim.steps + rest;
		if (sim.overrun && !err && !i)
			plan->status = SHUNT_PLAN_UNDECIDED;
		if (err != -EINVAL || (!doubt.undecided && !doubt.by_ports))
			continue;
		plan->status = SHUNT_PLAN_UNDECIDED;
		err = forget_error(&log, plan);
		if (!doubt.by_ports)
			break;
		one_host = true; /* this size again, and the others: what is wrong there, too, is wrong */
		i--;
	}
	shunt_simulation_finish(&sim);
	if (!err && plan->status == SHUNT_PLAN_PROVED && *unread)
		err = keep_unread(&log, plan, unread);
	return err;
}
