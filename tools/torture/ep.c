/* SPDX-License-Identifier: MIT */
/*
 * shunt torture --ep: random calls of expert parallel groups. All ranks choose the same calls from the seed: their
 * sizes, forms, routing and phases, in any order that is allowed; ranks that are masked; eager or in a graph. Two
 * groups have calls under way at a time, on streams of their own. Each rank chooses by itself when it comes late.
 * Everything that comes is compared with the reference.
 */
#include "tools/common/libc.h"
#include "tools/common/ep_call.h"
#include "tools/torture/torture.h"

enum { GROUPS = 2, ROUNDS = 24, CALLS = 2, MOST_TOKENS = 16, MOST_LOCAL = 6, MOST_TOPK = 8, MOST_HIDDEN = 1024 };

/* Calls of one group: low latency ones, of which two may be under way, or one of normal mode. */
struct op {
	int ncalls;
	struct ep_job job[CALLS];
	struct ep_call call[CALLS];
	uint64_t order; /* of phases */
	int masked;     /* a rank that the others mask, and that masks them; -1: none */
	bool graph;
};

struct ep_torture {
	const struct torture_opts *o;
	int rank, nranks, err;
	struct ranks *ranks;
	struct ranks_progress *progress;
	struct tool_lib lib;
	struct ep_lib ep;
	struct shunt_ep *group[GROUPS];
	void *stream[GROUPS][2];
	struct op op[GROUPS];
	struct torture_random common, own;
	uint64_t seed, ops, checks, wrong, normal, graphs, masks, delays, lives;
	double began_us;
};

static void fail(struct ep_torture *r, const char *what, int err)
{
	char text[400] = "";

	if (!err || r->err)
		return;
	for (int g = 0; g < GROUPS && !*text && r->group[g]; g++)
		r->ep.error(r->group[g], text, sizeof(text));
	tool_error("rank %d: %s: %s; that was in %s", r->rank, what, *text ? text : strerror(-err), r->progress->what);
	r->err = err;
}

static void gather(struct ep_torture *r, const void *mine, size_t bytes, void *all)
{
	int err = ranks_error(r->rank, ranks_allgather(r->ranks, mine, bytes, all));

	r->err = r->err ? r->err : err;
}

/* ---- choice */

static void choose_job(struct ep_torture *r, struct ep_job *j, bool normal, int masked)
{
	static const int hidden[] = { 8, 56, 128, 264, 384, 512, 1024 };
	struct torture_random *c = &r->common;

	*j = (struct ep_job){ .normal = normal,
		.nranks = r->nranks,
		.experts = r->nranks * (1 + (int)torture_random(c, MOST_LOCAL)),
		.topk = 1 + (int)torture_random(c, MOST_TOPK),
		.hidden = hidden[torture_random(c, sizeof(hidden) / sizeof(hidden[0]))],
		.max_tokens = 1 + (int)torture_random(c, MOST_TOKENS),
		.form = (int)torture_random(c, 4),
		.routing = (enum ep_routing)torture_random(c, EP_NROUTINGS),
		.seed = torture_random(c, UINT32_MAX) };
	for (int i = 0; i < r->nranks; i++)
		j->tokens[i] = (int)torture_random(c, (uint32_t)j->max_tokens + 1);
	if (j->hidden % (j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128))
		j->form = SHUNT_EP_AS_IS;
	if (masked >= 0)
		j->masked = r->rank == masked ? ~(UINT64_C(1) << masked) : UINT64_C(1) << masked;
}

