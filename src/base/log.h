/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_LOG_H
#define SHUNT_BASE_LOG_H
/*
 * Every line that Shunt prints. Any thread, at any time, also while the configuration is being parsed; errno is kept,
 * and %m works. A line is "host:pid:tid [device] SHUNT LEVEL text", written with one write; line breaks in the text
 * become spaces.
 *
 * What is printed: errors and warnings always, info and trace as NCCL_DEBUG and NCCL_DEBUG_SUBSYS say; to stderr, or to
 * NCCL_DEBUG_FILE (%h host, %p process) when NCCL_DEBUG is WARN or more or SHUNT_LOG is set.
 * SHUNT_LOG=none|error|warn|info|trace overrides the level. The subsystems are INIT, BOOTSTRAP and ENV unless
 * NCCL_DEBUG_SUBSYS says otherwise, all of them with SHUNT_LOG=trace.
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

/* Bits; a line may belong to several. Values are ours, names are those of NCCL_DEBUG_SUBSYS. */
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
void shunt_info(unsigned subsys, const char *fmt, ...) SHUNT_LOG_PRINTF(2, 3);
void shunt_trace(unsigned subsys, const char *fmt, ...) SHUNT_LOG_PRINTF(2, 3);
/* For what the user should see once without asking: printed unless SHUNT_LOG is none or error. */
void shunt_banner(const char *fmt, ...) SHUNT_LOG_PRINTF(1, 2);

/* False when info or trace of this subsystem would print nothing: for callers that must collect what they print. */
bool shunt_log_enabled(enum shunt_loglevel level, unsigned subsys);
/* The calling thread's lines carry this device from now on; -1: none. */
void shunt_log_set_device(int device);
/*
 * Text of the last error or warning of the process, printed or not, "" if none. Valid in this thread until its next
 * call.
 */
const char *shunt_last_error(void);
/* From now on it is this, of which no line is written. */
void shunt_last_error_set(const char *text);
/* Reads the variables again and opens the file again. */
void shunt_log_reset(void);

/* What the variables mean; for tests. path is "" for stderr, with %h and %p replaced. */
struct shunt_log_settings {
	enum shunt_loglevel level;
	unsigned mask;
	bool banner;
	char path[PATH_MAX];
};
void shunt_log_parse(const char *(*get)(void *arg, const char *name), void *arg, struct shunt_log_settings *out);
#endif
