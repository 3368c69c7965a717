/* SPDX-License-Identifier: MIT */
/* Groups in front of a libnccl that records calls. SHUNT_NCCL_LIB names the fake. */
#include "tests/shim/mock_core.h"
#include "tests/shim/nonblocking.h"
#include "tests/shim/overlay_fixture.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

TEST(test_group_runs_ours_after_the_real_end)
{
	ncclComm_t comm = set_up_comm(0, 2);

	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_int_equal(reduce(comm, 6), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_string_equal(fake.log(), "GroupStart\nAllReduce 5000 7 grouped\n");
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nAllReduce 5000 7 grouped\nGroupEnd\n");
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\nrun 6 0\n"));
	assert_non_null(strstr(shunt_mock_log(), "forward allreduce 20000 NCCL is faster at this size\n"));
	ncclCommDestroy(comm);
}

/* What the real one launches then comes from a thread of its own, on some ranks before ours and on others behind. */
TEST(test_group_nonblocking_runs_ours_before_the_real_end)
{
	ncclComm_t comm = nonblocking_comm(0, 2);

	assert_int_equal(reduce(comm, 1), ncclSuccess);
	shunt_mock_reset();
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	fake.fail_next("GroupEnd", ncclSystemError); /* shows what was done before */
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));

	shunt_mock_reset();
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclAllReduce(a, b, 5000, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
	assert_null(strstr(shunt_mock_log(), "run")); /* an error that is known drops ours all the same */

	shunt_mock_reset();
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));
	assert_null(strstr(strstr(shunt_mock_log(), "run 5 0\n") + 1, "run")); /* once */
	ncclCommDestroy(comm);
}

TEST(test_group_nested_acts_at_the_outermost_end)
{
	ncclComm_t comm = unused_comm(0, 2);

	ncclGroupStart();
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
	ncclCommDestroy(comm);
}

TEST(test_group_error_drops_ours_and_is_returned)
{
	ncclComm_t comm = unused_comm(0, 2);

	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(reduce(NULL, 5), ncclInvalidArgument); /* the real one's */
	assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
	assert_null(strstr(shunt_mock_log(), "run"));

	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument); /* ours */
	assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
	assert_null(strstr(shunt_mock_log(), "run"));

	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess); /* nothing is left of it */
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(comm);
}

