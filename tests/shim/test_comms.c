/* SPDX-License-Identifier: MIT */
/*
 * Communicators without a real NCCL, over the mock core: how they are made, of others, and how they end. Ranks are
 * threads.
 */
#include "tests/support/clock.h"
#include "tests/shim/mock_core.h"
#include "tests/shim/nonblocking.h"
#include "shim/nccl/abi.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

enum { MAX = 6 };

static char a[8], b[8];

struct rank {
	pthread_t thread;
	int rank, nranks;
	ncclComm_t comm, child, old;
	ncclUniqueId *ids;
	int nids;
	ncclConfig_t *config;
	int excluded[MAX], nexcluded, flags;
	ncclResult_t result;
};

static int setup(void **state)
{
	setenv("SHUNT_NCCL_LIB", "none", 1);
	shunt_mock_reset();
	shunt_mock_kernel_runs(0);
	return 0;
}

static void run_ranks(struct rank *r, int n, void *(*run)(void *))
{
	for (int i = 0; i < n; i++) {
		r[i].rank = i;
		r[i].nranks = n;
		pthread_create(&r[i].thread, NULL, run, &r[i]);
	}
	for (int i = 0; i < n; i++)
		pthread_join(r[i].thread, NULL);
}

static void create_comms(ncclComm_t *comms, int n)
{
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	for (int i = 0; i < n; i++)
		assert_int_equal(ncclCommInitRank(&comms[i], n, id, i), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
}

static void destroy_all(ncclComm_t *comms, int n)
{
	for (int i = 0; i < n; i++)
		assert_int_equal(ncclCommDestroy(comms[i]), ncclSuccess);
}

static int rank_of(ncclComm_t comm)
{
	int value = -1;

	assert_int_equal(ncclCommUserRank(comm, &value), ncclSuccess);
	return value;
}

static int count_of(ncclComm_t comm)
{
	int value = -1;

	assert_int_equal(ncclCommCount(comm, &value), ncclSuccess);
	return value;
}

static ncclResult_t reduce(ncclComm_t comm)
{
	return ncclAllReduce(a, b, 4, ncclInt8, ncclSum, comm, NULL);
}

/*
 * ------------------------------------------------------------------------------------------------------------- begin
 */

static void *init_scalable(void *arg)
{
	struct rank *r = arg;

	r->result = ncclCommInitRankScalable(&r->comm, r->nranks, r->rank, r->nids, r->ids, r->config);
	return NULL;
}

TEST(test_comms_scalable_init_takes_several_ids)
{
	struct rank r[4] = { { 0 } };
	ncclUniqueId ids[5];
	ncclComm_t comm;

	for (int n = 1; n <= 4; n++) {
		for (int i = 0; i < 5; i++)
			ncclGetUniqueId(&ids[i]);
		for (int i = 0; i < 4; i++) {
			r[i].ids = ids;
			r[i].nids = n;
		}
		run_ranks(r, 4, init_scalable);
		for (int i = 0; i < 4; i++) {
			assert_int_equal(r[i].result, ncclSuccess);
			assert_int_equal(rank_of(r[i].comm), i);
			ncclCommDestroy(r[i].comm);
		}
	}
	assert_int_equal(ncclCommInitRankScalable(&comm, 4, 0, 5, ids, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommInitRankScalable(&comm, 4, 0, 0, ids, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommInitRankScalable(&comm, 4, 0, 1, NULL, NULL), ncclInvalidArgument);
	assert_null(comm);
}

TEST(test_comms_nonblocking_group_returns_at_once)
{
	ncclConfig_t config = nonblocking_config();
	ncclComm_t comms[2], first[2], second[2], alone[2];
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	/* Only one of two ranks: a group that waited would wait for ever. */
	ncclGroupStart();
	assert_int_equal(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclInProgress);
	assert_int_equal(reduce(comms[0]), ncclInvalidArgument);
	ncclGroupStart();
	assert_int_equal(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclInProgress);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
	/* Two children of each in one group, which come in order. */
	ncclGroupStart();
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ncclCommSplit(comms[i], 0, 0, &first[i], NULL), ncclSuccess);
		assert_int_equal(ncclCommSplit(comms[i], 0, -i, &second[i], NULL), ncclSuccess);
	}
	assert_int_equal(ncclGroupEnd(), ncclInProgress);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
	/* And one without a group. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclCommSplit(comms[i], 0, 0, &alone[i], NULL), ncclInProgress);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(rank_of(first[i]), i);
		assert_int_equal(rank_of(second[i]), 1 - i);
		assert_int_equal(rank_of(alone[i]), i);
	}
	destroy_all(alone, 2);
	destroy_all(first, 2);
	destroy_all(second, 2);
	destroy_all(comms, 2);
}

struct ends {
	ncclComm_t comms[2], made, child;
	ncclUniqueId id;
	ncclConfig_t *config;
};

/* As after an exception between Start and End. */
static void *end_inside_a_group(void *arg)
{
	struct ends *ends = arg;

	ncclGroupStart();
	reduce(ends->comms[0]);
	ncclCommSplit(ends->comms[0], 0, 0, &ends->child, NULL);
	ncclCommInitRankConfig(&ends->made, 2, ends->id, 0, ends->config);
	ncclCommFinalize(ends->comms[1]);
	return NULL;
}

TEST(test_comms_group_of_a_thread_that_ends_is_given_up)
{
	ncclConfig_t config = nonblocking_config();
	struct ends ends;
	pthread_t thread;

	for (int blocking = 0; blocking < 2; blocking++) {
		ends = (struct ends){ .config = blocking ? NULL : &config };
		ncclGetUniqueId(&ends.id);
		ncclGroupStart();
		for (int i = 0; i < 2; i++)
			ncclCommInitRankConfig(&ends.comms[i], 2, ends.id, i, ends.config);
		ncclGroupEnd();
		for (int i = 0; i < 2; i++)
			assert_int_equal(wait_async(ends.comms[i]), ncclSuccess);
		ncclGetUniqueId(&ends.id);
		shunt_mock_reset();
		pthread_create(&thread, NULL, end_inside_a_group, &ends);
		pthread_join(thread, NULL);
		assert_null(strstr(shunt_mock_log(), "run"));
		assert_null(ends.child);
		assert_int_equal(reduce(ends.comms[0]), ncclSuccess); /* nothing holds it up */
		/* The program has this one's handle, and ends it. */
		assert_int_equal(wait_async(ends.made), ncclInvalidUsage);
		assert_int_equal(ncclCommAbort(ends.made), ncclSuccess);
		destroy_all(ends.comms, 2);
		assert_int_equal(shunt_mock_alive(), 0);
	}
}

TEST(test_comms_blocking_and_nonblocking_do_not_share_a_group)
{
	ncclConfig_t config = nonblocking_config();
	ncclUniqueId id[2];
	ncclComm_t comms[2];

	for (int blocking_first = 0; blocking_first < 2; blocking_first++) {
		ncclGetUniqueId(&id[0]);
		ncclGetUniqueId(&id[1]);
		ncclGroupStart();
		assert_int_equal(
		    ncclCommInitRankConfig(&comms[0], 1, id[0], 0, blocking_first ? NULL : &config), ncclSuccess);
		assert_int_equal(ncclCommInitRankConfig(&comms[1], 1, id[1], 0, blocking_first ? &config : NULL),
		    ncclInvalidArgument);
		assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
		assert_null(comms[0]);
		assert_null(comms[1]);
		assert_int_equal(shunt_mock_alive(), 0);
	}
	create_comms(comms, 2); /* nothing is left of it */
	destroy_all(comms, 2);
}

TEST(test_comms_nonblocking_init_that_fails_tells_by_its_state)
{
	ncclConfig_t config = nonblocking_config();
	ncclResult_t are[2];
	ncclComm_t comms[2], failed;
	ncclUniqueId id;
	int value;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
	assert_int_equal(ncclCommInitRankConfig(&comms[1], 3, id, 1, &config), ncclInProgress); /* another count */
	do { /* who comes second is wrong */
		pause_us(PAUSE_POLL, 100);
		for (int i = 0; i < 2; i++)
			assert_int_equal(ncclCommGetAsyncError(comms[i], &are[i]), ncclSuccess);
	} while (are[0] == ncclInProgress && are[1] == ncclInProgress);
	failed = comms[are[0] == ncclInProgress];
	assert_int_equal(wait_async(failed), ncclInvalidArgument);
	assert_int_equal(reduce(failed), ncclInvalidArgument);
	assert_int_equal(ncclCommCount(failed, &value), ncclInvalidArgument);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclCommAbort(comms[i]), ncclSuccess);
}

TEST(test_comms_bad_configuration_is_named)
{
	ncclConfig_t config = { .size = 48,
		.magic = SHUNT_NCCL_CONFIG_MAGIC,
		.version = 21800,
		.blocking = 1,
		.cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		.minCTAs = NCCL_CONFIG_UNDEF_INT,
		.maxCTAs = NCCL_CONFIG_UNDEF_INT,
		.splitShare = 4 };
	ncclComm_t comm, child = (ncclComm_t)1;
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
	assert_non_null(strstr(ncclGetLastError(NULL), "splitShare is 4 and must be between 0 and 1"));
	assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, &config), ncclInvalidArgument);
	config.splitShare = 1;
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, &config), ncclSuccess);
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

