/* SPDX-License-Identifier: MIT */
/* The options of shunt bench. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "tools/bench/bench.h"

const char bench_help[] =
    "usage: shunt bench [COLLECTIVE] [options]\n"
    "       shunt bench report FILE.json... -o FILE.html [options]     (shunt bench report --help)\n\n"
    "Measures a collective of one or more libraries that speak NCCL's ABI, interleaved in one run, and checks every "
    "result.\n"
    "Starts its own ranks, or is one rank when it runs under torchrun, mpirun or srun. Collectives: all_reduce "
    "(default),\n"
    "all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv (a ring), alltoallv (a group "
    "of messages;\n"
    "from rank r to rank s 1 + (s - r mod n) parts, so that all ranks have as much, and no two pairs of one rank).\n\n"
    "What to measure\n"
    "  --lib LIB            shunt (default), nccl (the real one that shunt finds), forwarded (shunt, handing every "
    "call on\n"
    "                       to it), or a path\n"
    "  --vs LIB             another one to compare it with; may be given three times\n"
    "                       LIB:reg: with buffers of its ncclMemAlloc, registered by ncclCommWindowRegister as "
    "symmetric\n"
    "  --register           all libraries with such buffers\n"
    "  -b, --first SIZE     smallest size, bytes of the larger side (8)\n"
    "  -e, --last SIZE      largest size (64M)\n"
    "  -f, --factor N       from one size to the next (2)\n"
    "  -d, --dtype LIST     data types, comma separated, or all (float32)\n"
    "  -o, --op LIST        sum, prod, max, min, avg, or all (sum)\n"
    "  -R, --root N         of broadcast, reduce, gather, scatter (0)\n"
    "  -g, --group K        make K calls in one group; times are per call all the same (1)\n"
    "  --mode M             eager, graph or both (both)\n"
    "  --in-place, --out-of-place, --both-places    (both)\n"
    "  --buffers K          take K pairs of buffers in turn (1)\n"
    "  --rotate MB          take as many pairs in turn as fill MB on each side, so that caches do not help; in a graph "
    "its 20\n"
    "                       calls have buffers of their own\n"
    "  --skew US            every rank waits a random time up to US before each call, or launch of a graph; its own "
    "waits are\n"
    "                       not counted, those for the others are\n"
    "  --host               measure what a call costs the host: time and CPU time of the calls, without what they "
    "start\n"
    "  --gemm               measure each round once more beside matrix multiplications (bfloat16, by cuBLAS) on "
    "another stream\n"
    "                       of each GPU: the calls' time then, and what becomes of the multiplications\n"
    "  --init               measure communicators instead: time and device memory of ncclCommInitRank, of the first "
    "call (of\n"
    "                       --first bytes; 1M), of --comms more by ncclCommSplit, and of a first call of these\n"
    "  --comms K            how many more (4)\n"
    "How\n"
    "  -n, --ranks N        ranks to start (all GPUs; 4 on the sim)\n"
    "  --threads            ranks are threads of one process\n"
    "  --device D           auto, cuda or sim\n"
    "  -w, --warmup N       calls before the timing (GPU 5, sim 1)\n"
    "  -i, --iters N        calls per round (GPU 20, sim 2; with --host 50)\n"
    "  -r, --rounds N       rounds; median and p99 are over these (GPU 20, sim 3)\n"
    "  --check, --no-check  compare every result with a reference (on)\n"
    "  --seed N             of the data (random)\n"
    "  --timeout S          end the run after S seconds without progress (300)\n"
    "  --rendezvous DIR     under mpirun or srun: a directory that all ranks see\n"
    "What to print\n"
    "  --json FILE          everything, every round included\n"
    "  --stats              the counters of rank 0's communicators at the end\n\n"
    "Times are microseconds per call on the slowest rank: host clock around --iters calls and one synchronisation; in "
    "graph mode\n"
    "graphs of 20 calls. algbw = bytes / time, busbw = algbw x F, both in GB/s; sizes, counts and F are nccl-tests': F "
    "is\n"
    "2(n-1)/n for all_reduce, (n-1)/n where one side has a block for each rank, else 1. The ratio column is a "
    "library's\n"
    "time over the first one's: above 1 the first one is faster. Below the table is its geometric mean, for each "
    "library and\n"
    "for the fastest of the others at each size.\n"
    "Exit status: 0; 1 after an error or a wrong result; 2 for a wrong option; a rank's own status if it died.\n";

const char *const bench_mode_names[BENCH_NMODES] = { "eager", "graph" };
const char *const bench_place_names[BENCH_NPLACES] = { "out", "in" };

/* User-defined operators are not measured. */
static int redop_find(const char *name)
{
	const char *names[SHUNT_PREMUL];

	for (int i = 0; i < SHUNT_PREMUL; i++)
		names[i] = shunt_redop_name(i);
	return tool_lookup(name, names, SHUNT_PREMUL);
}

