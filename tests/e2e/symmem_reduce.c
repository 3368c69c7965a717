/* SPDX-License-Identifier: MIT */
/* Reductions in windows, by kernels that pull. */
#include "tests/e2e/symmem_job.h"
#include "tests/support/limits.h"
#include "shunt/shunt.h"
#include "tools/common/reference.h"

/* A call whose input lies in a window; the output of an all-reduce, too. */
struct reduction {
	enum shunt_kind kind;
	int dtype, op; /* enum shunt_dtype, enum shunt_redop */
	int root;
	size_t count, at;      /* elements of a result; bytes */
	bool in_place, staged; /* staged: in memory that is no window */
	uint64_t seed;
};

static size_t reduction_bytes(const struct reduction *f)
{
	return f->count * shunt_dtype_bytes[f->dtype];
}

static size_t reduction_inputs(const struct place *p, const struct reduction *f)
{
	return f->count * shunt_kind_parts(f->kind, SHUNT_SIDE_SEND, p->n);
}

static char *reduction_in(const struct place *p, const struct reduction *f)
{
	return (f->staged ? p->plain : p->window) + f->at;
}

static char *reduction_out(const struct place *p, const struct reduction *f)
{
	if (f->in_place)
		return reduction_in(p, f) + shunt_kind_part_of(f->kind, SHUNT_SIDE_SEND, p->rank) * reduction_bytes(f);
	return (f->staged || f->kind != SHUNT_ALLREDUCE ? p->plain : p->window) + ROOM / 2 + f->at;
}

static bool reduction_receives(const struct place *p, const struct reduction *f)
{
	return f->kind != SHUNT_REDUCE || p->rank == f->root;
}

/* What each rank sends; every rank can tell. Freed by free_inputs. */
static void make_inputs(const struct place *p, const struct reduction *f, void *in[8])
{
	uint64_t seed = f->seed + 1;

	for (int q = 0; q < p->n; q++) {
		in[q] = malloc(reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype]);
		ref_fill(in[q], reduction_inputs(p, f), f->dtype, &seed);
	}
}

static void free_inputs(const struct place *p, void *in[8])
{
	for (int q = 0; q < p->n; q++)
		free(in[q]);
}

/* What a call may write, and what lies around it. */
static int reduction_wipe(struct rank *r, const struct place *p, const struct reduction *f)
{
	size_t bytes = f->at + reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype] + 2 * GUARD;
	char *host = malloc(bytes);

	memset(host, 0x5a, bytes);
	for (size_t at = 0; at < ROOM; at += ROOM / 2)
		CHECK(shunt_memcpy(p->window + at, host, bytes) == 0 && shunt_memcpy(p->plain + at, host, bytes) == 0);
	free(host);
	return 0;
}

/* A call that failed wrote nothing. */
static int reduction_untouched(struct rank *r, const struct place *p, const struct reduction *f)
{
	size_t bytes = f->count * shunt_dtype_bytes[f->dtype];
	char *host = malloc(bytes);

	CHECK(shunt_memcpy(host, reduction_out(p, f), bytes) == 0);
	for (size_t i = 0; i < bytes; i++)
		CHECK(host[i] == 0x5a);
	free(host);
	return 0;
}

static int reduction_fill(struct rank *r, const struct place *p, const struct reduction *f)
{
	void *in[8];

	make_inputs(p, f, in);
	CHECK(shunt_memcpy(reduction_in(p, f), in[p->rank], reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype]) == 0);
	free_inputs(p, in);
	return 0;
}

