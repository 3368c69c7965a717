/* SPDX-License-Identifier: MIT */
/*
 * Inputs and the check of results. An input element is one of 1024 values, chosen by a hash of seed, rank and index:
 * every rank can compute every other rank's input, and the reference needs no conversion of the inputs. The reference
 * is accumulated in long double, or modulo 2^64 for integers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/bench/bench.h"
#include "tools/common/reference.h"

enum { PALETTE = 1024 };

/* A type, with names for what is asked most. ebits 0: an integer. */
struct dtype {
	enum shunt_dtype dtype;
	uint8_t bytes, ebits, mbits;
	bool is_signed;
	bool narrow; /* e4m3b15, whose largest number is 1.875: inputs are small enough for sums to stay below it */
};

static struct dtype dtype_of(enum shunt_dtype dtype)
{
	const struct shunt_dtype_row *row = &shunt_dtype_rows[dtype];

	return (struct dtype){ dtype, shunt_dtype_bytes[dtype], row->exponent, row->mantissa,
		shunt_dtype_is_float(dtype) || shunt_dtype_is_signed(dtype), row->element == SHUNT_F8E4M3B15 };
}

struct bench_data {
	struct dtype type;
	enum shunt_redop redop;
	int nranks;
	uint64_t seed;
	bool exact; /* the result has one correct value; else it is within the tolerance of a sum in any order */
	uint64_t bits[PALETTE];
	double real[PALETTE]; /* the same values; floats only */
	float *decode;        /* value of every bit pattern, types of 8 and 16 bits */
};

static uint64_t hash_mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

static unsigned value_index(const struct bench_data *d, int rank, size_t index)
{
	return hash_mix(d->seed + index + ((uint64_t)rank << 48)) % PALETTE;
}

static uint64_t encode(const struct dtype *t, double v)
{
	uint64_t bits = 0;

	ref_from_double(&bits, t->dtype, v);
	return bits;
}

static double decode(const struct bench_data *d, const void *p)
{
	uint16_t v;

	if (d->type.bytes > 2)
		return ref_to_double(p, d->type.dtype);
	if (d->type.bytes == 1)
		return d->decode[*(
		    const uint8_t *)p]; /* NOLINT(clang-analyzer-core.NullDereference): floats have a table */
	memcpy(&v, p, 2);
	return d->decode[v]; /* NOLINT(clang-analyzer-core.NullDereference): likewise */
}

/* Uniform in [0, 1). */
static double random_uniform(uint64_t h)
{
	return ldexp((double)(h >> 11), -53);
}

/*
 * Integers: all bits random, because sums and products wrap in the same way everywhere. An average must not overflow on
 * the way.
 */
static void palette_integers(struct bench_data *d)
{
	unsigned width = d->type.bytes * 8;
	unsigned room = 127 / (unsigned)d->nranks; /* for the narrowest type */

	for (int i = 0; i < PALETTE; i++) {
		uint64_t h = hash_mix(d->seed ^ hash_mix((uint64_t)i + 1));

		if (d->redop == SHUNT_AVG) {
			h %= room + 1;
			if (d->type.is_signed && i % 2)
				h = -h;
		}
		d->bits[i] = width == 64 ? h : h & ((1ull << width) - 1);
	}
}

/* A rank's factor under SHUNT_PREMUL: a power of two, so that no float is rounded. */
static unsigned premul_factor(const struct bench_data *d, int rank)
{
	return d->redop == SHUNT_PREMUL ? 1 + (unsigned)rank % 2 : 1;
}

void bench_data_scalar(const struct bench_data *d, int rank, void *scalar)
{
	uint64_t bits = d->type.ebits ? encode(&d->type, premul_factor(d, rank)) : premul_factor(d, rank);

	memcpy(scalar, &bits, d->type.bytes);
}