static void choose_op(struct ep_torture *r, struct op *op)
{
	bool normal = torture_random(&r->common, 4) == 0;
	bool masks = torture_random(&r->common, 8) == 0 && r->nranks > 1;
	int rank = (int)torture_random(&r->common, (uint32_t)r->nranks);

	*op = (struct op){ .ncalls = normal ? 1 : 1 + (int)torture_random(&r->common, CALLS),
		.masked = masks && !normal ? rank : -1,
		.order =
		    (uint64_t)torture_random(&r->common, UINT32_MAX) << 32 | torture_random(&r->common, UINT32_MAX),
		.graph = torture_random(&r->common, 4) == 0 && !masks };
	for (int i = 0; i < op->ncalls; i++) {
		choose_job(r, &op->job[i], normal, op->masked);
		fail(r, "memory", ep_call_open(&op->call[i], &r->ep, &op->job[i], r->rank));
	}
	snprintf(r->progress->what, sizeof(r->progress->what),
	    "call %llu (%s, %d at a time, %d experts, top %d, rows of %d, form %d, up to %d tokens%s%s) of --seed %llu",
	    (unsigned long long)r->ops, normal ? "normal" : "low latency", op->ncalls, op->job[0].experts,
	    op->job[0].topk, op->job[0].hidden, op->job[0].form, op->job[0].max_tokens, op->graph ? ", in a graph" : "",
	    op->masked >= 0 ? ", with masks" : "", (unsigned long long)r->seed);
	r->ops += (uint64_t)op->ncalls;
	r->normal += normal;
	r->graphs += op->graph;
	r->masks += op->masked >= 0;
}

/* ---- calls */

/* Comes late, or has its device come late. */
static void delay(struct ep_torture *r)
{
	uint32_t how = torture_random(&r->own, 8);

	if (how == 0)
		usleep(torture_random(&r->own, 3000));
	r->delays += how == 0;
}

/*
 * The phases of low latency calls, in an order that follows from the op's number: each call has four, one after the
 * other, of which two may be in one launch. one: all on this stream.
 */
static void run_phases(struct ep_torture *r, struct op *op, int g, void *one)
{
	struct torture_random order = { op->order };
	int at[CALLS] = { 0, op->ncalls < 2 ? 4 : 0 };

	while (at[0] < 4 || at[1] < 4) {
		int i = at[0] == 4 ? 1 : at[1] == 4 ? 0 : (int)torture_random(&order, 2);
		bool both = at[i] % 2 == 0 && torture_random(&order, 2);
		void *stream = r->stream[g][torture_random(&order, 2)];
		struct ep_call *c = &op->call[i];

		ep_call_place(c, one ? one : stream, (int)torture_random(&order, 4));
		c->dispatch.phases = c->combine.phases = both ? SHUNT_EP_SEND | SHUNT_EP_RECEIVE :
		    at[i] % 2                                 ? SHUNT_EP_RECEIVE :
		                                                SHUNT_EP_SEND;
		delay(r);
		fail(r, "a call", ep_call_run(c, r->group[g], at[i] < 2 ? EP_DISPATCHES : EP_COMBINES));
		at[i] += both ? 2 : 1;
	}
}

static void run_calls(struct ep_torture *r, struct op *op, int g, void *one)
{
	if (!op->job[0].normal) {
		run_phases(r, op, g, one);
		return;
	}
	ep_call_place(&op->call[0], one ? one : r->stream[g][0], (int)(op->order % 4));
	for (int part = EP_LAYOUT; part < EP_NPARTS && !r->err; part++) {
		delay(r);
		fail(r, "a call", ep_call_run(&op->call[0], r->group[g], part));
	}
}

static void set_masks(struct ep_torture *r, const struct op *op, int g)
{
	for (int p = 0; p < r->nranks && op->masked >= 0; p++)
		if (op->job[0].masked >> p & 1)
			fail(r, "a mask", r->ep.mask(r->group[g], p, 1, r->stream[g][0]));
}

static void wait_for(struct ep_torture *r, int g)
{
	for (int s = 0; s < 2 && !r->err; s++)
		fail(r, "waiting for calls", r->lib.stream_synchronize(r->stream[g][s]));
	if (!r->err && r->group[g])
		fail(r, "the group", r->ep.error(r->group[g], NULL, 0));
}

