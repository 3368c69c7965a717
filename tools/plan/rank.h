/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_PLAN_RANK_H
#define SHUNT_TOOLS_PLAN_RANK_H
/* One rank of shunt plan run, for the files of this folder. Functions return 0, or -errno after a message. */
#include "tools/plan/run.h"

enum {
	PLAN_RANK_GUARD = 256,     /* bytes behind every buffer; nothing may write there */
	PLAN_RANK_BLOCK = 1 << 20, /* bytes of host memory to make and check data, a block at a time */
};

struct plan_rank {
	const struct plan_run_opts *o;
	struct ranks_shared *shared;
	struct ranks_progress *progress;
	struct ranks *ranks;
	struct tool_lib lib;
	struct bench_nccl nccl;
	ncclComm_t comm;
	void *stream;
	int rank, nranks, device, iters, rounds;
	uint64_t first, last;
	size_t element; /* bytes */
	char *send, *recv, *block;
	uint64_t wrong; /* in all sizes and, on rank 0, of all ranks */
	unsigned sizes;
};

/* One line of the table. */
struct plan_task {
	uint64_t count, bytes; /* bytes: of the message */
	enum bench_place place;
};

/* Stores what this rank does now, for the parent's messages. */
void plan_rank_note(struct plan_rank *r, enum ranks_stage stage);
int plan_rank_gather(struct plan_rank *r, const void *mine, size_t bytes, void *all);
int plan_rank_device(const struct plan_rank *r, const char *what, int err);

/* ---- calls (rank_call.c) */

/* Addresses for a call. In place both are in r->recv. */
char *plan_rank_send_at(const struct plan_rank *r, const struct plan_task *t);
char *plan_rank_recv_at(const struct plan_rank *r, const struct plan_task *t);
int plan_rank_capture(struct plan_rank *r, const struct plan_task *t, void **graph_p);
/* Makes n calls, or launches the graph n times, and waits for them. */
int plan_rank_calls(struct plan_rank *r, const struct plan_task *t, void *graph, int n);
/* Time of a call: median over rounds of the slowest rank's time. */
int plan_rank_measure(struct plan_rank *r, const struct plan_task *t, void *graph, double *us_p);

/* ---- checks (rank_check.c) */

/* Makes a call with each class of inputs that the type has; adds to *wrong_p. */
int plan_rank_check(struct plan_rank *r, const struct plan_task *t, void *graph, uint64_t *wrong_p);
/* 0 if all calls ran the plan, else -EPROTO; the same on all ranks. */
int plan_rank_used(struct plan_rank *r);
#endif
