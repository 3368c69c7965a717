/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_ALGOS_ALGOS_H
#define SHUNT_ALGOS_ALGOS_H
/* What the files of algorithms share. */
#include "algos/algo.h"

/* Rows of one file, ended by one without a name. */
extern const struct shunt_algo shunt_allreduce_algos[];
extern const struct shunt_algo shunt_exchange_algos[];
/* Of every kind, for communicators of one rank. */
extern const struct shunt_algo shunt_local_algo;

/*
 * Blocks and threads for `warps` warps (at least one): spread over SMs first, then deepen, within max_blocks (and the user's limit) of
 * max_warps. Returns how many warps there are then: fewer than asked for if they do not fit.
 */
uint64_t shunt_spread(const struct shunt_scope *scope, uint64_t warps, unsigned max_blocks, unsigned max_warps, struct shunt_work *work);
#endif
