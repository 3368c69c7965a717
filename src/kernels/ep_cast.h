/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * bfloat16 to e4m3, 128 elements to a scale, as tools/common/ep_reference.c says, bit for bit. A NaN makes its group
 * NaN.
 */
#include "kernels/elements.h"
#include "kernels/ep.h"

#define EP_GROUP 128u
#define EP_CAST_DEPTH 4 /* groups whose loads a warp has under way together */

/* 2 to the power of e, -149 to 128; from 128 on infinity. */
GPU_FN float ep_exp2(int32_t e)
{
	if (e > 127)
		return gpu_float(0x7f800000);
	return gpu_float(e < -126 ? 1u << (149 + e) : (uint32_t)(e + 127) << 23);
}

/* The lane's 4 of the 128 elements at p, as they are. */
GPU_FN uint64_t ep_load_group(const char *p, bool aligned)
{
	union {
		uint64_t word;
		uint16_t e[4];
	} in;

	p += gpu_lane() * sizeof(in);
	if (aligned)
		in.word = *(const uint64_t *)p;
	else GPU_UNROLL
		for (uint32_t i = 0; i < 4; i++)
			in.e[i] = ((const uint16_t *)p)[i];
	return in.word;
}

/* Casts a group: its 128 bytes go to `to`, the scale by which a reader multiplies is returned. By a warp. */
GPU_FN float ep_cast_group(uint64_t word, bool round, char *to)
{
	union {
		uint64_t word;
		struct bf16 e[4];
	} in = { word };
	union {
		uint32_t word;
		struct f8e4m3 e[4];
	} out;
	float x[4], scale, inverse, amax;
	uint32_t most = gpu_bits(1e-4f);

	/* Without its sign a float's bits grow with it; those of NaN are above all others. */
	GPU_UNROLL for (uint32_t i = 0; i < 4; i++) {
		x[i] = gpu_to_f32(in.e[i]);
		uint32_t bits = gpu_bits(x[i]) & 0x7fffffff;

		most = bits > most ? bits : most;
	}
	amax = gpu_float(gpu_warp_max32(most));
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

GPU_FN void ep_store_scale(uint32_t hidden, uint32_t form, uint32_t g, float inverse, char *to)
{
	if (gpu_lane())
		return;
	if (form == SHUNT_EP_FORM_FP8_UE8M0)
		to[hidden + g] = (char)(gpu_bits(inverse) >> 23);
	else
		((float *)(to + hidden))[g] = inverse;
}

/*
 * Casts a row into shared memory, its scales behind its elements. By `nwarps` warps, of which this is one. The loads of
 * some groups are under way together; what follows is code of one group, as a launch fetches its code anew.
 */
GPU_FN void ep_cast_row(const char *from, uint32_t hidden, uint32_t form, char *to, uint32_t warp, uint32_t nwarps)
{
	const bool aligned = !((uintptr_t)from & 7);
	const uint32_t groups = hidden / EP_GROUP;

	for (uint32_t first = warp; first < groups; first += EP_CAST_DEPTH * nwarps) {
		uint64_t words[EP_CAST_DEPTH];

		GPU_UNROLL for (uint32_t k = 0; k < EP_CAST_DEPTH; k++) {
			const uint32_t g = first + k * nwarps;

			words[k] = ep_load_group(from + (g < groups ? g : first) * EP_GROUP * 2, aligned);
		}
		GPU_ROLL for (uint32_t k = 0, g = first; k < EP_CAST_DEPTH && g < groups; k++, g += nwarps) {
			ep_store_scale(
			    hidden, form, g, ep_cast_group(words[0], form != SHUNT_EP_FORM_FP8, to + g * EP_GROUP), to);
			GPU_UNROLL for (uint32_t i = 1; i < EP_CAST_DEPTH; i++)
				words[i - 1] = words[i];
		}
	}
}
