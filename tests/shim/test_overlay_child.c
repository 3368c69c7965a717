/* SPDX-License-Identifier: MIT */
/* Communicators that are made from others, in front of a libnccl that records calls. SHUNT_NCCL_LIB names the fake. */
#include "tests/shim/mock_core.h"
#include "tests/shim/nonblocking.h"
#include "tests/shim/overlay_fixture.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

TEST(test_split_blocking_knows_the_child_at_once)
{
	ncclComm_t comm = unused_comm(2, 4), child, none = comm;

	assert_int_equal(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, NULL), ncclSuccess);
	assert_null(none);
	assert_int_equal(shunt_mock_alive(), 1);
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "create 2/4 rank -1/-1"));
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "set_rank 1/2 device 2\n"));
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

TEST(test_split_in_a_group_is_known_at_its_end)
{
	ncclComm_t comm = unused_comm(0, 4), child = NULL;

	ncclGroupStart();
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSuccess);
	assert_null(child);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(child);
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

TEST(test_split_outlives_a_parent_that_ends_in_its_group)
{
	ncclComm_t comm = unused_comm(0, 4), child = NULL;

	ncclGroupStart();
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSuccess);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(child);
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(child);
}

TEST(test_split_late_is_known_through_the_parent_state)
{
	ncclComm_t comm = nonblocking_comm(0, 4), child, moved;

	fake.late(30);
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclInProgress);
	assert_int_equal(wait_async(comm), ncclSuccess);
	moved = child;
	child = NULL; /* our entry does not depend on the place any more */
	assert_int_equal(reduce(moved, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(moved);
	ncclCommDestroy(comm);
}

/* Without asking the parent, as PyTorch does. The place may be gone as soon as the handle was seen there. */
TEST(test_split_late_is_known_wherever_the_handle_was_moved)
{
	for (int grouped = 0; grouped < 2; grouped++) {
		ncclComm_t comm = nonblocking_comm(0, 4), *place = malloc(sizeof(*place)), moved;

		*place = comm;
		fake.late(20);
		if (grouped)
			ncclGroupStart();
		assert_int_equal(ncclCommSplit(comm, 1, 0, place, NULL), grouped ? ncclSuccess : ncclInProgress);
		if (grouped)
			assert_int_equal(ncclGroupEnd(), ncclInProgress);
		while (!(moved = __atomic_load_n(place, __ATOMIC_ACQUIRE)))
			pause_us(PAUSE_POLL, 100);
		free(place);
		assert_int_equal(reduce(moved, 5), ncclSuccess);
		assert_non_null(strstr(shunt_mock_log(), "run 5"));
		ncclCommDestroy(moved);
		ncclCommDestroy(comm);
		assert_int_equal(shunt_mock_alive(), 0);
	}
}

/* Nothing is written to the program's memory any more once the parent is gone, whatever the real library still does. */
TEST(test_split_whose_parent_dies_is_forgotten)
{
	int threads = until_all_threads_wait() ? until_threads_now() : 0;

	for (int ms = 0; ms < 40; ms += 13) { /* its child has come, or the real library is at it */
		ncclComm_t comm = nonblocking_comm(0, 4), *place = malloc(sizeof(*place)), was;

		fake.late(ms);
		assert_int_equal(ncclCommSplit(comm, 1, 0, place, NULL), ncclInProgress);
		while (!ms && !__atomic_load_n(place, __ATOMIC_ACQUIRE))
			pause_us(PAUSE_POLL, 100);
		assert_int_equal(ncclCommAbort(comm), ncclSuccess);
		was = *place;
		*place = (ncclComm_t)place;
		assert_true(until_threads_are(threads)); /* the real library has written, and nobody looks for it */
		assert_ptr_equal(*place, place);
		free(place);
		if (was)
			ncclCommAbort(was);
		assert_int_equal(shunt_mock_alive(), 0);
	}
}

TEST(test_split_that_fails_leaves_nothing)
{
	ncclComm_t comm = nonblocking_comm(0, 4), child = comm;

	fake.fail_next("CommSplit", ncclSystemError);
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSystemError);
	assert_null(child);
	assert_int_equal(shunt_mock_alive(), 1);
	fake.fail_next("CommSplit", ncclSystemError);
	ncclGroupStart();
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSystemError);
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
	assert_null(child);
	assert_int_equal(shunt_mock_alive(), 1);
	/* The group fails after the call. */
	ncclGroupStart();
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclSuccess);
	fake.fail_next("GroupEnd", ncclSystemError);
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
	assert_null(child);
	ncclCommDestroy(comm);
}

/* Set in a file of NCCL's or in the environment, it counts for our idea of what blocks. */
TEST(test_settings_of_the_environment_win_over_the_program)
{
	ncclComm_t comm, child;
	ncclUniqueId id;

	setenv("NCCL_COMM_BLOCKING", "0", 1);
	setenv("NCCL_MAX_CTAS", "3", 1);
	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRank(&comm, 4, id, 0), ncclSuccess); /* the fake does not look */
	assert_non_null(strstr(shunt_mock_log(), "ctas 3"));
	fake.late(10);
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, NULL), ncclInProgress);
	assert_int_equal(wait_async(comm), ncclSuccess);
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	unsetenv("NCCL_COMM_BLOCKING");
	unsetenv("NCCL_MAX_CTAS");
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

