/* SPDX-License-Identifier: MIT */
/* Patterns of many calls, as real programs make them. A case's count says about how many elements a message has. */
#include <string.h>
#include "conform.h"

#define BIT(x) (1u << (x))
#define COLL(x) BIT(BENCH_COLL_##x)
#define ALL_COLLS                                                                                                                  \
	(COLL(ALL_REDUCE) | COLL(ALL_GATHER) | COLL(REDUCE_SCATTER) | COLL(BROADCAST) | COLL(REDUCE) | COLL(ALLTOALL) |            \
		COLL(GATHER) | COLL(SCATTER) | COLL(BCAST))
enum { MIXED = -1 }; /* misalign: another one on every rank */

/* Elements of message i, j: anything from none to c->count, now and then more. */
static size_t uneven(const struct conform_build *b, const struct conform_case *c, unsigned i, unsigned j)
{
	uint64_t x = conform_random(b, i, j);

	return x % 5 == 0 ? 0 : x % 7 == 0 ? 3 * c->count : (x >> 8) % (c->count + 1);
}

/* Gathering pieces of different sizes: a broadcast from every rank. */
static void build_all_gather_v(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int root = 0; root < b->nranks; root++)
		conform_call(b, BENCH_COLL_BROADCAST, root, uneven(b, c, (unsigned)root, 0));
	conform_group_end(b);
}

static void build_reduce_scatter_v(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int root = 0; root < b->nranks; root++)
		conform_call(b, BENCH_COLL_REDUCE, root, uneven(b, c, (unsigned)root, 0));
	conform_group_end(b);
}

static void build_all_to_all_v(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int peer = 0; peer < b->nranks; peer++) {
		conform_call(b, BENCH_COLL_SEND, peer, uneven(b, c, (unsigned)b->rank, (unsigned)peer));
		conform_call(b, BENCH_COLL_RECV, peer, uneven(b, c, (unsigned)peer, (unsigned)b->rank));
	}
	conform_group_end(b);
}

static void ring(struct conform_build *b, size_t count, int step)
{
	conform_group_start(b);
	conform_call(b, BENCH_COLL_SEND, (b->rank + step) % b->nranks, count);
	conform_call(b, BENCH_COLL_RECV, (b->rank + b->nranks - step) % b->nranks, count);
	conform_group_end(b);
}

static void build_ring(struct conform_build *b, const struct conform_case *c)
{
	for (int step = 1; step < b->nranks; step++)
		ring(b, c->count, step);
	ring(b, c->count, 1);
}

/* Several messages for one peer in one group keep their order. */
static void build_in_order(struct conform_build *b, const struct conform_case *c)
{
	int next = (b->rank + 1) % b->nranks, before = (b->rank + b->nranks - 1) % b->nranks;

	conform_group_start(b);
	for (unsigned i = 0; i < 6; i++)
		conform_call(b, BENCH_COLL_SEND, next, uneven(b, c, (unsigned)b->rank, i));
	for (unsigned i = 0; i < 6; i++)
		conform_call(b, BENCH_COLL_RECV, before, uneven(b, c, (unsigned)before, i));
	conform_group_end(b);
}

static void build_zero_bytes(struct conform_build *b, const struct conform_case *c)
{
	ring(b, 0, 1);
	ring(b, c->count, 1);
	ring(b, 0, 1);
	conform_call(b, BENCH_COLL_ALL_REDUCE, 0, 0);
	conform_call(b, BENCH_COLL_ALL_REDUCE, 0, 1);
}

static void build_self(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (unsigned i = 0; i < 3; i++) {
		conform_call(b, BENCH_COLL_SEND, b->rank, uneven(b, c, i, 1));
		conform_call(b, BENCH_COLL_RECV, b->rank, uneven(b, c, i, 1));
	}
	conform_group_end(b);
}

/* One rank sends, one receives, and no group: a pipeline of stages. */
static void build_pipeline(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned batch = 0; batch < 4; batch++) {
		if (b->rank)
			conform_call(b, BENCH_COLL_RECV, b->rank - 1, c->count + batch);
		if (b->rank + 1 < b->nranks)
			conform_call(b, BENCH_COLL_SEND, b->rank + 1, c->count + batch);
	}
}

/* The root in a group, the others without: how torch's gather and scatter look. */
static void build_star(struct conform_build *b, const struct conform_case *c)
{
	for (int out = 0; out < 2; out++) {
		enum bench_coll_id mine = out ? BENCH_COLL_SEND : BENCH_COLL_RECV, theirs = out ? BENCH_COLL_RECV : BENCH_COLL_SEND;

		if (b->rank) {
			conform_call(b, theirs, 0, c->count);
			continue;
		}
		conform_group_start(b);
		for (int peer = 1; peer < b->nranks; peer++)
			conform_call(b, mine, peer, c->count);
		conform_group_end(b);
	}
}

