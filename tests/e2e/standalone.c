/* SPDX-License-Identifier: MIT */
/*
 * A program against NCCL's ABI, with Shunt as the whole library: ranks as processes and as threads, on the sim device.
 */
#include <malloc.h>
#include <sched.h>
#include "tests/support/own.h"
#include "tools/common/reference.h"
#include "tests/plan/exec_plans.h"
#include "tests/e2e/ranks.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

#define MAX_BYTES (1u << 20)

/* Fresh data for every rank from one seed: each rank can make all of them and the expected result by itself. */
static int allreduce_on(
    struct rank *r, ncclComm_t comm, int rank, int n, void *stream, size_t count, int dtype, int op, int in_place)
{
	size_t bytes = count * shunt_dtype_bytes[dtype], first = 0;
	void *host[16], *want = malloc(bytes + 1), *got = malloc(bytes + 1), *in, *out;

	CHECK(shunt_malloc(&in, bytes + 16) == 0 && shunt_malloc(&out, bytes + 16) == 0);
	for (int p = 0; p < n; p++) {
		host[p] = malloc(bytes + 1);
		ref_fill(host[p], count, dtype, &r->seed);
	}
	ref_allreduce(want, (const void *const *)host, n, count, dtype, op, NULL);
	CHECK(shunt_memcpy(in, host[rank], bytes) == 0);
	memset(got, 0x5a, bytes);
	CHECK(shunt_memcpy(out, got, bytes) == 0);
	NCCL(ncclAllReduce(in, in_place ? in : out, count, dtype, op, comm, stream));
	CHECK(shunt_stream_synchronize(stream) == 0);
	CHECK(shunt_memcpy(got, in_place ? in : out, bytes) == 0);
	size_t wrong = ref_compare(got, want, count, dtype, &first);
	if (wrong)
		fprintf(stderr, "rank %d of %d: %zu of %zu wrong, first %zu\n", rank, n, wrong, count, first);
	CHECK(wrong == 0);
	for (int p = 0; p < n; p++)
		free(host[p]);
	free(want);
	free(got);
	CHECK(shunt_free(in) == 0 && shunt_free(out) == 0);
	return 0;
}

static int body_sizes(struct rank *r)
{
	static const size_t counts[] = { 1, 2, 1000, 30000, 17, 100000, 3 };

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		for (int op = 0; op < 5; op++)
			if (allreduce_on(r, r->comm, r->rank, r->nranks, r->stream, counts[i], (int)(i * 5 + op) % 12,
			        op, op & 1))
				return 1;
	return 0;
}

TEST(test_allreduce_processes_match_reference)
{
	assert_int_equal(ranks_run(RANKS_PROCESSES, 2, 0, body_sizes), 0);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 5, 0, body_sizes), 0);
}

TEST(test_allreduce_threads_match_reference)
{
	assert_int_equal(ranks_run(RANKS_THREADS, 4, 0, body_sizes), 0);
	assert_int_equal(ranks_run(RANKS_THREADS, 8, 0, body_sizes), 0);
}

