/* SPDX-License-Identifier: MIT */
/*
 * ep_reference VECTORS: the reference of expert parallel calls in C against 200 cases of another one, in numpy
 * (ep_vectors.py). A case is a seed, and a CRC of all that it gives.
 */
#include "tools/common/libc.h"
#include "shunt/ep.h"
#include "tools/common/ep_reference.h"
#include "tools/common/reference.h"

enum { MOST = 6, RANKS = 8 };

static uint32_t crc;

static void take(const void *data, size_t bytes)
{
	const uint8_t *p = data;

	crc = ~crc;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	crc = ~crc;
}

/* Finite bfloat16 of every exponent below 1. */
static uint16_t *numbers(size_t n, uint64_t *seed)
{
	uint16_t *x = malloc(n * 2 + 1);

	for (size_t i = 0; i < n; i++)
		x[i] = (uint16_t)(ref_random(seed) & 0xbfff);
	return x;
}

static void take_layout(const struct ep_inputs *in, int r)
{
	int32_t per_rank[RANKS] = { 0 }, per_expert[RANKS * 3] = { 0 };
	uint8_t in_rank[MOST * RANKS] = { 0 };

	ep_layout(in, r, per_rank, per_expert, in_rank);
	take(per_rank, (size_t)in->nranks * 4);
	take(per_expert, (size_t)in->experts * 4);
	take(in_rank, (size_t)(in->tokens[r] * in->nranks));
}

struct low {
	struct ep_ll_outputs out;
	uint16_t *rows;
};

static void take_low(const struct ep_inputs *in, int r, int form, const struct low *all)
{
	const struct ep_ll_outputs *out = &all[r].out;
	size_t local = (size_t)(in->experts / in->nranks), slots = (size_t)in->nranks * MOST,
	       hidden = (size_t)in->hidden;
	uint16_t sums[MOST * 512];
	const uint16_t *rows[RANKS];
	const int32_t *src_idx[RANKS];
	const int64_t *ranges[RANKS];

	for (int s = 0; s < in->nranks; s++) {
		rows[s] = all[s].rows;
		src_idx[s] = all[s].out.src_idx;
		ranges[s] = all[s].out.ranges;
	}
	take(out->x, local * slots * hidden * (form == SHUNT_EP_AS_IS ? 2 : 1));
	if (form != SHUNT_EP_AS_IS)
		take(out->scales, local * slots * hidden / (form == SHUNT_EP_FP8_UE8M0 ? 512 : 128) * 4);
	take(out->count, local * 4);
	take(out->src_idx, local * slots * 4);
	take(out->ranges, local * (size_t)in->nranks * 8);
	ep_ll_combine(in, r, MOST, SHUNT_BF16, rows, src_idx, ranges, sums);
	take(sums, (size_t)in->tokens[r] * hidden * 2);
}

static void take_normal(const struct ep_inputs *in, int r, const struct low *all)
{
	int32_t src_rank[RANKS][RANKS * MOST], src_idx[RANKS][RANKS * MOST];
	int64_t idx[RANKS * MOST * 4];
	float weights[RANKS][RANKS * MOST * 4], out_weights[MOST * 4];
	uint16_t sums[MOST * 512];
	const void *rows[RANKS], *bias[2] = { in->x[r], in->x[r] };
	const float *rows_weights[RANKS];
	size_t k = (size_t)in->topk;
	int n[RANKS];

	for (int s = 0; s < in->nranks; s++) {
		rows[s] = all[s].rows;
		rows_weights[s] = weights[s];
		n[s] = ep_rows(in, s, src_rank[s], src_idx[s]);
		for (int i = 0; i < n[s]; i++)
			ep_row_experts(in, s, src_rank[s][i], src_idx[s][i], idx, &weights[s][(size_t)i * k]);
	}
	for (int i = 0; i < n[r]; i++)
		ep_row_experts(in, r, src_rank[r][i], src_idx[r][i], &idx[(size_t)i * k], &weights[r][(size_t)i * k]);
	take(src_rank[r], (size_t)n[r] * 4);
	take(src_idx[r], (size_t)n[r] * 4);
	take(idx, (size_t)n[r] * k * 8);
	take(weights[r], (size_t)n[r] * k * 4);
	ep_combine(in, r, SHUNT_BF16, rows, bias, rows_weights, sums, out_weights);
	take(sums, (size_t)(in->tokens[r] * in->hidden) * 2);
	take(out_weights, (size_t)in->tokens[r] * k * 4);
}

