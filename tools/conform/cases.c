/* SPDX-License-Identifier: MIT */
/* The table of cases: sweeps over single calls. The other kinds add their own. */
#include "tools/common/libc.h"
#include "tools/conform/conform.h"

#define BIT(x) (1u << (x))
#define ALL_TYPES (BIT(SHUNT_NDTYPES) - 1)
#define FORMATS (BIT(SHUNT_NFORMATS) - BIT(SHUNT_NDTYPES))
#define ALL_OPS (BIT(SHUNT_NREDOPS) - 1)
#define COLL(x) BIT(BENCH_COLL_##x)
/* Sets of calls: bits of enum bench_coll_id, of the kinds in a set of kinds. */
#define REDUCING_BIT(id, ...) | (SHUNT_KINDS_REDUCE >> SHUNT_##id & 1 ? COLL(id) : 0)
#define ROOTED_BIT(id, ...) | (SHUNT_KINDS_ROOTED >> SHUNT_##id & 1 ? COLL(id) : 0)
#define COLL_BIT(id, ...) | (SHUNT_KINDS_P2P >> SHUNT_##id & 1 ? 0 : COLL(id))
#define ALL_COLLS (COLL(BCAST) SHUNT_COLLECTIVE_LIST(COLL_BIT))
#define REDUCING (0 SHUNT_COLLECTIVE_LIST(REDUCING_BIT))
#define ROOTED (COLL(BCAST) SHUNT_COLLECTIVE_LIST(ROOTED_BIT))
#define ALL_PLACES (BIT(CONFORM_OUT) | BIT(CONFORM_IN) | BIT(CONFORM_NULL_UNUSED))

#define CHILDREN (BIT(CONFORM_NCOMMS) - 1 - BIT(CONFORM_WORLD) - BIT(CONFORM_SELF))
#define CONFIGS (BIT(CONFORM_NCONFIGS) - 1 - BIT(CONFORM_CONFIG_NONE))

enum roots { ROOT_LAST, ROOT_EVERY };
enum { MIXED = -1 }; /* misalign: another value on every rank */