/* One call of each kind that reduces, of elements that are a format of the reference. */
static int numbers_are(struct rank *r, int dtype, int op, enum shunt_dtype format, enum shunt_redop redop)
{
	enum { N = 1000 };
	size_t bytes = shunt_dtype_bytes[format], first = 0, all = N * bytes * (size_t)r->nranks;
	char *host[16], *want = malloc(all), *got = malloc(all);
	void *in, *out;

	CHECK(shunt_malloc(&in, all) == 0 && shunt_malloc(&out, all) == 0);
	for (int p = 0; p < r->nranks; p++) {
		host[p] = malloc(all);
		ref_fill(host[p], N * (size_t)r->nranks, format, &r->seed);
	}
	ref_allreduce(want, (const void *const *)host, r->nranks, N * (size_t)r->nranks, format, redop, NULL);
	CHECK(shunt_memcpy(in, host[r->rank], all) == 0);
	for (int kind = 0; kind < 3; kind++) {
		size_t count = kind == 1 ? N : N * (size_t)r->nranks, at = kind == 1 ? (size_t)r->rank * N * bytes : 0;

		if (kind == 0)
			NCCL(ncclAllReduce(in, out, count, dtype, op, r->comm, r->stream));
		else if (kind == 1)
			NCCL(ncclReduceScatter(in, out, count, dtype, op, r->comm, r->stream));
		else
			NCCL(ncclReduce(in, out, count, dtype, op, 1, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(got, out, count * bytes) == 0);
		CHECK((kind == 2 && r->rank != 1) || ref_compare(got, want + at, count, format, &first) == 0);
	}
	for (int p = 0; p < r->nranks; p++)
		free(host[p]);
	free(want);
	free(got);
	CHECK(shunt_free(in) == 0 && shunt_free(out) == 0);
	return 0;
}

RANKS_TEST(test_numbers_that_nccl_lacks_match_reference, ranks_run(RANKS_PROCESSES, 3, 0, body))
{
	struct shunt_numerics mine = { .size = sizeof(mine), .e4m3b15 = 1, .accumulate = SHUNT_ACCUMULATE_FP16 },
	                      own = { .size = sizeof(own), .accumulate = SHUNT_ACCUMULATE_OWN },
	                      b15 = { .size = sizeof(b15), .e4m3b15 = 1 },
	                      fp32 = { .size = sizeof(fp32), .accumulate = SHUNT_ACCUMULATE_FP32 };
	static const struct {
		int dtype;
		enum shunt_dtype format;
	} defaults[] = { { ncclUint8, SHUNT_F8E4M3B15_F16 }, { ncclFloat8e4m3, SHUNT_F8E4M3_F16 },
		{ ncclFloat8e5m2, SHUNT_F8E5M2_F16 }, { ncclFloat16, SHUNT_F16_OWN }, { ncclBfloat16, SHUNT_BF16 },
		{ ncclFloat32, SHUNT_F32 }, { ncclInt8, SHUNT_I8 } };
	const char *path;
	int op, other;

	CHECK(shunt_comm_numerics(r->comm, &(struct shunt_numerics){ .size = 1 }) == -EINVAL);
	CHECK(
	    shunt_comm_numerics(r->comm, &(struct shunt_numerics){ .size = sizeof(own), .accumulate = 4 }) == -EINVAL);
	CHECK(shunt_comm_numerics(&op, &own) == -ENOENT);
	CHECK(shunt_comm_numerics(r->comm, &mine) == 0);
	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
		if (numbers_are(r, defaults[i].dtype, ncclSum, defaults[i].format, SHUNT_SUM) ||
		    numbers_are(r, defaults[i].dtype, ncclMin, defaults[i].format, SHUNT_MIN))
			return 1;
	CHECK(shunt_path_of(r->comm, "allreduce", 8, ncclUint8, ncclSum, &path) == 0 && !strcmp(path, "simple"));
	CHECK(shunt_path_of(r->comm, "allgather", 8, ncclUint8, ncclSum, &path) == 0 && strcmp(path, "simple") != 0);
	NCCL(ncclGroupStart());
	CHECK(shunt_comm_numerics(r->comm, &own) == -EBUSY);
	NCCL(ncclGroupEnd());
	/* Operators go before the communicator's numbers; what they do not say is the communicator's. */
	CHECK(shunt_redop_create(r->comm, ncclAvg, ncclBfloat16, &own, &op) == 0);
	if (numbers_are(r, ncclBfloat16, op, SHUNT_BF16_OWN, SHUNT_AVG))
		return 1;
	CHECK(ncclAllReduce(&op, &op, 1, ncclFloat16, op, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(shunt_redop_create(r->comm, ncclProd, ncclUint8, &b15, &other) == 0 && other != op);
	if (numbers_are(r, ncclUint8, other, SHUNT_F8E4M3B15_F16, SHUNT_PROD))
		return 1;
	NCCL(ncclRedOpDestroy(other, r->comm));
	CHECK(ncclRedOpDestroy(other, r->comm) == ncclInvalidArgument);
	CHECK(shunt_redop_create(r->comm, ncclSum, ncclFloat16, &fp32, &other) == 0);
	if (numbers_are(r, ncclFloat16, other, SHUNT_F16, SHUNT_SUM))
		return 1;
	CHECK(shunt_redop_create(r->comm, ncclSum, ncclBfloat16, &mine, &other) == -EINVAL);
	CHECK(shunt_redop_create(r->comm, ncclSum, ncclFloat16, &b15, &other) == -EINVAL);
	CHECK(shunt_redop_create(r->comm, ncclSum, ncclInt32, &own, &other) == -EINVAL);
	CHECK(shunt_redop_create(r->comm, op, ncclBfloat16, &own, &other) == -EINVAL);
	return 0;
}

/* Nothing changes, and all ranks go on; what they agree on holds from there. */
RANKS_TEST(test_ranks_with_other_numbers_are_named, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	struct shunt_numerics numerics = { .size = sizeof(numerics),
		.accumulate = r->rank == 1 ? SHUNT_ACCUMULATE_OWN : SHUNT_ACCUMULATE_DEFAULT };

	CHECK(shunt_comm_numerics(r->comm, &numerics) == -EINVAL);
	CHECK(strstr(ncclGetLastError(r->comm),
	          "rank 1 wants unsigned bytes and accumulation in own, rank 0 unsigned and "
	          "fp32") != NULL);
	if (numbers_are(r, ncclFloat16, ncclSum, SHUNT_F16, SHUNT_SUM))
		return 1;
	numerics.accumulate = SHUNT_ACCUMULATE_OWN;
	CHECK(shunt_comm_numerics(r->comm, &numerics) == 0);
	if (numbers_are(r, ncclFloat16, ncclSum, SHUNT_F16_OWN, SHUNT_SUM))
		return 1;
	numerics.accumulate = SHUNT_ACCUMULATE_DEFAULT;
	CHECK(shunt_comm_numerics(r->comm, &numerics) == 0);
	return numbers_are(r, ncclFloat16, ncclSum, SHUNT_F16, SHUNT_SUM);
}

static int body_numbers_of_variable(struct rank *r)
{
	return numbers_are(r, ncclFloat16, ncclSum, SHUNT_F16_OWN, SHUNT_SUM) ||
	    numbers_are(r, ncclFloat32, ncclSum, SHUNT_F32, SHUNT_SUM);
}

TEST(test_variable_says_what_sums_are_accumulated_in)
{
	setenv("SHUNT_ACCUMULATE", "own", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 3, 0, body_numbers_of_variable), 0);
	unsetenv("SHUNT_ACCUMULATE");
}

RANKS_TEST(test_queries_and_wrong_calls_answer_as_nccl, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	int v = -1;
	ncclResult_t async = ncclInternalError;

	NCCL(ncclCommCount(r->comm, &v));
	CHECK(v == r->nranks);
	NCCL(ncclCommUserRank(r->comm, &v));
	CHECK(v == r->rank);
	NCCL(ncclCommCuDevice(r->comm, &v));
	CHECK(v == r->rank);
	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async == ncclSuccess);
	NCCL(ncclGetVersion(&v));
	CHECK(v == 22809);
	CHECK(ncclGetVersion(NULL) == ncclInvalidArgument);

	/* Calls that NCCL refuses, with NCCL's codes; the communicator stays usable. */
	char *buf = ranks_memory(r, 64);
	CHECK(ncclAllReduce(buf, buf, 1, 99, ncclSum, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(ncclAllReduce(buf, buf, 1, ncclFloat32, 77, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(ncclAllReduce(buf, buf, 1, ncclFloat32, ncclSum, NULL, r->stream) == ncclInvalidArgument);
	CHECK(ncclGroupEnd() == ncclInvalidUsage);
	NCCL(ncclAllReduce(buf, buf, 0, ncclFloat32, ncclSum, r->comm, r->stream));

	CHECK(strlen(ncclGetLastError(r->comm)) > 0);
	return allreduce_on(r, r->comm, r->rank, r->nranks, r->stream, 100, ncclFloat32, ncclSum, 0);
}

RANKS_TEST(test_split_children_reduce_among_themselves,
    ranks_run(RANKS_PROCESSES, 4, 0, body) + ranks_run(RANKS_THREADS, 5, 0, body))
{
	ncclComm_t half, reversed, none = (ncclComm_t)1, grandchild;
	int v;

	NCCL(ncclCommSplit(r->comm, r->rank % 2, r->rank, &half, NULL));
	NCCL(ncclCommSplit(r->comm, 7, -r->rank, &reversed, NULL));
	NCCL(ncclCommSplit(r->comm, r->rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL));
	NCCL(ncclCommUserRank(reversed, &v));
	CHECK(v == r->nranks - 1 - r->rank);
	CHECK(r->rank == 0 ? none == NULL : none != NULL);
	uint64_t seed = r->seed;
	r->seed = seed + r->rank % 2;
	int n = r->rank % 2 ? r->nranks / 2 : (r->nranks + 1) / 2;
	if (allreduce_on(r, half, r->rank / 2, n, r->stream, 5000, ncclInt32, ncclSum, 0))
		return 1;
	r->seed = seed;
	if (allreduce_on(r, reversed, v, r->nranks, r->stream, 5000, ncclFloat16, ncclSum, 0))
		return 1;
	NCCL(ncclCommSplit(half, 0, 0, &grandchild, NULL));
	NCCL(ncclCommDestroy(half));
	r->seed = seed + r->rank % 2;
	if (allreduce_on(r, grandchild, r->rank / 2, n, r->stream, 50, ncclInt64, ncclMax, 0))
		return 1;
	NCCL(ncclCommDestroy(grandchild));
	NCCL(ncclCommDestroy(reversed));
	if (none)
		NCCL(ncclCommDestroy(none));
	return 0;
}

RANKS_TEST(test_two_communicators_on_two_streams_do_not_mix,
    ranks_run(RANKS_PROCESSES, 3, 0, body) + ranks_run(RANKS_THREADS, 3, 0, body))
{
	enum { N = 20000, TIMES = 10 };
	ncclComm_t other;
	void *stream2, *a, *b;
	int32_t *host = malloc(N * 4);

	NCCL(ncclCommSplit(r->comm, 0, r->rank, &other, NULL));
	CHECK(shunt_stream_create(&stream2) == 0);
	CHECK(shunt_malloc(&a, N * 4) == 0 && shunt_malloc(&b, N * 4) == 0);
	for (int i = 0; i < N; i++)
		host[i] = i % 5 + 1;
	CHECK(shunt_memcpy(a, host, N * 4) == 0 && shunt_memcpy(b, host, N * 4) == 0);
	/* In place, so that every round multiplies by the number of ranks: a lost or doubled round shows. */
	for (int t = 0; t < TIMES; t++) {
		NCCL(ncclAllReduce(a, a, N, ncclInt32, ncclSum, r->comm, r->stream));
		NCCL(ncclAllReduce(b, b, N - 777, ncclInt32, ncclSum, other, stream2));
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_stream_synchronize(stream2) == 0);
	for (int which = 0; which < 2; which++) {
		CHECK(shunt_memcpy(host, which ? b : a, N * 4) == 0);
		for (int i = 0; i < N; i++) {
			uint32_t want = i % 5 + 1;

			for (int t = 0; t < TIMES && (!which || i < N - 777); t++)
				want *= (uint32_t)r->nranks;
			CHECK((uint32_t)host[i] == want);
		}
	}
	/* One communicator on two streams: issue order holds. */
	for (int t = 0; t < TIMES; t++)
		NCCL(ncclAllReduce(a, a, N, ncclInt32, ncclMax, r->comm, t & 1 ? stream2 : r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_stream_synchronize(stream2) == 0);
	NCCL(ncclCommDestroy(other));
	free(host);
	CHECK(shunt_free(a) == 0 && shunt_free(b) == 0 && shunt_stream_destroy(stream2) == 0);
	return 0;
}

RANKS_TEST(test_graph_replayed_and_mixed_with_eager_calls_stays_right, ranks_run(RANKS_PROCESSES, 3, 0, body))
{
	enum { N = 3001, REPLAYS = 200 };
	uint32_t *host = malloc(N * 4), want;
	void *buf, *graph;

	CHECK(shunt_malloc(&buf, N * 4) == 0);
	for (int i = 0; i < N; i++)
		host[i] = i + r->rank;
	/* The set-up may not happen inside a capture on every machine: one eager call first, as programs warm up. */
	CHECK(shunt_memcpy(buf, host, N * 4) == 0);
	NCCL(ncclAllReduce(buf, buf, N, ncclUint32, ncclSum, r->comm, r->stream));
	CHECK(shunt_capture_begin(r->stream) == 0);
	NCCL(ncclAllReduce(buf, buf, N, ncclUint32, ncclSum, r->comm, r->stream));
	NCCL(ncclAllReduce(buf, buf, 100, ncclUint32, ncclSum, r->comm, r->stream));
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int t = 0; t < REPLAYS; t++) {
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
		if (t % 7 == 0)
			NCCL(ncclAllReduce(buf, buf, 10, ncclUint32, ncclSum, r->comm, r->stream));
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_memcpy(host, buf, N * 4) == 0);
	for (int i = 0; i < N; i++) {
		int times = 0; /* multiplications by n after the first sum */

		for (int t = 0; t < REPLAYS; t++)
			times += 1 + (i < 100) + (t % 7 == 0 && i < 10);
		want = (uint32_t)(i * r->nranks + r->nranks * (r->nranks - 1) / 2);
		for (int t = 0; t < times; t++)
			want *= (uint32_t)r->nranks;
		CHECK(host[i] == want);
	}
	CHECK(shunt_graph_destroy(graph) == 0 && shunt_free(buf) == 0);
	free(host);
	return 0;
}

RANKS_TEST(test_group_runs_at_its_outermost_end, ranks_run(RANKS_PROCESSES, 3, 0, body))
{
	enum { N = 1000, K = 5 };
	int32_t host[N];
	void *buf[K];

	for (int k = 0; k < K; k++) {
		for (int i = 0; i < N; i++)
			host[i] = i + k + r->rank;
		CHECK(shunt_malloc(&buf[k], sizeof(host)) == 0 && shunt_memcpy(buf[k], host, sizeof(host)) == 0);
	}
	NCCL(ncclGroupStart());
	NCCL(ncclGroupStart());
	for (int k = 0; k < K; k++)
		NCCL(ncclAllReduce(buf[k], buf[k], N - k, ncclInt32, k & 1 ? ncclMax : ncclSum, r->comm, r->stream));
	NCCL(ncclGroupEnd());
	/* Nothing is on the stream before the outermost end. */
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(host, buf[0], sizeof(host)) == 0);
	CHECK(host[3] == 3 + r->rank);
	NCCL(ncclGroupEnd());
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int k = 0; k < K; k++) {
		CHECK(shunt_memcpy(host, buf[k], sizeof(host)) == 0);
		for (int i = 0; i < N; i++) {
			int sum = (i + k) * r->nranks + r->nranks * (r->nranks - 1) / 2, max = i + k + r->nranks - 1;

			CHECK(host[i] == (i >= N - k ? i + k + r->rank : k & 1 ? max : sum));
		}
	}
	/* An error inside makes the end fail, and nothing of the group runs. */
	CHECK(shunt_memcpy(buf[0], host, sizeof(host)) == 0);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(buf[0], buf[0], N, ncclInt32, ncclSum, r->comm, r->stream));
	CHECK(ncclAllReduce(buf[0], buf[0], N, 55, ncclSum, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(ncclGroupEnd() == ncclInvalidArgument);
	int32_t after[N];
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(after, buf[0], sizeof(after)) == 0);
	CHECK(!memcmp(after, host, sizeof(host)));
	for (int k = 0; k < K; k++)
		CHECK(shunt_free(buf[k]) == 0);
	return 0;
}

RANKS_TEST(test_premulsum_takes_each_ranks_own_factor, ranks_run(RANKS_PROCESSES, 3, 0, body))
{
	enum { N = 500 };
	float host[N], factor = 0.5f + r->rank;
	ncclRedOp_t by_value, by_pointer;
	void *in, *out, *dev;

	for (int i = 0; i < N; i++)
		host[i] = (float)(i + 1);
	CHECK(shunt_malloc(&in, sizeof(host)) == 0 && shunt_malloc(&out, sizeof(host)) == 0 &&
	    shunt_malloc(&dev, 4) == 0);
	CHECK(shunt_memcpy(in, host, sizeof(host)) == 0 && shunt_memcpy(dev, &factor, 4) == 0);
	NCCL(ncclRedOpCreatePreMulSum(&by_value, &factor, ncclFloat32, ncclScalarHostImmediate, r->comm));
	NCCL(ncclRedOpCreatePreMulSum(&by_pointer, dev, ncclFloat32, ncclScalarDevice, r->comm));
	factor = 0; /* the value was copied */
	for (int which = 0; which < 2; which++) {
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(in, out, N, ncclFloat32, which ? by_pointer : by_value, r->comm, r->stream));
		NCCL(ncclRedOpDestroy(which ? by_pointer : by_value, r->comm)); /* legal before the group ends */
		NCCL(ncclGroupEnd());
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(host, out, sizeof(host)) == 0);
		for (int i = 0; i < N; i++) {
			float want = 0;

			for (int p = 0; p < r->nranks; p++)
				want = p ? want + (float)(i + 1) * (0.5f + p) : (float)(i + 1) * 0.5f;
			CHECK(host[i] == want);
		}
	}
	CHECK(ncclAllReduce(in, out, N, ncclFloat32, by_value, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(shunt_free(in) == 0 && shunt_free(out) == 0 && shunt_free(dev) == 0);
	return 0;
}

RANKS_TEST(test_counters_name_the_path, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	struct shunt_counter rows[16];
	const char *path = NULL;
	size_t n = 0;
	void *buf = ranks_memory(r, 4096);

	CHECK(shunt_path_of(r->comm, "allreduce", 16, ncclFloat32, ncclSum, &path) == 0 && !strcmp(path, "oneshot"));
	CHECK(shunt_path_of(r->comm, "All_Reduce", 16, ncclFloat32, ncclSum, &path) == 0 && !strcmp(path, "oneshot"));
	CHECK(shunt_path_of(r->comm, "allreduce", 0, ncclFloat32, ncclSum, &path) == 0);
	for (int i = 0; i < 3; i++)
		NCCL(ncclAllReduce(buf, buf, 16, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_counters(r->comm, rows, 16, &n) == 0 && n == 1);
	CHECK(!strcmp(rows[0].op, "allreduce") && !strcmp(rows[0].path, "oneshot") && rows[0].calls == 3 &&
	    rows[0].bytes == 192);
	CHECK(shunt_counters((void *)&n, rows, 16, &n) == -2);
	return 0;
}

/* What it wants is gone when it has said so, but for the one who asked. */
static const char *want_unregistered(void *arg, const struct shunt_plan_request *request)
{
	shunt_plan_unregister("twoshot");
	return "twoshot";
}

RANKS_TEST(test_path_of_names_a_plan_that_goes_meanwhile, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	char *text = plan_twoshot(2, 1, "sum"), reason[256];
	const char *path = NULL;

	mallopt(M_PERTURB, 0x5a); /* what is freed is overwritten */
	CHECK(shunt_plan_register("mine", text, strlen(text), reason, sizeof(reason)) == 0);
	shunt_plan_set_selector(want_unregistered, NULL);
	CHECK(shunt_path_of(r->comm, "allreduce", 1024, ncclFloat32, ncclSum, &path) == 0);
	CHECK(!strcmp(path, "twoshot"));
	shunt_plan_set_selector(NULL, NULL);
	free(text);
	return 0;
}

RANKS_TEST(test_init_all_one_thread_drives_all_devices, ranks_run(RANKS_PROCESSES, 1, 1, body))
{
	enum { N = 4, COUNT = 1000 };
	ncclComm_t comms[N];
	void *stream[N], *buf[N];
	int32_t host[COUNT];

	NCCL(ncclCommInitAll(comms, N, NULL));
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		for (int i = 0; i < COUNT; i++)
			host[i] = i * (d + 1);
		CHECK(shunt_stream_create(&stream[d]) == 0 && shunt_malloc(&buf[d], sizeof(host)) == 0);
		CHECK(shunt_memcpy(buf[d], host, sizeof(host)) == 0);
	}
	for (int t = 0; t < 3; t++) {
		NCCL(ncclGroupStart());
		for (int d = 0; d < N; d++)
			NCCL(ncclAllReduce(
			    buf[d], buf[d], COUNT, ncclInt32, t ? ncclMax : ncclSum, comms[d], stream[d]));
		NCCL(ncclGroupEnd());
	}
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_synchronize(stream[d]) == 0 && shunt_memcpy(host, buf[d], sizeof(host)) == 0);
		for (int i = 0; i < COUNT; i++)
			CHECK(host[i] == i * 10);
	}
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		NCCL(ncclCommDestroy(comms[d]));
		CHECK(shunt_free(buf[d]) == 0 && shunt_stream_destroy(stream[d]) == 0);
	}
	return 0;
}

