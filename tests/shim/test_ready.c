/* SPDX-License-Identifier: MIT */
/*
 * What functions of the ABI answer for a communicator that is not ready, or not any more: every function in every
 * state, as docs/conformance.md has it. Without a real NCCL, or in front of the fake that SHUNT_NCCL_LIB names.
 */
#include "tests/shim/mock_core.h"
#include "tests/shim/nonblocking.h"
#include "tests/shim/overlay_fixture.h"

enum state {
	BEGINS, /* its init is in progress */
	WORKS,  /* a split of it is */
	LOST,   /* its init has failed, with ncclInvalidUsage */
	FINALIZED,
	REVOKED,
	NSTATES
};

/* What a call makes, and what it gets. */
static struct {
	ncclComm_t comm;
	ncclUniqueId id;
	ncclRedOp_t op;
	ncclWindow_t win;
	ncclResult_t state;
	uint64_t bytes;
	void *p;
	int n;
} made;
static ncclComm_t late_child;
static bool overlay;

#define CALL(name, call) \
	static ncclResult_t name(ncclComm_t c) \
	{ \
		return call; \
	}
CALL(count, ncclCommCount(c, &made.n))
CALL(user_rank, ncclCommUserRank(c, &made.n))
CALL(device, ncclCommCuDevice(c, &made.n))
CALL(mem_stats, ncclCommMemStats(c, ncclStatGpuMemTotal, &made.bytes))
CALL(async_error, ncclCommGetAsyncError(c, &made.state))
CALL(unique_id, ncclCommGetUniqueId(c, &made.id))
CALL(split, ncclCommSplit(c, 0, 0, &made.comm, NULL))
CALL(shrink, ncclCommShrink(c, (int[]){ 1 }, 1, &made.comm, NULL, NCCL_SHRINK_DEFAULT))
CALL(shrink_abort, ncclCommShrink(c, (int[]){ 1 }, 1, &made.comm, NULL, NCCL_SHRINK_ABORT))
CALL(grow, ncclCommGrow(c, 4, &made.id, -1, &made.comm, NULL))
CALL(all_reduce, ncclAllReduce(a, b, 1, ncclInt8, ncclSum, c, NULL))
CALL(send, ncclSend(a, 1, ncclInt8, 1, c, NULL))
CALL(op_create, ncclRedOpCreatePreMulSum(&made.op, a, ncclInt8, ncclScalarHostImmediate, c))
CALL(reg, ncclCommRegister(c, a, sizeof(a), &made.p))
CALL(dereg, ncclCommDeregister(c, NULL))
CALL(win_register, ncclCommWindowRegister(c, a, sizeof(a), &made.win, NCCL_WIN_COLL_SYMMETRIC))
CALL(win_deregister, ncclCommWindowDeregister(c, NULL))
CALL(win_ptr, ncclWinGetUserPtr(c, NULL, &made.p))
CALL(suspend, ncclCommSuspend(c, 0))
CALL(suspend_memory, ncclCommSuspend(c, NCCL_SUSPEND_MEM))
CALL(resume, ncclCommResume(c))
CALL(finalize, ncclCommFinalize(c))
CALL(revoke_it, ncclCommRevoke(c, NCCL_REVOKE_DEFAULT))
CALL(destroy, ncclCommDestroy(c))
CALL(abort_it, ncclCommAbort(c))
CALL(put_signal, ncclSignal(1, 0, 0, 0, c, NULL))

static ncclResult_t properties(ncclComm_t c)
{
	ncclCommProperties_t p = { .size = sizeof(p), .magic = SHUNT_NCCL_CONFIG_MAGIC };

	return ncclCommQueryProperties(c, &p);
}

