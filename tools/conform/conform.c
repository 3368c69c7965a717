/* SPDX-License-Identifier: MIT */
/* shunt conform: options. */
#include <getopt.h>
#include <malloc.h>
#include <stdlib.h>
#include "tools/conform/conform.h"

static const char conform_help[] =
    "usage: shunt conform [options]\n\n"
    "Runs a table of cases (single calls, groups as programs make them, sequences, invalid calls) with a library that "
    "speaks\n"
    "NCCL's ABI and compares every byte and every return code with a reference; with --vs also with another "
    "library.\n\n"
    "  --lib LIB           shunt (default), nccl (the real one that shunt finds), or a path\n"
    "  --vs LIB            another library, run side by side on the same inputs\n"
    "  -n, --ranks N       ranks to start, 16 at most (all GPUs; 4 on the sim)\n"
    "  --threads           ranks are threads of one process\n"
    "  --one-thread        one thread drives all devices, by ncclCommInitAll and groups of all ranks' calls\n"
    "  --device D          auto, cuda or sim\n"
    "  --quick, --full     how many cases (quick)\n"
    "  --huge[=SIZE]       messages of this size as well (4G; give a smaller one to try it)\n"
    "  --filter TEXT       only cases whose name contains TEXT\n"
    "  --case NAME         only this case\n"
    "  --list              print the names and run nothing (give -n too)\n"
    "  --seed N            of the data (1)\n"
    "  --strict            a case that is skipped because a library lacks a function has failed\n"
    "  --timeout S         end the run after S seconds without progress (60)\n"
    "  --rendezvous DIR    under mpirun or srun: a directory that all ranks see\n"
    "  --json FILE         every case with its status\n"
    "  -v, --verbose       a line for every case\n\n"
    "Every failure comes with the command that runs that case alone. The last line is: N passed, N failed, N skipped.\n"
    "Exit status: 0; 1 if a case failed or nothing was compared; 2 for a wrong option; a rank's own status if it "
    "died.\n";

enum {
	OPT_LIB = 256,
	OPT_VS,
	OPT_QUICK,
	OPT_FULL,
	OPT_FILTER,
	OPT_CASE,
	OPT_LIST,
	OPT_SEED,
	OPT_STRICT,
	OPT_JSON,
	OPT_ONE_THREAD,
	OPT_HUGE
};

static const struct option long_options[] = {
	{ "lib", required_argument, NULL, OPT_LIB },
	{ "vs", required_argument, NULL, OPT_VS },
	{ "ranks", required_argument, NULL, 'n' },
	BENCH_OPTS_START,
	{ "one-thread", no_argument, NULL, OPT_ONE_THREAD },
	{ "huge", optional_argument, NULL, OPT_HUGE },
	{ "quick", no_argument, NULL, OPT_QUICK },
	{ "full", no_argument, NULL, OPT_FULL },
	{ "filter", required_argument, NULL, OPT_FILTER },
	{ "case", required_argument, NULL, OPT_CASE },
	{ "list", no_argument, NULL, OPT_LIST },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "strict", no_argument, NULL, OPT_STRICT },
	{ "json", required_argument, NULL, OPT_JSON },
	{ "verbose", no_argument, NULL, 'v' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

/* False: arg is not a value of this option. */
static bool option_apply(void *opts, int opt, const char *arg)
{
	struct conform_opts *o = opts;
	struct bench_opts *b = &o->base;
	unsigned n = 0;

	switch (opt) {
	case OPT_LIB:
		b->libs[0] = arg;
		return true;
	case OPT_VS:
		if (b->nlibs == BENCH_MAX_LIBS)
			return false;
		b->libs[b->nlibs++] = arg;
		return true;
	case 'n':
		if (tool_parse_uint(arg, 1, 16, &n)) /* the reference reduces 16 inputs at most */
			return false;
		b->nranks = (int)n;
		return true;
	case OPT_ONE_THREAD:
		b->threads = b->single_thread = true;
		return true;
	case OPT_HUGE:
		o->huge = 4ull << 30;
		return !arg || !tool_parse_size(arg, 1, UINT64_MAX, &o->huge);
	case OPT_QUICK:
	case OPT_FULL:
		o->full = opt == OPT_FULL;
		return true;
	case OPT_FILTER:
		o->filter = arg;
		return true;
	case OPT_CASE:
		o->only = arg;
		return true;
	case OPT_LIST:
		o->list = true;
		return true;
	case OPT_SEED:
		return !tool_parse_size(arg, 0, INT64_MAX, &b->seed);
	case OPT_STRICT:
		o->strict_missing = true;
		return true;
	case OPT_JSON:
		b->json = arg;
		return true;
	case 'v':
		o->verbose = true;
		return true;
	}
	return !bench_opts_start(b, opt, arg);
}

static int list_print(const struct conform_opts *o)
{
	struct conform_list list = { 0 };
	int err = conform_cases(o, o->base.nranks ? o->base.nranks : 4, &list);

	for (size_t i = 0; i < list.n; i++)
		puts(list.cases[i].name);
	free(list.cases);
	return err ? TOOL_FAIL : TOOL_OK;
}

static int conform_main(int argc, char **argv)
{
	struct conform_opts o = { .base = { .libs = { "shunt" },
		                      .nlibs = 1,
		                      .timeout_s = 60,
		                      .seed = 1,
		                      .worker_fd = -1,
		                      .worker_index = -1 } };
	static const struct tool_options options = { ":n:vh", long_options, conform_help, option_apply };
	int status;

	/* Thousands of cases allocate buffers: keep the pages. */
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	status = tool_options_apply(&options, &o, argc, argv);
	if (status >= 0)
		return status;
	if (optind < argc)
		return tool_usage_error("\"%s\" is not an option", argv[optind]);
	if (o.list)
		return list_print(&o);
	return o.base.worker_fd >= 0 ? conform_worker(&o) : bench_launch_run(&o.base, argc, argv);
}

const struct tool_cmd tool_cmd_conform = { .name = "conform",
	.summary = "check a library against a reference, or against another one",
	.help = conform_help,
	.run = conform_main };