static uint32_t run_case(uint64_t seed)
{
	static const int ranks[] = { 1, 2, 3, 4, 8 };
	int tokens[RANKS], n = ranks[ref_random(&seed) % 5], local = 1 + (int)(ref_random(&seed) % 3);
	int form = (int)(ref_random(&seed) % 4), k = 1 + (int)(ref_random(&seed) % 4);
	int hidden = form == SHUNT_EP_FP8_UE8M0 ? 512 : 128 * (1 + (int)(ref_random(&seed) % 2));
	size_t slots = (size_t)(n * MOST), nlocal = (size_t)local;
	int64_t *idx[RANKS];
	float *weights[RANKS];
	uint16_t *x[RANKS];
	struct ep_inputs in = { .nranks = n,
		.experts = n * local,
		.topk = k,
		.hidden = hidden,
		.tokens = tokens,
		.topk_idx = (const int64_t *const *)idx,
		.topk_weights = (const float *const *)weights,
		.x = (const uint16_t *const *)x };
	struct low low[RANKS];

	for (int r = 0; r < n; r++)
		tokens[r] = (int)(ref_random(&seed) % (MOST + 1));
	for (int r = 0; r < n; r++) {
		int each = tokens[r] * k;

		idx[r] = malloc((size_t)each * 8 + 1);
		weights[r] = malloc((size_t)each * 4 + 1);
		for (int i = 0; i < each; i++)
			idx[r][i] = (int64_t)(ref_random(&seed) % (uint64_t)(n * local + 1)) - 1;
		for (int i = 0; i < each; i++)
			weights[r][i] = (float)(ref_random(&seed) % 4096) / 1024;
		x[r] = numbers((size_t)(tokens[r] * hidden), &seed);
	}
	for (int r = 0; r < n; r++) {
		low[r].rows = numbers(nlocal * slots * (size_t)hidden, &seed);
		low[r].out = (struct ep_ll_outputs){ calloc(nlocal * slots, (size_t)hidden * 2),
			calloc(nlocal * slots, (size_t)hidden / 32), calloc(nlocal, 4), malloc(nlocal * slots * 4),
			calloc(nlocal * (size_t)n, 8), calloc(slots, (size_t)k * 2) };
		memset(low[r].out.src_idx, 0xff, nlocal * slots * 4);
		ep_ll_dispatch(&in, r, MOST, form, &low[r].out);
	}
	crc = 0;
	for (int r = 0; r < n; r++) {
		take_layout(&in, r);
		take_low(&in, r, form, low);
		take_normal(&in, r, low);
	}
	for (int r = 0; r < n; r++) {
		free(idx[r]);
		free(weights[r]);
		free(x[r]);
		free(low[r].rows);
		free(low[r].out.x);
		free(low[r].out.scales);
		free(low[r].out.count);
		free(low[r].out.src_idx);
		free(low[r].out.ranges);
		free(low[r].out.routing);
	}
	return crc;
}

int main(int argc, char **argv)
{
	FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
	unsigned seed, expected;
	int n = 0, wrong = 0;

	if (!f) {
		fprintf(stderr, "usage: ep_reference VECTORS\n");
		return 2;
	}
	for (; fscanf(f, "%u %x", &seed, &expected) == 2; n++)
		if (run_case(seed) != expected) {
			fprintf(stderr, "case %u: the CRC is %08x, not %08x\n", seed, crc, expected);
			wrong++;
		}
	fclose(f);
	return n != 200 || wrong;
}
