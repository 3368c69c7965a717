/* SPDX-License-Identifier: MIT */
/*
 * shunt plan run: runs a plan through the library, as a program would. It is a guest of shunt bench, which starts the
 * ranks, calls NCCL's function, checks and measures. Here each rank registers the plan, sets a selector for it, and
 * sees that the library runs it.
 */
#include <jansson.h>
#include "tools/common/libc.h"
#include "plan/format/hosts.h"
#include "tools/bench/rank.h"
#include "tools/common/where.h"
#include "tools/plan/plan.h"

struct plan_run_opts {
	struct bench_opts base; /* first member; first, last: 0 is the plan's range */
	const char *file;
	struct shunt_plan *plan;
	enum shunt_dtype dtype;
	enum shunt_redop redop; /* of the plan */
	bool graph;
};

static int place_apply(void *opts, const struct option_row *row, const char *text)
{
	struct plan_run_opts *o = opts;

	(void)text;
	o->base.places[strcmp(row->name, "in-place") ? BENCH_IN : BENCH_OUT] = false;
	return 0;
}

#define AT(field) .at = offsetof(struct plan_run_opts, field)
static const struct option_row rows[] = {
	{ "ranks", 'n', OPTION_NUMBER, "N", AT(base.ranks.nranks), 1, RANKS_MAX,
	    .help = "as many as the plan has; anything else is an error" },
	{ "first", 'b', OPTION_SIZE, "SIZE", AT(base.first), 1, UINT64_MAX,
	    .help = "smallest message in bytes, as the plan counts them (1K, or what the plan admits)" },
	{ "last", 'e', OPTION_SIZE, "SIZE", AT(base.last), 1, UINT64_MAX, .help = "largest (64M, on the sim 256K)" },
	{ "factor", 'f', OPTION_NUMBER, "N", AT(base.factor), 2, 1u << 20, .help = "from one to the next (4)" },
	{ "dtype", 'd', OPTION_WORD, "TYPE", AT(dtype), .find = tool_dtype_find, .name_at = tool_dtype_at,
	    .help = "float32 (default), float16, bfloat16, int8, ..." },
	{ "in-place", 0, OPTION_CALL, .call = place_apply, .help = "only these calls (default: both kinds)" },
	{ "out-of-place", 0, OPTION_CALL, .call = place_apply, .help = "only the others" },
	{ "graph", 0, OPTION_FLAG, AT(graph), .help = "captured once and replayed, instead of call by call" },
	{ "iters", 'i', OPTION_NUMBER, "N", AT(base.iters), 1, 1u << 20,
	    .help = "calls of a round (20, on the sim 2)" },
	{ "rounds", 'r', OPTION_NUMBER, "N", AT(base.rounds), 1, BENCH_MAX_ROUNDS, .help = "(20, on the sim 3)" },
	{ "seed", 0, OPTION_SIZE, "N", AT(base.seed), 0, UINT64_MAX, .help = "of the inputs (1)" },
	{ "json", 0, OPTION_TEXT, "FILE", AT(base.ranks.json), .help = "the rows, as those of shunt bench" },
	RANKS_OPTION_HOSTS,
	RANKS_OPTIONS_START("60"),
	{ .type = OPTION_END },
};
const struct option_table plan_run_options = {
	"usage: shunt plan run [options] FILE...\n\n"
	"Runs a plan through libshunt.so, one process for each rank, on GPUs or on the sim; compares every result with "
	"a "
	"plain\n"
	"reference, with inputs whose result is exact and with others, and measures. A line for each size: the median "
	"over "
	"rounds\n"
	"of the slowest rank's time of a call. Of several plans, those that no NCCL call means are skipped.\n\n",
	rows,
	"Exit status: 0 all values are right and the plan made them, 1 not so, 2 wrong option.\n",
};

/* The NCCL call for a plan's collective; NULL: none. */
static const struct bench_coll *coll_of(const struct shunt_plan *plan)
{
	for (const struct bench_coll *c = bench_colls; c->name; c++)
		if (!strcmp(c->op, shunt_plan_collective_name(plan->collective)))
			return c;
	return NULL;
}

/* There is a call of NCCL that means the plan. */
static bool plan_is_a_call(const struct shunt_plan *p)
{
	const struct bench_coll *coll = coll_of(p);

	return coll && (!coll->reduces || (p->redops && !(p->redops & (p->redops - 1))));
}

