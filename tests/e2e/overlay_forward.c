/* SPDX-License-Identifier: MIT */
/* The overlay: what all ranks leave to the real NCCL, or none. */
#include "tests/e2e/overlay_job.h"
#include <sys/resource.h>
#include "shunt/shunt.h"
#include "tests/support/stderr.h"

static struct stderr_kept kept; /* of this rank's process */

static int forward_only(struct rank *r)
{
	ncclComm_t comm, child;
	void *buf;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 3; k++)
		REDUCE(comm, r->rank, r->nranks, 100 << (4 * k), FORWARDED);
	CHECK(overlay_forwarded("AllReduce") == 3);
	CHECK(overlay_count_calls(comm, 1) == 0 && overlay_count_calls(comm, 0) == 3);
	CHECK(shunt_malloc(&buf, 64) == 0);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(buf, buf, 16, ncclInt32, ncclSum, comm, r->stream)); /* it may be kept until the end */
	NCCL(ncclGroupEnd());
	CHECK(overlay_forwarded("AllReduce") == 4 && shunt_free(buf) == 0);
	overlay_shared->warnings[r->rank] = stderr_count(&kept, "stays with NCCL");
	/* A child inherits what is wrong, or finds it out. */
	NCCL(ncclCommSplit(comm, 0, r->rank, &child, NULL));
	REDUCE(child, r->rank, r->nranks, 64, FORWARDED);
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static int body_forward_only(struct rank *r)
{
	int failed;

	CHECK(stderr_keep(&kept));
	failed = forward_only(r);
	return stderr_give_back(&kept, failed);
}

/* A communicator that all ranks leave to NCCL; exactly rank 0 says so, once. */
static void expect_forward_only(int n, int odd, void (*prepare)(int rank), rank_fn body)
{
	int others = 0;

	assert_int_equal(overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body, .prepare = prepare }, odd), 0);
	for (int i = 1; i < n; i++)
		others += overlay_shared->warnings[i];
	assert_int_equal(overlay_shared->warnings[0], 1);
	assert_int_equal(others, 0);
}

/* n processes; one of them, or all, have a setting. */
static void run_with(int n, int odd, const char *name, const char *value, void (*prepare)(int rank), rank_fn body)
{
	overlay_odd_name = name;
	overlay_odd_value = value;
	assert_int_equal(overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body, .prepare = prepare }, odd), 0);
}

TEST(test_other_settings_on_one_rank_forward_on_all)
{
	static const char *const settings[][2] = {
		{ "SHUNT_ALGO", "allreduce:0-inf:twoshot" },
		{ "SHUNT_ALGO", "allreduce:0-inf:nccl" },
		{ "SHUNT_FORCE_NCCL", "allreduce" },
		{ "SHUNT_FORCE_NCCL", "all" },
		{ "NCCL_ALGO", "ring" },
		{ "NCCL_PROTO", "simple" },
		{ "NCCL_LAUNCH_ORDER_IMPLICIT", "1" },
		{ "SHUNT_ACCUMULATE", "own" },
		{ "SHUNT_LINKS", "0-1:shared" },
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		overlay_odd_name = settings[i][0];
		overlay_odd_value = settings[i][1];
		expect_forward_only(3, 1 + (int)(i % 2), overlay_set_odd, body_forward_only);
	}
}

/* Rank 0 is the odd one: it may know of nothing, but somebody says it. */
TEST(test_other_settings_on_rank_0_forward_on_all)
{
	int lines = 0;

	run_with(3, 0, "SHUNT_FORCE_NCCL", "allreduce", overlay_set_odd, body_forward_only);
	for (int i = 0; i < 3; i++)
		lines += overlay_shared->warnings[i];
	assert_int_equal(lines, 1);
}