/* result (may be NULL): what came out. */
static int reduction_check(struct rank *r, const struct place *p, const struct reduction *f, char *result)
{
	size_t bytes = reduction_bytes(f), in_bytes = reduction_inputs(p, f) * shunt_dtype_bytes[f->dtype], first = 0,
	       wrong;
	char *host = malloc(in_bytes + 2 * GUARD), *want = malloc(in_bytes);
	void *in[8];

	make_inputs(p, f, in);
	ref_allreduce(want, (const void *const *)in, p->n, reduction_inputs(p, f), f->dtype, f->op, NULL);
	if (reduction_receives(p, f)) {
		CHECK(shunt_memcpy(host, reduction_out(p, f) - GUARD, bytes + 2 * GUARD) == 0);
		wrong = ref_compare(host + GUARD, want + shunt_kind_part_of(f->kind, SHUNT_SIDE_SEND, p->rank) * bytes,
		    f->count, f->dtype, &first);
		if (wrong)
			fprintf(stderr,
			    "rank %d of %d: %s of %zu %s, %s, at %zu%s%s: %zu elements differ, the first is %zu\n",
			    p->rank, p->n, shunt_kind_name(f->kind), f->count, shunt_dtype_name(f->dtype),
			    shunt_redop_name(f->op), f->at, f->in_place ? ", in place" : "",
			    f->staged ? ", staged" : "", wrong, first);
		CHECK(!wrong);
		/* What lies around is as it was, where it is not the other parts of what was sent. */
		for (int i = 0; i < GUARD && !(f->in_place && f->kind == SHUNT_REDUCESCATTER); i++)
			CHECK(host[i] == 0x5a && host[GUARD + bytes + (size_t)i] == 0x5a);
		if (result)
			memcpy(result, host + GUARD, bytes);
	}
	CHECK(shunt_memcpy(host, reduction_in(p, f), in_bytes) == 0);
	if (f->in_place && reduction_receives(p, f)) /* the rest of the input is as it was */
		memcpy((char *)in[p->rank] + (reduction_out(p, f) - reduction_in(p, f)),
		    host + (reduction_out(p, f) - reduction_in(p, f)), bytes);
	CHECK(!memcmp(host, in[p->rank], in_bytes));
	free_inputs(p, in);
	free(host);
	free(want);
	return 0;
}

static ncclResult_t reduction_enqueue(const struct place *p, const struct reduction *f)
{
	void *in = reduction_in(p, f), *out = reduction_receives(p, f) || f->in_place ? reduction_out(p, f) : NULL;

	switch (f->kind) {
	case SHUNT_ALLREDUCE:
		return ncclAllReduce(in, out, f->count, f->dtype, f->op, p->comm, p->stream);
	case SHUNT_REDUCESCATTER:
		return ncclReduceScatter(in, out, f->count, f->dtype, f->op, p->comm, p->stream);
	default:
		return ncclReduce(in, out, f->count, f->dtype, f->op, f->root, p->comm, p->stream);
	}
}

static int run_reduction(
    struct rank *r, const struct place *p, const struct reduction *f, const char *path, char *result)
{
	long before = ranks_count_calls(p->comm, shunt_kind_name(f->kind), path);

	if (reduction_wipe(r, p, f) || reduction_fill(r, p, f))
		return 1;
	NCCL(reduction_enqueue(p, f));
	if (symm_settle(r, p))
		return 1;
	if (ranks_count_calls(p->comm, shunt_kind_name(f->kind), path) != before + 1)
		fprintf(stderr, "rank %d of %d: %s of %zu did not take the path %s\n", p->rank, p->n,
		    shunt_kind_name(f->kind), f->count, path);
	CHECK(ranks_count_calls(p->comm, shunt_kind_name(f->kind), path) == before + 1);
	return reduction_check(r, p, f, result);
}

