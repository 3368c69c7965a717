/* SPDX-License-Identifier: MIT */
/*
 * SHUNT_CHECK=1: whatever differs between ranks is an error on each of them that names both sides, long before
 * SHUNT_TIMEOUT; and programs that are right run as they do without it, however far their ranks run ahead of each
 * other.
 */
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/stderr.h"
#include "tests/support/test.h"

enum { MOST = 1 << 18 };

/* What a rank calls, and how it is said. */
struct mismatch {
	const char *name;
	int (*call)(struct rank *r, float *buf, int odd);
	const char *usual, *odd;
	const char *also; /* in the line as well */
};

static int call_count(struct rank *r, float *buf, int odd)
{
	NCCL(ncclAllReduce(buf, buf, odd ? 1001 : 1000, ncclFloat32, ncclSum, r->comm, r->stream));
	return 0;
}

/* So that the two sides run different algorithms. */
static int call_size(struct rank *r, float *buf, int odd)
{
	NCCL(ncclAllReduce(buf, buf, odd ? 200000 : 100, ncclFloat32, ncclSum, r->comm, r->stream));
	return 0;
}

static int call_dtype(struct rank *r, float *buf, int odd)
{
	NCCL(ncclAllReduce(buf, buf, 1000, odd ? ncclInt32 : ncclFloat32, ncclSum, r->comm, r->stream));
	return 0;
}

static int call_op(struct rank *r, float *buf, int odd)
{
	NCCL(ncclAllReduce(buf, buf, 1000, ncclFloat32, odd ? ncclMax : ncclSum, r->comm, r->stream));
	return 0;
}

static int call_accumulate(struct rank *r, float *buf, int odd)
{
	struct shunt_numerics numerics = { .size = sizeof(numerics),
		.accumulate = odd ? SHUNT_ACCUMULATE_OWN : SHUNT_ACCUMULATE_FP16 };
	int op;

	CHECK(shunt_redop_create(r->comm, ncclSum, ncclFloat8e4m3, &numerics, &op) == 0);
	NCCL(ncclAllReduce(buf, buf, 1000, ncclFloat8e4m3, (ncclRedOp_t)op, r->comm, r->stream));
	NCCL(ncclRedOpDestroy((ncclRedOp_t)op, r->comm));
	return 0;
}

static int call_root(struct rank *r, float *buf, int odd)
{
	NCCL(ncclBroadcast(buf, buf, 1000, ncclFloat32, odd ? 1 : 0, r->comm, r->stream));
	return 0;
}

static int call_kind(struct rank *r, float *buf, int odd)
{
	if (odd)
		NCCL(ncclReduceScatter(buf, buf + 1000, 100, ncclFloat32, ncclSum, r->comm, r->stream));
	else
		NCCL(ncclAllGather(buf, buf + 1000, 100, ncclFloat32, r->comm, r->stream));
	return 0;
}

static int call_skipped(struct rank *r, float *buf, int odd)
{
	if (!odd)
		NCCL(ncclAllReduce(buf, buf, 1000, ncclFloat32, ncclSum, r->comm, r->stream));
	/* Those who have called it may know already that something is wrong. */
	ncclResult_t res = ncclBroadcast(buf, buf, 10, ncclFloat32, 0, r->comm, r->stream);
	CHECK(res == ncclSuccess || (!odd && res == ncclInvalidUsage));
	return 0;
}