/* NCCL gets its own types as ever, and no call with numbers that it does not have: the program hears that. */
static int body_numerics(struct rank *r)
{
	struct shunt_numerics own = { .size = sizeof(own), .accumulate = SHUNT_ACCUMULATE_OWN };
	const char *path = NULL;
	int op, before, ok;
	ncclComm_t comm;
	char *buf;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc((void **)&buf, 64) == 0);
	CHECK(stderr_keep(&kept));
	CHECK(shunt_comm_numerics(comm, &own) == -EOPNOTSUPP &&
	    shunt_redop_create(comm, ncclSum, ncclFloat16, &own, &op) == 0);
	overlay_shared->warnings[r->rank] = stderr_count(&kept, "stays with NCCL");
	ok = ncclAllReduce(buf, buf, 8, ncclFloat16, (ncclRedOp_t)op, comm, r->stream) == ncclInvalidArgument &&
	    ncclRedOpDestroy((ncclRedOp_t)op, comm) == ncclSuccess &&
	    stderr_count(&kept, "allreduce of 8 float16/own, sum: only Shunt's kernels do this") == 1;
	stderr_give_back(&kept, !ok);
	CHECK(ok && shunt_path_of(comm, "allreduce", 8, ncclFloat16, ncclSum, &path) == 0 && !strcmp(path, "nccl"));
	before = overlay_forwarded("AllReduce");
	NCCL(ncclAllReduce(buf, buf, 8, ncclFloat16, ncclSum, comm, r->stream));
	CHECK(overlay_forwarded("AllReduce") == before + 1 && shunt_free(buf) == 0);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST_CALL(test_numbers_that_nccl_lacks_are_never_forwarded,
    run_with(2, 0, "NCCL_LAUNCH_ORDER_IMPLICIT", "1", overlay_set_all, body_numerics))

static int body_shared_memory(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 100, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 10000, NATIVE);
	CHECK(overlay_forwarded("AllReduce") == 0);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* Stores into the peer's memory lie, over NVLink and then as peers: one line for each, and right values by the host's.
 */
static int body_refused_nvlink(struct rank *r)
{
	int failed, says = r->rank == 0;

	CHECK(stderr_keep(&kept));
	failed = body_shared_memory(r) ||
	    stderr_count(&kept, "do not exchange data right over NVLink: word ") != says ||
	    stderr_count(&kept, "do not exchange data right over PCIe: word ") != says ||
	    stderr_count(&kept, "a slower link serves them; set NCCL_P2P_DISABLE=1 for NCCL's own calls") != 2 * says;
	return stderr_give_back(&kept, failed);
}

static int body_refused_all(struct rank *r)
{
	int failed;

	CHECK(stderr_keep(&kept));
	failed = forward_only(r) ||
	    stderr_count(
	        &kept, "of rank 1 and Shunt sim device 2 of rank 2 do not exchange data right over shared memory") !=
	        (r->rank == 0) ||
	    (!r->rank && stderr_count(&kept, "the self-test of shared links found that word ") < 1);
	return stderr_give_back(&kept, failed);
}

static int body_no_room(struct rank *r)
{
	int failed;

	CHECK(stderr_keep(&kept));
	failed = forward_only(r) ||
	    (!r->rank && stderr_count(&kept, "bytes of shared memory, and SHUNT_SHARED_BYTES allows 65536") < 1);
	return stderr_give_back(&kept, failed);
}

static void little_shared_memory(int rank)
{
	setenv("NCCL_P2P_DISABLE", "1", 1);
	overlay_set_odd(rank);
}

/* A setting of one rank holds for all. */
TEST(test_without_peers_data_goes_through_shared_memory)
{
	run_with(3, 1, "NCCL_P2P_DISABLE", "1", overlay_set_odd, body_shared_memory);
	run_with(3, 0, "SHUNT_LINKS", "0-1:shared", overlay_set_all, body_shared_memory);
	/* NVLink that lies between two of them, and honest memory of the host. */
	setenv("SHUNT_SIM_LINKS", "0-1:nvlink,lie=swap", 1);
	run_with(3, 1, "SHUNT_SELFTEST", "always", overlay_set_odd, body_refused_nvlink);
	/* The host's memory lies: NCCL's. */
	setenv("SHUNT_SIM_LINKS", "*:none;1-2:none,lie=old", 1);
	run_with(3, 1, "SHUNT_SELFTEST", "1", overlay_set_odd, body_refused_all);
	unsetenv("SHUNT_SIM_LINKS");
	overlay_odd_name = "SHUNT_SHARED_BYTES";
	overlay_odd_value = "64k";
	expect_forward_only(2, 1, little_shared_memory, body_no_room);
}

