/* SPDX-License-Identifier: MIT */
/* The shim between a client and a libnccl that records calls. SHUNT_NCCL_LIB names the fake. */
#include "tests/shim/mock_core.h"
#include "tests/shim/overlay_fixture.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

TEST(test_version_is_the_real_one)
{
	int version = 0;

	assert_int_equal(ncclGetVersion(&version), ncclSuccess);
	assert_int_equal(version, 22809);
	assert_int_equal(ncclGetVersion(NULL), ncclInvalidArgument);
	assert_string_equal(ncclGetErrorString(ncclSuccess), "fake: no error");
	assert_non_null(strstr(shunt_real_nccl_path(), "libnccl"));
}

TEST(test_init_creates_ours_before_and_names_it_by_the_id)
{
	ncclComm_t comm = new_comm(1, 2);

	assert_non_null(strstr(shunt_mock_log(), "create 1/2 rank 1/2 device -1"));
	/* Whoever comes first finds a rank that knows all of itself, whether or not the program has called. */
	assert_non_null(strstr(shunt_mock_log(), "set_rank 1/2 device 1\n"));
	assert_int_equal(shunt_mock_alive(), 1);
	ncclCommDestroy(comm);
}

TEST(test_init_that_fails_leaves_nothing)
{
	ncclUniqueId id = { { 0 } };
	ncclComm_t comm = NULL;

	fake.fail_next("CommInitRank", ncclSystemError);
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 0), ncclSystemError);
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
}

TEST(test_config_of_an_old_caller_is_read_within_its_size)
{
	struct {
		size_t size;
		unsigned magic, version;
		int blocking, cga, min, max;
		char guard[128];
	} old = { 32, 0xcafebeef, 21700, 1, INT_MIN, 1, 7, "" };
	ncclUniqueId id = { { 0 } };
	ncclComm_t comm;

	memset(old.guard, 0x7f, sizeof(old.guard));
	assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, (ncclConfig_t *)&old), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "ctas 7"));
	ncclCommDestroy(comm);
	shunt_mock_reset();
	old.size = 24; /* ends before maxCTAs */
	assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, (ncclConfig_t *)&old), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "ctas 0"));
	ncclCommDestroy(comm);
}

TEST(test_allreduce_small_is_ours_large_is_forwarded)
{
	ncclComm_t comm = unused_comm(1, 2);

	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_string_equal(fake.log(), "");
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));
	assert_int_equal(reduce(comm, 5000), ncclSuccess);
	assert_string_equal(fake.log(), "AllReduce 5000 7\n");
	assert_int_equal(pncclAllReduce(a, b, 6, ncclInt8, ncclMax, comm, NULL), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 6 2\n"));
	ncclCommDestroy(comm);
}