#define REDUCTION(place, path, ...) \
	do { \
		if (run_reduction(r, place, &(struct reduction){ __VA_ARGS__ }, path, NULL)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)

static const enum shunt_kind reduce_kinds[] = { SHUNT_ALLREDUCE, SHUNT_REDUCESCATTER, SHUNT_REDUCE };
enum { REDUCE_KINDS = sizeof(reduce_kinds) / sizeof(reduce_kinds[0]), SIM_ONESHOT = 16 << 10 };

/* On the sim. */
static const char *staged_path(const struct reduction *f)
{
	size_t bytes = reduction_bytes(f);

	if (bytes <= SIM_ONESHOT)
		return f->kind == SHUNT_REDUCE ? "ll128" : "oneshot";
	if (f->kind == SHUNT_ALLREDUCE && bytes <= 4 * SIM_ONESHOT)
		return "twoshot";
	if (f->kind == SHUNT_ALLREDUCE || bytes > 2 * SIM_ONESHOT)
		return "simple";
	return f->kind == SHUNT_REDUCE ? "twoshot" : "ll128";
}

/* From windows and by way of the scratch: one result, to the bit. */
static int both_ways(struct rank *r, const struct place *p, struct reduction f)
{
	char *direct = calloc(1, reduction_bytes(&f)), *staged = calloc(1, reduction_bytes(&f));

	if (run_reduction(r, p, &f, "direct", direct))
		return 1;
	f.staged = true;
	if (run_reduction(r, p, &f, staged_path(&f), staged))
		return 1;
	CHECK(!memcmp(direct, staged, reduction_bytes(&f)));
	free(direct);
	free(staged);
	return 0;
}

/* odd: sizes and places with the types of training; else every type and operator. */
static int body_reductions(struct rank *r)
{
	static const size_t counts[] = { 1, 3, 16, 63, 1000, 4099, 9001 };
	static const int hot[] = { SHUNT_F32, SHUNT_BF16, SHUNT_F16 };
	ncclWindow_t win;
	struct place p;
	int n = 0;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	for (size_t i = 0; symm_shared->odd == 1 && i < sizeof(counts) / sizeof(counts[0]); i++)
		for (int k = 0; k < REDUCE_KINDS; k++)
			for (int in_place = 0; in_place < 2; in_place++)
				for (int off = 0; off < 2; off++, n++)
					if ((reduce_kinds[k] != SHUNT_REDUCESCATTER || counts[i] < 5000) &&
					    both_ways(r, &p,
					        (struct reduction){ reduce_kinds[k], hot[n / 2 % 3],
					            n % 5 ? SHUNT_SUM : SHUNT_AVG, n % p.n, counts[i],
					            GUARD + (off ? 4 * (size_t)(n % 16) : 0), in_place,
					            .seed = (uint64_t)n }))
						return 1;
	for (int dtype = 0; symm_shared->odd != 1 && dtype < SHUNT_NDTYPES; dtype++)
		for (int op = 0; op < SHUNT_PREMUL; op++, n++)
			if (both_ways(r, &p,
			        (struct reduction){ reduce_kinds[n % REDUCE_KINDS], dtype, op, n % p.n,
			            777 + 8 * (size_t)(n % 3), GUARD + (size_t)(n % 4 ? 0 : 8), n & 4,
			            .seed = (uint64_t)n }))
				return 1;
	NCCL(ncclCommWindowDeregister(p.comm, win));
	REDUCTION(&p, "oneshot", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 1000, .at = GUARD);
	return symm_end(r, &p);
}

TEST(test_direct_of_any_size_and_offset_matches_staged_reductions)
{
	for (int n = 2; n <= 4; n++)
		assert_int_equal(symm_run_with(RANKS_PROCESSES, n, body_reductions, 1, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 5, body_reductions, 1, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 8, body_reductions, 1, NULL), 0);
}

TEST(test_direct_of_every_type_and_operator_matches_staged_reductions)
{
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reductions, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_reductions, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_THREADS, 8, body_reductions, 0, NULL), 0);
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_reductions, 0, symm_set_check), 0);
}

