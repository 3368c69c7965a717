/* SPDX-License-Identifier: MIT */
/*
 * The all-reduce kernels on the sim device against the reference, to the bit: every shape, type and operator, odd
 * counts, odd addresses, in place and out, sizes up and down, many rounds, graphs. One process; ranks are devices 0 ...
 * n-1. KERNELS_QUICK=1 thins the cases out (for sanitizers).
 */
#include "device/sim/hooks.h"
#include "tests/algos/world.h"
#include "tests/support/test.h"
#include "tools/common/reference.h"
#include "kernels/set.h"

#define GUARD WORLD_GUARD

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;
static bool quick;

struct job {
	const char *shape;
	enum shunt_dtype dtype;
	enum shunt_redop op;
	size_t count;
	int skew; /* elements by which buffers are off their alignment */
	bool in_place, scalar_on_device, graph;
};

static void job_launch(struct world *w, const struct job *j, int r, const void *send, void *recv, const void *scalar)
{
	struct shunt_coll coll = { .kind = SHUNT_ALLREDUCE,
		.dtype = j->dtype,
		.redop = j->op,
		.count = j->count,
		.send = send,
		.recv = recv,
		.scalar_on_device = j->scalar_on_device };

	if (j->scalar_on_device)
		coll.scalar = (uintptr_t)scalar;
	else
		memcpy(&coll.scalar, scalar, shunt_dtype_bytes[j->dtype]);
	world_launch(w, r, &coll, j->shape);
}

static void job_run(struct world *w, const struct job *j, uint64_t seed)
{
	size_t esz = shunt_dtype_bytes[j->dtype], bytes = j->count * esz, off = GUARD + j->skew * esz, first = 0;
	char *base[8][2], *want = malloc(bytes + 1);
	void *in[8], *out[8];
	char scalars[8][8];
	const void *scalar_ptrs[8];
	const char *from[8];

	for (int r = 0; r < w->n; r++) {
		for (int b = 0; b < 2; b++) {
			void *p;

			assert_int_equal(gpu->mem_alloc(r, bytes + 2 * GUARD + j->skew * esz, &p), 0);
			memset(p, 0xa5, bytes + 2 * GUARD + j->skew * esz);
			base[r][b] = p;
		}
		in[r] = base[r][0] + off;
		out[r] = j->in_place ? in[r] : base[r][1] + off;
		ref_fill(in[r], j->count, j->dtype, &seed);
		ref_fill(scalars[r], 1, j->dtype, &seed);
		scalar_ptrs[r] = scalars[r];
		from[r] = in[r];
	}
	ref_allreduce(want, (const void *const *)from, w->n, j->count, j->dtype, j->op, scalar_ptrs);

	int times = j->graph ? 3 : 1;
	void *graph[8];
	for (int r = 0; r < w->n && j->graph; r++) {
		assert_int_equal(gpu->capture_begin(r, w->stream[r]), 0);
		job_launch(w, j, r, in[r], out[r], scalars[r]);
		assert_int_equal(gpu->capture_end(r, w->stream[r], &graph[r]), 0);
	}
	for (int t = 0; t < times; t++)
		for (int r = 0; r < w->n; r++) {
			if (j->graph)
				assert_int_equal(gpu->graph_launch(r, graph[r], w->stream[r]), 0);
			else
				job_launch(w, j, r, in[r], out[r], scalars[r]);
		}
	for (int r = 0; r < w->n; r++) {
		world_wait(w, r, j->shape);
		size_t wrong = ref_compare(out[r], want, j->count, j->dtype, &first);
		if (wrong)
			fail_msg("%s n=%d %s %s count %zu skew %d %s rank %d: %zu wrong, first %zu: %g, wanted %g",
			    j->shape, w->n, shunt_dtype_name(j->dtype), shunt_redop_name(j->op), j->count, j->skew,
			    j->in_place ? "in place" : "out of place", r, wrong, first,
			    ref_to_double((char *)out[r] + first * esz, j->dtype),
			    ref_to_double(want + first * esz, j->dtype));
		for (size_t i = 0; i < GUARD; i++)
			if ((unsigned char)((char *)out[r])[bytes + i] != 0xa5 ||
			    (unsigned char)((char *)out[r])[-1 - (int)i] != 0xa5)
				fail_msg("%s n=%d %s count %zu rank %d: wrote outside of the buffer", j->shape, w->n,
				    shunt_dtype_name(j->dtype), j->count, r);
	}
	for (int r = 0; r < w->n; r++) {
		if (j->graph)
			gpu->graph_destroy(r, graph[r]);
		gpu->mem_free(base[r][0]);
		gpu->mem_free(base[r][1]);
	}
	free(want);
}