static int reduces_on_two_devices(struct rank *r)
{
	void *stream;

	shunt_device_set(r->rank % 2);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	CHECK(shunt_stream_create(&stream) == 0);
	for (size_t count = 1; count <= 300000; count = 17 * count + 3)
		if (allreduce_on(r, r->comm, r->rank, r->nranks, stream, count, ncclFloat32, ncclSum, count & 1))
			return 1;
	NCCL(ncclCommDestroy(r->comm));
	CHECK(shunt_stream_destroy(stream) == 0);
	return 0;
}

/* Four ranks on two devices, which is refused unless it is asked for; of the same device in ncclCommInitAll as well. */
static int body_shared_refused(struct rank *r)
{
	ncclComm_t comms[2];
	float *buf;

	shunt_device_set(r->rank % 2);
	buf = ranks_memory(r, 64);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	CHECK(ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, NULL) == ncclInvalidUsage);
	CHECK(strstr(ncclGetLastError(NULL), "SHUNT_MULTI_RANK_GPU") != NULL);
	NCCL(ncclCommDestroy(r->comm));
	CHECK(ncclCommInitAll(comms, 2, (int[]){ 1, 1 }) != ncclSuccess);
	return 0;
}

static int body_init_all_shared(struct rank *r)
{
	ncclComm_t comms[2];

	NCCL(ncclCommInitAll(comms, 2, (int[]){ 1, 1 }));
	for (int i = 0; i < 2; i++)
		NCCL(ncclCommDestroy(comms[i]));
	return 0;
}

