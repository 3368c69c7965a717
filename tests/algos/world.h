/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ranks 0 ... n-1 as devices of the sim in one process, with scratch and a stream each, and launches as a communicator
 * makes them.
 */
#include "algos/algo.h"
#include "device/gpu_ops.h"
#include "kernels/kargs.h"

#define WORLD_GUARD 64
#define WORLD_HOST_BYTES 4096 /* of page-locked memory behind a rank's host_ctrl */
/* Of the deadlines that a test tries, one after another, until the machine is fast enough for them. */
#define WORLD_LONGEST_NS (30 * 1000000000ull)

struct world {
	int n;
	struct shunt_gpu_mem mem[8];
	struct shunt_gpu_mem segment[8]; /* of world_start_over() the host's memory */
	bool staged;                     /* the kernels are those without NVLink */
	struct shunt_host_ctrl *host_ctrl[8];
	void *stream[8];
	unsigned launches[8];
	uint64_t op; /* of the launches to come; not 0: they keep account of themselves */
	bool checks; /* SHUNT_CHECK, of messages */
	bool tma;    /* chunks between two ranks are sent by TMA copies, as they do if nothing else is said */
};

void world_start(struct world *w, int n);
/* Ranks that have this link to each other, and not NVLink: SHUNT_LINK_PEER or SHUNT_LINK_SHARED. */
void world_start_over(struct world *w, int n, enum shunt_link link);
void world_stop(struct world *w);
char *world_alloc(int rank, size_t bytes);
/*
 * name: of an algorithm to force, or NULL for the selection's; "bulk" and "chunks": the latter with TMA copies and
 * without. PREMUL takes coll's scalar.
 */
void world_launch(struct world *w, int rank, const struct shunt_coll *coll, const char *name);
/* The same for a group of calls; what shunt_enqueue_calls() says. */
int world_launch_group(struct world *w, int rank, const struct shunt_coll *const *calls, size_t n, const char *name);
/* Waits for a rank's stream; fails the test if a kernel gave up. */
void world_wait(struct world *w, int rank, const char *what);