/* Input and output in windows of their own, and what is staged for want of one; a factor that is each rank's own. */
RANKS_TEST(test_direct_needs_windows_for_all_that_peers_reach,
    symm_run(RANKS_PROCESSES, 3, body) + symm_run(RANKS_THREADS, 2, body))
{
	struct reduction f = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, .count = 6001, .at = GUARD };
	ncclWindow_t in, out;
	struct place p;
	ncclRedOp_t op;
	float factor = (float)(1 + r->rank), host[100];

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM / 2, &in, NCCL_WIN_COLL_SYMMETRIC));
	if (run_reduction(r, &p, &f, staged_path(&f), NULL)) /* the output lies in none */
		return 1;
	REDUCTION(&p, "direct", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 3001, .at = GUARD);
	NCCL(ncclCommWindowRegister(p.comm, p.window + ROOM / 2, ROOM / 2, &out, NCCL_WIN_COLL_SYMMETRIC));
	if (run_reduction(r, &p, &f, "direct", NULL))
		return 1;
	NCCL(ncclCommWindowDeregister(p.comm, in));
	if (run_reduction(r, &p, &f, staged_path(&f), NULL))
		return 1;
	/* Both for the first time in one call. */
	NCCL(ncclCommWindowDeregister(p.comm, out));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM / 2, &in, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclCommWindowRegister(p.comm, p.window + ROOM / 2, ROOM / 2, &out, NCCL_WIN_COLL_SYMMETRIC));
	if (run_reduction(r, &p, &f, "direct", NULL))
		return 1;
	NCCL(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, p.comm));
	for (int i = 0; i < 100; i++)
		host[i] = (float)i;
	CHECK(shunt_memcpy(p.window, host, sizeof(host)) == 0);
	NCCL(ncclAllReduce(p.window, p.window, 100, ncclFloat32, op, p.comm, p.stream));
	if (symm_settle(r, &p))
		return 1;
	CHECK(ranks_count_calls(p.comm, "allreduce", "direct") == 2);
	CHECK(shunt_memcpy(host, p.window, sizeof(host)) == 0);
	for (int i = 0; i < 100; i++)
		CHECK(host[i] == (float)(i * p.n * (p.n + 1) / 2));
	NCCL(ncclRedOpDestroy(op, p.comm));
	return symm_end(r, &p);
}

/* Eager, in a group with copies, and in a graph that is replayed. */
static int body_reduction_group(struct rank *r)
{
	enum { REPLAYS = 20, EACH = 60000 };
	struct reduction f[] = {
		{ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 1003, .at = GUARD, .in_place = true },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, .count = 2500, .at = GUARD + EACH },
		{ SHUNT_REDUCE, SHUNT_F32, SHUNT_SUM, 1, .count = 2500, .at = GUARD + 2 * EACH },
		{ SHUNT_REDUCE, SHUNT_I32, SHUNT_MAX, 0, .count = 99, .at = GUARD + 3 * EACH },
		{ SHUNT_ALLREDUCE, SHUNT_BF16, SHUNT_AVG, .count = 5001, .at = GUARD + 4 * EACH, .in_place = true },
	};
	enum { CALLS = sizeof(f) / sizeof(f[0]) };
	struct call c = { .kind = ALLTOALL, .part = 3000, .at = GUARD + 6 * EACH };
	ncclWindow_t win;
	struct place p;
	void *graph = NULL;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (symm_shared->odd == 1)
		CHECK(shunt_capture_begin(p.stream) == 0);
	for (int t = 0; t < REPLAYS; t++) {
		if (t || symm_shared->odd != 1) {
			if (symm_fill(r, &p, &c))
				return 1;
			for (int i = 0; i < CALLS; i++) {
				f[i].seed = (uint64_t)(t * CALLS + i);
				if (reduction_fill(r, &p, &f[i]))
					return 1;
			}
		}
		if (graph) {
			CHECK(shunt_graph_launch(graph, p.stream) == 0);
		} else {
			NCCL(ncclGroupStart());
			for (int i = 0; i < CALLS; i++) {
				NCCL(reduction_enqueue(&p, &f[i]));
				if (i == 1)
					NCCL(symm_enqueue(&p, &c));
			}
			NCCL(ncclGroupEnd());
		}
		if (symm_shared->odd == 1 && !t) {
			CHECK(shunt_capture_end(p.stream, &graph) == 0);
			continue;
		}
		if (symm_settle(r, &p) || symm_check(r, &p, &c))
			return 1;
		for (int i = 0; i < CALLS; i++)
			if (reduction_check(r, &p, &f[i], NULL))
				return 1;
	}
	if (graph)
		CHECK(shunt_graph_destroy(graph) == 0);
	else
		CHECK(ranks_count_calls(p.comm, "reduce", "direct") == 2 * REPLAYS &&
		    ranks_count_calls(p.comm, "alltoall", "ce") == REPLAYS);
	return symm_end(r, &p);
}

TEST(test_direct_in_groups_and_graphs_works_with_ce)
{
	for (int graph = 0; graph < 2; graph++) {
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_reduction_group, graph, NULL), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 4, body_reduction_group, graph, NULL), 0);
	}
	assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reduction_group, 0, symm_set_check), 0);
}