TEST(test_allreduce_bad_calls_get_the_real_code)
{
	ncclComm_t comm = unused_comm(0, 2);

	assert_int_equal(reduce(NULL, 5), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(a, b, 5, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(a, b, 5, ncclInt8, (ncclRedOp_t)77, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(NULL, b, 5, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_int_equal(reduce(comm, 0), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	ncclCommDestroy(comm);
}

TEST(test_allreduce_error_of_ours_is_translated)
{
	ncclComm_t comm = unused_comm(0, 2);

	shunt_mock_setup_result(-EOWNERDEAD);
	assert_int_equal(reduce(comm, 5), ncclRemoteError);
	ncclCommDestroy(comm);
}

TEST(test_forward_returns_the_real_code_unchanged)
{
	static const char *const names[] = { "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send",
		"Recv" };
	ncclComm_t comm = unused_comm(0, 2);

	for (int code = 1; code <= 8; code++)
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			ncclResult_t got[] = { 0 };
			fake.fail_next(names[i], (ncclResult_t)code);
			switch (i) {
			case 0:
				*got = reduce(comm, 5000);
				break;
			case 1:
				*got = ncclReduce(a, b, 5, ncclInt8, ncclSum, 0, comm, NULL);
				break;
			case 2:
				*got = ncclBroadcast(a, b, 5, ncclInt8, 0, comm, NULL);
				break;
			case 3:
				*got = ncclAllGather(a, b, 5, ncclInt8, comm, NULL);
				break;
			case 4:
				*got = ncclReduceScatter(a, b, 5, ncclInt8, ncclSum, comm, NULL);
				break;
			case 5:
				*got = ncclSend(a, 5, ncclInt8, 1, comm, NULL);
				break;
			case 6:
				*got = ncclRecv(a, 5, ncclInt8, 1, comm, NULL);
				break;
			}
			assert_int_equal(*got, code);
		}
	assert_non_null(strstr(shunt_mock_log(), "forward broadcast 5 no kernel for this collective\n"));
	ncclCommDestroy(comm);
}

TEST(test_unknown_handle_goes_through_untouched)
{
	ncclComm_t comm = unused_comm(0, 2);
	void *lib = dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_NOLOAD);
	ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int) = dlsym(lib, "ncclCommInitRank");
	ncclUniqueId id = { { 0 } };
	ncclComm_t other;
	ncclResult_t async;

	assert_int_equal(init(&other, 2, id, 0), ncclSuccess); /* behind our back */
	assert_int_equal(reduce(other, 5), ncclSuccess);
	assert_non_null(strstr(fake.log(), "AllReduce 5 7\n"));
	assert_int_equal(ncclCommGetAsyncError(other, &async), ncclSuccess);
	assert_int_equal(ncclCommDestroy(other), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	ncclCommDestroy(comm);
}

TEST(test_reentry_is_counted_once)
{
	ncclComm_t comm = unused_comm(0, 2);
	const char *first;

	assert_int_equal(ncclBcast(a, 5, ncclInt8, 0, comm, NULL), ncclSuccess);
	first = strstr(shunt_mock_log(), "forward broadcast");
	assert_non_null(first);
	assert_null(strstr(first + 1, "forward broadcast"));
	assert_string_equal(fake.log(), "Bcast\nBroadcast 5 0\n");
	ncclCommDestroy(comm);
}

TEST(test_missing_in_the_real_library_is_invalid_usage)
{
	ncclComm_t comm = unused_comm(0, 2);
	ncclCollConfig_t config = { .size = sizeof(config) };

	assert_int_equal(ncclAlltoAll(a, b, 5, ncclInt8, comm, NULL), ncclInvalidUsage);
	assert_int_equal(ncclAllReduceConfig(a, b, 5, ncclInt8, ncclSum, comm, NULL, &config), ncclInvalidUsage);
	assert_int_equal(ncclAllReduceConfig(a, b, 5, ncclInt8, ncclSum, comm, NULL, NULL), ncclSuccess);
	assert_int_equal(ncclReduceConfig(a, b, 5, ncclInt8, ncclSum, 0, comm, NULL, NULL), ncclSuccess);
	assert_int_equal(((ncclResult_t (*)(void))dlsym(RTLD_DEFAULT, "ncclParamDumpAll"))(), ncclInvalidUsage);
	assert_int_equal(((ncclResult_t (*)(void))dlsym(RTLD_DEFAULT, "pncclParamDumpAll"))(), ncclInvalidUsage);
	ncclCommDestroy(comm);
}

TEST(test_stub_keeps_every_argument)
{
	fake_nccl_16_args *bind = (fake_nccl_16_args *)dlsym(RTLD_DEFAULT, "ncclParamBind");
	fake_nccl_team *team = (fake_nccl_team *)dlsym(RTLD_DEFAULT, "ncclTeamWorld");
	fake_nccl_large *large = (fake_nccl_large *)dlsym(RTLD_DEFAULT, "pncclGetPeerDevicePointer");
	ncclComm_t comm = unused_comm(3, 4);
	struct fake_team t = team(comm);
	struct fake_large l = large(11, 22.0);
	double expected = 1 + 4 + 9 + 16 + 25 + 36 + 49 + 64;

	expected = expected * 101;
	assert_true(bind(1, 2, 3, 4, 5, 6, 7, 8, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0) == expected);
	assert_int_equal(t.nranks, 4);
	assert_int_equal(t.rank, 3);
	assert_int_equal(l.v[0], 11);
	assert_int_equal(l.v[1], 22);
	assert_int_equal(l.v[4], 5);
	ncclCommDestroy(comm);
}

/* The first call of the process is a stub: it must open the library and still keep its arguments. Own process. */
static int first_call(void)
{
	fake_nccl_16_args *bind = (fake_nccl_16_args *)dlsym(RTLD_DEFAULT, "ncclParamBind");

	return bind(1, 2, 3, 4, 5, 6, 7, 8, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0) == 204 * 101 ? 0 : 1;
}

/*
 * A thread of NCCL's writes the handle some time after success was returned; what stands in its place until then is no
 * name.
 */
TEST(test_window_whose_handle_comes_late_goes_with_the_unnamed)
{
	ncclComm_t comm = unused_comm(0, 2);
	ncclWindow_t other = NULL, win;

	assert_int_equal(ncclCommWindowRegister(comm, a, sizeof(a), &other, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
	win = other; /* left over in the place */
	shunt_mock_reset();
	fake.windows_unwritten(1);
	assert_int_equal(ncclCommWindowRegister(comm, b, sizeof(b), &win, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
	fake.windows_unwritten(0);
	assert_non_null(strstr(shunt_mock_log(), "window name 0\n"));
	win = (ncclWindow_t)(b + 1); /* NCCL's thread */
	assert_int_equal(ncclCommWindowDeregister(comm, win), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "window remove unnamed\n"));
	ncclCommDestroy(comm);
}

/* Whatever its number is: NCCL mixes numbers with addresses. */
TEST(test_user_op_is_destroyed_by_nccl)
{
	ncclComm_t comm = unused_comm(0, 2);
	float scalar = 2.5f;
	ncclRedOp_t ops[2];
	char want[64];

	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclRedOpCreatePreMulSum(&ops[i], &scalar, ncclFloat32, ncclScalarHostImmediate, comm),
		    ncclSuccess);
	fake.reset();
	for (int i = 0; i < 2; i++)
		assert_int_equal(ncclRedOpDestroy(ops[i], comm), ncclSuccess);
	snprintf(want, sizeof(want), "RedOpDestroy %d\nRedOpDestroy %d\n", (int)ops[0], (int)ops[1]);
	assert_string_equal(fake.log(), want);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

TEST(test_user_op_is_remembered_by_value)
{
	ncclComm_t comm = unused_comm(0, 2);
	float scalar = 2.5f;
	ncclRedOp_t op;
	char line[64];
	uint32_t bits;

	memcpy(&bits, &scalar, 4);
	assert_int_equal(
	    ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
	scalar = 0;
	ncclGroupStart();
	assert_int_equal(ncclAllReduce(a, b, 5, ncclFloat32, op, comm, NULL), ncclSuccess);
	assert_int_equal(ncclRedOpDestroy(op, comm), ncclSuccess);
	assert_null(strstr(fake.log(), "RedOpDestroy")); /* the recorded call may still need it */
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(fake.log(), "RedOpDestroy"));
	snprintf(line, sizeof(line), "run 5 5 scalar %x\n", bits);
	assert_non_null(strstr(shunt_mock_log(), line));

	/* Gone, or of another type: the real library's to judge. */
	fake.reset();
	ncclAllReduce(a, b, 5, ncclFloat32, op, comm, NULL);
	assert_string_equal(fake.log(), "AllReduce 5 7\n");
	assert_int_equal(ncclRedOpCreatePreMulSum(&op, a, ncclFloat64, ncclScalarDevice, comm), ncclSuccess);
	shunt_mock_reset();
	ncclAllReduce(a, b, 5, ncclFloat32, op, comm, NULL);
	assert_null(strstr(shunt_mock_log(), "run"));
	ncclAllReduce(a, b, 5, ncclFloat64, op, comm, NULL);
	assert_non_null(strstr(shunt_mock_log(), "device"));
	ncclCommDestroy(comm);
}

TEST(test_memory_statistics_count_ours)
{
	ncclComm_t comm = unused_comm(0, 2);
	uint64_t value;

	assert_int_equal(ncclCommMemStats(comm, ncclStatGpuMemTotal, &value), ncclSuccess);
	assert_int_equal(value, 1100);
	assert_int_equal(ncclCommMemStats(comm, ncclStatGpuMemPersist, &value), ncclSuccess);
	assert_int_equal(value, 1100);
	assert_int_equal(ncclCommMemStats(comm, ncclStatGpuMemSuspend, &value), ncclSuccess);
	assert_int_equal(value, 100);
	assert_int_equal(ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL), ncclInvalidArgument);
	ncclCommDestroy(comm);
}

static void *stop_kernel(void *arg)
{
	while (!strstr(shunt_mock_log(), "quiet"))
		pause_us(PAUSE_POLL, 1000);
	shunt_mock_kernel_runs(0);
	return NULL;
}

/* Finalizing keeps our side until destroy, waits for kernels where the communicator blocks, and only there. */
TEST(test_finalize_waits_only_where_the_communicator_blocks)
{
	ncclComm_t comm = nonblocking_comm(0, 2);
	pthread_t thread;

	shunt_mock_kernel_runs(1);
	assert_int_equal(ncclCommFinalize(comm), ncclSuccess); /* returns though the kernel runs */
	assert_null(strstr(shunt_mock_log(), "quiet"));
	assert_int_equal(shunt_mock_alive(), 1);
	assert_int_equal(reduce(comm, 5), ncclSuccess); /* the real one's to judge */
	assert_null(strstr(shunt_mock_log(), "run"));
	shunt_mock_kernel_runs(0);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
	assert_int_equal(shunt_mock_alive(), 0);

	comm = unused_comm(0, 2);
	shunt_mock_kernel_runs(1);
	pthread_create(&thread, NULL, stop_kernel, NULL);
	assert_int_equal(ncclCommFinalize(comm), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "quiet"));
	pthread_join(thread, NULL);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

static void *abort_soon(void *comm)
{
	while (!strstr(shunt_mock_log(), "quiet"))
		pause_us(PAUSE_POLL, 1000);
	return ncclCommAbort(comm) ? comm : NULL;
}

TEST(test_finalize_ends_when_another_thread_aborts)
{
	ncclComm_t comm = unused_comm(0, 2);
	pthread_t thread;
	void *failed;

	shunt_mock_kernel_runs(1);
	pthread_create(&thread, NULL, abort_soon, comm);
	assert_int_equal(ncclCommFinalize(comm), ncclInvalidUsage);
	pthread_join(thread, &failed);
	assert_null(failed);
	shunt_mock_kernel_runs(0);
	assert_null(strstr(fake.log(), "CommFinalize")); /* of what is gone */
	assert_non_null(strstr(fake.log(), "CommAbort"));
}

TEST(test_counts_whose_bytes_wrap_are_refused)
{
	ncclComm_t comm = unused_comm(0, 2);

	assert_int_equal(reduce(comm, SIZE_MAX), ncclInvalidArgument);
	assert_int_equal(reduce(comm, (size_t)1 << 62), ncclInvalidArgument); /* times 4 it would be 0 */
	assert_non_null(strstr(ncclGetLastError(NULL), "larger than any memory"));
	assert_string_equal(shunt_mock_log(), "");
	assert_string_equal(fake.log(), "");
	ncclCommDestroy(comm);
}

TEST(test_async_error_merges_ours)
{
	ncclComm_t comm = unused_comm(0, 2);
	ncclResult_t result = ncclInternalError;

	assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	assert_int_equal(result, ncclSuccess);
	shunt_mock_error(-ETIMEDOUT);
	assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	assert_int_equal(result, ncclRemoteError);
	assert_int_equal(ncclCommGetAsyncError(comm, NULL), ncclInvalidArgument);
	ncclCommDestroy(comm);
}

TEST(test_abort_goes_to_ours_first)
{
	ncclComm_t comm = unused_comm(0, 2);

	assert_int_equal(ncclCommAbort(comm), ncclSuccess);
	assert_string_equal(shunt_mock_log(), "abort\ndestroy\n");
	assert_string_equal(fake.log(), "CommAbort\n");
	assert_int_equal(ncclCommAbort(NULL), ncclSuccess);
	assert_int_equal(ncclCommDestroy(NULL), ncclSuccess);
}

TEST(test_suspended_and_revoked_are_not_ours)
{
	ncclComm_t comm = unused_comm(0, 2);
	ncclResult_t result;

	assert_int_equal(ncclCommSuspend(comm, 1), ncclSuccess);
	reduce(comm, 5);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(ncclCommResume(comm), ncclSuccess);
	reduce(comm, 5);
	assert_non_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(ncclCommRevoke(comm, 0), ncclSuccess);
	shunt_mock_reset();
	shunt_mock_error(-ECANCELED);
	reduce(comm, 5);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	assert_int_equal(result, ncclSuccess);
	ncclCommDestroy(comm);
}

TEST(test_path_of_tells_the_path)
{
	ncclComm_t comm = unused_comm(0, 2);
	const char *path;

	assert_int_equal(shunt_path_of(comm, "allreduce", 5, ncclFloat32, ncclSum, &path), 0);
	assert_string_equal(path, "mock");
	assert_int_equal(shunt_path_of(comm, "allreduce", 5000, ncclFloat32, ncclSum, &path), 0);
	assert_string_equal(path, "nccl");
	assert_int_equal(shunt_path_of(comm, "nothing", 5, ncclFloat32, ncclSum, &path), -EINVAL);
	assert_int_equal(shunt_path_of(&path, "allreduce", 5, ncclFloat32, ncclSum, &path), -ENOENT);
	assert_int_equal(shunt_path_of(NULL, "allreduce", 5, ncclFloat32, ncclSum, &path), -ENOENT);
	assert_int_equal(shunt_path_of(comm, NULL, 5, ncclFloat32, ncclSum, &path), -EINVAL);
	assert_int_equal(shunt_path_of(comm, "allreduce", 5, ncclFloat32, ncclSum, NULL), -EINVAL);
	ncclCommDestroy(comm);
}

TEST(test_counters_without_room_are_refused)
{
	ncclComm_t comm = unused_comm(0, 2);
	size_t n;

	assert_int_equal(shunt_counters(comm, NULL, 0, &n), 0);
	assert_int_equal(shunt_counters(comm, NULL, 3, &n), -EINVAL);
	assert_int_equal(shunt_counters(comm, NULL, 0, NULL), -EINVAL);
	assert_int_equal(shunt_counters(NULL, NULL, 0, &n), -ENOENT);
	ncclCommDestroy(comm);
}

TEST(test_last_error_is_of_whoever_failed_last)
{
	ncclComm_t comm = unused_comm(0, 2);

	reduce(NULL, 5);
	assert_string_equal(ncclGetLastError(NULL), "fake: the communicator is NULL");
	ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL);
	assert_non_null(strstr(ncclGetLastError(NULL), "buffer is NULL"));
	ncclCommDestroy(comm);
}

TEST(test_memory_goes_to_the_real_library)
{
	void *p;

	fake.reset();
	assert_int_equal(ncclMemAlloc(&p, 10), ncclSuccess);
	assert_int_equal(ncclMemFree(p), ncclSuccess);
	assert_string_equal(fake.log(), "MemAlloc 10\nMemFree\n");
}

static void *watch(void *arg)
{
	ncclResult_t result;

	/*
	 * The fake frees its communicators, so only our half can be asked here; the other one is asked by the handle
	 * tests.
	 */
	for (int i = 0; i < 1000; i++)
		ncclCommGetAsyncError(NULL, &result);
	return NULL;
}

TEST(test_many_cycles_leave_nothing)
{
	pthread_t thread;

	pthread_create(&thread, NULL, watch, NULL);
	for (int i = 0; i < 3000; i++) {
		ncclComm_t comm = new_comm(0, 2), child;
		assert_int_equal(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
		assert_int_equal(reduce(child, 3), ncclSuccess);
		assert_int_equal(ncclCommDestroy(child), ncclSuccess);
		assert_int_equal(ncclCommFinalize(comm), ncclSuccess);
		assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
	}
	pthread_join(thread, NULL);
}

static void test_communicator_that_cannot_be_revoked_stays_ours(void **state)
{
	ncclComm_t comm = set_up_comm(0, 2), child = NULL;

	assert_int_equal(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclInvalidUsage);
	assert_int_equal(ncclCommShrink(comm, (int[]){ 1 }, 1, &child, NULL, NCCL_SHRINK_ABORT), ncclInvalidUsage);
	assert_null(strstr(shunt_mock_log(), "abort"));
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));
	ncclCommDestroy(comm);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest older[] = { cmocka_unit_test_setup(
	    test_communicator_that_cannot_be_revoked_stays_ours, setup) };

	if (argc > 1 && !strcmp(argv[1], "first"))
		return first_call();
	if (argc > 1 && !strcmp(argv[1], "older"))
		return cmocka_run_group_tests_name("older", older, NULL, NULL);
	tests_each(setup, shunt_mock_teardown);
	return tests_run(NULL, NULL);
}