static void start_op(struct ep_torture *r, struct op *op, int g)
{
	void *stream = r->stream[g][0], *graph = NULL;

	for (int i = 0; i < op->ncalls && !r->err; i++)
		fail(r, "poison", ep_call_poison(&op->call[i], stream));
	wait_for(r, g); /* other streams come after it */
	set_masks(r, op, g);
	if (!op->graph) {
		run_calls(r, op, g, op->masked >= 0 ? stream : NULL);
		return;
	}
	fail(r, "a capture", r->lib.capture_begin(stream));
	run_calls(r, op, g, stream);
	if (!r->err)
		fail(r, "a capture", r->lib.capture_end(stream, &graph));
	for (uint64_t i = 0; i < 1 + op->order % 3 && !r->err; i++)
		fail(r, "a graph", r->lib.graph_launch(graph, stream));
	wait_for(r, g);
	if (graph && !r->err)
		fail(r, "a graph", r->lib.graph_destroy(graph));
}

static void end_op(struct ep_torture *r, struct op *op, int g)
{
	char text[128] = "";
	uint64_t wrong;

	wait_for(r, g);
	for (int i = 0; i < op->ncalls; i++) {
		for (int part = EP_DISPATCHES; part < EP_NPARTS && !r->err; part++) {
			fail(r, "copying results", ep_call_check(&op->call[i], part, &wrong, text, sizeof(text)));
			r->checks++;
			r->wrong += wrong > 0;
			if (wrong && r->wrong < 10)
				tool_error("rank %d: %s: %s; again: shunt torture --ep -n %d%s --seed %llu --ops %llu",
				    r->rank, r->progress->what, text, r->nranks,
				    r->o->ranks.threads ? " --threads" : "", (unsigned long long)r->seed,
				    (unsigned long long)r->ops);
		}
		ep_call_close(&op->call[i]);
	}
	if (op->masked >= 0 && !r->err) {
		fail(r, "masks", r->ep.masks_clear(r->group[g], r->stream[g][0]));
		fail(r, "a barrier", r->ep.barrier(r->group[g], r->stream[g][0]));
	}
}

/* ---- groups */

static void make_groups(struct ep_torture *r)
{
	struct ep_job most = {
		.normal = true, .nranks = r->nranks, .topk = MOST_TOPK, .hidden = MOST_HIDDEN, .max_tokens = MOST_TOKENS
	};
	struct shunt_ep_config config = { .size = sizeof(config),
		.nranks = r->nranks,
		.rank = r->rank,
		.device = -1,
		.flags = SHUNT_EP_MASKS,
		.topk = MOST_TOPK };
	char id[SHUNT_EP_ID_BYTES], ids[EP_CALL_RANKS][SHUNT_EP_ID_BYTES];

	config.normal_bytes = ep_job_bytes(&r->ep, &most, 4);
	most.normal = false;
	config.ll_bytes = ep_job_bytes(&r->ep, &most, 0);
	for (int g = 0; g < GROUPS && !r->err; g++) {
		memset(id, 0, sizeof(id));
		fail(r, "an id", r->rank ? 0 : r->ep.id(id));
		gather(r, id, sizeof(id), ids);
		config.id = ids[0];
		if (!r->err)
			fail(r, "making a group", r->ep.create(&config, &r->group[g]));
	}
}

static void run_life(struct ep_torture *r)
{
	bool ends = false, all[EP_CALL_RANKS] = { false };

	ranks_progress_set(r->progress, RANKS_INIT, 0, -1);
	make_groups(r);
	for (int round = 0; round < ROUNDS && !r->err && !ends; round++) {
		ranks_progress_set(r->progress, RANKS_CHECK, 0, -1);
		for (int g = 0; g < GROUPS && !r->err; g++) {
			choose_op(r, &r->op[g]);
			if (!r->err)
				start_op(r, &r->op[g], g);
		}
		for (int g = 0; g < GROUPS && !r->err; g++)
			end_op(r, &r->op[g], g);
		ends = r->o->ops ? r->ops >= r->o->ops :
		                   ranks_now_us() - r->began_us > (r->o->minutes > 0 ? r->o->minutes : 1) * 60e6;
		if (!r->err)
			gather(r, &ends, sizeof(ends), all);
		ends = all[0];
	}
	for (int g = 0; g < GROUPS; g++) {
		bool aborts = r->err || torture_random(&r->own, 2);
		int err;

		if (aborts)
			wait_for(r, g); /* peers may wait in the last barrier, to which an aborted rank does not come */
		err = r->group[g] ? r->ep.destroy(r->group[g], aborts) : 0;
		r->group[g] = NULL;
		fail(r, "ending a group", err);
	}
	r->lives++;
	if (ends)
		r->lives |= 1ull << 63; /* the last one */
}

