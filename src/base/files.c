/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/files.h"
#include "base/log.h"

static int is_json(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return entry->d_name[0] != '.' && n > 5 && !strcmp(entry->d_name + n - 5, ".json");
}

/* Not alphasort: ranks may have different locales. */
static int by_bytes(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

int shunt_files_scan(const char *dir, struct dirent ***entries_p)
{
	return scandir(dir, entries_p, is_json, by_bytes);
}

/*
 * The reason why another user may have written what is there, or NULL. In a directory with the sticky bit others make
 * files of their own only.
 */
static const char *distrust(const struct stat *st)
{
	if (st->st_uid && st->st_uid != geteuid())
		return "it is neither this user's nor root's";
	if (st->st_mode & S_IWOTH && !(S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX))
		return "every user may write to it";
	return NULL;
}

static void add_file(const struct shunt_files *files, const char *path, const struct stat *st)
{
	const char *reason = distrust(st);

	if (reason)
		shunt_warn("%s refused: %s: %s", files->one, path, reason);
	else
		files->add(files->ctx, path);
}

/* An entry of a directory. */
static void add_entry(const struct shunt_files *files, const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
		shunt_warn("%s refused: %s/%s: %s", files->one, dir, name, strerror(ENAMETOOLONG));
	else if (stat(path, &st))
		shunt_warn("%s refused: %s: %s", files->one, path, strerror(errno));
	else
		add_file(files, path, &st);
}

void shunt_files_path(const struct shunt_files *files, const char *path, bool wanted)
{
	struct dirent **entries;
	const char *reason;
	struct stat st;
	int n;

	if (stat(path, &st)) {
		if (wanted || (errno != ENOENT && errno != ENOTDIR))
			shunt_warn("no %s from %s: %s", files->what, path, strerror(errno));
		return;
	}
	if (!S_ISDIR(st.st_mode)) {
		if (wanted)
			add_file(files, path, &st);
		return;
	}
	reason = distrust(&st);
	if (reason) {
		shunt_warn("no %s from %s: %s", files->what, path, reason);
		return;
	}
	n = shunt_files_scan(path, &entries);
	if (n < 0) {
		shunt_warn("no %s from %s: %s", files->what, path, strerror(errno));
		return;
	}
	if (!n && wanted)
		shunt_warn("no %s from %s: it has no *.json", files->what, path);
	for (int i = 0; i < n; i++) {
		add_entry(files, path, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
}

void shunt_files_list(const struct shunt_files *files, const char *list)
{
	char path[PATH_MAX];

	while (*list) {
		size_t n = strcspn(list, ":");

		if (n >= sizeof(path))
			shunt_warn("no %s from %.64s...: %s", files->what, list, strerror(ENAMETOOLONG));
		else if (n) {
			snprintf(path, sizeof(path), "%.*s", (int)n, list);
			shunt_files_path(files, path, true);
		}
		list += n + (list[n] != '\0');
	}
}

/* Looks at the nearest directory on the way from the cache up to HOME that is there. */
static bool is_of_somebody_else(const char *path, size_t home_bytes)
{
	char at[PATH_MAX];
	struct stat st;

	if ((size_t)snprintf(at, sizeof(at), "%s", path) >= sizeof(at))
		return false;
	while (stat(at, &st)) {
		char *slash = strrchr(at, '/');

		if (errno == EACCES)
			return true;
		if ((errno != ENOENT && errno != ENOTDIR) || !slash || (size_t)(slash - at) < home_bytes)
			return false;
		*slash = '\0';
	}
	return st.st_uid && st.st_uid != geteuid();
}

enum shunt_files_cache shunt_files_cache(const char *cache_dir, const char *name, char *path, size_t bytes)
{
	const char *home = secure_getenv("HOME");
	int n;

	*path = '\0';
	if (*cache_dir)
		n = snprintf(path, bytes, "%s/%s", cache_dir, name);
	else if (home && *home == '/')
		n = snprintf(path, bytes, "%s/.cache/shunt/%s", home, name);
	else
		return SHUNT_FILES_NO_CACHE;
	if (n < 0 || (size_t)n >= bytes)
		return SHUNT_FILES_NO_CACHE;
	return !*cache_dir && is_of_somebody_else(path, strlen(home)) ? SHUNT_FILES_FOREIGN_CACHE : SHUNT_FILES_CACHE;
}

void shunt_files_cached(const struct shunt_files *files, const char *cache_dir, const char *name)
{
	char path[PATH_MAX];

	switch (shunt_files_cache(cache_dir, name, path, sizeof(path))) {
	case SHUNT_FILES_CACHE:
		shunt_files_path(files, path, false);
		break;
	case SHUNT_FILES_FOREIGN_CACHE:
		shunt_info(SHUNT_LOG_INIT, "no %s from %s: it is in the home of another user", files->what, path);
		break;
	case SHUNT_FILES_NO_CACHE:
		break;
	}
}

bool shunt_files_line(const char *path, char *text, size_t bytes)
{
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(text, (int)bytes, f);

	if (f)
		fclose(f);
	if (ok)
		text[strcspn(text, "\n")] = '\0';
	return ok;
}

bool shunt_files_kept(const char *path, char *text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	ssize_t n;

	if (fd < 0)
		return false;
	n = fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ? -1 : read(fd, text, bytes);
	close(fd);
	if (n <= 0 || (size_t)n == bytes)
		return false;
	text[n] = '\0';
	return true;
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

void shunt_files_keep(const char *path, const char *text)
{
	char draft[PATH_MAX];
	ssize_t n = (ssize_t)strlen(text);
	int fd;

	if ((size_t)snprintf(draft, sizeof(draft), "%s.XXXXXX", path) >= sizeof(draft))
		return;
	make_directories(path);
	fd = mkostemp(draft, O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, text, (size_t)n) != n || rename(draft, path))
		unlink(draft);
	close(fd);
}
