/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The small floating-point formats in software, bit for bit as the GPU converts them: round to nearest even,
 * subnormals kept, NaN becomes the format's all-ones NaN without a sign. f16 and bf16 overflow to infinity, the 8-bit
 * formats to their largest number.
 */
#include <stdint.h>

struct f16 {
	uint16_t x;
};
struct bf16 {
	uint16_t x;
};
struct f8e4m3 {
	uint8_t x;
};
struct f8e5m2 {
	uint8_t x;
};

static inline uint32_t shunt_sim_bits(float v)
{
	uint32_t bits;

	__builtin_memcpy(&bits, &v, sizeof(bits));
	return bits;
}

static inline float shunt_sim_float(uint32_t bits)
{
	float v;

	__builtin_memcpy(&v, &bits, sizeof(v));
	return v;
}

/* Converts to a format of 1 + E + M bits with IEEE's bias. Magnitudes above `over` become `over`. */
template <int E, int M> static inline uint32_t shunt_sim_narrow(float v, uint32_t nan, uint32_t over)
{
	const int bias = (1 << (E - 1)) - 1, emin = 1 - bias;
	uint32_t bits = shunt_sim_bits(v), sign = bits >> 31 << (E + M), abs = bits & 0x7fffffff;
	uint32_t fraction = (abs & 0x7fffff) | 0x800000, kept, rest, half;
	int exponent = (int)(abs >> 23) - 127, shift = 23 - M;

	if (abs > 0x7f800000)
		return nan;
	if (exponent < emin)
		shift += emin - exponent;
	if (shift > 24) /* less than half of the smallest number; also every fp32 subnormal */
		return sign;
	kept = fraction >> shift;
	rest = fraction & ((1u << shift) - 1);
	half = 1u << (shift - 1);
	kept += rest > half || (rest == half && (kept & 1));
	/* The leading one of a normal number counts as 1 in the exponent; a carry out of the fraction does too. */
	if (exponent >= emin)
		kept += (uint32_t)(exponent + bias - 1) << M;
	return sign | (kept > over ? over : kept);
}

template <int E, int M> static inline float shunt_sim_widen(uint32_t x)
{
	const int bias = (1 << (E - 1)) - 1;
	uint32_t sign = x >> (E + M) << 31, exponent = x >> M & ((1u << E) - 1), fraction = x & ((1u << M) - 1);

	if (!exponent) {
		/* fraction * 2^(1 - bias - M), which fp32 holds exactly */
		float v = (float)fraction * shunt_sim_float((uint32_t)(127 + 1 - bias - M) << 23);

		return sign ? -v : v;
	}
	return shunt_sim_float(sign | (exponent + 127 - bias) << 23 | fraction << (23 - M));
}

static inline uint32_t gpu_bits(float v) { return shunt_sim_bits(v); }
static inline float gpu_float(uint32_t bits) { return shunt_sim_float(bits); }
static inline float gpu_mul(float a, float b)
{
	float product = a * b;

	__asm__("" : "+m"(product)); /* the addition that follows does not see the multiplication */
	return product;
}

static inline float gpu_to_f32(struct f16 v)
{
	if ((v.x & 0x7c00) == 0x7c00) /* infinity or NaN */
		return shunt_sim_float((uint32_t)(v.x >> 15) << 31 | 0x7f800000 | (uint32_t)(v.x & 0x3ff) << 13);
	return shunt_sim_widen<5, 10>(v.x);
}
static inline float gpu_to_f32(struct bf16 v) { return shunt_sim_float((uint32_t)v.x << 16); }
static inline float gpu_to_f32(struct f8e4m3 v)
{
	if ((v.x & 0x7f) == 0x7f) /* the only NaN; there is no infinity */
		return shunt_sim_float(0x7fffffff);
	return shunt_sim_widen<4, 3>(v.x);
}
static inline float gpu_to_f32(struct f8e5m2 v) { return gpu_to_f32(f16{ (uint16_t)(v.x << 8) }); }

template <typename T> static inline T gpu_from_f32(float v);
template <> inline struct f16 gpu_from_f32<struct f16>(float v) {
	return { (uint16_t)shunt_sim_narrow<5, 10>(v, 0x7fff, 0x7c00) };
} template <> inline struct bf16 gpu_from_f32<struct bf16>(float v) {
	uint32_t bits = shunt_sim_bits(v);

	if ((bits & 0x7fffffff) > 0x7f800000)
		return { 0x7fff };
	return { (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) };
} template <> inline struct f8e4m3 gpu_from_f32<struct f8e4m3>(float v) {
	return { (uint8_t)shunt_sim_narrow<4, 3>(v, 0x7f, 0x7e) };
} template <> inline struct f8e5m2 gpu_from_f32<struct f8e5m2>(float v) {
	return { (uint8_t)shunt_sim_narrow<5, 2>(v, 0x7f, 0x7b) };
}
