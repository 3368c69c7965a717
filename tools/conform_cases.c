/* SPDX-License-Identifier: MIT */
/* The table of cases: sweeps over single calls, and patterns of many calls as real programs make them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "conform.h"

#define BIT(x) (1u << (x))
#define ALL_TYPES (BIT(SHUNT_NDTYPES) - 1)
#define ALL_OPS (BIT(SHUNT_NREDOPS) - 1)
#define COLL(x) BIT(BENCH_COLL_##x)
#define ALL_COLLS                                                                                                                  \
	(COLL(ALL_REDUCE) | COLL(ALL_GATHER) | COLL(REDUCE_SCATTER) | COLL(BROADCAST) | COLL(REDUCE) | COLL(ALLTOALL) |            \
		COLL(GATHER) | COLL(SCATTER) | COLL(BCAST))
#define REDUCING (COLL(ALL_REDUCE) | COLL(REDUCE_SCATTER) | COLL(REDUCE))
#define ALL_PLACES (BIT(CONFORM_OUT) | BIT(CONFORM_IN) | BIT(CONFORM_NULLS))

enum roots { ROOT_LAST, ROOT_EVERY };
enum { MIXED = -1 }; /* misalign: another one on every rank */

/* Every combination of a row is a case. Lists end with ~0. */
static const struct sweep {
	const char *name;
	bool full;                   /* only with --full */
	unsigned colls, dtypes, redops, places;
	const size_t *counts;
	enum roots roots;
	const int *misaligns;        /* ends with 100 */
	bool graph;
	int group;
	enum conform_data data;
} sweeps[] = {
	{"types", .colls = ALL_COLLS, .dtypes = ALL_TYPES, .redops = ALL_OPS, .places = BIT(CONFORM_OUT),
		.counts = (const size_t[]){1000, ~0ul}},
	{"counts", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_U8) | BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM), .places = ALL_PLACES,
		.counts = (const size_t[]){0, 1, 2, 3, 15, 255, 257, 4097, 65537, ~0ul}},
	{"roots", .colls = COLL(BROADCAST) | COLL(REDUCE) | COLL(GATHER) | COLL(SCATTER) | COLL(BCAST), .dtypes = BIT(SHUNT_F32),
		.redops = BIT(SHUNT_SUM) | BIT(SHUNT_AVG), .places = ALL_PLACES, .counts = (const size_t[]){5, 3000, ~0ul},
		.roots = ROOT_EVERY},
	{"align", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_F16) | BIT(SHUNT_F32) | BIT(SHUNT_I64),
		.redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT) | BIT(CONFORM_IN), .counts = (const size_t[]){33, 5000, ~0ul},
		.misaligns = (const int[]){1, MIXED, 100}},
	{"special", .colls = REDUCING, .dtypes = BIT(SHUNT_F16) | BIT(SHUNT_F32) | BIT(SHUNT_BF16),
		.redops = BIT(SHUNT_SUM) | BIT(SHUNT_MAX) | BIT(SHUNT_MIN), .places = BIT(CONFORM_OUT),
		.counts = (const size_t[]){999, ~0ul}, .data = CONFORM_SPECIAL},
	{"graph", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT) | BIT(CONFORM_IN),
		.counts = (const size_t[]){100, 20000, ~0ul}, .graph = true},
	{"group", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I32) | BIT(SHUNT_BF16), .redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT),
		.counts = (const size_t[]){0, 777, ~0ul}, .group = 1},
	{"nested", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I32), .redops = BIT(SHUNT_MAX), .places = BIT(CONFORM_IN),
		.counts = (const size_t[]){777, ~0ul}, .group = 3},
	{"large", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT),
		.counts = (const size_t[]){150001, ~0ul}},
	{"types2", true, .colls = ALL_COLLS, .dtypes = ALL_TYPES, .redops = ALL_OPS, .places = ALL_PLACES,
		.counts = (const size_t[]){1, 7, 16, 17, 129, 2049, 33333, ~0ul}, .misaligns = (const int[]){0, MIXED, 100}},
	{"counts2", true, .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_BF16) | BIT(SHUNT_F64), .redops = BIT(SHUNT_SUM),
		.places = ALL_PLACES,
		.counts = (const size_t[]){4, 5, 6, 8, 9, 31, 32, 63, 64, 65, 127, 128, 511, 512, 513, 1023, 1025, 4095, 4096, 8191, 8193,
			16384, 32769, 131071, 131073, 262145, 524288, ~0ul},
		.roots = ROOT_EVERY},
	{"graph2", true, .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_BF16), .redops = BIT(SHUNT_SUM) | BIT(SHUNT_AVG),
		.places = ALL_PLACES, .counts = (const size_t[]){1, 1000, 70000, 1000000, ~0ul}, .misaligns = (const int[]){0, 1, 100},
		.graph = true},
	{"large2", true, .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM), .places = ALL_PLACES,
		.counts = (const size_t[]){1048576, 2097169, ~0ul}, .misaligns = (const int[]){0, 1, 100}},
};

static void build_single(struct conform_build *b, const struct conform_case *c)
{
	for (int i = 0; i < c->group; i++)
		conform_group_start(b);
	conform_call(b, c->coll, c->root, c->count);
	for (int i = 0; i < c->group; i++)
		conform_group_end(b);
}

