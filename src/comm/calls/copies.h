/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The copies of a launch, on two streams. Captures follow both. With the communicator's lock held.
 *
 * | copies            | stream                                                                     |
 * |-------------------|----------------------------------------------------------------------------|
 * | to or from a peer | the launch's, one after another, because they share a link                 |
 * | within this rank  | a side stream, forked from the launch's and joined again: at the same time |
 */
#include <stdbool.h>

struct shunt_comm;
struct shunt_copy; /* algos/algo.h */

struct shunt_ce {
	void *side_stream; /* NULL: not needed yet, or it could not be created */
	void *fork, *join; /* events */
	bool forked;       /* by the current launch */
};

/* -EINVAL: the peer's address lies in no window (logged). */
int shunt_ce_copy(struct shunt_comm *comm, void *stream, const struct shunt_copy *copy);
/* Makes the stream wait for all copies so far. */
int shunt_ce_join(struct shunt_comm *comm, void *stream);
/* After the last launch. */
void shunt_ce_finish(struct shunt_comm *comm);