/* Checks that the plan fits the options. 0 or an exit status after a message. */
static int plan_suit(struct plan_run_opts *o)
{
	const struct shunt_plan *p = o->plan;
	struct bench_opts *b = &o->base;
	uint8_t host_of[SHUNT_PLAN_MAX_RANKS];
	char range[64], reason[160];

	b->coll = coll_of(p);
	if (!b->coll) {
		tool_error("%s is a plan for %s, which no NCCL call means", p->name,
		    shunt_plan_collective_name(p->collective));
		return TOOL_FAIL;
	}
	if (b->ranks.nranks && b->ranks.nranks != (int)p->nranks) {
		tool_error("%s is for %u ranks, not for %d", p->name, p->nranks, b->ranks.nranks);
		return TOOL_FAIL;
	}
	if (p->nranks > 16) {
		tool_error("%s is for %u ranks, and values can be checked for up to 16", p->name, p->nranks);
		return TOOL_FAIL;
	}
	b->ranks.nranks = (int)p->nranks;
	if (b->ranks.nhosts && shunt_plan_spread(p, (uint32_t)b->ranks.nhosts, host_of, reason, sizeof(reason))) {
		tool_error("%s on %d hosts: %s", p->name, b->ranks.nhosts, reason);
		return TOOL_FAIL;
	}
	if (b->coll->reduces && (!p->redops || p->redops & (p->redops - 1))) {
		tool_error("%s %s, so no call of %s means it", p->name,
		    p->redops ? "mixes several operators" : "reduces nothing", b->coll->name);
		return TOOL_FAIL;
	}
	o->redop = p->redops ? (enum shunt_redop)__builtin_ctz(p->redops) : SHUNT_SUM;
	if (!(p->dtypes >> o->dtype & 1)) {
		tool_error("%s is not for %s", p->name, shunt_dtype_name(o->dtype));
		return TOOL_FAIL;
	}
	if (!b->coll->in_place)
		b->places[BENCH_IN] = false;
	if (!b->places[BENCH_IN] && !b->places[BENCH_OUT])
		return tool_usage_error("%s",
		    b->coll->in_place ? "--in-place and --out-of-place: nothing is left" :
		                        "NCCL has no such call in place");
	if (b->first && b->last && b->first > b->last)
		return tool_usage_error("the sizes must be --first <= --last");
	if ((b->first && b->first > p->max_bytes) || (b->last && b->last < p->min_bytes)) {
		tool_error("%s is for %s", p->name, plan_range_text(p, range));
		return TOOL_FAIL;
	}
	return TOOL_OK;
}

/* ---- a rank */

static const struct plan_run_opts *opts_of(const struct bench_rank *r)
{
	return (const struct plan_run_opts *)r->given;
}

/* Selects the plan by name, which also runs plans that do not cover every call. The same name on all ranks. */
static const char *want_plan(void *arg, const struct shunt_plan_request *request)
{
	return arg;
}

static int plan_register(const struct bench_rank *r)
{
	const struct plan_run_opts *o = opts_of(r);
	__typeof__(shunt_plan_register_file) *add = (__typeof__(add))dlsym(r->lib.handle, "shunt_plan_register_file");
	__typeof__(shunt_plan_set_selector) *select =
	    (__typeof__(select))dlsym(r->lib.handle, "shunt_plan_set_selector");
	char reason[PLAN_REASON_BYTES] = "";
	int err;

	if (!add || !select) {
		tool_error("%s knows no plans: it is not the libshunt.so of this version", r->lib.path);
		return -ENOSYS;
	}
	err = add(o->file, reason, sizeof(reason));
	/* With --threads another rank has registered it. */
	if (err && err != -EEXIST) {
		tool_error("rank %d: %s", r->rank, reason);
		return err;
	}
	select(want_plan, (void *)(uintptr_t)o->plan->name);
	return 0;
}

/* The requested sizes, limited to the plan's. */
static void sizes_choose(struct bench_rank *r)
{
	const struct shunt_plan *p = opts_of(r)->plan;
	struct bench_opts *b = &r->opts;
	uint64_t first = 1 << 10, last = strcmp(r->shared->launch.kind, "sim") ? 64 << 20 : 256 << 10;

	/* By default, sizes that are multiples of all types' sizes. */
	while (first < p->min_bytes && first < UINT64_MAX / 2)
		first *= 2;
	b->first = b->first ? b->first : first < p->max_bytes ? first : p->max_bytes;
	if (b->last && b->first > b->last)
		b->first = b->last;
	b->last = b->last ? b->last : b->first > last ? b->first : last;
	if (b->last > p->max_bytes)
		b->last = p->max_bytes;
}

