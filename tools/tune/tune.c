/* SPDX-License-Identifier: MIT */
/* The options of shunt tune. tools/bench/bench.c starts and watches its ranks. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/env.h"
#include "tools/tune/tune.h"

static const char tune_help[] =
    "usage: shunt tune [COLLECTIVE...] [options]\n"
    "       shunt tune --show FILE\n\n"
    "Measures each of Shunt's algorithms with several numbers of blocks and threads, and the real NCCL, for every "
    "collective and\n"
    "size on this machine, and writes a tuning file that communicators of as many ranks take from then on. Where NCCL "
    "is\n"
    "as fast, calls go to it. A run that was stopped goes on where it was. Collectives: all_reduce, all_gather, "
    "reduce_scatter,\n"
    "broadcast, reduce, alltoall, gather, scatter, sendrecv; all of them if none is named. Of those not named the file "
    "keeps what it has.\n\n"
    "  -n, --ranks N        ranks, 2 to 8 (all GPUs; 4 on the sim)\n"
    "  -b, --first SIZE     smallest size, bytes of the larger side (1K; 256 on the sim)\n"
    "  -e, --last SIZE      largest size (256M; 4K on the sim)\n"
    "  -f, --factor N       from one size to the next (2; 4 on the sim)\n"
    "  -d, --dtype TYPE     data type (float16)\n"
    "      --blocks LIST    numbers of blocks to try, comma separated, at most 64 (8,16,32,64; 1,2 on the sim)\n"
    "      --threads LIST   threads of a block to try, multiples of 32, at most 512 (128,256,512; 64 on the sim)\n"
    "  -r, --rounds N       rounds of those that are nearly the fastest; medians are over these (15; 1 on the sim)\n"
    "      --margin PERCENT how much faster than NCCL we have to be (1)\n"
    "      --quick          sizes by factors of 4, fewer blocks, threads and rounds; ends after 4 minutes at most\n"
    "      --minutes M      end after so many minutes, with what is measured then; the same command goes on from "
    "there\n"
    "      --no-nccl        do not measure the real NCCL: the file will do for standalone only\n"
    "      --no-check       do not compare results with a reference\n"
    "      --device D       auto, cuda or sim\n"
    "      --timeout S      end the run after S seconds without progress (300)\n"
    "  -o, --output FILE    tuning file (a name for this machine in ~/.cache/shunt/tuning, or SHUNT_CACHE_DIR's)\n"
    "      --restart        forget what an earlier run that was stopped has measured\n"
    "      --show FILE      print a tuning file's table of before and after\n\n"
    "Times are microseconds per call on the slowest rank, in graphs; a candidate must not lose to NCCL when it is "
    "called eagerly either.\n"
    "On the sim the numbers mean nothing, and the file says that it is for the sim.\n"
    "The coarse grid of sizes comes first, then what is between. A collective of which that grid is not complete stays "
    "with the built-in table.\n"
    "Exit status: 0; 1 after an error or a wrong result; 2 for a wrong option; a rank's own status if it died.\n";

enum {
	OPT_BLOCKS = 256,
	OPT_THREADS,
	OPT_MARGIN,
	OPT_NO_NCCL,
	OPT_NO_CHECK,
	OPT_RESTART,
	OPT_SHOW,
	OPT_QUICK,
	OPT_MINUTES
};

static const struct option long_options[] = {
	{ "ranks", required_argument, NULL, 'n' },
	{ "first", required_argument, NULL, 'b' },
	{ "last", required_argument, NULL, 'e' },
	{ "factor", required_argument, NULL, 'f' },
	{ "dtype", required_argument, NULL, 'd' },
	{ "blocks", required_argument, NULL, OPT_BLOCKS },
	{ "threads", required_argument, NULL, OPT_THREADS },
	{ "rounds", required_argument, NULL, 'r' },
	{ "margin", required_argument, NULL, OPT_MARGIN },
	{ "quick", no_argument, NULL, OPT_QUICK },
	{ "minutes", required_argument, NULL, OPT_MINUTES },
	{ "no-nccl", no_argument, NULL, OPT_NO_NCCL },
	{ "no-check", no_argument, NULL, OPT_NO_CHECK },
	{ "device", required_argument, NULL, BENCH_OPT_DEVICE },
	{ "timeout", required_argument, NULL, BENCH_OPT_TIMEOUT },
	{ "output", required_argument, NULL, 'o' },
	{ "restart", no_argument, NULL, OPT_RESTART },
	{ "show", required_argument, NULL, OPT_SHOW },
	{ "worker", required_argument, NULL, BENCH_OPT_WORKER },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static bool list_parse(const char *text, unsigned most, unsigned step, unsigned *list, int *n_p)
{
	char copy[64], *save = NULL;

	if (strlen(text) >= sizeof(copy))
		return false;
	strcpy(copy, text);
	*n_p = 0;
	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		if (*n_p == TUNE_MAX_LIST)
			return tool_refuse(false, text, "at most %d can be tried", TUNE_MAX_LIST);
		if (tool_parse_uint(word, 1, most, &list[*n_p]))
			return false;
		if (list[*n_p] % step)
			return tool_refuse(false, word, "%s is no multiple of %u", word, step);
		++*n_p;
	}
	return *n_p > 0;
}

static bool option_apply(void *opts, int opt, const char *arg)
{
	struct tune_opts *o = opts;
	struct bench_opts *b = &o->base;
	unsigned n = 0;
	int found;

	switch (opt) {
	case 'n':
		if (tool_parse_uint(arg, 2, SHUNT_MAX_RANKS, &n))
			return false;
		b->nranks = (int)n;
		return true;
	case 'b':
		return !tool_parse_size(arg, 1, UINT64_MAX, &b->first);
	case 'e':
		return !tool_parse_size(arg, 1, UINT64_MAX, &b->last);
	case 'f':
		return !tool_parse_uint(arg, 2, 1u << 20, &b->factor);
	case 'd':
		found = tool_dtype_find(arg);
		o->dtype = (enum shunt_dtype)found;
		return found >= 0;
	case OPT_BLOCKS:
		return list_parse(arg, SHUNT_MAX_BLOCKS, 1, o->blocks, &o->nblocks);
	case OPT_THREADS:
		return list_parse(arg, SHUNT_MAX_THREADS, 32, o->threads, &o->nthreads);
	case 'r':
		if (tool_parse_uint(arg, 1, 100, &n))
			return false;
		b->rounds = (int)n;
		return true;
	case OPT_MARGIN:
		if (tool_parse_uint(arg, 0, 100, &n))
			return false;
		o->margin = n / 100.0;
		return true;
	case OPT_QUICK:
		o->quick = true;
		return true;
	case OPT_MINUTES:
		return !tool_parse_minutes(arg, &o->minutes);
	case OPT_NO_NCCL:
		o->no_nccl = true;
		return true;
	case OPT_NO_CHECK:
		b->check = false;
		return true;
	case 'o':
		o->out = arg;
		return *arg;
	case OPT_RESTART:
		o->restart = true;
		return true;
	case OPT_SHOW:
		o->show = arg;
		return true;
	}
	return !bench_opts_start(b, opt, arg);
}

static bool tunable(const struct bench_coll *coll)
{
	return !coll->conform_only && !coll->uneven;
}

/* NCCL is measured without tuning variables. */
static int environment_check(void)
{
	static const char *const names[] = { "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (shunt_env(names[i])) {
			tool_error(
			    "%s is set%s, so that neither NCCL nor Shunt would be measured as it is without it: %s",
			    names[i], shunt_env_from_file(names[i]) ? " in NCCL's configuration file" : "",
			    shunt_env_from_file(names[i]) ? "take it out, or name another file with NCCL_CONF_FILE" :
			                                    "unset it");
			return TOOL_FAIL;
		}
	return TOOL_OK;
}

