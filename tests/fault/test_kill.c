/* SPDX-License-Identifier: MIT */
/*
 * A rank is killed, or stopped for a while, at every place in its lifecycle where it calls the system (bootstrap,
 * sockets, join, rounds, mappings, destroy), while its own kernel waits for a peer, and while peers' kernels wait for
 * it.
 */
#include "tests/fault/job.h"
#include "comm/observe/recorder.h"
#include "device/sim/hooks.h"
#include "tests/support/clock.h"
#include "tests/support/grace.h"
#include "tests/support/limits.h"
#include "shunt/device.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { RANKS = 3 };

static long limit; /* places to be tried per victim */

static const char *name_of(enum fault_action action)
{
	return action == FAULT_KILL ? "killed" : action == FAULT_STOP ? "stopped" : "failed";
}

/* With time-outs that nothing is to run into. */
static void patient_environment(void)
{
	lifecycle_environment("120s", "60s");
}

/*
 * With short limits, as so many survivors run into them. Where these end a lifecycle on a busy machine before the
 * victim is at its place, again with longer ones.
 */
static const char *run_hastily(struct job *c)
{
	static const char *const limits[] = { "300ms", "3s", "20s" };
	const char *reason = NULL;

	c->killed = false;
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]) && !c->killed && !reason; i++) {
		lifecycle_environment(limits[i], limits[i]);
		reason = job_run(c);
	}
	patient_environment();
	return reason;
}

/* Another victim takes other places. */
static void sweep(int victim, enum fault_action action, long count)
{
	struct job c = { .n = RANKS, .victim = victim, .full = 1, .kinds = FAULT_CALL };
	long points, step, runs = 0, hits = 0, failures = 0;
	const char *reason = job_run(&c);

	if (reason)
		fail_msg("without a fault: %s", reason);
	points = c.points;
	assert_true(points > 30);
	step = count && points > count ? (points + count - 1) / count : 1;
	c.action = action;
	c.stopped_ms = 120;
	for (c.at = 1 + victim % step; c.at <= points; c.at += step) {
		reason = action == FAULT_KILL ? run_hastily(&c) : job_run(&c);
		runs++;
		hits += c.killed || c.stopped;
		if (reason)
			fail_msg("rank %d %s at point %ld of %ld (%s): %s", victim, name_of(action), c.at, points,
			    c.hit, reason);
		for (int r = 0; r < RANKS; r++) {
			if (c.killed && r == victim)
				continue;
			failures += c.rank[r].end == LIFECYCLE_FAILED;
			if (action == FAULT_STOP && c.rank[r].end != LIFECYCLE_OK)
				fail_msg("rank %d stopped at point %ld of %ld (%s): rank %d failed in step %d with %d",
				    victim, c.at, points, c.hit, r, c.rank[r].step, (int)c.rank[r].error);
		}
	}
	print_message("rank %d %s: %ld places, %ld tried, %ld hit, %ld errors reported\n", victim, name_of(action),
	    points, runs, hits, failures);
	assert_true(hits > runs / 2 && (action == FAULT_STOP || failures > 0));
}

TEST(test_kill_at_any_call_ends_in_errors_and_a_new_communicator_works)
{
	for (int r = 0; r < RANKS; r++)
		sweep(r, FAULT_KILL, limit);
}

TEST(test_stop_at_any_call_breaks_nothing)
{
	for (int r = 0; r < RANKS; r++)
		sweep(r, FAULT_STOP, limit / 2);
}

/*
 * The victim dies while kernels run: its own, which waits for a peer that has not called yet, or (at 2) only those of
 * the others.
 */
