/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_OBSERVE_CHECK_H
#define SHUNT_COMM_OBSERVE_CHECK_H
/*
 * SHUNT_CHECK on the host: what a launch says of its calls, for kernels/check.h to compare. Nothing here is called
 * where it is off.
 *
 * Collectives are counted as the recorder counts them, forwarded ones too, so that a rank which leaves one out is found
 * by the next one, be it alike. That holds until something is captured: ranks may capture more often than others, or
 * replay what others call. From then on this rank's numbers are not compared.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/coll.h"
#include "kernels/kargs.h"

struct shunt_comm;

struct shunt_check_count {
	atomic_uint collectives;
	atomic_bool captured; /* ever */
};

/* Counts a call that is forwarded. Any thread. */
void shunt_check_forward(struct shunt_comm *comm, const struct shunt_coll *coll);
/*
 * Counts a group's collectives, and lets the group's first launch compare them: sets base->check and base->count, if
 * there are any.
 */
void shunt_check_group(
    struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n, bool captured, struct shunt_kargs *base);
/* A side of a mismatch: "allreduce of 1024 float32, sum (collective 17)", or "message 3 of 4096 bytes". */
void shunt_check_text(const struct shunt_check *check, uint64_t count, char *text, size_t bytes);
#endif