static int tune_main(int argc, char **argv)
{
	struct tune_opts o = { .base = { .coll = &bench_colls[0],
		                   .rounds = -1,
		                   .buffers = 1,
		                   .group = 1,
		                   .check = true,
		                   .timeout_s = 300,
		                   .libs = { "shunt", "nccl" },
		                   .nlibs = 1,
		                   .worker_fd = -1,
		                   .worker_index = -1 },
		.dtype = SHUNT_F16,
		.margin = 0.01 };
	static const struct tool_options options = { ":n:b:e:f:d:r:o:h", long_options, tune_help, option_apply };
	struct stat st;
	int status;

	status = tool_options_apply(&options, &o, argc, argv);
	if (status >= 0)
		return status;
	if (o.show)
		return tune_show(o.show);
	if (o.out && !stat(o.out, &st) && S_ISDIR(st.st_mode))
		return tool_usage_error("--output: %s is a directory, and it takes a file", o.out);
	if (o.out && !stat(o.out, &st) && !S_ISREG(st.st_mode))
		return tool_usage_error("--output: %s is a device or a pipe, and a file would take its place", o.out);
	for (int i = optind; i < argc; i++) {
		const struct bench_coll *coll = bench_coll_find(argv[i]);

		if (!coll || !tunable(coll))
			return tool_usage_error("\"%s\" is not a collective that can be tuned; these are all_reduce, "
			                        "all_gather, reduce_scatter, broadcast, reduce, "
			                        "alltoall, gather, scatter and sendrecv",
			    argv[i]);
		o.colls |= 1u << (coll - bench_colls);
	}
	for (int i = 0; optind == argc && bench_colls[i].name; i++)
		if (tunable(&bench_colls[i]))
			o.colls |= 1u << i;
	if (o.base.first && o.base.last && o.base.first > o.base.last)
		return tool_usage_error("the sizes must be --first <= --last");
	if (o.base.worker_fd >= 0)
		return tune_worker(&o);
	return environment_check() ? TOOL_FAIL : bench_launch_run(&o.base, argc, argv);
}

const struct tool_cmd tool_cmd_tune = { .name = "tune",
	.summary = "measure this machine and write a tuning file for it",
	.help = tune_help,
	.run = tune_main };
