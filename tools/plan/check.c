/* SPDX-License-Identifier: MIT */
/* shunt plan check: runs the library's loader and checker on files and directories. */
#include "tools/common/libc.h"
#include "base/files.h"
#include "base/json.h"
#include "plan/format/hosts.h"
#include "plan/load.h"
#include "plan/proofs.h"
#include "plan/plan_report.h"
#include "tools/plan/plan.h"

struct check {
	bool wrong_only, json;
	unsigned hosts; /* 0: one */
	unsigned right, wrong;
	struct shunt_json_writer writer;
};

/* A plan that does not fit the hosts is wrong here. */
static int spread_over(const struct check *c, const char *path, const struct shunt_plan *plan, char *reason)
{
	uint8_t host_of[SHUNT_PLAN_MAX_RANKS];
	char why[160];

	if (!c->hosts || !shunt_plan_spread(plan, c->hosts, host_of, why, sizeof(why)))
		return 0;
	snprintf(reason, PLAN_REASON_BYTES, "%s: on %u hosts: %s", path, c->hosts, why);
	return -EINVAL;
}

static void check_file(struct check *c, const char *path)
{
	char reason[PLAN_REASON_BYTES], range[64];
	struct shunt_plan *plan = NULL;

	if (!shunt_plan_load_file(path, &plan, reason, sizeof(reason)) &&
	    (shunt_plan_judge(plan, SHUNT_PLAN_PROVE, reason, sizeof(reason)) || spread_over(c, path, plan, reason))) {
		shunt_plan_unref(plan);
		plan = NULL;
	}
	if (c->json)
		shunt_plan_report(&c->writer, NULL, path, plan, reason);
	else if (!plan)
		printf("wrong  %s\n", reason);
	else if (!c->wrong_only)
		printf("ok     %s: %s, %s of %u ranks, %s, %s%s\n", path, plan->name,
		    shunt_plan_collective_name(plan->collective), plan->nranks,
		    plan->inplace ? "in place" : "out of place", plan_range_text(plan, range),
		    plan->status == SHUNT_PLAN_PROVED ? "" : ", not proved");
	if (!c->json && plan && plan->doubt)
		printf("doubt  %s\n", plan->doubt);
	if (!c->json && plan && plan->unread && !c->wrong_only)
		printf("unread %s\n", plan->unread);
	*(plan ? &c->right : &c->wrong) += 1;
	shunt_plan_unref(plan);
}

static int check_path(struct check *c, const char *path)
{
	struct dirent **entries;
	struct stat st;
	int n, err = 0;

	if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
		check_file(c, path);
		return 0;
	}
	n = shunt_files_scan(path, &entries);
	if (n < 0) {
		tool_error("cannot read the directory %s: %s", path, strerror(errno));
		return -EIO;
	}
	for (int i = 0; i < n; i++) {
		char file[PATH_MAX];
		int len = snprintf(
		    file, sizeof(file), "%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", entries[i]->d_name);

		free(entries[i]);
		if (len < PATH_MAX) {
			check_file(c, file);
			continue;
		}
		tool_error("the path %.100s... is too long", file);
		err = -ENAMETOOLONG;
	}
	free(entries);
	if (!n)
		tool_error("there is no *.json in %s", path);
	return n ? err : -ENOENT;
}

#define AT(field) .at = offsetof(struct check, field)
static const struct option_row rows[] = {
	{ "quiet", 'q', OPTION_FLAG, AT(wrong_only), .help = "only what is wrong" },
	{ "hosts", 0, OPTION_NUMBER, "N", AT(hosts), 1, 64, .help = "can it run with its ranks spread over N hosts?" },
	{ "json", 0, OPTION_FLAG, AT(json),
	    .help = "an array with an object for each file: file, ok, and the error or what the plan is" },
	{ .type = OPTION_END },
};
const struct option_table plan_check_options = {
	"usage: shunt plan check [-q] [--hosts N] [--json] FILE|DIRECTORY...\n\n"
	"Loads each plan (in a directory every *.json, in the order of their names' bytes) as the library does: form, "
	"every\n"
	"index and size, pairs of signals and waits, waits that nobody can end; and proves it: races, wrong results, "
	"data\n"
	"that nobody reads. One line for each.\n\n",
	rows, "Exit status: 0 all are right, 1 some are not or cannot be read, 2 wrong option.\n"
};

int plan_check_main(int argc, char **argv)
{
	struct check c = { 0 };
	int first, err = 0, status = options_parse(&plan_check_options, &c, argc, argv, &first);

	if (status >= 0)
		return status;
	if (first == argc)
		return tool_usage_error("which plans?");
	c.writer = (struct shunt_json_writer){ .out = stdout, .lines = 1 };
	if (c.json)
		shunt_json_write_array(&c.writer, NULL);
	for (int i = first; i < argc; i++)
		if (check_path(&c, argv[i]))
			err = -EIO;
	if (c.json)
		shunt_json_write_array_end(&c.writer);
	else if (c.right + c.wrong > 1 && !(c.wrong_only && !c.wrong))
		printf("%u right, %u wrong\n", c.right, c.wrong);
	return err || c.wrong ? TOOL_FAIL : TOOL_OK;
}
