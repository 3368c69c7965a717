/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_ENV_H
#define SHUNT_BASE_ENV_H
#include <stdbool.h>
#include <stddef.h>

/*
 * Value of a variable as NCCL would see it: the environment, and for NCCL_* names then the file that NCCL_CONF_FILE
 * names (or .nccl.conf in HOME, or else in the account's directory), then /etc/nccl.conf. NULL if it is nowhere. Never
 * logs, any thread; the files are read once.
 */
const char *shunt_env(const char *name);
/* True when shunt_env takes the value from a file. */
bool shunt_env_from_file(const char *name);

/*
 * Finds NAME=value in the text of a configuration file and copies the value; false when it is not there. For shunt_env
 * and tests.
 */
bool shunt_env_find(const char *text, const char *name, char *value, size_t bytes);
#endif
