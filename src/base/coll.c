/* SPDX-License-Identifier: MIT */
#include "base/coll.h"
#include <ctype.h>
#include <string.h>

const uint8_t shunt_dtype_bytes[SHUNT_NDTYPES] = {
	[SHUNT_I8] = 1,
	[SHUNT_U8] = 1,
	[SHUNT_I32] = 4,
	[SHUNT_U32] = 4,
	[SHUNT_I64] = 8,
	[SHUNT_U64] = 8,
	[SHUNT_F16] = 2,
	[SHUNT_F32] = 4,
	[SHUNT_F64] = 8,
	[SHUNT_BF16] = 2,
	[SHUNT_F8E4M3] = 1,
	[SHUNT_F8E5M2] = 1,
};

static const char *const kind_names[SHUNT_NKINDS] = {
	[SHUNT_ALLREDUCE] = "allreduce",
	[SHUNT_REDUCE] = "reduce",
	[SHUNT_BROADCAST] = "broadcast",
	[SHUNT_ALLGATHER] = "allgather",
	[SHUNT_REDUCESCATTER] = "reducescatter",
	[SHUNT_ALLTOALL] = "alltoall",
	[SHUNT_GATHER] = "gather",
	[SHUNT_SCATTER] = "scatter",
	[SHUNT_SEND] = "send",
	[SHUNT_RECV] = "recv",
};

static const char *const dtype_names[SHUNT_NDTYPES] = {
	[SHUNT_I8] = "int8",
	[SHUNT_U8] = "uint8",
	[SHUNT_I32] = "int32",
	[SHUNT_U32] = "uint32",
	[SHUNT_I64] = "int64",
	[SHUNT_U64] = "uint64",
	[SHUNT_F16] = "float16",
	[SHUNT_F32] = "float32",
	[SHUNT_F64] = "float64",
	[SHUNT_BF16] = "bfloat16",
	[SHUNT_F8E4M3] = "float8e4m3",
	[SHUNT_F8E5M2] = "float8e5m2",
};

static const char *const redop_names[SHUNT_NREDOPS] = {
	[SHUNT_SUM] = "sum",
	[SHUNT_PROD] = "prod",
	[SHUNT_MAX] = "max",
	[SHUNT_MIN] = "min",
	[SHUNT_AVG] = "avg",
	[SHUNT_PREMUL] = "premulsum",
};

static const char *const reason_names[SHUNT_NREASONS] = {
	[SHUNT_REASON_NONE] = "",
	[SHUNT_REASON_KIND] = "no kernel for this collective",
	[SHUNT_REASON_SIZE] = "NCCL is faster at this size",
	[SHUNT_REASON_FORCED] = "forced by SHUNT_FORCE_NCCL or SHUNT_ALGO",
	[SHUNT_REASON_NCCL_ENV] = "NCCL_ALGO or NCCL_PROTO asks for NCCL's algorithm",
	[SHUNT_REASON_CONFIG] = "the call's configuration asks for NCCL",
	[SHUNT_REASON_SELECTOR] = "the plan selector says nccl",
	[SHUNT_REASON_COMM] = "forward-only communicator",
	[SHUNT_REASON_ONE_RANK] = "one rank",
	[SHUNT_REASON_UNALIGNED] = "its parts are large and no multiple of 16 bytes",
};

const char *shunt_kind_name(enum shunt_kind kind)
{
	return (unsigned)kind < SHUNT_NKINDS ? kind_names[kind] : "unknown";
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
		if (shunt_names_equal(text, bytes, kind_names[kind]))
			return kind;
	return -1;
}

bool shunt_kind_has_root(enum shunt_kind kind)
{
	return kind == SHUNT_REDUCE || kind == SHUNT_BROADCAST || kind == SHUNT_GATHER || kind == SHUNT_SCATTER;
}

bool shunt_kind_has_parts(enum shunt_kind kind)
{
	return kind == SHUNT_ALLGATHER || kind == SHUNT_REDUCESCATTER || kind == SHUNT_ALLTOALL ||
	    kind == SHUNT_GATHER || kind == SHUNT_SCATTER;
}

const char *shunt_dtype_name(enum shunt_dtype dtype)
{
	return (unsigned)dtype < SHUNT_NDTYPES ? dtype_names[dtype] : "unknown";
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

static const struct {
	uint8_t mant, bias;
} float_format[SHUNT_NDTYPES] = {
	[SHUNT_F16] = { 10, 15 },
	[SHUNT_BF16] = { 7, 127 },
	[SHUNT_F8E4M3] = { 3, 7 },
	[SHUNT_F8E5M2] = { 2, 15 },
};

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
	return reciprocal_bits(n, float_format[dtype].mant, float_format[dtype].bias);
}