static int call_later_of_group(struct rank *r, float *buf, int odd)
{
	NCCL(ncclGroupStart());
	for (int i = 0; i < 3; i++)
		NCCL(ncclAllReduce(
		    buf + i * 100, buf + i * 100, odd && i == 2 ? 21 : 20, ncclFloat32, ncclSum, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	return 0;
}

static int call_fewer_in_group(struct rank *r, float *buf, int odd)
{
	NCCL(ncclGroupStart());
	for (int i = 0; i < (odd ? 2 : 3); i++)
		NCCL(ncclAllGather(buf, buf + 1000 + i * 1000, 20, ncclFloat32, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	return 0;
}

/* Parts of one all-gather, which share a launch. */
static int call_uneven_part(struct rank *r, float *buf, int odd)
{
	NCCL(ncclGroupStart());
	for (int root = 0; root < 2; root++)
		NCCL(ncclBroadcast(buf + root * 100, buf + root * 100, odd && root ? 70 : 20 + (size_t)root,
		    ncclFloat32, root, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	return 0;
}

static int call_in_graph(struct rank *r, float *buf, int odd)
{
	void *graph;

	CHECK(shunt_capture_begin(r->stream) == 0);
	NCCL(ncclAllReduce(buf, buf, 500, ncclFloat32, ncclSum, r->comm, r->stream));
	NCCL(ncclAllReduce(buf, buf, odd ? 7 : 8, ncclInt32, ncclMin, r->comm, r->stream));
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
	return 0;
}

static const struct mismatch mismatches[] = {
	{ "count", call_count, "allreduce of 1000 float32, sum (collective 2)",
	    "allreduce of 1001 float32, sum (collective 2)" },
	{ "size", call_size, "allreduce of 100 float32, sum (collective 2)",
	    "allreduce of 200000 float32, sum (collective 2)" },
	{ "type", call_dtype, "allreduce of 1000 float32, sum (collective 2)",
	    "allreduce of 1000 int32, sum (collective 2)" },
	{ "operator", call_op, "allreduce of 1000 float32, sum (collective 2)",
	    "allreduce of 1000 float32, max (collective 2)" },
	{ "accumulator", call_accumulate, "allreduce of 1000 float8e4m3/float16, sum (collective 2)",
	    "allreduce of 1000 float8e4m3/own, sum (collective 2)" },
	{ "root", call_root, "broadcast of 1000 float32, root 0 (collective 2)",
	    "broadcast of 1000 float32, root 1 (collective 2)" },
	{ "kind", call_kind, "allgather of 100 float32 (collective 2)",
	    "reducescatter of 100 float32, sum (collective 2)" },
	{ "skipped", call_skipped, "allreduce of 1000 float32, sum (collective 2)",
	    "broadcast of 10 float32, root 0 (collective 2)" },
	{ "later of a group", call_later_of_group,
	    "a group of 3 collectives that begins with allreduce of 20 float32, sum (collective 2)",
	    "a group of 3 collectives that begins with allreduce of 20 float32, sum (collective 2)",
	    "a later one of the group differs" },
	{ "fewer in a group", call_fewer_in_group,
	    "a group of 3 collectives that begins with allgather of 20 float32 (collective 2)",
	    "a group of 2 collectives that begins with allgather of 20 float32 (collective 2)" },
	{ "uneven part", call_uneven_part,
	    "a group of 2 collectives that begins with broadcast of 20 float32, root 0 (collective 2)",
	    "a group of 2 collectives that begins with broadcast of 20 float32, root 0 (collective 2)",
	    "a later one of the group differs" },
	{ "graph", call_in_graph, "allreduce of 8 int32, min", "allreduce of 7 int32, min" },
};

static const struct mismatch *mismatch_tested;
static int odd_rank;

/* The communicator must break by itself, in time, with the right code and line. */
static int expect_broken(struct rank *r, const struct stderr_kept *kept, const char *line, const char *also)
{
	double start = now();
	ncclResult_t async = ncclSuccess;
	float *buf;

	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(now() - start < AT_ONCE_S);
	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async == ncclInvalidUsage);
	CHECK(shunt_malloc((void **)&buf, 64) == 0);
	CHECK(ncclAllReduce(buf, buf, 16, ncclFloat32, ncclSum, r->comm, r->stream) == ncclInvalidUsage);
	CHECK(stderr_count(kept, line));
	CHECK(!also || stderr_count(kept, also));
	NCCL(ncclCommAbort(r->comm));
	shunt_free(buf);
	return 0;
}

static int body_mismatch(struct rank *r)
{
	const struct mismatch *m = mismatch_tested;
	int odd = r->rank == odd_rank, other = odd ? -1 : odd_rank, failed;
	struct stderr_kept kept;
	char line[512];
	float *buf = ranks_memory(r, MOST * sizeof(*buf));

	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(ncclAllReduce(buf, buf, 1000, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(stderr_keep(&kept));
	failed = m->call(r, buf, odd);
	if (odd) /* any of the others may be the one */
		snprintf(line, sizeof(line), "rank %d calls %s where rank ", r->rank, m->odd);
	else
		snprintf(
		    line, sizeof(line), "rank %d calls %s where rank %d calls %s", r->rank, m->usual, other, m->odd);
	failed = failed || expect_broken(r, &kept, line, odd ? m->usual : m->also);
	return stderr_give_back(&kept, failed);
}

TEST(test_check_each_field_on_each_rank_is_named_by_all)
{
	for (size_t i = 0; i < sizeof(mismatches) / sizeof(mismatches[0]); i++)
		for (int n = 2; n <= 4; n++)
			for (odd_rank = 0; odd_rank < n; odd_rank++) {
				mismatch_tested = &mismatches[i];
				if (ranks_run(RANKS_PROCESSES, n, 1, body_mismatch))
					fail_msg("%s, rank %d of %d", mismatches[i].name, odd_rank, n);
			}
}

/* ---- threads as ranks: one log, so only the error counts */

RANKS_TEST(test_check_threads_all_get_the_error, ranks_run(RANKS_THREADS, 4, 1, body))
{
	ncclResult_t async = ncclSuccess;
	double start;
	float *buf = ranks_memory(r, 4096);

	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(ncclReduce(buf, buf, r->rank == 2 ? 11 : 12, ncclFloat64, ncclSum, 1, r->comm, r->stream));
	start = now();
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(now() - start < AT_ONCE_S);
	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async == ncclInvalidUsage);
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

/* ---- messages */

/* What rank 0 sends to rank 1 in message `bad` is one byte longer, or shorter, than awaited. */
struct sizes {
	int bad, delta, grouped, both_ways;
};
static struct sizes sizes;
static atomic_int *found; /* the receiver has its error; all ranks see it */

static int body_message(struct rank *r)
{
	struct stderr_kept kept;
	int failed = 0;
	size_t bytes = 3000;
	char line[256], *buf;

	buf = ranks_memory(r, 1 << 16);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(ncclAllReduce(buf, buf, 10, ncclUint8, ncclSum, r->comm, r->stream)); /* nobody leaves before the set-up */
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(stderr_keep(&kept));
	for (int i = 1; i <= 5 && !failed; i++) {
		size_t sent = bytes + (size_t)(i == sizes.bad ? sizes.delta : 0);

		if (sizes.both_ways)
			ncclGroupStart();
		if (r->rank == 0)
			failed = ncclSend(buf, sent, ncclUint8, 1, r->comm, r->stream) != ncclSuccess && i <= sizes.bad;
		else if (r->rank == 1)
			failed =
			    ncclRecv(buf, bytes, ncclUint8, 0, r->comm, r->stream) != ncclSuccess && i <= sizes.bad;
		if (sizes.both_ways) {
			if (r->rank < 2) /* the other direction is right */
				(r->rank ? ncclSend :
				           (ncclResult_t (*)(const void *, size_t, ncclDataType_t, int, ncclComm_t,
				               void *))(void *)ncclRecv)(
				    buf + 32768, 100, ncclUint8, !r->rank, r->comm, r->stream);
			ncclGroupEnd();
		}
		pause_us(PAUSE_LATE, 2000);
	}
	/* The sender may have been done when the receiver found it: its next launch says so. */
	for (double end = now() + AT_ONCE_S; r->rank == 1 && !*found && now() < end; pause_us(PAUSE_POLL, 1000)) {
		ncclResult_t async = ncclSuccess;

		ncclCommGetAsyncError(r->comm, &async);
		*found = async != ncclSuccess;
	}
	if (r->rank == 0) {
		for (double end = now() + AT_ONCE_S; !*found && now() < end;)
			pause_us(PAUSE_POLL, 1000);
		ncclSend(buf, bytes, ncclUint8, 1, r->comm, r->stream);
	}
	snprintf(line, sizeof(line),
	    "message %d from rank 0 to rank 1: the sender sends %zu bytes where the receiver receives %zu bytes",
	    sizes.bad, bytes + (size_t)sizes.delta, bytes);
	if (r->rank < 2)
		failed = failed || expect_broken(r, &kept, line, NULL);
	else
		failed = ncclCommAbort(r->comm) != ncclSuccess; /* the third rank has no part in it */
	return stderr_give_back(&kept, failed);
}

TEST(test_check_message_of_another_size_is_named_by_both_ends)
{
	found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(found, MAP_FAILED);
	for (int bad = 1; bad <= 4; bad += 3)
		for (int delta = -1000; delta <= 9000; delta += 10000)
			for (int both = 0; both < 2; both++) {
				sizes = (struct sizes){ .bad = bad, .delta = delta, .both_ways = both };
				*found = 0;
				if (ranks_run(RANKS_PROCESSES, 3, 1, body_message))
					fail_msg("message %d, %d bytes more, %s", bad, delta,
					    both ? "in groups" : "one by one");
			}
}

/* ---- no false alarms */

static int expect_no_error(struct rank *r)
{
	ncclResult_t async = ncclInternalError;

	CHECK(shunt_stream_synchronize(r->stream) == 0);
	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async == ncclSuccess);
	return 0;
}

/* Ranks come one after another, and roots run ahead. */
static int body_ahead(struct rank *r)
{
	int32_t *buf = ranks_memory(r, 1 << 16);

	pause_us(PAUSE_LATE, (unsigned)r->rank * 30000);
	for (int i = 0; i < 40; i++) {
		int root = i % r->nranks;

		buf[0] = r->rank == root ? i : -1;
		NCCL(ncclBroadcast(buf, buf, 1, ncclInt32, root, r->comm, r->stream));
		buf[100] = buf[101] = 0;
		NCCL(ncclGather(buf + 50, buf + 100, 1, ncclInt32, root, r->comm, r->stream));
		NCCL(ncclScatter(buf + 200, buf + 300, 5, ncclInt32, root, r->comm, r->stream));
		NCCL(ncclReduce(buf + 400, buf + 500, 50, ncclInt32, ncclMax, root, r->comm, r->stream));
		if (i % 8 == r->rank)
			pause_us(PAUSE_LATE, 5000);
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(buf[0] == i);
	}
	NCCL(ncclGroupStart()); /* as many roots as ranks */
	for (int root = 0; root < r->nranks; root++)
		NCCL(ncclBroadcast(buf + root, buf + root, 1, ncclInt32, root, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	if (expect_no_error(r))
		return 1;
	return 0;
}

/* The two ends put the same messages into different groups, and one is far ahead. */
static int body_other_groups(struct rank *r)
{
	enum { N = 60 };
	char *buf = ranks_memory(r, N * 4000);

	if (r->rank == 0) {
		for (int i = 0; i < N; i++) {
			buf[i * 4000] = (char)i;
			if (i % 7 == 0)
				NCCL(ncclGroupStart());
			NCCL(ncclSend(buf + i * 4000, 1 + (size_t)i * 60, ncclUint8, 1, r->comm, r->stream));
			if (i % 7 == 6 || i == N - 1)
				NCCL(ncclGroupEnd());
		}
	} else if (r->rank == 1) {
		pause_us(PAUSE_LATE, 100000);
		NCCL(ncclGroupStart());
		for (int i = 0; i < N / 2; i++)
			NCCL(ncclRecv(buf + i * 4000, 1 + (size_t)i * 60, ncclUint8, 0, r->comm, r->stream));
		NCCL(ncclGroupEnd());
		for (int i = N / 2; i < N; i++) /* other types, the same bytes */
			NCCL(i % 2 ? ncclRecv(buf + i * 4000, 1 + (size_t)i * 60, ncclInt8, 0, r->comm, r->stream) :
			             ncclRecv(buf + i * 4000, 1 + (size_t)i * 60, ncclUint8, 0, r->comm, r->stream));
	}
	if (expect_no_error(r))
		return 1;
	for (int i = 0; i < N && r->rank == 1; i++)
		CHECK(buf[i * 4000] == (char)i);
	NCCL(ncclAllReduce(buf, buf, 100, ncclUint8, ncclSum, r->comm, r->stream));
	if (expect_no_error(r))
		return 1;
	return 0;
}

/* Ranks capture the same calls more or less often, and then go on without graphs. */
static int body_graphs(struct rank *r)
{
	void *graph = NULL;
	float *buf = ranks_memory(r, 1 << 16);

	for (int i = 0; i <= r->rank; i++) {
		if (graph)
			CHECK(shunt_graph_destroy(graph) == 0);
		CHECK(shunt_capture_begin(r->stream) == 0);
		NCCL(ncclAllReduce(buf, buf, 300, ncclFloat32, ncclSum, r->comm, r->stream));
		NCCL(ncclAllGather(buf + 300, buf + 1000, 30, ncclFloat32, r->comm, r->stream));
		CHECK(shunt_capture_end(r->stream, &graph) == 0);
	}
	for (int i = 0; i < 5; i++) {
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
		NCCL(ncclReduceScatter(buf, buf + 2000, 10, ncclFloat32, ncclSum, r->comm, r->stream));
	}
	if (expect_no_error(r))
		return 1;
	CHECK(shunt_graph_destroy(graph) == 0);
	return 0;
}

/* More calls than one launch holds, whose messages are more on the root than elsewhere. */
static int body_large_group(struct rank *r)
{
	int32_t *buf = ranks_memory(r, 1 << 20);

	for (int i = 0; i < 1 << 18; i++)
		buf[i] = 1;
	NCCL(ncclGroupStart());
	for (int i = 0; i < 700; i++)
		NCCL(ncclBroadcast(buf + i, buf + i, 1, ncclInt32, 1, r->comm, r->stream));
	for (int i = 0; i < 40; i++)
		NCCL(ncclAllReduce(buf + 1000 + i, buf + 1000 + i, 1, i % 2 ? ncclInt32 : ncclFloat32,
		    i % 3 ? ncclSum : ncclProd, r->comm, r->stream));
	NCCL(ncclSend(buf + 5000, 10, ncclInt32, (r->rank + 1) % r->nranks, r->comm, r->stream));
	NCCL(ncclRecv(buf + 6000, 10, ncclInt32, (r->rank + r->nranks - 1) % r->nranks, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	if (expect_no_error(r))
		return 1;
	return 0;
}

/* The ranks' buffers lie differently, so that they take kernels for elements of other sizes. */
static int body_odd_places(struct rank *r)
{
	int32_t *buf = ranks_memory(r, 1 << 16);

	for (int i = 0; i < 16; i++) {
		int32_t *at = buf + (r->rank == i % r->nranks ? 1 : 0);

		for (int k = 0; k < 400; k++)
			at[k] = 1000 * r->rank + i + k;
		NCCL(ncclAllGather(at, at + 1000, 64, ncclInt32, r->comm, r->stream));
		NCCL(ncclAlltoAll(at, at + 2000, 64, ncclInt32, r->comm, r->stream));
		NCCL(ncclAllReduce(at, at + 3000, 64, ncclInt32, ncclSum, r->comm, r->stream));
		NCCL(ncclReduceScatter(at, at + 4000, 64, ncclInt32, ncclSum, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		for (int p = 0; p < r->nranks; p++) {
			CHECK(at[1000 + 64 * p + 5] == 1000 * p + i + 5);
			CHECK(at[2000 + 64 * p + 5] == 1000 * p + i + 64 * r->rank + 5);
		}
	}
	if (expect_no_error(r))
		return 1;
	return 0;
}

static void run_without_error(rank_fn body)
{
	for (int n = 2; n <= 4; n++) {
		assert_int_equal(ranks_run(RANKS_PROCESSES, n, 0, body), 0);
		assert_int_equal(ranks_run(RANKS_THREADS, n, 0, body), 0);
	}
}

TEST_CALL(test_check_ranks_that_run_ahead_raise_no_alarm, run_without_error(body_ahead))
TEST_CALL(test_check_messages_in_other_groups_raise_no_alarm, run_without_error(body_other_groups))
TEST_CALL(test_check_graphs_captured_more_often_raise_no_alarm, run_without_error(body_graphs))
TEST_CALL(test_check_groups_of_several_launches_raise_no_alarm, run_without_error(body_large_group))
TEST_CALL(test_check_buffers_at_other_places_raise_no_alarm, run_without_error(body_odd_places))

/* ---- plans: their kernel has no other contact with the peers' scratch */

static int body_plan(struct rank *r)
{
	struct stderr_kept kept;
	char line[512];
	float *buf = ranks_memory(r, 1 << 20);
	int failed;

	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	for (int i = 0; i < 5; i++)
		NCCL(ncclAllReduce(buf, buf, 20000, ncclFloat32, ncclSum, r->comm, r->stream));
	if (expect_no_error(r))
		return 1;
	CHECK(stderr_keep(&kept));
	NCCL(ncclAllReduce(buf, buf, r->rank ? 20000 : 19999, ncclFloat32, ncclSum, r->comm, r->stream));
	snprintf(line, sizeof(line), "rank %d calls allreduce of %d float32, sum (collective 6) where rank ", r->rank,
	    r->rank ? 20000 : 19999);
	failed = expect_broken(r, &kept, line, r->rank ? "19999" : "20000");
	return stderr_give_back(&kept, failed);
}

TEST(test_check_plan_of_another_count_is_named)
{
	setenv("SHUNT_PLAN_DIR", getenv("CHECK_PLANS"), 1);
	setenv("SHUNT_STATS", "1", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 1, body_plan), 0);
	unsetenv("SHUNT_PLAN_DIR");
	unsetenv("SHUNT_STATS");
}

/* ---- all ranks or none */

static void set_by_rank(int rank)
{
	setenv("SHUNT_CHECK", rank ? "1" : "0", 1);
}

RANKS_TEST(test_check_on_some_ranks_only_is_an_error_at_the_first_call,
    ranks_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body, .prepare = set_by_rank }))
{
	struct stderr_kept kept;
	float *buf = ranks_memory(r, 4096);

	setenv("SHUNT_CHECK", r->rank ? "1" : "0", 1);
	CHECK(stderr_keep(&kept));
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	ncclResult_t res = ncclAllReduce(buf, buf, 100, ncclFloat32, ncclSum, r->comm, r->stream);
	if (res == ncclSuccess || (!r->rank && !stderr_count(&kept, "has other SHUNT_ or NCCL_ settings"))) {
		stderr_give_back(&kept, 1);
		CHECK(!"an error that names the settings");
	}
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TESTS_BEGIN
{
	own_standalone();
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	setenv("SHUNT_CHECK", "1", 1);
	setenv("SHUNT_TIMEOUT", "90s", 1); /* nothing here may take that long */
}
