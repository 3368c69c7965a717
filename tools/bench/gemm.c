/* SPDX-License-Identifier: MIT */
/*
 * shunt bench --gemm: matrix multiplications on one stream, calls on another. Both compete for the SMs: how much slower
 * does each become? cuBLAS is opened on request; nothing links it.
 *
 * A round starts the multiplications, enough to outlast the calls, and then the calls. The same multiplications are
 * timed first without calls. The difference is the time that they lost while calls ran: their share of the calls' time.
 */
#include <math.h>
#include "tools/common/libc.h"
#include "tools/bench/rank.h"

enum {
	MATRIX_DIM = 4096, /* of the square matrices, of bfloat16 */
	MIN_CALLS = 4,
	MAX_CALLS = 900, /* multiplications in a round; a stream's queue holds 1024 */
	TRIES = 8,
	/* cublas_api.h's and library_types.h's */
	CUBLAS_OP_N = 0,
	CUDA_R_16BF = 14,
	CUBLAS_COMPUTE_32F = 68,
	CUBLAS_GEMM_DEFAULT = -1,
};

struct cublas {
	int (*create)(void **handle);
	int (*destroy)(void *handle);
	int (*set_stream)(void *handle, void *stream);
	int (*gemm)(void *handle, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a,
	    int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
	    int compute, int algo);
};

struct bench_gemm {
	struct cublas cublas;
	__typeof__(shunt_event_create) *event_create;
	__typeof__(shunt_event_record) *event_record;
	__typeof__(shunt_event_elapsed_us) *event_elapsed_us;
	__typeof__(shunt_event_destroy) *event_destroy;
	void *handle, *stream, *start, *stop;
	void *a, *b, *c;
	double gemm_us; /* one multiplication without calls */
	int calls;      /* multiplications in a round; the same on all ranks */
};

static int cublas_find(struct cublas *cublas)
{
	static const char *const names[] = { "libcublas.so.13", "libcublas.so.12" };
	const struct {
		const char *name;
		void *func_p;
	} funcs[] = { { "cublasCreate_v2", &cublas->create }, { "cublasDestroy_v2", &cublas->destroy },
		{ "cublasSetStream_v2", &cublas->set_stream }, { "cublasGemmEx", &cublas->gemm } };
	void *handle = NULL;

	for (size_t i = 0; !handle && i < sizeof(names) / sizeof(names[0]); i++)
		handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; handle && i < sizeof(funcs) / sizeof(funcs[0]); i++) {
		void *func = dlsym(handle, funcs[i].name);

		if (!func)
			return -ENOPKG;
		memcpy(funcs[i].func_p, &func, sizeof(func));
	}
	return handle ? 0 : -ENOPKG;
}

int bench_gemm_open(struct bench_rank *r)
{
	bool first = !r->rank || r->shared->launch.external;

	if (strcmp(r->shared->launch.kind, "cuda")) {
		if (first)
			tool_error("--gemm needs GPUs, and this is the %s", r->shared->launch.kind);
		return -ENOPKG;
	}
	r->gemm = calloc(1, sizeof(*r->gemm));
	if (!r->gemm)
		return bench_rank_check(r, "host memory", -ENOMEM);
	r->gemm->calls = MIN_CALLS;
	if (cublas_find(&r->gemm->cublas)) {
		if (first)
			tool_error("--gemm needs cuBLAS, and there is no libcublas.so.13 or .12 that can be used: "
			           "install it, or "
			           "add its directory to LD_LIBRARY_PATH");
		return -ENOPKG;
	}
	return 0;
}

static int cublas_check(const struct bench_rank *r, const char *call, int status)
{
	if (status)
		tool_error("rank %d: %s failed with status %d", r->rank, call, status);
	return status ? -EIO : 0;
}

