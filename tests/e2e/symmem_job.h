/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What the tests of collectives in windows share, on the sim: which calls copy engines or pulling kernels take, with
 * which values, and what becomes of the memory. In standalone and, where SHUNT_NCCL_LIB names tests/fake_nccl, in front
 * of an NCCL that has windows of its own.
 */
#include "tests/support/test.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/clock.h"
#include "tests/e2e/ranks.h"

enum { ROOM = 1 << 20, GUARD = 64 };

extern bool symm_overlay;

/* Zeroed before each run; mapped before the ranks are forked. */
struct symm_shared {
	char fake[FAKE_NCCL_SHARED_BYTES];
	atomic_int barrier[16];
	int odd; /* the rank that differs, or a variant */
};
extern struct symm_shared *symm_shared;

/* The ranks that failed. prepare: as in struct ranks. */
int symm_run_with(enum ranks_how how, int n, rank_fn body, int odd, void (*prepare)(int rank));
int symm_run(enum ranks_how how, int n, rank_fn body);
void symm_set_check(int rank);
/* All ranks; each place once per run. */
void symm_barrier(struct rank *r, int place);

enum kind { ALLGATHER, ALLTOALL, BROADCAST, GATHER, SCATTER, KINDS };
extern const char *const symm_names[KINDS];

/* A communicator as a rank sees it, and memory of it that may lie in a window. */
struct place {
	ncclComm_t comm;
	void *stream;
	int rank, n;
	char *window, *plain; /* ROOM bytes each */
};

struct call {
	enum kind kind;
	int root;
	size_t part, at; /* bytes; where in the window */
	bool in_place;
	unsigned char salt;
};

/* Where rank p sends from and receives to; NULL where it has no part. parts: how many each has. */
struct buffers {
	char *send, *recv;
	int sends, receives;
};
struct buffers symm_buffers_of(const struct place *p, const struct call *c);

unsigned char symm_pattern(const struct call *c, int from, int part, size_t i);
int symm_check(struct rank *r, const struct place *p, const struct call *c);

int symm_fill(struct rank *r, const struct place *p, const struct call *c);
ncclResult_t symm_enqueue(const struct place *p, const struct call *c);
int symm_settle(struct rank *r, const struct place *p);
#define STAGED NULL /* as small calls go on the sim that are not made in windows */
int symm_run_call(struct rank *r, const struct place *p, const struct call *c, const char *path);
#define RUN_CALL(place, path, ...) \
	do { \
		if (symm_run_call(r, place, &(struct call){ __VA_ARGS__ }, path)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)

int symm_begin(struct rank *r, struct place *p);
int symm_end(struct rank *r, struct place *p);
/* Of a communicator with an error; aborted: somebody did that already. */
int symm_end_broken(struct rank *r, struct place *p, bool aborted);
/* Mappings of device memory that peers can map, in this process. */
int symm_mappings(void);

/* A call that the other ranks do not make: another thread aborts it, or its deadline passes. */
struct symm_lone_call {
	double began;
	ncclComm_t comm;
	const char *waits; /* what the process's dump says when the call waits; NULL: it is not aborted */
	pthread_t thread;
};
#define KERNEL_WAITS "\"running\": true"
#define HOST_WAITS "\"phase\": \"agreement on a window\""
void symm_lone_call_begin(struct symm_lone_call *l, ncclComm_t comm, const char *waits);
int symm_lone_call_end(struct rank *r, struct symm_lone_call *l, void *stream);

/* To be called before the tests run: makes what ranks share, and the environment. */
void symm_begin_all(void);
