/* SPDX-License-Identifier: MIT */
/* The options of shunt tune. */
#include "tools/common/libc.h"
#include "base/env.h"
#include "tools/tune/tune.h"

static int margin_apply(void *opts, const struct option_row *row, const char *text)
{
	unsigned percent = 0;
	int err = tool_parse_uint(text, 0, 100, &percent);

	(void)row;
	((struct tune_opts *)opts)->margin = percent / 100.0;
	return err;
}

#define AT(field) .at = offsetof(struct tune_opts, field)
static const struct option_row rows[] = {
	{ "ranks", 'n', OPTION_NUMBER, "N", AT(base.ranks.nranks), 2, RANKS_MAX,
	    .help = "ranks, 2 to 8 on each host (all GPUs; 4 on the sim)" },
	RANKS_OPTION_HOSTS,
	{ "rendezvous", 0, OPTION_TEXT, "DIR", AT(base.ranks.rendezvous),
	    .help = "under mpirun or srun: a directory that all ranks see" },
	{ "first", 'b', OPTION_SIZE, "SIZE", AT(base.first), 1, UINT64_MAX,
	    .help = "smallest size, bytes of the larger side (1K; 256 on the sim)" },
	{ "last", 'e', OPTION_SIZE, "SIZE", AT(base.last), 1, UINT64_MAX,
	    .help = "largest size (256M; 4K on the sim)" },
	{ "factor", 'f', OPTION_NUMBER, "N", AT(base.factor), 2, 1u << 20,
	    .help = "from one size to the next (2; 4 on the sim)" },
	{ "dtype", 'd', OPTION_WORD, "TYPE", AT(dtype), .find = tool_dtype_find, .name_at = tool_dtype_at,
	    .help = "data type (float16)" },
	{ "blocks", 0, OPTION_NUMBERS, "LIST", AT(blocks), .high = SHUNT_MAX_BLOCKS,
	    .help = "numbers of blocks to try, comma separated, at most 64 (8,16,32,64; 1,2 on the sim)" },
	{ "threads", 0, OPTION_NUMBERS, "LIST", AT(threads), .high = SHUNT_MAX_THREADS, .step = 32,
	    .help = "threads of a block to try, multiples of 32, at most 512 (128,256,512; 64 on the sim)" },
	{ "rounds", 'r', OPTION_NUMBER, "N", AT(base.rounds), 1, 100,
	    .help = "rounds of those that are nearly the fastest; medians are over these (15; 1 on the sim)" },
	{ "margin", 0, OPTION_CALL, "PERCENT", .call = margin_apply,
	    .help = "how much faster than NCCL we have to be (1)" },
	{ "quick", 0, OPTION_FLAG, AT(quick),
	    .help = "sizes by factors of 4, fewer blocks, threads and rounds; ends after 4 minutes at most" },
	{ "minutes", 0, OPTION_MINUTES, "M", AT(minutes),
	    .help = "end after so many minutes, with what is measured then; the same command goes on from there" },
	{ "no-nccl", 0, OPTION_FLAG, AT(no_nccl),
	    .help = "do not measure the real NCCL: the file will do for standalone only" },
	{ "no-check", 0, OPTION_FLAG, AT(base.check), .clear = true,
	    .help = "do not compare results with a reference" },
	RANKS_OPTIONS_WATCH("300"),
	{ "output", 'o', OPTION_TEXT, "FILE", AT(out), .low = 1,
	    .help = "tuning file (a name for this machine in ~/.cache/shunt/tuning, or SHUNT_CACHE_DIR's)" },
	{ "restart", 0, OPTION_FLAG, AT(restart), .help = "forget what an earlier run that was stopped has measured" },
	{ "show", 0, OPTION_TEXT, "FILE", AT(show), .help = "print a tuning file's table of before and after" },
	{ "share", 0, OPTION_TEXT, "FILE", AT(share),
	    .help =
	        "copy a tuning file to --output, for other users and machines of this kind: without the host's name" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt tune [COLLECTIVE...] [options]\n"
	"       shunt tune --show FILE\n"
	"       shunt tune --share FILE --output FILE\n\n"
	"Measures each of Shunt's algorithms with several numbers of blocks and threads, and the real NCCL, for every\n"
	"collective and size on this machine, and writes a tuning file that communicators of as many ranks take from "
	"then\n"
	"on. Where NCCL is as fast, calls go to it. A run that was stopped goes on where it was. Collectives: "
	"all_reduce,\n"
	"all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv; all of them if none is "
	"named.\n"
	"Of those not named the file keeps what it has.\n\n",
	rows,
	"Over several hosts (--hosts, or under torchrun, mpirun or srun) the file is for as many hosts and ranks, and\n"
	"for what carries data between them, and is of use in front of a real NCCL. With sendrecv, or with alltoall,\n"
	"gather or scatter of several ranks on a host, it must be on all hosts.\n"
	"Where NVLink does not join all ranks (no peer access, PCIe, NCCL_P2P_DISABLE=1) the file is for what does.\n"
	"Times are microseconds per call on the slowest rank, in graphs; a candidate must not lose to NCCL when it is\n"
	"called eagerly either.\n"
	"On the sim the numbers mean nothing, and the file says that it is for the sim.\n"
	"The coarse grid of sizes comes first, then what is between. A collective of which that grid is not complete\n"
	"stays with the built-in table.\n"
	"Exit status: 0; 1 after an error or a wrong result; 2 for a wrong option; a rank's own status if it died.\n",
};

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
		                   .ranks = RANKS_OPTS(300, "shunt", "nccl") },
		.dtype = SHUNT_F16,
		.margin = 0.01 };
	struct stat st;
	int first, status;

	status = options_parse(&options, &o, argc, argv, &first);
	if (status >= 0)
		return status;
	if (o.show)
		return tune_show(o.show);
	if (o.out && !stat(o.out, &st) && S_ISDIR(st.st_mode))
		return tool_usage_error("--output: %s is a directory, and it takes a file", o.out);
	if (o.share && !o.out)
		return tool_usage_error("--share goes with --output");
	if (o.out && !stat(o.out, &st) && !S_ISREG(st.st_mode))
		return tool_usage_error("--output: %s is a device or a pipe, and a file would take its place", o.out);
	if (o.share)
		return tune_share(o.share, o.out);
	for (int i = first; i < argc; i++) {
		const struct bench_coll *coll = bench_coll_find(argv[i]);
		char maybe[64];

		if (!coll || !tunable(coll))
			return tool_usage_error("\"%s\" is not a collective that can be tuned%s; these are all_reduce, "
			                        "all_gather, reduce_scatter, broadcast, reduce, "
			                        "alltoall, gather, scatter and sendrecv",
			    argv[i], bench_coll_maybe(argv[i], maybe));
		o.colls |= 1u << (coll - bench_colls);
	}
	for (int i = 0; first == argc && bench_colls[i].name; i++)
		if (tunable(&bench_colls[i]))
			o.colls |= 1u << i;
	if (o.base.first && o.base.last && o.base.first > o.base.last)
		return tool_usage_error("the sizes must be --first <= --last");
	if (!o.base.ranks.nhosts && o.base.ranks.nranks > SHUNT_MAX_RANKS)
		return tool_usage_error(
		    "--ranks: %d is not from 2 to %d, which is for one host", o.base.ranks.nranks, SHUNT_MAX_RANKS);
	if (o.base.ranks.worker_fd >= 0)
		return tune_worker(&o);
	return environment_check() ? TOOL_FAIL : ranks_run(&o.base.ranks, argc, argv);
}

const struct tool_cmd tool_cmd_tune = { .name = "tune",
	.summary = "measure this machine and write a tuning file for it",
	.options = &options,
	.run = tune_main };
