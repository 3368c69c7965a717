/* SPDX-License-Identifier: MIT */
/* Operations of a torture run, eager and in graphs: chosen, launched, and checked a few at a time. */
#include <string.h>
#include <unistd.h>
#include "tools/torture/rank.h"

enum { MAX_LAUNCHES = 4 }; /* of a graph in one round */

static void op_progress(struct torture_rank *r, const char *context, const struct torture_slot *s)
{
	char text[256];

	torture_op_describe(&s->op, text, sizeof(text));
	snprintf(r->progress->what, sizeof(r->progress->what), "op %llu (%s%s) of --seed %llu",
	    (unsigned long long)s->number, context, text, (unsigned long long)r->seed);
	torture_rank_progress(r, RANKS_CHECK);
}

/* ---- checks ---- */

static void slot_check(struct torture_rank *r, const struct torture_slot *s)
{
	char text[400] = "", op[256];
	uint64_t checked;
	int64_t wrong = torture_slot_check(&r->env, s, &r->own, &checked, text, sizeof(text));

	r->stats.checks += s->view.n > 0;
	r->stats.elements += checked;
	if (wrong < 0) {
		torture_device_error(r, "copying a result back", (int)wrong);
	} else if (wrong) {
		torture_op_describe(&s->op, op, sizeof(op));
		if (r->stats.wrong < 10)
			tool_error("rank %d: op %llu (%s): %s; again: shunt torture -n %d%s%s%s --lib %s --max %llu "
			           "--seed %llu --ops %llu",
			    r->rank, (unsigned long long)s->number, op, text, r->nranks,
			    r->o->ranks.threads ? " --threads" : "", r->o->ranks.device ? " --device " : "",
			    r->o->ranks.device ? r->o->ranks.device : "", r->o->ranks.libs[0],
			    (unsigned long long)r->max_bytes, (unsigned long long)r->seed,
			    (unsigned long long)r->stats.ops);
		r->stats.wrong++;
	}
}

void torture_comm_check(struct torture_rank *r, enum conform_comm comm)
{
	ncclResult_t async = ncclSuccess;

	if (r->err || !r->comm[comm] || !r->nccl.CommGetAsyncError)
		return;
	torture_nccl_error(r, "ncclCommGetAsyncError", r->nccl.CommGetAsyncError(r->comm[comm], &async));
	torture_nccl_error(r, "ncclCommGetAsyncError's answer", async);
}

/* Calls of a communicator that is broken have no results to look at: it says so itself, once they are over. */
static void comms_check(struct torture_rank *r)
{
	for (unsigned left = r->comms & ~r->dying; left; left &= left - 1)
		torture_comm_check(r, (enum conform_comm)__builtin_ctz(left));
}

void torture_check_all(struct torture_rank *r)
{
	torture_rank_progress(r, RANKS_CHECK);
	for (int i = 0; i < TORTURE_STREAMS && !r->err; i++)
		torture_device_error(r, "waiting for the calls", r->lib.stream_synchronize(r->streams[i]));
	comms_check(r);
	for (int i = 0; i < r->nslots && !r->err; i++)
		slot_check(r, &r->slots[i]);
	for (int g = 0; g < TORTURE_GRAPHS; g++)
		for (int i = 0; r->launched >> g & 1 && i < r->graphs[g].nops && !r->err; i++)
			slot_check(r, &r->graphs[g].slots[i]);
	r->nslots = 0;
	r->launched = 0;
}

/* ---- ops ---- */

struct limits {
	unsigned comms, kinds; /* bit sets */
};

/*
 * Limits for the operations of a group: either all are on one communicator, or all have a call on every member. NCCL
 * launches a group's communicators in the order of their first calls, which must be the same on all ranks.
 */
static struct limits limits_choose(struct torture_rank *r, bool grouped)
{
	struct limits l = { r->comms, r->kinds };

	if (!grouped)
		return l;
	if (torture_random(&r->common, 2)) {
		l.comms = 1u << torture_op_choose(&r->common, r->comms, r->kinds, 0, 1).comm;
		return l;
	}
	for (int i = 0; !r->any_order && i < torture_nkinds(); i++)
		if (!torture_kind_is_for_all(i))
			l.kinds &= ~(1u << i);
	return l;
}