/* Without a real NCCL nothing else can serve them: all ranks' first call fails. */
static int body_no_link(struct rank *r)
{
	void *buf;

	CHECK(shunt_malloc(&buf, 64) == 0);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	CHECK(ncclAllReduce(buf, buf, 4, ncclInt32, ncclSum, r->comm, r->stream) != ncclSuccess);
	CHECK(strstr(ncclGetLastError(NULL), getenv("NO_LINK")));
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_call_that_no_link_serves_fails_on_all)
{
	static const char *const cases[][4] = { { "*:none", "SHUNT_SHARED_BYTES", "64k",
		                                    "SHUNT_SHARED_BYTES allows 65536" },
		{ "*:none", "NCCL_SHM_DISABLE", "1", "NCCL_SHM_DISABLE forbids the host's memory" },
		{ "*:none,lie=oneway", "SHUNT_SELFTEST", "1",
		    "the self-test of shared links found that nothing arrives" } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		setenv("SHUNT_SIM_LINKS", cases[i][0], 1);
		setenv(cases[i][1], cases[i][2], 1);
		setenv("NO_LINK", cases[i][3], 1);
		if (ranks_run(RANKS_PROCESSES, 2, 1, body_no_link))
			fail_msg("%s %s", cases[i][0], cases[i][1]);
		unsetenv(cases[i][1]);
	}
	unsetenv("SHUNT_SIM_LINKS");
}