/*
 * ---------------------------------------------------------------------------------------------------------- children
 */

static void *shrink(void *arg)
{
	struct rank *r = arg;

	r->child = (ncclComm_t)1;
	for (int i = 0; i < r->nexcluded; i++)
		if (r->excluded[i] == r->rank) {
			r->child = NULL;
			return NULL; /* does not call */
		}
	pause_us(PAUSE_LATE, (unsigned)r->rank * 5000);
	r->result = ncclCommShrink(r->old, r->excluded, r->nexcluded, &r->child, NULL, r->flags);
	return NULL;
}

static void shrink_all(struct rank *r, ncclComm_t *comms, int n, const int *excluded, int nexcluded, int flags)
{
	memset(r, 0, sizeof(*r) * (size_t)n);
	for (int i = 0; i < n; i++) {
		r[i].old = comms[i];
		memcpy(r[i].excluded, excluded, sizeof(int) * (size_t)nexcluded);
		r[i].nexcluded = nexcluded;
		r[i].flags = flags;
	}
	run_ranks(r, n, shrink);
}

TEST(test_comms_shrink_closes_the_gaps)
{
	struct rank r[5], again[5];
	ncclComm_t comms[5];

	create_comms(comms, 5);
	shrink_all(r, comms, 5, (int[]){ 3, 0 }, 2, NCCL_SHRINK_DEFAULT);
	for (int i = 0, place = 0; i < 5; i++) {
		if (i == 3 || i == 0)
			continue;
		assert_int_equal(r[i].result, ncclSuccess);
		assert_int_equal(rank_of(r[i].child), place++);
		assert_int_equal(count_of(r[i].child), 3);
		assert_int_equal(reduce(r[i].child), ncclSuccess);
	}
	/* Others next time, of which one has never shrunk; and the same ones again while their first child lives. */
	shrink_all(again, comms, 5, (int[]){ 1 }, 1, NCCL_SHRINK_DEFAULT);
	for (int i = 0, place = 0; i < 5; i++)
		if (i != 1) {
			assert_int_equal(again[i].result, ncclSuccess);
			assert_int_equal(rank_of(again[i].child), place++);
			ncclCommDestroy(again[i].child);
		}
	shrink_all(again, comms, 5, (int[]){ 0, 3 }, 2, NCCL_SHRINK_DEFAULT);
	for (int i = 0; i < 5; i++)
		if (i != 3 && i != 0) {
			assert_int_equal(again[i].result, ncclSuccess);
			ncclCommDestroy(again[i].child);
			ncclCommDestroy(r[i].child);
		}
	assert_int_equal(reduce(comms[0]), ncclSuccess); /* the parent goes on */
	destroy_all(comms, 5);
}

