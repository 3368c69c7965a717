/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * SHUNT_CHECK on the host: a launch's description of its calls, which kernels/check.h compares. Not called where the
 * check is off.
 *
 * Collectives are counted as the recorder counts them, forwarded ones included: the next collective then finds a rank
 * that left one out, even if the two are alike. Once something was captured, this rank's numbers are no longer
 * compared: ranks may capture more often than others, or replay what others call.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/coll.h"
#include "kernels/kargs.h"

struct shunt_check_count {
	atomic_uint collectives;
	atomic_bool captured; /* ever */
};

/* Counts a call that is forwarded. Any thread. */
void shunt_check_forward(struct shunt_check_count *count, int device, const struct shunt_coll *coll);
/*
 * Counts a group's collectives, and has the group's first launch compare them: sets base->check and base->count, if
 * there are collectives. plugins: of the plug-ins that take some of them; 0: none.
 */
void shunt_check_group(struct shunt_check_count *count, const struct shunt_coll *const *calls, size_t n, bool captured,
    uint64_t plugins, struct shunt_kargs *base);
/* One side of a mismatch: "allreduce of 1024 float32, sum (collective 17)", or "message 3 of 4096 bytes". */
void shunt_check_text(const struct shunt_check *check, uint64_t count, char *text, size_t bytes);
