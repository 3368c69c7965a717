/* SPDX-License-Identifier: MIT */
#include "tests/fault/job.h"
#include "tests/support/child.h"
#include "tests/support/clock.h"
#include "tests/support/limits.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { LIMIT_S = 150 };

struct job_state {
	ncclUniqueId id, again;
	atomic_int have_id, have_again, over, done, ended;
	struct fault_state fault;
	struct job_rank rank[JOB_MAX_RANKS];
	struct job_progress progress;
};

/* Those who are alive by themselves: ranks are counted without the victim if it is to die. */
static void use_new_comm(struct job_state *m, const struct job *c, struct lifecycle *l)
{
	bool dies = c->action == FAULT_KILL && c->victim >= 0;
	int n = c->n - dies, rank = l->rank - (dies && l->rank > c->victim), err;
	ncclComm_t comm;

	if (dies && l->rank == c->victim)
		return; /* it came through: nobody counts on it */
	atomic_fetch_add(&m->done, 1);
	while (m->done < n) /* nobody is to wait for one who still waits for another, or is stopped */
		pause_us(PAUSE_POLL, 500);
	limits_set(LIMIT_LONG_MS, LIMIT_LONG_MS);
	if (rank == 0)
		atomic_store(&m->have_again, ncclGetUniqueId(&m->again) ? 2 : 1);
	while (!atomic_load(&m->have_again))
		pause_us(PAUSE_POLL, 500);
	m->rank[l->rank].again = 2;
	/* The streams are those of before: an abort has to leave them usable. */
	if (m->have_again == 1 && !ncclCommInitRank(&comm, n, m->again, rank)) {
		err = lifecycle_sum(l, comm, rank, n, 2000, l->stream[0]);
		if (!err && !ncclCommDestroy(comm))
			m->rank[l->rank].again = 1;
	}
	atomic_fetch_add(&m->ended, 1);
	while (m->ended < n) /* nobody's end is a death to one whose kernel is not done */
		pause_us(PAUSE_POLL, 500);
}

static void run_rank(struct job_state *m, const struct job *c, int rank)
{
	struct job_rank *out = &m->rank[rank];
	struct lifecycle lifecycle;
	double start;

	if (lifecycle_prepare(&lifecycle, rank, c->n))
		_exit(1);
	lifecycle.full = c->full;
	if (rank == c->victim) {
		fault_use(&m->fault);
		fault_arm(c->kinds, c->action, c->at);
		atomic_store(&m->fault.salt, c->salt);
	}
	if (rank == 0)
		atomic_store(&m->have_id, ncclGetUniqueId(&m->id) ? 2 : 1);
	while (!atomic_load(&m->have_id)) {
		if (c->victim == 0 && atomic_load(&m->fault.at) < 0) /* it died over the id: the parent said so */
			break;
		pause_us(PAUSE_POLL, 500);
	}
	lifecycle.id = m->id;
	start = now();
	out->end = LIFECYCLE_FAILED;
	if (m->have_id == 1)
		out->end = c->body ? c->body(&lifecycle, c, &m->progress) : lifecycle_run(&lifecycle);
	out->seconds = now() - start;
	out->error = lifecycle.error;
	out->step = lifecycle.step;
	atomic_fetch_add(&m->over, 1);
	memcpy(out->wrong, lifecycle.wrong, sizeof(out->wrong));
	if (rank == c->victim)
		fault_disarm();
	if (!c->once)
		use_new_comm(m, c, &lifecycle);
	lifecycle_finish(&lifecycle);
	exit(0); /* with the leak check of a sanitizer, where there is one */
}

/* Lets a stopped victim lie for a while, or until the others have come to an end without it. */
static void wake(struct job *c, struct job_state *m, pid_t pid)
{
	double end = now() + c->stopped_ms / 1e3;

	c->stopped = true;
	while (now() < end && atomic_load(&m->over) < c->n - 1)
		pause_us(PAUSE_POLL, 1000);
	kill(pid, SIGCONT);
}

const char *job_run(struct job *c)
{
	static char reason[320];
	struct job_state *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[JOB_MAX_RANKS];
	int left = c->n;
	double end;

	reason[0] = '\0';
	c->killed = c->stopped = false;
	fflush(NULL);
	for (int r = 0; r < c->n; r++) {
		pid[r] = child_fork();
		if (!pid[r])
			run_rank(m, c, r);
	}
	end = now() + LIMIT_S;
	while (left && now() < end) {
		for (int r = 0; r < c->n; r++) {
			int status;

			if (pid[r] <= 0 || waitpid(pid[r], &status, WNOHANG | WUNTRACED) != pid[r])
				continue;
			if (WIFSTOPPED(status)) {
				wake(c, m, pid[r]);
				continue;
			}
			pid[r] = 0;
			left--;
			if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && r == c->victim &&
			    c->action == FAULT_KILL) {
				c->killed = true;
				if (!atomic_load(&m->have_id))
					atomic_store(&m->fault.at, -1);
			} else if (status && !*reason) {
				snprintf(reason, sizeof(reason), "rank %d ended by %s %d", r,
				    WIFSIGNALED(status) ? "signal" : "exit status",
				    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			}
		}
		pause_us(PAUSE_POLL, 2000);
	}
	for (int r = 0; r < c->n; r++)
		if (pid[r] > 0) {
			kill(pid[r], SIGKILL);
			waitpid(pid[r], NULL, 0);
			snprintf(reason, sizeof(reason), "rank %d hangs in step %d", r, m->rank[r].step);
		}
	memcpy(c->rank, m->rank, sizeof(c->rank));
	c->id = m->id;
	c->points = atomic_load(&m->fault.seen);
	memcpy(c->hit, m->fault.hit, sizeof(c->hit));
	for (int r = 0; r < c->n && !*reason; r++) {
		if (r == c->victim && (c->killed || c->action == FAULT_KILL))
			continue;
		if (c->rank[r].end == LIFECYCLE_WRONG)
			snprintf(reason, sizeof(reason), "wrong: %s", c->rank[r].wrong);
		else if (!c->once && c->rank[r].again != 1)
			snprintf(reason, sizeof(reason), "rank %d has no working communicator afterwards", r);
	}
	munmap(m, sizeof(*m));
	return *reason ? reason : NULL;
}

void job_run_each(struct job *c)
{
	const char *reason;

	for (c->victim = 0; c->victim < c->n; c->victim++) {
		reason = job_run(c);
		if (!reason && c->action == FAULT_KILL && !c->killed)
			reason = "it lives";
		if (!reason && c->action == FAULT_STOP && !c->stopped)
			reason = "not stopped";
		if (reason)
			fail_msg("rank %d: %s", c->victim, reason);
	}
}

void job_assert(const char *reason)
{
	if (reason)
		fail_msg("%s", reason);
}

bool job_all_ready(const struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	if (l->rank == c->victim)
		atomic_store(&at->victim, getpid());
	atomic_fetch_add(&at->ready, 1);
	return until_counted(&at->ready, c->n, "ranks are ready");
}
