/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

void shunt_files_path(const struct shunt_files *files, const char *path, bool wanted)
{
	struct dirent **entries;
	char file[PATH_MAX];
	struct stat st;
	int n;

	if (stat(path, &st)) {
		if (wanted || (errno != ENOENT && errno != ENOTDIR))
			shunt_warn("no %s from %s: %s", files->what, path, strerror(errno));
		return;
	}
	if (!S_ISDIR(st.st_mode)) {
		if (wanted)
			files->add(files->ctx, path);
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
		if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name) < sizeof(file))
			files->add(files->ctx, file);
		else
			shunt_warn(
			    "%s refused: %s/%s: %s", files->one, path, entries[i]->d_name, strerror(ENAMETOOLONG));
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

bool shunt_files_cache(const char *cache_dir, const char *name, char *path, size_t bytes)
{
	const char *home = secure_getenv("HOME");
	int n;

	if (*cache_dir)
		n = snprintf(path, bytes, "%s/%s", cache_dir, name);
	else if (home && *home == '/')
		n = snprintf(path, bytes, "%s/.cache/shunt/%s", home, name);
	else
		return false;
	return n > 0 && (size_t)n < bytes;
}
