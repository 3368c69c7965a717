/* SPDX-License-Identifier: MIT */
/* The options of shunt bench. */
#include "tools/common/libc.h"
#include "tools/bench/bench.h"

static const char usage[] =
    "usage: shunt bench [COLLECTIVE] [options]\n"
    "       shunt bench p2p [options]                                  (each pair; shunt bench p2p --help)\n"
    "       shunt bench report FILE.json... -o FILE.html [options]     (shunt bench report --help)\n\n"
    "Measures a collective of one or more libraries that speak NCCL's ABI, interleaved in one run, and checks every "
    "result.\n"
    "Starts its own ranks, or is one rank when it runs under torchrun, mpirun or srun. Collectives: all_reduce "
    "(default),\n"
    "all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv (a ring), alltoallv (a group "
    "of messages;\n"
    "from rank r to rank s 1 + (s - r mod n) parts, so that all ranks have as much, and no two pairs of one rank).\n\n";
static const char notes[] =
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
const char *const bench_way_names[BENCH_NWAYS] = { "eager out of place", "eager in place", "graph out of place",
	"graph in place" };
const char *const bench_place_names[BENCH_NPLACES] = { "out", "in" };

/* User-defined operators are not measured. */
static const char *redop_at(int i)
{
	return i < SHUNT_PREMUL ? shunt_redop_name(i) : NULL;
}

static const char *const mode_words[] = { "eager", "graph", "both", NULL };

static int mode_apply(void *opts, const struct option_row *row, const char *text)
{
	struct bench_opts *o = opts;
	int mode = tool_lookup(text, row->names, 3);

	if (mode < 0)
		return -EINVAL;
	for (int i = 0; i < BENCH_NMODES; i++)
		o->modes[i] = mode == BENCH_NMODES || mode == i;
	return 0;
}

static int place_apply(void *opts, const struct option_row *row, const char *text)
{
	struct bench_opts *o = opts;

	(void)text;
	o->places[BENCH_IN] = strcmp(row->name, "out-of-place") != 0;
	o->places[BENCH_OUT] = strcmp(row->name, "in-place") != 0;
	return 0;
}

static int rotate_apply(void *opts, const struct option_row *row, const char *text)
{
	unsigned mb;
	int err = tool_parse_uint(text, 1, 1u << 17, &mb);

	(void)row;
	if (!err)
		((struct bench_opts *)opts)->rotate = (uint64_t)mb << 20;
	return err;
}

