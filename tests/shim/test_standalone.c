/* SPDX-License-Identifier: MIT */
/* The shim without a real NCCL, over the mock core: ranks are threads. */
#include "tests/shim/mock_core.h"
#include "tests/shim/nonblocking.h"
#include "shim/nccl/abi.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"

static char a[8] = "abcdefg", b[8];

struct rank {
	pthread_t thread;
	ncclUniqueId id;
	int rank, nranks;
	int color, key;
	ncclComm_t comm;
	int child_rank, child_count;
	ncclResult_t result;
};

static int setup(void **state)
{
	setenv("SHUNT_NCCL_LIB", "none", 1);
	shunt_mock_reset();
	return 0;
}

static void start(struct rank *ranks, int n, void *(*run)(void *))
{
	ncclUniqueId id;

	assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
	for (int i = 0; i < n; i++) {
		ranks[i].id = id;
		ranks[i].rank = i;
		ranks[i].nranks = n;
		pthread_create(&ranks[i].thread, NULL, run, &ranks[i]);
	}
	for (int i = 0; i < n; i++)
		pthread_join(ranks[i].thread, NULL);
}

static void *init(void *arg)
{
	struct rank *r = arg;

	r->result = ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank);
	return NULL;
}

TEST(test_standalone_init_knows_rank_and_count)
{
	struct rank r[3] = { { 0 } };
	int version, value;
	uint64_t magic;
	ncclResult_t async;

	assert_int_equal(ncclGetVersion(&version), ncclSuccess);
	assert_int_equal(version, 22809);
	assert_null(shunt_real_nccl_path());
	start(r, 3, init);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(r[i].result, ncclSuccess);
		memcpy(&magic, r[i].comm, sizeof(magic));
		assert_true(magic == SHUNT_NCCL_COMM_MAGIC);
		assert_int_equal(ncclCommUserRank(r[i].comm, &value), ncclSuccess);
		assert_int_equal(value, i);
		assert_int_equal(ncclCommCount(r[i].comm, &value), ncclSuccess);
		assert_int_equal(value, 3);
		assert_int_equal(ncclCommCuDevice(r[i].comm, &value), ncclSuccess);
		assert_int_equal(ncclCommGetAsyncError(r[i].comm, &async), ncclSuccess);
		assert_int_equal(async, ncclSuccess);
		assert_int_equal(ncclAllReduce(a, b, 4, ncclFloat32, ncclSum, r[i].comm, NULL), ncclSuccess);
	}
	assert_non_null(strstr(shunt_mock_log(), "run 4 0"));
	for (int i = 0; i < 3; i++)
		assert_int_equal(ncclCommDestroy(r[i].comm), ncclSuccess);
	assert_int_equal(ncclCommDestroy(r[0].comm), ncclInvalidArgument);
}