static int rank_open(struct bench_rank *r)
{
	const struct shunt_plan *p = opts_of(r)->plan;

	if (r->shared->launch.nranks != (int)p->nranks) {
		tool_error("%s is for %u ranks, and there are %d", p->name, p->nranks, r->shared->launch.nranks);
		return -EINVAL;
	}
	sizes_choose(r);
	return plan_register(r);
}

static bool size_admits(const struct bench_rank *r, const struct bench_task *t)
{
	const struct shunt_plan *p = opts_of(r)->plan;

	return t->bytes >= p->min_bytes && t->bytes <= p->max_bytes;
}

/* Counts this rank's calls that did not run the plan; with the path and the reason of one. */
static uint64_t count_other_paths(
    const struct bench_rank *r, struct bench_counters *c, const char **path_p, const char **reason_p)
{
	uint64_t calls = 0;

	bench_counters_read(r, 0, c);
	for (size_t i = 0; i < c->n; i++)
		if (!strcmp(c->rows[i].op, r->o->coll->op) && !strstr(c->rows[i].path, opts_of(r)->plan->name)) {
			*path_p = c->rows[i].path;
			*reason_p = c->rows[i].reason;
			calls += c->rows[i].calls;
		}
	return calls;
}

static int plan_was_used(struct bench_rank *r)
{
	const char *path = "", *reason = "";
	struct bench_counters counters;
	uint64_t mine = count_other_paths(r, &counters, &path, &reason), all[RANKS_MAX];
	int err = bench_allgather(r, &mine, sizeof(mine), all);

	for (int i = 0; !err && i < r->shared->launch.nranks; i++) {
		if (!all[i])
			continue;
		if (!r->rank)
			tool_error("the library did not run plan %s: %llu calls of rank %d took the path \"%s\"%s%s; "
			           "SHUNT_LOG=info may say why",
			    opts_of(r)->plan->name, (unsigned long long)all[i], i, mine ? path : "?",
			    *reason ? ": " : "", reason);
		return bench_fail_together(r, -EPROTO);
	}
	return err;
}

/* For --json: the rows so far. Of rank 0, which alone prints. */
static json_t *json_rows;

static int json_write(const struct bench_rank *r)
{
	const struct plan_run_opts *o = opts_of(r);
	json_t *root =
	    json_pack("{s:o, s:s, s:o, s:i, s:s, s:o, s:I}", "where", tool_where_json(r->lib.build(), &r->lib, true),
	        "plan", o->plan->name, "file", json_string_nocheck(o->file), "ranks", r->shared->launch.nranks,
	        "device", r->shared->launch.kind, "runs", json_rows, "wrong", (json_int_t)r->wrong);
	int err = tool_file_json(o->base.ranks.json, root);

	json_decref(root);
	return err;
}

static void row_print(const struct bench_rank *r, const struct bench_row *row)
{
	const struct plan_run_opts *o = opts_of(r);
	const struct bench_cell *cell = &row->cell[0];

	if (!r->nrows)
		printf("# %s: %s of %d ranks on %s, %s%s%s\n#%11s %12s  %-12s %-5s %10s %10s %10s %10s\n",
		    o->plan->name, r->o->coll->name, r->shared->launch.nranks, r->shared->launch.kind,
		    shunt_dtype_name(o->dtype), o->plan->redops ? ", " : "",
		    o->plan->redops ? shunt_redop_name(o->redop) : "", "bytes", "count", "place", "mode", "time us",
		    "algbw GB/s", "busbw GB/s", "wrong");
	printf("%12llu %12llu  %-12s %-5s %10.1f %10.3f %10.3f %10llu\n", (unsigned long long)row->bytes,
	    (unsigned long long)row->count, bench_place_names[row->way % BENCH_NPLACES],
	    bench_mode_names[row->way / BENCH_NPLACES], cell->us, cell->algbw, cell->busbw,
	    (unsigned long long)cell->wrong);
	fflush(stdout);
	if (!o->base.ranks.json)
		return;
	json_rows = json_rows ? json_rows : json_array();
	json_array_append_new(json_rows,
	    json_pack("{s:I, s:I, s:s, s:s, s:s, s:f, s:f, s:f, s:I}", "bytes", (json_int_t)row->bytes, "count",
	        (json_int_t)row->count, "dtype", shunt_dtype_name(o->dtype), "place",
	        bench_place_names[row->way % BENCH_NPLACES], "mode", bench_mode_names[row->way / BENCH_NPLACES],
	        "time_us", cell->us, "algbw", cell->algbw, "busbw", cell->busbw, "wrong", (json_int_t)cell->wrong));
}