static enum lifecycle_result die_in_a_kernel(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	bool victim = l->rank == c->victim, last = l->rank == (c->victim + 1) % c->n;
	ncclResult_t async = ncclSuccess;
	double start = now();

	if (lifecycle_begin(l) || !job_all_ready(l, c, at))
		goto wrong;
	if (c->at == 1 ? !last : !victim) {
		if (ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, l->comm, l->stream[0]) ||
		    !shunt_sim_wait_stuck(l->rank, l->stream[0]))
			goto wrong;
		atomic_fetch_add(&at->waiting, 1);
	}
	if (victim && until_counted(&at->waiting, c->n - 1, "kernels wait"))
		kill(getpid(), SIGKILL);
	start = now();
	if (c->at == 1 && last) {
		if (!until_process_ends(at->victim) ||
		    ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, l->comm, l->stream[0]))
			goto wrong;
	}
	/*
	 * Kernels end by themselves, long before SHUNT_TIMEOUT. With case 1 the dead rank's data may all have been
	 * sent.
	 */
	if (shunt_stream_synchronize(l->stream[0]) || now() - start > AT_ONCE_S ||
	    ncclCommGetAsyncError(l->comm, &async))
		goto wrong;
	if (async == ncclSuccess &&
	    (c->at == 2 || lifecycle_sum(l, l->comm, l->rank, l->nranks, 100, l->stream[0]) <= 0))
		goto wrong; /* the next at the latest cannot work */
	start = now();
	if (ncclCommAbort(l->comm) || now() - start > AT_ONCE_S)
		goto wrong;
	return LIFECYCLE_FAILED;
wrong:
	snprintf(l->wrong, sizeof(l->wrong), "rank %d: async %d, %.1f s", l->rank, (int)async, now() - start);
	return LIFECYCLE_WRONG;
}

TEST(test_kill_in_a_kernel_is_reported_by_all_others)
{
	for (int how = 1; how <= 2; how++)
		job_run_each(&(struct job){ .n = RANKS, .action = FAULT_KILL, .at = how, .body = die_in_a_kernel });
}

/*
 * ... also where the survivor's program is in a call that waits for the kernel and keeps the driver from everybody:
 * nothing can be read of the device.
 */
static enum lifecycle_result die_with_a_blocked_driver(
    struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	ncclResult_t async = ncclSuccess;
	double start;

	if (lifecycle_begin(l))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim)
		kill(getpid(), SIGKILL);
	start = now();
	if (ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, l->comm, l->stream[0]))
		return LIFECYCLE_WRONG;
	shunt_sim_set_copies_block(1);
	if (shunt_stream_synchronize(l->stream[0]))
		return LIFECYCLE_WRONG;
	shunt_sim_set_copies_block(0);
	if (now() - start > AT_ONCE_S || ncclCommGetAsyncError(l->comm, &async) || async != ncclRemoteError ||
	    ncclCommAbort(l->comm)) {
		snprintf(l->wrong, sizeof(l->wrong), "async %d, %.1f s", (int)async, now() - start);
		return LIFECYCLE_WRONG;
	}
	return LIFECYCLE_FAILED;
}

TEST_CALL(test_kill_with_a_blocked_driver_ends_the_kernel,
    job_run_each(&(struct job){ .n = 2, .action = FAULT_KILL, .body = die_with_a_blocked_driver }))

/* The linker leads the library's reads of devices here. */
static atomic_int device_reads;

int __real_shunt_recorder_snapshot(
    struct shunt_recorder *rec, enum shunt_recorder_depth depth, unsigned ms, struct shunt_recorder_snapshot *snapshot);
int __wrap_shunt_recorder_snapshot(
    struct shunt_recorder *rec, enum shunt_recorder_depth depth, unsigned ms, struct shunt_recorder_snapshot *snapshot);
int __wrap_shunt_recorder_snapshot(
    struct shunt_recorder *rec, enum shunt_recorder_depth depth, unsigned ms, struct shunt_recorder_snapshot *snapshot)
{
	atomic_fetch_add(&device_reads, 1);
	return __real_shunt_recorder_snapshot(rec, depth, ms, snapshot);
}

/*
 * A peer leaves while nothing is under way, and the survivor's program goes on without its communicators: watching them
 * costs next to nothing. A call that needs the peer after all is reported as soon as any other.
 */