/* The gradients of many small layers. */
static void build_buckets(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (unsigned i = 0; i < 32; i++) {
		b->dtype = i % 5 == 4 ? SHUNT_F16 : c->dtype;
		conform_call(b, BENCH_COLL_ALL_REDUCE, 0, uneven(b, c, i, 0));
	}
	conform_group_end(b);
}

static void build_mixed(struct conform_build *b, const struct conform_case *c)
{
	static const enum bench_coll_id order[] = {BENCH_COLL_ALL_REDUCE, BENCH_COLL_BROADCAST, BENCH_COLL_ALL_GATHER,
		BENCH_COLL_REDUCE, BENCH_COLL_REDUCE_SCATTER, BENCH_COLL_ALL_REDUCE, BENCH_COLL_ALLTOALL, BENCH_COLL_GATHER,
		BENCH_COLL_SCATTER};

	conform_group_start(b);
	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		conform_call(b, order[i], (int)i % b->nranks, uneven(b, c, i, 0));
		if (i % 3 == 0)
			ring(b, c->count, 1); /* nested */
	}
	conform_group_end(b);
}

static void build_nested(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	conform_call(b, BENCH_COLL_ALL_REDUCE, 0, c->count);
	conform_group_start(b);
	conform_group_start(b);
	conform_group_end(b);
	conform_call(b, BENCH_COLL_ALL_REDUCE, 0, c->count / 2);
	conform_group_end(b);
	conform_call(b, BENCH_COLL_ALL_REDUCE, 0, 1);
	conform_group_end(b);
	conform_group_start(b); /* an empty one */
	conform_group_end(b);
}

/* One size after the other: what a call left behind must not be taken for the next one's. */
static void build_sizes(struct conform_build *b, const struct conform_case *c)
{
	static const unsigned divide[] = { 1, 1000, 100, 1, 10, 10000, 1, 1, 1000 };

	for (unsigned i = 0; i < sizeof(divide) / sizeof(divide[0]); i++)
		conform_call(b, c->coll, (int)i % b->nranks, c->count / divide[i]);
}

/* A slow rank, another one each time; the fast ones must neither run ahead of it nor overwrite what it still reads. */
static void build_skew(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned i = 0; i < 8; i++) {
		if (conform_random(b, i, 0) % (unsigned)b->nranks == (unsigned)b->rank)
			conform_delay(b, 200 + (unsigned)(conform_random(b, i, 1) % 3000));
		conform_call(b, c->coll, 0, c->count);
	}
}

/* Different collectives with one after the other's result still under way. */
static void build_mixed_skew(struct conform_build *b, const struct conform_case *c)
{
	static const enum bench_coll_id order[] = {BENCH_COLL_BROADCAST, BENCH_COLL_BROADCAST, BENCH_COLL_REDUCE,
		BENCH_COLL_ALL_REDUCE, BENCH_COLL_GATHER, BENCH_COLL_SCATTER, BENCH_COLL_ALL_GATHER, BENCH_COLL_REDUCE_SCATTER,
		BENCH_COLL_ALLTOALL};

	for (unsigned i = 0; i < 3 * sizeof(order) / sizeof(order[0]); i++) {
		if (conform_random(b, i, 7) % 4 == (unsigned)b->rank % 4)
			conform_delay(b, (unsigned)(conform_random(b, i, 8) % 2000));
		conform_call(b, order[i % (sizeof(order) / sizeof(order[0]))], (int)(conform_random(b, i, 9) % (unsigned)b->nranks),
			uneven(b, c, i, 0));
	}
}

/* Both halves at work at once, then all ranks, then in the reverse order. */
static void build_comms(struct conform_build *b, const struct conform_case *c)
{
	static const enum conform_comm order[] = {
		CONFORM_HALVES, CONFORM_WORLD, CONFORM_REVERSED, CONFORM_HALVES, CONFORM_HALVES, CONFORM_REVERSED};

	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		b->comm = order[i];
		conform_call(b, c->coll, 0, c->count + i);
	}
}

static void build_comms_group(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	build_comms(b, c);
	conform_group_end(b);
}

static void build_streams(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned i = 0; i < 10; i++) {
		b->stream = i / 2 % 2;
		conform_call(b, c->coll, 0, i % 3 ? c->count : 3);
	}
}

