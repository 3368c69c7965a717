/* SPDX-License-Identifier: MIT */
/*
 * shunt plan run: runs a plan through the library, as a program would. The parent reads plan and options and starts the
 * ranks as shunt bench does. Each rank registers the plan, sets a selector for it, and calls NCCL's function.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include "tools/plan/run.h"

const char plan_run_help[] =
    "usage: shunt plan run [options] FILE\n\n"
    "Runs a plan through libshunt.so, one process for each rank, on GPUs or on the sim; compares every result with a "
    "plain\n"
    "reference, with inputs whose result is exact and with others, and measures. A line for each size: the median over "
    "rounds\n"
    "of the slowest rank's time of a call.\n\n"
    "  -n, --ranks N          as many as the plan has; anything else is an error\n"
    "  -b, --first SIZE       smallest message in bytes, as the plan counts them (1K, or what the plan admits)\n"
    "  -e, --last SIZE        largest (64M, on the sim 256K)\n"
    "  -f, --factor N         from one to the next (4)\n"
    "  -d, --dtype TYPE       float32 (default), float16, bfloat16, int8, ...\n"
    "      --in-place, --out-of-place   only these (default: both)\n"
    "      --graph            captured once and replayed, instead of call by call\n"
    "  -i, --iters N          calls of a round (20, on the sim 2)\n"
    "  -r, --rounds N         (10, on the sim 3)\n"
    "      --seed N           of the inputs (1)\n"
    "      --threads          ranks are threads of one process\n"
    "      --device D         auto, cuda or sim\n"
    "      --timeout S        end when nothing has moved for so long (60)\n\n"
    "Exit status: 0 all values are right and the plan made them, 1 not so, 2 wrong option.\n";

enum { OPT_IN_PLACE = 256, OPT_OUT_OF_PLACE, OPT_GRAPH, OPT_SEED };

static int option_apply(struct plan_run_opts *o, int opt, const char *arg)
{
	struct bench_opts *b = &o->base;
	unsigned n = 0;
	int err;

	switch (opt) {
	case 'n':
		err = tool_parse_uint(arg, 1, BENCH_MAX_RANKS, &n);
		b->nranks = (int)n;
		return err;
	case 'b':
		return tool_parse_size(arg, 1, UINT64_MAX, &b->first);
	case 'e':
		return tool_parse_size(arg, 1, UINT64_MAX, &b->last);
	case 'f':
		return tool_parse_uint(arg, 2, 1u << 20, &b->factor);
	case 'd':
		err = tool_dtype_find(arg);
		o->dtype = (enum shunt_dtype)err;
		return err < 0 ? -EINVAL : 0;
	case 'i':
		err = tool_parse_uint(arg, 1, 1u << 20, &n);
		b->iters = (int)n;
		return err;
	case 'r':
		err = tool_parse_uint(arg, 1, BENCH_MAX_ROUNDS, &n);
		b->rounds = (int)n;
		return err;
	case OPT_IN_PLACE:
	case OPT_OUT_OF_PLACE:
		b->places[opt == OPT_IN_PLACE ? BENCH_OUT : BENCH_IN] = false;
		return 0;
	case OPT_GRAPH:
		o->graph = true;
		return 0;
	case OPT_SEED:
		return tool_parse_size(arg, 0, UINT64_MAX, &b->seed);
	}
	return bench_opts_start(b, opt, arg);
}

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
	char range[64];

	b->coll = coll_of(p);
	if (!b->coll) {
		tool_error("%s is a plan for %s, which no NCCL call means", p->name,
		    shunt_plan_collective_name(p->collective));
		return TOOL_FAIL;
	}
	if (b->nranks && b->nranks != (int)p->nranks) {
		tool_error("%s is for %u ranks, not for %d", p->name, p->nranks, b->nranks);
		return TOOL_FAIL;
	}
	if (p->nranks > 16) {
		tool_error("%s is for %u ranks, and values can be checked for up to 16", p->name, p->nranks);
		return TOOL_FAIL;
	}
	b->nranks = (int)p->nranks;
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

/* 0, or an exit status after a message. The caller drops o->plan in every case. */
static int opts_parse(struct plan_run_opts *o, int argc, char **argv)
{
	static const struct option options[] = { { "ranks", required_argument, NULL, 'n' },
		{ "first", required_argument, NULL, 'b' }, { "last", required_argument, NULL, 'e' },
		{ "factor", required_argument, NULL, 'f' }, { "dtype", required_argument, NULL, 'd' },
		{ "iters", required_argument, NULL, 'i' }, { "rounds", required_argument, NULL, 'r' },
		{ "in-place", no_argument, NULL, OPT_IN_PLACE },
		{ "out-of-place", no_argument, NULL, OPT_OUT_OF_PLACE }, { "graph", no_argument, NULL, OPT_GRAPH },
		{ "seed", required_argument, NULL, OPT_SEED }, { "threads", no_argument, NULL, BENCH_OPT_THREADS },
		{ "device", required_argument, NULL, BENCH_OPT_DEVICE },
		{ "timeout", required_argument, NULL, BENCH_OPT_TIMEOUT }, { 0 } };
	int opt, err;

	*o = (struct plan_run_opts){ .base = { .factor = 4,
		                         .places = { true, true },
		                         .iters = -1,
		                         .rounds = -1,
		                         .buffers = 1,
		                         .group = 1,
		                         .timeout_s = 60,
		                         .seed = 1,
		                         .libs = { "shunt" },
		                         .nlibs = 1,
		                         .worker_fd = -1,
		                         .worker_index = -1 },
		.dtype = SHUNT_F32 };
	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":n:b:e:f:d:i:r:", options, NULL)) != -1) {
		if (opt == ':' || opt == '?')
			return tool_option_error(opt, argv[optind - 1]);
		err = option_apply(o, opt, optarg);
		if (err)
			return tool_value_error(options, opt, optarg, err);
	}
	if (optind == argc)
		return tool_usage_error("which plan?");
	if (optind + 1 < argc)
		return tool_usage_error("it takes one plan; \"%s\" is one too many", argv[optind + 1]);
	o->file = argv[optind];
	o->plan = plan_open(o->file);
	return o->plan ? plan_suit(o) : TOOL_FAIL;
}

int plan_run_main(int argc, char **argv)
{
	struct plan_run_opts o;
	char **args = calloc((size_t)argc + 2, sizeof(*args));
	int status;

	if (!args) {
		tool_error("out of memory");
		return TOOL_FAIL;
	}
	args[0] = "plan";
	memcpy(args + 1, argv, (size_t)argc * sizeof(*args));
	status = opts_parse(&o, argc, argv);
	/* No other plans: the cache directory may have one with the same name. */
	if (!status && (unsetenv("SHUNT_PLAN_DIR") || setenv("SHUNT_CACHE_DIR", "/dev/null", 1))) {
		tool_error("out of memory");
		status = TOOL_FAIL;
	}
	if (!status)
		status = bench_launch_run(&o.base, argc + 1, args);
	shunt_plan_unref(o.plan);
	free(args);
	return status;
}

int plan_run_worker(int argc, char **argv)
{
	struct plan_run_opts o;
	int fd, index, status;

	if (argc < 4 || sscanf(argv[1], "--worker=%d:%d", &fd, &index) != 2)
		return tool_usage_error("--worker is not for you: plan run gives it to the processes that it starts");
	status = opts_parse(&o, argc - 2, argv + 2);
	o.base.worker_fd = fd;
	o.base.worker_index = index;
	if (!status)
		status = bench_rank_slots_run(&o.base, plan_run_rank, &o);
	shunt_plan_unref(o.plan);
	return status;
}
