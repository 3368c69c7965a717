/* SPDX-License-Identifier: MIT */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/*
 * Value of a variable as NCCL sees it; NULL: not set. Sources, in order:
 * - the environment,
 * - for NCCL_* names the file that NCCL_CONF_FILE names, or .nccl.conf in HOME, or else in the account's directory,
 * - for NCCL_* names /etc/nccl.conf. A program with other rights than the user who started it (setuid, capabilities of
 * its file) has only the last of these: otherwise any user could make it load libraries and write files. So nothing in
 * src/ calls getenv(). Never logs. Any thread. The files are read once.
 */
const char *shunt_env(const char *name);
/* True when shunt_env takes the value from a file. */
bool shunt_env_from_file(const char *name);

/*
 * Finds NAME=value in the text of a configuration file and copies the value; false: not found. For shunt_env and tests.
 */
bool shunt_env_find(const char *text, const char *name, char *value, size_t bytes);
