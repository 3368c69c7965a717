/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_EP_CAST_H
#define SHUNT_KERNELS_EP_CAST_H
/*
 * bfloat16 to e4m3, 128 elements to a scale, as tools/common/ep_reference.c says, bit for bit. A NaN makes its group
 * NaN.
 */
#include "kernels/elements.h"
#include "kernels/ep.h"

#define EP_GROUP 128u

/* 2 to the power of e, -149 to 128; from 128 on infinity. */
GPU_FN float ep_exp2(int32_t e)
{
	if (e > 127)
		return gpu_float(0x7f800000);
	return gpu_float(e < -126 ? 1u << (149 + e) : (uint32_t)(e + 127) << 23);
}

/* The lane's 4 of the 128 elements at p. */
GPU_FN void ep_load_group(const char *p, bool aligned, float x[4])
{
	union {
		uint64_t word;
		struct bf16 e[4];
	} in;

	p += gpu_lane() * sizeof(in);
	if (aligned)
		in.word = *(const uint64_t *)p;
	else GPU_UNROLL
		for (uint32_t i = 0; i < 4; i++)
			in.e[i] = ((const struct bf16 *)p)[i];
	GPU_UNROLL for (uint32_t i = 0; i < 4; i++)
		x[i] = gpu_to_f32(in.e[i]);
}

/* Casts a group: its 128 bytes go to `to`, the scale by which a reader multiplies is returned. By a warp. */
GPU_FN float ep_cast_group(const char *from, bool aligned, bool round, char *to)
{
	union {
		uint32_t word;
		struct f8e4m3 e[4];
	} out;
	float x[4], scale, inverse, amax;
	uint32_t most = gpu_bits(1e-4f);

	ep_load_group(from, aligned, x);
	/* Without its sign a float's bits grow with it; those of NaN are above all others. */
	GPU_UNROLL for (uint32_t i = 0; i < 4; i++) {
		uint32_t bits = gpu_bits(x[i]) & 0x7fffffff;

		most = bits > most ? bits : most;
	}
	GPU_UNROLL for (uint32_t mask = 16; mask; mask /= 2) {
		uint32_t other = gpu_shfl_xor32(most, mask);

		most = other > most ? other : most;
	}
	amax = gpu_float(most);
	inverse = gpu_mul(amax, 1 / 448.0f);
	scale = 448.0f / amax;
	if (round) {
		uint32_t bits = gpu_bits(inverse);
		int32_t exponent = (int32_t)(bits >> 23) - 127 + ((bits & 0x7fffff) != 0);

		scale = ep_exp2(-exponent);
		inverse = ep_exp2(exponent);
	}
	GPU_UNROLL for (uint32_t i = 0; i < 4; i++)
		out.e[i] = gpu_from_f32<struct f8e4m3>(gpu_mul(x[i], scale));
	*(uint32_t *)(to + gpu_lane() * 4) = out.word;
	return inverse;
}

/* Casts a row into shared memory, its scales behind its elements. By the whole block. */
GPU_FN void ep_cast_row(const char *from, uint32_t hidden, uint32_t form, char *to)
{
	bool aligned = !((uintptr_t)from & 7);

	for (uint32_t g = gpu_tid() / 32; g < hidden / EP_GROUP; g += gpu_ntid() / 32) {
		float inverse =
		    ep_cast_group(from + g * EP_GROUP * 2, aligned, form != SHUNT_EP_FORM_FP8, to + g * EP_GROUP);

		if (gpu_lane())
			continue;
		if (form == SHUNT_EP_FORM_FP8_UE8M0)
			to[hidden + g] = (char)(gpu_bits(inverse) >> 23);
		else
			((float *)(to + hidden))[g] = inverse;
	}
}
#endif
