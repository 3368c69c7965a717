/* SPDX-License-Identifier: MIT */
/* The shim between a client and a libnccl that records calls. SHUNT_NCCL_LIB names the fake. */
#include <dlfcn.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <pthread.h>
#include <cmocka.h>
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/shim/mock_core.h"
#include "shim/nccl/abi.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

static struct {
	__typeof__(fake_nccl_log) *log;
	__typeof__(fake_nccl_reset) *reset;
	__typeof__(fake_nccl_fail_next) *fail_next;
	__typeof__(fake_nccl_late) *late;
	__typeof__(fake_nccl_launches) *launches;
	__typeof__(fake_nccl_init_late) *init_late;
	__typeof__(fake_nccl_windows_unwritten) *windows_unwritten;
} fake;

static char a[8], b[8]; /* never touched */

static int setup(void **state)
{
	void *lib;
	int version;

	assert_int_equal(ncclGetVersion(&version), ncclSuccess); /* opens the fake */
	lib = dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(lib);
	fake.log = dlsym(lib, "fake_nccl_log");
	fake.reset = dlsym(lib, "fake_nccl_reset");
	fake.fail_next = dlsym(lib, "fake_nccl_fail_next");
	fake.late = dlsym(lib, "fake_nccl_late");
	fake.launches = dlsym(lib, "fake_nccl_launches");
	fake.init_late = dlsym(lib, "fake_nccl_init_late");
	fake.windows_unwritten = dlsym(lib, "fake_nccl_windows_unwritten");
	fake.reset();
	shunt_mock_reset();
	return 0;
}

static ncclComm_t new_comm(int rank, int nranks)
{
	ncclUniqueId id;
	ncclComm_t comm = NULL;

	assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
	assert_int_equal(ncclCommInitRank(&comm, nranks, id, rank), ncclSuccess);
	assert_non_null(comm);
	return comm;
}

/* A communicator whose history is forgotten. */
static ncclComm_t unused_comm(int rank, int nranks)
{
	ncclComm_t comm = new_comm(rank, nranks);

	fake.reset();
	shunt_mock_reset();
	return comm;
}

/* The same, and set up: before that a group keeps back even what is forwarded. */
static ncclComm_t set_up_comm(int rank, int nranks)
{
	ncclComm_t comm = new_comm(rank, nranks);

	assert_int_equal(ncclAllReduce(a, b, 1, ncclInt8, ncclSum, comm, NULL), ncclSuccess);
	fake.reset();
	shunt_mock_reset();
	return comm;
}

/* The same, non-blocking. */
static ncclComm_t nonblocking_comm(int rank, int nranks)
{
	ncclConfig_t config = { .size = 24, .magic = SHUNT_NCCL_CONFIG_MAGIC, .version = 21400, .blocking = 0 };
	ncclResult_t result;
	ncclUniqueId id;
	ncclComm_t comm = NULL;

	assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
	assert_int_equal(ncclCommInitRankConfig(&comm, nranks, id, rank, &config), ncclInProgress);
	do
		assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	while (result == ncclInProgress);
	fake.reset();
	shunt_mock_reset();
	return comm;
}

static ncclResult_t reduce(ncclComm_t comm, size_t count)
{
	return ncclAllReduce(a, b, count, ncclFloat32, ncclSum, comm, NULL);
}

static void test_version_is_the_real_one(void **state)
{
	int version = 0;

	assert_int_equal(ncclGetVersion(&version), ncclSuccess);
	assert_int_equal(version, 22809);
	assert_int_equal(ncclGetVersion(NULL), ncclInvalidArgument);
	assert_string_equal(ncclGetErrorString(ncclSuccess), "fake: no error");
	assert_non_null(strstr(shunt_real_nccl_path(), "libnccl"));
}