/*
 * What may be wrong with links on one rank, or a limit that all have: the outcome is the same on all ranks, and lines
 * say why.
 */
static void little_locked_memory(void)
{
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 64 << 10, 64 << 10 });
}

static void small_files(void) /* a memfd is one */
{
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 });
}

static const struct bad_links {
	const char *links, *name, *value; /* of all ranks; of rank 1 */
	void (*limit)(void);              /* of rank 1 */
	enum how how;
	const char *says; /* a line for some rank; if all forward, rank 0's alone is to have it */
} bad_links[] = {
	{ "*:none", .limit = little_locked_memory, .how = NATIVE },
	{ "*:none", .limit = small_files, .how = FORWARDED,
	    .says = "bytes of shared memory cannot be allocated: File too large" },
	{ "*:none", "NCCL_SHM_DISABLE", "1", .how = FORWARDED, .says = "NCCL_SHM_DISABLE forbids the host's memory" },
	{ "*:none", "SHUNT_SHARED_BYTES", "lots", .how = NATIVE },
	{ "*:peer", "NCCL_P2P_LEVEL", "LOC", .how = NATIVE },
	{ "*:peer,distance=PHB", "NCCL_P2P_LEVEL", "PIX", .how = NATIVE },
	{ "*:peer", "NCCL_P2P_LEVEL", "near", .how = NATIVE },
	{ "*:peer", "SHUNT_LINKS", "0-1", .how = NATIVE },
	{ "*:peer", "SHUNT_LINKS", "*:shared", .how = FORWARDED, .says = "other SHUNT_ or NCCL_ settings" },
	/* Refused by the rank that reads: stores of the other one do not come. */
	{ "*:peer,lie=oneway", .how = NATIVE, .says = "do not exchange data right over PCIe: nothing arrives" },
	{ "*:none,lie=oneway", .how = FORWARDED, .says = "nothing arrives" },
};
static const struct bad_links *bad;

static void make_links_bad(int rank)
{
	if (rank != 1)
		return;
	if (bad->name)
		setenv(bad->name, bad->value, 1);
	if (bad->limit)
		bad->limit();
}

static int body_bad_links(struct rank *r)
{
	ncclComm_t comm;
	int failed = 0;

	CHECK(stderr_keep(&kept));
	failed = ncclCommInitRank(&comm, r->nranks, r->id, r->rank) ||
	    overlay_reduce(r, comm, r->rank, r->nranks, 100, bad->how) || ncclCommDestroy(comm) ||
	    stderr_count(&kept, "stays with NCCL") != (bad->how == FORWARDED && r->rank == 0);
	overlay_shared->warnings[r->rank] = bad->says ? stderr_count(&kept, bad->says) : 0;
	return stderr_give_back(&kept, failed);
}

TEST(test_links_that_are_wrong_have_one_outcome)
{
	for (size_t i = 0; i < sizeof(bad_links) / sizeof(bad_links[0]); i++) {
		bad = &bad_links[i];
		setenv("SHUNT_SIM_LINKS", bad->links, 1);
		if (overlay_run_as(
		        &(struct ranks){ .n = 2, .raw = 1, .body = body_bad_links, .prepare = make_links_bad }, 1))
			fail_msg("%s %s", bad->links, bad->says ? bad->says : "");
		if (bad->says && overlay_shared->warnings[0] + overlay_shared->warnings[1] < 1)
			fail_msg("%s %s: no line says so", bad->links, bad->says);
	}
	unsetenv("SHUNT_SIM_LINKS");
}

/* The sim's devices are not joined by NVLink: the rank that finds so says it, and all forward. */
TEST_CALL(test_more_than_8_ranks_forward, expect_forward_only(9, 0, NULL, body_forward_only))

static void no_scratch(int rank)
{
	if (rank != overlay_shared->odd)
		return;
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 }); /* a memfd is a file */
}

TEST(test_scratch_that_one_rank_cannot_allocate_forwards_on_all)
{
	expect_forward_only(3, 1, no_scratch, body_forward_only);
	expect_forward_only(3, 0, no_scratch, body_forward_only);
}

TEST(test_device_that_one_rank_cannot_open_forwards_on_all)
{
	overlay_odd_name = "SHUNT_SIM_DEVICES";
	overlay_odd_value = "1";
	expect_forward_only(3, 2, overlay_set_odd, body_forward_only);
}