/* Every combination of a row is a case. Lists end with ~0. */
static const struct sweep {
	const char *name;
	bool full; /* only with --full */
	unsigned colls, dtypes, redops, places;
	const size_t *counts;
	enum roots roots;
	const int *misaligns; /* ends with 100 */
	bool graph;
	int group;
	enum conform_data data;
	unsigned comms, configs; /* bit sets; 0: the world, and the plain call */
	bool scalar_on_device;
} sweeps[] = {
	{ "types", .colls = ALL_COLLS, .dtypes = ALL_TYPES, .redops = ALL_OPS, .places = BIT(CONFORM_OUT),
	    .counts = (const size_t[]){ 1000, ~0ul } },
	{ "formats", .colls = REDUCING, .dtypes = FORMATS, .redops = ALL_OPS, .places = BIT(CONFORM_OUT),
	    .counts = (const size_t[]){ 1000, ~0ul } },
	{ "counts", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_U8) | BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM),
	    .places = ALL_PLACES, .counts = (const size_t[]){ 0, 1, 2, 3, 15, 255, 257, 4097, 65537, ~0ul } },
	{ "roots", .colls = ROOTED, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM) | BIT(SHUNT_AVG),
	    .places = ALL_PLACES, .counts = (const size_t[]){ 5, 3000, ~0ul }, .roots = ROOT_EVERY },
	{ "align", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_F16) | BIT(SHUNT_F32) | BIT(SHUNT_I64),
	    .redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT) | BIT(CONFORM_IN),
	    .counts = (const size_t[]){ 33, 5000, ~0ul }, .misaligns = (const int[]){ 1, MIXED, 100 } },
	{ "special", .colls = REDUCING, .dtypes = BIT(SHUNT_F16) | BIT(SHUNT_F32) | BIT(SHUNT_BF16),
	    .redops = BIT(SHUNT_SUM) | BIT(SHUNT_MAX) | BIT(SHUNT_MIN), .places = BIT(CONFORM_OUT),
	    .counts = (const size_t[]){ 999, ~0ul }, .data = CONFORM_SPECIAL },
	{ "graph", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM),
	    .places = BIT(CONFORM_OUT) | BIT(CONFORM_IN), .counts = (const size_t[]){ 100, 20000, ~0ul },
	    .graph = true },
	{ "group", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I32) | BIT(SHUNT_BF16), .redops = BIT(SHUNT_SUM),
	    .places = BIT(CONFORM_OUT), .counts = (const size_t[]){ 0, 777, ~0ul }, .group = 1 },
	{ "nested", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I32), .redops = BIT(SHUNT_MAX), .places = BIT(CONFORM_IN),
	    .counts = (const size_t[]){ 777, ~0ul }, .group = 3 },
	{ "large", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT),
	    .counts = (const size_t[]){ 150001, ~0ul } },
	{ "comm", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM), .places = BIT(CONFORM_OUT),
	    .counts = (const size_t[]){ 0, 700, ~0ul }, .comms = CHILDREN },
	{ "comm_in", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I64), .redops = BIT(SHUNT_AVG), .places = BIT(CONFORM_IN),
	    .counts = (const size_t[]){ 9000, ~0ul }, .misaligns = (const int[]){ MIXED, 100 }, .roots = ROOT_EVERY,
	    .comms = CHILDREN },
	{ "self", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_F32) | BIT(SHUNT_BF16) | BIT(SHUNT_F8E4M3),
	    .redops = ALL_OPS, .places = BIT(CONFORM_OUT) | BIT(CONFORM_IN),
	    .counts = (const size_t[]){ 0, 1, 1000, ~0ul }, .comms = BIT(CONFORM_SELF) },
	{ "self_group", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM) | BIT(SHUNT_PREMUL),
	    .places = BIT(CONFORM_OUT), .counts = (const size_t[]){ 1000, ~0ul }, .comms = BIT(CONFORM_SELF),
	    .group = 1 },
	{ "self_graph", .colls = ALL_COLLS, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_AVG) | BIT(SHUNT_PREMUL),
	    .places = BIT(CONFORM_OUT), .counts = (const size_t[]){ 1000, ~0ul }, .comms = BIT(CONFORM_SELF),
	    .graph = true },
	{ "scalar", .colls = REDUCING, .dtypes = ALL_TYPES, .redops = BIT(SHUNT_PREMUL),
	    .places = BIT(CONFORM_OUT) | BIT(CONFORM_IN), .counts = (const size_t[]){ 1000, ~0ul },
	    .comms = BIT(CONFORM_WORLD) | BIT(CONFORM_SELF), .scalar_on_device = true },
	{ "scalar_large", .colls = REDUCING, .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_PREMUL),
	    .places = BIT(CONFORM_OUT), .counts = (const size_t[]){ 0, 100000, ~0ul }, .scalar_on_device = true,
	    .group = 1 },
	{ "scalar_graph", .colls = REDUCING, .dtypes = BIT(SHUNT_F32) | BIT(SHUNT_I32), .redops = BIT(SHUNT_PREMUL),
	    .places = BIT(CONFORM_OUT), .counts = (const size_t[]){ 1000, 100000, ~0ul }, .scalar_on_device = true,
	    .graph = true },
	{ "config", .colls = ALL_COLLS & ~COLL(BCAST), .dtypes = BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM),
	    .places = BIT(CONFORM_OUT), .counts = (const size_t[]){ 0, 500, 70000, ~0ul }, .configs = CONFIGS },
	{ "config_group", .colls = ALL_COLLS & ~COLL(BCAST), .dtypes = BIT(SHUNT_BF16), .redops = BIT(SHUNT_AVG),
	    .places = BIT(CONFORM_IN), .counts = (const size_t[]){ 3000, ~0ul }, .configs = CONFIGS, .group = 1 },
	{ "types2", true, .colls = ALL_COLLS, .dtypes = ALL_TYPES, .redops = ALL_OPS, .places = ALL_PLACES,
	    .counts = (const size_t[]){ 1, 7, 16, 17, 129, 2049, 33333, ~0ul },
	    .misaligns = (const int[]){ 0, MIXED, 100 } },
	{ "counts2", true, .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_BF16) | BIT(SHUNT_F64),
	    .redops = BIT(SHUNT_SUM), .places = ALL_PLACES,
	    .counts = (const size_t[]){ 4, 5, 6, 8, 9, 31, 32, 63, 64, 65, 127, 128, 511, 512, 513, 1023, 1025, 4095,
	        4096, 8191, 8193, 16384, 32769, 131071, 131073, 262145, 524288, ~0ul },
	    .roots = ROOT_EVERY },
	{ "graph2", true, .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_BF16),
	    .redops = BIT(SHUNT_SUM) | BIT(SHUNT_AVG), .places = ALL_PLACES,
	    .counts = (const size_t[]){ 1, 1000, 70000, 1000000, ~0ul }, .misaligns = (const int[]){ 0, 1, 100 },
	    .graph = true },
	{ "large2", true, .colls = ALL_COLLS, .dtypes = BIT(SHUNT_I8) | BIT(SHUNT_F32), .redops = BIT(SHUNT_SUM),
	    .places = ALL_PLACES, .counts = (const size_t[]){ 1048576, 2097169, ~0ul },
	    .misaligns = (const int[]){ 0, 1, 100 } },
};

static void build_single(struct conform_build *b, const struct conform_case *c)
{
	for (int i = 0; i < c->group; i++)
		conform_group_start(b);
	conform_call(b, c->coll, c->root, c->count);
	for (int i = 0; i < c->group; i++)
		conform_group_end(b);
}

/* ---- the list ---- */

static uint64_t name_hash(const char *text)
{
	uint64_t h = 14695981039346656037ull;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 1099511628211ull;
	return h;
}