/*
 * Rank 1 has its input elsewhere, or (odd REDUCE_KINDS) only the output of an all-reduce: all ranks know, and none
 * touches another's memory.
 */
static int body_reduction_misplaced(struct rank *r)
{
	struct reduction f = { reduce_kinds[symm_shared->odd % REDUCE_KINDS], SHUNT_F32, SHUNT_SUM, .count = 1000,
		.at = GUARD };
	ncclResult_t async = ncclSuccess;
	ncclWindow_t win;
	struct place p;
	char *in, *out;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	REDUCTION(&p, "direct", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 700, .at = GUARD);
	if (reduction_wipe(r, &p, &f) || reduction_fill(r, &p, &f))
		return 1;
	in = reduction_in(&p, &f);
	out = reduction_out(&p, &f);
	in += r->rank == 1 && symm_shared->odd < REDUCE_KINDS ? GUARD : 0;
	out += r->rank == 1 && symm_shared->odd >= REDUCE_KINDS ? GUARD : 0;
	if (f.kind == SHUNT_ALLREDUCE)
		NCCL(ncclAllReduce(in, out, f.count, f.dtype, f.op, p.comm, p.stream));
	else if (f.kind == SHUNT_REDUCE)
		NCCL(ncclReduce(in, out, f.count, f.dtype, f.op, 0, p.comm, p.stream));
	else
		NCCL(ncclReduceScatter(in, out, f.count, f.dtype, f.op, p.comm, p.stream));
	CHECK(shunt_stream_synchronize(p.stream) == 0);
	NCCL(ncclCommGetAsyncError(p.comm, &async));
	CHECK(async == ncclInvalidUsage && strstr(ncclGetLastError(p.comm), "another offset of its window"));
	symm_barrier(r, 0);
	return reduction_untouched(r, &p, &f) || symm_end_broken(r, &p, false);
}

TEST(test_direct_from_another_offset_than_promised_is_an_error)
{
	for (int odd = 0; odd <= REDUCE_KINDS; odd++) {
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_reduction_misplaced, odd, NULL), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 2, body_reduction_misplaced, odd, NULL), 0);
	}
}

/* Rank 0 calls alone, is aborted, and has changed nothing; or its deadline passes, which is short for that call. */
enum { IN_VAIN_MS = 1000 };
RANKS_TEST(test_direct_ends_with_abort_and_deadline_and_changes_nothing,
    symm_run_with(RANKS_PROCESSES, 2, body, 0, NULL) + symm_run_with(RANKS_THREADS, 3, body, 0, NULL) +
        symm_run_with(RANKS_PROCESSES, 2, body, 1, NULL))
{
	struct reduction f = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, .count = 1000, .at = GUARD };
	ncclResult_t async = ncclSuccess;
	struct symm_lone_call lone;
	ncclWindow_t win;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	REDUCTION(&p, "direct", SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, .count = 700, .at = GUARD);
	if (reduction_wipe(r, &p, &f) || reduction_fill(r, &p, &f))
		return 1;
	symm_barrier(r, 1);
	if (r->rank == 0) {
		if (symm_shared->odd)
			limits_of_kernels(IN_VAIN_MS);
		symm_lone_call_begin(&lone, p.comm, symm_shared->odd ? NULL : KERNEL_WAITS);
		NCCL(reduction_enqueue(&p, &f));
		if (symm_lone_call_end(r, &lone, p.stream))
			return 1;
		if (symm_shared->odd) {
			NCCL(ncclCommGetAsyncError(p.comm, &async));
			CHECK(async == ncclRemoteError);
		}
	}
	symm_barrier(r, 0);
	return reduction_untouched(r, &p, &f) || symm_end_broken(r, &p, r->rank == 0 && symm_shared->odd == 0);
}

/* In front of NCCL the kernels are the same, and their sizes and types for a filter to ask for. */
TESTS_BEGIN
{
	if (argc < 2 && getenv("SHUNT_NCCL_LIB"))
		cmocka_set_skip_filter("test_direct_of_*");
	symm_begin_all();
}
