/* SPDX-License-Identifier: MIT */
#include "tests/shim/mock_core.h"
#include "tests/shim/nonblocking.h"
#include "tests/shim/overlay_fixture.h"
#include "tests/support/test.h"

struct overlay_fake fake;

char a[8], b[8];

int setup(void **state)
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

ncclComm_t new_comm(int rank, int nranks)
{
	ncclUniqueId id;
	ncclComm_t comm = NULL;

	assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
	assert_int_equal(ncclCommInitRank(&comm, nranks, id, rank), ncclSuccess);
	assert_non_null(comm);
	return comm;
}

ncclComm_t unused_comm(int rank, int nranks)
{
	ncclComm_t comm = new_comm(rank, nranks);

	fake.reset();
	shunt_mock_reset();
	return comm;
}

ncclComm_t set_up_comm(int rank, int nranks)
{
	ncclComm_t comm = new_comm(rank, nranks);

	assert_int_equal(ncclAllReduce(a, b, 1, ncclInt8, ncclSum, comm, NULL), ncclSuccess);
	fake.reset();
	shunt_mock_reset();
	return comm;
}

ncclComm_t nonblocking_comm(int rank, int nranks)
{
	ncclConfig_t config = nonblocking_config();
	ncclUniqueId id;
	ncclComm_t comm = NULL;

	assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
	assert_int_equal(ncclCommInitRankConfig(&comm, nranks, id, rank, &config), ncclInProgress);
	wait_async(comm);
	fake.reset();
	shunt_mock_reset();
	return comm;
}

ncclResult_t reduce(ncclComm_t comm, size_t count)
{
	return ncclAllReduce(a, b, count, ncclFloat32, ncclSum, comm, NULL);
}