void conform_case_add(struct conform_list *l, const struct conform_case *c)
{
	const struct conform_opts *o = l->o;

	if ((o->only && strcmp(c->name, o->only)) || (o->filter && !strstr(c->name, o->filter)))
		return;
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 256;
		struct conform_case *cases = realloc(l->cases, cap * sizeof(*cases));

		if (!cases) {
			l->err = -ENOMEM;
			return;
		}
		l->cases = cases;
		l->cap = cap;
	}
	l->cases[l->n] = *c;
	l->cases[l->n].nranks = l->nranks;
	l->cases[l->n++].seed = conform_hash_mix(o->seed ^ name_hash(c->name));
}

/* Adds a single call. The loops of sweep_add() have set all fields but name and root. */
static void single_add(struct conform_list *list, const struct sweep *s, struct conform_case c)
{
	const struct bench_coll *coll = &bench_colls[c.coll];
	int members[RANKS_MAX], me, last = list->nranks - 1;

	if ((c.place == CONFORM_IN && !coll->in_place) ||
	    (c.place == CONFORM_NULL_UNUSED && !coll->send_root && !coll->recv_root))
		return;
	if (c.coll == BENCH_COLL_BCAST && c.place != CONFORM_IN && s->places != BIT(CONFORM_OUT)) /* one buffer only */
		return;
	if (list->nranks < conform_comm_least(c.comm))
		return;
	/* A root that is a member of every communicator. */
	for (int rank = 0; rank < list->nranks; rank++) {
		int n = conform_comm_members(c.comm, rank, list->nranks, members, &me);

		if (n && n - 1 < last)
			last = n - 1;
	}
	for (int root = coll->rooted && s->roots == ROOT_LAST ? last : 0; root <= (coll->rooted ? last : 0); root++) {
		char where[80] = "";
		size_t at = 0;

		c.root = root;
		if (coll->rooted)
			at += (size_t)snprintf(where + at, sizeof(where) - at, ".root%d", root);
		if (c.misalign)
			at += (size_t)snprintf(
			    where + at, sizeof(where) - at, c.misalign < 0 ? ".mixed" : ".plus%d", c.misalign);
		if (s->comms)
			at += (size_t)snprintf(where + at, sizeof(where) - at, ".%s", conform_comm_name(c.comm));
		if (s->configs)
			snprintf(where + at, sizeof(where) - at, ".%s", conform_config_names[c.config]);
		snprintf(c.name, sizeof(c.name), "%s.%s.%s%s%s.n%zu.%s%s", s->name, coll->name,
		    shunt_dtype_name(c.dtype), coll->reduces ? "." : "", coll->reduces ? shunt_redop_name(c.redop) : "",
		    c.count, conform_place_names[c.place], where);
		conform_case_add(list, &c);
	}
}

static void places_add(struct conform_list *list, const struct sweep *s, struct conform_case c)
{
	static const int aligned[] = { 0, 100 };

	for (int place = 0; place < CONFORM_NPLACES; place++)
		for (const int *a = s->misaligns ? s->misaligns : aligned; *a != 100 && s->places >> place & 1; a++)
			for (int comm = 0; comm < CONFORM_NCOMMS; comm++)
				for (int config = 0; config < CONFORM_NCONFIGS; config++) {
					if (!((s->comms ? s->comms : BIT(CONFORM_WORLD)) >> comm & 1) ||
					    !((s->configs ? s->configs : BIT(CONFORM_CONFIG_NONE)) >> config & 1))
						continue;
					c.place = place;
					c.misalign = *a;
					c.comm = comm;
					c.config = config;
					single_add(list, s, c);
				}
}

static void sweep_add(struct conform_list *list, const struct sweep *s)
{
	for (int coll = 0; coll < BENCH_NCOLLS; coll++)
		for (int dtype = 0; dtype < SHUNT_NFORMATS; dtype++)
			for (int redop = 0; redop < SHUNT_NREDOPS; redop++) {
				unsigned redops = bench_colls[coll].reduces ? s->redops : BIT(SHUNT_SUM);

				if (!(s->colls >> coll & 1) || !(s->dtypes >> dtype & 1) || !(redops >> redop & 1))
					continue;
				for (const size_t *count = s->counts; *count != ~0ul; count++)
					places_add(list, s,
					    (struct conform_case){ .build = build_single,
					        .coll = coll,
					        .dtype = dtype,
					        .redop = redop,
					        .count = *count,
					        .group = s->group,
					        .graph = s->graph,
					        .data = s->data,
					        .scalar_on_device = s->scalar_on_device });
			}
}

int conform_cases(const struct conform_opts *o, int nranks, struct conform_list *list)
{
	*list = (struct conform_list){ .o = o, .nranks = nranks };
	/* A case given by its name does not need --full. */
	for (size_t i = 0; i < sizeof(sweeps) / sizeof(sweeps[0]); i++)
		if (o->full || o->only || !sweeps[i].full)
			sweep_add(list, &sweeps[i]);
	conform_patterns_add(list);
	conform_determinism_add(list);
	conform_invalid_add(list);
	conform_huge_add(list);
	return list->err;
}
