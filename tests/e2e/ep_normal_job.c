/* SPDX-License-Identifier: MIT */
#include "tests/e2e/ep_normal_job.h"
#include <stdlib.h>
#include <string.h>
#include "base/coll.h"
#include "kernels/ep.h"
#include "tools/common/reference.h"

/* Row of a token on the wire of a dispatch, and its scales. */
static void make_row(const struct ep_normal_job *j, int rank, int token, uint8_t *row, uint32_t *scales)
{
	uint64_t seed = j->job.seed << 24 ^ (uint64_t)rank << 20 ^ (uint64_t)token;

	for (int i = 0; i < j->row_bytes; i++)
		row[i] = (uint8_t)ref_random(&seed);
	for (int i = 0; i < j->nscales; i++)
		scales[i] = (uint32_t)ref_random(&seed);
}

/* What the experts of a rank give for a token. */
static void make_result(const struct ep_normal_job *j, int rank, int source, int token, void *row)
{
	uint64_t seed = j->job.seed << 32 ^ (uint64_t)rank << 28 ^ (uint64_t)source << 24 ^ (uint64_t)token;

	ref_fill(row, (size_t)j->job.hidden, (enum shunt_dtype)j->job.dtype, &seed);
}

static void *poisoned(size_t bytes)
{
	void *p = malloc(bytes + 1);

	memset(p, EP_POISON, bytes + 1);
	return p;
}

static size_t result_bytes(const struct ep_normal_job *j)
{
	return (size_t)j->job.hidden * shunt_dtype_bytes[j->job.dtype];
}

/* The rows that a rank's experts give, or NULL of `bytes`. */
static void *make_results(const struct ep_normal_run *n, int rank)
{
	int rows = ep_rows(&n->run.in, rank, NULL, NULL);
	int32_t *from = malloc((size_t)rows * 8 + 8), *token = from + rows;
	char *y = poisoned((size_t)rows * result_bytes(&n->job));

	ep_rows(&n->run.in, rank, from, token);
	for (int i = 0; i < rows; i++)
		make_result(&n->job, rank, from[i], token[i], y + (size_t)i * result_bytes(&n->job));
	free(from);
	return y;
}

/* The weights that come with a rank's rows. */
static float *make_weights(const struct ep_normal_run *n, int rank)
{
	int rows = ep_rows(&n->run.in, rank, NULL, NULL), k = n->job.job.topk;
	int32_t *from = malloc((size_t)rows * 8 + 8), *token = from + rows;
	float *weights = malloc((size_t)(rows * k) * 4 + 4);
	int64_t idx[SHUNT_EP_MAX_TOPK];

	ep_rows(&n->run.in, rank, from, token);
	for (int i = 0; i < rows; i++)
		ep_row_experts(&n->run.in, rank, from[i], token[i], idx, weights + i * k);
	free(from);
	return weights;
}

static void prepare_dispatch(struct ep_normal_run *n, const struct rank *r)
{
	const struct ep_normal_job *j = &n->job;
	int tokens = j->job.tokens[r->rank], k = j->job.topk, capacity = n->rows + j->room;
	size_t t = (size_t)tokens, c = (size_t)capacity, row = (size_t)j->row_bytes, ns = (size_t)j->nscales;
	uint8_t *x = malloc(t * row + 1);
	uint32_t *one = malloc(ns * 4 + 4), *scales = malloc(t * ns * 4 + 4);
	int64_t by_token = j->columns ? 1 : j->nscales, by_scale = j->columns ? tokens : 1;

	for (int i = 0; i < tokens; i++) {
		make_row(j, r->rank, i, x + (size_t)i * row, one);
		for (int s = 0; s < j->nscales; s++)
			scales[i * by_token + s * by_scale] = one[s];
	}
	n->dispatch = (struct shunt_ep_dispatch){ .size = sizeof(n->dispatch),
		.stream = r->stream,
		.rank_prefix = n->notify.rank_prefix,
		.send_row = n->notify.send_row,
		.received = n->notify.received,
		.x = ep_run_memory(&n->run, x, t * row, j->job.odd),
		.row_bytes = j->row_bytes,
		.scales = ns ? ep_run_memory(&n->run, scales, t * ns * 4, false) : NULL,
		.nscales = j->nscales,
		.scale_token_stride = by_token,
		.scale_stride = by_scale,
		.topk_idx = j->topk ? n->layout.topk_idx : NULL,
		.topk_weights =
		    j->topk ? ep_run_memory(&n->run, n->run.topk_weights[r->rank], t * (size_t)k * 4, false) : NULL,
		.tokens = tokens,
		.topk = j->topk,
		.experts = j->job.experts,
		.blocks = j->dispatch_blocks,
		.capacity = capacity,
		.pad = j->worst,
		.recv_x = ep_run_memory(&n->run, NULL, c * row, j->job.odd),
		.recv_scales = ns ? ep_run_memory(&n->run, NULL, c * ns * 4, false) : NULL,
		.recv_topk_idx = j->topk ? ep_run_memory(&n->run, NULL, c * (size_t)k * 8, false) : NULL,
		.recv_topk_weights = j->topk ? ep_run_memory(&n->run, NULL, c * (size_t)k * 4, false) : NULL,
		.src_idx = ep_run_memory(&n->run, NULL, c * 4, false) };
	free(x);
	free(one);
	free(scales);
}