enum { ONESHOT, TWOSHOT, SIMPLE, TMA, NSHAPES };
static const char *const shapes[NSHAPES] = { "oneshot", "twoshot", "simple", "tma" };

TEST(test_kernels_every_type_and_op_matches_reference)
{
	/* ThreadSanitizer takes a while to make the threads of 8 ranks. */
	const int ranks[] = { 2, 3, quick ? 4 : 8 };

	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
		struct world w;

		world_start(&w, ranks[i]);
		for (int s = 0; s < NSHAPES; s++)
			for (int t = 0; t < (s == SIMPLE ? SHUNT_NFORMATS : SHUNT_NDTYPES); t++)
				for (int op = 0; op < SHUNT_NREDOPS; op++) {
					struct job j = { shapes[s], t, op, 777, (t + op) & 1, (t + op) & 2,
						op == SHUNT_PREMUL && (t & 1), false };

					/* Many warps: ThreadSanitizer takes a while to make them. */
					if (s == TMA && ranks[i] > 2) /* the same as the one before */
						continue;
					int pair = t * SHUNT_NREDOPS + op; /* of these each shape has other ones */
					if (!quick ||
					    (pair % 7 == s && pair / 7 % 3 == (int)i && !(s == SIMPLE && ranks[i] > 3)))
						job_run(&w, &j, 1000 * ranks[i] + 100 * s + t * 8 + op);
				}
		world_stop(&w);
	}
}

/* The 256 numbers of e4m3b15, by what its bits mean. */
static double b15_value(unsigned bits)
{
	int exponent = bits >> 3 & 15, mantissa = bits & 7;
	double size = exponent ? (8 + mantissa) * (double)(1 << exponent) / (8 << 15) : mantissa / 131072.0;

	return bits & 0x80 ? -size : size;
}

/* float16 first, as MSCCL++ does; then the nearest of the table, of two equally near ones the larger one. */
static unsigned b15_of(double v)
{
	double size, least = 1e9;
	unsigned best = 0;
	char half[8];

	ref_from_double(half, SHUNT_F16, v < 0 ? -v : v);
	size = ref_to_double(half, SHUNT_F16);
	for (unsigned i = 0; i < 0x80; i++) {
		double far = size - b15_value(i);

		far = far < 0 ? -far : far;
		if (far <= least) {
			least = far;
			best = i;
		}
	}
	return best | (__builtin_signbit(v) ? 0x80 : 0);
}

