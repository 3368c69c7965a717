/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One rank of shunt bench, for the files of this folder. Functions return 0 or -errno after a message, unless they say
 * otherwise.
 */
#include "tools/bench/bench.h"

enum {
	BENCH_GRAPH_CALLS = 20,
	BENCH_GUARD_BYTES = 256,     /* behind every buffer; nothing may write there */
	BENCH_BLOCK_BYTES = 4 << 20, /* host memory to make and check data, a block at a time */
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
	const struct bench_opts *o;     /* &opts */
	const struct bench_opts *given; /* as the rank was started with; a guest's own options begin with them */
	struct bench_opts opts;         /* with defaults filled in and one seed for all ranks */
	struct ranks_shared *shared;
	int rank, device;
	struct ranks *ranks;
	struct ranks_progress *progress;
	struct tool_lib lib;
	struct bench_nccl nccl[RANKS_MAX_LIBS];
	ncclComm_t comm[RANKS_MAX_LIBS];
	ncclRedOp_t format_op[RANKS_MAX_LIBS]; /* of a task whose elements NCCL does not have */
	void *stream;
	struct bench_buffers plain, own[RANKS_MAX_LIBS];     /* own: registered buffers of a library */
	const struct bench_buffers *buffers[RANKS_MAX_LIBS]; /* buffers for each library's calls */
	unsigned sets;                                       /* sets of buffers for the current size */
	uint64_t pool_bytes, stride; /* --rotate: bytes of the one buffer of a side; distance of two sets */
	unsigned next_set;           /* the set of the next call */
	char *block;                 /* BENCH_BLOCK_BYTES */
	struct bench_gemm *gemm;     /* --gemm */
	struct bench_report *report; /* rank 0 */
	struct bench_row *row;
	struct bench_counters counters_before[RANKS_MAX_LIBS]; /* before the current size */
	double *samples;                                       /* [enum bench_sample][way][lib][round] */
	double *gathered; /* the samples of all ranks: [enum bench_sample][rank][way][lib][round] */
	size_t nsamples;  /* of one rank and kind */
	unsigned nrows;   /* of a guest, on rank 0; and the wrong elements in them */
	uint64_t wrong;
	int status;
};

/* Samples of one round. The last three with --gemm only. */
enum bench_sample { BENCH_US, BENCH_CPU_US, BENCH_GEMM_US, BENCH_GEMM_ALONE, BENCH_GEMM_WITH, BENCH_NSAMPLES };

/* One size, type and operator. */
struct bench_task {
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	uint64_t count, bytes;
};

/* Another command that has its calls checked and measured here, by the first library: shunt plan run. */
struct bench_guest {
	/* The library is open, and there is no communicator yet. May change r->opts.first and last. 0 or -errno. */
	int (*open)(struct bench_rank *r);
	bool (*admits)(const struct bench_rank *r, const struct bench_task *t);
	/* On all ranks, when the calls of a size have been checked. 0 or -errno. */
	int (*checked)(struct bench_rank *r);
	/* Instead of the report, on rank 0: a row; and the end, with the exit status. */
	void (*row)(const struct bench_rank *r, const struct bench_row *row);
	int (*finish)(const struct bench_rank *r);
};

/* ---- path.c ---- */

/* Now; no rows if the library has no counters. */
void bench_counters_read(const struct bench_rank *r, int lib, struct bench_counters *c);
/* Before a size's first call. */
void bench_path_begin(struct bench_rank *r);
/* The path of most of this rank's calls since then; "-" if the library has no counters. */
const char *bench_path_taken(const struct bench_rank *r, int lib);

/* ---- worker.c ---- */

/* A place among the ranks; nothing else is touched. */
void bench_rank_slot(struct bench_rank *r, const struct ranks_slot *slot);
/* Meets the other ranks, opens libshunt.so, and makes a stream on the device. */
int bench_rank_join(struct bench_rank *r, const struct ranks_opts *o);
/* Stores what this rank does now, for the parent's messages. lib, way: -1 if none. */
void bench_rank_progress(struct bench_rank *r, enum ranks_stage stage, int lib, int way);
int bench_barrier(struct bench_rank *r);
/*
 * For an error that all ranks have, and that rank 0 tells before this: nobody ends before all are here, so that the end
 * of another rank does not cut rank 0 short. Returns err.
 */