static void prepare_combine(struct ep_normal_run *n, const struct rank *r)
{
	const struct ep_normal_job *j = &n->job;
	size_t t = (size_t)j->job.tokens[r->rank], c = (size_t)n->dispatch.capacity, k = (size_t)j->topk;
	size_t given = c < (size_t)n->rows ? c : (size_t)n->rows;
	void *y = make_results(n, r->rank);
	float *weights = make_weights(n, r->rank);
	char *all = poisoned(c * result_bytes(j) + c * k * 4);

	memcpy(all, y, given * result_bytes(j));
	n->combine = (struct shunt_ep_combine){ .size = sizeof(n->combine),
		.stream = r->stream,
		.rank_prefix = n->notify.rank_prefix,
		.send_row = n->notify.send_row,
		.src_idx = n->dispatch.src_idx,
		.x = ep_run_memory(&n->run, all, c * result_bytes(j), j->job.odd && j->job.dtype != SHUNT_F32),
		.dtype = j->job.dtype,
		.rows = n->dispatch.capacity,
		.hidden = j->job.hidden,
		.tokens = j->job.tokens[r->rank],
		.topk = j->topk,
		.blocks = j->combine_blocks,
		.out = ep_run_memory(&n->run, NULL, t * result_bytes(j), j->job.odd && j->job.dtype != SHUNT_F32) };
	memcpy(all, weights, given * k * 4);
	if (k) {
		n->combine.topk_weights = ep_run_memory(&n->run, all, c * k * 4, false);
		n->combine.out_weights = ep_run_memory(&n->run, NULL, t * k * 4, false);
	}
	for (int b = 0; b < j->biases; b++) {
		char *bias = malloc(t * result_bytes(j) + 1);
		uint64_t seed = j->job.seed * 16 + (unsigned)(8 * b + r->rank);

		ref_fill(bias, t * (size_t)j->job.hidden, (enum shunt_dtype)j->job.dtype, &seed);
		n->combine.bias[b] = ep_run_memory(&n->run, bias, t * result_bytes(j), false);
		free(bias);
	}
	free(all);
	free(y);
	free(weights);
}

void ep_normal_prepare(struct ep_normal_run *n, const struct ep_normal_job *job, const struct rank *r)
{
	const struct ep_job *j = &n->run.job;
	size_t t = (size_t)job->job.tokens[r->rank], nranks = (size_t)job->job.nranks;
	struct ep_job inputs = job->job;

	n->job = *job;
	n->ticket = 0;
	inputs.dtype = SHUNT_BF16; /* its rows of x are not used, and have 2 bytes for an element */
	ep_run_inputs(&n->run, &inputs, r->rank);
	n->rows = ep_rows(&n->run.in, r->rank, NULL, NULL);
	n->layout = (struct shunt_ep_layout){ .size = sizeof(n->layout),
		.stream = r->stream,
		.topk_idx = ep_run_memory(&n->run, n->run.topk_idx[r->rank], t * (size_t)j->topk * 8, false),
		.tokens = j->tokens[r->rank],
		.topk = j->topk,
		.experts = j->experts,
		.per_rank = ep_run_memory(&n->run, NULL, nranks * 4, false),
		.per_host = ep_hosts > 1 && nranks > 1 ?
		    ep_run_memory(&n->run, NULL, (size_t)ep_hosts_of(&job->job) * 4, false) :
		    NULL,
		.per_expert = ep_run_memory(&n->run, NULL, (size_t)j->experts * 4, false),
		.in_rank = ep_run_memory(&n->run, NULL, t * nranks, false) };
	n->notify = (struct shunt_ep_notify){ .size = sizeof(n->notify),
		.stream = r->stream,
		.per_rank = n->layout.per_rank,
		.per_expert = n->layout.per_expert,
		.in_rank = n->layout.in_rank,
		.tokens = j->tokens[r->rank],
		.experts = j->experts,
		.alignment = job->alignment ? job->alignment : 1,
		.rank_prefix = ep_run_memory(&n->run, NULL, nranks * nranks * 4, false),
		.send_row = ep_run_memory(&n->run, NULL, t * nranks * 4, false),
		.received = ep_run_memory(&n->run, NULL, 4, false),
		.counts = !job->worst };
	prepare_dispatch(n, r);
	prepare_combine(n, r);
}

