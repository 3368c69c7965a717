/* SPDX-License-Identifier: MIT */
#include "plan/proofs.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "base/files.h"
#include "plan/format/plan_priv.h"

/* To be advanced when the proof's result for some plan changes. */
#define PROOF "3"
#define TEXT_BYTES 2048

/* "$SHUNT_CACHE_DIR/proofs/HASH-VERSION-PROOF". */
static bool kept_path(const struct shunt_plan *plan, char path[PATH_MAX])
{
	size_t n;

	if (shunt_files_cache(shunt_config()->cache_dir, "proofs", path, PATH_MAX) != SHUNT_FILES_CACHE)
		return false;
	n = strlen(path);
	return (size_t)snprintf(path + n, PATH_MAX - n, "/%016" PRIx64 "-%s-%s", plan->hash, SHUNT_VERSION, PROOF) <
	    PATH_MAX - n;
}

/* Reads the kept result: "proved", "proved: UNREAD", "doubt: TEXT" or "wrong: TEXT". False: nothing. */
static bool read_kept(const char *path, char text[TEXT_BYTES])
{
	if (!shunt_files_kept(path, text, TEXT_BYTES))
		return false;
	text[strcspn(text, "\n")] = '\0';
	return !strcmp(text, "proved") || !strncmp(text, "proved: ", 8) || !strncmp(text, "doubt: ", 7) ||
	    !strncmp(text, "wrong: ", 7);
}

static void keep(const char *path, const char *word, const char *text)
{
	char line[TEXT_BYTES];

	snprintf(line, sizeof(line) - 1, "%s%s%s", word, *text ? ": " : "", text);
	shunt_files_keep(path, strcat(line, "\n"));
}

/* The text behind the plan's source, which another file with the same plan does not have. */
static const char *without_source(const struct shunt_plan *plan, const char *text)
{
	size_t n = strlen(plan->source);

	return !strncmp(text, plan->source, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

static int use_kept(struct shunt_plan *plan, const char *kept, char *reason, size_t bytes)
{
	char text[TEXT_BYTES + PATH_MAX];

	plan->status = *kept == 'p' ? SHUNT_PLAN_PROVED : SHUNT_PLAN_UNDECIDED;
	if (!strcmp(kept, "proved"))
		return 0;
	snprintf(text, sizeof(text), "%s: %s", plan->source, strchr(kept, ' ') + 1);
	if (*kept == 'p') {
		plan->unread = shunt_arena_strdup(&((struct shunt_plan_owned *)plan)->arena, text);
		return 0;
	}
	if (*kept == 'd') {
		plan->doubt = shunt_arena_strdup(&((struct shunt_plan_owned *)plan)->arena, text);
		return 0;
	}
	if (bytes)
		snprintf(reason, bytes, "%s", text);
	return -EINVAL;
}

int shunt_plan_judge(struct shunt_plan *plan, enum shunt_plan_proving how, char *reason, size_t bytes)
{
	char path[PATH_MAX], text[TEXT_BYTES] = "";
	bool has_path = kept_path(plan, path);
	int err;

	if (has_path && read_kept(path, text))
		return use_kept(plan, text, reason, reason ? bytes : 0);
	if (how == SHUNT_PLAN_PROVE_IF_KNOWN)
		return 0;
	err = shunt_plan_prove(plan, text, sizeof(text));
	if (has_path && (!err || err == -EINVAL))
		keep(path,
		    err                                   ? "wrong" :
		        plan->status == SHUNT_PLAN_PROVED ? "proved" :
		                                            "doubt",
		    err                                   ? without_source(plan, text) :
		        plan->unread                      ? without_source(plan, plan->unread) :
		        plan->status == SHUNT_PLAN_PROVED ? "" :
		        plan->doubt                       ? without_source(plan, plan->doubt) :
		                                            "too large to decide");
	if (err && reason && bytes)
		snprintf(reason, bytes, "%s", text);
	return err;
}