/* Nothing of it is the real library's, so it does not hear of it. */
TEST(test_group_without_forwarded_calls_leaves_the_real_library_alone)
{
	ncclComm_t comm = set_up_comm(0, 2);

	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(reduce(comm, 6), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	/* Nor if it fails. */
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
	assert_string_equal(fake.log(), "");
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\nrun 6 0\n"));
	ncclCommDestroy(comm);
}

TEST(test_group_opens_the_real_one_once_with_the_first_forwarded_call)
{
	ncclComm_t comm = set_up_comm(0, 2);

	for (int i = 0; i < 2; i++) {
		fake.reset();
		ncclGroupStart();
		ncclGroupStart();
		assert_int_equal(reduce(comm, 5), ncclSuccess);
		assert_string_equal(fake.log(), "");
		assert_int_equal(reduce(comm, 5000), ncclSuccess);
		assert_string_equal(fake.log(), "GroupStart\nAllReduce 5000 7 grouped\n");
		ncclGroupEnd();
		ncclGroupStart();
		assert_int_equal(
		    ncclBcast(a, 7, ncclInt8, 0, comm, NULL), ncclSuccess); /* comes back to us through the PLT */
		ncclGroupEnd();
		assert_int_equal(fake.launches(), 0);
		assert_int_equal(ncclGroupEnd(), ncclSuccess);
		assert_string_equal(
		    fake.log(), "GroupStart\nAllReduce 5000 7 grouped\nBcast\nBroadcast 7 0 grouped\nGroupEnd\n");
		assert_int_equal(fake.launches(), 2);
	}
	/* It is over: nothing opens it any more. */
	fake.reset();
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_string_equal(fake.log(), "AllReduce 5000 7\n");
	ncclCommDestroy(comm);
}

/* What takes a place in the real group although we never look at it. */
TEST(test_group_opens_the_real_one_for_every_kind_of_call)
{
	ncclComm_t comm = set_up_comm(0, 2), child, born;
	ncclUniqueId id = { { 1 } };
	void *memory;

	ncclGroupStart();
	assert_int_equal(ncclPutSignal(a, 3, ncclInt8, 1, NULL, 0, 0, 0, 0, comm, NULL), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nPutSignal 3 0 grouped\nGroupEnd\n");
	fake.reset();
	ncclGroupStart();
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nCommSplit color 0\nGroupEnd\n");
	fake.reset();
	ncclGroupStart();
	assert_int_equal(ncclCommInitRank(&born, 2, id, 0), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nCommInitRank 0/2\nGroupEnd\n");
	fake.reset();
	ncclGroupStart();
	assert_int_equal(ncclCommFinalize(born), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nCommFinalize\nGroupEnd\n");
	fake.reset();
	ncclGroupStart();
	assert_int_equal(ncclCommAbort(born), ncclSuccess);
	assert_int_equal(ncclCommDestroy(child), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nCommAbort\nCommDestroy\nGroupEnd\n");
	fake.reset();
	ncclGroupStart();
	assert_int_equal(ncclMemAlloc(&memory, 10), ncclSuccess);
	assert_int_equal(ncclMemFree(memory), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nMemAlloc 10\nMemFree\nGroupEnd\n");
	/* What it lacks is refused, and the group with it. */
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	shunt_mock_reset();
	assert_int_equal(ncclDevCommCreate(comm, NULL, NULL), ncclInvalidUsage);
	assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
	assert_null(strstr(shunt_mock_log(), "run"));
	ncclCommDestroy(comm);
}

/* The program hears of it where the real library was first needed. */
TEST(test_group_whose_real_one_cannot_be_opened_fails)
{
	ncclComm_t comm = set_up_comm(0, 2);

	fake.fail_next("GroupStart", ncclSystemError);
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(reduce(comm, 5000), ncclSystemError);
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
	assert_string_equal(fake.log(), "GroupStart\n");
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nAllReduce 5000 7\n");
	/* Only at the end of the group, with calls that were kept until then. */
	ncclCommDestroy(comm);
	comm = unused_comm(0, 2);
	shunt_mock_setup_result(1);
	fake.fail_next("GroupStart", ncclSystemError);
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
	assert_string_equal(fake.log(), "GroupStart\n");
	ncclCommDestroy(comm);
}

TEST(test_group_error_of_ours_drops_the_real_one)
{
	ncclComm_t comm = set_up_comm(0, 2);

	for (int first = 0; first < 2; first++) {
		fake.reset();
		ncclGroupStart();
		if (first)
			assert_int_equal(ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
		assert_int_equal(reduce(comm, 5000), ncclSuccess);
		if (!first)
			assert_int_equal(ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
		assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
		assert_non_null(strstr(fake.log(), "GroupEnd\n"));
		assert_int_equal(fake.launches(), 0);
	}
	fake.reset();
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_string_equal(fake.log(), "AllReduce 5000 7\n"); /* closed */
	ncclCommDestroy(comm);
}

/* More than fit into what needs no memory. */
TEST(test_group_of_many_calls_keeps_them_all_in_order)
{
	enum { N = 100 };
	ncclComm_t comm = set_up_comm(0, 2);
	char expected[N * 16], *at = expected;

	ncclGroupStart();
	for (int i = 1; i <= N; i++) {
		assert_int_equal(reduce(comm, i), ncclSuccess);
		at += sprintf(at, "run %d 0\n", i);
	}
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), expected));
	assert_string_equal(fake.log(), "");
	ncclCommDestroy(comm);
}

static void *reduce_ungrouped(void *comm)
{
	return (void *)(intptr_t)reduce(comm, 5000);
}

TEST(test_group_belongs_to_its_thread)
{
	ncclComm_t comm = set_up_comm(0, 2);
	void *result = NULL;
	pthread_t thread;

	ncclGroupStart();
	pthread_create(&thread, NULL, reduce_ungrouped, comm);
	pthread_join(thread, &result);
	assert_null(result);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "AllReduce 5000 7\n");
	ncclCommDestroy(comm);
}

static ncclComm_t ends_parent, ends_child, ends_new;
static ncclUniqueId ends_id;

/* As after an exception between Start and End. */
static void *end_inside_a_group(void *arg)
{
	ncclWindow_t win;

	ncclGroupStart();
	ncclGroupStart();
	ncclCommWindowRegister(ends_parent, a, sizeof(a), &win, NCCL_WIN_COLL_SYMMETRIC);
	for (size_t i = 0; i < 40; i++)
		reduce(ends_parent, i + 1);
	ncclCommSplit(ends_parent, 0, 0, &ends_child, NULL);
	ncclCommInitRank(&ends_new, 2, ends_id, 0);
	ends_child = NULL;
	return NULL;
}

static void *empty_group(void *arg)
{
	ncclGroupStart();
	return (void *)(intptr_t)ncclGroupEnd();
}

/* The threads come one after another, and may get each other's stack. */
TEST(test_group_of_a_thread_that_ends_is_given_up)
{
	void *result = (void *)1;
	pthread_t thread;

	for (int i = 0; i < 3; i++) {
		ends_parent = set_up_comm(0, 2);
		assert_int_equal(ncclGetUniqueId(&ends_id), ncclSuccess);
		shunt_mock_reset();
		pthread_create(&thread, NULL, end_inside_a_group, NULL);
		pthread_join(thread, NULL);
		assert_null(strstr(shunt_mock_log(), "run"));
		pthread_create(&thread, NULL, empty_group, NULL);
		pthread_join(thread, &result);
		assert_null(result);
		assert_null(ends_child);
		assert_int_equal(ncclCommDestroy(ends_parent), ncclSuccess);
		for (int k = 0; shunt_mock_alive() && k < 100000; k++) /* a thread of Shunt's ends the new one */
			pause_us(PAUSE_POLL, 100);
		assert_int_equal(shunt_mock_alive(), 0);
	}
}

TEST(test_group_setup_that_declines_forwards_inside)
{
	ncclComm_t comm = unused_comm(0, 2);

	shunt_mock_setup_result(1);
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nAllReduce 5 7 grouped\nGroupEnd\n");
	assert_null(strstr(shunt_mock_log(), "run"));
	ncclCommDestroy(comm);
}

TEST(test_group_sets_up_all_local_ranks_together)
{
	ncclComm_t comms[4];

	assert_int_equal(ncclCommInitAll(comms, 4, NULL), ncclSuccess);
	setenv("SHUNT_MOCK_RENDEZVOUS", "1", 1);
	ncclGroupStart();
	for (int i = 0; i < 4; i++)
		assert_int_equal(reduce(comms[i], 5), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	unsetenv("SHUNT_MOCK_RENDEZVOUS");
	assert_non_null(strstr(shunt_mock_log(), "setup 3"));
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\nrun 5 0\nrun 5 0\nrun 5 0\n"));
	for (int i = 0; i < 4; i++)
		ncclCommDestroy(comms[i]);
}

TEST(test_group_simulate_launches_nothing)
{
	ncclComm_t comm = unused_comm(0, 2);
	ncclSimInfo_t info = { sizeof(info), SHUNT_NCCL_SIM_MAGIC, 22809, 0 };

	ncclGroupStart();
	reduce(comm, 5);
	assert_int_equal(ncclGroupSimulateEnd(&info), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nAllReduce 5 7 grouped\nGroupSimulateEnd\n");
	assert_null(strstr(shunt_mock_log(), "run"));
	/* Of nothing, too: the structure is the real library's to judge. */
	fake.reset();
	ncclGroupStart();
	ncclGroupStart();
	assert_int_equal(ncclGroupSimulateEnd(&info), ncclSuccess);
	assert_string_equal(fake.log(), "");
	assert_int_equal(ncclGroupSimulateEnd(&info), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nGroupSimulateEnd\n");
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_string_equal(fake.log(), "GroupStart\nGroupSimulateEnd\nAllReduce 5000 7\n");
	ncclCommDestroy(comm);
}

/* Nor does the real NCCL launch anything, but it makes communicators. */
TEST(test_group_simulate_passes_children_on)
{
	ncclComm_t comm = unused_comm(0, 4), child = NULL;

	ncclGroupStart();
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
	assert_int_equal(ncclGroupSimulateEnd(NULL), ncclSuccess);
	assert_non_null(child);
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

TEST(test_group_init_that_fails_drops_the_entry)
{
	ncclUniqueId id = { { 0 } };
	ncclComm_t comm;

	ncclGroupStart();
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
	fake.fail_next("GroupEnd", ncclSystemError);
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
}

/* The real one is at it still, and would warn. */
TEST(test_group_init_nonblocking_asks_nothing_too_early)
{
	ncclConfig_t config = nonblocking_config();
	ncclResult_t result = ncclInProgress;
	ncclUniqueId id;
	ncclComm_t comm;

	ncclGetUniqueId(&id);
	fake.init_late(50);
	ncclGroupStart();
	assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclInProgress);
	while (result == ncclInProgress)
		assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	assert_null(strstr(fake.log(), "too early"));
	assert_non_null(strstr(shunt_mock_log(), "set_rank 0/2"));
	ncclCommDestroy(comm);
}

/* Not of the call that makes the real group fail. */
TEST(test_last_error_of_a_group_is_its_cause)
{
	ncclComm_t comm = unused_comm(0, 2);

	for (int used = 0; used < 2; used++) {
		ncclGroupStart();
		reduce(comm, 5000);
		assert_int_equal(
		    ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument); /* ours */
		ncclCommCount(comm, &(int){ 0 }); /* opens the real one in any case */
		assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
		assert_non_null(strstr(ncclGetLastError(NULL), "buffer is NULL"));

		ncclGroupStart();
		reduce(comm, 5);
		ncclAllReduce(a, b, 5, (ncclDataType_t)12, ncclSum, comm, NULL); /* the real one's, now or at the end */
		assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
		assert_string_equal(ncclGetLastError(NULL), "fake: last error");
		assert_int_equal(reduce(comm, 5), ncclSuccess);
	}
	ncclCommDestroy(comm);
}

TESTS_EACH(setup, shunt_mock_teardown)
