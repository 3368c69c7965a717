/* SPDX-License-Identifier: MIT */
/* Conversions of the small formats against a search over all their numbers in double precision. */
#include <math.h>
#include "tests/device/sim_test.h"

/* A format by its numbers: all finite magnitudes in order, so that the nearest can be looked up. */
struct format {
	const char *name;
	int exponent, fraction; /* bits */
	uint32_t largest;       /* finite magnitude */
	uint32_t over;          /* what larger values become */
	bool (*is_nan)(uint32_t);
	uint32_t (*narrow)(float);
	float (*widen)(uint32_t);
};

static double value_of(const struct format *f, uint32_t magnitude)
{
	int bias = (1 << (f->exponent - 1)) - 1, e = (int)(magnitude >> f->fraction);
	double m = magnitude & ((1u << f->fraction) - 1);

	if (!e)
		return ldexp(m, 1 - bias - f->fraction);
	return ldexp(m + (1 << f->fraction), e - bias - f->fraction);
}

static uint32_t nearest(const struct format *f, float v)
{
	uint32_t sign = signbit(v) ? 1u << (f->exponent + f->fraction) : 0, low = 0, high = f->largest;
	double x = fabs((double)v), step;

	step = value_of(f, f->largest) - value_of(f, f->largest - 1);
	if (x >= value_of(f, f->largest) + step / 2)
		return sign | f->over;
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (value_of(f, middle) <= x)
			low = middle;
		else
			high = middle;
	}
	double below = x - value_of(f, low), above = value_of(f, high) - x;

	if (below == above)
		return sign | (low & 1 ? high : low);
	return sign | (below < above ? low : high);
}

template <typename T> static uint32_t narrow(float v)
{
	return gpu_from_f32<T>(v).x;
}
template <typename T> static float widen(uint32_t x)
{
	T t;

	t.x = (decltype(t.x))x;
	return gpu_to_f32(t);
}

static const struct format formats[] = {
	{ "f16", 5, 10, 0x7bff, 0x7c00, [](uint32_t m) { return m > 0x7c00; }, narrow<f16>, widen<f16> },
	{ "bf16", 8, 7, 0x7f7f, 0x7f80, [](uint32_t m) { return m > 0x7f80; }, narrow<bf16>, widen<bf16> },
	{ "f8e4m3", 4, 3, 0x7e, 0x7e, [](uint32_t m) { return m > 0x7e; }, narrow<f8e4m3>, widen<f8e4m3> },
	{ "f8e5m2", 5, 2, 0x7b, 0x7b, [](uint32_t m) { return m > 0x7c; }, narrow<f8e5m2>, widen<f8e5m2> },
};

TEST(test_num_every_value_survives_the_round_trip)
{
	for (const struct format &f : formats) {
		uint32_t sign = 1u << (f.exponent + f.fraction);

		for (uint32_t x = 0; x < 2 * sign; x++) {
			uint32_t magnitude = x & (sign - 1);
			float v = f.widen(x);

			if (f.is_nan(magnitude)) {
				assert_true(isnan(v));
				assert_true(f.is_nan(f.narrow(v) & (sign - 1)));
			} else if (magnitude > f.largest) {
				assert_true(isinf(v) && !!signbit(v) == !!(x & sign));
				assert_int_equal(f.narrow(v), (x & sign) | f.over);
			} else {
				assert_true((double)v == (x & sign ? -1.0 : 1.0) * value_of(&f, magnitude));
				assert_int_equal(f.narrow(v), x);
			}
		}
	}
}

static void check_value(const struct format *f, float v)
{
	uint32_t got = f->narrow(v), want = nearest(f, v);

	if (got != want)
		fail_msg("%s: %a becomes %x instead of %x", f->name, (double)v, got, want);
}

TEST(test_num_halfway_values_go_to_even)
{
	for (const struct format &f : formats)
		for (uint32_t x = 0; x <= f.largest; x++) {
			double here = value_of(&f, x),
			       next = x < f.largest ? value_of(&f, x + 1) : 2 * here - value_of(&f, x - 1);
			float half = (float)((here + next) / 2); /* exact: one bit more */

			assert_true((double)half == (here + next) / 2);
			for (int s = 0; s < 2; s++, half = -half) {
				check_value(&f, half);
				check_value(&f, nextafterf(half, INFINITY));
				check_value(&f, nextafterf(half, -INFINITY));
			}
		}
}

TEST(test_num_random_values_go_to_the_nearest)
{
	uint64_t r = 88172645463325252u;

	for (const struct format &f : formats)
		for (int i = 0; i < 200000; i++) {
			r ^= r << 13;
			r ^= r >> 7;
			r ^= r << 17;
			/* half of them over all of fp32, half in the format's range */
			float v = shunt_sim_float((uint32_t)r);
			if (i & 1)
				v = (float)(value_of(&f, (uint32_t)(r >> 32) % (f.largest + 1)) *
				    (0.5 + (double)(uint32_t)r / 4294967296.0));
			if (!isnan(v))
				check_value(&f, v);
		}
}

TEST(test_num_nan_and_infinity_become_what_the_contract_says)
{
	for (const struct format &f : formats) {
		uint32_t sign = 1u << (f.exponent + f.fraction);

		for (uint32_t payload : { 1u, 0x1000u, 0x400000u, 0x7fffffu }) {
			assert_true(f.is_nan(f.narrow(shunt_sim_float(0x7f800000 | payload)) & (sign - 1)));
			assert_true(f.is_nan(f.narrow(shunt_sim_float(0xff800000 | payload)) & (sign - 1)));
		}
		assert_int_equal(f.narrow(INFINITY), f.over);
		assert_int_equal(f.narrow(-INFINITY), sign | f.over);
		assert_int_equal(f.narrow(3.4e38f), nearest(&f, 3.4e38f));
		assert_int_equal(f.narrow(-0.0f), sign);
		assert_int_equal(f.narrow(1e-45f), 0);
	}
}