/* The codes by one digit: 0 success, 4 invalid argument, 5 invalid usage, 7 in progress. */
static const struct row {
	const char *name;
	ncclResult_t (*call)(ncclComm_t comm);
	const char *answers; /* a digit for each state */
	const char *overlay; /* ... of BEGINS and WORKS in front of a real NCCL; NULL: the fake has no such function */
} rows[] = {
	{ "ncclCommCount", count, "44500", "44" },
	{ "ncclCommUserRank", user_rank, "44500", "44" },
	{ "ncclCommCuDevice", device, "44500", "44" },
	{ "ncclCommQueryProperties", properties, "44500", NULL },
	{ "ncclCommMemStats", mem_stats, "44500", "44" },
	{ "ncclCommGetAsyncError", async_error, "00000", "00" },
	{ "ncclCommGetUniqueId", unique_id, "44500", "44" },
	{ "ncclCommSplit", split, "44577", "44" },
	{ "ncclCommShrink", shrink, "44577", "44" },
	{ "ncclCommShrink with abort", shrink_abort, "44577", "44" },
	{ "ncclCommGrow", grow, "44577", "44" },
	{ "ncclAllReduce", all_reduce, "44555", "40" },
	{ "ncclSend", send, "44555", NULL },
	{ "ncclRedOpCreatePreMulSum", op_create, "44500", "44" },
	{ "ncclCommRegister", reg, "00000", NULL },
	{ "ncclCommDeregister", dereg, "00000", NULL },
	{ "ncclCommWindowRegister", win_register, "00000", NULL },
	{ "ncclCommWindowDeregister", win_deregister, "00000", NULL },
	{ "ncclWinGetUserPtr", win_ptr, "00000", NULL },
	{ "ncclCommSuspend of nothing", suspend, "44500", "44" },
	{ "ncclCommSuspend", suspend_memory, "44577", "44" },
	{ "ncclCommResume", resume, "44555", "44" },
	{ "ncclCommFinalize", finalize, "44544", "44" },
	{ "ncclCommRevoke", revoke_it, "00744", "00" },
	{ "ncclCommDestroy", destroy, "44000", "44" },
	{ "ncclCommAbort", abort_it, "00000", "00" },
	{ "ncclSignal", put_signal, "55555", NULL },
};

static void *begin_in_a_group(void *arg)
{
	ncclConfig_t config = nonblocking_config();
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	ncclGroupStart();
	ncclCommInitRankConfig(arg, 2, id, 0, &config);
	return NULL;
}

/* The ranks of a communicator, in this thread. */
static void make_ranks(ncclComm_t *comms, int n)
{
	ncclConfig_t config = nonblocking_config();
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	for (int i = 0; i < n; i++)
		assert_int_equal(ncclCommInitRankConfig(&comms[i], n, id, i, &config), ncclInProgress);
	for (int i = 0; i < n; i++)
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
}

static void make(enum state state, ncclComm_t comms[2])
{
	ncclConfig_t config = nonblocking_config();
	ncclUniqueId id;
	pthread_t thread;

	comms[0] = comms[1] = NULL;
	if (overlay)
		fake.reset(); /* no delays */
	if (state == BEGINS) {
		if (overlay)
			fake.init_late(FAKE_NCCL_UNTIL_TOLD);
		ncclGetUniqueId(&id);
		assert_int_equal(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
	} else if (state == LOST) {
		pthread_create(&thread, NULL, begin_in_a_group, &comms[0]);
		pthread_join(thread, NULL);
		assert_int_equal(wait_async(comms[0]), ncclInvalidUsage);
	} else {
		make_ranks(comms, 2);
	}
	if (state == WORKS) {
		if (overlay)
			fake.late(FAKE_NCCL_UNTIL_TOLD);
		assert_int_equal(ncclCommSplit(comms[0], 0, 0, &late_child, NULL), ncclInProgress);
	}
	if (state == FINALIZED)
		assert_int_equal(ncclCommFinalize(comms[0]), ncclInProgress);
	if (state == REVOKED)
		assert_int_equal(ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT), ncclInProgress);
	if (state == FINALIZED || state == REVOKED)
		assert_int_equal(wait_async(comms[0]), ncclSuccess);
}

static void try(const struct row *row, enum state state, ncclResult_t want)
{
	ncclResult_t result, now = ncclSuccess;
	bool ended;
	ncclComm_t comms[2];

	make(state, comms);
	memset(&made, 0, sizeof(made));
	result = row->call(comms[0]);
	if (result != want)
		fail_msg("%s in state %d: %d, expected %d", row->name, (int)state, (int)result, (int)want);
	ended = row->call == abort_it || (row->call == destroy && result == ncclSuccess);
	if (!ended && state <= WORKS && result) { /* refused: it stays as it was */
		assert_int_equal(ncclCommGetAsyncError(comms[0], &now), ncclSuccess);
		assert_int_equal(now, ncclInProgress);
		assert_null(made.comm);
	}
	if (!ended)
		assert_int_equal(ncclCommAbort(comms[0]), ncclSuccess);
	else if (!overlay) /* the handle means nothing any more */
		assert_int_equal(row->call(comms[0]), ncclInvalidArgument);
	assert_int_equal(ncclCommAbort(made.comm), ncclSuccess);
	assert_int_equal(ncclCommAbort(comms[1]), ncclSuccess);
}