/* Every rank with every other, both ways. */
static void build_pairs(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int peer = 0; peer < b->nranks; peer++) {
		if (peer == b->rank)
			continue;
		conform_call(b, BENCH_COLL_RECV, peer, c->count);
		conform_call(b, BENCH_COLL_SEND, peer, c->count);
	}
	conform_group_end(b);
}

/* To both neighbours and from both, as halos are exchanged; with two ranks these are two messages of one pair. */
static void build_halo(struct conform_build *b, const struct conform_case *c)
{
	int next = (b->rank + 1) % b->nranks, before = (b->rank + b->nranks - 1) % b->nranks;

	conform_group_start(b);
	conform_call(b, BENCH_COLL_SEND, next, c->count);
	conform_call(b, BENCH_COLL_RECV, before, c->count);
	conform_call(b, BENCH_COLL_SEND, before, c->count);
	conform_call(b, BENCH_COLL_RECV, next, c->count);
	conform_group_end(b);
}

/* Every type, so that sizes and alignments of all kinds meet in one group. */
static void build_message_types(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int dtype = 0; dtype < SHUNT_NDTYPES; dtype++) {
		b->dtype = dtype;
		conform_call(b, BENCH_COLL_SEND, (b->rank + 1) % b->nranks, uneven(b, c, (unsigned)dtype, 1));
		conform_call(b, BENCH_COLL_RECV, (b->rank + b->nranks - 1) % b->nranks, uneven(b, c, (unsigned)dtype, 1));
	}
	conform_group_end(b);
}

/* There and back without a group: the other end answers when it has the message. The last of an odd number has no partner. */
static void build_ping_pong(struct conform_build *b, const struct conform_case *c)
{
	int peer = b->rank ^ 1;

	for (unsigned i = 0; i < 4 && peer < b->nranks; i++)
		for (int half = 0; half < 2; half++)
			conform_call(b, (b->rank + half) % 2 ? BENCH_COLL_RECV : BENCH_COLL_SEND, peer,
			    uneven(b, c, i, (unsigned)(peer / 2)));
}

/* The two ends of a pair need not agree about where groups begin and end. */
static void build_grouped_apart(struct conform_build *b, const struct conform_case *c)
{
	int peer = b->rank ^ 1;

	if (peer >= b->nranks)
		return;
	for (unsigned i = 0; i < 6; i++) {
		unsigned each = b->rank % 2 ? 3 : 1; /* messages in a group */

		if (i % each == 0 && each > 1)
			conform_group_start(b);
		conform_call(b, b->rank % 2 ? BENCH_COLL_RECV : BENCH_COLL_SEND, peer, uneven(b, c, i, (unsigned)(peer / 2)));
		if (i % each == each - 1 && each > 1)
			conform_group_end(b);
	}
}

/* Every rank is root of a broadcast and of a reduce, of sizes of their own, in one group. */
static void build_every_root(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int root = 0; root < b->nranks; root++) {
		conform_call(b, BENCH_COLL_BROADCAST, root, uneven(b, c, (unsigned)root, 0));
		conform_call(b, BENCH_COLL_REDUCE, b->nranks - 1 - root, uneven(b, c, (unsigned)root, 1));
	}
	conform_group_end(b);
}

/* Collectives in their order, with the messages of a ring in between, at another place on every rank. */
static void build_places(struct conform_build *b, const struct conform_case *c)
{
	static const enum bench_coll_id order[] = {BENCH_COLL_ALL_REDUCE, BENCH_COLL_ALL_GATHER, BENCH_COLL_BROADCAST,
		BENCH_COLL_REDUCE_SCATTER, BENCH_COLL_REDUCE, BENCH_COLL_ALL_REDUCE};
	enum { N = sizeof(order) / sizeof(order[0]), MESSAGES = 4 };
	int next = (b->rank + 1) % b->nranks, before = (b->rank + b->nranks - 1) % b->nranks;
	unsigned sent = 0, received = 0;

	conform_group_start(b);
	for (unsigned i = 0; i <= N; i++) {
		uint64_t x = conform_random(b, i, 100 + (unsigned)b->rank);

		for (; sent < MESSAGES && (i == N || x % 3 == 0); x /= 3, sent++)
			conform_call(b, BENCH_COLL_SEND, next, uneven(b, c, (unsigned)b->rank, 10 + sent));
		for (; received < MESSAGES && (i == N || x % 5 < 2); x /= 5, received++)
			conform_call(b, BENCH_COLL_RECV, before, uneven(b, c, (unsigned)before, 10 + received));
		if (i < N)
			conform_call(b, order[i], (int)i % b->nranks, uneven(b, c, i, 0));
	}
	conform_group_end(b);
}