int ep_normal_tokens(const struct ep_normal_run *n, int expert)
{
	const struct ep_job *j = &n->run.job;
	int count = 0;

	for (int s = 0; s < j->nranks; s++)
		for (int i = 0; i < j->tokens[s] * j->topk; i++)
			count += n->run.topk_idx[s][i] == expert;
	return count;
}

static int check_routing(struct ep_normal_run *n, const struct rank *r)
{
	const struct ep_job *j = &n->run.job;
	int R = j->nranks, tokens = j->tokens[r->rank], wrong = 0;
	int32_t *per_rank = calloc((size_t)R, 4), *per_expert = calloc((size_t)j->experts, 4);
	int32_t *prefix = calloc((size_t)(R * R), 4), *send_row = malloc((size_t)(tokens * R) * 4 + 4);
	int32_t per_host[EP_MOST_RANKS] = { 0 };
	uint8_t *in_rank = calloc((size_t)(tokens * R) + 1, 1);

	for (int s = 0; s < R; s++) {
		int32_t *of_s = calloc((size_t)R, 4), *experts = calloc((size_t)j->experts, 4);
		uint8_t *in = calloc((size_t)(j->tokens[s] * R) + 1, 1);

		ep_layout(&n->run.in, s, of_s, experts, in);
		for (int q = 0; q < R; q++)
			prefix[s * R + q] = (s ? prefix[(s - 1) * R + q] : 0) + of_s[q];
		free(of_s);
		free(experts);
		free(in);
	}
	ep_layout(&n->run.in, r->rank, per_rank, per_expert, in_rank);
	for (int q = 0; q < R; q++)
		for (int t = 0, row = 0; t < tokens; t++)
			send_row[t * R + q] = in_rank[t * R + q] ? row++ : -1;
	for (int h = 0; h < ep_hosts_of(&n->job.job); h++)
		for (int t = 0; t < tokens; t++) {
			bool in = false;

			for (int q = h; q < R; q += ep_hosts_of(&n->job.job))
				in |= in_rank[t * R + q];
			per_host[h] += in;
		}
	if (n->layout.per_host)
		wrong |= ep_compare(
		    r, "per_host", n->layout.per_host, per_host, (size_t)ep_hosts_of(&n->job.job), SHUNT_I32);
	wrong |= ep_compare(r, "per_rank", n->layout.per_rank, per_rank, (size_t)R, SHUNT_I32);
	wrong |= ep_compare(r, "per_expert", n->layout.per_expert, per_expert, (size_t)j->experts, SHUNT_I32);
	wrong |= ep_compare(r, "in_rank", n->layout.in_rank, in_rank, (size_t)(tokens * R), SHUNT_U8);
	wrong |= ep_compare(r, "rank_prefix", n->notify.rank_prefix, prefix, (size_t)(R * R), SHUNT_I32);
	wrong |= ep_compare(r, "send_row", n->notify.send_row, send_row, (size_t)(tokens * R), SHUNT_I32);
	wrong |= ep_compare(r, "received", n->notify.received, &n->rows, 1, SHUNT_I32);
	free(per_rank);
	free(per_expert);
	free(prefix);
	free(send_row);
	free(in_rank);
	return wrong;
}

