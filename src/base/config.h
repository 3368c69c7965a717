/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The configuration: one row per variable, in config.def (SHUNT_*) and nccl_env.def (the NCCL_* variables that Shunt
 * obeys). The first call of any function here reads the variables, once for the process. A malformed value is reported
 * in one log line, and the default is used. An empty value counts as not set. Any thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "base/log.h"
#include "shunt/shunt.h"

enum shunt_net_choice { SHUNT_NET_AUTO, SHUNT_NET_VERBS, SHUNT_NET_TCP };
extern const char *const shunt_net_names[]; /* "auto", "verbs", "tcp", NULL */

enum shunt_ibv_mode { SHUNT_IBV_HOST_NO_ATOMIC, SHUNT_IBV_HOST };

enum shunt_ep_sum { SHUNT_EP_SUM_EXACT, SHUNT_EP_SUM_RANK };
extern const char *const shunt_accumulate_names[]; /* of enum shunt_accumulate: "default", "fp32", ..., NULL */

enum shunt_selftest_mode { SHUNT_SELFTEST_OFF, SHUNT_SELFTEST_SLOW_LINKS, SHUNT_SELFTEST_ALWAYS, SHUNT_SELFTEST_LONG };

enum shunt_device_choice { SHUNT_DEVICE_AUTO, SHUNT_DEVICE_CUDA, SHUNT_DEVICE_SIM };

#define SHUNT_CFG_bool bool
#define SHUNT_CFG_uint unsigned
#define SHUNT_CFG_int int
#define SHUNT_CFG_ctapolicy int
#define SHUNT_CFG_size uint64_t
#define SHUNT_CFG_ms int64_t
#define SHUNT_CFG_str const char *
#define SHUNT_CFG_links const char *
#define SHUNT_CFG_distance const char *
#define SHUNT_CFG_device enum shunt_device_choice
#define SHUNT_CFG_net enum shunt_net_choice
#define SHUNT_CFG_ibvmode enum shunt_ibv_mode
#define SHUNT_CFG_epsum enum shunt_ep_sum
#define SHUNT_CFG_selftest enum shunt_selftest_mode
#define SHUNT_CFG_accumulate enum shunt_accumulate
#define SHUNT_CFG_loglevel enum shunt_loglevel
#define CFG(name, type, def, field, aliases, doc) SHUNT_CFG_##type field;

struct shunt_config {
#include "base/config.def"
};

struct shunt_nccl_env {
#include "base/nccl_env.def"
};

#undef CFG

/* Strings are never NULL and live as long as the process. */
const struct shunt_config *shunt_config(void);
const struct shunt_nccl_env *shunt_nccl_env(void);

/*
 * Reason why NCCL has to run this collective:
 *   SHUNT_REASON_FORCED    SHUNT_FORCE_NCCL names it, or all
 *   SHUNT_REASON_NCCL_ENV  NCCL_ALGO or NCCL_PROTO chooses (or excludes) something for it
 *   SHUNT_REASON_NONE      none
 */
enum shunt_reason shunt_config_nccl_reason(enum shunt_kind kind);
/*
 * How far apart devices may be that map each other's memory, of enum shunt_distance, as NCCL reads NCCL_P2P_DISABLE and
 * NCCL_P2P_LEVEL: by the letter, or a number from 0 that means LOC, PIX, PXB, PHB, SYS. -1: neither says.
 */
int shunt_nccl_p2p_level(const struct shunt_nccl_env *nccl);
/* True: they may not do so at all, with NCCL_P2P_DISABLE=1, and NCCL_P2P_LEVEL=LOC or 0. */
bool shunt_nccl_env_forbids_p2p(void);
bool shunt_nccl_forbids_p2p(const struct shunt_nccl_env *nccl);
/* The smaller of NCCL_MAX_CTAS and NCCL_MAX_NCHANNELS; 0: no limit. */
unsigned shunt_nccl_env_max_ctas(void);
/* Hash of the values that steer the selection and must be equal on all ranks. */
uint64_t shunt_config_fingerprint(void);

/* For `shunt info`: rows 0 to shunt_config_nrows() - 1, SHUNT_* first. shunt_config_row: false if there is no row i. */
struct shunt_config_row {
	const char *name; /* "SHUNT_ALGO" */
	const char *type; /* "str" */
	const char *def;
	const char *aliases; /* space separated, may be "" */
	const char *accepts; /* the valid values, in words */
	const char *doc;
	const char *source; /* "default", or the variable that gave the value */
	char value[256];    /* as the variable's text; cut to fit */
};
/* True if the library or the command reads the variable. Else *nearest_p is the most similar name, or NULL. */
bool shunt_config_knows(const char *name, const char **nearest_p);
size_t shunt_config_nrows(void);
bool shunt_config_row(size_t i, struct shunt_config_row *row);

/*
 * The parser, for tests. get returns a variable's value or NULL. names, if not NULL, is a NULL-terminated list of
 * "NAME=value", which is checked for unknown SHUNT_ names. finish frees the strings.
 */
#define SHUNT_CONFIG_MAX_ROWS 128
struct shunt_settings {
	struct shunt_config config;
	struct shunt_nccl_env nccl;
	uint32_t forced, claimed; /* bits of enum shunt_kind */
	/*
	 * With SHUNT_DETERMINISTIC nothing is claimed, and NCCL_MAX_NCHANNELS is no limit: programs set these for sums
	 * in one order, and our kernels give that with any number of blocks.
	 */
	unsigned max_ctas;   /* the limit on blocks; 0: none */
	bool overruled;      /* one of these variables is set, and does not count */
	char forced_bad[64]; /* first entry of SHUNT_FORCE_NCCL that is no collective, or "" */
	uint64_t fingerprint;
	char source[SHUNT_CONFIG_MAX_ROWS][64];
};
void shunt_settings_parse(
    struct shunt_settings *s, const char *(*get)(void *arg, const char *name), void *arg, char *const *names);
void shunt_settings_finish(struct shunt_settings *s);
bool shunt_settings_row(const struct shunt_settings *s, size_t i, struct shunt_config_row *row);
