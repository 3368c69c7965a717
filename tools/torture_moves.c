/* SPDX-License-Identifier: MIT */
/* Moves of a torture run, eager and in graphs: drawn, launched, and checked when some have come together. */
#include <string.h>
#include <unistd.h>
#include "torture_rank.h"

enum { MAX_LAUNCHES = 4 }; /* of a graph at once */

static void move_note(struct torture_rank *r, const char *how, const struct torture_slot *s)
{
	char text[256];

	torture_move_describe(&s->move, text, sizeof(text));
	snprintf(r->progress->what, sizeof(r->progress->what), "move %llu (%s%s) of --seed %llu",
	    (unsigned long long)s->number, how, text, (unsigned long long)r->seed);
	torture_note(r, BENCH_CHECK);
}

/* ---- checks ---- */

static void slot_check(struct torture_rank *r, const struct torture_slot *s)
{
	char text[400] = "", move[256];
	uint64_t checked;
	int64_t wrong = torture_slot_check(&r->bench, s, &r->own, &checked, text, sizeof(text));

	r->tally.checks += s->share.n > 0;
	r->tally.elements += checked;
	if (wrong < 0) {
		torture_device_error(r, "copying a result back", (int)wrong);
	} else if (wrong) {
		torture_move_describe(&s->move, move, sizeof(move));
		if (r->tally.wrong < 10)
			tool_error("rank %d: move %llu (%s): %s; again: shunt torture -n %d%s%s%s --lib %s --max %llu "
			           "--seed %llu --ops %llu",
			    r->rank, (unsigned long long)s->number, move, text, r->nranks,
			    r->o->base.threads ? " --threads" : "", r->o->base.device ? " --device " : "",
			    r->o->base.device ? r->o->base.device : "", r->o->base.libs[0],
			    (unsigned long long)r->max_bytes, (unsigned long long)r->seed,
			    (unsigned long long)r->tally.moves);
		r->tally.wrong++;
	}
}

void torture_check_all(struct torture_rank *r)
{
	torture_note(r, BENCH_CHECK);
	for (int i = 0; i < TORTURE_STREAMS && !r->err; i++)
		torture_device_error(r, "waiting for the calls", r->lib.stream_synchronize(r->streams[i]));
	for (int i = 0; i < r->nslots && !r->err; i++)
		slot_check(r, &r->slots[i]);
	for (int g = 0; g < TORTURE_GRAPHS; g++)
		for (int i = 0; r->launched >> g & 1 && i < r->graphs[g].nmoves && !r->err; i++)
			slot_check(r, &r->graphs[g].slots[i]);
	r->nslots = 0;
	r->launched = 0;
}

/* ---- moves ---- */

struct limits {
	unsigned comms, kinds; /* bit sets */
};

/*
 * The moves of a group are all on one communicator or on several. NCCL launches a group's communicators in the order of
 * their first calls, and that must be the same on all ranks: with it every member then has a call of each move.
 */
static struct limits limits_draw(struct torture_rank *r, bool grouped)
{
	struct limits l = { r->comms, r->kinds };

	if (!grouped)
		return l;
	if (torture_random(&r->common, 2)) {
		l.comms = 1u << torture_move_draw(&r->common, r->comms, r->kinds, 0, 1).comm;
		return l;
	}
	for (int i = 0; !r->any_order && i < torture_nkinds(); i++)
		if (!torture_kind_is_for_all(i))
			l.kinds &= ~(1u << i);
	return l;
}

/* The move is laid out and comes next. */
static void slot_begin(struct torture_rank *r, struct torture_slot *s, const char *how)
{
	s->number = ++r->tally.moves;
	r->tally.kinds[s->move.kind]++;
	move_note(r, how, s);
	torture_device_error(r, "writing inputs", torture_slot_fill(&r->bench, s));
}

static void slot_draw(struct torture_rank *r, struct torture_slot *s, struct limits l)
{
	struct torture_move m = torture_move_draw(&r->common, l.comms, l.kinds, r->configured, r->max_bytes);

	torture_slot_place(s, &m, r->rank, r->nranks, &r->own);
	slot_begin(r, s, "");
}