TEST(test_kernels_every_pair_of_e4m3b15_is_that_of_the_table)
{
	enum { N = 65536 };
	static const enum shunt_redop ops[] = { SHUNT_SUM, SHUNT_MAX, SHUNT_MIN };
	unsigned char *in[2], *out[2];
	struct world w;

	world_start(&w, 2);
	for (int r = 0; r < 2; r++) {
		in[r] = (unsigned char *)world_alloc(r, N);
		out[r] = (unsigned char *)world_alloc(r, N);
		for (unsigned i = 0; i < N; i++)
			in[r][i] = (unsigned char)(r ? i >> 8 : i);
	}
	for (size_t k = 0; k < (quick ? 1 : sizeof(ops) / sizeof(ops[0])); k++)
		for (enum shunt_dtype t = SHUNT_F8E4M3B15;
		    t <= (ops[k] || quick ? SHUNT_F8E4M3B15 : SHUNT_F8E4M3B15_OWN); t++) {
			struct job j = { "simple", t, ops[k], N, 0, false, false, false };

			for (int r = 0; r < 2; r++)
				job_launch(&w, &j, r, in[r], out[r], &(uint64_t){ 0 });
			for (int r = 0; r < 2; r++)
				world_wait(&w, r, "simple");
			for (unsigned i = 0; i < N; i++) {
				double a = b15_value(i & 0xff), b = b15_value(i >> 8);
				/* A zero of either sign is an extremum; the second of two equal ones stays. */
				unsigned want = ops[k] == SHUNT_SUM       ? b15_of(a + b) :
				    (ops[k] == SHUNT_MAX ? a > b : a < b) ? i & 0xff :
				                                            i >> 8;

				if (out[0][i] != want || out[1][i] != want)
					fail_msg("%s, %s: %g and %g are 0x%02x and 0x%02x, not 0x%02x",
					    shunt_dtype_name(t), shunt_redop_name(ops[k]), a, b, out[0][i], out[1][i],
					    want);
			}
		}
	for (int r = 0; r < 2; r++) {
		gpu->mem_free(in[r]);
		gpu->mem_free(out[r]);
	}
	world_stop(&w);
}

TEST(test_kernels_every_count_and_alignment_matches_reference)
{
	/* Around an element, a pack, a unit (480 bytes = 240 elements); up and down again. */
	static const size_t counts[] = { 1, 2, 7, 8, 9, 119, 239, 240, 241, 4095, 4096, 4097, 100003, 33, 1, 250001,
		5 };

	for (int n = 2; n <= 8; n++) {
		struct world w;

		if (quick && n > 4)
			continue;
		world_start(&w, n);
		for (int s = n == 2 && quick ? TMA : ONESHOT; s < (n == 2 ? NSHAPES : TMA); s++)
			for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
				for (int skew = 0; skew < 4; skew++) {
					struct job j = { shapes[s], SHUNT_F16, SHUNT_SUM, counts[c],
						skew == 2 ? 8 : skew, skew & 1, false, false };

					/* Many chunks of 5 to 7 ranks are as those of 4 and 8. */
					if ((counts[c] > 10000 && (skew || (n > 4 && n < 8))) ||
					    (quick && (counts[c] > 5000 || (s >= SIMPLE && (c + (size_t)skew) % 4))))
						continue;
					/* Each count and alignment with 3 ranks or with 4. */
					if (quick && n > 2 && (c + (size_t)skew + (s == SIMPLE)) % 2 != (size_t)n % 2)
						continue;
					/* Of many chunks: a sender must wait for a receiver that comes late. */
					shunt_sim_set_jitter((unsigned)c, s >= SIMPLE && counts[c] > 100000 ? 5000 : 0);
					job_run(&w, &j, counts[c] * 31 + n);
				}
		shunt_sim_set_jitter(0, 0);
		world_stop(&w);
	}
}

TEST(test_kernels_graph_replayed_between_eager_calls_matches_reference)
{
	for (int n = 2; n <= 4; n += 2) {
		struct world w;

		world_start(&w, n);
		for (int i = 0; i < (quick ? 2 : 20); i++)
			for (int s = 0; s < NSHAPES; s++) {
				struct job j = { shapes[(i + s) % NSHAPES], SHUNT_F32, SHUNT_SUM, 1 + (i * 977) % 5000,
					i & 1, i % 3 != s && (i & 2), false, i % 3 == s };

				job_run(&w, &j, i * 3 + s);
			}
		world_stop(&w);
	}
}

/*
 * Both shapes use the slots of the first hop: in any order, with nothing in between, on ranks that are as far apart as
 * they can be. Fresh numbers each time, or a slot that is read too late would hold what is expected.
 */
