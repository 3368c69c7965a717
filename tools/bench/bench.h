/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * shunt bench: measures libraries that have NCCL's ABI against each other in one run. The launcher
 * (tools/common/ranks/ranks.h) starts its ranks; worker.c runs one.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "tools/common/options.h"
#include "tools/common/ranks/ranks.h"
#include "tools/common/tool.h"
#include "base/coll.h"
#include "shim/nccl/abi.h"

enum {
	BENCH_MAX_ROUNDS = 500,
};

/* The ways to make a call; index = mode * 2 + place. */
enum bench_mode { BENCH_EAGER, BENCH_GRAPH, BENCH_NMODES };
enum bench_place { BENCH_OUT, BENCH_IN, BENCH_NPLACES };
enum { BENCH_NWAYS = BENCH_NMODES * BENCH_NPLACES };
extern const char *const bench_mode_names[BENCH_NMODES], *const bench_place_names[BENCH_NPLACES];
extern const char *const bench_way_names[BENCH_NWAYS];

/* ---- one library that has NCCL's ABI (tools/common/nccl.c) ---- */

/* Required functions. The optional ones are NULL where the library lacks them. */
#define BENCH_NCCL_FUNCS(X) \
	X(GetVersion) X(GetUniqueId) X(CommInitRank) X(CommDestroy) X(GetErrorString) X(GetLastError) X(AllReduce)
/* clang-format off */
#define BENCH_NCCL_OPTIONAL(X) \
	X(AllGather) X(ReduceScatter) X(Broadcast) X(Bcast) X(Reduce) X(AlltoAll) X(Gather) X(Scatter) \
	X(Send) X(Recv) X(AllReduceConfig) X(AllGatherConfig) X(ReduceScatterConfig) X(BroadcastConfig) \
	X(ReduceConfig) X(AlltoAllConfig) X(GatherConfig) X(ScatterConfig) X(GroupStart) X(GroupEnd) \
	X(GroupSimulateEnd) X(RedOpCreatePreMulSum) X(RedOpDestroy) X(CommInitAll) X(CommInitRankConfig) \
	X(CommSplit) X(CommShrink) X(CommFinalize) X(CommAbort) X(CommCount) X(CommUserRank) X(CommCuDevice) \
	X(CommGetAsyncError) X(MemAlloc) X(MemFree) X(CommWindowRegister) X(CommWindowDeregister)
/* clang-format on */

/*
 * Buffers for a library's calls: plain device memory, memory of its ncclMemAlloc, or such memory registered as
 * symmetric windows.
 */
enum bench_memory { BENCH_PLAIN, BENCH_ALLOCATED, BENCH_REGISTERED, BENCH_NMEMORIES };
extern const char *const bench_memory_names[BENCH_NMEMORIES];

struct bench_nccl {
	void *handle;
	char label[32]; /* "shunt", "nccl", or the file's name; then ":reg" if registered buffers are requested */
	enum bench_memory buffers; /* first the request, then the actual kind */
	char path[PATH_MAX];
	int version; /* of ncclGetVersion */
#define X(name) __typeof__(nccl##name) *name;
	BENCH_NCCL_FUNCS(X)
	BENCH_NCCL_OPTIONAL(X)
#undef X
	/* Shunt only, else NULL */
	__typeof__(shunt_path_of) *path_of;
	__typeof__(shunt_counters) *counters;
};
/*
 * spec: "shunt", "nccl" (the real NCCL, as Shunt finds it), "forwarded" (another instance of Shunt, which forwards
 * every call to NCCL) or a path. 0 or -errno after a message.
 */
int bench_nccl_open(struct bench_nccl *nccl, const char *spec, const struct tool_lib *lib);
/* True: the library is Shunt, has looked for a real NCCL, and has found none. */
bool bench_nccl_is_alone(const struct bench_nccl *nccl);
/* The type that NCCL's functions take for a type or a format, and how to ask for a format: an operator. */
ncclDataType_t bench_nccl_dtype(enum shunt_dtype dtype);
/*
 * Makes *redop_p an operator for elements of the format; RedOpDestroy ends it. Does nothing for NCCL's types.
 * ncclInvalidUsage: the library has no formats.
 */
ncclResult_t bench_nccl_format(
    const struct bench_nccl *nccl, ncclComm_t comm, enum shunt_dtype dtype, ncclRedOp_t *redop_p);
/* 0, or -EIO after a message with library, call and cause. */
int bench_nccl_check(const struct bench_nccl *nccl, int rank, const char *call, ncclResult_t result);

/* ---- collectives (tools/common/coll.c): one row each ---- */

/*
 * Sizes, offsets and results of a collective follow from its row; shunt conform uses the same rows. A side of `count`
 * elements is one block; a side with `many` has one block for each rank.
 */
struct bench_args {
	const void *send;
	void *recv;
	size_t count;
	ncclDataType_t dtype;
	ncclRedOp_t redop;
	int root; /* or the peer */
	int rank, nranks;
	ncclComm_t comm;
	void *stream;
	const ncclCollConfig_t *config; /* for configured() only; may be NULL */
};