/* The odd rank calls the real library without Shunt. */
static int body_without_shunt(struct rank *r)
{
	ncclComm_t comm, child;
	static int buf[4];

	if (r->rank != overlay_shared->odd)
		return body_forward_only(r);
	NCCL(FAKE(ncclCommInitRank)(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 4; k++)
		NCCL(FAKE(ncclAllReduce)(buf, buf, 4, ncclInt32, ncclSum, comm, NULL));
	NCCL(FAKE(ncclCommSplit)(comm, 0, r->rank, &child, NULL));
	NCCL(FAKE(ncclAllReduce)(buf, buf, 4, ncclInt32, ncclSum, child, NULL));
	CHECK(overlay_forwarded("AllReduce") == 5);
	return 0;
}

TEST(test_one_rank_without_shunt_forwards_on_all)
{
	int lines = 0;

	expect_forward_only(3, 2, NULL, body_without_shunt);
	/* Rank 0 cannot say it then. The harness asks Shunt for the id on rank 0, which does not matter. */
	assert_int_equal(overlay_run_as(&(struct ranks){ .n = 3, .raw = 1, .body = body_without_shunt }, 0), 0);
	for (int i = 0; i < 3; i++)
		lines += overlay_shared->warnings[i];
	assert_int_equal(lines, 1);
}

/* ---- chosen to be forwarded */

static int body_forced(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 100, FORWARDED);
	REDUCE(comm, r->rank, r->nranks, 100000, FORWARDED);
	CHECK(overlay_count_calls(comm, 1) == 0);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_force_nccl_forwards)
{
	static const char *const settings[][2] = {
		{ "SHUNT_FORCE_NCCL", "all" },
		{ "SHUNT_FORCE_NCCL", "broadcast,allreduce" },
		{ "MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION", "allreduce" },
		{ "MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION", "all" },
		{ "NCCL_ALGO", "allreduce:tree" },
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		assert_int_equal(overlay_run_set(2, settings[i][0], settings[i][1], body_forced), 0);
	}
}

static int body_not_forced(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 20000, NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void set_all_deterministic(int rank)
{
	setenv(overlay_odd_name, overlay_odd_value, 1);
	setenv("SHUNT_DETERMINISTIC", "1", 1);
}

/* What asks for NCCL's order gets ours; what asks for NCCL gets it. */
TEST(test_deterministic_sums_are_forwarded_by_name_only)
{
	run_with(2, 0, "NCCL_ALGO", "allreduce:tree", set_all_deterministic, body_not_forced);
	run_with(2, 0, "SHUNT_FORCE_NCCL", "allreduce", set_all_deterministic, body_forced);
}

static const char *want_nccl(void *arg, const struct shunt_plan_request *request)
{
	return request->bytes > 1000 ? "nccl" : NULL;
}

/* One rank's selector counts for nothing, not for the first call either; that of all ranks does. */
static int body_selector(struct rank *r)
{
	bool all = overlay_shared->odd < 0;
	ncclComm_t comm;

	if (all || r->rank == overlay_shared->odd)
		shunt_plan_set_selector(want_nccl, NULL);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 1000, all ? FORWARDED : NATIVE);
	REDUCE(comm, r->rank, r->nranks, 100, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 1000, all ? FORWARDED : NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_selector_of_one_rank_forwards_nothing)
{
	for (int odd = -1; odd < 2; odd++)
		assert_int_equal(overlay_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_selector }, odd), 0);
}

RANKS_TEST(
    test_size_above_the_native_range_is_forwarded, overlay_run_set(2, "SHUNT_ALGO", "allreduce:64k-inf:nccl", body))
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 20000, FORWARDED);
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 20000, FORWARDED);
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/*
 * A rank may come to a call before the set-up that another rank's call brought: what goes to NCCL must not depend on
 * that.
 */