TEST(test_kernels_shapes_in_turn_share_slots)
{
	enum { CALLS = 48, MOST = 4000 };
	static const int ranks[] = { 2, 3, 8 };
	uint64_t seed = 99;

	for (size_t i = 0; i < (quick ? 2 : 3); i++) {
		int n = ranks[i];
		struct world w;
		int32_t *in[8][CALLS], *out[8][CALLS];
		struct job j[CALLS];
		uint64_t zero = 0;

		world_start(&w, n);
		shunt_sim_set_jitter(3 + (unsigned)i, 200);
		for (int t = 0; t < CALLS; t++) {
			uint64_t x = ref_random(&seed);

			j[t] = (struct job){ shapes[x & 1], SHUNT_I32, SHUNT_SUM, 1 + (x >> 8) % (x & 6 ? 300 : MOST),
				0, false, false, false };
			for (int r = 0; r < n; r++) {
				in[r][t] = (int32_t *)world_alloc(r, MOST * 4);
				out[r][t] = (int32_t *)world_alloc(r, MOST * 4);
				for (size_t k = 0; k < j[t].count; k++)
					in[r][t][k] = (int32_t)(k * 8 + (size_t)r * 3 + (size_t)t * 100000);
			}
		}
		for (int r = 0; r < n; r++)
			for (int t = 0; t < CALLS; t++)
				job_launch(&w, &j[t], r, in[r][t], out[r][t], &zero);
		for (int r = 0; r < n; r++) {
			world_wait(&w, r, "both shapes");
			for (int t = 0; t < CALLS; t++)
				for (size_t k = 0; k < j[t].count; k++)
					assert_int_equal(out[r][t][k],
					    (int32_t)((k * 8 + (size_t)t * 100000) * (size_t)n +
					        (size_t)(n * (n - 1) / 2) * 3));
		}
		shunt_sim_set_jitter(0, 0);
		for (int r = 0; r < n; r++)
			for (int t = 0; t < CALLS; t++) {
				gpu->mem_free(in[r][t]);
				gpu->mem_free(out[r][t]);
			}
		world_stop(&w);
	}
}

TEST(test_kernels_special_values_survive)
{
	static const double values[] = { 0.0, -0.0, 1.0, -1.0, 1e-40, 65504, -65504, 3e38, 1.0 / 0.0, -1.0 / 0.0,
		0.0 / 0.0, 5e-324 };
	static const enum shunt_dtype types[] = { SHUNT_F16, SHUNT_BF16, SHUNT_F32, SHUNT_F64 };
	const size_t nv = sizeof(values) / sizeof(values[0]), count = nv * nv;
	struct world w;

	world_start(&w, 2);
	for (size_t t = 0; t < 4; t++)
		for (int op = SHUNT_SUM; op <= SHUNT_MIN; op++)
			for (int s = 0; s < NSHAPES; s++) {
				if (quick && (t + (size_t)op) % NSHAPES != (size_t)s)
					continue;
				size_t esz = shunt_dtype_bytes[types[t]], first = 0;
				struct job j = { shapes[s], types[t], op, count, 0, false, false, false };
				void *in[2], *out[2], *want = malloc(count * esz);
				uint64_t zero = 0;

				for (int r = 0; r < 2; r++) {
					assert_int_equal(gpu->mem_alloc(r, count * esz, &in[r]), 0);
					assert_int_equal(gpu->mem_alloc(r, count * esz, &out[r]), 0);
					for (size_t i = 0; i < count; i++)
						ref_from_double(
						    (char *)in[r] + i * esz, types[t], values[r ? i % nv : i / nv]);
				}
				ref_allreduce(want, (const void *const *)in, 2, count, types[t], op, NULL);
				for (int r = 0; r < 2; r++)
					job_launch(&w, &j, r, in[r], out[r], &zero);
				for (int r = 0; r < 2; r++) {
					assert_int_equal(gpu->stream_sync(r, w.stream[r]), 0);
					/*
					 * The larger of -0 and +0 may be either: compare numbers, not bits, where both
					 * are zero.
					 */
					size_t wrong = 0;
					for (size_t i = 0; i < count; i++) {
						double a = ref_to_double((char *)out[r] + i * esz, types[t]),
						       b = ref_to_double((char *)want + i * esz, types[t]);
						bool same =
						    !memcmp((char *)out[r] + i * esz, (char *)want + i * esz, esz);

						if (!same && !(a != a && b != b) && !(op >= SHUNT_MAX && a == b)) {
							wrong++;
							first = i;
						}
					}
					if (wrong)
						fail_msg("%s %s %s: %zu wrong, e.g. of %g and %g", shapes[s],
						    shunt_dtype_name(types[t]), shunt_redop_name(op), wrong,
						    values[first / nv], values[first % nv]);
				}
				for (int r = 0; r < 2; r++) {
					gpu->mem_free(in[r]);
					gpu->mem_free(out[r]);
				}
				free(want);
			}
	world_stop(&w);
}

