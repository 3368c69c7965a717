/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of faults.c share. */
#include "tests/hosts/world.h"

enum { LARGE = WORLD_TSAN ? 100003 : 1000003 }; /* with ThreadSanitizer what all slots do not hold */
enum { SMALL = 300, SILENCE_S = 60 };
enum phase { IN_INIT, IN_SETUP, IN_SMALL, IN_LARGE, IN_IDLE, IN_DESTROY };

extern bool all;         /* what takes long, too */
extern enum phase phase; /* in which the test's fault comes */

/*
 * Sums over all ranks. The first returns what the call says, and in *right_p whether all `count` elements are `want`;
 * the others return 0 or 1.
 */
ncclResult_t sum(const struct rank *r, ncclComm_t comm, size_t count, uint32_t want, bool *right_p);
/* without: bits of ranks that take no part. */
int good_call(const struct rank *r, ncclComm_t comm, size_t count, unsigned without);
/* Calls until one fails, which must be within the limit, with an error that names a rank. */
int await_failure(const struct rank *r, ncclComm_t comm, size_t count);
/* A communicator of the ranks that are left, by an id that the first of them makes. */
int begin_anew(const struct rank *r, unsigned without, int place);

/* Of faults_networks.c, with "all": what waits until a silence is noticed. How many failed. */
int run_silences(void);
