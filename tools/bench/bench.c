/* SPDX-License-Identifier: MIT */
/* The command shunt bench. */
#include <string.h>
#include "tools/bench/bench.h"

static int bench_main(int argc, char **argv)
{
	struct bench_opts o;
	int status;

	if (argc > 1 && !strcmp(argv[1], "report"))
		return bench_html_main(argc - 1, argv + 1);
	if (bench_opts_parse(&o, argc, argv, &status))
		return status;
	return o.ranks.worker_fd >= 0 ? bench_worker(&o) : ranks_run(&o.ranks, argc, argv);
}

const struct tool_cmd tool_cmd_bench = { .name = "bench",
	.summary = "measure and check libraries that speak NCCL's ABI",
	.options = &bench_options,
	.run = bench_main };
