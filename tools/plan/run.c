/* SPDX-License-Identifier: MIT */
/*
 * shunt plan run: runs a plan through the library, as a program would. The parent reads plan and options and starts the
 * ranks as shunt bench does. Each rank registers the plan, sets a selector for it, and calls NCCL's function.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plan/format/hosts.h"
#include "tools/plan/run.h"

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
	{ "dtype", 'd', OPTION_WORD, "TYPE", AT(dtype), .find = tool_dtype_find,
	    .help = "float32 (default), float16, bfloat16, int8, ..." },
	{ "in-place", 0, OPTION_CALL, .call = place_apply, .help = "only these calls (default: both kinds)" },
	{ "out-of-place", 0, OPTION_CALL, .call = place_apply, .help = "only the others" },
	{ "graph", 0, OPTION_FLAG, AT(graph), .help = "captured once and replayed, instead of call by call" },
	{ "iters", 'i', OPTION_NUMBER, "N", AT(base.iters), 1, 1u << 20,
	    .help = "calls of a round (20, on the sim 2)" },
	{ "rounds", 'r', OPTION_NUMBER, "N", AT(base.rounds), 1, BENCH_MAX_ROUNDS, .help = "(10, on the sim 3)" },
	{ "seed", 0, OPTION_SIZE, "N", AT(base.seed), 0, UINT64_MAX, .help = "of the inputs (1)" },
	RANKS_OPTION_HOSTS,
	RANKS_OPTIONS_START("60"),
	{ .type = OPTION_END },
};
const struct option_table plan_run_options = {
	"usage: shunt plan run [options] FILE\n\n"
	"Runs a plan through libshunt.so, one process for each rank, on GPUs or on the sim; compares every result with "
	"a "
	"plain\n"
	"reference, with inputs whose result is exact and with others, and measures. A line for each size: the median "
	"over "
	"rounds\n"
	"of the slowest rank's time of a call.\n\n",
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

/* -1: go on; else the exit status. The caller drops o->plan in every case. */
static int opts_parse(struct plan_run_opts *o, int argc, char **argv)
{
	int first, status;

	*o = (struct plan_run_opts){ .base = { .factor = 4,
		                         .places = { true, true },
		                         .iters = -1,
		                         .rounds = -1,
		                         .buffers = 1,
		                         .group = 1,
		                         .seed = 1,
		                         .ranks = RANKS_OPTS(60, "shunt") },
		.dtype = SHUNT_F32 };
	o->base.ranks.way_names = bench_way_names;
	status = options_parse(&plan_run_options, o, argc, argv, &first);
	if (status >= 0)
		return status;
	if (first == argc)
		return tool_usage_error("which plan?");
	if (first + 1 < argc)
		return tool_usage_error("it takes one plan; \"%s\" is one too many", argv[first + 1]);
	o->file = argv[first];
	o->plan = plan_open(o->file);
	status = o->plan ? plan_suit(o) : TOOL_FAIL;
	return status ? status : -1;
}

int plan_run_main(int argc, char **argv)
{
	struct plan_run_opts o;
	int status = opts_parse(&o, argc, argv);

	/* No other plans: the cache directory may have one with the same name. */
	if (status < 0 && (unsetenv("SHUNT_PLAN_DIR") || setenv("SHUNT_CACHE_DIR", "/dev/null", 1))) {
		tool_error("out of memory");
		status = TOOL_FAIL;
	}
	if (status < 0)
		status = o.base.ranks.worker_fd >= 0 ? ranks_slots_run(&o.base.ranks, plan_run_rank, &o) :
		                                       ranks_run(&o.base.ranks, argc, argv);
	shunt_plan_unref(o.plan);
	return status;
}
