/* SPDX-License-Identifier: MIT */
#include "tools/common/ep_reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/coll.h"
#include "shunt/ep.h"
#include "tools/common/reference.h"

enum { GROUP = 128 };

static uint32_t bits_of(float v)
{
	uint32_t u;

	memcpy(&u, &v, sizeof(u));
	return u;
}

static float to_float(int dtype, uint16_t bits)
{
	return (float)ref_to_double(&bits, (enum shunt_dtype)dtype);
}

static uint16_t from_float(int dtype, float value)
{
	uint16_t bits;

	ref_from_double(&bits, (enum shunt_dtype)dtype, value);
	return bits;
}

/* Nothing here may be fused. */
static float multiply(float a, float b)
{
	volatile float product = a * b;

	return product;
}

static float exp2_of(int exponent)
{
	return ldexpf(1, exponent);
}

void ep_cast_row(const uint16_t *x, int hidden, int form, uint8_t *out, uint32_t *scales)
{
	for (int g = 0; g < hidden / GROUP; g++) {
		float most = 1e-4f, scale, inverse;
		bool nan = false;

		for (int i = 0; i < GROUP; i++) {
			float v = fabsf(to_float(SHUNT_BF16, x[g * GROUP + i]));

			nan |= isnan(v) != 0;
			most = v > most ? v : most;
		}
		most = nan ? NAN : most;
		inverse = multiply(most, 1 / 448.0f);
		scale = 448.0f / most;
		if (form != SHUNT_EP_FP8) {
			uint32_t u = bits_of(inverse) & 0x7fffffff;
			int exponent = nan ? 129 : (int)(u >> 23) - 127 + ((u & 0x7fffff) != 0);

			scale = exp2_of(-exponent);
			inverse = exp2_of(exponent);
		}
		for (int i = 0; i < GROUP; i++)
			ref_from_double(
			    &out[g * GROUP + i], SHUNT_F8E4M3, multiply(to_float(SHUNT_BF16, x[g * GROUP + i]), scale));
		if (form != SHUNT_EP_FP8_UE8M0)
			scales[g] = bits_of(inverse);
		else
			scales[g / 4] = (g % 4 ? scales[g / 4] : 0) | (bits_of(inverse) >> 23) << g % 4 * 8;
	}
}

/* The first place of an expert among a token's; topk: none. */
static int find_place(const struct ep_inputs *in, const int64_t *experts, int64_t expert)
{
	int k = 0;

	while (k < in->topk && experts[k] != expert)
		k++;
	return k;
}

static const int64_t *experts_of(const struct ep_inputs *in, int rank, int token)
{
	return in->topk_idx[rank] + (size_t)token * (size_t)in->topk;
}

static bool names_rank(const struct ep_inputs *in, const int64_t *experts, int rank)
{
	int local = in->experts / in->nranks;

	for (int k = 0; k < in->topk; k++)
		if (experts[k] >= 0 && experts[k] / local == rank)
			return true;
	return false;
}

void ep_layout(const struct ep_inputs *in, int rank, int32_t *per_rank, int32_t *per_expert, uint8_t *in_rank)
{
	for (int t = 0; t < in->tokens[rank]; t++) {
		const int64_t *experts = experts_of(in, rank, t);

		for (int k = 0; k < in->topk; k++)
			if (experts[k] >= 0)
				per_expert[experts[k]]++;
		for (int r = 0; r < in->nranks; r++) {
			in_rank[t * in->nranks + r] = names_rank(in, experts, r);
			per_rank[r] += names_rank(in, experts, r);
		}
	}
}

/* ---- low latency */

static void fill_slot(const struct ep_inputs *in, int form, const uint16_t *row, const struct ep_ll_outputs *out,
    size_t expert, size_t slot, size_t slots)
{
	int nscales = form == SHUNT_EP_AS_IS ? 0 : in->hidden / (form == SHUNT_EP_FP8_UE8M0 ? 512 : 128);
	size_t hidden = (size_t)in->hidden, at = (expert * slots + slot) * hidden;
	uint32_t scales[16384 / GROUP] = { 0 };

	if (form == SHUNT_EP_AS_IS) {
		memcpy((uint16_t *)out->x + at, row, hidden * 2);
		return;
	}
	ep_cast_row(row, in->hidden, form, (uint8_t *)out->x + at, scales);
	for (int i = 0; i < nscales; i++)
		out->scales[(expert * (size_t)nscales + (size_t)i) * slots + slot] = scales[i];
}

void ep_ll_dispatch(const struct ep_inputs *in, int rank, int max_tokens, int form, const struct ep_ll_outputs *out)
{
	int local = in->experts / in->nranks;
	size_t slots = (size_t)in->nranks * (size_t)max_tokens;

	for (int e = 0; e < local; e++) {
		int at = 0;

		for (int s = 0; s < in->nranks; s++) {
			int begin = at;

			for (int t = 0; t < in->tokens[s] && !(in->masked >> s & 1); t++) {
				if (find_place(in, experts_of(in, s, t), rank * local + e) == in->topk)
					continue;
				fill_slot(in, form, in->x[s] + (size_t)t * (size_t)in->hidden, out, (size_t)e,
				    (size_t)at, slots);
				out->src_idx[(size_t)e * slots + (size_t)at++] = t;
			}
			out->ranges[e * in->nranks + s] = (int64_t)begin << 32 | (at - begin);
		}
		out->count[e] = at;
	}
	for (int s = 0; s < in->nranks; s++)
		for (int i = 0; i < max_tokens * in->topk && !(in->masked >> s & 1); i++)
			out->routing[s * max_tokens * in->topk + i] =
			    i < in->tokens[s] * in->topk ? (int16_t)in->topk_idx[s][i] : -1;
}

