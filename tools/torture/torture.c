/* SPDX-License-Identifier: MIT */
/* shunt torture: options. */
#include <getopt.h>
#include <stdlib.h>
#include "tools/torture/torture.h"

static const char torture_help[] =
    "usage: shunt torture [options]\n\n"
    "Runs random collectives and messages, groups, graphs, streams and communicators, with ranks that come late, and "
    "checks\n"
    "every result. All ranks choose the same random calls from the seed.\n\n"
    "  --minutes M         how long (1)\n"
    "  --ops K             instead: how many calls\n"
    "  --seed N            the random seed (a new one each time, which is printed)\n"
    "  --lib LIB           shunt (default), nccl (the real one that shunt finds), or a path\n"
    "  -n, --ranks N       ranks to start, 8 at most (all GPUs; 4 on the sim)\n"
    "  --threads           ranks are threads of one process\n"
    "  --device D          auto, cuda or sim\n"
    "  --max SIZE          of the larger side of a call, 64 to 1G (16M; 64K on the sim)\n"
    "  --shared            others use the devices meanwhile: what memory of them is in use is not compared\n"
    "  --timeout S         end the run after S seconds without progress (60)\n"
    "  --rendezvous DIR    under mpirun or srun: a directory that all ranks see\n\n"
    "Results of up to 1 MiB are compared as a whole, larger ones in places. Every now and then all communicators are\n"
    "destroyed; memory and descriptors must then be back. A failing run is repeated by its seed.\n"
    "Exit status: 0; 1 if a value was wrong, a call failed, something was not given back or nothing moved; 2 for a "
    "wrong\n"
    "option; a rank's own status if it died.\n";

enum { OPT_MINUTES = 256, OPT_OPS, OPT_SEED, OPT_LIB, OPT_MAX, OPT_SHARED };

static const struct option long_options[] = {
	{ "minutes", required_argument, NULL, OPT_MINUTES },
	{ "ops", required_argument, NULL, OPT_OPS },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "lib", required_argument, NULL, OPT_LIB },
	{ "ranks", required_argument, NULL, 'n' },
	BENCH_OPTS_START,
	{ "max", required_argument, NULL, OPT_MAX },
	{ "shared", no_argument, NULL, OPT_SHARED },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

/* False: arg is not a value of this option. */
static bool option_apply(void *opts, int opt, const char *arg)
{
	struct torture_opts *o = opts;
	struct bench_opts *b = &o->base;
	unsigned n = 0;

	switch (opt) {
	case OPT_MINUTES:
		return !tool_parse_minutes(arg, &o->minutes);
	case OPT_OPS:
		return !tool_parse_size(arg, 1, UINT64_MAX, &o->ops);
	case OPT_SEED:
		return !tool_parse_size(arg, 1, INT64_MAX, &b->seed);
	case OPT_LIB:
		b->libs[0] = arg;
		return true;
	case 'n':
		if (tool_parse_uint(arg, 1, TORTURE_MAX_RANKS, &n))
			return false;
		b->nranks = (int)n;
		return true;
	case OPT_SHARED:
		o->shared = true;
		return true;
	case OPT_MAX:
		return !tool_parse_size(arg, 64, 1ull << 30, &o->max_bytes);
	}
	return !bench_opts_start(b, opt, arg);
}

static int torture_main(int argc, char **argv)
{
	struct torture_opts o = {
		.base = { .libs = { "shunt" }, .nlibs = 1, .timeout_s = 60, .worker_fd = -1, .worker_index = -1 }
	};
	static const struct tool_options options = { ":n:h", long_options, torture_help, option_apply };
	int status;

	status = tool_options_apply(&options, &o, argc, argv);
	if (status >= 0)
		return status;
	if (optind < argc)
		return tool_usage_error("\"%s\" is not an option", argv[optind]);
	if (o.minutes > 0 && o.ops)
		return tool_usage_error("--minutes and --ops are two ends for one run; give one of them");
	return o.base.worker_fd >= 0 ? torture_worker(&o) : bench_launch_run(&o.base, argc, argv);
}

const struct tool_cmd tool_cmd_torture = { .name = "torture",
	.summary = "run random calls for a while and check every result",
	.help = torture_help,
	.run = torture_main };