/* Fills the buffers of a slot whose operation is launched next. */
static void slot_prepare(struct torture_rank *r, struct torture_slot *s, const char *context)
{
	s->number = ++r->stats.ops;
	r->stats.kinds[s->op.kind]++;
	op_progress(r, context, s);
	torture_device_error(r, "writing inputs", torture_slot_fill(&r->env, s));
}

static void slot_choose(struct torture_rank *r, struct torture_slot *s, struct limits l)
{
	struct torture_op m = torture_op_choose(&r->common, l.comms, l.kinds, r->configured, r->max_bytes);

	if (torture_op_needs_all(&m))
		r->unmet &= ~(1u << m.comm);
	torture_slot_place(s, &m, r->rank, r->nranks, &r->own);
	slot_prepare(r, s, "");
}

/* Calls the plain function, or the one with limits on blocks. */
static ncclResult_t coll_call(
    const struct torture_rank *r, const struct torture_op *m, const struct bench_coll *coll, struct bench_args a)
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
	memset(&config, 0xff, sizeof(config)); /* the caller may free it even inside a group */
	return result;
}

static ncclResult_t call_enqueue(
    struct torture_rank *r, const struct torture_slot *s, const struct torture_call *p, void *stream)
{
	const struct bench_coll *coll = &bench_colls[p->coll];
	struct bench_args a = { .send = torture_slot_send(s, p),
		.recv = torture_slot_recv(s, p),
		.count = p->count,
		.dtype = (ncclDataType_t)s->op.dtype,
		.redop = (ncclRedOp_t)s->op.redop,
		.root = p->root,
		.rank = s->view.me,
		.nranks = s->view.n,
		.comm = r->comm[s->op.comm],
		.stream = stream };
	bool made = coll->reduces && s->op.redop == SHUNT_PREMUL;
	ncclResult_t result, end;
	uint64_t scalar;

	if (!made)
		return coll_call(r, &s->op, coll, a);
	bench_data_scalar(torture_data(&r->data, &s->op, s->view.n), s->view.me, &scalar);
	result = r->nccl.RedOpCreatePreMulSum(&a.redop, s->op.device_scalar ? torture_slot_scalar(s) : &scalar, a.dtype,
	    s->op.device_scalar ? ncclScalarDevice : ncclScalarHostImmediate, a.comm);
	if (result)
		return result;
	result = coll_call(r, &s->op, coll, a);
	end = r->nccl.RedOpDestroy(a.redop, a.comm); /* at once, as torch does */
	return result ? result : end;
}

static void slot_error(struct torture_rank *r, const struct torture_slot *s, const char *call, ncclResult_t result)
{
	if (!(r->dying >> s->op.comm & 1))
		torture_nccl_error(r, call, result);
}

static void slot_enqueue(struct torture_rank *r, const struct torture_slot *s, void *stream)
{
	bool group = s->view.ncalls > 1;

	op_progress(r, "", s);
	if (group && !r->err)
		torture_nccl_error(r, "ncclGroupStart", r->nccl.GroupStart());
	for (int i = 0; i < s->view.ncalls && !r->err; i++)
		slot_error(r, s, torture_kind_name(s->op.kind), call_enqueue(r, s, &s->view.calls[i], stream));
	if (group && !r->err)
		slot_error(r, s, "ncclGroupEnd", r->nccl.GroupEnd());
}

/* The next of the operations `left` of a group: the first one on a communicator of this rank's choice. */
static int next_choose(struct torture_rank *r, const struct torture_slot *slots, unsigned left)
{
	int next = (int)torture_random_bit(&r->own, left);

	for (int i = 0; i < next; i++)
		if (left >> i & 1 && slots[i].op.comm == slots[next].op.comm)
			return i;
	return next;
}

/* Enqueues operations in sequence or as a group. stream NULL: the operation's own. */
static void slots_enqueue(struct torture_rank *r, const struct torture_slot *slots, int n, bool grouped, void *stream)
{
	unsigned left = (1u << n) - 1;

	if (grouped && !r->err)
		torture_nccl_error(r, "ncclGroupStart", r->nccl.GroupStart());
	while (left && !r->err) {
		int i = grouped && r->any_order ? next_choose(r, slots, left) : __builtin_ctz(left);

		slot_enqueue(r, &slots[i], stream ? stream : r->streams[slots[i].op.stream]);
		left &= ~(1u << i);
	}
	if (grouped && !r->err)
		torture_nccl_error(r, "ncclGroupEnd", r->nccl.GroupEnd());
}