/* Floats whose every partial result is a value of the type. */
static void palette_exact(struct bench_data *d)
{
	/* All integers to 2^(mbits + 1) are values of the type. */
	double limit = ldexp(1, d->type.mbits + 1) / (d->redop == SHUNT_PREMUL ? 2 : 1),
	       room = floor(limit / d->nranks);
	bool power = (d->nranks & (d->nranks - 1)) == 0;

	room = room < 1 ? 1 : room > 1000 ? 1000 : room;
	d->exact = room * d->nranks <= limit;
	if (d->redop == SHUNT_AVG && !power)
		d->exact = false;
	if (d->redop == SHUNT_PROD)
		d->exact = true;
	for (int i = 0; i < PALETTE; i++) {
		uint64_t h = hash_mix(d->seed ^ hash_mix((uint64_t)i + 1));

		if (d->redop == SHUNT_PROD) /* powers of two; few of them, so that nothing overflows */
			d->real[i] = (h & 1 ? -1 : 1) *
			    (d->nranks > 8 ? 1 : ldexp(1, (int)(h >> 8 & 3) % (d->type.narrow ? 2 : 3) - 1));
		else
			d->real[i] = ldexp((double)((int64_t)((h >> 1) % (2 * (uint64_t)room + 1)) - (int64_t)room),
			    d->type.narrow ? -4 : 0);
		d->bits[i] = encode(&d->type, d->real[i]);
	}
}

static void palette_reals(struct bench_data *d)
{
	d->exact = d->redop == SHUNT_MAX || d->redop == SHUNT_MIN;
	for (int i = 0; i < PALETTE; i++) {
		uint64_t h = hash_mix(d->seed ^ hash_mix((uint64_t)i + 1));
		double sign = h & 1 ? -1 : 1;
		double v = d->redop == SHUNT_PROD ? sign * (0.75 + 0.5 * random_uniform(h)) : sign * random_uniform(h);

		if (d->type.narrow)
			v = d->redop == SHUNT_PROD ? v * 0.8 : v / (2 * d->nranks);
		d->bits[i] = encode(&d->type, v);
		/* The library reads the rounded value. */
		d->real[i] = decode(d, &d->bits[i]);
	}
}

bool bench_data_has(enum shunt_dtype dtype, enum bench_class class)
{
	return class == BENCH_EXACT || shunt_dtype_is_float(dtype);
}

struct bench_data *bench_data_create(
    enum shunt_dtype dtype, enum shunt_redop redop, enum bench_class class, int nranks, uint64_t seed)
{
	struct bench_data *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->type = dtype_of(dtype);
	d->redop = redop;
	d->nranks = nranks;
	d->seed = hash_mix(seed);
	if (!d->type.ebits) {
		palette_integers(d);
		return d;
	}
	if (d->type.bytes <= 2) {
		size_t n = (size_t)1 << d->type.bytes * 8;

		d->decode = malloc(n * sizeof(*d->decode));
		if (!d->decode) {
			free(d);
			return NULL;
		}
		for (size_t i = 0; i < n; i++)
			d->decode[i] = (float)ref_to_double(&(uint16_t){ (uint16_t)i }, dtype);
	}
	if (class == BENCH_EXACT)
		palette_exact(d);
	else
		palette_reals(d);
	return d;
}

void bench_data_destroy(struct bench_data *d)
{
	if (!d)
		return;
	free(d->decode);
	free(d);
}

void bench_data_input(const struct bench_data *d, int rank, size_t first, size_t count, void *out)
{
	size_t bytes = d->type.bytes;

	/* Little-endian: a value's low bytes are first. */
	for (size_t i = 0; i < count; i++)
		memcpy((char *)out + i * bytes, &d->bits[value_index(d, rank, first + i)], bytes);
}

static uint64_t widen(const struct dtype *t, uint64_t bits)
{
	unsigned unused = 64 - t->bytes * 8;

	return t->is_signed ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits;
}

