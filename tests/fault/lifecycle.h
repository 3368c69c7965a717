/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What one rank does from the making of a communicator to its end: init, sums, a group, messages, a graph, a split,
 * destroy. Every result is checked. Nothing in here allocates, so that all points of inject.h are the library's.
 */
#include "shim/nccl/abi.h"

#define LIFECYCLE_MAX 8

struct lifecycle {
	int rank, nranks;
	ncclUniqueId id;
	void *stream[2];       /* made by lifecycle_prepare, on device `rank` */
	int32_t *dev, *window; /* window: memory that can be one */
	int full; /* 1: with a graph, a second stream, a split and a window; 2: of what else there is; 0: the shortest
	             useful lifecycle */
	int step; /* where it is, for the log */
	ncclResult_t error; /* the first one that the library reported */
	char wrong[160];    /* "" unless something happened that must not */
	ncclComm_t comm;
};

enum lifecycle_result {
	LIFECYCLE_OK,     /* all went well, with the right values */
	LIFECYCLE_FAILED, /* the library reported an error, and the communicator was aborted */
	LIFECYCLE_WRONG,  /* see wrong */
};

/* The environment of all fault tests: no real NCCL, the sim, loopback. times as in SHUNT_TIMEOUT. */
void lifecycle_environment(const char *timeout, const char *setup_timeout);
/* Streams and memory; 0 or -1. */
int lifecycle_prepare(struct lifecycle *lifecycle, int rank, int nranks);
void lifecycle_finish(struct lifecycle *lifecycle);
enum lifecycle_result lifecycle_run(struct lifecycle *lifecycle);
/* A communicator, and a small sum over it; 0 if all went well. */
int lifecycle_begin(struct lifecycle *lifecycle);
/* One sum among n of which we are `rank`, checked: 0, 1: an error was reported, -1: wrong. */
int lifecycle_sum(struct lifecycle *lifecycle, ncclComm_t comm, int rank, int n, size_t count, void *stream);
