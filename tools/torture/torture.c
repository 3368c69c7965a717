/* SPDX-License-Identifier: MIT */
/* shunt torture: options. */
#include <stdlib.h>
#include "tools/torture/torture.h"

#define AT(field) .at = offsetof(struct torture_opts, field)
static const struct option_row rows[] = {
	{ "minutes", 0, OPTION_MINUTES, "M", AT(minutes), .help = "how long (1)" },
	{ "ops", 0, OPTION_SIZE, "K", AT(ops), 1, UINT64_MAX, .help = "instead: how many calls" },
	{ "seed", 0, OPTION_SIZE, "N", AT(seed), 1, INT64_MAX,
	    .help = "the random seed (a new one each time, which is printed)" },
	{ "ep", 0, OPTION_FLAG, AT(ep),
	    .help = "calls of expert parallel groups instead of collectives: both modes, phases in any order, masks" },
	{ "lib", 0, OPTION_TEXT, "LIB", AT(ranks.libs[0]),
	    .help = "shunt (default), nccl (the real one that shunt finds), or a path" },
	RANKS_OPTION_PROGRESS,
	{ "json", 0, OPTION_TEXT, "FILE", AT(ranks.json), .help = "the counts" },
	RANKS_OPTIONS("ranks to start, 8 at most (all GPUs; 4 on the sim)", 1, TORTURE_MAX_RANKS, "60"),
	{ "faults", 0, OPTION_SIZE, "SEED", AT(ranks.faults), 1, INT64_MAX, .without = 1,
	    .help = "with --hosts, as root: links lose, delay, reorder and are cut for a while, ranks are stopped" },
	{ "max", 0, OPTION_SIZE, "SIZE", AT(max_bytes), 64, 1ull << 30,
	    .help = "of the larger side of a call, 64 to 1G (16M; 64K on the sim)" },
	{ "shared", 0, OPTION_FLAG, AT(shared),
	    .help = "others use the devices meanwhile: what memory of them is in use is not compared" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt torture [options]\n\n"
	"Runs random collectives and messages, groups, graphs, streams and communicators, with ranks that come late, "
	"and "
	"checks\n"
	"every result. All ranks choose the same random calls from the seed.\n\n",
	rows,
	"Results of up to 1 MiB are compared as a whole, larger ones in places. Every now and then all communicators "
	"are\n"
	"destroyed; memory and descriptors must then be back. A failing run is repeated by its seed.\n"
	"Exit status: 0; 1 if a value was wrong, a call failed, something was not given back or nothing moved; 2 for a "
	"wrong\n"
	"option; a rank's own status if it died.\n",
};

static int torture_main(int argc, char **argv)
{
	struct torture_opts o = { .ranks = RANKS_OPTS(60, "shunt") };
	int status = options_parse(&options, &o, argc, argv, NULL);

	if (status >= 0)
		return status;
	if (o.minutes > 0 && o.ops)
		return tool_usage_error("--minutes and --ops are two ends for one run; give one of them");
	if (o.ep && (o.ranks.nhosts || o.ranks.json || o.max_bytes || o.shared))
		return tool_usage_error("--ep goes with --minutes, --ops, --seed, -n, --threads and --device alone");
	if (o.ranks.faults && !o.ranks.nhosts)
		return tool_usage_error("--faults is what goes wrong between hosts: it needs --hosts");
	return o.ranks.worker_fd >= 0 ? torture_worker(&o) : ranks_run(&o.ranks, argc, argv);
}

const struct tool_cmd tool_cmd_torture = { .name = "torture",
	.summary = "run random calls for a while and check every result",
	.options = &options,
	.run = torture_main };