static int body_same_before_and_after(struct rank *r)
{
	static const char *const ops[] = { "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce",
		"gather", "scatter", "send" };
	bool ours[sizeof(ops) / sizeof(ops[0])][27];
	const char *path;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int after = 0; after < 2; after++) {
		for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
			for (int log = 0; log < 27; log++) {
				CHECK(shunt_path_of(comm, ops[i], (size_t)1 << log, ncclFloat32, ncclSum, &path) == 0);
				if (!after)
					ours[i][log] = strcmp(path, "nccl");
				else if (ours[i][log] != !!strcmp(path, "nccl"))
					return printf(
					    "%s of %zu: %s after the set-up\n", ops[i], (size_t)1 << log, path);
			}
		if (!after)
			REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_what_goes_to_nccl_does_not_depend_on_the_set_up)
{
	for (int n = 2; n <= 8; n += 3)
		assert_int_equal(
		    overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body_same_before_and_after }, 0), 0);
}

RANKS_TEST(test_other_collectives_reach_nccl_unchanged,
    overlay_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body, .prepare = overlay_only_allreduce }, 0))
{
	static char a[8], b[8]; /* never touched */
	ncclComm_t comm;
	void *s = r->stream;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int round = 0; round < 2; round++) {
#define CALL(short_name, call, ...) \
	do { \
		struct fake_call got, want = { #short_name, __VA_ARGS__ }; \
		if (round) \
			FAKE(fake_nccl_fail_next)(#short_name, ncclRemoteError); \
		CHECK((call) == (round ? ncclRemoteError : ncclSuccess)); \
		got = FAKE(fake_nccl_last_call)(); \
		CHECK(!strcmp(got.name, want.name) && got.send == want.send && got.recv == want.recv); \
		CHECK(got.count == want.count && got.dtype == want.dtype && got.op == want.op); \
		CHECK(got.root == want.root && got.comm == want.comm && got.stream == want.stream); \
	} while (0)
		CALL(Reduce, ncclReduce(a, b, 3, ncclFloat16, ncclMax, 1, comm, s), a, b, 3, ncclFloat16, ncclMax, 1,
		    comm, s);
		CALL(Broadcast, ncclBroadcast(a, b, 4, ncclInt8, 1, comm, s), a, b, 4, ncclInt8, 0, 1, comm, s);
		CALL(Broadcast, ncclBcast(b, 5, ncclInt8, 1, comm, s), b, b, 5, ncclInt8, 0, 1, comm, s);
		CALL(ReduceScatter, ncclReduceScatter(a, b, 6, ncclBfloat16, ncclMin, comm, s), a, b, 6, ncclBfloat16,
		    ncclMin, 0, comm, s);
		CALL(AllGather, ncclAllGather(a, b, 7, ncclFloat64, comm, s), a, b, 7, ncclFloat64, 0, 0, comm, s);
		CALL(Send, ncclSend(a, 0, ncclInt8, 1, comm, s), a, NULL, 0, ncclInt8, 0, 1, comm, s);
		CALL(Recv, ncclRecv(b, (size_t)1 << 40, ncclInt8, 0, comm, s), NULL, b, (size_t)1 << 40, ncclInt8, 0, 0,
		    comm, s);
	}
	/* The last one stayed an error of that call only. */
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* A communicator that Shunt has not seen born: the program got it from another copy of the library. */
RANKS_TEST(test_unknown_handle_passes_through, overlay_run(RANKS_PROCESSES, 2, body))
{
	static char a[8], b[8];
	struct fake_call got;
	ncclComm_t comm;
	int v;

	NCCL(ncclGetVersion(&v));
	NCCL(FAKE(ncclCommInitRank)(&comm, r->nranks, r->id, r->rank));
	CHECK(overlay_count_calls(comm, 1) == -1);
	NCCL(ncclAllReduce(a, b, 11, ncclUint8, ncclAvg, comm, r->stream));
	got = FAKE(fake_nccl_last_call)();
	CHECK(got.send == a && got.recv == b && got.count == 11 && got.dtype == ncclUint8 && got.op == ncclAvg &&
	    got.comm == comm);
	FAKE(fake_nccl_fail_next)("AllReduce", ncclSystemError);
	CHECK(ncclAllReduce(a, b, 11, ncclUint8, ncclAvg, comm, r->stream) == ncclSystemError);
	NCCL(ncclCommUserRank(comm, &v));
	CHECK(v == r->rank);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TESTS_BEGIN
{
	overlay_begin();
}
