/* SPDX-License-Identifier: MIT */
/* The overlay: ranks that die, and communicators that are aborted and watched. */
#include "tests/e2e/overlay_job.h"
#include <sched.h>
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

static useconds_t dies_after_us;
static int rank_that_dies, dies_after_calls;
static atomic_int calls; /* that this rank has made */

/* At any time from the set-up on, or in the loop after it. */
static void *die_later(void *arg)
{
	pause_us(PAUSE_LATE, dies_after_us);
	until_counted(&calls, dies_after_calls, "calls");
	kill(getpid(), SIGKILL);
	return NULL;
}

static void *die_in_set_up(void *arg)
{
	until_dump_has(getpid(), "\"phase\": \"set-up\"");
	kill(getpid(), SIGKILL);
	return NULL;
}

/* The stopped rank goes on when the other one is dead. */
static void *wake_later(void *arg)
{
	if (until_process_ends(overlay_shared->victim))
		kill(overlay_shared->stopped, SIGCONT);
	return NULL;
}

/*
 * The others notice within the deadline and can go on to abort. Who finds at its first call that a rank is gone cannot
 * know that it was ever there, and leaves the communicator to NCCL, which has its own way with dead ranks.
 */
static int survive(struct rank *r, ncclComm_t comm, int may_forward)
{
	double began = now();
	ncclResult_t res, state = ncclSuccess;
	int32_t *buf;

	CHECK(shunt_malloc((void **)&buf, 4000) == 0 && shunt_memcpy(buf, (char[4000]){ 0 }, 4000) == 0);
	do {
		res = ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, comm, r->stream);
		if (!res)
			CHECK(shunt_stream_synchronize(r->stream) == 0);
		atomic_fetch_add(&calls, 1);
		NCCL(ncclCommGetAsyncError(comm, &state));
	} while (!res && !state && !overlay_count_calls(comm, 0) && now() < began + 2 * AT_ONCE_S);
	if (may_forward && overlay_count_calls(comm, 0)) {
		CHECK(!res && !state && overlay_count_calls(comm, 1) == 0);
		NCCL(ncclCommAbort(comm));
		return 0;
	}
	CHECK(state == ncclRemoteError && (!res || res == ncclRemoteError));
	CHECK(now() < began + AT_ONCE_S);
	CHECK(ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, comm, r->stream) == ncclRemoteError);
	began = now();
	NCCL(ncclCommAbort(comm));
	CHECK(now() < began + SOON);
	CHECK(shunt_free(buf) == 0);
	return 0;
}

static int body_dies_before(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == rank_that_dies)
		kill(getpid(), SIGKILL);
	return survive(r, comm, 1);
}

static int body_dies_inside(struct rank *r)
{
	ncclComm_t comm;
	pthread_t thread;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	overlay_barrier(r, 0);
	if (r->rank == rank_that_dies)
		pthread_create(&thread, NULL, die_later, NULL);
	return survive(r, comm, !dies_after_calls);
}

/* In the set-up, which waits for the last rank: that is stopped. */
static int body_dies_while_waiting(struct rank *r)
{
	ncclComm_t comm;
	pthread_t thread;
	int failed;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == r->nranks - 1) {
		CHECK(until_counted(&overlay_shared->victim, 1, "ranks that die"));
		atomic_store(&overlay_shared->stopped, getpid());
		raise(SIGSTOP);
		return survive(r, comm, 1);
	}
	if (r->rank == rank_that_dies)
		atomic_store(&overlay_shared->victim, getpid());
	CHECK(until_counted(&overlay_shared->stopped, 1, "ranks that stop") &&
	    until_process_stops(overlay_shared->stopped));
	pthread_create(&thread, NULL, r->rank == rank_that_dies ? die_in_set_up : wake_later, NULL);
	failed = survive(r, comm, 1);
	pthread_join(thread, NULL);
	return failed;
}

static void expect_survivors(rank_fn body, int n, int who)
{
	rank_that_dies = who;
	setenv("SHUNT_TIMEOUT", "20s", 1);
	assert_int_equal(overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body, .dies = 1u << who }, who), 0);
	setenv("SHUNT_TIMEOUT", PATIENCE, 1);
}

TEST(test_rank_killed_before_the_first_call_is_an_error_for_the_rest)
{
	expect_survivors(body_dies_before, 3, 0);
	expect_survivors(body_dies_before, 3, 1);
}

TEST(test_rank_killed_during_set_up_is_an_error_for_the_rest)
{
	expect_survivors(body_dies_while_waiting, 3, 0);
	expect_survivors(body_dies_while_waiting, 3, 1);
	for (int i = 0; i < 8; i++) {
		dies_after_us = 500 + 1500 * (useconds_t)i;
		expect_survivors(body_dies_inside, 3, i % 3);
	}
}

TEST(test_rank_killed_in_a_loop_is_an_error_for_the_rest)
{
	dies_after_us = 0;
	dies_after_calls = 50;
	expect_survivors(body_dies_inside, 3, 1);
	dies_after_calls = 0;
}

