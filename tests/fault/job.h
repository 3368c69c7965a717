/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ranks as processes with one victim among them. The victim lives with a fault; afterwards those who are alive make a
 * new communicator among themselves. Only the parent knows what should have come of it.
 */
#include <stdbool.h>
#include "tests/fault/inject.h"
#include "tests/fault/lifecycle.h"

enum { JOB_MAX_RANKS = 4 };

struct job_rank {
	enum lifecycle_result end;
	ncclResult_t error;
	int step, again; /* again: 1 the communicator after it worked, 2 it did not, 0 never came to it */
	char wrong[160];
	double seconds; /* that the lifecycle took */
};

/* How far the ranks are, in memory that all of them share; zeroed by each run. */
struct job_progress {
	atomic_int ready, waiting, out; /* ranks */
	atomic_int victim;              /* its process */
};

struct job {
	/* To be set. */
	int n, victim, full;
	int once; /* no new communicator afterwards: what ails the victim stays */
	unsigned kinds;
	enum fault_action action;
	long at;
	unsigned salt;  /* of FAULT_LIE */
	int stopped_ms; /* of FAULT_STOP: until SIGCONT, which comes earlier when the lives of all others are over */
	/*
	 * Instead of lifecycle_run(), which returns an enum lifecycle_result; for the phases that no call to the system
	 * marks. NULL: lifecycle_run.
	 */
	enum lifecycle_result (*body)(struct lifecycle *lifecycle, const struct job *job, struct job_progress *at);
	/* Results. */
	struct job_rank rank[JOB_MAX_RANKS];
	ncclUniqueId id; /* of the lifecycle */
	bool killed;     /* the victim is dead, by the fault */
	bool stopped;    /* it was stopped */
	long points;     /* that the victim passed */
	char hit[24];
};

/*
 * NULL, or what must not be (valid until the next call): a hang, a crash, a wrong value, a lifecycle afterwards that is
 * none.
 */
const char *job_run(struct job *job);
/* Fails the test with the reason, unless it is NULL. */
void job_assert(const char *reason);
/* Runs with each rank in turn for the victim. Fails the test for any reason, and if the victim was not killed or
 * stopped. */
void job_run_each(struct job *job);
/*
 * On each rank, once: waits in at->ready until all have come to where the victim's fault is to strike, and notes the
 * victim's process. False: they did not come within AT_ONCE_S.
 */
bool job_all_ready(const struct lifecycle *lifecycle, const struct job *job, struct job_progress *at);