/* Plainly, or with limits on its blocks. */
static ncclResult_t call(
    const struct torture_rank *r, const struct torture_move *m, const struct bench_coll *coll, struct bench_args a)
{
	ncclCollConfig_t config = *conform_config(CONFORM_CONFIG_UNSET);
	ncclResult_t result;

	if (!m->min_ctas && !m->max_ctas)
		return coll->call(&r->nccl, &a);
	if (m->min_ctas)
		config.minCTAs = m->min_ctas;
	if (m->max_ctas)
		config.maxCTAs = m->max_ctas;
	a.config = &config;
	result = coll->configured(&r->nccl, &a);
	memset(&config, 0xff, sizeof(config)); /* also in a group it may go */
	return result;
}

static ncclResult_t part_issue(
    struct torture_rank *r, const struct torture_slot *s, const struct torture_part *p, void *stream)
{
	const struct bench_coll *coll = &bench_colls[p->coll];
	struct bench_args a = { .send = torture_slot_send(s, p),
		.recv = torture_slot_recv(s, p),
		.count = p->count,
		.dtype = (ncclDataType_t)s->move.dtype,
		.redop = (ncclRedOp_t)s->move.redop,
		.root = p->root,
		.rank = s->share.me,
		.nranks = s->share.n,
		.comm = r->comm[s->move.comm],
		.stream = stream };
	bool made = coll->reduces && s->move.redop == SHUNT_PREMUL;
	ncclResult_t result, end;
	uint64_t scalar;

	if (!made)
		return call(r, &s->move, coll, a);
	bench_data_scalar(torture_data(&r->data, &s->move, s->share.n), s->share.me, &scalar);
	result = r->nccl.RedOpCreatePreMulSum(&a.redop, s->move.device_scalar ? torture_slot_scalar(s) : &scalar,
	    a.dtype, s->move.device_scalar ? ncclScalarDevice : ncclScalarHostImmediate, a.comm);
	if (result)
		return result;
	result = call(r, &s->move, coll, a);
	end = r->nccl.RedOpDestroy(a.redop, a.comm); /* at once, as torch does */
	return result ? result : end;
}

static void slot_error(struct torture_rank *r, const struct torture_slot *s, const char *call, ncclResult_t result)
{
	if (!(r->doomed >> s->move.comm & 1))
		torture_nccl_error(r, call, result);
}

static void slot_issue(struct torture_rank *r, const struct torture_slot *s, void *stream)
{
	bool group = s->share.nparts > 1;

	move_note(r, "", s);
	if (group && !r->err)
		torture_nccl_error(r, "ncclGroupStart", r->nccl.GroupStart());
	for (int i = 0; i < s->share.nparts && !r->err; i++)
		slot_error(r, s, torture_kind_name(s->move.kind), part_issue(r, s, &s->share.parts[i], stream));
	if (group && !r->err)
		slot_error(r, s, "ncclGroupEnd", r->nccl.GroupEnd());
}

/* The next of a group's moves that are left: the first on a communicator of this rank's choice. */
static int next_draw(struct torture_rank *r, const struct torture_slot *slots, unsigned left)
{
	int next = (int)torture_random_bit(&r->own, left);

	for (int i = 0; i < next; i++)
		if (left >> i & 1 && slots[i].move.comm == slots[next].move.comm)
			return i;
	return next;
}

/* Moves one after another, or as a group. stream NULL: each has its own. */
static void slots_issue(struct torture_rank *r, const struct torture_slot *slots, int n, bool grouped, void *stream)
{
	unsigned left = (1u << n) - 1;

	if (grouped && !r->err)
		torture_nccl_error(r, "ncclGroupStart", r->nccl.GroupStart());
	while (left && !r->err) {
		int i = grouped && r->any_order ? next_draw(r, slots, left) : __builtin_ctz(left);

		slot_issue(r, &slots[i], stream ? stream : r->streams[slots[i].move.stream]);
		left &= ~(1u << i);
	}
	if (grouped && !r->err)
		torture_nccl_error(r, "ncclGroupEnd", r->nccl.GroupEnd());
}

/* This rank comes late, or its device does. */
static void skew(struct torture_rank *r, unsigned stream)
{
	uint32_t how = torture_random(&r->own, 16);

	if (how < 2)
		usleep(torture_random(&r->own, 3000));
	for (uint32_t i = 0; (how == 2 || how == 3) && i < 1 + how % 3 * 8 && !r->err; i++)
		torture_device_error(
		    r, "a delay", r->lib.memset_async(r->delays[stream], 0, r->delay_bytes, r->streams[stream]));
	r->tally.delays += how < 4;
}