static int gemms_start(struct bench_rank *r, int calls)
{
	struct bench_gemm *g = r->gemm;
	const float one = 1, zero = 0;
	int err = bench_rank_check(r, "event", g->event_record(g->start, g->stream));

	for (int i = 0; !err && i < calls; i++)
		err = cublas_check(r, "cublasGemmEx",
		    g->cublas.gemm(g->handle, CUBLAS_OP_N, CUBLAS_OP_N, MATRIX_DIM, MATRIX_DIM, MATRIX_DIM, &one, g->a,
		        CUDA_R_16BF, MATRIX_DIM, g->b, CUDA_R_16BF, MATRIX_DIM, &zero, g->c, CUDA_R_16BF, MATRIX_DIM,
		        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
	return err ? err : bench_rank_check(r, "event", g->event_record(g->stop, g->stream));
}

/* *us_p: the time of all multiplications together. */
static int gemms_wait(struct bench_rank *r, double *us_p)
{
	struct bench_gemm *g = r->gemm;
	float us = 0;
	int err = bench_rank_check(r, "waiting for the multiplications", r->lib.stream_synchronize(g->stream));

	if (!err)
		err = bench_rank_check(r, "event", g->event_elapsed_us(g->start, g->stop, &us));
	*us_p = us;
	return err;
}

static int gemms_time(struct bench_rank *r, int calls, double *us_p)
{
	int err = gemms_start(r, calls);

	return err ? err : gemms_wait(r, us_p);
}

/* Numbers between 0.5 and 1 with either sign. Zeros would take less power, and so less time. */
static int matrix_create(struct bench_rank *r, void **ptr_p)
{
	size_t bytes = (size_t)MATRIX_DIM * MATRIX_DIM * sizeof(uint16_t);
	uint16_t *block = (uint16_t *)r->block;
	unsigned seed = (unsigned)r->o->seed;
	int err = bench_rank_check(r, "cannot allocate a matrix", r->lib.malloc(ptr_p, bytes));

	for (size_t i = 0; i < BENCH_BLOCK_BYTES / sizeof(*block); i++)
		block[i] = (uint16_t)(0x3f00 | (rand_r(&seed) >> 4 & 0x807f));
	for (size_t at = 0; !err && at < bytes; at += BENCH_BLOCK_BYTES)
		err = bench_rank_check(r, "copy", r->lib.memcpy((char *)*ptr_p + at, block, BENCH_BLOCK_BYTES));
	return err;
}

int bench_gemm_create(struct bench_rank *r)
{
	struct bench_gemm *g = r->gemm;
	double us = 0;
	int err;

#define X(name) g->event_##name = (__typeof__(shunt_event_##name) *)dlsym(r->lib.handle, "shunt_event_" #name);
	X(create)
	X(record)
	X(elapsed_us)
	X(destroy)
#undef X
	if (!g->event_create || !g->event_record || !g->event_elapsed_us || !g->event_destroy) {
		tool_error("%s has no events: it is not the libshunt.so of this version", r->lib.path);
		return -ELIBBAD;
	}
	err = bench_rank_check(r, "cannot make a stream", r->lib.stream_create(&g->stream));
	if (!err)
		err = bench_rank_check(r, "event", g->event_create(&g->start));
	if (!err)
		err = bench_rank_check(r, "event", g->event_create(&g->stop));
	if (!err)
		err = cublas_check(r, "cublasCreate", g->cublas.create(&g->handle));
	if (!err)
		err = cublas_check(r, "cublasSetStream", g->cublas.set_stream(g->handle, g->stream));
	if (!err)
		err = matrix_create(r, &g->a);
	if (!err)
		err = matrix_create(r, &g->b);
	if (!err)
		err = matrix_create(r, &g->c);
	/* The first multiplications load kernels, which must not happen while calls wait for other ranks. */
	if (!err)
		err = gemms_time(r, MIN_CALLS, &us);
	if (!err)
		err = gemms_time(r, MIN_CALLS, &us);
	g->gemm_us = us / MIN_CALLS;
	if (!err && !(g->gemm_us > 0)) {
		tool_error("rank %d: a multiplication took no time: cuBLAS does not work here", r->rank);
		err = -EIO;
	}
	return err;
}

void bench_gemm_destroy(struct bench_rank *r, bool clean)
{
	struct bench_gemm *g = r->gemm;

	if (g && clean) {
		g->cublas.destroy(g->handle);
		r->lib.free(g->a);
		r->lib.free(g->b);
		r->lib.free(g->c);
		g->event_destroy(g->start);
		g->event_destroy(g->stop);
		r->lib.stream_destroy(g->stream);
	}
	free(g);
	r->gemm = NULL;
}

/* One rank's results of an attempt. */
struct attempt {
	double us, waited, isolated_us, concurrent_us;
	int outlasted; /* multiplications still ran when the last call had ended */
};

static int attempt(struct bench_rank *r, const struct bench_task *t, const struct bench_burst *burst, struct attempt *a)
{
	struct bench_gemm *g = r->gemm;
	double start;
	float us;
	int err = gemms_time(r, g->calls, &a->isolated_us);

	/* The first barrier may sleep; the second one releases all ranks at once. */
	if (!err)
		err = bench_barrier(r);
	if (!err)
		err = bench_barrier(r);
	if (!err)
		err = gemms_start(r, g->calls);
	if (err)
		return err;
	bench_rank_progress(r, RANKS_TIME, burst->lib, burst->way);
	start = ranks_now_us();
	err = bench_calls_run(r, t, burst, &a->waited);
	if (!err)
		err = bench_sync(r, burst->lib);
	a->us = ranks_now_us() - start;
	a->outlasted = !err && g->event_elapsed_us(g->start, g->stop, &us) == -EAGAIN;
	return err ? err : gemms_wait(r, &a->concurrent_us);
}

/* Number of multiplications of the next attempt, from the times of the last one on all ranks. */
static int next_gemm_count(const struct bench_rank *r, const struct attempt *all, int calls)
{
	double max_us = 0, min_us = INFINITY;

	for (int i = 0; i < r->shared->launch.nranks; i++) {
		max_us = fmax(max_us, all[i].us);
		min_us = fmin(min_us, all[i].isolated_us / calls);
	}
	return (int)fmin(fmax(2.5 * max_us / min_us, 2 * calls), MAX_CALLS);
}

int bench_gemm_round(struct bench_rank *r, const struct bench_task *t, const struct bench_burst *burst, int round)
{
	const double flop = 2.0 * MATRIX_DIM * MATRIX_DIM * MATRIX_DIM;
	struct bench_gemm *g = r->gemm;
	struct attempt mine, all[RANKS_MAX];

	for (int i = 0; i < TRIES; i++) {
		double share, each = (double)burst->calls * r->o->group;
		bool outlasted = true;
		int err;

		memset(&mine, 0, sizeof(mine));
		err = attempt(r, t, burst, &mine);
		if (!err)
			err = bench_allgather(r, &mine, sizeof(mine), all);
		if (err)
			return err;
		for (int k = 0; k < r->shared->launch.nranks; k++)
			outlasted = outlasted && all[k].outlasted;
		if (outlasted) {
			share = fmax(0,
			    1 -
			        (mine.concurrent_us - mine.isolated_us) /
			            mine.us); /* noise of the host may exceed the time of the calls */
			bench_sample_at(r, BENCH_GEMM_US, burst->way, burst->lib)[round] =
			    (mine.us - mine.waited) / each;
			bench_sample_at(r, BENCH_GEMM_ALONE, burst->way, burst->lib)[round] =
			    flop * g->calls / mine.isolated_us / 1e6;
			bench_sample_at(r, BENCH_GEMM_WITH, burst->way, burst->lib)[round] =
			    share * flop * g->calls / mine.isolated_us / 1e6;
			return 0;
		}
		if (g->calls == MAX_CALLS)
			break;
		g->calls = next_gemm_count(r, all, g->calls);
	}
	if (!r->rank)
		tool_error("--gemm: %d calls of %llu bytes take longer than %d multiplications: give fewer --iters",
		    burst->calls, (unsigned long long)t->bytes, g->calls);
	return bench_fail_together(r, -ERANGE);
}
