/* SPDX-License-Identifier: MIT */
#include "plan/proofs.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
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
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	ssize_t n;

	if (fd < 0)
		return false;
	n = fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ? -1 : read(fd, text, TEXT_BYTES - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return !strcmp(text, "proved") || !strncmp(text, "proved: ", 8) || !strncmp(text, "doubt: ", 7) ||
	    !strncmp(text, "wrong: ", 7);
}

/*
 * Makes the directory of a file, and its parent and the parent's, if need be: proofs, shunt and .cache, but not a home
 * that is not there. Whether that works shows when the file is opened.
 */
static void make_directories(const char *path)
{
	char dir[PATH_MAX];
	char *ends[3];
	int n = 0;

	snprintf(dir, sizeof(dir), "%s", path);
	for (char *slash; n < 3 && (slash = strrchr(dir, '/')) && slash != dir; n++) {
		*slash = '\0';
		ends[n] = slash;
		if (!mkdir(dir, 0700) || errno != ENOENT)
			break;
	}
	while (n-- > 0) {
		*ends[n] = '/';
		mkdir(dir, 0700);
	}
}

/* Others may write the same at once: each writes a file of its own, and the last name counts. */
static void keep(const char *path, const char *word, const char *text)
{
	char draft[PATH_MAX], line[TEXT_BYTES];
	size_t n;
	int fd;

	if ((size_t)snprintf(draft, sizeof(draft), "%s.XXXXXX", path) >= sizeof(draft))
		return;
	make_directories(path);
	fd = mkostemp(draft, O_CLOEXEC);
	if (fd < 0)
		return;
	snprintf(line, sizeof(line) - 1, "%s%s%s", word, *text ? ": " : "", text);
	n = strlen(line);
	line[n++] = '\n';
	if (write(fd, line, n) != (ssize_t)n || rename(draft, path))
		unlink(draft);
	close(fd);
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