/* ---- patterns; c->count says about how many elements a message has ---- */

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
	{ "sizes", build_sizes, ALL_COLLS, { 20000, 120000 }, SHUNT_F32 },
	{ "skew", build_skew, ALL_COLLS, { 64, 20000 }, SHUNT_F32, .no_graph = true },
	{ "mixed_skew", build_mixed_skew, 0, { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "comms", build_comms, ALL_COLLS, { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "comms_group", build_comms_group, COLL(ALL_REDUCE) | COLL(ALL_GATHER), { 64, 20000 }, SHUNT_I32, .no_graph = true },
	{ "streams", build_streams, COLL(ALL_REDUCE) | COLL(BROADCAST), { 64, 20000 }, SHUNT_I32, .no_graph = true },
};

/* ---- the list ---- */

struct maker {
	struct conform_list *list;
	int nranks;
	uint64_t seed;
	const char *filter, *only;
	int err;
};

static uint64_t hash(const char *text)
{
	uint64_t h = 14695981039346656037ull;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 1099511628211ull;
	return h;
}

static void case_add(struct maker *m, const struct conform_case *c)
{
	struct conform_list *l = m->list;

	if ((m->only && strcmp(c->name, m->only)) || (m->filter && !strstr(c->name, m->filter)))
		return;
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 256;
		struct conform_case *cases = realloc(l->cases, cap * sizeof(*cases));

		if (!cases) {
			m->err = -ENOMEM;
			return;
		}
		l->cases = cases;
		l->cap = cap;
	}
	l->cases[l->n] = *c;
	l->cases[l->n].nranks = m->nranks;
	l->cases[l->n++].seed = conform_mix(m->seed ^ hash(c->name));
}

static void single_add(struct maker *m, const struct sweep *s, enum bench_coll_id id, enum shunt_dtype dtype,
	enum shunt_redop redop, size_t count, enum conform_place place, int misalign)
{
	const struct bench_coll *coll = &bench_colls[id];
	int last = m->nranks - 1;

	if ((place == CONFORM_IN && !coll->in_place) || (place == CONFORM_NULLS && !coll->send_root && !coll->recv_root))
		return;
	if (id == BENCH_COLL_BCAST && place != CONFORM_IN && s->places != BIT(CONFORM_OUT)) /* there is but one */
		return;
	for (int root = coll->rooted && s->roots == ROOT_LAST ? last : 0; root <= (coll->rooted ? last : 0); root++) {
		struct conform_case c = {.wrong = -1,
			.build = build_single,
			.coll = id,
			.dtype = dtype,
			.redop = redop,
			.count = count,
			.root = root,
			.place = place,
			.misalign = misalign,
			.group = s->group,
			.graph = s->graph,
			.data = s->data};
		char where[48] = "";

		if (coll->rooted)
			snprintf(where, sizeof(where), ".root%d", root);
		if (misalign)
			snprintf(
				where + strlen(where), sizeof(where) - strlen(where), misalign < 0 ? ".mixed" : ".plus%d", misalign);
		snprintf(c.name, sizeof(c.name), "%s.%s.%s%s%s.n%zu.%s%s", s->name, coll->name, shunt_dtype_name(dtype),
			coll->reduces ? "." : "", coll->reduces ? shunt_redop_name(redop) : "", count, conform_place_names[place],
			where);
		case_add(m, &c);
	}
}

static void sweep_add(struct maker *m, const struct sweep *s)
{
	static const int aligned[] = { 0, 100 };

	for (int coll = 0; coll < BENCH_NCOLLS; coll++)
		for (int dtype = 0; dtype < SHUNT_NDTYPES; dtype++)
			for (int redop = 0; redop < SHUNT_NREDOPS; redop++) {
				unsigned redops = bench_colls[coll].reduces ? s->redops : BIT(SHUNT_SUM);

				if (!(s->colls >> coll & 1) || !(s->dtypes >> dtype & 1) || !(redops >> redop & 1))
					continue;
				for (const size_t *count = s->counts; *count != ~0ul; count++)
					for (int place = 0; place < CONFORM_NPLACES; place++)
						for (const int *a = s->misaligns ? s->misaligns : aligned;
						     *a != 100 && s->places >> place & 1; a++)
							single_add(m, s, coll, dtype, redop, *count, place, *a);
			}
}

static void pattern_add(struct maker *m, const struct pattern *p)
{
	for (int coll = 0; coll < BENCH_NCOLLS; coll++)
		for (int size = 0; size < 2; size++)
			for (int graph = 0; graph < (p->no_graph ? 1 : 2); graph++) {
				struct conform_case c = {.wrong = -1,
					.build = p->build,
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
				case_add(m, &c);
			}
}

int conform_cases(int nranks, bool full, uint64_t seed, const char *filter, const char *only, struct conform_list *list)
{
	struct maker m = { list, nranks, seed, filter, only, 0 };

	/* A case that is asked for by its name need not be asked for by --full too. */
	for (size_t i = 0; i < sizeof(sweeps) / sizeof(sweeps[0]); i++)
		if (full || only || !sweeps[i].full)
			sweep_add(&m, &sweeps[i]);
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
		pattern_add(&m, &patterns[i]);
	for (int i = 0; conform_wrongs[i].name; i++) {
		struct conform_case c = { .wrong = i };

		snprintf(c.name, sizeof(c.name), "wrong.%s", conform_wrongs[i].name);
		case_add(&m, &c);
	}
	return m.err;
}