/* A second thread aborts while the first is stuck. */
struct rescue {
	ncclComm_t comm;
	unsigned seq; /* of the call that hangs */
	double took;
	ncclResult_t res;
};

static void *abort_later(void *arg)
{
	struct rescue *rescue = arg;
	double began;

	bool hangs = until_begun(getpid(), rescue->seq);

	began = now();
	rescue->res = ncclCommAbort(rescue->comm);
	if (!hangs)
		rescue->res = ncclInternalError;
	rescue->took = now() - began;
	return NULL;
}

static int body_abort(struct rank *r)
{
	struct rescue rescue = { 0 };
	ncclResult_t res;
	pthread_t thread;
	int32_t *buf;
	double began;

	NCCL(ncclCommInitRank(&rescue.comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc((void **)&buf, 4000) == 0 && shunt_memcpy(buf, (char[4000]){ 0 }, 4000) == 0);
	if (!overlay_shared->odd) /* else it is the first call that waits, and rank 1 never makes one */
		NCCL(ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, rescue.comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (r->rank == 0) {
		rescue.seq = overlay_shared->odd ? 1 : 2;
		pthread_create(&thread, NULL, abort_later, &rescue);
		began = now();
		res = ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, rescue.comm, r->stream);
		CHECK(res == ncclSuccess);
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(now() < began + SOON);
		pthread_join(thread, NULL);
		NCCL(rescue.res);
		CHECK(rescue.took < SOON);
	}
	overlay_barrier(r, 0);
	if (r->rank != 0)
		NCCL(ncclCommAbort(rescue.comm));
	CHECK(shunt_free(buf) == 0);
	return 0;
}

TEST(test_abort_from_another_thread_frees_a_stuck_rank)
{
	for (int during_setup = 0; during_setup < 2; during_setup++) {
		assert_int_equal(
		    overlay_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_abort }, during_setup), 0);
		assert_int_equal(
		    overlay_run_as(
		        &(struct ranks){ .how = RANKS_THREADS, .n = 2, .raw = 1, .body = body_abort }, during_setup),
		    0);
	}
}

/*
 * Stands for a kernel of the real library that ends when that is told to abort: here it is one of ours, of another
 * communicator.
 */
static void *abort_after_the_real_one(void *arg)
{
	while (!strstr(FAKE(fake_nccl_log)(), "CommAbort"))
		pause_us(PAUSE_POLL, 1000);
	ncclCommAbort(arg);
	return NULL;
}

RANKS_TEST(test_abort_reaches_nccl_before_it_waits_for_the_stream, overlay_run(RANKS_PROCESSES, 2, body))
{
	ncclComm_t ours, ahead;
	pthread_t thread;
	int32_t *buf = ranks_memory(r, 400);
	double began;

	NCCL(ncclCommInitRank(&ours, r->nranks, ranks_id(r, &overlay_shared->ids, 0), r->rank));
	NCCL(ncclCommInitRank(&ahead, r->nranks, ranks_id(r, &overlay_shared->ids, 1), r->rank));
	REDUCE(ours, r->rank, r->nranks, 100, NATIVE);
	REDUCE(ahead, r->rank, r->nranks, 100, NATIVE);
	if (r->rank == 0) {
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, ahead, r->stream)); /* nobody else calls */
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, ours, r->stream));
		pthread_create(&thread, NULL, abort_after_the_real_one, ahead);
		began = now();
		NCCL(ncclCommAbort(ours));
		CHECK(now() < began + SOON);
		pthread_join(thread, NULL);
	}
	overlay_barrier(r, 0);
	if (r->rank != 0) {
		NCCL(ncclCommAbort(ours));
		NCCL(ncclCommAbort(ahead));
	}
	return 0;
}

/* ---- watchdogs */

struct watch {
	_Atomic(ncclComm_t) comm;
	atomic_int stop, bad;
	atomic_long polls;
};

static void *watchdog(void *arg)
{
	struct watch *w = arg;
	ncclResult_t state, res;

	while (!w->stop) {
		ncclComm_t comm = w->comm;

		if (!comm)
			continue;
		state = ncclSuccess;
		res = ncclCommGetAsyncError(comm, &state);
		if (res == ncclSuccess && state != ncclSuccess)
			w->bad++;
		w->polls++;
		sched_yield();
	}
	return NULL;
}

/* The pollers may be a step behind: the handle is dead by then, or another communicator. */
RANKS_TEST(test_watchdogs_poll_while_communicators_come_and_go,
    overlay_run(RANKS_PROCESSES, 2, body) + overlay_run(RANKS_THREADS, 2, body))
{
	struct watch w = { 0 };
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, watchdog, &w);
	for (int k = 0; k < 6; k++) {
		ncclComm_t comm;

		NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &overlay_shared->ids, k), r->rank));
		w.comm = comm;
		for (int i = 0; i < 10; i++)
			REDUCE(comm, r->rank, r->nranks, 50 + i, NATIVE);
		NCCL(ncclCommDestroy(comm));
	}
	w.stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(w.polls > 0 && w.bad == 0);
	return 0;
}

TESTS_BEGIN
{
	overlay_begin();
}
