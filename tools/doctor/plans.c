/* SPDX-License-Identifier: MIT */
/* The plans that processes started here would load, and those that they would refuse. */
#include "tools/common/libc.h"
#include "base/config.h"
#include "base/files.h"
#include "plan/format/plan.h"
#include "plan/load.h"
#include "tools/doctor/doctor.h"

static const char topic[] = "plans";

struct plan_counts {
	struct findings *f;
	unsigned good, bad;
};

static void plan_file_check(void *ctx, const char *path)
{
	struct plan_counts *t = ctx;
	struct shunt_plan *plan;
	char reason[512] = "";

	if (shunt_plan_load_file(path, &plan, reason, sizeof(reason))) {
		finding_add(t->f, FINDING_WARN, topic, "correct it or take it away; it is not used", "%s", reason);
		t->bad++;
		return;
	}
	shunt_plan_unref(plan);
	t->good++;
}

/* given: the user named the path, so it should exist. */
static void plan_path_check(struct findings *f, const char *path, bool given)
{
	struct plan_counts t = { .f = f };
	const struct shunt_files files = { .what = "plans", .one = "plan", .add = plan_file_check, .ctx = &t };
	struct stat st;
	int err = stat(path, &st) || (S_ISDIR(st.st_mode) && access(path, R_OK | X_OK)) ? errno : 0;

	if (err && given)
		finding_add(f, FINDING_ERROR, topic, "correct SHUNT_PLAN_DIR", "%s: %s", path, strerror(err));
	else if (err && err != ENOENT && err != ENOTDIR)
		finding_add(f, FINDING_WARN, topic,
		    "let this user read it, or set SHUNT_CACHE_DIR to a directory of its own", "%s: %s", path,
		    strerror(err));
	if (err)
		return;
	shunt_files_path(&files, path, given);
	if (!t.good && !t.bad && given)
		finding_add(f, FINDING_WARN, topic, "it takes files named *.json", "there are no plans in %s", path);
	else if (t.good || t.bad)
		finding_add(f, FINDING_OK, topic, "", "%s: %u plan%s can be used, %u cannot", path, t.good,
		    t.good == 1 ? "" : "s", t.bad);
}

void doctor_plans(struct findings *f)
{
	const char *list = shunt_config()->plan_dir;
	size_t before = f->n;
	char path[PATH_MAX];

	while (*list) {
		size_t n = strcspn(list, ":");

		snprintf(path, sizeof(path), "%.*s", (int)n, list);
		if (n)
			plan_path_check(f, path, true);
		list += n + (list[n] != 0);
	}
	enum shunt_files_cache cache = shunt_files_cache(shunt_config()->cache_dir, "default", path, sizeof(path));
	if (cache == SHUNT_FILES_CACHE)
		plan_path_check(f, path, false);
	else if (cache == SHUNT_FILES_FOREIGN_CACHE)
		finding_add(f, FINDING_WARN, topic, "set SHUNT_CACHE_DIR or HOME to a directory of this user's",
		    "%s is in the home of another user, so this one has no cache", path);
	if (f->n == before)
		finding_add(f, FINDING_OK, topic, "", "none: SHUNT_PLAN_DIR is not set, and %s is not there",
		    cache == SHUNT_FILES_CACHE ? path : "a cache directory");
}
