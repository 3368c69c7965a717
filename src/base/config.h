/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_CONFIG_H
#define SHUNT_BASE_CONFIG_H
/*
 * The configuration: one row per variable in config.def (ours, SHUNT_*) and nccl_env.def (NCCL's that we obey). Read
 * once, on the first call of any function here, and never again. A value that cannot be read is reported in one line
 * and its default taken. An empty value counts as not set. Any thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "base/log.h"

enum shunt_device_choice { SHUNT_DEVICE_AUTO, SHUNT_DEVICE_CUDA, SHUNT_DEVICE_SIM };

#define CFG_bool bool
#define CFG_uint unsigned
#define CFG_int int
#define CFG_size uint64_t
#define CFG_ms int64_t
#define CFG_str const char *
#define CFG_device enum shunt_device_choice
#define CFG_loglevel enum shunt_loglevel
#define CFG(name, type, def, field, aliases, doc) CFG_##type field;

struct shunt_config {
#include "base/config.def"
};

struct shunt_nccl_env {
#include "base/nccl_env.def"
};

#undef CFG
#undef CFG_bool
#undef CFG_uint
#undef CFG_int
#undef CFG_size
#undef CFG_ms
#undef CFG_str
#undef CFG_device
#undef CFG_loglevel

/* Strings are never NULL and live as long as the process. */
const struct shunt_config *shunt_config(void);
const struct shunt_nccl_env *shunt_nccl_env(void);

/*
 * Why this collective is NCCL's: SHUNT_REASON_FORCED, SHUNT_FORCE_NCCL names it, or all; SHUNT_REASON_NCCL_ENV,
 * NCCL_ALGO or NCCL_PROTO chooses (or excludes) something for it. SHUNT_REASON_NONE: it is not.
 */
enum shunt_reason shunt_config_nccl_reason(enum shunt_kind kind);
/* NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC. */
bool shunt_nccl_env_forbids_p2p(void);
/* The smaller of NCCL_MAX_CTAS and NCCL_MAX_NCHANNELS; 0: no limit. */
unsigned shunt_nccl_env_max_ctas(void);
/* Hash of every value that steers selection and must be equal on all ranks. */
uint64_t shunt_config_fingerprint(void);

/* For shunt info: rows 0 to shunt_config_nrows() - 1, ours first. False when there is no such row. */
struct shunt_config_row {
	const char *name; /* "SHUNT_ALGO" */
	const char *type; /* "str" */
	const char *def;
	const char *aliases; /* space separated, may be "" */
	const char *accepts; /* what the type takes, in words */
	const char *doc;
	const char *source; /* "default", or the variable that gave the value */
	char value[256];    /* as text that the variable would take; cut if longer */
};
/* Is SHUNT_... a variable that something here reads? If not, *nearest_p is the one that may be meant, or NULL. */
bool shunt_config_knows(const char *name, const char **nearest_p);
size_t shunt_config_nrows(void);
bool shunt_config_row(size_t i, struct shunt_config_row *row);

/*
 * The parser itself, for tests: reads what get gives and, if names is not NULL, checks that NULL-terminated list of
 * "NAME=value" for unknown SHUNT_ names. finish frees the strings.
 */
#define SHUNT_CONFIG_MAX_ROWS 64
struct shunt_settings {
	struct shunt_config config;
	struct shunt_nccl_env nccl;
	uint32_t forced, claimed; /* bits of enum shunt_kind */
	char forced_bad[64];      /* what of SHUNT_FORCE_NCCL is no collective, or "" */
	uint64_t fingerprint;
	char source[SHUNT_CONFIG_MAX_ROWS][64];
};
void shunt_settings_parse(
    struct shunt_settings *s, const char *(*get)(void *arg, const char *name), void *arg, char *const *names);
void shunt_settings_finish(struct shunt_settings *s);
bool shunt_settings_row(const struct shunt_settings *s, size_t i, struct shunt_config_row *row);
#endif