static int run_finish(const struct bench_rank *r)
{
	if (r->nrows)
		printf("# %s\n", r->wrong ? "there are wrong values" : "all values are right, and the plan made them");
	else
		tool_error("no size from %llu to %llu bytes is one that the plan admits",
		    (unsigned long long)r->o->first, (unsigned long long)r->o->last);
	if (r->nrows && r->o->ranks.json && json_write(r))
		return TOOL_FAIL;
	return r->wrong || !r->nrows ? TOOL_FAIL : TOOL_OK;
}

static const struct bench_guest guest = {
	.open = rank_open,
	.admits = size_admits,
	.checked = plan_was_used,
	.row = row_print,
	.finish = run_finish,
};

/* ---- the command */

/* -1: go on; else the exit status. The caller drops o->plan in every case. */
static int opts_parse(struct plan_run_opts *o, int argc, char **argv, int *first_p)
{
	int status;

	*o = (struct plan_run_opts){ .base = { .factor = 4,
		                         .places = { true, true },
		                         .warmup = -1,
		                         .iters = -1,
		                         .rounds = -1,
		                         .buffers = 1,
		                         .group = 1,
		                         .check = true,
		                         .seed = 1,
		                         .guest = &guest,
		                         .ranks = RANKS_OPTS(60, "shunt") },
		.dtype = SHUNT_F32 };
	o->base.ranks.way_names = bench_way_names;
	status = options_parse(&plan_run_options, o, argc, argv, first_p);
	if (status >= 0)
		return status;
	if (*first_p == argc)
		return tool_usage_error("which plan?");
	if (*first_p + 1 < argc && o->base.ranks.json)
		return tool_usage_error("--json takes one plan; \"%s\" is one too many", argv[*first_p + 1]);
	return -1;
}

/* several: a plan that no call of NCCL means is skipped. */
static int file_run(struct plan_run_opts *o, bool several, int argc, char **argv)
{
	int status = TOOL_FAIL;

	o->file = argv[argc - 1];
	o->plan = plan_open(o->file);
	if (several && o->plan && !plan_is_a_call(o->plan)) {
		printf("# %s: skipped: no NCCL call means it\n", o->plan->name);
		status = TOOL_OK;
	} else if (o->plan) {
		status = plan_suit(o);
		status = status ? status : -1;
	}
	o->base.dtypes = 1u << o->dtype;
	o->base.redops = 1u << o->redop;
	o->base.modes[o->graph ? BENCH_GRAPH : BENCH_EAGER] = true;
	/* No other plans: the cache directory may have one with the same name. */
	if (status < 0 && (unsetenv("SHUNT_PLAN_DIR") || setenv("SHUNT_CACHE_DIR", "/dev/null", 1))) {
		tool_error("out of memory");
		status = TOOL_FAIL;
	}
	fflush(stdout);
	if (status < 0)
		status = o->base.ranks.worker_fd >= 0 ? bench_worker(&o->base) : ranks_run(&o->base.ranks, argc, argv);
	shunt_plan_unref(o->plan);
	return status;
}

int plan_run_main(int argc, char **argv)
{
	struct plan_run_opts o;
	int first, at, status = opts_parse(&o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (first + 1 == argc)
		return file_run(&o, false, argc, argv);
	status = TOOL_OK;
	/* The options stand before the files. */
	for (int i = first; i < argc && status <= TOOL_FAIL; i++) {
		char **one = calloc((size_t)first + 2, sizeof(*one));
		int result = TOOL_FAIL;

		if (!one) {
			tool_error("out of memory");
			return TOOL_FAIL;
		}
		memcpy(one, argv, (size_t)first * sizeof(*one));
		one[first] = argv[i];
		if (opts_parse(&o, first + 1, one, &at) < 0)
			result = file_run(&o, true, first + 1, one);
		status = result > status ? result : status;
		free(one);
	}
	return status;
}
