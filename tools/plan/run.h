/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_PLAN_RUN_H
#define SHUNT_TOOLS_PLAN_RUN_H
/* shunt plan run: options, and one rank's run. */
#include "tools/bench/bench.h"
#include "tools/plan/plan.h"

struct plan_run_opts {
	struct bench_opts base; /* first, last: 0 is the plan's range; coll and nranks are the plan's */
	const char *file;
	struct shunt_plan *plan;
	enum shunt_dtype dtype;
	enum shunt_redop redop; /* of the plan */
	bool graph;
};

/* One rank, in its process or thread. arg: struct plan_run_opts. Exit status. */
int plan_run_rank(const void *arg, const struct ranks_slot *rank_slot);
#endif