/* The slot of a token at its expert, or -1. */
static int64_t find_slot(const int32_t *src_idx, int64_t range, int token)
{
	int64_t begin = range >> 32, n = range & 0xffffffff;

	for (int64_t i = begin; i < begin + n; i++)
		if (src_idx[i] == token)
			return i;
	return -1;
}

struct combining {
	const struct ep_inputs *in;
	int rank, dtype;
	size_t slots;
	const uint16_t *const *rows;
	const int32_t *const *src_idx;
	const int64_t *const *ranges;
};

/* An element of a token's sum, of the rows of one rank's experts, or with -1 of all. False: there are none. */
static bool add_experts(const struct combining *c, int t, int h, int from, float *sum_p)
{
	const struct ep_inputs *in = c->in;
	const int64_t *experts = experts_of(in, c->rank, t);
	int local = in->experts / in->nranks;
	bool any = false;

	*sum_p = 0;
	for (int k = 0; k < in->topk; k++) {
		int at = (int)(experts[k] / local), e = (int)(experts[k] % local);
		int64_t slot;

		if (experts[k] < 0 || in->masked >> at & 1 || (from >= 0 && at != from))
			continue;
		slot = find_slot(c->src_idx[at] + (size_t)e * c->slots, c->ranges[at][e * in->nranks + c->rank], t);
		*sum_p += multiply(in->topk_weights[c->rank][t * in->topk + k],
		    to_float(
		        c->dtype, c->rows[at][((size_t)e * c->slots + (size_t)slot) * (size_t)in->hidden + (size_t)h]));
		any = true;
	}
	return any;
}

void ep_ll_combine(const struct ep_inputs *in, int rank, int max_tokens, int dtype, const uint16_t *const *rows,
    const int32_t *const *src_idx, const int64_t *const *ranges, uint16_t *out)
{
	struct combining c = { in, rank, dtype, (size_t)in->nranks * (size_t)max_tokens, rows, src_idx, ranges };

	for (int t = 0; t < in->tokens[rank]; t++)
		for (int h = 0; h < in->hidden; h++) {
			float sum = 0, part;

			if (!in->rank_sums)
				add_experts(&c, t, h, -1, &sum);
			for (int r = 0; r < in->nranks && in->rank_sums; r++)
				if (add_experts(&c, t, h, r, &part))
					sum += to_float(dtype, from_float(dtype, part));
			out[(size_t)t * (size_t)in->hidden + (size_t)h] = from_float(dtype, sum);
		}
}

/* ---- normal mode */

int ep_rows(const struct ep_inputs *in, int rank, int32_t *src_rank, int32_t *src_idx)
{
	int n = 0;

	for (int s = 0; s < in->nranks; s++)
		for (int t = 0; t < in->tokens[s]; t++) {
			if (!names_rank(in, experts_of(in, s, t), rank))
				continue;
			if (src_rank)
				src_rank[n] = s;
			if (src_idx)
				src_idx[n] = t;
			n++;
		}
	return n;
}

void ep_row_experts(const struct ep_inputs *in, int rank, int source, int token, int64_t *idx, float *weights)
{
	const int64_t *experts = experts_of(in, source, token);
	int local = in->experts / in->nranks;

	for (int k = 0; k < in->topk; k++) {
		bool mine = experts[k] >= 0 && experts[k] / local == rank;

		idx[k] = mine ? experts[k] - rank * local : -1;
		weights[k] = mine ? in->topk_weights[source][token * in->topk + k] : 0;
	}
}

/* How many rows of a rank come before that of a token. */
static int row_of(const struct ep_inputs *in, int rank, int source, int token)
{
	int n = 0;

	for (int s = 0; s <= source; s++)
		for (int t = 0; t < (s == source ? token : in->tokens[s]); t++)
			n += names_rank(in, experts_of(in, s, t), rank);
	return n;
}

static float element(int dtype, const void *array, size_t i)
{
	return (float)ref_to_double((const char *)array + i * shunt_dtype_bytes[dtype], (enum shunt_dtype)dtype);
}

void ep_combine(const struct ep_inputs *in, int rank, int dtype, const void *const *rows, const void *const bias[2],
    const float *const *weights, void *out, float *out_weights)
{
	size_t hidden = (size_t)in->hidden;

	for (int t = 0; t < in->tokens[rank]; t++) {
		float *sum = calloc(hidden, sizeof(*sum));

		for (int b = 0; b < 2; b++)
			for (size_t h = 0; h < hidden && bias[b]; h++)
				sum[h] += element(dtype, bias[b], (size_t)t * hidden + h);
		for (int k = 0; k < in->topk && weights; k++)
			out_weights[t * in->topk + k] = 0;
		for (int r = 0; r < in->nranks; r++) {
			size_t row;

			if (!names_rank(in, experts_of(in, rank, t), r))
				continue;
			row = (size_t)row_of(in, r, rank, t);
			for (size_t h = 0; h < hidden; h++)
				sum[h] += element(dtype, rows[r], row * hidden + h);
			for (int k = 0; k < in->topk && weights; k++)
				out_weights[t * in->topk + k] += weights[r][row * (size_t)in->topk + (size_t)k];
		}
		for (size_t h = 0; h < hidden; h++)
			ref_from_double((char *)out + ((size_t)t * hidden + h) * shunt_dtype_bytes[dtype],
			    (enum shunt_dtype)dtype, sum[h]);
		free(sum);
	}
}
