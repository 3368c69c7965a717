/* SPDX-License-Identifier: MIT */
/*
 * Each call of the library to the system fails once, in turn: memory, descriptors, sockets, mappings, threads. Ranks
 * are threads of one process, so that what is not given back shows. A lifecycle with a fault ends well or with an error
 * on whom it concerns; the next lifecycle in the same process is as good as ever.
 */
#include "tests/fault/job.h"
#include "tests/support/clock.h"
#include "tests/support/limits.h"
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { RANKS = 3, LIMIT_S = 100, IDS = 3 };

static struct lifecycle lifecycles[RANKS];
static ncclUniqueId ids[IDS]; /* of the last lifecycles */
static unsigned nids;
static int sanitized; /* slow: fewer points */

struct rank_thread {
	struct lifecycle *lifecycle;
	atomic_int *go;
	enum lifecycle_result end;
};

static void *rank_main(void *arg)
{
	struct rank_thread *p = arg;

	while (!atomic_load(p->go))
		pause_us(PAUSE_POLL, 100);
	if (atomic_load(p->go) > 0)
		p->end = lifecycle_run(p->lifecycle);
	return NULL;
}

/* All ranks' lifecycles with the fault that is asked for; the worst end. *points_p: how many points there were. */
static enum lifecycle_result run_lifecycles(unsigned kinds, enum fault_action action, long at, int full, long *points_p)
{
	struct rank_thread rank_thread[RANKS];
	pthread_t thread[RANKS];
	enum lifecycle_result worst = LIFECYCLE_OK;
	atomic_int go = 0;
	ncclUniqueId id = { 0 };
	ncclResult_t res;

	for (int r = 0; r < RANKS; r++) {
		rank_thread[r] = (struct rank_thread){ &lifecycles[r], &go, LIFECYCLE_OK };
		assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &rank_thread[r]), 0);
	}
	alarm(LIMIT_S); /* a hang ends the test, with the last line that was printed as its place */
	fault_arm(kinds, action, at);
	res = ncclGetUniqueId(&id);
	ids[nids++ % IDS] = id;
	for (int r = 0; r < RANKS; r++) {
		lifecycles[r].id = id;
		lifecycles[r].full = full;
	}
	atomic_store(&go, res ? -1 : 1);
	for (int r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
	*points_p = fault_disarm();
	alarm(0);
	if (res)
		return LIFECYCLE_FAILED;
	for (int r = 0; r < RANKS; r++) {
		if (rank_thread[r].end == LIFECYCLE_WRONG)
			print_error("%s\n", lifecycles[r].wrong);
		if (rank_thread[r].end > worst)
			worst = rank_thread[r].end;
	}
	return worst;
}

static enum lifecycle_result live_well(unsigned kinds, int full, long *points_p)
{
	limits_set(LIMIT_LONG_MS, LIMIT_LONG_MS);
	return run_lifecycles(kinds, FAULT_COUNT, 0, full, points_p);
}

/*
 * With short limits, as so many ranks wait in vain for one that had the fault. Where these end a lifecycle on a busy
 * machine before it is at its point, again with longer ones.
 */
static enum lifecycle_result live_with_fault(unsigned kinds, long at, int full, long *points_p)
{
	enum lifecycle_result end = LIFECYCLE_FAILED;

	for (int ms = 120; ms < 20000 && end == LIFECYCLE_FAILED; ms *= 10) {
		limits_set(ms, ms);
		end = run_lifecycles(kinds, FAULT_FAIL, at, full, points_p);
		if (*fault_hit())
			break;
	}
	return end;
}

/*
 * An id to which no rank has come, because the limits ended all of them before, keeps its thread for an hour: a rank
 * comes to those of the last lifecycles.
 */
static bool back_to(const struct fault_balance *mark)
{
	ncclComm_t comm;

	if (fault_back_to(mark, 500))
		return true;
	limits_set(120, 120);
	for (int i = 0; i < IDS; i++)
		assert_int_not_equal(ncclCommInitRank(&comm, RANKS, ids[i], 0), ncclSuccess);
	if (fault_back_to(mark, AT_ONCE_S * 500))
		return true;
	print_error("left over: %s\n", fault_left_since(mark));
	return false;
}

