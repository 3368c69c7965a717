/* SPDX-License-Identifier: MIT */
#pragma once
/* Names of the algorithms that the selection takes: of bytes, added up, in buffers anywhere or in windows. */
#include "tests/algos/sel.h"

#define KB ((uint64_t)1 << 10)
#define MB ((uint64_t)1 << 20)
#define END UINT64_MAX
#define NO_END (END / 32 * 16) /* of parts that are multiples of 16 bytes */

const char *path_of_sel(const struct shunt_sel *sel, enum shunt_kind kind, uint64_t bytes);
const char *path_of(const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes);
const char *path_in_window(const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes);

/* What the machine's user has is no part of a test: to call before the first one. */
void path_alone(void);
