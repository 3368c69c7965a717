/* SPDX-License-Identifier: MIT */
/*
 * Ranks that wait in vain for one that lives and does not call: SHUNT_TIMEOUT ends the wait. It is long while all is to
 * go well, and short where a rank waits for what does not come.
 */
#include "tests/e2e/ranks.h"
#include "tests/plan/exec_plans.h"
#include "tests/support/limits.h"
#include "tests/support/own.h"
#include "tests/support/test.h"
#include "shunt/shunt.h"

enum { IN_VAIN_MS = 1000 };

static atomic_int *met; /* ranks of a test */

/*
 * The rounds for a plan's memory need every rank's call. Rank 1 makes none, and later another one: that is not to be
 * taken for the first.
 */
static int body_absent_from_plan(struct rank *r)
{
	char *text = plan_twoshot(2, 1, "sum"), reason[256];
	ncclResult_t state = ncclSuccess;
	void *buf = ranks_memory(r, 4096);

	CHECK(shunt_plan_register("mine", text, strlen(text), reason, sizeof(reason)) == 0);
	free(text);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(ncclBroadcast(buf, buf, 16, ncclFloat32, 0, r->comm, r->stream)); /* the set-up */
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (r->rank != 1) {
		limits_set(IN_VAIN_MS, IN_VAIN_MS);
		CHECK(ncclAllReduce(buf, buf, 1024, ncclFloat32, ncclSum, r->comm, r->stream) == ncclRemoteError);
		NCCL(ncclCommGetAsyncError(r->comm, &state));
		CHECK(state == ncclRemoteError);
	}
	ranks_barrier(r, met);
	CHECK(ncclBroadcast(buf, buf, 16, ncclFloat32, 0, r->comm, r->stream) ==
	    (r->rank ? ncclSuccess : ncclRemoteError));
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_plan_that_a_rank_does_not_call_breaks_the_communicator)
{
	*met = 0;
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_absent_from_plan), 0);
}

static int body_late_peer(struct rank *r)
{
	void *buf = ranks_memory(r, 64);
	ncclResult_t async = ncclSuccess;

	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (r->rank != 1) {
		limits_of_kernels(IN_VAIN_MS);
		NCCL(ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0); /* the kernel exits by itself */
		NCCL(ncclCommGetAsyncError(r->comm, &async));
		CHECK(async == ncclRemoteError);
		CHECK(ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, r->stream) != ncclSuccess);
	}
	ranks_barrier(r, met);
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_rank_that_does_not_call_runs_into_the_deadline)
{
	*met = 0;
	assert_int_equal(ranks_run(RANKS_PROCESSES, 3, 1, body_late_peer), 0);
}

/* After some calls nothing arrives any more: kernels end by their limit, and the calls behind fail. */
static int body_dying_link(struct rank *r)
{
	ncclResult_t async = ncclSuccess;
	void *buf = ranks_memory(r, 64);

	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	for (int i = 0; i < 100 && !async; i++) {
		NCCL(ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		NCCL(ncclCommGetAsyncError(r->comm, &async));
		if (i == 0)
			CHECK(!async);
		limits_of_kernels(IN_VAIN_MS);
	}
	CHECK(async == ncclRemoteError);
	CHECK(ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, r->stream) != ncclSuccess);
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

/* The host's memory instead of NVLink: for a rank that does not call, and for a link that dies. */
TEST(test_waits_over_shared_memory_have_the_deadline)
{
	*met = 0;
	setenv("SHUNT_SIM_LINKS", "*:none", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 3, 1, body_late_peer), 0);
	*met = 0;
	setenv("SHUNT_SIM_LINKS", "0-1:none,dies=1000", 1);
	setenv("SHUNT_SELFTEST", "0", 1); /* its stores are not counted */
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_dying_link), 0);
	unsetenv("SHUNT_SELFTEST");
	unsetenv("SHUNT_SIM_LINKS");
}

TESTS_BEGIN
{
	met = mmap(NULL, sizeof(*met), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(met != MAP_FAILED);
	own_standalone();
	setenv("SHUNT_TIMEOUT", "100s", 1);
}