/* Delays this rank or its device. */
static void skew_inject(struct torture_rank *r, unsigned stream)
{
	uint32_t context = torture_random(&r->own, 16);

	if (context < 2)
		usleep(torture_random(&r->own, 3000));
	for (uint32_t i = 0; (context == 2 || context == 3) && i < 1 + context % 3 * 8 && !r->err; i++)
		torture_device_error(
		    r, "a delay", r->lib.memset_async(r->delays[stream], 0, r->delay_bytes, r->streams[stream]));
	r->stats.delays += context < 4;
}

void torture_eager_round(struct torture_rank *r)
{
	int n = torture_random(&r->common, 5) < 3 ? 1 : 2 + (int)torture_random(&r->common, TORTURE_GROUP - 1);
	bool grouped = torture_random(&r->common, 3) > 0 && n > 1;
	struct limits limits = limits_choose(r, grouped);
	struct torture_slot *slots;

	if (r->nslots + n > TORTURE_SLOTS)
		torture_check_all(r);
	slots = &r->slots[r->nslots];
	for (int i = 0; i < n && !r->err; i++)
		slot_choose(r, &slots[i], limits);
	r->nslots += n;
	r->stats.groups += grouped;
	skew_inject(r, slots[0].op.stream);
	slots_enqueue(r, slots, n, grouped, NULL);
}

void torture_dying_round(struct torture_rank *r, enum conform_comm comm)
{
	int n = 1 + (int)torture_random(&r->common, TORTURE_GROUP);

	for (int i = 0; i < n && !r->err; i++) {
		bool dying = torture_random(&r->common, 3) > 0;
		struct limits limits = { dying ? 1u << comm : r->comms & ~(1u << comm), r->kinds };
		struct torture_slot *s = &r->slots[r->nslots++];

		slot_choose(r, s, limits);
		skew_inject(r, s->op.stream);
		slot_enqueue(r, s, r->streams[s->op.stream]);
		if (dying)
			s->view.n = 0;
	}
}

/* ---- graphs ---- */

static void capture_round(struct torture_rank *r, struct torture_graph *g)
{
	void *stream = r->streams[torture_random(&r->common, TORTURE_STREAMS)];
	struct limits limits;

	/* Programs wait for the device before a capture, too; the reason is in src/comm/parts/stream_order.h. */
	torture_check_all(r);
	g->nops = 1 + (int)torture_random(&r->common, TORTURE_GRAPH_OPS);
	g->grouped = torture_random(&r->common, 2) && g->nops > 1;
	g->in_place = false;
	limits = limits_choose(r, g->grouped);
	for (int i = 0; i < g->nops && !r->err; i++) {
		slot_choose(r, &g->slots[i], limits);
		g->in_place |= g->slots[i].op.in_place;
	}
	if (r->err)
		return;
	torture_device_error(r, "beginning a capture", r->lib.capture_begin(stream));
	slots_enqueue(r, g->slots, g->nops, g->grouped, stream);
	if (!r->err)
		torture_device_error(r, "ending a capture", r->lib.capture_end(stream, &g->graph));
	r->stats.captures++;
}

/* Launches a graph with new inputs; once if it is in place, since a second launch would have results for its inputs. */
static void launch_round(struct torture_rank *r, int which)
{
	struct torture_graph *g = &r->graphs[which];
	uint32_t launches = 1 + torture_random(&r->common, MAX_LAUNCHES);

	if (r->launched >> which & 1)
		torture_check_all(r);
	for (int i = 0; i < g->nops && !r->err; i++) {
		struct torture_slot *s = &g->slots[i];

		s->op.data = torture_random(&r->common, UINT32_MAX);
		torture_view_create(&s->op, r->rank, r->nranks, &s->view);
		slot_prepare(r, s, "in a graph, ");
	}
	for (uint32_t i = 0; i < (g->in_place ? 1 : launches) && !r->err; i++) {
		unsigned stream = torture_random(&r->common, TORTURE_STREAMS);

		skew_inject(r, stream);
		torture_device_error(r, "launching a graph", r->lib.graph_launch(g->graph, r->streams[stream]));
		r->stats.launches++;
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