TEST(test_ranks_share_a_device_where_they_may)
{
	assert_int_equal(ranks_run(RANKS_PROCESSES, 4, 1, body_shared_refused), 0);
	setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 4, 1, reduces_on_two_devices), 0);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 1, 1, body_init_all_shared), 0);
	unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

static atomic_int *met; /* ranks of a test, or the process of one */

/* Rank 1 dies before it joins the first collective: the others get an error, not a hang. */
static int body_dead_peer(struct rank *r)
{
	void *buf;

	CHECK(shunt_malloc(&buf, 64) == 0);
	if (r->rank == 1) {
		atomic_store(met, getpid());
		_exit(0);
	}
	/* Until then its service takes part in the set-up. */
	CHECK(until_counted(met, 1, "ranks on their way out") && until_process_ends(*met));
	ncclResult_t res = ncclAllReduce(buf, buf, 4, ncclFloat32, ncclSum, r->comm, r->stream);
	CHECK(res != ncclSuccess);
	ncclResult_t async = ncclSuccess;
	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async != ncclSuccess);
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

static int body_dead_peer_outer(struct rank *r)
{
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	return body_dead_peer(r);
}

TEST(test_rank_that_dies_before_the_first_call_is_an_error_for_the_rest)
{
	atomic_store(met, 0);
	assert_int_equal(ranks_run(RANKS_PROCESSES, 3, 1, body_dead_peer_outer), 0);
}