static enum lifecycle_result outlive_an_idle_peer(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	enum { COMMS = 12, GRACES = 3 };
	ncclResult_t async = ncclSuccess;
	ncclComm_t comm[COMMS];
	double start, end = now() + AT_ONCE_S;
	int before, reads;

	if (ncclCommInitRank(&l->comm, l->nranks, l->id, l->rank))
		return LIFECYCLE_WRONG;
	for (int i = 0; i < COMMS; i++)
		if (ncclCommSplit(l->comm, 0, l->rank, &comm[i], NULL) ||
		    lifecycle_sum(l, comm[i], l->rank, l->nranks, 100, l->stream[0]))
			return LIFECYCLE_WRONG;
	if (!job_all_ready(l, c, at))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim)
		kill(getpid(), SIGKILL);
	/* Each device is read until it has said once that it has nothing to do. */
	do {
		before = atomic_load(&device_reads);
		if (!grace_is_over() || now() > end)
			return LIFECYCLE_WRONG;
	} while (atomic_load(&device_reads) != before);
	for (int i = 0; i < GRACES; i++)
		if (!grace_is_over())
			return LIFECYCLE_WRONG;
	reads = atomic_load(&device_reads) - before;
	start = now();
	if (reads > COMMS + 1 || /* once in half a minute */
	    ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, comm[COMMS / 2], l->stream[0]) ||
	    shunt_stream_synchronize(l->stream[0]) || now() - start > AT_ONCE_S ||
	    ncclCommGetAsyncError(comm[COMMS / 2], &async) || async != ncclRemoteError)
		goto wrong;
	for (int i = 0; i < COMMS; i++)
		if (ncclCommAbort(comm[i]))
			goto wrong;
	return ncclCommAbort(l->comm) ? LIFECYCLE_WRONG : LIFECYCLE_FAILED;
wrong:
	snprintf(
	    l->wrong, sizeof(l->wrong), "%d reads of devices, async %d after %.1f s", reads, (int)async, now() - start);
	return LIFECYCLE_WRONG;
}

TEST_CALL(test_an_idle_peer_that_left_costs_nothing,
    job_run_each(&(struct job){ .n = 2, .action = FAULT_KILL, .body = outlive_an_idle_peer }))

/* Stopped in the middle of a collective for longer than anything takes: nobody gives up before SHUNT_TIMEOUT. */
static enum lifecycle_result stop_in_a_kernel(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	if (ncclCommInitRank(&l->comm, l->nranks, l->id, l->rank))
		return LIFECYCLE_WRONG;
	for (int i = 0; i < 30; i++) {
		if (l->rank == c->victim && i == 10) {
			if (ncclAllReduce(l->dev + 100, l->dev + 100, 5000, ncclInt32, ncclSum, l->comm, l->stream[0]))
				return LIFECYCLE_WRONG;
			kill(getpid(), SIGSTOP);
		} else if (i == 10 &&
		    ncclAllReduce(l->dev + 100, l->dev + 100, 5000, ncclInt32, ncclSum, l->comm, l->stream[0])) {
			return LIFECYCLE_WRONG;
		}
		if (lifecycle_sum(l, l->comm, l->rank, l->nranks, 100, l->stream[0]))
			return LIFECYCLE_WRONG;
	}
	return ncclCommDestroy(l->comm) ? LIFECYCLE_WRONG : LIFECYCLE_OK;
}

TEST_CALL(test_stop_in_a_kernel_breaks_nothing,
    job_run_each(&(struct job){ .n = RANKS, .action = FAULT_STOP, .stopped_ms = 700, .body = stop_in_a_kernel }))

/* Stopped for good: the others do not wait longer than the variables say, and name who is missing. */
static enum lifecycle_result stop_before_setup(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	double start;
	int err;

	if (ncclCommInitRank(&l->comm, l->nranks, l->id, l->rank) || !job_all_ready(l, c, at))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim) {
		kill(getpid(), SIGSTOP);
		return ncclCommAbort(l->comm) ? LIFECYCLE_WRONG : LIFECYCLE_FAILED;
	}
	if (!until_process_stops(at->victim))
		return LIFECYCLE_WRONG;
	limits_set(300, 300);
	start = now();
	err = lifecycle_sum(l, l->comm, l->rank, l->nranks, 100, l->stream[0]);
	if (err <= 0 || now() - start > AT_ONCE_S || ncclCommAbort(l->comm)) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: %d after %.1f s", l->rank, err, now() - start);
		return LIFECYCLE_WRONG;
	}
	return LIFECYCLE_FAILED;
}

TEST_CALL(test_stop_for_good_before_the_setup_is_an_error_in_time,
    job_run_each(&(struct job){ .n = RANKS, .action = FAULT_STOP, .stopped_ms = 60000, .body = stop_before_setup }))

TESTS_BEGIN
{
	patient_environment();
	grace_ms = GRACE_SHORT_MS;
	limit = getenv("FAULT_ALL") ? 0 : getenv("FAULT_SLOW") ? 8 : 24;
}