static int check_dispatch(struct ep_normal_run *n, const struct rank *r)
{
	const struct ep_normal_job *j = &n->job;
	size_t c = (size_t)n->dispatch.capacity, k = (size_t)j->topk, row = (size_t)j->row_bytes,
	       ns = (size_t)j->nscales;
	int32_t *from = malloc((size_t)n->rows * 8 + 8), *token = from + n->rows, *src = poisoned(c * 4);
	uint8_t *x = poisoned(c * row);
	uint32_t *scales = poisoned(c * ns * 4);
	int64_t *idx = poisoned(c * k * 8);
	float *weights = poisoned(c * k * 4);
	int wrong = 0;

	ep_rows(&n->run.in, r->rank, from, token);
	for (size_t i = 0; i < c && (int)i < n->rows; i++) {
		make_row(j, from[i], token[i], x + i * row, scales + i * ns);
		if (k)
			ep_row_experts(&n->run.in, r->rank, from[i], token[i], idx + i * k, weights + i * k);
		src[i] = token[i];
	}
	for (size_t i = (size_t)n->rows * k; j->worst && i < c * k; i++)
		idx[i] = -1;
	wrong |= ep_compare(r, "recv_x", n->dispatch.recv_x, x, c * row, SHUNT_U8);
	wrong |= ep_compare(r, "src_idx", n->dispatch.src_idx, src, c, SHUNT_I32);
	if (ns)
		wrong |= ep_compare(r, "recv_scales", n->dispatch.recv_scales, scales, c * ns, SHUNT_U32);
	if (k) {
		wrong |= ep_compare(r, "recv_topk_idx", n->dispatch.recv_topk_idx, idx, c * k, SHUNT_I64);
		wrong |= ep_compare(r, "recv_topk_weights", n->dispatch.recv_topk_weights, weights, c * k, SHUNT_U32);
	}
	free(from);
	free(src);
	free(x);
	free(scales);
	free(idx);
	free(weights);
	return wrong;
}

/* Rows of a rank for which it has no room count as zeros: so do they in the reference. */
static void drop_rows(const struct ep_normal_run *n, int rank, void *y, float *weights)
{
	int rows = ep_rows(&n->run.in, rank, NULL, NULL), k = n->job.job.topk;

	for (int i = n->job.room < 0 ? rows + n->job.room : rows; i < rows; i++) {
		memset((char *)y + (size_t)i * result_bytes(&n->job), 0, result_bytes(&n->job));
		memset(weights + i * k, 0, (size_t)k * 4);
	}
}

static int check_combine(struct ep_normal_run *n, const struct rank *r)
{
	const struct ep_normal_job *j = &n->job;
	size_t t = (size_t)j->job.tokens[r->rank], k = (size_t)j->topk;
	const void *rows[EP_MOST_RANKS], *bias[2] = { NULL, NULL };
	const float *weights[EP_MOST_RANKS];
	char *out = poisoned(t * result_bytes(j)), *host[2] = { NULL, NULL };
	float *out_weights = malloc(t * k * 4 + 4);
	int wrong;

	for (int s = 0; s < j->job.nranks; s++) {
		rows[s] = make_results(n, s);
		weights[s] = make_weights(n, s);
		drop_rows(n, s, (void *)rows[s], (float *)weights[s]);
	}
	for (int b = 0; b < j->biases; b++) {
		bias[b] = host[b] = malloc(t * result_bytes(j) + 1);
		CHECK(shunt_memcpy(host[b], n->combine.bias[b], t * result_bytes(j)) == 0);
	}
	ep_combine(&n->run.in, r->rank, j->job.dtype, rows, bias, k ? weights : NULL, out, out_weights);
	wrong = ep_compare(r, "out", n->combine.out, out, t * (size_t)j->job.hidden, j->job.dtype);
	if (k)
		wrong |= ep_compare(r, "out_weights", n->combine.out_weights, out_weights, t * k, SHUNT_F32);
	for (int s = 0; s < j->job.nranks; s++) {
		free((void *)rows[s]);
		free((void *)weights[s]);
	}
	free(host[0]);
	free(host[1]);
	free(out);
	free(out_weights);
	return wrong;
}

int ep_normal_check(struct ep_normal_run *n, const struct rank *r)
{
	return check_routing(n, r) | check_dispatch(n, r) | check_combine(n, r);
}

void ep_normal_finish(struct ep_normal_run *n)
{
	ep_run_finish(&n->run);
}
