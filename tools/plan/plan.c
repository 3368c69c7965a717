/* SPDX-License-Identifier: MIT */
/* shunt plan: finds the action. Common functions of the actions. */
#include <errno.h>
#include <string.h>
#include "plan/load.h"
#include "tools/plan/plan.h"

static const struct tool_action actions[] = {
	{ "check", &plan_check_options, plan_check_main },
	{ "show", &plan_show_options, plan_show_main },
	{ "run", &plan_run_options, plan_run_main },
	{ "new", &plan_new_options, plan_new_main },
	{ "build", &plan_build_options, plan_build_main },
	{ 0 },
};

static const struct option_table plan_options = {
	"usage: shunt plan check [--json] FILE|DIRECTORY...\n"
	"       shunt plan show  [--rank R] [--block B] [--svg FILE [--all]] FILE\n"
	"       shunt plan run   [options] FILE\n"
	"       shunt plan new   COLLECTIVE SHAPE -n RANKS [options] [-o FILE]\n"
	"       shunt plan build [-o DIRECTORY] PROGRAM.py [ARGUMENT...]\n\n"
	"Execution plans: JSON files that say step by step what each block of each rank does for a collective. "
	"Programs "
	"use\n"
	"those in the directories of SHUNT_PLAN_DIR.\n\n"
	"  check   are they right? Everything that is verified before a plan may run\n"
	"  show    what each block does, in words or as a picture\n"
	"  run     run one on this machine's GPUs, or on the sim, check the values and measure\n"
	"  new     write a plan\n"
	"  build   run a Python program in the language of plans, and write its plans\n",
	NULL, "`shunt plan ACTION --help` explains one of them.\n"
};

struct shunt_plan *plan_open(const char *path)
{
	struct shunt_plan *plan;
	char reason[PLAN_REASON_BYTES];

	if (!shunt_plan_load_file(path, &plan, reason, sizeof(reason)))
		return plan;
	tool_error("%s", reason);
	return NULL;
}

const char *plan_range_text(const struct shunt_plan *plan, char *buf)
{
	char low[24], high[24];

	tool_format_size(plan->min_bytes, low);
	if (plan->max_bytes == UINT64_MAX)
		snprintf(buf, 64, plan->min_bytes ? "%s bytes and more" : "any size", low);
	else
		snprintf(buf, 64, "%s to %s bytes", low, tool_format_size(plan->max_bytes, high));
	return buf;
}

const struct tool_cmd tool_cmd_plan = { .name = "plan",
	.summary = "check, show, run and write execution plans",
	.options = &plan_options,
	.actions = actions };