static void open_rank(struct ep_torture *r, const struct ranks_slot *slot)
{
	uint64_t seed = r->o->seed ? r->o->seed : conform_hash_mix((uint64_t)ranks_now_us()) % 1000000000 + 1,
	         seeds[EP_CALL_RANKS];

	r->err = ranks_join(slot->shared, r->o->ranks.worker_fd, r->rank, r->o->ranks.timeout_s + 10, &r->ranks);
	if (!r->err)
		gather(r, &seed, sizeof(seed), seeds);
	if (!r->err)
		r->err = tool_lib_open(&r->lib);
	if (!r->err)
		r->err = ep_lib_open(&r->ep, &r->lib);
	if (r->err)
		return;
	r->seed = r->common.state = seeds[0];
	r->own.state = conform_hash_mix(r->seed) + (uint64_t)r->rank;
	fail(r, "the device", r->lib.device_set(slot->device));
	for (int i = 0; i < GROUPS * 2 && !r->err; i++)
		fail(r, "a stream", r->lib.stream_create(&r->stream[i / 2][i % 2]));
	if (!r->rank && !r->err) {
		printf("# shunt torture %s: expert parallel, %d %s on %s, %s, seed %llu\n", r->lib.version(), r->nranks,
		    r->o->ranks.threads ? "threads" : "processes", slot->shared->launch.kind, r->lib.path,
		    (unsigned long long)r->seed);
		fflush(stdout);
	}
}

int torture_ep_rank(const void *arg, const struct ranks_slot *slot)
{
	struct ep_torture *r = calloc(1, sizeof(*r));
	uint64_t mine[2] = { 0 }, all[EP_CALL_RANKS][2] = { 0 };
	int status = TOOL_FAIL;

	if (!r) {
		ranks_abort(NULL, slot->shared);
		return TOOL_FAIL;
	}
	r->o = arg;
	r->rank = slot->rank;
	r->nranks = slot->shared->launch.nranks;
	r->progress = slot->progress;
	r->began_us = ranks_now_us();
	open_rank(r, slot);
	while (!r->err && !(r->lives >> 63))
		run_life(r);
	mine[0] = r->checks;
	mine[1] = r->wrong;
	if (!r->err)
		gather(r, mine, sizeof(mine), all);
	for (int i = 1; i < r->nranks; i++) {
		all[0][0] += all[i][0];
		all[0][1] += all[i][1];
	}
	if (!r->err && !r->rank)
		printf(
		    "# %llu calls of normal mode, %llu graphs, %llu with masks, %llu delays, %llu lives of %d groups\n"
		    "%llu ops, %llu results checked, wrong values in %llu, %.1f s, seed %llu\n",
		    (unsigned long long)r->normal, (unsigned long long)r->graphs, (unsigned long long)r->masks,
		    (unsigned long long)r->delays, (unsigned long long)(r->lives & ~(1ull << 63)), GROUPS,
		    (unsigned long long)r->ops, (unsigned long long)all[0][0], (unsigned long long)all[0][1],
		    (ranks_now_us() - r->began_us) / 1e6, (unsigned long long)r->seed);
	if (r->err)
		ranks_abort(r->ranks, slot->shared);
	else
		status = all[0][1] ? TOOL_FAIL : TOOL_OK;
	for (int i = 0; i < GROUPS * 2 && !r->err; i++)
		r->lib.stream_destroy(r->stream[i / 2][i % 2]);
	ranks_progress_set(r->progress, RANKS_DONE, -1, -1);
	ranks_leave(r->ranks);
	free(r);
	return status;
}
