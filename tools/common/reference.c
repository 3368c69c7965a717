/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/common/reference.h"

struct format {
	int exp, mant, bias;
	bool finite; /* no infinities */
};

static struct format format_of(enum shunt_dtype t)
{
	const struct shunt_dtype_row *row = &shunt_dtype_rows[t];

	return (struct format){ row->exponent, row->mantissa, row->bias, !row->has_infinity };
}

static uint64_t bits_of(const void *p, size_t bytes)
{
	uint64_t v = 0;

	memcpy(&v, p, bytes);
	return v;
}

/* ldexp(1, exponent), for those of normal numbers. */
static double power_of_two(int exponent)
{
	uint64_t bits = (uint64_t)(exponent + 1023) << 52;
	double v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static double small_to_double(uint32_t x, enum shunt_dtype t)
{
	struct format f = format_of(t);
	int e = f.exp, m = f.mant, exp = x >> m & ((1 << e) - 1);
	uint32_t frac = x & ((1u << m) - 1);
	double sign = x >> (e + m) & 1 ? -1 : 1;

	if (exp == (1 << e) - 1 && shunt_dtype_rows[t].element != SHUNT_F8E4M3B15) {
		if (!f.finite)
			return frac ? NAN : sign * INFINITY;
		if (frac == (1u << m) - 1)
			return NAN;
	}
	if (!exp)
		return sign * frac * power_of_two(1 - f.bias - m);
	return sign * (frac + (1u << m)) * power_of_two(exp - f.bias - m);
}

/* Round to nearest even; 8-bit formats saturate, 16-bit ones overflow to infinity. */
static uint32_t small_from_double(double v, enum shunt_dtype t)
{
	struct format f = format_of(t);
	int e = f.exp, m = f.mant, top = (1 << e) - 1, exp;
	uint32_t sign = signbit(v) ? 1u << (e + m) : 0;
	uint32_t inf = (uint32_t)top << m, max = f.finite ? inf | ((1u << m) - 2) : inf - 1;
	bool f8 = shunt_dtype_bytes[t] == 1;

	if (isnan(v))
		return sign | inf | ((1u << m) - 1);
	v = fabs(v);
	if (isinf(v))
		return sign | (f8 ? max : inf);
	if (v == 0)
		return sign;
	frexp(v, &exp);
	exp--;
	if (exp < 1 - f.bias)
		exp = 1 - f.bias;
	double scaled = nearbyint(
	    v * power_of_two(m - exp)); /* the mantissa with its leading one; a carry into the exponent is correct */
	uint64_t r = (uint64_t)scaled;
	if (r >= 1u << m)
		r += (uint64_t)(exp + f.bias - 1) << m;
	if (r > max)
		return sign | (f8 ? max : inf);
	return sign | (uint32_t)r;
}

/* e4m3b15, as MSCCL++ rounds: to float16, then to the nearest, ties away from zero, at most to 1.875. */
static uint32_t b15_from_double(double v)
{
	uint32_t half = small_from_double(v, SHUNT_F16), sign = half >> 15 << 7;
	double size = fabs(small_to_double(half & 0x7fff, SHUNT_F16)), unit;
	int exp;

	if (!(size < 1.875))
		return sign | 0x7f;
	frexp(size, &exp);
	exp = size == 0 || exp - 1 < -14 ? -14 : exp - 1;
	unit = power_of_two(exp - 3);
	size = floor(size / unit + 0.5) * unit;
	for (uint32_t x = 0; x < 0x80; x++)
		if (small_to_double(x, SHUNT_F8E4M3B15) == size)
			return sign | x;
	return sign | 0x7f;
}

double ref_to_double(const void *p, enum shunt_dtype t)
{
	size_t bytes = shunt_dtype_bytes[t];
	uint64_t x = bits_of(p, bytes);
	float f;
	double d;

	switch (shunt_dtype_rows[t].element) {
	case SHUNT_F32:
		memcpy(&f, p, 4);
		return f;
	case SHUNT_F64:
		memcpy(&d, p, 8);
		return d;
	case SHUNT_F16:
	case SHUNT_BF16:
	case SHUNT_F8E4M3:
	case SHUNT_F8E5M2:
	case SHUNT_F8E4M3B15:
		return small_to_double((uint32_t)x, t);
	case SHUNT_I8:
		return (int8_t)x;
	case SHUNT_I32:
		return (int32_t)x;
	case SHUNT_I64:
		return (double)(int64_t)x;
	default:
		return (double)x;
	}
}

void ref_from_double(void *p, enum shunt_dtype t, double v)
{
	float f = (float)v;
	uint64_t x;

	switch (shunt_dtype_rows[t].element) {
	case SHUNT_F32:
		memcpy(p, &f, 4);
		return;
	case SHUNT_F64:
		memcpy(p, &v, 8);
		return;
	case SHUNT_F16:
	case SHUNT_BF16:
	case SHUNT_F8E4M3:
	case SHUNT_F8E5M2:
		x = small_from_double(v, t);
		break;
	case SHUNT_F8E4M3B15:
		x = b15_from_double(v);
		break;
	default:
		x = v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
		break;
	}
	memcpy(p, &x, shunt_dtype_bytes[t]);
}

uint64_t ref_random(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

void ref_fill(void *buf, size_t count, enum shunt_dtype t, uint64_t *seed)
{
	size_t bytes = shunt_dtype_bytes[t];

	for (size_t i = 0; i < count; i++) {
		uint64_t x = ref_random(seed);

		if (!shunt_dtype_is_float(t))
			memcpy((char *)buf + i * bytes, &x, bytes);
		else
			ref_from_double((char *)buf + i * bytes, t,
			    (double)(int64_t)x / 9.3e18 * (shunt_dtype_rows[t].element == SHUNT_F8E4M3B15 ? 0.9 : 4));
	}
}

static uint64_t int_trim(uint64_t v, enum shunt_dtype t)
{
	int bits = 8 * shunt_dtype_bytes[t];

	return bits == 64 ? v : v & ((1ull << bits) - 1);
}

static int64_t sign_extend(uint64_t v, enum shunt_dtype t)
{
	int bits = 8 * shunt_dtype_bytes[t];

	return bits == 64 ? (int64_t)v : (int64_t)(v << (64 - bits)) >> (64 - bits);
}

static uint64_t reduce_int(const uint64_t *x, int n, enum shunt_dtype t, enum shunt_redop op)
{
	uint64_t v = x[0];

	for (int r = 1; r < n; r++) {
		bool less = shunt_dtype_is_signed(t) ? sign_extend(x[r], t) < sign_extend(v, t) : x[r] < v;

		if (op == SHUNT_PROD)
			v *= x[r];
		else if (op == SHUNT_MIN)
			v = less ? x[r] : v;
		else if (op == SHUNT_MAX)
			v = less ? v : x[r];
		else
			v += x[r];
		v = int_trim(v, t);
	}
	if (op == SHUNT_AVG)
		v = shunt_dtype_is_signed(t) ? (uint64_t)(sign_extend(v, t) / n) : v / (uint64_t)n;
	return int_trim(v, t);
}

/*
 * In double, with a rounding to float after each step where the accumulator is fp32: for sums and products of two
 * floats the result is that of fp32. Formats round to their accumulator then.
 */
static double reduce_float(const double *x, int n, enum shunt_dtype t, enum shunt_redop op)
{
	double v = x[0];

	for (int r = 1; r < n; r++) {
		if (op == SHUNT_MIN)
			v = isnan(v) || x[r] < v ? x[r] : v;
		else if (op == SHUNT_MAX)
			v = isnan(v) || x[r] > v ? x[r] : v;
		else
			v = op == SHUNT_PROD ? v * x[r] : v + x[r];
		if (t != SHUNT_F64)
			v = (float)v;
		if (shunt_dtype_is_format(t)) {
			char rounded[8];

			ref_from_double(rounded, shunt_dtype_rows[t].accumulator, v);
			v = ref_to_double(rounded, shunt_dtype_rows[t].accumulator);
		}
	}
	return v;
}

/* The operands of one element: of all ranks, or of the hosts. */
struct operands {
	uint64_t ints[REF_MAX_RANKS];
	double floats[REF_MAX_RANKS];
};

static void load(struct operands *o, int r, const void *element, enum shunt_dtype t)
{
	o->ints[r] = bits_of(element, shunt_dtype_bytes[t]);
	o->floats[r] = !shunt_dtype_is_float(t) ? 0 : ref_to_double(element, t);
}

static void store(void *element, const struct operands *o, int n, enum shunt_dtype t, enum shunt_redop op)
{
	uint64_t v;

	if (shunt_dtype_is_float(t)) {
		ref_from_double(element, t, reduce_float(o->floats, n, t, op));
		return;
	}
	v = reduce_int(o->ints, n, t, op);
	memcpy(element, &v, shunt_dtype_bytes[t]);
}

static void multiply(struct operands *o, int r, const void *factor, enum shunt_dtype t)
{
	char scaled[8];

	if (!shunt_dtype_is_float(t)) {
		o->ints[r] = int_trim(o->ints[r] * bits_of(factor, shunt_dtype_bytes[t]), t);
		return;
	}
	ref_from_double(scaled, t,
	    t == SHUNT_F64 ? o->floats[r] * ref_to_double(factor, t) :
	                     (double)(float)(o->floats[r] * ref_to_double(factor, t)));
	o->floats[r] = ref_to_double(scaled, t);
}

/* Integer averages divide once, after the hosts' sums. */
static void divide(void *element, int n, enum shunt_dtype t)
{
	size_t bytes = shunt_dtype_bytes[t];
	uint64_t v = bits_of(element, bytes);

	v = int_trim(shunt_dtype_is_signed(t) ? (uint64_t)(sign_extend(v, t) / n) : v / (uint64_t)n, t);
	memcpy(element, &v, bytes);
}

/* Within each host by rank, then the hosts' results in the order of their lowest ranks. */
static void store_over_hosts(
    void *element, const struct operands *all, const int *hosts, int n, enum shunt_dtype t, enum shunt_redop op)
{
	enum shunt_redop sum = op == SHUNT_AVG ? SHUNT_SUM : op;
	struct operands of_hosts = { 0 };
	char result[8];
	int nhosts = 0;

	for (int first = 0; first < n; first++) {
		struct operands one = { 0 };
		int members = 0;
		bool seen = false;

		for (int r = 0; r < first; r++)
			seen |= hosts[r] == hosts[first];
		for (int r = first; r < n && !seen; r++)
			if (hosts[r] == hosts[first]) {
				one.ints[members] = all->ints[r];
				one.floats[members++] = all->floats[r];
			}
		if (seen)
			continue;
		store(result, &one, members, t, sum);
		load(&of_hosts, nhosts++, result, t);
	}
	store(element, &of_hosts, nhosts, t, sum);
	if (op == SHUNT_AVG && !shunt_dtype_is_float(t))
		divide(element, n, t);
}

void ref_allreduce_over(void *out, const void *const *in, const int *hosts, int n, size_t count, enum shunt_dtype t,
    enum shunt_redop op, const void *const *scalars)
{
	size_t bytes = shunt_dtype_bytes[t];
	struct operands o = { 0 };
	char average[8];
	bool one_host = true;

	for (int r = 1; r < n && hosts; r++)
		one_host &= hosts[r] == hosts[0];
	if (shunt_dtype_is_float(t))
		ref_from_double(average, t, 1.0 / n);
	for (size_t i = 0; i < count; i++) {
		for (int r = 0; r < n; r++) {
			load(&o, r, (const char *)in[r] + i * bytes, t);
			if (op == SHUNT_PREMUL)
				multiply(&o, r, scalars[r], t);
			else if (op == SHUNT_AVG && shunt_dtype_is_float(t))
				multiply(&o, r, average, t);
		}
		if (one_host)
			store((char *)out + i * bytes, &o, n, t, op);
		else
			store_over_hosts((char *)out + i * bytes, &o, hosts, n, t, op);
	}
}

void ref_allreduce(void *out, const void *const *in, int n, size_t count, enum shunt_dtype t, enum shunt_redop op,
    const void *const *scalars)
{
	ref_allreduce_over(out, in, NULL, n, count, t, op, scalars);
}

size_t ref_compare(const void *a, const void *b, size_t count, enum shunt_dtype t, size_t *first_p)
{
	size_t bytes = shunt_dtype_bytes[t], wrong = 0;

	for (size_t i = 0; i < count; i++) {
		const char *x = (const char *)a + i * bytes, *y = (const char *)b + i * bytes;

		if (!memcmp(x, y, bytes) ||
		    (shunt_dtype_is_float(t) && isnan(ref_to_double(x, t)) && isnan(ref_to_double(y, t))))
			continue;
		if (!wrong++)
			*first_p = i;
	}
	return wrong;
}