static void test_init_creates_ours_before_and_names_it_by_the_id(void **state)
{
	ncclComm_t comm = new_comm(1, 2);

	assert_non_null(strstr(shunt_mock_log(), "create 1/2 rank 1/2 device -1"));
	/* Whoever comes first finds a rank that knows all of itself, whether or not the program has called. */
	assert_non_null(strstr(shunt_mock_log(), "set_rank 1/2 device 1\n"));
	assert_int_equal(shunt_mock_alive(), 1);
	ncclCommDestroy(comm);
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_init_that_fails_leaves_nothing(void **state)
{
	ncclUniqueId id = { { 0 } };
	ncclComm_t comm = NULL;

	fake.fail_next("CommInitRank", ncclSystemError);
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 0), ncclSystemError);
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_config_of_an_old_caller_is_read_within_its_size(void **state)
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

static void test_allreduce_small_is_ours_large_is_forwarded(void **state)
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

static void test_allreduce_bad_calls_get_the_real_code(void **state)
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

static void test_allreduce_error_of_ours_is_translated(void **state)
{
	ncclComm_t comm = unused_comm(0, 2);

	shunt_mock_setup_result(-EOWNERDEAD);
	assert_int_equal(reduce(comm, 5), ncclRemoteError);
	ncclCommDestroy(comm);
}

static void test_forward_returns_the_real_code_unchanged(void **state)
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

static void test_unknown_handle_goes_through_untouched(void **state)
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

static void test_reentry_is_counted_once(void **state)
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

static void test_missing_in_the_real_library_is_invalid_usage(void **state)
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

static void test_stub_keeps_every_argument(void **state)
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

static void test_group_runs_ours_after_the_real_end(void **state)
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
static void test_group_nonblocking_runs_ours_before_the_real_end(void **state)
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

static void test_group_nested_acts_at_the_outermost_end(void **state)
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

static void test_group_error_drops_ours_and_is_returned(void **state)
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
static void test_group_without_forwarded_calls_leaves_the_real_library_alone(void **state)
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

