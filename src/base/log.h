/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The log. Any thread, at any time, also while the configuration is being parsed. errno is kept, and %m works. A line
 * is "host:pid:tid SHUNT LEVEL text", written with one write; control characters in the text become spaces.
 * No lock is held meanwhile. A line that nobody reads, as in a full pipe, is lost after a second, and a later line says
 * how many were.
 *
 *   level       errors and warnings always, info and trace as NCCL_DEBUG says; SHUNT_LOG overrides it
 *               (none, error, warn, info, trace)
 *   subsystems  INIT, BOOTSTRAP and ENV, or all with SHUNT_LOG=trace; NCCL_DEBUG_SUBSYS overrides both
 *   output      stderr; NCCL_DEBUG_FILE (%h host, %p process) if NCCL_DEBUG is WARN or more or SHUNT_LOG is set
 */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum shunt_loglevel {
	SHUNT_LOGLEVEL_AUTO,
	SHUNT_LOGLEVEL_NONE,
	SHUNT_LOGLEVEL_ERROR,
	SHUNT_LOGLEVEL_WARN,
	SHUNT_LOGLEVEL_INFO,
	SHUNT_LOGLEVEL_TRACE,
};
extern const char *const shunt_loglevel_names[]; /* "auto", ..., NULL */

/* Bits; a line may belong to several. The names are those of NCCL_DEBUG_SUBSYS, the values are not. */
#define SHUNT_LOG_INIT 0x01u
#define SHUNT_LOG_COLL 0x02u
#define SHUNT_LOG_ENV 0x04u
#define SHUNT_LOG_BOOTSTRAP 0x08u
#define SHUNT_LOG_GRAPH 0x10u
#define SHUNT_LOG_NET 0x20u
#define SHUNT_LOG_ALL 0x3fu

#define SHUNT_LOG_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

void shunt_error(const char *fmt, ...) SHUNT_LOG_PRINTF(1, 2);
void shunt_warn(const char *fmt, ...) SHUNT_LOG_PRINTF(1, 2);
/* A warning about what follows from an error before: that one stays the last error. */
void shunt_warn_again(const char *fmt, ...) SHUNT_LOG_PRINTF(1, 2);
void shunt_info(unsigned subsys, const char *fmt, ...) SHUNT_LOG_PRINTF(2, 3);
/* A line without a level, for users who did not ask for any. Printed unless SHUNT_LOG is none or error. */
void shunt_banner(const char *fmt, ...) SHUNT_LOG_PRINTF(1, 2);

/* False if a line of this level and subsystem would not be printed. Saves callers the work of collecting its text. */
bool shunt_log_enabled(enum shunt_loglevel level, unsigned subsys);
/*
 * Text of the last error or warning of the process, printed or not, "" if none. Valid in this thread until its next
 * call.
 */
const char *shunt_last_error(void);
/*
 * Between the two, this thread's lines are kept, and flush writes them: for work under a lock that other threads may
 * want, or while other threads wait for this thread. They nest.
 */
void shunt_log_hold(void);
void shunt_log_flush(void);
/* Replaces that text, without a line in the log. */
void shunt_last_error_set(const char *text);
/* Reads the variables and opens the file anew. */
void shunt_log_reset(void);

/* Settings that follow from the variables; for tests. path: "" for stderr; %h and %p are replaced. */
struct shunt_log_settings {
	enum shunt_loglevel level;
	unsigned mask;
	bool banner;
	char path[PATH_MAX];
};
void shunt_log_parse(const char *(*get)(void *arg, const char *name), void *arg, struct shunt_log_settings *out);
