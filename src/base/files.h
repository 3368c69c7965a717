/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_FILES_H
#define SHUNT_BASE_FILES_H
/*
 * The JSON files that settings name: single ones, and all *.json of a directory in the order of the names' bytes, which
 * is the same on all ranks whatever their locales are.
 */
#include <stdbool.h>
#include <stddef.h>

struct dirent;
/* scandir() of a directory's files that count, hidden ones do not, in the order in which they are taken. */
int shunt_files_scan(const char *dir, struct dirent ***entries_p);

struct shunt_files {
	const char *what, *one; /* for messages: "plans" and "plan" */
	void (*add)(void *ctx, const char *path);
	void *ctx;
};

/*
 * A directory, or one file. wanted: the user named it, so that it is not there, or has none, is worth a line; else only
 * a directory counts.
 */
void shunt_files_path(const struct shunt_files *files, const char *path, bool wanted);
/* Such paths with colons between, all of them wanted. */
void shunt_files_list(const struct shunt_files *files, const char *list);

/*
 * The subdirectory of cache_dir (SHUNT_CACHE_DIR's value), or where that is empty of ~/.cache/shunt. False: no HOME, or
 * path is too small.
 */
bool shunt_files_cache(const char *cache_dir, const char *name, char *path, size_t bytes);
#endif
