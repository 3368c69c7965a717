/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_CE_H
#define SHUNT_COMM_CE_H
/*
 * The copies of a launch: those between ranks on the launch's own stream, one after the other, as they share a link;
 * this rank's own at the same time on a stream of the communicator, which is forked from the launch's by events and
 * joined again. Captures take all of it. With the communicator's lock held.
 */
#include <stdbool.h>

struct shunt_comm;
struct shunt_copy; /* algos/algo.h */

struct shunt_ce {
	void *side_stream; /* the stream; NULL until it is needed, or cannot be had */
	void *fork, *join; /* events */
	bool forked;       /* by the launch that is being made */
};

/* -EINVAL: the peer's address does not lie in a window (logged). */
int shunt_ce_copy(struct shunt_comm *comm, void *stream, const struct shunt_copy *copy);
/* What comes next on the stream follows all copies so far. */
int shunt_ce_join(struct shunt_comm *comm, void *stream);
/* After the last launch. */
void shunt_ce_finish(struct shunt_comm *comm);
#endif