int bench_fail_together(struct bench_rank *r, int err);
int bench_allgather(struct bench_rank *r, const void *mine, size_t bytes, void *all);
/* Prints a message for a device call's error, once. Returns err. */
int bench_rank_check(const struct bench_rank *r, const char *what, int err);

/*
 * Collective: creates the library's communicator *comm_p. us_p: the time of ncclCommInitRank on this rank; may be NULL.
 */
int bench_comm_create(struct bench_rank *r, int lib, ncclComm_t *comm_p, double *us_p);

/* ---- timing.c ---- */

/* Waits for the calls, or notices that they failed. */
int bench_sync(struct bench_rank *r, int lib);
/*
 * A group of --group calls. Each call has buffers of its own, because calls of a group may run at the same time. first:
 * set of the first call.
 */
int bench_call(struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned first);
int bench_capture(
    struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned calls, void **graph_p);

/* Calls one after another. */
struct bench_burst {
	int lib, way;
	void *graph;   /* NULL: eager */
	int calls;     /* with a graph, of whole graphs */
	unsigned seed; /* of --skew */
};
/* *waited_p: the waits of --skew. */
int bench_calls_run(
    struct bench_rank *r, const struct bench_task *t, const struct bench_burst *burst, double *waited_p);
/* Warms up and times all wanted ways and libraries: fills the samples. */
int bench_task_time(struct bench_rank *r, const struct bench_task *t);
bool bench_way_wanted(const struct bench_opts *o, int way);
/* This rank's samples. */
double *bench_sample_at(const struct bench_rank *r, enum bench_sample kind, int way, int lib);

/* ---- buffers.c ---- */

/*
 * Allocates plain buffers if a library needs them, and buffers for each library that gets registered ones and has its
 * communicator.
 */
int bench_buffers_alloc(struct bench_rank *r);
/* Call it before the communicators are destroyed: deregisters the windows. */
void bench_buffers_deregister(struct bench_rank *r);
void bench_buffers_free(struct bench_rank *r);
/* Frees host memory only; after an error nothing else can be freed. */
void bench_buffers_free_host(struct bench_rank *r);
/* Divides the buffers into sets for calls of this size. */
void bench_buffers_layout(struct bench_rank *r, uint64_t bytes);
/* Set `set` of one side. */
char *bench_send_buffer(const struct bench_rank *r, int lib, unsigned set);
char *bench_recv_buffer(const struct bench_rank *r, int lib, unsigned set);
/* Addresses for a call. In place both are in the set's receive buffer. */
char *bench_send_at(
    const struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned set);
char *bench_recv_at(
    const struct bench_rank *r, const struct bench_task *t, int lib, enum bench_place place, unsigned set);

/* ---- check.c ---- */

/* Makes one call with fresh data of every class, in a graph if the way says so, and adds up the wrong elements. */
int bench_way_check(struct bench_rank *r, const struct bench_task *t, int lib, int way, uint64_t *wrong_p);

/* ---- gemm.c ---- */

/* Opens cuBLAS and makes r->gemm. -ENOPKG after a message: no cuBLAS, or no GPU for it. */
int bench_gemm_open(struct bench_rank *r);
/* Creates streams and matrices on the current device, and times one multiplication. */
int bench_gemm_create(struct bench_rank *r);
void bench_gemm_destroy(struct bench_rank *r, bool clean);
/* A round of calls during multiplications. Fills this round's samples of the last three kinds. */
int bench_gemm_round(struct bench_rank *r, const struct bench_task *t, const struct bench_burst *burst, int round);

/* ---- init.c ---- */

/* shunt bench --init; replaces all tasks. */
int bench_init_run(struct bench_rank *r);