TEST(test_comms_shrink_with_abort_stops_the_parent)
{
	struct rank r[3];
	ncclComm_t comms[3];

	create_comms(comms, 3);
	shunt_mock_kernel_runs(1);
	shrink_all(r, comms, 3, (int[]){ 1 }, 1, NCCL_SHRINK_ABORT);
	assert_non_null(strstr(shunt_mock_log(), "abort"));
	for (int i = 0; i < 3; i += 2) {
		assert_int_equal(r[i].result, ncclSuccess);
		assert_int_equal(reduce(r[i].child), ncclSuccess);
		assert_int_equal(reduce(comms[i]), ncclInvalidUsage);
		ncclCommDestroy(r[i].child);
	}
	shunt_mock_kernel_runs(0);
	destroy_all(comms, 3);
}

TEST(test_comms_shrink_refuses_bad_lists)
{
	ncclComm_t comm, child;

	assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
	assert_int_equal(ncclCommShrink(comm, NULL, 1, &child, NULL, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommShrink(comm, (int[]){ 0 }, 0, &child, NULL, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommShrink(comm, (int[]){ 0 }, 1, &child, NULL, 0), ncclInvalidArgument); /* itself */
	assert_int_equal(ncclCommShrink(comm, (int[]){ 1 }, 1, &child, NULL, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommShrink(comm, (int[]){ -1 }, 1, &child, NULL, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommShrink(comm, (int[]){ 1 }, 1, NULL, NULL, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommShrink(NULL, (int[]){ 1 }, 1, &child, NULL, 0), ncclInvalidArgument);
	ncclCommDestroy(comm);
}

static void *grow(void *arg)
{
	struct rank *r = arg;

	pause_us(PAUSE_LATE, (unsigned)(r->nranks - r->rank) * 3000);
	r->result = ncclCommGrow(
	    r->old, r->nranks, r->old && r->rank ? NULL : r->ids, r->old ? -1 : r->rank, &r->child, r->config);
	return NULL;
}

TEST(test_comms_grow_adds_ranks_behind)
{
	ncclComm_t comms[3], bad = (ncclComm_t)1;
	struct rank r[5] = { { 0 } };
	ncclUniqueId id;

	create_comms(comms, 3);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(ncclCommGetUniqueId(comms[0], &id), ncclSuccess);
		for (int i = 0; i < 5; i++) {
			r[i].old = i < 3 ? comms[i] : NULL;
			r[i].ids = &id;
		}
		run_ranks(r, 5, grow);
		for (int i = 0; i < 5; i++) {
			assert_int_equal(r[i].result, ncclSuccess);
			assert_int_equal(rank_of(r[i].child), i);
			assert_int_equal(count_of(r[i].child), 5);
			assert_int_equal(reduce(r[i].child), ncclSuccess);
			ncclCommDestroy(r[i].child);
		}
	}
	assert_int_equal(reduce(comms[2]), ncclSuccess);

	assert_int_equal(ncclCommGetUniqueId(NULL, &id), ncclInvalidArgument);
	assert_int_equal(ncclCommGetUniqueId(comms[0], NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommGrow(comms[0], 4, &id, -1, NULL, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommGrow(comms[0], 3, &id, -1, &bad, NULL), ncclInvalidArgument); /* not larger */
	assert_null(bad);
	assert_int_equal(ncclCommGrow(comms[0], 4, &id, 0, &bad, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommGrow(NULL, 4, NULL, 3, &bad, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommGrow(NULL, 4, &id, 4, &bad, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommGrow(NULL, 4, &id, -1, &bad, NULL), ncclInvalidArgument);
	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommGrow(NULL, 4, &id, 3, &bad, NULL), ncclInvalidArgument); /* of another kind */
	assert_non_null(strstr(ncclGetLastError(NULL), "not made by Shunt for a communicator that grows"));
	destroy_all(comms, 3);
}

TEST(test_comms_grow_nonblocking_of_one_rank)
{
	ncclConfig_t config = nonblocking_config();
	ncclComm_t old, grown[2];
	ncclUniqueId id;

	assert_int_equal(ncclCommInitAll(&old, 1, NULL), ncclSuccess);
	assert_int_equal(ncclCommGetUniqueId(old, &id), ncclSuccess);
	assert_int_equal(ncclCommGrow(old, 2, &id, -1, &grown[0], &config), ncclInProgress);
	assert_int_equal(ncclCommGrow(NULL, 2, &id, 1, &grown[1], &config), ncclInProgress);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wait_async(grown[i]), ncclSuccess);
		assert_int_equal(rank_of(grown[i]), i);
	}
	destroy_all(grown, 2);
	ncclCommDestroy(old);
}

static void *split_again(void *arg)
{
	struct rank *r = arg;

	r->result = ncclCommSplit(r->old, r->rank % 2, r->rank, &r->child, r->config);
	return NULL;
}

TEST(test_comms_children_of_children_outlive_them)
{
	ncclComm_t comms[4];
	struct rank r[4] = { { 0 } }, deeper[4] = { { 0 } };

	create_comms(comms, 4);
	for (int i = 0; i < 4; i++)
		r[i].old = comms[i];
	run_ranks(r, 4, split_again); /* 0 2 and 1 3 */
	destroy_all(comms, 4);
	for (int half = 0; half < 2; half++) {
		for (int i = 0; i < 2; i++)
			deeper[i] = (struct rank){ .old = r[half + 2 * i].child };
		run_ranks(deeper, 2, split_again);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(deeper[i].result, ncclSuccess);
			assert_int_equal(count_of(deeper[i].child), 1);
			ncclCommDestroy(deeper[i].old);
			assert_int_equal(reduce(deeper[i].child), ncclSuccess);
			ncclCommDestroy(deeper[i].child);
		}
	}
}

/*
 * --------------------------------------------------------------------------------------------------------------- end
 */

TEST(test_comms_revoked_can_only_have_children_and_end)
{
	ncclComm_t comms[3];
	struct rank r[3] = { { 0 } };
	ncclResult_t async;

	create_comms(comms, 3);
	shunt_mock_kernel_runs(1);
	assert_int_equal(ncclCommRevoke(NULL, 0), ncclSuccess);
	assert_int_equal(ncclCommRevoke((ncclComm_t)a, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommRevoke(comms[0], 1), ncclInvalidArgument);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ncclCommRevoke(comms[i], NCCL_REVOKE_DEFAULT), ncclSuccess);
		assert_int_equal(ncclCommRevoke(comms[i], NCCL_REVOKE_DEFAULT), ncclInvalidArgument);
	}
	assert_non_null(strstr(shunt_mock_log(), "abort\nquiet\n"));
	shunt_mock_kernel_runs(0);
	shunt_mock_error(-ECANCELED);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(reduce(comms[i]), ncclInvalidUsage);
		assert_int_equal(ncclCommFinalize(comms[i]), ncclInvalidArgument);
		assert_int_equal(ncclCommGetAsyncError(comms[i], &async), ncclSuccess);
		assert_int_equal(async, ncclSuccess);
		assert_int_equal(rank_of(comms[i]), i);
		r[i].old = comms[i];
	}
	shunt_mock_error(0);
	run_ranks(r, 3, split_again);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(r[i].result, ncclSuccess);
		assert_int_equal(rank_of(r[i].child), i / 2);
		assert_int_equal(reduce(r[i].child), ncclSuccess);
		ncclCommDestroy(r[i].child);
	}
	shrink_all(r, comms, 3, (int[]){ 2 }, 1, NCCL_SHRINK_DEFAULT);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(r[i].result, ncclSuccess);
		ncclCommDestroy(r[i].child);
	}
	destroy_all(comms, 3);
}

TEST(test_comms_suspended_refuse_calls_until_resumed)
{
	ncclComm_t comms[2];
	uint64_t value;

	create_comms(comms, 2);
	assert_int_equal(ncclCommMemStats(comms[0], ncclStatGpuMemTotal, &value), ncclSuccess);
	assert_int_equal(value, 1000);
	assert_int_equal(ncclCommMemStats(comms[0], (ncclCommMemStat_t)4, &value), ncclInvalidArgument);
	assert_int_equal(ncclCommMemStats(comms[0], ncclStatGpuMemTotal, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommResume(comms[0]), ncclInvalidUsage);
	assert_int_equal(ncclCommSuspend(comms[0], 0), ncclSuccess);
	assert_int_equal(reduce(comms[0]), ncclSuccess);
	assert_int_equal(ncclCommSuspend(comms[0], NCCL_SUSPEND_MEM), ncclSuccess);
	assert_int_equal(reduce(comms[0]), ncclInvalidUsage);
	assert_non_null(strstr(ncclGetLastError(NULL), "suspended"));
	assert_int_equal(ncclCommMemStats(comms[0], ncclStatGpuMemSuspended, &value), ncclSuccess);
	assert_int_equal(value, 1);
	assert_int_equal(ncclCommSuspend(comms[0], NCCL_SUSPEND_MEM), ncclInvalidUsage);
	assert_int_equal(ncclCommResume(comms[0]), ncclSuccess);
	assert_int_equal(reduce(comms[0]), ncclSuccess);
	assert_int_equal(ncclCommMemStats(comms[0], ncclStatGpuMemSuspended, &value), ncclSuccess);
	assert_int_equal(value, 0);
	assert_int_equal(ncclCommSuspend(NULL, NCCL_SUSPEND_MEM), ncclInvalidArgument);
	destroy_all(comms, 2);
}

TEST(test_comms_finalize_nonblocking_does_not_wait)
{
	ncclConfig_t config = nonblocking_config();
	ncclResult_t async;
	ncclComm_t comm;
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
	assert_int_equal(wait_async(comm), ncclSuccess);
	shunt_mock_kernel_runs(1);
	assert_int_equal(ncclCommFinalize(comm), ncclInProgress);
	for (int i = 0; i < 20; i++) {
		pause_us(PAUSE_POLL, 1000);
		assert_int_equal(ncclCommGetAsyncError(comm, &async), ncclSuccess);
		assert_int_equal(async, ncclInProgress);
	}
	shunt_mock_kernel_runs(0);
	assert_int_equal(wait_async(comm), ncclSuccess);
	assert_int_equal(reduce(comm), ncclInvalidUsage);
	assert_int_equal(ncclCommFinalize(comm), ncclInvalidArgument);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

/* An abort ends what waits, and afterwards nobody writes to the program's memory. */
TEST(test_comms_abort_ends_a_waiting_split)
{
	ncclConfig_t config = nonblocking_config();
	ncclComm_t comms[2], *place = malloc(sizeof(*place));
	ncclUniqueId id;
	double began;

	ncclGetUniqueId(&id);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclCommInitRankConfig(&comms[i], 2, id, i, &config), ncclInProgress);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
	assert_int_equal(ncclCommShrink(comms[0], (int[]){ 1 }, 1, place, NULL, 0), ncclInProgress);
	assert_int_equal(wait_async(comms[0]), ncclSuccess); /* alone, so nobody is waited for */
	assert_int_equal(ncclCommDestroy(*place), ncclSuccess);
	*place = NULL;
	assert_int_equal(ncclCommRevoke(comms[0], 0), ncclInProgress);
	assert_int_equal(wait_async(comms[0]), ncclSuccess);
	assert_int_equal(ncclCommSplit(comms[0], 0, 0, place, NULL), ncclInProgress);
	assert_true(until_all_threads_wait());
	began = now();
	assert_int_equal(ncclCommAbort(comms[0]), ncclSuccess);
	assert_true(now() - began < AT_ONCE_S);
	free(place);
	assert_int_equal(shunt_mock_alive(), 1);
	ncclCommAbort(comms[1]);
}

static atomic_int stop;
static _Atomic(ncclComm_t) watched;

/* As an allocator does from its callback: the lock is its own, and who waits for it may be anywhere. */
static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;

static void *allocate(void *arg)
{
	ncclResult_t *worst = arg;

	while (!stop) {
		ncclComm_t comm = watched;
		void *handle = NULL;
		ncclWindow_t win;
		ncclResult_t result;

		pthread_mutex_lock(&allocator);
		result = ncclCommRegister(comm, a, sizeof(a), &handle);
		if (result == ncclSuccess && handle != a)
			result = ncclInternalError;
		if (result == ncclSuccess)
			ncclCommDeregister(comm, handle);
		if (result == ncclSuccess)
			ncclCommWindowRegister(comm, a, sizeof(a), &win, 0);
		pthread_mutex_unlock(&allocator);
		if (result != ncclSuccess && result != ncclInvalidArgument) /* it may be gone meanwhile */
			*worst = result;
	}
	return NULL;
}

TEST(test_comms_registration_beside_ends_and_waits)
{
	ncclConfig_t config = nonblocking_config();
	ncclResult_t worst[2] = { ncclSuccess, ncclSuccess };
	pthread_t threads[2];
	ncclComm_t comm;
	ncclUniqueId id;
	void *handle;

	stop = 0;
	watched = NULL;
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, allocate, &worst[i]);
	for (int i = 0; i < 300; i++) {
		ncclGetUniqueId(&id);
		/* In progress, ready, failed, finalized: it always works. */
		assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
		watched = comm;
		assert_int_equal(ncclCommRegister(comm, a, 8, &handle), ncclSuccess);
		pthread_mutex_lock(&allocator);
		assert_int_equal(ncclCommAbort(comm), ncclSuccess);
		pthread_mutex_unlock(&allocator);
		assert_int_equal(ncclCommRegister(comm, a, 8, &handle), ncclInvalidArgument);
		if (i % 10)
			i += 9;
	}
	stop = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(worst[i], ncclSuccess);
	}
	assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
	assert_int_equal(ncclCommWindowRegister(comm, NULL, 8, (ncclWindow_t *)&handle, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommWindowRegister(comm, a, 8, NULL, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommRegister(comm, a, 8, NULL), ncclInvalidArgument);
	assert_int_equal(ncclWinGetUserPtr(comm, NULL, &handle), ncclSuccess);
	assert_null(handle);
	ncclCommDestroy(comm);
}

static void *destroy_some(void *arg)
{
	ncclComm_t *comms = arg;

	for (int i = 0; i < 30; i++)
		if (ncclCommDestroy(comms[i * 4]) != ncclSuccess)
			return arg;
	return NULL;
}

TEST(test_comms_dozens_end_in_any_order_from_any_thread)
{
	ncclComm_t comms[30][4];
	pthread_t threads[4];

	for (int i = 0; i < 30; i++)
		create_comms(comms[i], 4);
	/* Each thread ends one rank of each, two of them from the last to the first. */
	for (int i = 0; i < 30; i += 2)
		for (int k = 0; k < 2; k++) {
			ncclComm_t swap = comms[i][k];
			comms[i][k] = comms[29 - i][k];
			comms[29 - i][k] = swap;
		}
	for (int k = 0; k < 4; k++)
		pthread_create(&threads[k], NULL, destroy_some, &comms[0][k]);
	for (int k = 0; k < 4; k++) {
		void *failed;
		pthread_join(threads[k], &failed);
		assert_null(failed);
	}
}

TESTS_EACH(setup, shunt_mock_teardown)
