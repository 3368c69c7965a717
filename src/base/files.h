/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * JSON files that the configuration names: single files, and all *.json of a directory, sorted by the bytes of their
 * names. So the order is the same on all ranks whatever their locales are.
 *
 * They decide what a process computes, or how fast. So a file, or a directory, that is neither root's nor this user's,
 * or that every user may write to, is left out with a line.
 */
#include <stdbool.h>
#include <stddef.h>

struct dirent;
/* scandir() of a directory's *.json files without hidden ones, sorted as above. */
int shunt_files_scan(const char *dir, struct dirent ***entries_p);

struct shunt_files {
	const char *what, *one; /* for messages: "plans" and "plan" */
	void (*add)(void *ctx, const char *path);
	void *ctx;
};

/*
 * Adds the files of a directory, or a single file. wanted: the user named the path, so a missing path and a directory
 * without *.json are logged. Not wanted: a missing path and a single file are ignored.
 */
void shunt_files_path(const struct shunt_files *files, const char *path, bool wanted);
/* Adds the paths of a list with colons between them, all of them wanted. */
void shunt_files_list(const struct shunt_files *files, const char *list);

/*
 * Path of subdirectory `name` of cache_dir (SHUNT_CACHE_DIR's value) or, if that is empty, of ~/.cache/shunt. The
 * latter is for the user whose it is: a process of another user, which only got HOME from somebody (sudo, setpriv, a
 * job that changes its user), reads nothing there and writes nothing there, and warns of nothing.
 */
enum shunt_files_cache {
	SHUNT_FILES_CACHE,
	SHUNT_FILES_NO_CACHE,     /* HOME is no absolute path, or `path` is too small */
	SHUNT_FILES_FOREIGN_CACHE /* path, in HOME, is neither root's nor this user's, or closed to this user */
};
enum shunt_files_cache shunt_files_cache(const char *cache_dir, const char *name, char *path, size_t bytes);
/* The first line of a file of /proc or /sys, without its newline, cut to fit. False: there is none. */
bool shunt_files_line(const char *path, char *text, size_t bytes);
/*
 * Reads a file that shunt_files_keep has written. False: there is none, it is another user's, too long, or cannot be
 * read.
 */
bool shunt_files_kept(const char *path, char *text, size_t bytes);
/*
 * Writes such a file, and makes its directory if need be. Others may write the same file at once: the last one counts,
 * and nobody reads half of one. A failure is ignored.
 */
void shunt_files_keep(const char *path, const char *text);
/* Adds the files of the subdirectory, if this user has a cache directory. */
void shunt_files_cached(const struct shunt_files *files, const char *cache_dir, const char *name);