/* Rank 1 never calls: the deadline ends the kernels of the others, GetAsyncError reports it, abort frees. */
/* The streams of a group wait for each other, also for one on which a plan runs. */
RANKS_TEST(test_plans_of_a_group_on_two_streams_wait_for_both, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	enum { N = 1024 };
	char *text = plan_twoshot(2, 1, "sum"), reason[256];
	float host[2][N], *buf[2];
	ncclComm_t other;
	void *second;

	NCCL(ncclCommSplit(r->comm, 0, r->rank, &other, NULL));
	CHECK(shunt_plan_register("mine", text, strlen(text), reason, sizeof(reason)) == 0);
	free(text);
	CHECK(shunt_stream_create(&second) == 0);
	for (int k = 0; k < 2; k++) {
		for (int i = 0; i < N; i++)
			host[k][i] = (float)(k + 1);
		CHECK(shunt_malloc((void **)&buf[k], sizeof(host[k])) == 0 &&
		    shunt_memcpy(buf[k], host[k], sizeof(host[k])) == 0);
	}
	for (int round = 0; round < 3; round++) {
		if (r->rank)
			pause_us(PAUSE_LATE, 200000);
		/*
		 * Too small for the plan. What the group's second call gets comes late, and on its first one's stream.
		 */
		NCCL(ncclAllReduce(buf[1], buf[1], 4, ncclFloat32, ncclSum, other, r->stream));
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(buf[0], buf[0], N, ncclFloat32, ncclSum, r->comm, r->stream));
		NCCL(ncclAllReduce(buf[1], buf[1], N, ncclFloat32, ncclSum, r->comm, second));
		NCCL(ncclGroupEnd());
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(
	    shunt_memcpy(host[0], buf[0], sizeof(host[0])) == 0 && shunt_memcpy(host[1], buf[1], sizeof(host[1])) == 0);
	CHECK(host[0][0] == 8 && host[0][N - 1] == 8 && host[1][N - 1] == 16);
	CHECK(host[1][0] == 2 * 64 && host[1][3] == 2 * 64);
	CHECK(shunt_stream_destroy(second) == 0 && shunt_free(buf[0]) == 0 && shunt_free(buf[1]) == 0);
	NCCL(ncclCommDestroy(other));
	return 0;
}

