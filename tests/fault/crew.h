/* SPDX-License-Identifier: MIT */
#ifndef TESTS_FAULT_CREW_H
#define TESTS_FAULT_CREW_H
/*
 * Ranks as processes with one victim among them. The victim lives with a fault; afterwards those who are alive make a
 * new communicator among themselves. Only the parent knows what should have come of it.
 */
#include <stdbool.h>
#include "inject.h"
#include "life.h"

enum { CREW_MAX = 4 };

struct crew_rank {
	enum life_end end;
	ncclResult_t error;
	int step, again; /* again: 1 the communicator after it worked, 2 it did not, 0 never came to it */
	char wrong[160];
	double seconds; /* that the life took */
};

struct crew {
	/* To be set. */
	int n, victim, full;
	int once; /* no new communicator afterwards: what ails the victim stays */
	unsigned kinds;
	enum fault_action action;
	long at;
	unsigned salt;  /* of FAULT_LIE */
	int stopped_ms; /* of FAULT_STOP: until SIGCONT */
	/*
	 * Instead of life_run(), which returns an enum life_end; for the phases that no call to the system marks. NULL:
	 * life_run.
	 */
	enum life_end (*body)(struct life *life, const struct crew *crew, void *shared);
	/* Results. */
	struct crew_rank rank[CREW_MAX];
	ncclUniqueId id; /* of the life */
	bool killed;     /* the victim is dead, by the fault */
	bool stopped;    /* it was stopped */
	long points;     /* that the victim passed */
	char hit[24];
};

/*
 * NULL, or what must not be (valid until the next call): a hang, a crash, a wrong value, a life afterwards that is
 * none.
 */
const char *crew_run(struct crew *crew);
/*
 * The same with each rank in turn for the victim, which is to be killed or stopped: that it was not is a reason, too.
 */
const char *crew_run_each(struct crew *crew);
/* Memory that all processes of a run share; zeroed by each run. */
enum { CREW_SHARED = 4096 };
#endif
