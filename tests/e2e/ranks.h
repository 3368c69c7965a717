/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Runs a body as n ranks, each a process or each a thread, against libshunt through NCCL's ABI on the sim device.
 * The parent touches no library call, so that children start clean. Every run is bounded; ranks that are still there at
 * its end are killed and fail the test.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include "shim/nccl/abi.h"
#include "shunt/device.h"
#include "tools/common/nccl_config.h"

struct rank {
	int rank, nranks;
	ncclUniqueId id;
	ncclComm_t comm; /* made before the body unless raw */
	void *stream;
	uint64_t seed; /* the same on all ranks */
	void *memory[8];
	int nmemory;
};

typedef int (*rank_fn)(struct rank *r); /* 0: passed; says itself what was wrong */

enum ranks_how { RANKS_PROCESSES /* unless a test says otherwise */, RANKS_THREADS };

struct ranks {
	enum ranks_how how;
	int n, raw; /* raw: no communicator is made and none destroyed, the body does it */
	rank_fn body;
	void (*prepare)(int rank); /* processes: before the library is touched; may be NULL */
	unsigned dies;             /* processes: bits of the ranks that must end by SIGKILL */
	int limit_s;               /* after which ranks are killed; 0: 150, and more for more than 16 ranks */
};

/* Number of ranks that failed. */
int ranks_run_as(const struct ranks *ranks);
int ranks_run(enum ranks_how how, int n, int raw, rank_fn body);
/* Unique ids that rank 0 makes as they are needed; zeroed memory that the ranks share. */
struct ranks_ids {
	ncclUniqueId id[64];
	atomic_int n;
};
ncclUniqueId ranks_id(const struct rank *r, struct ranks_ids *ids, int k);
/* Memory of the device until the body has passed; without it the process ends. */
void *ranks_memory(struct rank *r, size_t bytes);
/* Asks, as programs do, until a non-blocking communicator has come to an end with what it does, and how. */
ncclResult_t ranks_settled(ncclComm_t comm);
/*
 * How many calls the counters of a communicator have for an operation and a path. NULL: for any; RANKS_NATIVE: for any
 * path but NCCL's. -1: it has no counters, or no communicator is there.
 */
#define RANKS_NATIVE ""
long ranks_count_calls(ncclComm_t comm, const char *op, const char *path);
/* Waits until all ranks are here. place: 0 at first, in memory that they share; good for one meeting. */
void ranks_barrier(const struct rank *r, atomic_int *place);

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "rank %d: %s:%d: %s\n", r->rank, __FILE__, __LINE__, #cond); \
			return 1; \
		} \
	} while (0)
#define NCCL(call) \
	do { \
		ncclResult_t res_ = (call); \
		if (res_) { \
			fprintf(stderr, "rank %d: %s:%d: %s: %d\n", r->rank, __FILE__, __LINE__, #call, (int)res_); \
			return 1; \
		} \
	} while (0)
/* With tests/support/test.h: a body that runs on each rank. */
#define RANKS_TEST(function, failed) TEST_OF(int, (struct rank * r), function, failed)