TEST(test_standalone_bad_arguments_are_refused)
{
	ncclUniqueId id;
	ncclComm_t comm = NULL;
	ncclConfig_t config = { .size = sizeof(config), .magic = 1 };
	int value;

	assert_int_equal(ncclGetUniqueId(NULL), ncclInvalidArgument);
	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRank(NULL, 2, id, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
	assert_int_equal(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
	assert_int_equal(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument);
	assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInvalidArgument);
	assert_int_equal(ncclCommInitAll(&comm, 1, (int[]){ 99 }), ncclInvalidArgument);
	assert_int_equal(ncclCommInitAll(&comm, 2, (int[]){ 1, 1 }), ncclInvalidUsage);
	assert_int_equal(ncclAllReduce(a, b, 1, ncclInt8, ncclSum, NULL, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommCount(NULL, &value), ncclInvalidArgument);
	assert_int_equal(ncclCommDestroy(NULL), ncclSuccess);
	assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
	assert_int_equal(ncclCommCount(comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(a, b, 1, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(a, b, 1, ncclInt8, (ncclRedOp_t)9, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(a, NULL, 1, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

TEST(test_standalone_counts_whose_bytes_wrap_are_refused)
{
	static const size_t counts[] = { SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 4, (size_t)1 << 50 };
	ncclUniqueId id;
	ncclComm_t comm = NULL;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
	shunt_mock_reset();
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		assert_int_equal(ncclAllReduce(a, b, counts[i], ncclFloat32, ncclSum, comm, NULL), ncclInvalidArgument);
		assert_int_equal(ncclAllGather(a, b, counts[i], ncclInt8, comm, NULL), ncclInvalidArgument);
		assert_int_equal(ncclBroadcast(a, b, counts[i], ncclFloat64, 0, comm, NULL), ncclInvalidArgument);
		assert_int_equal(ncclGroupStart(), ncclSuccess);
		assert_int_equal(ncclSend(a, counts[i], ncclFloat32, 0, comm, NULL), ncclInvalidArgument);
		assert_int_equal(ncclRecv(b, counts[i], ncclFloat32, 0, comm, NULL), ncclInvalidArgument);
		assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
		assert_non_null(strstr(ncclGetLastError(NULL), "larger than any memory"));
	}
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

TEST(test_standalone_mismatched_count_fails)
{
	struct rank r[2] = { { .rank = 0, .nranks = 2 }, { .rank = 1, .nranks = 3 } };

	ncclGetUniqueId(&r[0].id);
	r[1].id = r[0].id;
	pthread_create(&r[0].thread, NULL, init, &r[0]);
	while (!shunt_mock_waiting()) /* so that the first count is rank 0's */
		pause_us(PAUSE_POLL, 1000);
	assert_int_equal(ncclCommInitRank(&r[1].comm, 3, r[1].id, 1), ncclInvalidArgument);
	assert_null(r[1].comm);
	r[1].nranks = 2;
	init(&r[1]); /* the right one still gets in */
	pthread_join(r[0].thread, NULL);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(r[i].result, ncclSuccess);
		ncclCommDestroy(r[i].comm);
	}
}

TEST(test_standalone_unsupported_is_invalid_usage_once_logged)
{
	ncclComm_t comm;

	assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
	assert_int_equal(ncclSend(a, 1, ncclInt8, 0, comm, NULL), ncclInvalidUsage);
	assert_non_null(strstr(ncclGetLastError(NULL), "send of 1"));
	assert_int_equal(((ncclResult_t (*)(void))dlsym(RTLD_DEFAULT, "ncclDevCommCreate"))(), ncclInvalidUsage);
	assert_non_null(strstr(ncclGetLastError(NULL), "ncclDevCommCreate"));
	assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
	ncclCommDestroy(comm);
}

/* A program that asks for a later NCCL's functions at its start gets the truth, and no line. */
TEST(test_standalone_answers_what_clients_ask)
{
	struct {
		ncclCommProperties_t known;
		char later[8];
	} p = { .known = { .size = sizeof(p), .magic = SHUNT_NCCL_CONFIG_MAGIC, .version = 23200 } };
	char before[256];
	ncclComm_t comms[2];
	uint64_t bytes, hash;
	int version;

	assert_int_equal(ncclCommInitAll(comms, 2, (int[]){ 0, 1 }), ncclSuccess);
	snprintf(before, sizeof(before), "%s", ncclGetLastError(NULL));
	memset(p.later, 7, sizeof(p.later));
	p.known.deviceApiSupport = p.known.multimemSupport = p.known.hostRmaSupport = p.known.cftSupport = true;
	p.known.ginType = 5;
	assert_int_equal(ncclCommQueryProperties(comms[1], &p.known), ncclSuccess);
	assert_true(p.known.size == sizeof(p) && p.known.version == 23200 && p.later[0] == 7);
	assert_true(p.known.rank == 1 && p.known.nRanks == 2 && p.known.cudaDev == 1 && p.known.nvmlDev == -1);
	assert_false(
	    p.known.deviceApiSupport || p.known.multimemSupport || p.known.hostRmaSupport || p.known.cftSupport);
	assert_true(p.known.ginType == 0 && p.known.nLsaTeams == 1 && p.known.devCommRuntimeVersionSize == 0);
	hash = p.known.commHash;
	assert_true(hash != 0);
	p.known.size = 56; /* 2.29's */
	p.known.commHash = 9;
	assert_int_equal(ncclCommQueryProperties(comms[0], &p.known), ncclSuccess);
	assert_true(p.known.rank == 0 && p.known.commHash == 9);
	p.known.size = sizeof(p.known);
	assert_int_equal(ncclCommQueryProperties(comms[0], &p.known), ncclSuccess);
	assert_true(p.known.commHash == hash); /* of the communicator, not of the rank */
	assert_int_equal(ncclCommMemStats(comms[0], ncclStatGpuMemTotal, &bytes), ncclSuccess);
	assert_string_equal(ncclGetLastError(NULL), before);

	p.known.magic = 0;
	assert_int_equal(ncclCommQueryProperties(comms[0], &p.known), ncclInvalidArgument);
	assert_int_equal(ncclCommQueryProperties(comms[0], NULL), ncclInvalidArgument);
	p.known.magic = SHUNT_NCCL_CONFIG_MAGIC;
	assert_int_equal(ncclCommQueryProperties(NULL, &p.known), ncclInvalidArgument);
	setenv("SHUNT_NCCL_VERSION", "23203", 1);
	assert_int_equal(ncclGetVersion(&version), ncclSuccess);
	assert_int_equal(version, 23203);
	unsetenv("SHUNT_NCCL_VERSION");
	for (int i = 0; i < 2; i++)
		ncclCommDestroy(comms[i]);
}

TEST(test_standalone_wrong_values_are_named)
{
	float factor = 2;
	ncclRedOp_t op;
	ncclComm_t comm;

	assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
	assert_int_equal(ncclAllReduce(a, b, 8, (ncclDataType_t)99, ncclSum, comm, NULL), ncclInvalidArgument);
	assert_string_equal(ncclGetLastError(NULL), "allreduce: there is no data type 99");
	assert_int_equal(ncclBroadcast(a, b, 8, ncclInt8, 5, comm, NULL), ncclInvalidArgument);
	assert_string_equal(ncclGetLastError(NULL), "broadcast: there is no rank 5 among 1");
	assert_int_equal(ncclAllReduce(a, b, 8, ncclInt8, (ncclRedOp_t)77, comm, NULL), ncclInvalidArgument);
	assert_string_equal(ncclGetLastError(NULL), "allreduce: operator 77 is none of this communicator's");
	assert_int_equal(
	    ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
	assert_int_equal(ncclAllReduce(a, b, 8, ncclInt8, op, comm, NULL), ncclInvalidArgument);
	assert_non_null(strstr(ncclGetLastError(NULL), " was made for another data type"));
	assert_int_equal(
	    ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, (ncclScalarResidence_t)9, comm), ncclInvalidArgument);
	assert_non_null(strstr(ncclGetLastError(NULL), "residence 9"));
	ncclCommDestroy(comm);
}

TEST(test_standalone_one_rank_copies)
{
	ncclComm_t comm;

	assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
	memset(b, 0, sizeof(b));
	assert_int_equal(ncclAllReduce(a, b, 8, ncclInt8, ncclAvg, comm, NULL), ncclSuccess);
	assert_memory_equal(a, b, 8);
	assert_int_equal(ncclAllReduce(a, a, 8, ncclInt8, ncclSum, comm, NULL), ncclSuccess);
	ncclCommDestroy(comm);
}

TEST(test_standalone_group_inits_and_reduces_from_one_thread)
{
	ncclComm_t comms[4];
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclGroupStart(), ncclSuccess);
	for (int i = 0; i < 4; i++)
		assert_int_equal(ncclCommInitRank(&comms[i], 4, id, i), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	setenv("SHUNT_MOCK_RENDEZVOUS", "1", 1);
	ncclGroupStart();
	for (int i = 0; i < 4; i++)
		assert_int_equal(ncclAllReduce(a, b, 7, ncclInt8, ncclSum, comms[i], NULL), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	unsetenv("SHUNT_MOCK_RENDEZVOUS");
	assert_non_null(strstr(shunt_mock_log(), "run 7 0\nrun 7 0\nrun 7 0\nrun 7 0\n"));

	/* And splits them, in a group too: the odd ones, and the others. */
	ncclComm_t children[4];
	int value;
	ncclGroupStart();
	for (int i = 0; i < 4; i++)
		assert_int_equal(ncclCommSplit(comms[i], i % 2, -i, &children[i], NULL), ncclSuccess);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(ncclCommUserRank(children[i], &value), ncclSuccess);
		assert_int_equal(value, i < 2); /* the key turns the order round */
		ncclCommDestroy(children[i]);
		ncclCommDestroy(comms[i]);
	}
}

TEST(test_standalone_group_error_drops_the_rest)
{
	ncclComm_t comm = (ncclComm_t)1;
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	ncclGroupStart();
	assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
	assert_int_equal(ncclCommInitRank(&comm, 1, id, 5), ncclInvalidArgument);
	assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
	assert_null(comm);
}

static void *split(void *arg)
{
	struct rank *r = arg;
	ncclComm_t child = (ncclComm_t)1;

	init(r);
	if (r->result == ncclSuccess)
		r->result = ncclCommSplit(r->comm, r->color, r->key, &child, NULL);
	r->child_rank = r->child_count = -1;
	if (child) {
		ncclCommUserRank(child, &r->child_rank);
		ncclCommCount(child, &r->child_count);
		ncclCommDestroy(child);
	}
	ncclCommDestroy(r->comm);
	return NULL;
}

TEST(test_standalone_split_sorts_by_key_then_rank)
{
	struct rank r[4] = { { .color = 1, .key = 5 }, { .color = NCCL_SPLIT_NOCOLOR }, { .color = 1, .key = 5 },
		{ .color = 1, .key = -2 } };

	start(r, 4, split);
	for (int i = 0; i < 4; i++)
		assert_int_equal(r[i].result, ncclSuccess);
	assert_int_equal(r[0].child_rank, 1);
	assert_int_equal(r[2].child_rank, 2);
	assert_int_equal(r[3].child_rank, 0);
	assert_int_equal(r[3].child_count, 3);
	assert_int_equal(r[1].child_rank, -1);
}

/* Communicators are made by a group that is only simulated, too, as NCCL does it. */
TEST(test_standalone_simulated_group_makes_its_communicators)
{
	ncclConfig_t config = nonblocking_config();
	ncclSimInfo_t info = { sizeof(info), SHUNT_NCCL_SIM_MAGIC, 22809, 0 };
	ncclComm_t comms[2], children[2];
	ncclUniqueId id;

	for (int blocking = 0; blocking < 2; blocking++) {
		ncclGetUniqueId(&id);
		config.blocking = blocking;
		ncclGroupStart();
		for (int i = 0; i < 2; i++)
			assert_int_equal(ncclCommInitRankConfig(&comms[i], 2, id, i, &config), ncclSuccess);
		assert_int_equal(ncclGroupSimulateEnd(&info), blocking ? ncclSuccess : ncclInProgress);
		for (int round = 0; round < 2; round++) {
			for (int i = 0; i < 2; i++)
				assert_int_equal(wait_async(comms[i]), ncclSuccess);
			ncclGroupStart();
			for (int i = 0; i < 2; i++)
				assert_int_equal(ncclCommSplit(comms[i], 0, i, &children[i], NULL), ncclSuccess);
			assert_int_equal(round ? ncclGroupEnd() : ncclGroupSimulateEnd(NULL),
			    blocking ? ncclSuccess : ncclInProgress);
			for (int i = 0; i < 2; i++) {
				assert_int_equal(wait_async(comms[i]), ncclSuccess);
				assert_int_equal(ncclCommDestroy(children[i]), ncclSuccess);
			}
		}
		/* Not with a structure that nobody initialized. */
		info.magic = 0;
		ncclGroupStart();
		ncclCommSplit(comms[0], 0, 0, &children[0], NULL);
		assert_int_equal(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
		info.magic = SHUNT_NCCL_SIM_MAGIC;
		for (int i = 0; i < 2; i++)
			assert_int_equal(ncclCommDestroy(comms[i]), ncclSuccess);
	}
}

TEST(test_standalone_abort_ends_a_waiting_init)
{
	ncclConfig_t config = nonblocking_config();
	ncclComm_t comm;
	ncclUniqueId id;

	ncclGetUniqueId(&id);
	assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
	assert_int_equal(ncclCommAbort(comm), ncclSuccess);
	for (int i = 0; i < 10000 && shunt_mock_alive(); i++)
		pause_us(PAUSE_POLL, 1000);
}

TEST(test_standalone_user_op_has_a_number_of_its_own)
{
	float two = 2;
	ncclComm_t comms[2];
	ncclRedOp_t op;

	assert_int_equal(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
	assert_int_equal(
	    ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, comms[0]), ncclSuccess);
	assert_true(op >= ncclNumOps);
	assert_int_equal(ncclAllReduce(a, b, 2, ncclFloat32, op, comms[0], NULL), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 2 5 scalar 40000000\n"));
	assert_int_equal(ncclAllReduce(a, b, 2, ncclFloat64, op, comms[0], NULL), ncclInvalidArgument);
	assert_int_equal(ncclAllReduce(a, b, 2, ncclFloat32, op, comms[1], NULL), ncclInvalidArgument);
	assert_int_equal(ncclRedOpDestroy(op, comms[0]), ncclSuccess);
	assert_int_equal(ncclRedOpDestroy(op, comms[0]), ncclInvalidArgument);
	assert_int_equal(
	    ncclRedOpCreatePreMulSum(&op, &two, (ncclDataType_t)12, ncclScalarDevice, comms[0]), ncclInvalidArgument);
	ncclCommDestroy(comms[0]);
	ncclCommDestroy(comms[1]);
}

TEST(test_standalone_memory_and_registration)
{
	ncclComm_t comm;
	ncclWindow_t win = (ncclWindow_t)1;
	void *p, *handle;

	assert_int_equal(ncclMemAlloc(&p, 100), ncclSuccess);
	assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
	assert_int_equal(ncclCommRegister(comm, p, 100, &handle), ncclSuccess);
	assert_int_equal(ncclCommDeregister(comm, handle), ncclSuccess);
	assert_int_equal(ncclCommWindowRegister(comm, p, 100, &win, 0), ncclSuccess);
	assert_non_null(win);
	assert_int_equal(ncclWinGetUserPtr(comm, win, &handle), ncclSuccess);
	assert_ptr_equal(handle, p);
	assert_int_equal(ncclCommWindowDeregister(comm, win), ncclSuccess);
	assert_int_equal(ncclCommWindowDeregister(comm, win), ncclInvalidArgument);
	assert_int_equal(ncclCommWindowDeregister(comm, NULL), ncclSuccess);
	assert_int_equal(ncclWinGetUserPtr(comm, win, &handle), ncclInvalidArgument);
	assert_null(handle);
	assert_int_equal(ncclCommFinalize(comm), ncclSuccess);
	assert_int_equal(ncclCommFinalize(comm), ncclInvalidArgument);
	assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
	assert_int_equal(ncclMemFree(p), ncclSuccess);
	assert_int_equal(ncclMemFree(NULL), ncclSuccess);
	assert_int_equal(ncclMemAlloc(NULL, 1), ncclInvalidArgument);
}

TESTS_EACH(setup, shunt_mock_teardown)
