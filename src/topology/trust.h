/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What self-tests of links have found: for this process, and in the user's cache for others of the same boot, driver
 * and devices. Any thread.
 */
#include <stdbool.h>
#include "device/gpu_ops.h"

enum shunt_trust { SHUNT_TRUST_UNKNOWN, SHUNT_TRUST_GOOD, SHUNT_TRUST_BAD };
#define SHUNT_TRUST_WHY 160

/* Of a pair of devices, in either order, over a link. why: what was wrong; "" unless it is SHUNT_TRUST_BAD. */
enum shunt_trust shunt_trust_find(
    const struct shunt_gpu_info *a, const struct shunt_gpu_info *b, enum shunt_link link, char why[SHUNT_TRUST_WHY]);
/* For this process, and in the cache as well. A cache that cannot be written is no error. */
void shunt_trust_keep(const struct shunt_gpu_info *a, const struct shunt_gpu_info *b, enum shunt_link link,
    enum shunt_trust trust, const char *why, bool in_cache);
/* For tests: the process forgets what it found. */
void shunt_trust_forget(void);
