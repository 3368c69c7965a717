/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What the tests of the overlay share. A program against NCCL's ABI with a real NCCL present: Shunt over
 * tests/fake_nccl, on the sim device. The fake gives the handles and writes down what is forwarded to it; what Shunt
 * takes is computed by its kernels.
 */
#include "tests/support/test.h"
#include <dlfcn.h>
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/clock.h"
#include "tests/e2e/ranks.h"

#define PATIENCE "90s" /* longer than a loaded machine takes for anything here */
#define SOON AT_ONCE_S /* how long an abort may take */

/* Zeroed before each run; mapped before the ranks are forked. */
struct overlay_shared {
	char fake[FAKE_NCCL_SHARED_BYTES];
	struct ranks_ids ids;
	atomic_int barrier[16];
	atomic_int warnings[16]; /* lines about forward-only communicators */
	int odd;                 /* the rank that differs */
	atomic_int stopped;      /* process of the rank that stops itself */
	atomic_int victim;       /* process of the rank that is to die */
};
extern struct overlay_shared *overlay_shared;

/* The ranks that failed. odd: the rank that differs. */
int overlay_run(enum ranks_how how, int n, rank_fn body);
int overlay_run_as(const struct ranks *ranks, int odd);
/* All ranks; each place once per run. */
void overlay_barrier(struct rank *r, int place);

/* A setting that the odd rank has, or that all have: a `prepare` of struct ranks. */
extern const char *overlay_odd_name, *overlay_odd_value;
void overlay_set_odd(int rank);
void overlay_set_all(int rank);
void overlay_only_allreduce(int rank);
/* The ranks that failed of n processes that all have the setting. */
int overlay_run_set(int n, const char *name, const char *value, rank_fn body);

/* Opened by us where Shunt did not: a rank without Shunt. */
void *overlay_fake_lib(void);
#define FAKE(symbol) ((__typeof__(symbol) *)dlsym(overlay_fake_lib(), #symbol))
/* Calls of this name that reached the fake in this process. */
int overlay_forwarded(const char *name);

/* All-reduces of the communicator that our kernels took, or that went to NCCL. */
long overlay_count_calls(ncclComm_t comm, int native);
enum how { NATIVE, FORWARDED };
/*
 * One all-reduce of int32, on a communicator in which we are `rank` of n; checks where it went and, if it was ours, the
 * values.
 */
int overlay_reduce(struct rank *r, ncclComm_t comm, int rank, int n, size_t count, enum how how);
#define REDUCE(comm, place, n, count, how) \
	do { \
		if (overlay_reduce(r, comm, place, n, count, how)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)
ncclConfig_t overlay_config(int blocking, int max_ctas);

/* To be called before the tests run: makes what ranks share, and the environment. */
void overlay_begin(void);
