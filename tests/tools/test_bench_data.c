/* SPDX-License-Identifier: MIT */
/* The benchmark's own reference: takes right results, refuses wrong ones. */
#include "tests/support/test.h"
#include <math.h>
#include "tools/bench/bench.h"

enum { COUNT = 5000, NRANKS = 4 };

/* Float32 and int32 results are computed here in the plainest way. */
static void reduce_f32(const struct bench_data *d, int nranks, enum shunt_redop redop, float *out)
{
	float *in = malloc(COUNT * sizeof(float));

	assert_non_null(in);
	for (int r = 0; r < nranks; r++) {
		float factor = 1;

		bench_data_input(d, r, 0, COUNT, in);
		if (redop == SHUNT_PREMUL)
			bench_data_scalar(d, r, &factor);
		for (int i = 0; i < COUNT; i++) {
			in[i] *= factor;
			if (!r)
				out[i] = in[i];
			else if (redop == SHUNT_PROD)
				out[i] *= in[i];
			else if (redop == SHUNT_MAX)
				out[i] = fmaxf(out[i], in[i]);
			else if (redop == SHUNT_MIN)
				out[i] = fminf(out[i], in[i]);
			else
				out[i] += in[i];
		}
	}
	for (int i = 0; i < COUNT && redop == SHUNT_AVG; i++)
		out[i] /= (float)nranks;
	free(in);
}

TEST(test_check_right_float_result_accepted)
{
	static float out[COUNT];

	for (int op = 0; op < SHUNT_NREDOPS; op++)
		for (int class = 0; class < BENCH_NCLASSES; class++)
			for (int n = 1; n <= 8; n++) {
				struct bench_data *d = bench_data_create(SHUNT_F32, op, class, n, 42);
				char text[512] = "";

				reduce_f32(d, n, op, out);
				if (bench_data_check(d, 0, COUNT, out, text, sizeof(text)))
					fail_msg("op %d class %d ranks %d: %s", op, class, n, text);
				bench_data_destroy(d);
			}
}

TEST(test_check_one_wrong_float_found)
{
	static float out[COUNT];
	struct bench_data *d = bench_data_create(SHUNT_F32, SHUNT_SUM, BENCH_EXACT, NRANKS, 7);
	char text[512] = "";

	reduce_f32(d, NRANKS, SHUNT_SUM, out);
	/* The smallest step that the type can make. */
	out[1234] = nextafterf(out[1234], 1e9f);
	assert_int_equal(bench_data_check(d, 0, COUNT, out, text, sizeof(text)), 1);
	assert_non_null(strstr(text, "element 1234 is"));
	out[1234] = NAN;
	assert_int_equal(bench_data_check(d, 0, COUNT, out, NULL, 0), 1);
	bench_data_destroy(d);
}

TEST(test_check_missing_rank_found)
{
	static float out[COUNT];
	struct bench_data *d = bench_data_create(SHUNT_F32, SHUNT_SUM, BENCH_REAL, NRANKS, 7);

	reduce_f32(d, NRANKS - 1, SHUNT_SUM, out);
	assert_true(bench_data_check(d, 0, COUNT, out, NULL, 0) > COUNT * 9 / 10);
	bench_data_destroy(d);
}

TEST(test_check_integers_wrap)
{
	static int8_t in[COUNT], out[COUNT];

	for (int op = 0; op < SHUNT_NREDOPS; op++) {
		struct bench_data *d = bench_data_create(SHUNT_I8, op, BENCH_EXACT, NRANKS, 99);

		for (int r = 0; r < NRANKS; r++) {
			int8_t factor = 1;

			bench_data_input(d, r, 0, COUNT, in);
			if (op == SHUNT_PREMUL)
				bench_data_scalar(d, r, &factor);
			for (int i = 0; i < COUNT; i++) {
				in[i] = (int8_t)(in[i] * factor);
				int a = r            ? out[i] :
				    op == SHUNT_PROD ? 1 :
				    op == SHUNT_MAX  ? -128 :
				    op == SHUNT_MIN  ? 127 :
				                       0;

				out[i] = (int8_t)(op == SHUNT_PROD ? a * in[i] :
				        op == SHUNT_MAX            ? (a > in[i] ? a : in[i]) :
				        op == SHUNT_MIN            ? (a < in[i] ? a : in[i]) :
				                                     a + in[i]);
			}
		}
		for (int i = 0; i < COUNT && op == SHUNT_AVG; i++)
			out[i] /= NRANKS;
		assert_int_equal(bench_data_check(d, 0, COUNT, out, NULL, 0), 0);
		out[17]++;
		assert_int_equal(bench_data_check(d, 0, COUNT, out, NULL, 0), 1);
		bench_data_destroy(d);
	}
}

/* Small floats, with the formats written out here a second time: one rank's result is its input. */
TEST(test_check_small_floats_one_rank_identity)
{
	static const enum shunt_dtype types[] = { SHUNT_F16, SHUNT_BF16, SHUNT_F8E4M3, SHUNT_F8E5M2 };
	static uint16_t in[COUNT];

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (int class = 0; class < BENCH_NCLASSES; class++) {
			struct bench_data *d = bench_data_create(types[t], SHUNT_MAX, class, 1, 3);

			bench_data_input(d, 0, 0, COUNT, in);
			assert_int_equal(bench_data_check(d, 0, COUNT, in, NULL, 0), 0);
			bench_data_destroy(d);
		}
}

/* bfloat16 is the upper half of a float, so the sum can be computed with floats. */
TEST(test_check_bfloat16_exact_sum)
{
	static uint16_t in[COUNT], out[COUNT];
	static float sum[COUNT];
	struct bench_data *d = bench_data_create(SHUNT_BF16, SHUNT_SUM, BENCH_EXACT, NRANKS, 5);

	memset(sum, 0, sizeof(sum));
	for (int r = 0; r < NRANKS; r++) {
		bench_data_input(d, r, 0, COUNT, in);
		for (int i = 0; i < COUNT; i++) {
			uint32_t bits = (uint32_t)in[i] << 16;
			float f;

			memcpy(&f, &bits, 4);
			sum[i] += f;
		}
	}
	for (int i = 0; i < COUNT; i++) {
		uint32_t bits;

		memcpy(&bits, &sum[i], 4);
		assert_int_equal(bits & 0xffff, 0); /* exact indeed */
		out[i] = (uint16_t)(bits >> 16);
	}
	assert_int_equal(bench_data_check(d, 0, COUNT, out, NULL, 0), 0);
	out[COUNT - 1] ^= 1;
	assert_int_equal(bench_data_check(d, 0, COUNT, out, NULL, 0), 1);
	bench_data_destroy(d);
}

TEST(test_input_ranks_and_seeds_differ)
{
	static int32_t a[COUNT], b[COUNT];
	struct bench_data *d = bench_data_create(SHUNT_I32, SHUNT_SUM, BENCH_EXACT, 2, 1);
	struct bench_data *e = bench_data_create(SHUNT_I32, SHUNT_SUM, BENCH_EXACT, 2, 2);

	bench_data_input(d, 0, 0, COUNT, a);
	bench_data_input(d, 1, 0, COUNT, b);
	assert_memory_not_equal(a, b, sizeof(a));
	bench_data_input(e, 0, 0, COUNT, b);
	assert_memory_not_equal(a, b, sizeof(a));
	/* A block is the same as that part of the whole. */
	bench_data_input(d, 0, 100, 50, b);
	assert_memory_equal(a + 100, b, 50 * sizeof(*a));
	bench_data_destroy(d);
	bench_data_destroy(e);
}
