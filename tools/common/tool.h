/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_COMMON_TOOL_H
#define SHUNT_TOOLS_COMMON_TOOL_H
/* What the subcommands of `shunt` share. A subcommand is one file and one row of the table in shunt.c. */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "shunt/device.h"
#include "shunt/shunt.h"

enum { TOOL_OK = 0, TOOL_FAIL = 1, TOOL_USAGE = 2 };

struct tool_cmd {
	const char *name;
	const char *summary;               /* one line, for the list */
	const char *help;                  /* whole text of --help */
	int (*run)(int argc, char **argv); /* argv[0] is the subcommand; returns the exit status */
};

extern const struct tool_cmd tool_cmd_run, tool_cmd_info, tool_cmd_doctor, tool_cmd_bench, tool_cmd_conform,
    tool_cmd_plan, tool_cmd_tune, tool_cmd_torture;

/* "shunt <cmd> <action>: text" on stderr. */
void tool_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same and a hint at --help; returns TOOL_USAGE. */
int tool_usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * From here on messages and hints name this action of the subcommand, too: "new" of `shunt plan new`. Static storage.
 */
void tool_action_set(const char *name);

/*
 * getopt's ':' (text lacks its value) or '?' (there is no option text), with opterr = 0 and a leading ':'; returns
 * TOOL_USAGE.
 */
int tool_option_error(int opt, const char *text);
struct option;
/*
 * text is not a value of the option that getopt_long returned as opt: says why, if that is known (tool_refused).
 * err: -ERANGE or another one. Returns TOOL_USAGE.
 */
int tool_value_error(const struct option *options, int opt, const char *text, int err);

/* A subcommand's options, as for getopt_long(). */
struct option;
struct tool_options {
	const char *letters; /* begin with ':' */
	const struct option *rows;
	const char *help;                                    /* for 'h' */
	bool (*apply)(void *opts, int opt, const char *arg); /* false: arg is not a value of this option */
};
/* Applies those that there are; the rest begins at optind. -1: go on; else the exit status. */
int tool_options_apply(const struct tool_options *options, void *opts, int argc, char **argv);

/*
 * "8", "64k", "1M", "2G" (binary multiples; a trailing B or iB is accepted) of at least lo and at most hi. 0 or
 * -EINVAL, -ERANGE.
 */
int tool_parse_size(const char *text, uint64_t lo, uint64_t hi, uint64_t *bytes_p);
/* A whole decimal number of at least lo and at most hi. 0 or -EINVAL, -ERANGE. */
int tool_parse_uint(const char *text, unsigned lo, unsigned hi, unsigned *value_p);
/* Minutes, with a fraction or without, above 0. 0 or -EINVAL. */
int tool_parse_minutes(const char *text, double *minutes_p);
/* Index of a data type, by NCCL's name or nccl-tests'; -1. */
int tool_dtype_find(const char *name);
/* Remembers what there is to say of a value that is refused; returns err. */
int tool_refuse(int err, const char *text, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/*
 * What was to be said of a value, or of a word in it, if it was the last that was refused (by the functions here, too);
 * else NULL.
 */
const char *tool_refused(const char *text);
/* What SHUNT_NCCL_LIB says, or the variable that means the same; NULL if both are unset or empty. */
const char *tool_nccl_lib(void);
/* "64K" where that is exact, else the plain number. buf needs 24 bytes. */
const char *tool_format_size(uint64_t bytes, char *buf);

/*
 * A file that no reader sees half of: what is written to out goes to a file beside it first, which then takes its name.
 * What is no file, such as /dev/null or a pipe, is written in place. All of these return 0, or -errno after an error
 * message.
 */
struct tool_file {
	FILE *out;
	const char *path; /* the caller's */
	char tmp[PATH_MAX];
	bool in_place;
};
int tool_file_begin(struct tool_file *f, const char *path);
/* Closes and renames it; with err, which is then returned without a message, removes what was written. */
int tool_file_end(struct tool_file *f, int err);
/* The whole of such a file. flags are jansson's. */
struct json_t;
int tool_file_json(const char *path, const struct json_t *root, size_t flags);
/* Can it be written? Leaves nothing there. Asked before work whose result it takes. */
int tool_file_try(const char *path);

/* Index of name in names (n entries, NULL ones skipped), or -1. Case and underscores do not count. */
int tool_lookup(const char *name, const char *const *names, int n);

/*
 * libshunt.so as the tools find it: SHUNT_LIB, else the build tree that this executable lies in, else the directory it
 * was installed to. An absolute path without symbolic links in path. 0, or -ENOENT after an error message.
 */
int tool_lib_path(char path[PATH_MAX]);
/* The directory with the links libnccl.so.2 and libnccl.so that belongs to a library. 0 or -ENOENT (silently). */
int tool_links_dir(const char *lib_path, char dir[PATH_MAX]);

/* Functions that the tools call in libshunt.so; the tools do not link it, because its SONAME is NCCL's. */
/* clang-format off */
#define TOOL_LIB_FUNCS(X) \
	X(version) X(real_nccl_path) X(counters) X(path_of) X(device_kind) X(device_name) X(device_count) \
	X(device_set) X(stream_create) X(stream_synchronize) X(stream_destroy) X(malloc) X(free) X(memcpy) \
	X(memset_async) X(mem_info) X(capture_begin) X(capture_end) X(graph_launch) X(graph_destroy)
/* clang-format on */

struct tool_lib {
	void *handle;
	char path[PATH_MAX];
#define X(name) __typeof__(shunt_##name) *name;
	TOOL_LIB_FUNCS(X)
#undef X
};
/*
 * Opens libshunt.so and looks every function up. 0 or -errno after an error message. Stays open until the process ends.
 */
int tool_lib_open(struct tool_lib *lib);

/* dlopen with what every NCCL-like library is opened with: now, local, and bound to itself first. */
void *tool_dlopen(const char *path);
#endif