/* A child without a configuration has its parent's, one with a configuration has NCCL's defaults for the rest. */
TEST(test_children_inherit_the_configuration_only_as_a_whole)
{
	ncclConfig_t config = { .size = 48,
		.magic = SHUNT_NCCL_CONFIG_MAGIC,
		.version = 21800,
		.blocking = 1,
		.cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		.minCTAs = NCCL_CONFIG_UNDEF_INT,
		.maxCTAs = 5,
		.splitShare = NCCL_CONFIG_UNDEF_INT };
	ncclComm_t comm, child;
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclSuccess);
	shunt_mock_reset();
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "ctas 5"));
	ncclCommDestroy(child);
	shunt_mock_reset();
	config.maxCTAs = NCCL_CONFIG_UNDEF_INT;
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, &config), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "ctas 0"));
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

/* The id that our log has for the communicator created last. */
static void created_id(char id[5])
{
	const char *at = shunt_mock_log(), *last = NULL;

	while ((at = strstr(at, "id ")))
		last = at = at + 3;
	assert_non_null(last);
	memcpy(id, last, 4);
	id[4] = 0;
}

TEST(test_grow_gives_old_and_new_ranks_one_id)
{
	ncclUniqueId id, grow, unmarked;
	ncclComm_t old[2], grown[3];
	char ids[3][5];
	int places[] = { 0, 1 };

	ncclGetUniqueId(&id);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclCommInitRank(&old[i], 2, id, i), ncclSuccess);
	for (int round = 0; round < 2; round++) { /* and the second time another one */
		assert_int_equal(ncclCommGetUniqueId(old[0], &grow), ncclSuccess);
		assert_int_equal(ncclCommGrow(NULL, 3, &grow, 2, &grown[2], NULL), ncclSuccess);
		created_id(ids[2]);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(
			    ncclCommGrow(old[places[i]], 3, i ? NULL : &grow, -1, &grown[i], NULL), ncclSuccess);
			created_id(ids[i]);
			assert_string_equal(ids[i], ids[2]);
		}
		assert_null(strstr(shunt_mock_log(), " reason "));
		assert_non_null(strstr(shunt_mock_log(), "set_rank 2/3"));
		shunt_mock_reset();
		assert_int_equal(reduce(grown[2], 5), ncclSuccess);
		assert_non_null(strstr(shunt_mock_log(), "run 5"));
		for (int i = 0; i < 3; i++)
			ncclCommDestroy(grown[i]);
		shunt_mock_reset();
	}
	/* Made by a rank without Shunt, or elsewhere: known, but NCCL's. */
	memset(&unmarked, 0, sizeof(unmarked));
	assert_int_equal(ncclCommGrow(NULL, 3, &unmarked, 2, &grown[2], NULL), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), " reason "));
	ncclCommDestroy(grown[2]);
	shunt_mock_host(2);
	shunt_mock_reset();
	assert_int_equal(ncclCommGrow(NULL, 3, &grow, 2, &grown[2], NULL), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), " reason the communicator that grows is on another host"));
	shunt_mock_host(1);
	ncclCommDestroy(grown[2]);
	for (int i = 0; i < 2; i++)
		ncclCommDestroy(old[i]);
}

TEST(test_children_have_the_same_id_on_all_ranks)
{
	ncclUniqueId id;
	ncclComm_t comms[2], child[2];
	char ids[2][5] = { "", "" };

	ncclGetUniqueId(&id);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclCommInitRank(&comms[i], 4, id, i), ncclSuccess);
	for (int i = 0; i < 2; i++) {
		ncclComm_t none;
		ncclCommSplit(comms[i], i ? NCCL_SPLIT_NOCOLOR : 4, 0, &none, NULL); /* counts either way */
		if (none)
			ncclCommDestroy(none);
		shunt_mock_reset();
		ncclCommSplit(comms[i], 3, -i, &child[i], NULL);
		memcpy(ids[i], strstr(shunt_mock_log(), "id ") + 3, 4);
	}
	assert_string_equal(ids[0], ids[1]);
	for (int i = 0; i < 2; i++) {
		int excluded[2] = { 2 + i, 3 - i }; /* another order */
		ncclComm_t shrunk;
		shunt_mock_reset();
		assert_int_equal(
		    ncclCommShrink(comms[i], excluded, 2, &shrunk, NULL, NCCL_SHRINK_DEFAULT), ncclSuccess);
		memcpy(ids[i], strstr(shunt_mock_log(), "id ") + 3, 4);
		ncclCommDestroy(shrunk);
		ncclCommDestroy(child[i]);
		ncclCommDestroy(comms[i]);
	}
	assert_string_equal(ids[0], ids[1]);
}

/* Numbers of ranks that cannot be are for NCCL to judge, and nothing is read from an array that may be shorter. */
TEST(test_shrink_reads_no_more_ranks_than_there_are)
{
	static const int counts[] = { 2, 3, INT_MAX };
	ncclComm_t comm = unused_comm(0, 2), shrunk;
	int excluded = 1;

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		assert_int_equal(
		    ncclCommShrink(comm, &excluded, counts[i], &shrunk, NULL, NCCL_SHRINK_DEFAULT), ncclSuccess);
		assert_null(strstr(shunt_mock_log(), "create"));
		assert_non_null(strstr(fake.log(), "CommShrink"));
		ncclCommDestroy(shrunk);
		fake.reset();
	}
	assert_int_equal(ncclCommShrink(comm, &excluded, 1, &shrunk, NULL, NCCL_SHRINK_DEFAULT), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "create"));
	ncclCommDestroy(shrunk);
	ncclCommDestroy(comm);
}

TESTS_EACH(setup, shunt_mock_teardown)
