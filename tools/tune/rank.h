/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One rank of shunt tune, for the files of this folder. Every rank makes the same calls in the same order and decides
 * from the same numbers, those of the slowest rank. Rank 0 keeps the results. Functions return 0, or -errno after a
 * message.
 */
#include "tools/bench/rank.h"
#include "tools/tune/tune.h"

/* The real NCCL is there twice, with ordinary buffers and with some that are registered with it. */
enum { TUNE_SHUNT, TUNE_NCCL, TUNE_WINDOWS };
enum { TUNE_MAX_ROUNDS = 100 };

struct tune_rank {
	struct bench_rank bench; /* makes the calls, and checks them */
	struct bench_task call;  /* of the current point */
	struct tune_opts opts;
	const struct tune_opts *o; /* &opts, with the defaults filled in */
	int nranks;
	bool sim, have_nccl;
	const char *cache_dir;
	__typeof__(shunt_algo_force) *force;
	void *in_window[2]; /* of NCCL, registered with it: send, recv; NULL: none */
	ncclWindow_t window[2];
	struct bench_buffers registered; /* in_window */
	/* of the current point */
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	double us[TUNE_MAX_CANDIDATES];
	double samples[TUNE_MAX_CANDIDATES * TUNE_MAX_ROUNDS];
	void *graph[TUNE_MAX_CANDIDATES];
	struct tune_results *results; /* rank 0 writes them; the other ranks know which points exist */
	struct tune_partial *partial; /* rank 0 */
	struct tune_task tasks[TUNE_MAX_POINTS];
	size_t ntasks;
	double start_us;
	char path[PATH_MAX]; /* of the tuning file; rank 0 */
};

/* ---- measure.c ---- */

int tune_point_measure(struct tune_rank *r, const struct tune_task *t, struct tune_point *p);

/* ---- tasks.c ---- */

/* After the machine is known: rank 0 opens the partial file, and tells all ranks which points it has. */
int tune_tasks_open(struct tune_rank *r);
/* Runs until all points are measured, or the time is up. */
int tune_tasks_run(struct tune_rank *r);
/* After all ranks are done: rank 0 writes the tuning file and prints it. */
int tune_tasks_finish(struct tune_rank *r);
