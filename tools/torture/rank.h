/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One rank of shunt torture, for the files of this folder. An error is printed at once and stored in `err`; then the
 * rank does nothing more.
 */
#include "tools/torture/torture.h"

enum {
	TORTURE_COUNTERS = 256,
	TORTURE_WARMUP_LIFECYCLES = 3, /* lifecycles until a library has allocated what it keeps for good */
};

struct torture_graph {
	void *graph; /* NULL: free */
	struct torture_slot slots[TORTURE_GRAPH_OPS];
	int nops;
	bool grouped, in_place;
};

/* Memory of the device and descriptors of the process; 0: unknown. */
struct torture_usage {
	uint64_t device, descriptors;
};

struct torture_stats {
	uint64_t kinds[32];
	uint64_t ops, groups, captures, launches, comms, lifecycles, windows, aborts, delays, checks, elements, wrong;
	struct shunt_counter paths[TORTURE_COUNTERS];
	size_t npaths;
};

struct torture_rank {
	const struct torture_opts *o;
	struct ranks_shared *shared;
	struct ranks_progress *progress;
	struct ranks *ranks;
	struct tool_lib lib;
	struct bench_nccl nccl;
	struct torture_env env;
	struct torture_data data;
	int rank, nranks, device;
	uint64_t max_bytes, seed;
	bool cuda, stop;
	bool any_order;        /* every rank may name a group's communicators in another order */
	bool serialized;       /* threads with a real NCCL: see torture_rendezvous() */
	unsigned kinds, comms; /* bit sets: kinds to choose from; existing communicators */
	unsigned configured;   /* bit set: kinds whose calls can have a configuration */
	unsigned possible;     /* bit set: communicators that can be created */
	unsigned dying;        /* bit set: communicators whose calls may fail */
	unsigned unmet;        /* bit set: communicators without a call that needed all of their ranks */
	unsigned has_windows;  /* bit set: communicators whose symmetric buffers are windows */
	struct torture_random common, own;
	ncclComm_t comm[CONFORM_NCOMMS];
	void *streams[TORTURE_STREAMS], *delays[TORTURE_STREAMS]; /* delays: memory to write, for as long as it takes */
	size_t delay_bytes;
	struct torture_slot slots[TORTURE_SLOTS];
	int nslots; /* in flight */
	struct torture_graph graphs[TORTURE_GRAPHS];
	unsigned launched; /* bit set: graphs launched since the last check */
	struct torture_usage baseline, latest;
	struct torture_stats stats;
	double began_us;
	int err; /* the run cannot go on; already printed */
};

/* ---- rank.c ---- */

/* Stores what this rank does now, for the parent's messages. */
void torture_rank_progress(struct torture_rank *r, enum ranks_stage stage);
/*
 * For r->serialized ranks: waits until no rank has work in flight. When a real NCCL connects two GPUs of one process,
 * or destroys a communicator, it calls CUDA functions that wait for all kernels of the process, also for kernels of a
 * rank that waits for this one; and a capture forbids these functions. So threads with a real NCCL quiesce before and
 * after communicators are created or destroyed, and capture nothing.
 */
void torture_rendezvous(struct torture_rank *r);
/* Print an error and store it in r->err; nothing if the call succeeded. */
void torture_device_error(struct torture_rank *r, const char *what, int err);
void torture_nccl_error(struct torture_rank *r, const char *call, ncclResult_t result);
/* 0 or -errno; the error is in r->err, too. */
int torture_allgather(struct torture_rank *r, const void *mine, size_t bytes, void *all);

/* ---- ops.c ---- */

/* Waits for all operations in flight and checks them. */
void torture_check_all(struct torture_rank *r);
/* Stores a communicator's error, if there is one, in r->err. */
void torture_comm_check(struct torture_rank *r, enum conform_comm comm);
/* A few operations, in sequence or as a group. */
void torture_eager_round(struct torture_rank *r);
/* A few operations, some of them on a communicator that will be aborted: their results are not checked. */
void torture_dying_round(struct torture_rank *r, enum conform_comm comm);
/* Captures a graph if there is no graph; else launches the graph, or with what == 0 drops it. */
void torture_graph_round(struct torture_rank *r, uint32_t what);
void torture_graphs_drop(struct torture_rank *r);

/* ---- lifecycle.c ---- */

/* Runs until the communicators are destroyed again, or r->err or r->stop is set. */
void torture_lifecycle(struct torture_rank *r);
