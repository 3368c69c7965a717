/* SPDX-License-Identifier: MIT */
#include "base/coll.h"
#include <ctype.h>
#include <string.h>
#include "shunt/shunt.h"

#define ROW(id, name, long_name, function, ranks, send, recv, op, place, nccl, plans) \
	[SHUNT_##id] = { name, long_name, "nccl" #function, SHUNT_RANKS_##ranks, \
		{ SHUNT_PARTS_##send, SHUNT_PARTS_##recv }, PLACE_##place, NCCL_##nccl, PLANS_##plans },
enum { PLACE_APART, PLACE_IN_PLACE, NCCL_UNTUNED = 0, NCCL_TUNED, PLANS_UNPLANNED = 0, PLANS_PLANNED };
const struct shunt_kind_row shunt_kind_rows[SHUNT_NKINDS] = { SHUNT_COLLECTIVE_LIST(ROW) };
#undef ROW

#define ROW(id, number, name, alias, nccl, kernel, bytes, ...) [SHUNT_##id] = bytes,
#define FORMAT(id, number, name, alias, element, accumulator, bytes, ...) [SHUNT_##id] = bytes,
const uint8_t shunt_dtype_bytes[SHUNT_NFORMATS + 1] = { SHUNT_DTYPE_LIST(ROW, ) SHUNT_FORMAT_LIST(FORMAT, ) };
#undef ROW
#undef FORMAT
#define BIAS(exponent) ((1 << ((exponent) ? (exponent) - 1 : 0)) - 1)
#define ROW(id, number, name, alias, nccl, kernel, bytes, kind, exponent, mantissa, ...) \
	[SHUNT_##id] = { name, alias, exponent, mantissa, SHUNT_NUMBERS_##kind == SHUNT_NUMBERS_FLOAT, BIAS(exponent), \
		SHUNT_##id, (exponent) && (bytes) < 4 ? SHUNT_F32 : SHUNT_##id },
#define FORMAT(id, number, name, alias, element, accumulator, bytes, kind, exponent, mantissa, bias, ...) \
	[SHUNT_##id] = { name, alias, exponent, mantissa, SHUNT_NUMBERS_##kind == SHUNT_NUMBERS_FLOAT, bias, \
		SHUNT_##element, SHUNT_##accumulator },
/* NOLINTNEXTLINE(bugprone-branch-clone): float32 accumulates in itself */
const struct shunt_dtype_row shunt_dtype_rows[SHUNT_NFORMATS] = { SHUNT_DTYPE_LIST(ROW, ) SHUNT_FORMAT_LIST(FORMAT, ) };
#undef ROW
#undef FORMAT
#define ROW(id, number, ...) \
	_Static_assert(SHUNT_##id == (number), "dtypes.def, ops.def: rows stand in the order of numbers");
SHUNT_DTYPE_LIST(ROW)
SHUNT_FORMAT_LIST(ROW)
SHUNT_REDOP_LIST(ROW)
#undef ROW

#define ROW(id, number, name, ...) [SHUNT_##id] = name,
static const char *const redop_names[SHUNT_NREDOPS] = { SHUNT_REDOP_LIST(ROW) };
#undef ROW

static const char *const reason_names[SHUNT_NREASONS] = {
	[SHUNT_REASON_NONE] = "",
	[SHUNT_REASON_KIND] = "no kernel for this collective",
	[SHUNT_REASON_SIZE] = "NCCL is faster at this size",
	[SHUNT_REASON_FORCED] = "forced by SHUNT_FORCE_NCCL or SHUNT_ALGO",
	[SHUNT_REASON_NCCL_ENV] = "NCCL_ALGO or NCCL_PROTO asks for NCCL's algorithm",
	[SHUNT_REASON_CONFIG] = "the call's configuration asks for NCCL, or for an algorithm that it cannot have",
	[SHUNT_REASON_SELECTOR] = "the plan selector says nccl",
	[SHUNT_REASON_COMM] = "forward-only communicator",
	[SHUNT_REASON_ONE_RANK] = "one rank",
	[SHUNT_REASON_LINK] = "no kernel for what joins the GPUs",
	[SHUNT_REASON_HOSTS] = "over several hosts NCCL does it",
	[SHUNT_REASON_UNALIGNED] = "its parts are large and no multiple of 16 bytes",
	[SHUNT_REASON_UNKNOWN] = "unknown call",
	[SHUNT_REASON_WINDOWS] = "in windows NCCL is faster at this size",
};

const char *shunt_kind_name(enum shunt_kind kind)
{
	return (unsigned)kind < SHUNT_NKINDS ? shunt_kind_rows[kind].name : "unknown";
}

bool shunt_names_equal(const char *text, size_t bytes, const char *name)
{
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] == '_' || isspace((unsigned char)text[i]))
			continue;
		while (*name == '_')
			name++;
		if (!*name || tolower((unsigned char)text[i]) != tolower((unsigned char)*name))
			return false;
		name++;
	}
	return !*name;
}

int shunt_kind_find(const char *text, size_t bytes)
{
	for (int kind = 0; kind < SHUNT_NKINDS; kind++)
		if (shunt_names_equal(text, bytes, shunt_kind_rows[kind].name))
			return kind;
	return -1;
}

const char *shunt_dtype_name(enum shunt_dtype dtype)
{
	return (unsigned)dtype < SHUNT_NFORMATS ? shunt_dtype_rows[dtype].name : "unknown";
}

int shunt_format_of(enum shunt_dtype dtype, bool b15, int accumulate)
{
	enum shunt_dtype element = b15 && dtype == SHUNT_U8 ? SHUNT_F8E4M3B15 : dtype;

	if (shunt_dtype_rows[element].accumulator == element) /* integers, and floats of 4 and 8 bytes */
		return (int)element;
	return shunt_format_find(element,
	    accumulate == SHUNT_ACCUMULATE_FP16    ? SHUNT_F16 :
	        accumulate == SHUNT_ACCUMULATE_OWN ? element :
	                                             SHUNT_F32);
}

uint32_t shunt_dtypes_with_formats(uint32_t dtypes)
{
	for (int i = 0; i < SHUNT_NFORMATS; i++)
		dtypes |= (dtypes >> shunt_dtype_rows[i].element & 1) << i;
	return dtypes;
}

int shunt_format_find(enum shunt_dtype element, enum shunt_dtype accumulator)
{
	for (int i = 0; i < SHUNT_NFORMATS; i++)
		if (shunt_dtype_rows[i].element == element && shunt_dtype_rows[i].accumulator == accumulator)
			return i;
	return -1;
}

const char *shunt_redop_name(enum shunt_redop redop)
{
	return (unsigned)redop < SHUNT_NREDOPS ? redop_names[redop] : "unknown";
}

const char *shunt_reason_name(enum shunt_reason reason)
{
	return (unsigned)reason < SHUNT_NREASONS ? reason_names[reason] : "unknown";
}

/* 1/n in a floating-point format of `mant` mantissa bits, rounded to nearest even. Normal for all n <= 8. */
static uint64_t reciprocal_bits(int n, int mant, int bias)
{
	double v = 1.0 / n;
	int exp = 0;
	uint64_t m;

	while (v < 1) {
		v *= 2;
		exp--;
	}
	double scaled = (v - 1) * (double)((uint64_t)1 << mant);
	m = (uint64_t)scaled;
	double rest = scaled - (double)m;
	if (rest > 0.5 || (rest == 0.5 && (m & 1)))
		m++; /* a carry increments the exponent, as it should */
	return ((uint64_t)(exp + bias) << mant) + m;
}

uint64_t shunt_dtype_reciprocal(enum shunt_dtype dtype, int n)
{
	union {
		float f;
		uint32_t u;
	} f = { .f = 0 };
	union {
		double d;
		uint64_t u;
	} d = { .d = 1.0 / n };

	if (dtype == SHUNT_F64)
		return d.u;
	if (dtype == SHUNT_F32) {
		f.f = (float)(1.0 / n);
		return f.u;
	}
	return reciprocal_bits(n, shunt_dtype_rows[dtype].mantissa, shunt_dtype_rows[dtype].bias);
}
