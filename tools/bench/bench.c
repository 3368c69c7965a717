/* SPDX-License-Identifier: MIT */
/* The command shunt bench. */
#include "tools/bench/bench.h"

static int bench_main(int argc, char **argv)
{
	struct bench_opts o;
	int status;

	if (bench_opts_parse(&o, argc, argv, &status))
		return status;
	return o.ranks.worker_fd >= 0 ? bench_worker(&o) : ranks_run(&o.ranks, argc, argv);
}

static const struct tool_action actions[] = { { "ep", &bench_ep_options, bench_ep_main },
	{ "p2p", &bench_p2p_options, bench_p2p_main }, { "report", &bench_html_options, bench_html_main }, { 0 } };

const struct tool_cmd tool_cmd_bench = { .name = "bench",
	.summary = "measure and check libraries that speak NCCL's ABI",
	.options = &bench_options,
	.actions = actions,
	.run = bench_main };
