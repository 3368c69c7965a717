/* SPDX-License-Identifier: MIT */
/* shunt conform: options. */
#include <malloc.h>
#include <stdlib.h>
#include "tools/conform/conform.h"

static int one_thread_apply(void *opts, const struct option_row *row, const char *text)
{
	struct conform_opts *o = opts;

	(void)row;
	(void)text;
	o->ranks.threads = o->single_thread = true;
	return 0;
}

#define AT(field) .at = offsetof(struct conform_opts, field)
static const struct option_row rows[] = {
	{ "lib", 0, OPTION_TEXT, "LIB", AT(ranks.libs[0]),
	    .help = "shunt (default), nccl (the real one that shunt finds), or a path" },
	{ "vs", 0, OPTION_CALL, "LIB", .call = ranks_option_vs,
	    .help = "another library, run side by side on the same inputs" },
	/* The reference reduces 16 inputs at most. */
	RANKS_OPTIONS("ranks to start, 16 at most (all GPUs; 4 on the sim)", 1, 16, "60"),
	{ "one-thread", 0, OPTION_CALL, .call = one_thread_apply,
	    .help = "one thread drives all devices, by ncclCommInitAll and groups of all ranks' calls" },
	{ "quick", 0, OPTION_FLAG, AT(full), .clear = true, .help = "a few cases of each kind (default)" },
	{ "full", 0, OPTION_FLAG, AT(full), .help = "all cases" },
	{ "huge", 0, OPTION_SIZE, "SIZE", AT(huge), 1, UINT64_MAX, .without = 4ull << 30,
	    .help = "messages of this size as well (4G; give a smaller one to try it)" },
	{ "filter", 0, OPTION_TEXT, "TEXT", AT(filter), .help = "only cases whose name contains TEXT" },
	{ "case", 0, OPTION_TEXT, "NAME", AT(only), .help = "only this case" },
	{ "list", 0, OPTION_FLAG, AT(list), .help = "print the names and run nothing (give -n too)" },
	{ "seed", 0, OPTION_SIZE, "N", AT(seed), 0, INT64_MAX, .help = "of the data (1)" },
	{ "strict", 0, OPTION_FLAG, AT(strict_missing),
	    .help = "a case that is skipped because a library lacks a function has failed" },
	RANKS_OPTION_PROGRESS,
	{ "json", 0, OPTION_TEXT, "FILE", AT(ranks.json), .help = "every case with its status" },
	{ "verbose", 'v', OPTION_FLAG, AT(verbose), .help = "a line for every case" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt conform [options]\n\n"
	"Runs a table of cases (single calls, groups as programs make them, sequences, invalid calls) with a library "
	"that "
	"speaks\n"
	"NCCL's ABI and compares every byte and every return code with a reference; with --vs also with another "
	"library.\n\n",
	rows,
	"Every failure comes with the command that runs that case alone. The last line is: N passed, N failed, N "
	"skipped.\n"
	"Exit status: 0; 1 if a case failed or nothing was compared; 2 for a wrong option; a rank's own status if it "
	"died.\n",
};

static int list_print(const struct conform_opts *o)
{
	struct conform_list list = { 0 };
	int err = conform_cases(o, o->ranks.nranks ? o->ranks.nranks : 4, &list);

	for (size_t i = 0; i < list.n; i++)
		puts(list.cases[i].name);
	free(list.cases);
	return err ? TOOL_FAIL : TOOL_OK;
}

static int conform_main(int argc, char **argv)
{
	struct conform_opts o = { .ranks = RANKS_OPTS(60, "shunt"), .seed = 1 };
	int status = options_parse(&options, &o, argc, argv, NULL);

	/* Thousands of cases allocate buffers: keep the pages. */
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	if (status >= 0)
		return status;
	if (o.list)
		return list_print(&o);
	return o.ranks.worker_fd >= 0 ? conform_worker(&o) : ranks_run(&o.ranks, argc, argv);
}

const struct tool_cmd tool_cmd_conform = { .name = "conform",
	.summary = "check a library against a reference, or against another one",
	.options = &options,
	.run = conform_main };