static void test_group_opens_the_real_one_once_with_the_first_forwarded_call(void **state)
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
static void test_group_opens_the_real_one_for_every_kind_of_call(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

/* The program hears of it where the real library was first needed. */
static void test_group_whose_real_one_cannot_be_opened_fails(void **state)
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

static void test_group_error_of_ours_drops_the_real_one(void **state)
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
static void test_group_of_many_calls_keeps_them_all_in_order(void **state)
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

static void test_group_belongs_to_its_thread(void **state)
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

static void test_group_setup_that_declines_forwards_inside(void **state)
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

static void test_group_sets_up_all_local_ranks_together(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_group_simulate_launches_nothing(void **state)
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
static void test_group_simulate_passes_children_on(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_group_init_that_fails_drops_the_entry(void **state)
{
	ncclUniqueId id = { { 0 } };
	ncclComm_t comm;

	ncclGroupStart();
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
	fake.fail_next("GroupEnd", ncclSystemError);
	assert_int_equal(ncclGroupEnd(), ncclSystemError);
	assert_int_equal(shunt_mock_alive(), 0);
}

/* The real one is at it still, and would warn. */
static void test_group_init_nonblocking_asks_nothing_too_early(void **state)
{
	ncclConfig_t config = { .size = 24, .magic = SHUNT_NCCL_CONFIG_MAGIC, .version = 21400, .blocking = 0 };
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

/*
 * A thread of NCCL's writes the handle some time after success was returned; what stands in its place until then is no
 * name.
 */
static void test_window_whose_handle_comes_late_goes_with_the_unnamed(void **state)
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

static void test_user_op_is_remembered_by_value(void **state)
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

static void test_split_blocking_knows_the_child_at_once(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_split_in_a_group_is_known_at_its_end(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_split_outlives_a_parent_that_ends_in_its_group(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_split_late_is_known_through_the_parent_state(void **state)
{
	ncclComm_t comm = nonblocking_comm(0, 4), child, moved;
	ncclResult_t result;

	fake.late(30);
	assert_int_equal(ncclCommSplit(comm, 1, 0, &child, NULL), ncclInProgress);
	do {
		pause_us(PAUSE_POLL, 1000);
		assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	} while (result == ncclInProgress);
	moved = child;
	child = NULL; /* our entry does not depend on the place any more */
	assert_int_equal(reduce(moved, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(moved);
	ncclCommDestroy(comm);
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_split_late_is_known_without_asking_the_parent(void **state)
{
	ncclComm_t comm = nonblocking_comm(0, 4), child;

	fake.late(20);
	ncclGroupStart();
	ncclCommSplit(comm, 1, 0, &child, NULL);
	assert_int_equal(ncclGroupEnd(), ncclInProgress);
	while (!__atomic_load_n(&child, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 1000); /* as PyTorch does */
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
	assert_int_equal(shunt_mock_alive(), 0);
}

/* The place may be gone as soon as the handle was seen there. */
static void test_split_late_is_known_wherever_the_handle_was_moved(void **state)
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
static void test_split_whose_parent_dies_is_forgotten(void **state)
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

static void test_split_that_fails_leaves_nothing(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

/* Set in a file of NCCL's or in the environment, it counts for our idea of what blocks. */
static void test_settings_of_the_environment_win_over_the_program(void **state)
{
	ncclComm_t comm, child;
	ncclResult_t result;
	ncclUniqueId id;

	setenv("NCCL_COMM_BLOCKING", "0", 1);
	setenv("NCCL_MAX_CTAS", "3", 1);
	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRank(&comm, 4, id, 0), ncclSuccess); /* the fake does not look */
	assert_non_null(strstr(shunt_mock_log(), "ctas 3"));
	fake.late(10);
	assert_int_equal(ncclCommSplit(comm, 0, 0, &child, NULL), ncclInProgress);
	do
		assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
	while (result == ncclInProgress);
	assert_int_equal(reduce(child, 5), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5"));
	unsetenv("NCCL_COMM_BLOCKING");
	unsetenv("NCCL_MAX_CTAS");
	ncclCommDestroy(child);
	ncclCommDestroy(comm);
}

/* A child without a configuration has its parent's, one with a configuration has NCCL's defaults for the rest. */
static void test_children_inherit_the_configuration_only_as_a_whole(void **state)
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

static void test_grow_gives_old_and_new_ranks_one_id(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_memory_statistics_count_ours(void **state)
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
static void test_finalize_waits_only_where_the_communicator_blocks(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void *abort_soon(void *comm)
{
	while (!strstr(shunt_mock_log(), "quiet"))
		pause_us(PAUSE_POLL, 1000);
	return ncclCommAbort(comm) ? comm : NULL;
}

static void test_finalize_ends_when_another_thread_aborts(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

static void test_children_have_the_same_id_on_all_ranks(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

/* Numbers of ranks that cannot be are for NCCL to judge, and nothing is read from an array that may be shorter. */
static void test_shrink_reads_no_more_ranks_than_there_are(void **state)
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

static void test_counts_whose_bytes_wrap_are_refused(void **state)
{
	ncclComm_t comm = unused_comm(0, 2);

	assert_int_equal(reduce(comm, SIZE_MAX), ncclInvalidArgument);
	assert_int_equal(reduce(comm, (size_t)1 << 62), ncclInvalidArgument); /* times 4 it would be 0 */
	assert_non_null(strstr(ncclGetLastError(NULL), "larger than any memory"));
	assert_string_equal(shunt_mock_log(), "");
	assert_string_equal(fake.log(), "");
	ncclCommDestroy(comm);
}

static void test_async_error_merges_ours(void **state)
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

static void test_abort_goes_to_ours_first(void **state)
{
	ncclComm_t comm = unused_comm(0, 2);

	assert_int_equal(ncclCommAbort(comm), ncclSuccess);
	assert_string_equal(shunt_mock_log(), "abort\ndestroy\n");
	assert_string_equal(fake.log(), "CommAbort\n");
	assert_int_equal(ncclCommAbort(NULL), ncclSuccess);
	assert_int_equal(ncclCommDestroy(NULL), ncclSuccess);
}

static void test_suspended_and_revoked_are_not_ours(void **state)
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

static void test_path_of_tells_the_path(void **state)
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

static void test_counters_without_room_are_refused(void **state)
{
	ncclComm_t comm = unused_comm(0, 2);
	size_t n;

	assert_int_equal(shunt_counters(comm, NULL, 0, &n), 0);
	assert_int_equal(shunt_counters(comm, NULL, 3, &n), -EINVAL);
	assert_int_equal(shunt_counters(comm, NULL, 0, NULL), -EINVAL);
	assert_int_equal(shunt_counters(NULL, NULL, 0, &n), -ENOENT);
	ncclCommDestroy(comm);
}

static void test_last_error_is_of_whoever_failed_last(void **state)
{
	ncclComm_t comm = unused_comm(0, 2);

	reduce(NULL, 5);
	assert_string_equal(ncclGetLastError(NULL), "fake: the communicator is NULL");
	ncclAllReduce(a, NULL, 5, ncclInt8, ncclSum, comm, NULL);
	assert_non_null(strstr(ncclGetLastError(NULL), "buffer is NULL"));
	ncclCommDestroy(comm);
}

/* Not of the call that makes the real group fail. */
static void test_last_error_of_a_group_is_its_cause(void **state)
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

static void test_memory_goes_to_the_real_library(void **state)
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

static void test_many_cycles_leave_nothing(void **state)
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
	assert_int_equal(shunt_mock_alive(), 0);
}

/* A later header's configuration, with a vendor's option. */
static void test_call_configuration_reaches_nccl_whole_or_short(void **state)
{
	ncclConfigExt_t ext = { .value.i = 7 };
	struct {
		ncclCollConfig_t known;
		char later[16];
	} config = { .known = { .size = sizeof(config),
		         .magic = SHUNT_NCCL_CONFIG_MAGIC,
		         .version = 23300,
		         .ext = &ext,
		         .minCTAs = NCCL_CONFIG_UNDEF_INT,
		         .maxCTAs = NCCL_CONFIG_UNDEF_INT,
		         .nvlsCTAs = NCCL_CONFIG_UNDEF_INT,
		         .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		         .forceAlgSelection = 1,
		         .CTAPolicy = NCCL_CONFIG_UNDEF_INT } };
	ncclComm_t comm = unused_comm(0, 2);

	memset(config.later, 1, sizeof(config.later));
	/*
	 * Behind a call that may be NCCL's it is kept until the group's end, when the program may have other things
	 * there.
	 */
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, &config.known), ncclSuccess);
	ext.value.i = 8;
	memset(config.later, 2, sizeof(config.later));
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(fake.log(), "config of 72, later 0, option -1\nAllReduce 5000"));
	fake.reset();
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, &config.known), ncclSuccess);
	assert_non_null(strstr(fake.log(), "config of 88, later 32, option 8\nAllReduce 5000"));
	ncclCommDestroy(comm);
}

/* Ours only if it asks for nothing that we do not know. */
static void test_call_configuration_of_every_version_is_understood_or_forwarded(void **state)
{
	struct {
		ncclCollConfig_t c;
		char later[8];
	} room = { .c = { .size = sizeof(ncclCollConfig_t),
		       .magic = SHUNT_NCCL_CONFIG_MAGIC,
		       .version = 23200,
		       .minCTAs = NCCL_CONFIG_UNDEF_INT,
		       .maxCTAs = 2,
		       .nvlsCTAs = NCCL_CONFIG_UNDEF_INT,
		       .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		       .forceAlgSelection = 1,
		       .CTAPolicy = NCCL_CONFIG_UNDEF_INT } };
	ncclCollConfig_t *config = &room.c;
	const size_t first = offsetof(ncclCollConfig_t, launchCompletionEvent); /* 2.31's ends here, and its memory */
	ncclComm_t comm = unused_comm(0, 2);
	void *earlier = malloc(first);

	assert_int_equal(ncclAllReduceConfig(a, b, 5, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));
	shunt_mock_reset();
	config->size = first;
	memcpy(earlier, config, first);
	assert_int_equal(ncclAllReduceConfig(a, b, 6, ncclInt8, ncclSum, comm, NULL, earlier), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 6 0\n"));
	free(earlier);

	shunt_mock_reset();
	config->size = sizeof(*config);
	config->launchCompletionEvent = config;
	assert_int_equal(ncclAllReduceConfig(a, b, 7, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_string_equal(shunt_mock_log(), "run 7 0 event\n");
	/* What is too large for us is NCCL's, with its event. */
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_non_null(strstr(fake.log(), "config of 72, later 0, option -1\nAllReduce 5000 "));
	config->launchCompletionEvent = NULL;
	config->size = sizeof(room);
	shunt_mock_reset();
	assert_int_equal(ncclAllReduceConfig(a, b, 8, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	config->size = first - 8; /* NCCL refuses it */
	assert_int_equal(ncclAllReduceConfig(a, b, 9, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_non_null(strstr(fake.log(), "AllReduce 8 "));
	assert_non_null(strstr(fake.log(), "AllReduce 9 "));
	ncclCommDestroy(comm);
}

/* Names of ours are ours, names of NCCL's are NCCL's; it gets them as they were at the call. */
static void test_call_configuration_selects_among_both_libraries(void **state)
{
	ncclCollConfig_t config = { .size = sizeof(config),
		.magic = SHUNT_NCCL_CONFIG_MAGIC,
		.version = 23200,
		.minCTAs = NCCL_CONFIG_UNDEF_INT,
		.maxCTAs = NCCL_CONFIG_UNDEF_INT,
		.nvlsCTAs = NCCL_CONFIG_UNDEF_INT,
		.cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		.forceAlgSelection = 1,
		.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY };
	ncclComm_t comm = unused_comm(0, 2);
	char name[] = "RING_LL,TREE_LL";

	assert_int_equal(reduce(comm, 5), ncclSuccess);
	shunt_mock_reset();
	fake.reset();
	config.algSelection = "RING_LL,oneshot";
	assert_int_equal(ncclAllReduceConfig(a, b, 5, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	config.forceAlgSelection = 0;
	config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;
	assert_int_equal(ncclAllReduceConfig(a, b, 6, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
	config.algSelection = "";
	assert_int_equal(ncclAllReduceConfig(a, b, 7, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	assert_string_equal(
	    shunt_mock_log(), "run 5 0 only oneshot policy 3\nrun 6 0 rather oneshot policy 5\nrun 7 0 policy 1\n");
	assert_string_equal(fake.log(), "");
	config.algSelection = "RING_LL"; /* a wish is NCCL's, too */
	assert_int_equal(ncclAllReduceConfig(a, b, 8, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	assert_non_null(strstr(fake.log(), "selection RING_LL, forced 0\nAllReduce 8 "));
	config.algSelection = NULL;
	config.CTAPolicy = 4;
	assert_int_equal(ncclAllReduceConfig(a, b, 9, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	assert_non_null(strstr(fake.log(), "AllReduce 9 "));
	ncclCommDestroy(comm);

	comm = unused_comm(0, 2); /* undecided, so that the group keeps the call */
	config.CTAPolicy = NCCL_CONFIG_UNDEF_INT;
	config.algSelection = name;
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	memset(name, 'x', sizeof(name) - 1);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(fake.log(), "selection RING_LL,TREE_LL, forced 0\nAllReduce 5000 "));
	ncclCommDestroy(comm);
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
	assert_int_equal(shunt_mock_alive(), 0);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_version_is_the_real_one),
		TEST(test_init_creates_ours_before_and_names_it_by_the_id),
		TEST(test_init_that_fails_leaves_nothing),
		TEST(test_config_of_an_old_caller_is_read_within_its_size),
		TEST(test_allreduce_small_is_ours_large_is_forwarded),
		TEST(test_allreduce_bad_calls_get_the_real_code),
		TEST(test_allreduce_error_of_ours_is_translated),
		TEST(test_forward_returns_the_real_code_unchanged),
		TEST(test_unknown_handle_goes_through_untouched),
		TEST(test_reentry_is_counted_once),
		TEST(test_missing_in_the_real_library_is_invalid_usage),
		TEST(test_stub_keeps_every_argument),
		TEST(test_group_runs_ours_after_the_real_end),
		TEST(test_group_nonblocking_runs_ours_before_the_real_end),
		TEST(test_group_nested_acts_at_the_outermost_end),
		TEST(test_group_error_drops_ours_and_is_returned),
		TEST(test_group_without_forwarded_calls_leaves_the_real_library_alone),
		TEST(test_group_opens_the_real_one_once_with_the_first_forwarded_call),
		TEST(test_group_opens_the_real_one_for_every_kind_of_call),
		TEST(test_group_whose_real_one_cannot_be_opened_fails),
		TEST(test_group_error_of_ours_drops_the_real_one),
		TEST(test_group_of_many_calls_keeps_them_all_in_order),
		TEST(test_group_belongs_to_its_thread),
		TEST(test_group_setup_that_declines_forwards_inside),
		TEST(test_group_sets_up_all_local_ranks_together),
		TEST(test_group_simulate_launches_nothing),
		TEST(test_group_simulate_passes_children_on),
		TEST(test_group_init_that_fails_drops_the_entry),
		TEST(test_group_init_nonblocking_asks_nothing_too_early),
		TEST(test_user_op_is_remembered_by_value),
		TEST(test_split_blocking_knows_the_child_at_once),
		TEST(test_split_in_a_group_is_known_at_its_end),
		TEST(test_split_outlives_a_parent_that_ends_in_its_group),
		TEST(test_split_late_is_known_through_the_parent_state),
		TEST(test_split_late_is_known_without_asking_the_parent),
		TEST(test_split_late_is_known_wherever_the_handle_was_moved),
		TEST(test_split_whose_parent_dies_is_forgotten),
		TEST(test_split_that_fails_leaves_nothing),
		TEST(test_settings_of_the_environment_win_over_the_program),
		TEST(test_children_inherit_the_configuration_only_as_a_whole),
		TEST(test_grow_gives_old_and_new_ranks_one_id),
		TEST(test_memory_statistics_count_ours),
		TEST(test_finalize_waits_only_where_the_communicator_blocks),
		TEST(test_finalize_ends_when_another_thread_aborts),
		TEST(test_children_have_the_same_id_on_all_ranks),
		TEST(test_shrink_reads_no_more_ranks_than_there_are),
		TEST(test_counts_whose_bytes_wrap_are_refused),
		TEST(test_async_error_merges_ours),
		TEST(test_abort_goes_to_ours_first),
		TEST(test_suspended_and_revoked_are_not_ours),
		TEST(test_path_of_tells_the_path),
		TEST(test_counters_without_room_are_refused),
		TEST(test_last_error_is_of_whoever_failed_last),
		TEST(test_last_error_of_a_group_is_its_cause),
		TEST(test_memory_goes_to_the_real_library),
		TEST(test_window_whose_handle_comes_late_goes_with_the_unnamed),
		TEST(test_many_cycles_leave_nothing),
	};

	const struct CMUnitTest older[] = { TEST(test_communicator_that_cannot_be_revoked_stays_ours) };
	const struct CMUnitTest newer[] = { TEST(test_call_configuration_reaches_nccl_whole_or_short),
		TEST(test_call_configuration_of_every_version_is_understood_or_forwarded),
		TEST(test_call_configuration_selects_among_both_libraries) };

	if (argc > 1 && !strcmp(argv[1], "first"))
		return first_call();
	if (argc > 1 && !strcmp(argv[1], "older"))
		return cmocka_run_group_tests_name("older", older, NULL, NULL);
	if (argc > 1 && !strcmp(argv[1], "newer"))
		return cmocka_run_group_tests_name("newer", newer, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