/* Empty calls of every kind, alone and together; a message of no bytes still has to meet its other end. */
static void build_empty(struct conform_build *b, const struct conform_case *c)
{
	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			conform_group_start(b);
		for (int coll = 0; coll < BENCH_NCOLLS; coll++)
			if (ALL_COLLS >> coll & 1)
				conform_call(b, coll, b->nranks - 1, 0);
		ring(b, 0, 1);
		conform_call(b, BENCH_COLL_ALL_REDUCE, 0, c->count);
		if (grouped)
			conform_group_end(b);
	}
}

/* One after the other, so that what a call left behind is another operator's. */
static void build_operators(struct conform_build *b, const struct conform_case *c)
{
	static const enum shunt_dtype types[] = { SHUNT_F32, SHUNT_BF16, SHUNT_I32, SHUNT_F8E5M2 };

	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			conform_group_start(b);
		for (unsigned i = 0; i < 2 * SHUNT_NREDOPS; i++) {
			b->redop = i % SHUNT_NREDOPS;
			b->dtype = types[i % 4];
			b->scalar_on_device = i & 1;
			conform_call(b, i % 3 ? BENCH_COLL_ALL_REDUCE : BENCH_COLL_REDUCE_SCATTER, 0, uneven(b, c, i, 0));
		}
		if (grouped)
			conform_group_end(b);
	}
}

/* A group that is only estimated, and the same one for good. Of what was estimated nothing may come, later either. */
static void build_simulate(struct conform_build *b, const struct conform_case *c)
{
	for (int launched = 0; launched < 3; launched++) {
		conform_group_start(b);
		conform_call(b, BENCH_COLL_ALL_REDUCE, 0, c->count);
		conform_call(b, BENCH_COLL_ALL_GATHER, 0, c->count / 2);
		if (launched % 2)
			conform_group_end(b);
		else
			conform_group_simulate(b);
	}
}

static void build_simulate_messages(struct conform_build *b, const struct conform_case *c)
{
	for (int launched = 0; launched < 3; launched++) {
		conform_group_start(b);
		conform_call(b, BENCH_COLL_SEND, (b->rank + 1) % b->nranks, c->count);
		conform_call(b, BENCH_COLL_RECV, (b->rank + b->nranks - 1) % b->nranks, c->count);
		if (launched % 2)
			conform_group_end(b);
		else
			conform_group_simulate(b);
	}
}

/* On several communicators in one group, messages too; ranks in these are not those of the world. */
static void build_comms_messages(struct conform_build *b, const struct conform_case *c)
{
	static const enum conform_comm order[] = {
		CONFORM_HALVES, CONFORM_WORLD, CONFORM_REVERSED, CONFORM_CHILD, CONFORM_SOME, CONFORM_ALONE, CONFORM_TIES};
	int members[BENCH_MAX_RANKS], me = 0;

	conform_group_start(b);
	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		int n = conform_members(order[i], b->rank, b->nranks, members, &me);

		b->comm = order[i];
		if (!n)
			continue;
		conform_call(b, BENCH_COLL_SEND, (me + 1) % n, c->count + i);
		conform_call(b, BENCH_COLL_ALL_REDUCE, 0, c->count);
		conform_call(b, BENCH_COLL_RECV, (me + n - 1) % n, c->count + i);
	}
	conform_group_end(b);
}

/* Non-blocking communicators: calls, messages, a group of several calls. */
static void build_async(struct conform_build *b, const struct conform_case *c)
{
	int members[BENCH_MAX_RANKS], me = 0, n;

	for (unsigned i = 0; i < 4; i++) {
		b->comm = i & 1 ? CONFORM_ASYNC_CHILD : CONFORM_ASYNC;
		n = conform_members(b->comm, b->rank, b->nranks, members, &me);
		conform_call(b, BENCH_COLL_ALL_REDUCE, 0, c->count + i);
		conform_group_start(b);
		conform_call(b, BENCH_COLL_SEND, (me + 1) % n, c->count);
		conform_call(b, BENCH_COLL_RECV, (me + n - 1) % n, c->count);
		conform_call(b, BENCH_COLL_BROADCAST, n - 1, c->count);
		conform_group_end(b);
	}
}

/* Two streams in one group: both wait for both. */
static void build_streams_group(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned round = 0; round < 3; round++) {
		conform_group_start(b);
		for (unsigned i = 0; i < 6; i++) {
			b->stream = (i + round) & 1;
			conform_call(b, i % 3 == 2 ? BENCH_COLL_ALL_GATHER : BENCH_COLL_ALL_REDUCE, 0, uneven(b, c, i, round));
			ring(b, uneven(b, c, i, 10 + round), 1);
		}
		conform_group_end(b);
	}
}