struct bench_coll {
	const char *name;     /* "all_reduce", as nccl-tests calls it */
	const char *op;       /* shunt_path_of's name */
	const char *needs[4]; /* functions, without "nccl" */
	ncclResult_t (*call)(const struct bench_nccl *nccl, const struct bench_args *a);
	/* ncclXConfig and its name without "nccl", or NULL */
	ncclResult_t (*configured)(const struct bench_nccl *nccl, const struct bench_args *a);
	const char *configured_name;
	bool reduces; /* takes --op */
	bool rooted;
	bool send_many, recv_many;
	bool uneven; /* with both of these: blocks of 1, 2 ... n times `count` elements, see bench_coll_weight */
	bool send_root, recv_root; /* only the root has this side */
	bool in_place;             /* NCCL defines the in-place call */
	bool conform_only;         /* used by conform; cannot be measured by itself */
};
enum bench_coll_id {
	BENCH_COLL_ALLREDUCE,
	BENCH_COLL_ALLGATHER,
	BENCH_COLL_REDUCESCATTER,
	BENCH_COLL_BROADCAST,
	BENCH_COLL_REDUCE,
	BENCH_COLL_ALLTOALL,
	BENCH_COLL_ALLTOALLV,
	BENCH_COLL_GATHER,
	BENCH_COLL_SCATTER,
	BENCH_COLL_SENDRECV,
	BENCH_COLL_BCAST,
	BENCH_COLL_SEND,
	BENCH_COLL_RECV,
	BENCH_NCOLLS
};
extern const struct bench_coll bench_colls[BENCH_NCOLLS + 1]; /* ends with a NULL name */

/* NULL: no such name. */
const struct bench_coll *bench_coll_find(const char *name);
/* " (maybe NAME?)" for a name that bench_coll_find() does not know, or "". buf: 64 bytes. */
const char *bench_coll_maybe(const char *name, char *buf);
/* The first function of the collective that the library lacks, or NULL. */
const char *bench_coll_missing(const struct bench_coll *coll, const struct bench_nccl *nccl);
/* Size of a side in units of `count` elements: 1; with many the number of ranks, or the sum of the weights. */
uint64_t bench_coll_blocks(const struct bench_coll *coll, bool many, int nranks);
/*
 * Uneven: the size of rank from's block for rank to, in units of `count`. 1 for itself, n for the rank before it; all
 * rows and columns have the same sum.
 */
uint64_t bench_coll_weight(int from, int to, int nranks);
/* busbw = algbw x this, as in nccl-tests. */
double bench_coll_bus_factor(const struct bench_coll *coll, int nranks);
/*
 * Elements per call for a size in bytes of the larger side, as in nccl-tests: blocks are multiples of 16 bytes. May
 * return 0.
 */
uint64_t bench_coll_count(const struct bench_coll *coll, uint64_t bytes, size_t element, int nranks);
/* Offset of the in-place input (send) or result (recv) in the larger side's buffer, in elements. */
uint64_t bench_coll_send_offset(const struct bench_coll *coll, uint64_t count, int rank);
uint64_t bench_coll_recv_offset(const struct bench_coll *coll, uint64_t count, int rank);
bool bench_coll_has_send(const struct bench_coll *coll, int rank, int root);
bool bench_coll_has_recv(const struct bench_coll *coll, int rank, int root);
/* A block of a rank's input; rank -1: of all ranks' inputs, reduced. */
struct bench_source {
	int rank, block;
};
/* What block `block` of rank's result is. */
struct bench_source bench_coll_source(const struct bench_coll *coll, int rank, int nranks, int root, int block);

/*
 * The same in elements, also for uneven blocks: `count` elements at `at` of the result are those at from_at of rank
 * from's input.
 */
struct bench_block {
	int from; /* -1: of all ranks' inputs, reduced */
	uint64_t count, at, from_at;
};
struct bench_block bench_coll_block(
    const struct bench_coll *coll, int rank, int nranks, int root, int block, uint64_t count);

/* ---- options (opts.c) ---- */

struct bench_opts {
	struct ranks_opts ranks;
	const struct bench_coll *coll;
	uint64_t first, last; /* bytes */
	unsigned factor;
	unsigned dtypes, redops; /* bit sets of enum shunt_dtype, enum shunt_redop */
	bool modes[BENCH_NMODES], places[BENCH_NPLACES];
	int warmup, iters, rounds; /* -1: the default of the device */
	unsigned buffers;          /* at least group */
	unsigned group;            /* calls in one group */
	uint64_t rotate;  /* bytes of all buffers of a side, used in turn; 0: the number of pairs is `buffers` */
	unsigned skew_us; /* every rank waits a random time up to this before each call */
	bool no_host;     /* leave the host's name out of the report */
	bool host;        /* measure the host's part of a call only */
	bool registered;  /* registered buffers for every library, not only for LIB:reg */
	bool gemm;        /* measure also during matrix multiplications */
	bool init;        /* measure how communicators are created, and no collective */
	unsigned comms;   /* init: number of communicators by ncclCommSplit */
	int root;
	bool check, stats;
	uint64_t seed;
	const struct bench_guest *guest; /* rank.h; NULL: shunt bench itself */
};
extern const struct option_table bench_options;
/* 0, or -1: exit with *status_p. */
int bench_opts_parse(struct bench_opts *o, int argc, char **argv, int *status_p);