TEST(test_every_function_in_every_state)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *want = overlay ? rows[i].overlay : rows[i].answers;

		for (int s = 0; want && want[s]; s++)
			try(&rows[i], (enum state)s, (ncclResult_t)(want[s] - '0'));
	}
}

/* A rank whose calls came too early has children under the ids that the other ranks have, and its kernels. */
TEST(test_refused_calls_are_not_counted)
{
	char ids[2][5] = { "", "" };
	ncclComm_t comms[2], children[2] = { 0 };

	if (overlay)
		fake.reset();
	make_ranks(comms, 2);
	if (overlay)
		fake.late(FAKE_NCCL_UNTIL_TOLD);
	assert_int_equal(ncclCommSplit(comms[0], 0, 0, &children[0], NULL), ncclInProgress);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].overlay && rows[i].overlay[WORKS] == '4' && rows[i].call != shrink_abort)
			assert_int_equal(rows[i].call(comms[0]), ncclInvalidArgument);
	if (overlay)
		fake.late(0);
	assert_int_equal(ncclCommSplit(comms[1], 0, 0, &children[1], NULL), ncclInProgress);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
		assert_int_equal(ncclCommAbort(children[i]), ncclSuccess);
	}
	for (int i = 0; i < 2; i++) {
		shunt_mock_reset();
		assert_int_equal(all_reduce(comms[i]), ncclSuccess);
		assert_non_null(strstr(shunt_mock_log(), "run 1"));
		assert_int_equal(ncclCommSplit(comms[i], 0, 0, &children[i], NULL), ncclInProgress);
		memcpy(ids[i], strstr(shunt_mock_log(), "id ") + 3, 4);
	}
	assert_string_equal(ids[0], ids[1]);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
		assert_int_equal(ncclCommAbort(children[i]), ncclSuccess);
		assert_int_equal(ncclCommDestroy(comms[i]), ncclSuccess);
	}
}

/*
 * NCCL's abort ends what is in progress, such as a connection to a dead rank, whether or not it then refuses the
 * shrink. So the call must reach NCCL; the one that NCCL refuses does not count.
 */
TEST(test_a_shrink_with_abort_reaches_nccl)
{
	ncclComm_t comms[3], children[3] = { 0 };
	char ids[2][5] = { "", "" };

	if (!overlay)
		return;
	fake.reset();
	make_ranks(comms, 3);
	fake.late(FAKE_NCCL_UNTIL_TOLD);
	assert_int_equal(ncclCommSplit(comms[0], 0, 0, &children[0], NULL), ncclInProgress);
	shunt_mock_reset();
	assert_int_equal(
	    ncclCommShrink(comms[0], (int[]){ 2 }, 1, &children[1], NULL, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
	assert_null(strstr(fake.log(), "CommShrink"));
	assert_null(strstr(shunt_mock_log(), "abort"));
	assert_int_equal(
	    ncclCommShrink(comms[0], (int[]){ 2 }, 1, &children[1], NULL, NCCL_SHRINK_ABORT), ncclInvalidArgument);
	assert_non_null(strstr(fake.log(), "CommShrink"));
	assert_non_null(strstr(shunt_mock_log(), "abort"));
	assert_null(children[1]);
	fake.late(0);
	assert_int_equal(wait_async(comms[0]), ncclSuccess);
	for (int i = 0; i < 2; i++) {
		shunt_mock_reset();
		assert_int_equal(ncclCommShrink(comms[i], (int[]){ 2 }, 1, &children[i + 1], NULL, NCCL_SHRINK_ABORT),
		    ncclInProgress);
		memcpy(ids[i], strstr(shunt_mock_log(), "id ") + 3, 4);
	}
	assert_string_equal(ids[0], ids[1]);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(wait_async(comms[i]), ncclSuccess);
		assert_int_equal(ncclCommAbort(children[i]), ncclSuccess);
		assert_int_equal(ncclCommAbort(comms[i]), ncclSuccess);
	}
}

static int begin(void **state)
{
	if (overlay)
		return setup(state);
	setenv("SHUNT_NCCL_LIB", "none", 1);
	shunt_mock_reset();
	return 0;
}

TESTS_EACH(begin, shunt_mock_teardown)

TESTS_BEGIN
{
	overlay = getenv("SHUNT_NCCL_LIB") != NULL;
}