/* As containers are that share the host's addresses, or reach each other's. */
RANKS_TEST(test_rank_in_another_network_namespace_is_told_so, ranks_run(RANKS_PROCESSES, 2, 1, body))
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, 2, r->id, r->rank));
	if (r->rank && unshare(CLONE_NEWNET)) {
		fprintf(stderr, "no network namespace can be made here\n");
		return 0;
	}
	if (r->rank) {
		CHECK(ncclAllReduce(r, r, 1, ncclInt32, ncclSum, comm, r->stream) != ncclSuccess);
		CHECK(strstr(ncclGetLastError(NULL),
		          "rank 0 has ended, or runs as another user, or in another network namespace") != NULL);
	}
	NCCL(ncclCommAbort(comm));
	return 0;
}

RANKS_TEST(test_mismatched_nranks_fails_on_all_ranks, ranks_run(RANKS_PROCESSES, 3, 1, body))
{
	ncclComm_t comm;

	/* One rank thinks that there are more ranks: nobody gets a communicator. */
	CHECK(ncclCommInitRank(&comm, r->nranks + (r->rank == 1), r->id, r->rank) != ncclSuccess);
	return 0;
}

RANKS_TEST(test_bad_init_arguments_and_one_rank, ranks_run(RANKS_PROCESSES, 1, 1, body))
{
	ncclComm_t comm;

	CHECK(ncclCommInitRank(&comm, 0, r->id, 0) == ncclInvalidArgument);
	CHECK(ncclCommInitRank(&comm, 2, r->id, 2) == ncclInvalidArgument);
	CHECK(ncclCommInitRank(&comm, 2, r->id, -1) == ncclInvalidArgument);
	CHECK(ncclCommInitRank(NULL, 1, r->id, 0) == ncclInvalidArgument);
	NCCL(ncclCommInitRank(&comm, 1, r->id, 0));
	CHECK(ncclCommInitRank(&r->comm, 1, r->id, 0) != ncclSuccess); /* an id is used once */
	void *a, *b;
	float v[2] = { 3, 4 }, w[2];
	CHECK(shunt_malloc(&a, 8) == 0 && shunt_malloc(&b, 8) == 0 && shunt_memcpy(a, v, 8) == 0);
	NCCL(ncclAllReduce(a, b, 2, ncclFloat32, ncclSum, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(w, b, 8) == 0 && w[0] == 3 && w[1] == 4);
	NCCL(ncclCommDestroy(comm));
	NCCL(ncclCommDestroy(NULL));
	NCCL(ncclCommAbort(NULL));
	return 0;
}

/* What shunt/device.h says of edges. The device layer is not opened in the process that forks the ranks. */
RANKS_TEST(test_device_header_is_right_about_edges, ranks_run(RANKS_PROCESSES, 1, 1, body))
{
	void *stream, *p, *shared, *a, *b, *graph;
	char name[8], bytes[16];
	float us;

	CHECK(shunt_device_name(0, name, sizeof(name)) == 0 && !strcmp(name, "Shunt s"));
	CHECK(shunt_device_name(99, name, sizeof(name)) == -EINVAL && shunt_device_set(-1) == -EINVAL);
	CHECK(shunt_malloc(&p, 0) == 0 && p && shunt_free(p) == 0);
	CHECK(shunt_malloc_shared(&shared, 0) == -EINVAL);
	CHECK(shunt_malloc_shared(&shared, 10) == 0 && (uintptr_t)shared % 4096 == 0);
	CHECK(shunt_malloc(&p, sizeof(bytes)) == 0 && (uintptr_t)p % 256 == 0);
	CHECK(shunt_stream_create(&stream) == 0);
	CHECK(shunt_event_create(&a) == 0 && shunt_event_create(&b) == 0);
	CHECK(shunt_event_record(a, stream) == 0);
	CHECK(shunt_event_elapsed_us(a, b, &us) == -EINVAL);
	CHECK(shunt_memset_async(p, 0x1a5, sizeof(bytes), stream) == 0);
	CHECK(shunt_event_record(b, stream) == 0 && shunt_stream_synchronize(stream) == 0);
	CHECK(shunt_event_elapsed_us(a, b, &us) == 0 && us >= 0);
	CHECK(shunt_memcpy(bytes, p, sizeof(bytes)) == 0 && (unsigned char)bytes[15] == 0xa5);
	CHECK(shunt_capture_begin(NULL) == -EINVAL);
	CHECK(shunt_capture_begin(stream) == 0 && shunt_memset_async(p, 7, sizeof(bytes), stream) == 0);
	CHECK(shunt_capture_end(stream, &graph) == 0);
	CHECK(shunt_graph_launch(graph, stream) == 0 && shunt_stream_synchronize(stream) == 0);
	CHECK(shunt_memcpy(bytes, p, sizeof(bytes)) == 0 && bytes[0] == 7);
	/* From another device. */
	CHECK(shunt_device_set(1) == 0 && shunt_free(p) == 0 && shunt_free(shared) == 0 && shunt_device_set(0) == 0);
	CHECK(shunt_free(NULL) == 0 && shunt_event_destroy(NULL) == 0 && shunt_stream_destroy(NULL) == 0 &&
	    shunt_graph_destroy(NULL) == 0);
	CHECK(shunt_graph_destroy(graph) == 0 && shunt_event_destroy(a) == 0 && shunt_event_destroy(b) == 0 &&
	    shunt_stream_destroy(stream) == 0);
	return 0;
}

TESTS_BEGIN
{
	met = mmap(NULL, sizeof(*met), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(met != MAP_FAILED);
	own_standalone();
}