#define AT(field) .at = offsetof(struct bench_opts, field)
static const struct option_row rows[] = {
	{ .type = OPTION_TITLE, .help = "What to measure" },
	{ "lib", 0, OPTION_TEXT, "LIB", AT(ranks.libs[0]),
	    .help = "shunt (default), nccl (the real one that shunt finds), forwarded (shunt, handing every call on to "
	            "it), or "
	            "a path" },
	{ "vs", 0, OPTION_CALL, "LIB", .call = ranks_option_vs,
	    .help =
	        "another one to compare it with; may be given three times. LIB:reg: with buffers of its ncclMemAlloc, "
	        "registered by ncclCommWindowRegister as symmetric" },
	{ "register", 0, OPTION_FLAG, AT(registered), .help = "all libraries with such buffers" },
	{ "first", 'b', OPTION_SIZE, "SIZE", AT(first), 1, UINT64_MAX,
	    .help = "smallest size, bytes of the larger side (8)" },
	{ "last", 'e', OPTION_SIZE, "SIZE", AT(last), 1, UINT64_MAX, .help = "largest size (64M)" },
	{ "factor", 'f', OPTION_NUMBER, "N", AT(factor), 2, 1u << 30, .help = "from one size to the next (2)" },
	{ "dtype", 'd', OPTION_WORDS, "LIST", AT(dtypes), .high = (1u << SHUNT_NDTYPES) - 1, .find = tool_format_find,
	    .name_at = tool_format_at, .help = "data types, comma separated, or all of NCCL's (float32)" },
	{ "op", 'o', OPTION_WORDS, "LIST", AT(redops), .high = (1u << SHUNT_PREMUL) - 1, .name_at = redop_at,
	    .help = "sum, prod, max, min, avg, or all (sum)" },
	{ "root", 'R', OPTION_NUMBER, "N", AT(root), 0, RANKS_MAX - 1,
	    .help = "of broadcast, reduce, gather, scatter (0)" },
	{ "group", 'g', OPTION_NUMBER, "K", AT(group), 1, 64,
	    .help = "make K calls in one group; times are per call all the same (1)" },
	{ "mode", 0, OPTION_CALL, "M", .call = mode_apply, .names = mode_words, .help = "eager, graph or both (both)" },
	{ "in-place", 0, OPTION_CALL, .call = place_apply, .help = "only with one buffer" },
	{ "out-of-place", 0, OPTION_CALL, .call = place_apply, .help = "only with two buffers" },
	{ "both-places", 0, OPTION_CALL, .call = place_apply, .help = "both (default)" },
	{ "buffers", 0, OPTION_NUMBER, "K", AT(buffers), 1, 64, .help = "take K pairs of buffers in turn (1)" },
	{ "rotate", 0, OPTION_CALL, "MB", .call = rotate_apply,
	    .help = "take as many pairs in turn as fill MB on each side, so that caches do not help; in a graph its 20 "
	            "calls "
	            "have buffers of their own" },
	{ "skew", 0, OPTION_NUMBER, "US", AT(skew_us), 1, 1000000,
	    .help =
	        "every rank waits a random time up to US before each call, or launch of a graph; its own waits are not "
	        "counted, those for the others are" },
	{ "host", 0, OPTION_FLAG, AT(host),
	    .help = "measure what a call costs the host: time and CPU time of the calls, without what they start" },
	{ "no-host", 0, OPTION_FLAG, AT(no_host), .help = "leave this host's name out of the table and of --json" },
	{ "gemm", 0, OPTION_FLAG, AT(gemm),
	    .help =
	        "measure each round once more beside matrix multiplications (bfloat16, by cuBLAS) on another stream of "
	        "each GPU: the calls' time then, and what becomes of the multiplications" },
	{ "init", 0, OPTION_FLAG, AT(init),
	    .help = "measure communicators instead: time and device memory of ncclCommInitRank, of the first call (of "
	            "--first "
	            "bytes; 1M), of --comms more by ncclCommSplit, and of a first call of these" },
	{ "comms", 0, OPTION_NUMBER, "K", AT(comms), 0, 64, .help = "how many more (4)" },
	{ .type = OPTION_TITLE, .help = "How" },
	RANKS_OPTIONS("ranks to start (all GPUs; 4 on the sim)", 1, RANKS_MAX, "300"),
	{ "warmup", 'w', OPTION_NUMBER, "N", AT(warmup), 0, 1u << 20,
	    .help = "calls before the timing (GPU 5, sim 1)" },
	{ "iters", 'i', OPTION_NUMBER, "N", AT(iters), 1, 1u << 20,
	    .help = "calls per round (GPU 20, sim 2; with --host 50)" },
	{ "rounds", 'r', OPTION_NUMBER, "N", AT(rounds), 1, BENCH_MAX_ROUNDS,
	    .help = "rounds; median and p99 are over these (GPU 20, sim 3)" },
	{ "check", 0, OPTION_FLAG, AT(check), .help = "compare every result with a reference (default)" },
	{ "no-check", 0, OPTION_FLAG, AT(check), .clear = true, .help = "do not" },
	{ "seed", 0, OPTION_SIZE, "N", AT(seed), 0, UINT64_MAX, .help = "of the data (random)" },
	{ .type = OPTION_TITLE, .help = "What to print" },
	{ "json", 0, OPTION_TEXT, "FILE", AT(ranks.json), .help = "everything, every round included" },
	{ "stats", 0, OPTION_FLAG, AT(stats), .help = "the counters of rank 0's communicators at the end" },
	{ .type = OPTION_END },
};
const struct option_table bench_options = { usage, rows, notes };

/* Checks that the options fit together. 0, or -1 after a message. */
static int combination_check(struct bench_opts *o)
{
	const char *conflict = NULL;
	char name[PATH_MAX];
	bool windows = o->registered, any_value = false;

	for (int i = 0; i < o->ranks.nlibs; i++) {
		tool_spec_split(o->ranks.libs[i], name, &any_value);
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
	else if (!o->coll->reduces && !(o->dtypes & ((1u << SHUNT_NDTYPES) - 1)))
		conflict = "only what reduces tells such numbers from bytes: all_reduce, reduce_scatter, reduce";
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
	int first;

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
		.ranks = RANKS_OPTS(300, "shunt") };
	o->ranks.way_names = bench_way_names;
	*status_p = options_parse(&bench_options, o, argc, argv, &first);
	if (*status_p >= 0)
		return -1;
	*status_p = TOOL_USAGE;
	if (first < argc) {
		const struct bench_coll *c = bench_coll_find(argv[first]);

		if (!c || c->conform_only) {
			char maybe[64];

			tool_usage_error(
			    "there is no collective \"%s\" to measure%s; there are all_reduce, all_gather, "
			    "reduce_scatter, broadcast, reduce, "
			    "alltoall, gather, scatter, sendrecv and alltoallv",
			    argv[first], bench_coll_maybe(argv[first], maybe));
			return -1;
		}
		if (first + 1 < argc) {
			tool_usage_error("\"%s\" is one argument too many", argv[first + 1]);
			return -1;
		}
		o->coll = c;
	}
	if (o->buffers < o->group)
		o->buffers = o->group;
	return combination_check(o);
}
