/* SPDX-License-Identifier: MIT */
#pragma once
/* Shared by the subcommands of `shunt`. A subcommand has a row in the table in shunt.c. */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include "shunt/device.h"
#include "shunt/shunt.h"

enum { TOOL_OK = 0, TOOL_FAIL = 1, TOOL_USAGE = 2 };

struct option_table;
/* A word that may come first among a subcommand's arguments: "new" of `shunt plan new`. */
struct tool_action {
	const char *name; /* NULL: the last row */
	const struct option_table *options;
	int (*run)(int argc, char **argv); /* argv[0] is the action; returns the exit status */
};

struct tool_cmd {
	const char *name;
	const char *summary; /* one line, for the list of subcommands */
	const struct option_table *options;
	const struct tool_action *actions; /* NULL: none */
	/* Without an action. argv[0] is the subcommand; returns the exit status. NULL: it needs an action. */
	int (*run)(int argc, char **argv);
};

extern const struct tool_cmd tool_cmd_run, tool_cmd_info, tool_cmd_doctor, tool_cmd_bench, tool_cmd_conform,
    tool_cmd_plan, tool_cmd_plugin, tool_cmd_tune, tool_cmd_torture, tool_cmd_path, tool_cmd_top, tool_cmd_watch,
    tool_cmd_ras;

/* Text of files and other processes, that no terminal obeys it: control characters but the `kept` ones become '?'. */
void tool_printable(char *text, const char *kept);
/* "shunt <cmd> <action>: text" on stderr, printable. */
void tool_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same with a hint at --help; returns TOOL_USAGE. */
int tool_usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The action of the subcommand that runs; NULL: none. Messages and hints name it, too. */
const char *tool_action(void);
const char *tool_cmd_name(void); /* of the subcommand that runs */

/*
 * "8", "64k", "1M", "2G" (binary multiples; a trailing B or iB is accepted), at least lo and at most hi. 0 or -EINVAL,
 * -ERANGE.
 */
int tool_parse_size(const char *text, uint64_t lo, uint64_t hi, uint64_t *bytes_p);
/* A decimal integer, at least lo and at most hi. 0 or -EINVAL, -ERANGE. */
int tool_parse_uint(const char *text, unsigned lo, unsigned hi, unsigned *value_p);
/* Minutes, also with a fraction, above 0. 0 or -EINVAL. */
int tool_parse_minutes(const char *text, double *minutes_p);
/* Index of a data type, by NCCL's name or nccl-tests'; -1: none. */
int tool_dtype_find(const char *name);
/* NCCL's name of a data type; NULL: there are no more. */
const char *tool_dtype_at(int i);
/* The same of types and formats. */
int tool_format_find(const char *name);
const char *tool_format_at(int i);
/* Stores the reason why a value is refused; returns err. */
int tool_refuse(int err, const char *text, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/*
 * The reason for the value that was refused last (also by the functions above), if it is text or a word in it; else
 * NULL.
 */
const char *tool_refused(const char *text);
/* The value of SHUNT_NCCL_LIB or of the variable with the same meaning; NULL if both are unset or empty. */
const char *tool_nccl_lib(void);
/* A library as --lib names it: name: spec without ":reg" at its end. *registered_p: spec has it. */
void tool_spec_split(const char *spec, char name[PATH_MAX], bool *registered_p);
/* "64K" if that is exact, else the plain number. buf: 24 bytes. */
const char *tool_format_size(uint64_t bytes, char *buf);
/* Writes text with the special characters of HTML and SVG escaped. */
void tool_escape(const char *text, FILE *out);

/*
 * A file that appears at once as a whole: `out` is a temporary file in the same directory, which then gets the name. A
 * path that is a link or no regular file, such as /dev/stdout or a pipe, is written in place. All functions return 0,
 * or -errno after an error message.
 */
struct tool_file {
	FILE *out;
	const char *path; /* the caller's */
	char tmp[PATH_MAX];
	bool in_place;
};
int tool_file_begin(struct tool_file *f, const char *path);
/*
 * The same for a name that is the command's own choice: what is there is replaced, and no link is followed. The file's
 * permissions are those of a new one.
 */
int tool_file_replace(struct tool_file *f, const char *path);
/* Closes and renames the file. With err: removes it instead, and returns err without a message. */
int tool_file_end(struct tool_file *f, int err);
/* Writes a whole JSON file in this way. */
struct json_t;
int tool_file_json(const char *path, const struct json_t *root);
/* Checks that the file can be written, before the work for it begins. Leaves no file. */
int tool_file_try(const char *path);

struct shunt_nearest;
/* " (maybe NAME?)" if one of the names that were tried is near, else "". buf: 64 bytes. */
const char *tool_maybe(const struct shunt_nearest *nearest, char *buf);

/* Index of name in names (n entries, NULL ones skipped), or -1. Case and underscores do not count. */
int tool_lookup(const char *name, const char *const *names, int n);

/*
 * The tools' libshunt.so: SHUNT_LIB, else that of the build tree of this executable, else the installed one. path:
 * absolute, without symbolic links. 0, or -ENOENT after an error message.
 */
int tool_lib_path(char path[PATH_MAX]);

/*
 * The folder of the Python package libshunt: of this installation, else that of python3. 0, or -ENOENT after an error
 * message.
 */
int tool_python_package(char dir[PATH_MAX]);
/* Sets a variable to value, or to value:old if it has a value. 0 or -ENOMEM. */
int tool_env_prepend(const char *name, const char *value);

/* Functions of libshunt.so for the tools, which do not link it because its SONAME is NCCL's. */
/* clang-format off */
#define TOOL_LIB_FUNCS(X) \
	X(version) X(build) X(real_nccl_path) X(counters) X(path_of) X(device_kind) X(device_name) X(device_count) \
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
 * Opens libshunt.so and looks up every function. 0 or -errno after an error message. The library stays open until the
 * process ends.
 */
int tool_lib_open(struct tool_lib *lib);

/* dlopen for libraries with NCCL's ABI: binds now, locally, and to its own symbols first. */
void *tool_dlopen(const char *path);

/*
 * Starts a program, found in PATH, without its messages. Its output, which the caller closes, and then waits for
 * *pid_p; NULL: it did not start.
 */
FILE *tool_output_of(const char *const argv[], pid_t *pid_p);