void torture_eager_round(struct torture_rank *r)
{
	int n = torture_random(&r->common, 5) < 3 ? 1 : 2 + (int)torture_random(&r->common, TORTURE_GROUP - 1);
	bool grouped = torture_random(&r->common, 3) > 0 && n > 1;
	struct limits limits = limits_draw(r, grouped);
	struct torture_slot *slots;

	if (r->nslots + n > TORTURE_SLOTS)
		torture_check_all(r);
	slots = &r->slots[r->nslots];
	for (int i = 0; i < n && !r->err; i++)
		slot_draw(r, &slots[i], limits);
	r->nslots += n;
	r->tally.groups += grouped;
	skew(r, slots[0].move.stream);
	slots_issue(r, slots, n, grouped, NULL);
}

void torture_doomed_round(struct torture_rank *r, enum conform_comm comm)
{
	int n = 1 + (int)torture_random(&r->common, TORTURE_GROUP);

	for (int i = 0; i < n && !r->err; i++) {
		bool doomed = torture_random(&r->common, 3) > 0;
		struct limits limits = { doomed ? 1u << comm : r->comms & ~(1u << comm), r->kinds };
		struct torture_slot *s = &r->slots[r->nslots++];

		slot_draw(r, s, limits);
		skew(r, s->move.stream);
		slot_issue(r, s, r->streams[s->move.stream]);
		if (doomed)
			s->share.n = 0;
	}
}

/* ---- graphs ---- */

static void capture_round(struct torture_rank *r, struct torture_graph *g)
{
	void *stream = r->streams[torture_random(&r->common, TORTURE_STREAMS)];
	struct limits limits;

	/* As programs do, which wait for the device before a capture: src/core/order.h says why. */
	torture_check_all(r);
	g->nmoves = 1 + (int)torture_random(&r->common, TORTURE_GRAPH_MOVES);
	g->grouped = torture_random(&r->common, 2) && g->nmoves > 1;
	g->in_place = false;
	limits = limits_draw(r, g->grouped);
	for (int i = 0; i < g->nmoves && !r->err; i++) {
		slot_draw(r, &g->slots[i], limits);
		g->in_place |= g->slots[i].move.in_place;
	}
	if (r->err)
		return;
	torture_device_error(r, "beginning a capture", r->lib.capture_begin(stream));
	slots_issue(r, g->slots, g->nmoves, g->grouped, stream);
	if (!r->err)
		torture_device_error(r, "ending a capture", r->lib.capture_end(stream, &g->graph));
	r->tally.captures++;
}

/* With new inputs; several times, unless the second launch would have the first one's results for its inputs. */
static void launch_round(struct torture_rank *r, int which)
{
	struct torture_graph *g = &r->graphs[which];
	uint32_t launches = 1 + torture_random(&r->common, MAX_LAUNCHES);

	if (r->launched >> which & 1)
		torture_check_all(r);
	for (int i = 0; i < g->nmoves && !r->err; i++) {
		struct torture_slot *s = &g->slots[i];

		s->move.data = torture_random(&r->common, UINT32_MAX);
		torture_share_make(&s->move, r->rank, r->nranks, &s->share);
		slot_begin(r, s, "in a graph, ");
	}
	for (uint32_t i = 0; i < (g->in_place ? 1 : launches) && !r->err; i++) {
		unsigned stream = torture_random(&r->common, TORTURE_STREAMS);

		skew(r, stream);
		torture_device_error(r, "launching a graph", r->lib.graph_launch(g->graph, r->streams[stream]));
		r->tally.launches++;
	}
	r->launched |= 1u << which;
}

static void graph_drop(struct torture_rank *r, struct torture_graph *g)
{
	if (!g->graph)
		return;
	if (r->launched)
		torture_check_all(r);
	if (!r->err)
		torture_device_error(r, "destroying a graph", r->lib.graph_destroy(g->graph));
	g->graph = NULL;
}

void torture_graphs_drop(struct torture_rank *r)
{
	for (int i = 0; i < TORTURE_GRAPHS; i++)
		graph_drop(r, &r->graphs[i]);
}

void torture_graph_round(struct torture_rank *r, uint32_t what)
{
	int which = (int)torture_random(&r->common, TORTURE_GRAPHS);
	struct torture_graph *g = &r->graphs[which];

	if (!g->graph)
		capture_round(r, g);
	else if (what)
		launch_round(r, which);
	else
		graph_drop(r, g);
}