/* "a,b,c" or "all" to a bit set. */
static int list_parse(const char *text, int (*find)(const char *), unsigned all, unsigned *set_p)
{
	char copy[256], *save = NULL;
	unsigned set = 0;

	if (!strcmp(text, "all")) {
		*set_p = all;
		return 0;
	}
	if (strlen(text) >= sizeof(copy))
		return -EINVAL;
	strcpy(copy, text);
	for (char *name = strtok_r(copy, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
		int i = find(name);

		if (i < 0)
			return -EINVAL;
		set |= 1u << i;
	}
	*set_p = set;
	return set ? 0 : -EINVAL;
}

enum {
	OPT_LIB = 256,
	OPT_VS,
	OPT_MODE,
	OPT_IN,
	OPT_OUT,
	OPT_BOTH,
	OPT_BUFFERS,
	OPT_CHECK,
	OPT_NO_CHECK,
	OPT_SEED,
	OPT_JSON,
	OPT_STATS,
	OPT_ROTATE,
	OPT_SKEW,
	OPT_HOST,
	OPT_REGISTER,
	OPT_GEMM,
	OPT_INIT,
	OPT_COMMS
};

static const struct option long_options[] = {
	{ "lib", required_argument, NULL, OPT_LIB },
	{ "vs", required_argument, NULL, OPT_VS },
	{ "first", required_argument, NULL, 'b' },
	{ "last", required_argument, NULL, 'e' },
	{ "factor", required_argument, NULL, 'f' },
	{ "dtype", required_argument, NULL, 'd' },
	{ "op", required_argument, NULL, 'o' },
	{ "mode", required_argument, NULL, OPT_MODE },
	{ "in-place", no_argument, NULL, OPT_IN },
	{ "out-of-place", no_argument, NULL, OPT_OUT },
	{ "both-places", no_argument, NULL, OPT_BOTH },
	{ "buffers", required_argument, NULL, OPT_BUFFERS },
	{ "rotate", required_argument, NULL, OPT_ROTATE },
	{ "skew", required_argument, NULL, OPT_SKEW },
	{ "host", no_argument, NULL, OPT_HOST },
	{ "register", no_argument, NULL, OPT_REGISTER },
	{ "gemm", no_argument, NULL, OPT_GEMM },
	{ "init", no_argument, NULL, OPT_INIT },
	{ "comms", required_argument, NULL, OPT_COMMS },
	{ "root", required_argument, NULL, 'R' },
	{ "group", required_argument, NULL, 'g' },
	{ "ranks", required_argument, NULL, 'n' },
	BENCH_OPTS_START,
	{ "warmup", required_argument, NULL, 'w' },
	{ "iters", required_argument, NULL, 'i' },
	{ "rounds", required_argument, NULL, 'r' },
	{ "check", no_argument, NULL, OPT_CHECK },
	{ "no-check", no_argument, NULL, OPT_NO_CHECK },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "json", required_argument, NULL, OPT_JSON },
	{ "stats", no_argument, NULL, OPT_STATS },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static int mode_parse(struct bench_opts *o, const char *text)
{
	const char *const names[] = { bench_mode_names[BENCH_EAGER], bench_mode_names[BENCH_GRAPH], "both" };
	int mode = tool_lookup(text, names, 3);

	if (mode < 0)
		return -EINVAL;
	for (int i = 0; i < BENCH_NMODES; i++)
		o->modes[i] = mode == 2 || !strcmp(names[mode], bench_mode_names[i]);
	return 0;
}

int bench_opts_start(struct bench_opts *o, int opt, const char *arg)
{
	static const char *const devices[] = { "auto", "cuda", "sim" };

	switch (opt) {
	case BENCH_OPT_THREADS:
		o->threads = true;
		return 0;
	case BENCH_OPT_DEVICE:
		o->device = arg;
		return tool_lookup(arg, devices, 3) < 0 ? -EINVAL : 0;
	case BENCH_OPT_TIMEOUT:
		return tool_parse_uint(arg, 1, 1u << 20, &o->timeout_s);
	case BENCH_OPT_RENDEZVOUS:
		o->rendezvous = arg;
		return 0;
	case BENCH_OPT_WORKER:
		return sscanf(arg, "%d:%d", &o->worker_fd, &o->worker_index) == 2 ? 0 : -EINVAL;
	}
	return -EINVAL;
}

/* 0 or -EINVAL, -ERANGE: arg is not a value of this option. */
static int option_apply(struct bench_opts *o, int opt, const char *arg)
{
	unsigned n = 0;
	int err = 0;

	switch (opt) {
	case OPT_LIB:
		o->libs[0] = arg;
		return 0;
	case OPT_VS:
		if (o->nlibs == BENCH_MAX_LIBS)
			return -ERANGE;
		o->libs[o->nlibs++] = arg;
		return 0;
	case 'b':
		return tool_parse_size(arg, 1, UINT64_MAX, &o->first);
	case 'e':
		return tool_parse_size(arg, 1, UINT64_MAX, &o->last);
	case 'f':
		return tool_parse_uint(arg, 2, 1u << 30, &o->factor);
	case 'd':
		return list_parse(arg, tool_dtype_find, (1u << SHUNT_NDTYPES) - 1, &o->dtypes);
	case 'o':
		return list_parse(arg, redop_find, (1u << SHUNT_PREMUL) - 1, &o->redops);
	case OPT_MODE:
		return mode_parse(o, arg);
	case OPT_IN:
	case OPT_OUT:
	case OPT_BOTH:
		o->places[BENCH_IN] = opt != OPT_OUT;
		o->places[BENCH_OUT] = opt != OPT_IN;
		return 0;
	case 'g':
		return tool_parse_uint(arg, 1, 64, &o->group);
	case 'R':
		err = tool_parse_uint(arg, 0, BENCH_MAX_RANKS - 1, &n);
		o->root = (int)n;
		return err;
	case OPT_ROTATE:
		err = tool_parse_uint(arg, 1, 1u << 17, &n);
		o->rotate = (uint64_t)n << 20;
		return err;
	case OPT_SKEW:
		return tool_parse_uint(arg, 1, 1000000, &o->skew_us);
	case OPT_HOST:
		o->host = true;
		return 0;
	case OPT_REGISTER:
		o->registered = true;
		return 0;
	case OPT_GEMM:
		o->gemm = true;
		return 0;
	case OPT_INIT:
		o->init = true;
		return 0;
	case OPT_COMMS:
		return tool_parse_uint(arg, 0, 64, &o->comms);
	case OPT_BUFFERS:
		return tool_parse_uint(arg, 1, 64, &o->buffers);
	case 'n':
		err = tool_parse_uint(arg, 1, BENCH_MAX_RANKS, &n);
		o->nranks = (int)n;
		return err;
	case 'w':
		err = tool_parse_uint(arg, 0, 1u << 20, &n);
		o->warmup = (int)n;
		return err;
	case 'i':
		err = tool_parse_uint(arg, 1, 1u << 20, &n);
		o->iters = (int)n;
		return err;
	case 'r':
		err = tool_parse_uint(arg, 1, BENCH_MAX_ROUNDS, &n);
		o->rounds = (int)n;
		return err;
	case OPT_CHECK:
	case OPT_NO_CHECK:
		o->check = opt == OPT_CHECK;
		return 0;
	case OPT_SEED:
		return tool_parse_size(arg, 0, UINT64_MAX, &o->seed);
	case OPT_JSON:
		o->json = arg;
		return 0;
	case OPT_STATS:
		o->stats = true;
		return 0;
	}
	return bench_opts_start(o, opt, arg);
}

/* Checks that the options fit together. 0, or -1 after a message. */
static int combination_check(struct bench_opts *o)
{
	const char *conflict = NULL;
	char name[PATH_MAX];
	bool windows = o->registered, any_value = false;

	for (int i = 0; i < o->nlibs; i++) {
		bench_spec_split(o->libs[i], name, &any_value);
		windows = windows || any_value;
	}
	if (!o->first)
		o->first = o->init ? 1 << 20 : 8;
	if (o->init)
		o->last = o->first;
	if (o->host && !o->modes[BENCH_EAGER])
		conflict = "--host is about calls; in a graph there are none";
	else if (o->rotate && o->buffers > o->group)
		conflict = "--rotate says itself how many buffers there are";
	else if (o->gemm && (o->host || o->init))
		conflict = "--gemm is about calls that run; --host and --init are about others";
	else if (o->init && (o->host || o->rotate || o->skew_us || windows))
		conflict = "--init does not go with --host, --rotate, --skew or registered buffers";
	else if (o->first > o->last)
		conflict = "the sizes must be 0 < --first <= --last";
	if (conflict) {
		tool_usage_error("%s", conflict);
		return -1;
	}
	if (o->host)
		o->modes[BENCH_GRAPH] = false;
	if (!o->coll->in_place && o->places[BENCH_IN]) {
		if (!o->places[BENCH_OUT]) {
			tool_usage_error("%s is not defined in place", o->coll->name);
			return -1;
		}
		o->places[BENCH_IN] = false;
	}
	return 0;
}

int bench_opts_parse(struct bench_opts *o, int argc, char **argv, int *status_p)
{
	int opt, err;

	*o = (struct bench_opts){ .coll = &bench_colls[0],
		.last = 64 << 20,
		.factor = 2,
		.dtypes = 1u << SHUNT_F32,
		.redops = 1u << SHUNT_SUM,
		.modes = { true, true },
		.places = { true, true },
		.warmup = -1,
		.iters = -1,
		.rounds = -1,
		.buffers = 1,
		.group = 1,
		.comms = 4,
		.check = true,
		.timeout_s = 300,
		.libs = { "shunt" },
		.nlibs = 1,
		.worker_fd = -1,
		.worker_index = -1 };
	*status_p = TOOL_USAGE;
	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":b:e:f:d:o:n:w:i:r:R:g:h", long_options, NULL)) != -1) {
		if (opt == 'h') {
			fputs(bench_help, stdout);
			*status_p = TOOL_OK;
			return -1;
		}
		if (opt == ':' || opt == '?') {
			tool_option_error(opt, argv[optind - 1]);
			return -1;
		}
		err = option_apply(o, opt, optarg);
		if (err == -ERANGE && opt == OPT_VS)
			tool_usage_error("at most %d libraries can be compared", BENCH_MAX_LIBS);
		else if (err)
			tool_value_error(long_options, opt, optarg, err);
		if (err)
			return -1;
	}
	if (optind < argc) {
		const struct bench_coll *c = bench_coll_find(argv[optind]);

		if (!c || c->conform_only) {
			tool_usage_error("there is no collective \"%s\" to measure; there are all_reduce, all_gather, "
			                 "reduce_scatter, broadcast, reduce, "
			                 "alltoall, gather, scatter, sendrecv and alltoallv",
			    argv[optind]);
			return -1;
		}
		if (optind + 1 < argc) {
			tool_usage_error("\"%s\" is one argument too many", argv[optind + 1]);
			return -1;
		}
		o->coll = c;
	}
	if (o->buffers < o->group)
		o->buffers = o->group;
	return combination_check(o);
}
