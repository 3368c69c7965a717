/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * bfloat16 to e4m3, 128 elements to a scale, as tools/common/ep_reference.c says, bit for bit. A NaN makes its group
 * NaN.
 */
#include "kernels/elements.h"
#include "kernels/ep.h"

#define EP_GROUP 128u
#define EP_CAST_DEPTH 4 /* pairs of groups whose loads a warp has under way together */

/* 2 to the power of e, -149 to 128; from 128 on infinity. */
GPU_FN float ep_exp2(int32_t e)
{
	if (e > 127)
		return gpu_float(0x7f800000);
	return gpu_float(e < -126 ? 1u << (149 + e) : (uint32_t)(e + 127) << 23);
}

/* The lane's 8 of the 128 elements at p, as they are. A half of a warp has a group. */
GPU_FN struct gpu_v16 ep_load_group(const char *p, bool aligned)
{
	union {
		struct gpu_v16 v;
		uint16_t e[8];
	} in;

	p += gpu_lane() % 16 * sizeof(in);
	if (aligned)
		in.v = gpu_ld16_stream(p);
	else GPU_UNROLL
		for (uint32_t i = 0; i < 8; i++)
			in.e[i] = ((const uint16_t *)p)[i];
	return in.v;
}

/*
 * Casts the lane's elements of two groups, one in each half of the warp; *inverse_p: the scale of the lane's group, by
 * which a reader multiplies.
 */
GPU_FN uint64_t ep_cast_groups(struct gpu_v16 v, bool round, float *inverse_p)
{
	union {
		struct gpu_v16 v;
		struct bf16 e[8];
	} in = { v };
	union {
		uint64_t word;
		struct f8e4m3 e[8];
	} out;
	float x[8], scale, inverse, amax;
	uint32_t most = gpu_bits(1e-4f), first, second;

	/* Without its sign a float's bits grow with it; those of NaN are above all others. */
	GPU_UNROLL for (uint32_t i = 0; i < 8; i++) {
		x[i] = gpu_to_f32(in.e[i]);
		uint32_t bits = gpu_bits(x[i]) & 0x7fffffff;

		most = bits > most ? bits : most;
	}
	first = gpu_warp_max32(gpu_lane() < 16 ? most : 0);
	second = gpu_warp_max32(gpu_lane() < 16 ? 0 : most);
	amax = gpu_float(gpu_lane() < 16 ? first : second);
	inverse = gpu_mul(amax, 1 / 448.0f);
	scale = 448.0f / amax;
	if (round) {
		uint32_t bits = gpu_bits(inverse);
		int32_t exponent = (int32_t)(bits >> 23) - 127 + ((bits & 0x7fffff) != 0);

		scale = ep_exp2(-exponent);
		inverse = ep_exp2(exponent);
	}
	GPU_UNROLL for (uint32_t i = 0; i < 8; i++)
		out.e[i] = gpu_from_f32<struct f8e4m3>(gpu_mul(x[i], scale));
	*inverse_p = inverse;
	return out.word;
}

/* By one lane of a group. */
GPU_FN void ep_store_scale(uint32_t hidden, uint32_t form, uint32_t g, float inverse, char *to)
{
	if (form == SHUNT_EP_FORM_FP8_UE8M0)
		to[hidden + g] = (char)(gpu_bits(inverse) >> 23);
	else
		((float *)(to + hidden))[g] = inverse;
}

/*
 * Casts a row into shared memory, its scales behind its elements. By `nwarps` warps, of which this is one. The loads of
 * some pairs of groups are under way together; what follows is code of one pair, as a launch fetches its code anew.
 */
GPU_FN void ep_cast_row(const char *from, uint32_t hidden, uint32_t form, char *to, uint32_t warp, uint32_t nwarps)
{
	const bool aligned = !((uintptr_t)from & 15);
	const uint32_t groups = hidden / EP_GROUP, step = 2 * nwarps;

	for (uint32_t first = 2 * warp; first < groups; first += EP_CAST_DEPTH * step) {
		struct gpu_v16 v[EP_CAST_DEPTH];

		GPU_UNROLL for (uint32_t k = 0; k < EP_CAST_DEPTH; k++) {
			const uint32_t g = first + k * step + gpu_lane() / 16;

			v[k] = ep_load_group(from + (g < groups ? g : 0) * EP_GROUP * 2, aligned);
		}
		GPU_ROLL for (uint32_t k = 0, pair = first; k < EP_CAST_DEPTH && pair < groups; k++, pair += step) {
			const uint32_t g = pair + gpu_lane() / 16; /* behind an odd number of groups there is none */
			float inverse;
			uint64_t word = ep_cast_groups(v[0], form != SHUNT_EP_FORM_FP8, &inverse);

			if (g < groups) {
				*(uint64_t *)(to + g * EP_GROUP + gpu_lane() % 16 * 8) = word;
				if (gpu_lane() % 16 == 0)
					ep_store_scale(hidden, form, g, inverse, to);
			}
			GPU_UNROLL for (uint32_t i = 1; i < EP_CAST_DEPTH; i++)
				v[i - 1] = v[i];
		}
	}
}