/* A child per sweep: a crash or a hang of one is reported, and the next begins afresh. */
static void sweep(unsigned kinds, int full)
{
	static const long most[2][2] = { { 80, 25 }, { 40, 15 } }; /* points, where sanitized fewer */
	const long limit = getenv("FAULT_ALL") ? 0 : most[full - 1][sanitized];
	struct fault_balance mark;
	long points, all, step, injected = 0, failures = 0;
	double start = now();

	for (int r = 0; r < RANKS; r++)
		assert_int_equal(lifecycle_prepare(&lifecycles[r], r, RANKS), 0);
	/* What is made once per process exists after a lifecycle or two. */
	for (int i = 0; i < 3; i++)
		assert_int_equal(live_well(0, full, &points), LIFECYCLE_OK);
	assert_true(until_all_threads_wait()); /* none of ours is about to begin or to end */
	mark = fault_balance();
	assert_int_equal(live_well(kinds, full, &all), LIFECYCLE_OK);
	assert_true(all > 20);
	assert_true(back_to(&mark));
	step = limit > 0 && all > limit ? (all + limit - 1) / limit : 1;
	for (long at = 1; at <= all; at += step) {
		enum lifecycle_result end = live_with_fault(kinds, at, full, &points);

		injected += *fault_hit() != '\0';
		failures += end == LIFECYCLE_FAILED;
		if (end == LIFECYCLE_WRONG || !back_to(&mark))
			fail_msg("point %ld of %ld (%s): %s", at, all, fault_hit(),
			    end == LIFECYCLE_WRONG ? "wrong" : "leak");
		if (!(at % 16) || end != LIFECYCLE_OK) {
			end = live_well(0, full, &points);
			if (end != LIFECYCLE_OK)
				fail_msg("after a fault at point %ld of %ld (%s), step %d: a new communicator does not "
				         "work (%d)",
				    at, all, fault_hit(), lifecycles[0].step, (int)lifecycles[0].error);
		}
	}
	assert_true(back_to(&mark));
	assert_true(injected > 0 && failures > 0);
	print_message(
	    "%ld points, %ld injected, %ld lifecycles failed, %.1f s\n", all, injected, failures, now() - start);
	for (int r = 0; r < RANKS; r++)
		lifecycle_finish(&lifecycles[r]);
}

/* The set-up is over, and a plan's first call finds no memory on one rank. */
static enum lifecycle_result first_call_of_plan(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	char path[1024], reason[512];
	double start, took;
	int err;

	snprintf(path, sizeof(path), "%s/allreduce_oneshot_2.json", getenv("SHUNT_TEST_PLANS"));
	if (shunt_plan_register_file(path, reason, sizeof(reason)) || ncclCommInitRank(&l->comm, 2, l->id, l->rank) ||
	    ncclAllReduce(
	        l->dev, l->dev, 100, ncclInt32, ncclMax, l->comm, l->stream[0]) || /* no sum: not by the plan */
	    shunt_stream_synchronize(l->stream[0]) ||
	    !job_all_ready(l, c, at))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim)
		fault_arm(FAULT_ALLOC, FAULT_FAIL, c->at);
	start = now();
	err = lifecycle_sum(l, l->comm, l->rank, 2, 100, l->stream[0]);
	if (l->rank == c->victim)
		fault_disarm();
	took = now() - start;
	/* The others are told although this rank's program goes on. */
	atomic_fetch_add(&at->out, 1);
	if (!until_counted(&at->out, c->n, "calls are over") || err < 0 || took > AT_ONCE_S) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: the call gave %d after %.2f s", l->rank, err, took);
		return LIFECYCLE_WRONG;
	}
	return ncclCommAbort(l->comm) ? LIFECYCLE_WRONG : err ? LIFECYCLE_FAILED : LIFECYCLE_OK;
}

TEST(test_fail_memory_for_a_plans_first_call_is_an_error_on_all_at_once)
{
	int failures = 0;

	for (int victim = 0; victim < 2; victim++)
		for (long at = 1; at <= (sanitized ? 8 : 16); at++) {
			struct job c = { .n = 2,
				.victim = victim,
				.once = 1,
				.action = FAULT_COUNT,
				.at = at,
				.body = first_call_of_plan };
			const char *reason = job_run(&c);

			if (reason)
				fail_msg("rank %d, allocation %ld: %s", victim, at, reason);
			/* Both or none. */
			assert_int_equal(c.rank[0].end, c.rank[1].end);
			failures += c.rank[0].end == LIFECYCLE_FAILED;
		}
	assert_true(failures > 4);
}

TEST_CALL(test_fail_each_allocation_is_an_error_and_leaks_nothing, sweep(FAULT_ALLOC, 1))
TEST_CALL(test_fail_each_system_call_is_an_error_and_leaks_nothing, sweep(FAULT_CALL, 1))
TEST_CALL(test_fail_each_allocation_of_another_lifecycle_leaks_nothing, sweep(FAULT_ALLOC, 2))
TEST_CALL(test_fail_each_system_call_of_another_lifecycle_leaks_nothing, sweep(FAULT_CALL, 2))

TESTS_BEGIN
{
	sanitized = getenv("FAULT_SLOW") != NULL;
	lifecycle_environment("90s", "60s");
}