TEST(test_kernels_missing_peer_gives_up_at_the_deadline)
{
	struct world w;
	uint64_t zero = 0, in[48] = { 0 }, out[3][48], timeout = 500 * 1000000ull;

	for (int s = 0; s < NSHAPES; s++) {
		struct job j = { shapes[s], SHUNT_U64, SHUNT_SUM, 48, 0, false, false, false };

		world_start(&w, 3);
		for (int r = 0; r < 3; r++)
			w.host_ctrl[r]->limit_ns = timeout;
		for (int r = 0; r < 3; r += 2) /* rank 1 does not call */
			job_launch(&w, &j, r, in, out[r], &zero);
		for (int r = 0; r < 3; r += 2)
			assert_int_equal(gpu->stream_sync(r, w.stream[r]), 0);
		if ((w.host_ctrl[0]->fault.peer == 2 || w.host_ctrl[2]->fault.peer == 0) &&
		    timeout < WORLD_LONGEST_NS) {
			timeout *= 2; /* the two that call did not meet within it: the machine is busy */
			s--;
			world_stop(&w);
			continue;
		}
		for (int r = 0; r < 3; r += 2) {
			assert_int_equal(w.host_ctrl[r]->fault.set, SHUNT_FAULT_TIMEOUT);
			assert_int_equal(w.host_ctrl[r]->fault.rank, r);
			assert_int_equal(w.host_ctrl[r]->fault.peer, 1);
			assert_int_equal(w.host_ctrl[r]->fault.expected, 1);
			assert_int_equal(w.host_ctrl[r]->fault.seen, 0);
		}
		world_stop(&w);
	}
}

/*
 * Of two: also one whose sender finds no room for more, with copies under way. By the deadline, the device's abort
 * word, and the host's.
 */
TEST(test_kernels_single_rank_ends_its_spins)
{
	enum { COUNT = 30000 };
	static float in[COUNT], out[COUNT];
	uint64_t timeout = 200 * 1000000, zero = 0;
	uint32_t one = 1;

	for (int s = 0; s < NSHAPES; s++)
		for (int how = 0; how < 3; how++) {
			struct job j = { shapes[s], SHUNT_F32, SHUNT_SUM, COUNT, 0, false, false, false };
			struct world w;

			world_start(&w, 2);
			struct shunt_ctrl *ctrl = w.mem[0].ptr;
			if (how == 0)
				w.host_ctrl[0]->limit_ns = timeout;
			job_launch(&w, &j, 0, in, out, &zero);
			if (how == 1)
				assert_int_equal(gpu->copy(0, &ctrl->abort, &one, sizeof(one)), 0);
			if (how == 2)
				__atomic_store_n(&w.host_ctrl[0]->limit_ns, SHUNT_LIMIT_ABORT, __ATOMIC_RELEASE);
			assert_int_equal(gpu->stream_sync(0, w.stream[0]), 0);
			assert_int_equal(w.host_ctrl[0]->fault.set, how ? SHUNT_FAULT_ABORT : SHUNT_FAULT_TIMEOUT);
			assert_int_equal(w.host_ctrl[0]->fault.peer, 1);
			world_stop(&w);
		}
}

TEST(test_sim_table_has_every_operation)
{
	void *const *op = (void *const *)gpu; /* behind the name there are only pointers to functions */

	for (size_t i = 0; i < sizeof(*gpu) / sizeof(void *); i++)
		if (!op[i])
			fail_msg("operation %zu is missing", i);
}

TESTS_BEGIN
{
	quick = getenv("KERNELS_QUICK") != NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	if (gpu->open(&shunt_kernels))
		exit(1);
}
