/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_BENCH_RANK_H
#define SHUNT_TOOLS_BENCH_RANK_H
/*
 * One rank of shunt bench, and what its files share. Functions return 0 or -errno after a message, unless it says
 * otherwise.
 */
#include "tools/bench/bench.h"

enum {
	BENCH_GRAPH_CALLS = 20,
	BENCH_GUARD_BYTES = 256,     /* behind every buffer; nobody may write there */
	BENCH_BLOCK_BYTES = 4 << 20, /* host memory through which data is made and checked */
};

/* Pairs of buffers: of plain device memory, or of a library's ncclMemAlloc and registered with a communicator. */
struct bench_buffers {
	const struct bench_nccl *nccl; /* NULL: plain */
	ncclComm_t comm;
	unsigned n;
	void **send, **recv;  /* n of each */
	ncclWindow_t *window; /* 2 x n, some NULL; nccl only */
};

struct bench_gemm;
#define BENCH_MAX_COUNTERS 64

/* A communicator's counters. */
struct bench_counters {
	struct shunt_counter rows[BENCH_MAX_COUNTERS];
	size_t n;
};

struct bench_rank {
	const struct bench_opts *o; /* &opts */
	struct bench_opts opts;     /* with the defaults filled in and the seed agreed */
	struct bench_shared *shared;
	int fd;
	int rank, device;
	struct bench_ranks *ranks;
	struct bench_progress *progress;
	struct tool_lib lib;
	struct bench_nccl nccl[BENCH_MAX_LIBS];
	ncclComm_t comm[BENCH_MAX_LIBS];
	void *stream;
	struct bench_buffers plain, own[BENCH_MAX_LIBS];     /* own: of libraries that have registered ones */
	const struct bench_buffers *buffers[BENCH_MAX_LIBS]; /* what each library is called with */
	unsigned sets;                                       /* of buffers for the size that is measured */
	uint64_t pool_bytes, stride; /* --rotate: bytes of the one buffer a side, and from set to set */
	unsigned next_set;           /* the set to take next */
	char *block;                 /* BENCH_BLOCK_BYTES */
	struct bench_gemm *gemm;     /* --gemm */
	struct bench_report *report; /* rank 0 */
	struct bench_row *row;
	struct bench_counters counters_before[BENCH_MAX_LIBS]; /* before the size that is measured */
	double *samples;                                       /* [enum bench_sample][way][lib][round] */
	double *gathered; /* the same of all ranks: [enum bench_sample][rank][way][lib][round] */
	size_t nsamples;  /* of one rank and kind */
	int status;
};

/* What is sampled once a round. The last three with --gemm only. */
enum bench_sample { BENCH_US, BENCH_CPU_US, BENCH_GEMM_US, BENCH_GEMM_ALONE, BENCH_GEMM_WITH, BENCH_NSAMPLES };

/* One size, type and operator. */
struct bench_task {
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	uint64_t count, bytes;
};

/* ---- bench_path.c ---- */

/* Before a size's first call. */
void bench_path_begin(struct bench_rank *r);
/* The path that most of this rank's calls have taken since then; "-" if the library does not say. */
const char *bench_path_taken(const struct bench_rank *r, int lib);

/* ---- bench_worker.c ---- */

/* For the one who watches: what happens now. lib, way: -1 if none. */
void bench_rank_progress(struct bench_rank *r, enum bench_stage stage, int lib, int way);
int bench_barrier(struct bench_rank *r);
int bench_allgather(struct bench_rank *r, const void *mine, size_t bytes, void *all);
/* Turns a device call's error into a message once; err as it was. */
int bench_rank_check(const struct bench_rank *r, const char *what, int err);
int bench_sync(struct bench_rank *r, int lib);

/*
 * The library's communicator: *comm_p, made by all ranks together. us_p: how long ncclCommInitRank took here; may be
 * NULL.
 */
int bench_comm_create(struct bench_rank *r, int lib, ncclComm_t *comm_p, double *us_p);

/*
 * A group of --group calls, each with buffers of its own because they may run at the same time. first: the set to begin
 * with.
 */
int bench_call(struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned first);
int bench_capture(
    struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned calls, void **graph_p);

/* Makes this many calls (whole graphs, where graph is one). *waited_p: time that was --skew's. */
int bench_calls_run(struct bench_rank *r, const struct bench_task *t, int lib, int way, void *graph, int calls,
    unsigned seed, double *waited_p);
/* What this rank has sampled. */
double *bench_sample_at(const struct bench_rank *r, enum bench_sample kind, int way, int lib);

/* ---- bench_buffers.c ---- */

/*
 * The plain ones if any library needs them, and for each library that wants registered ones, whose communicator is
 * there, its own.
 */
int bench_buffers_alloc(struct bench_rank *r);
/* Before the communicators are destroyed: gives the windows back. */
void bench_buffers_deregister(struct bench_rank *r);
void bench_buffers_free(struct bench_rank *r);
/* The host's part alone, which is all there is to do after an error. */
void bench_buffers_free_host(struct bench_rank *r);
/* Cuts them for calls of this size. */
void bench_buffers_layout(struct bench_rank *r, uint64_t bytes);
/* Set i of one side. */
char *bench_send_buffer(const struct bench_rank *r, int lib, unsigned set);
char *bench_recv_buffer(const struct bench_rank *r, int lib, unsigned set);
/* Where a call reads and writes. In place both lie in the set's receive buffer. */
char *bench_send_at(
    const struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned set);
char *bench_recv_at(
    const struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned set);

/* ---- bench_check.c ---- */

/* Calls once with fresh data of every class, in a graph if the way says so, and adds up the wrong elements. */
int bench_way_check(struct bench_rank *r, const struct bench_task *t, int lib, int way, uint64_t *wrong_p);

/* ---- bench_gemm.c ---- */

/* Opens cuBLAS and makes r->gemm. -ENOPKG after a message: there is none, or no GPU for it. */
int bench_gemm_open(struct bench_rank *r);
/* With the device current: streams and matrices, and how long one multiplication takes. */
int bench_gemm_create(struct bench_rank *r);
void bench_gemm_destroy(struct bench_rank *r, bool clean);
/* One round of `calls` calls with multiplications beside them. Fills this round's samples of the three kinds. */
int bench_gemm_round(
    struct bench_rank *r, const struct bench_task *t, int lib, int way, void *graph, int calls, int round);

/* ---- bench_init.c ---- */

/* shunt bench --init instead of all tasks. */
int bench_init_run(struct bench_rank *r);
#endif