/* Each row for each of its collectives and both counts; collectives 0: the pattern has its own. */
static const struct pattern {
	const char *name;
	void (*build)(struct conform_build *b, const struct conform_case *c);
	unsigned colls;
	size_t counts[2];
	enum shunt_dtype dtype;
	bool no_graph;
} patterns[] = {
	{ "all_gather_v", build_all_gather_v, 0, { 50, 9000 }, SHUNT_BF16 },
	{ "reduce_scatter_v", build_reduce_scatter_v, 0, { 50, 9000 }, SHUNT_F32 },
	{ "all_to_all_v", build_all_to_all_v, 0, { 50, 9000 }, SHUNT_F16 },
	{ "ring", build_ring, 0, { 10, 40000 }, SHUNT_F32 },
	{ "in_order", build_in_order, 0, { 100, 30000 }, SHUNT_U8 },
	{ "zero_bytes", build_zero_bytes, 0, { 5, 1000 }, SHUNT_I32 },
	{ "self", build_self, 0, { 64, 50000 }, SHUNT_F32 },
	{ "pipeline", build_pipeline, 0, { 64, 50000 }, SHUNT_F32 },
	{ "star", build_star, 0, { 64, 50000 }, SHUNT_F32 },
	{ "buckets", build_buckets, 0, { 40, 5000 }, SHUNT_F32 },
	{ "mixed", build_mixed, 0, { 40, 5000 }, SHUNT_F32 },
	{ "nested", build_nested, 0, { 40, 5000 }, SHUNT_I64 },
	{ "sizes", build_sizes, ALL_COLLS, { 7000, 60000 }, SHUNT_F32 },
	{ "skew", build_skew, ALL_COLLS, { 64, 20000 }, SHUNT_F32, .no_graph = true },
	{ "mixed_skew", build_mixed_skew, 0, { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "comms", build_comms, ALL_COLLS, { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "comms_group", build_comms_group, COLL(ALL_REDUCE) | COLL(ALL_GATHER), { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "pairs", build_pairs, 0, { 100, 30000 }, SHUNT_F32 },
	{ "halo", build_halo, 0, { 7, 25000 }, SHUNT_BF16 },
	{ "message_types", build_message_types, 0, { 33, 3000 }, SHUNT_F32 },
	{ "ping_pong", build_ping_pong, 0, { 100, 30000 }, SHUNT_U8 },
	{ "grouped_apart", build_grouped_apart, 0, { 100, 30000 }, SHUNT_U8 },
	{ "every_root", build_every_root, 0, { 50, 9000 }, SHUNT_F16 },
	{ "places", build_places, 0, { 40, 9000 }, SHUNT_BF16 },
	{ "empty", build_empty, 0, { 1, 1000 }, SHUNT_F32 },
	{ "operators", build_operators, 0, { 40, 5000 }, SHUNT_F32 },
	{ "simulate", build_simulate, 0, { 64, 20000 }, SHUNT_F32, .no_graph = true },
	{ "simulate_messages", build_simulate_messages, 0, { 64, 20000 }, SHUNT_F32, .no_graph = true },
	{ "comms_messages", build_comms_messages, 0, { 64, 9000 }, SHUNT_I32, .no_graph = true },
	{ "async", build_async, 0, { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "streams_group", build_streams_group, 0, { 64, 9000 }, SHUNT_I32, .no_graph = true },
	{ "streams", build_streams, COLL(ALL_REDUCE) | COLL(BROADCAST), { 64, 20000 }, SHUNT_I32, .no_graph = true },
};

static void pattern_add(struct conform_list *list, const struct pattern *p)
{
	for (int coll = 0; coll < BENCH_NCOLLS; coll++)
		for (int size = 0; size < 2; size++)
			for (int graph = 0; graph < (p->no_graph ? 1 : 2); graph++) {
				struct conform_case c = {.build = p->build,
					.coll = coll,
					.dtype = p->dtype,
					.redop = SHUNT_SUM,
					.count = p->counts[size],
					.misalign = size ? 0 : MIXED,
					.graph = graph};

				if (p->colls ? !(p->colls >> coll & 1) : coll)
					continue;
				snprintf(c.name, sizeof(c.name), "pattern.%s%s%s.n%zu%s", p->name, p->colls ? "." : "",
					p->colls ? bench_colls[coll].name : "", c.count, graph ? ".graph" : "");
				conform_case_add(list, &c);
			}
}

void conform_patterns_add(struct conform_list *list)
{
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
		pattern_add(list, &patterns[i]);
}