static bool element_is_less(const struct dtype *t, uint64_t a, uint64_t b)
{
	return t->is_signed ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t reference_integer(const struct bench_data *d, size_t index)
{
	uint64_t acc = widen(&d->type, d->bits[value_index(d, 0, index)]) * premul_factor(d, 0);

	for (int r = 1; r < d->nranks; r++) {
		uint64_t x = widen(&d->type, d->bits[value_index(d, r, index)]) * premul_factor(d, r);

		switch (d->redop) {
		case SHUNT_PROD:
			acc *= x;
			break;
		case SHUNT_MAX:
			acc = element_is_less(&d->type, acc, x) ? x : acc;
			break;
		case SHUNT_MIN:
			acc = element_is_less(&d->type, x, acc) ? x : acc;
			break;
		default:
			acc += x;
		}
	}
	if (d->redop == SHUNT_AVG) /* towards zero */
		acc = d->type.is_signed ? (uint64_t)((int64_t)acc / d->nranks) : acc / (uint64_t)d->nranks;
	return acc;
}

/* The result, and the largest error of a correct library, for any order of the reduction and any place of rounding. */
static long double reference_real(const struct bench_data *d, size_t index, long double *tolerance_p)
{
	long double acc = d->real[value_index(d, 0, index)] * premul_factor(d, 0), size = fabsl(acc);
	const struct dtype *t = &d->type;

	for (int r = 1; r < d->nranks; r++) {
		long double x = d->real[value_index(d, r, index)] * premul_factor(d, r);

		switch (d->redop) {
		case SHUNT_PROD:
			acc *= x;
			size = fabsl(acc);
			break;
		case SHUNT_MAX:
			acc = x > acc ? x : acc;
			break;
		case SHUNT_MIN:
			acc = x < acc ? x : acc;
			break;
		default:
			acc += x;
			size += fabsl(x);
		}
	}
	if (d->redop == SHUNT_AVG) {
		acc /= d->nranks;
		size /= d->nranks;
	}
	if (d->exact) {
		*tolerance_p = 0;
	} else {
		/* n - 1 additions, a division or a multiplication, and the last rounding: half a unit each, doubled. */
		long double tiny = ldexpl(1, 1 - shunt_dtype_rows[t->dtype].bias - t->mbits);

		*tolerance_p = (d->nranks + 2) * (ldexpl(size, -t->mbits) + tiny);
	}
	return acc;
}

static void describe_inputs(const struct bench_data *d, size_t index, char *text, size_t bytes)
{
	size_t used = strlen(text);

	for (int r = 0; r < d->nranks && used < bytes; r++) {
		unsigned i = value_index(d, r, index);
		const char *lead = r ? ", " : " from ";

		if (d->type.ebits)
			used += (size_t)snprintf(text + used, bytes - used, "%s%.9g", lead, d->real[i]);
		else if (d->type.is_signed)
			used += (size_t)snprintf(
			    text + used, bytes - used, "%s%lld", lead, (long long)widen(&d->type, d->bits[i]));
		else
			used +=
			    (size_t)snprintf(text + used, bytes - used, "%s%llu", lead, (unsigned long long)d->bits[i]);
	}
}

static size_t check_integers(
    const struct bench_data *d, size_t first, size_t count, const char *result, char *text, size_t text_bytes)
{
	size_t wrong = 0, bytes = d->type.bytes;
	uint64_t mask = bytes == 8 ? UINT64_MAX : (1ull << bytes * 8) - 1;

	for (size_t i = 0; i < count; i++) {
		uint64_t got = 0, want = reference_integer(d, first + i) & mask;

		memcpy(&got, result + i * bytes, bytes);
		if (got == want)
			continue;
		if (!wrong++ && text) {
			snprintf(text, text_bytes,
			    d->type.is_signed ? "element %zu is %lld, not %lld" : "element %zu is %llu, not %llu",
			    first + i, (long long)widen(&d->type, got), (long long)widen(&d->type, want));
			describe_inputs(d, first + i, text, text_bytes);
		}
	}
	return wrong;
}

size_t bench_data_check(
    const struct bench_data *d, size_t first, size_t count, const void *result, char *text, size_t text_bytes)
{
	size_t wrong = 0;

	if (!d->type.ebits)
		return check_integers(d, first, count, result, text, text_bytes);
	for (size_t i = 0; i < count; i++) {
		long double tolerance, want = reference_real(d, first + i, &tolerance);
		double got = decode(d, (const char *)result + i * d->type.bytes);

		/* A NaN fails this comparison. */
		if (fabsl(got - want) <= tolerance)
			continue;
		if (!wrong++ && text) {
			snprintf(text, text_bytes, "element %zu is %.9g, not %.9Lg (+- %.3Lg)", first + i, got, want,
			    tolerance);
			describe_inputs(d, first + i, text, text_bytes);
		}
	}
	return wrong;
}

size_t bench_data_check_copy(
    const struct bench_data *d, int rank, size_t first, size_t count, const void *result, char *text, size_t text_bytes)
{
	size_t wrong = 0, bytes = d->type.bytes;

	for (size_t i = 0; i < count; i++) {
		uint64_t got = 0, want = d->bits[value_index(d, rank, first + i)];

		memcpy(&got, (const char *)result + i * bytes, bytes);
		if (got != want && !wrong++ && text)
			snprintf(text, text_bytes, "element %zu of rank %d's input arrived as 0x%llx, not 0x%llx",
			    first + i, rank, (unsigned long long)got, (unsigned long long)want);
	}
	return wrong;
}