/* ---- data (tools/common/data.c) ---- */

/*
 * Classes of inputs. Exact: every partial result is a value of the type, so every correct library gets the same result.
 * Real: spread over the real numbers.
 */
enum bench_class { BENCH_EXACT, BENCH_REAL, BENCH_NCLASSES };

struct bench_data;
/* Inputs of all ranks follow from seed. NULL: out of memory. */
struct bench_data *bench_data_create(
    enum shunt_dtype dtype, enum shunt_redop redop, enum bench_class class, int nranks, uint64_t seed);
void bench_data_destroy(struct bench_data *data);
/* SHUNT_PREMUL: a rank's factor, in the type. */
void bench_data_scalar(const struct bench_data *data, int rank, void *scalar);
/* Elements first ... first + count - 1 of a rank's input. */
void bench_data_input(const struct bench_data *data, int rank, size_t first, size_t count, void *out);
/* Number of wrong elements in a copy of a rank's input. Arguments and text: as for bench_data_check. */
size_t bench_data_check_copy(const struct bench_data *data, int rank, size_t first, size_t count, const void *result,
    char *text, size_t text_bytes);
/* Number of wrong elements in a part of an all-reduce's result. text, unless NULL, gets the first wrong one. */
size_t bench_data_check(
    const struct bench_data *data, size_t first, size_t count, const void *result, char *text, size_t text_bytes);
/* True: this type has inputs of the class. (Integers have exact ones only.) */
bool bench_data_has(enum shunt_dtype dtype, enum bench_class class);

/* ---- results (report.c) ---- */

/* Results of one library for one size, type, operator and way, from all ranks. */
struct bench_cell {
	double us, p99_us, algbw, busbw;    /* algbw and busbw in GB/s from the median */
	double cpu_us;                      /* host: median of the thread's CPU time */
	double gemm_us;                     /* gemm: as us, during multiplications */
	double gemm_alone, gemm_with;       /* gemm: their TFLOP/s without and with calls, on the slowest rank */
	const char *path;                   /* or "-" */
	uint64_t wrong;                     /* over all ranks; meaningful with check */
	double rounds_us[BENCH_MAX_ROUNDS]; /* slowest rank of each round */
	double rounds_cpu_us[BENCH_MAX_ROUNDS];
};

struct bench_row {
	uint64_t bytes, count;
	int dtype, redop, way;
	struct bench_cell cell[RANKS_MAX_LIBS];
};

/* Of n <= BENCH_MAX_ROUNDS values, which do not change. p99_p: may be NULL. */
double bench_median(const double *values, int n, double *p99_p);
/* Geometric means of a library's time over the first library's (means.c). Zero-filled is a valid start. */
enum { BENCH_BEST = RANKS_MAX_LIBS }; /* used as a library: at each size the fastest of all but the first one */
struct bench_means {
	unsigned n[BENCH_NWAYS];
	double log_sum[BENCH_NWAYS][RANKS_MAX_LIBS + 1];
};
void bench_means_add(struct bench_means *m, int way, const double *us, int nlibs);
/* way: -1 for all together. 0: no values. */
double bench_means_get(const struct bench_means *m, int lib, int way);

struct bench_report;
struct bench_report *bench_report_create(const struct bench_opts *o, const struct ranks_launch *l,
    const struct bench_nccl *libs, const char *device_name, const struct tool_lib *lib);
void bench_report_row(struct bench_report *r, const struct bench_row *row);
/* --init: the steps of a round. */
enum bench_init_what { BENCH_INIT_COMM, BENCH_INIT_CALL, BENCH_INIT_SPLIT, BENCH_INIT_SPLIT_CALL, BENCH_INIT_NSTEPS };
struct bench_init_step {
	double us, bytes; /* 0: not done */
};
/* One step of a library; a value for each round. */
void bench_report_init(
    struct bench_report *r, int lib, enum bench_init_what what, const double *us, const double *bytes);
/* Rows of shunt_counters. The caller has summed them over the ranks. */
void bench_report_counters(struct bench_report *r, int lib, const struct shunt_counter *rows, size_t n);
/* Prints the last lines and writes the JSON file. Exit status. */
int bench_report_finish(struct bench_report *r);
void bench_report_destroy(struct bench_report *r); /* NULL allowed */
/* shunt bench report (html/html.c): FILE.json... to one HTML file. Exit status. */
int bench_html_main(int argc, char **argv);
extern const struct option_table bench_html_options;

/* shunt bench ep (ep.c). Exit status. */
int bench_ep_main(int argc, char **argv);
extern const struct option_table bench_ep_options;
/* shunt bench p2p (p2p.c). Exit status. */
int bench_p2p_main(int argc, char **argv);
extern const struct option_table bench_p2p_options;

/* Worker process: runs all local ranks. Exit status. */
int bench_worker(const struct bench_opts *o);
