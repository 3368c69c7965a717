/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_TORTURE_RANK_H
#define SHUNT_TOOLS_TORTURE_RANK_H
/*
 * One rank of shunt torture, and what its files share. What goes wrong is said at once, and kept in `err`: nothing goes
 * on from there.
 */
#include "tools/torture/torture.h"

enum {
	TORTURE_COUNTERS = 256,
	TORTURE_WARMUP_LIFECYCLES = 3, /* lifecycles: by then a library has what it keeps for good, which it may make
	                                  when something is first used */
};

struct torture_graph {
	void *graph; /* NULL: free */
	struct torture_slot slots[TORTURE_GRAPH_OPS];
	int nops;
	bool grouped, in_place;
};

/* What there is of the device and of the process; unknown: 0. */
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
	struct bench_shared *shared;
	struct bench_progress *progress;
	struct bench_ranks *ranks;
	struct tool_lib lib;
	struct bench_nccl nccl;
	struct torture_env env;
	struct torture_data data;
	int rank, nranks, device;
	uint64_t max_bytes, seed;
	bool cuda, stop;
	bool any_order;        /* a group's communicators may be named in another order on every rank */
	bool serialized;       /* threads in front of a real NCCL: see torture_rendezvous() */
	unsigned kinds, comms; /* bit sets: what can be chosen, and the communicators that are alive */
	unsigned configured;   /* bit set: kinds whose calls may have a configuration of their own */
	unsigned possible;     /* communicators that can be made */
	unsigned dying;        /* bit set: communicators whose calls may fail */
	unsigned has_windows;  /* bit set: communicators of which the buffers that can be are windows */
	struct torture_random common, own;
	ncclComm_t comm[CONFORM_NCOMMS];
	void *streams[TORTURE_STREAMS],
	    *delays[TORTURE_STREAMS]; /* delays: what is written to for as long as it takes */
	size_t delay_bytes;
	struct torture_slot slots[TORTURE_SLOTS];
	int nslots; /* that are under way */
	struct torture_graph graphs[TORTURE_GRAPHS];
	unsigned launched; /* bit set: graphs that were not checked since */
	struct torture_usage baseline, latest;
	struct torture_stats stats;
	double began_us;
	int err; /* the run cannot go on; said */
};

/* ---- torture_rank.c ---- */

/* What the rank is at, for who watches it. */
void torture_rank_progress(struct torture_rank *r, enum bench_stage stage);
/*
 * Of ranks that need it: waits until none has anything under way. When a real NCCL connects two GPUs of one process, or
 * takes a communicator down, it calls CUDA functions that wait for all kernels of the process, those of a rank that
 * waits for this one too, and that a capture forbids. So threads in front of it meet before and after communicators
 * come and go, and capture nothing.
 */
void torture_rendezvous(struct torture_rank *r);
/* Nothing, if the call went well. */
void torture_device_error(struct torture_rank *r, const char *what, int err);
void torture_nccl_error(struct torture_rank *r, const char *call, ncclResult_t result);
/* 0 or -errno, which is in r->err then. */
int torture_allgather(struct torture_rank *r, const void *mine, size_t bytes, void *all);

/* ---- torture_ops.c ---- */

/* Waits for everything and looks at what has come. */
void torture_check_all(struct torture_rank *r);
/* Some ops, one after another or as a group. */
void torture_eager_round(struct torture_rank *r);
/* Some ops, among them such of a communicator that is going to be aborted: nobody looks at what these give. */
void torture_dying_round(struct torture_rank *r, enum conform_comm comm);
/* Captures a graph, launches it (what: not 0), or drops it. */
void torture_graph_round(struct torture_rank *r, uint32_t what);
void torture_graphs_drop(struct torture_rank *r);

/* ---- torture_lifecycle.c ---- */

/* Until the communicators are gone again, or r->err or r->stop says that it is over. */
void torture_lifecycle(struct torture_rank *r);
#endif
