/* SPDX-License-Identifier: MIT */
/* Calls of normal mode: any bytes as rows, with scales, experts and weights beside them. */
#include <errno.h>
#include <stdlib.h>
#include "base/coll.h"
#include "tools/common/ep_call.h"

/* Elements of 2 bytes of a dispatched row, and words of scales. */
static int row_elements(const struct ep_job *j)
{
	return j->form == SHUNT_EP_AS_IS ? j->hidden : j->hidden / 2;
}

static int nscales(const struct ep_job *j)
{
	return j->form == SHUNT_EP_AS_IS ? 0 : j->hidden / (j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128);
}

static void open_layout(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	struct shunt_ep_layout *l = &c->normal.layout;
	uint64_t tokens = (uint64_t)j->tokens[c->rank], nranks = (uint64_t)j->nranks;

	*l = (struct shunt_ep_layout){ .size = sizeof(*l),
		.tokens = j->tokens[c->rank],
		.topk = j->topk,
		.experts = j->experts,
		.topk_idx = ep_device_memory(c, c->topk_idx[c->rank], tokens * (uint64_t)j->topk * 8),
		.per_rank = ep_device_memory(c, NULL, nranks * 4),
		.per_expert = ep_device_memory(c, NULL, (uint64_t)j->experts * 4),
		.in_rank = ep_device_memory(c, NULL, tokens * nranks) };
	c->normal.notify = (struct shunt_ep_notify){ .size = sizeof(c->normal.notify),
		.tokens = l->tokens,
		.experts = l->experts,
		.alignment = 1,
		.per_rank = l->per_rank,
		.per_expert = l->per_expert,
		.in_rank = l->in_rank,
		.rank_prefix = ep_device_memory(c, NULL, nranks * nranks * 4),
		.send_row = ep_device_memory(c, NULL, tokens * nranks * 4),
		.received = ep_device_memory(c, NULL, 4) };
}

void ep_normal_open(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	struct ep_inputs in = ep_call_inputs(c);
	const struct shunt_ep_notify *n = &c->normal.notify;
	int capacity = ep_rows(&in, c->rank, NULL, NULL);
	uint64_t tokens = (uint64_t)j->tokens[c->rank], rows = (uint64_t)capacity, topk = (uint64_t)j->topk;
	uint64_t elements = (uint64_t)row_elements(j), words = (uint64_t)nscales(j);

	open_layout(c);
	c->normal.dispatch = (struct shunt_ep_dispatch){ .size = sizeof(c->normal.dispatch),
		.rank_prefix = n->rank_prefix,
		.send_row = n->send_row,
		.received = n->received,
		.row_bytes = 2 * row_elements(j),
		.nscales = nscales(j),
		.scale_token_stride = nscales(j),
		.scale_stride = 1,
		.topk_idx = c->normal.layout.topk_idx,
		.tokens = j->tokens[c->rank],
		.topk = j->topk,
		.experts = j->experts,
		.capacity = capacity,
		.x = ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_TOKENS), tokens * elements),
		.scales =
		    words ? ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_SCALES), tokens * words * 2) : NULL,
		.topk_weights = ep_device_memory(c, c->topk_weights[c->rank], tokens * topk * 4),
		.recv_x = ep_output_memory(c, rows * 2 * elements),
		.recv_scales = words ? ep_output_memory(c, rows * words * 4) : NULL,
		.recv_topk_idx = ep_output_memory(c, rows * topk * 8),
		.recv_topk_weights = ep_output_memory(c, rows * topk * 4),
		.src_idx = ep_output_memory(c, rows * 4) };
	c->normal.combine = (struct shunt_ep_combine){ .size = sizeof(c->normal.combine),
		.rank_prefix = n->rank_prefix,
		.send_row = n->send_row,
		.src_idx = c->normal.dispatch.src_idx,
		.dtype = SHUNT_BF16,
		.rows = capacity,
		.hidden = j->hidden,
		.tokens = j->tokens[c->rank],
		.x = ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_ROWS), rows * (uint64_t)j->hidden),
		.out = ep_output_memory(c, tokens * (uint64_t)j->hidden * 2) };
}

/* ---- checks */

/* n elements of each row from `column` on, of all that came. */
static void check_rows(struct ep_check *k, const char *what, const void *dev, enum ep_pattern pattern, int n,
    const int32_t *src_rank, const int32_t *src_idx)
{
	struct ep_call *c = k->c;
	uint64_t rows = (uint64_t)c->normal.dispatch.capacity, width = (uint64_t)n;
	uint16_t *got = ep_fetch(k, dev, rows * width * 2), want[EP_STRIP];

	for (uint64_t i = 0; got && i < rows; i++)
		for (int64_t at = ep_next_strip(n, false, -1); at >= 0; at = ep_next_strip(n, false, at)) {
			ep_pattern_take(c,
			    ep_pattern_begin(&c->job, src_rank[i], pattern) + (uint64_t)src_idx[i] * width +
			        (uint64_t)at,
			    (uint64_t)ep_strip_width(n, at), want);
			ep_check_bytes(k, what, i, (uint64_t)at, got + i * width + (uint64_t)at, want,
			    (size_t)ep_strip_width(n, at) * 2);
		}
	free(got);
}

static void check_experts(
    struct ep_check *k, const struct ep_inputs *in, const int32_t *src_rank, const int32_t *src_idx)
{
	const struct shunt_ep_dispatch *d = &k->c->normal.dispatch;
	size_t rows = (size_t)d->capacity, topk = (size_t)d->topk;
	int64_t *idx = malloc(rows * topk * 8 + 1);
	float *weights = malloc(rows * topk * 4 + 1);

	if (!idx || !weights)
		k->err = -ENOMEM;
	for (size_t i = 0; i < rows && !k->err; i++)
		ep_row_experts(in, k->c->rank, src_rank[i], src_idx[i], idx + i * topk, weights + i * topk);
	ep_check_array(k, "recv_topk_idx", d->recv_topk_idx, idx, rows * topk * 8);
	ep_check_array(k, "recv_topk_weights", d->recv_topk_weights, weights, rows * topk * 4);
	free(idx);
	free(weights);
}

void ep_normal_check_dispatch(struct ep_check *k)
{
	struct ep_call *c = k->c;
	const struct shunt_ep_dispatch *d = &c->normal.dispatch;
	struct ep_inputs in = ep_call_inputs(c);
	size_t rows = (size_t)d->capacity;
	int32_t *src_rank = malloc(rows * 4 + 1), *src_idx = malloc(rows * 4 + 1);

	if (src_rank && src_idx) {
		ep_rows(&in, c->rank, src_rank, src_idx);
		ep_check_array(k, "received", d->received, &d->capacity, 4);
		ep_check_array(k, "src_idx", d->src_idx, src_idx, rows * 4);
		check_rows(k, "recv_x", d->recv_x, EP_TOKENS, row_elements(&c->job), src_rank, src_idx);
		if (d->nscales)
			check_rows(k, "recv_scales", d->recv_scales, EP_SCALES, 2 * d->nscales, src_rank, src_idx);
		check_experts(k, &in, src_rank, src_idx);
	} else {
		k->err = -ENOMEM;
	}
	free(src_rank);
	free(src_idx);
}

/* The row of each token of this rank at another one, plus 1; 0: it does not go there. NULL: no memory. */
static int *rows_at(const struct ep_call *c, int rank)
{
	struct ep_inputs in = ep_call_inputs(c);
	int n = ep_rows(&in, rank, NULL, NULL), tokens = c->job.tokens[c->rank];
	int32_t *src_rank = malloc((size_t)n * 4 + 1), *src_idx = malloc((size_t)n * 4 + 1);
	int *rows = src_rank && src_idx ? calloc((size_t)tokens + 1, sizeof(*rows)) : NULL;

	if (rows)
		ep_rows(&in, rank, src_rank, src_idx);
	for (int i = 0; i < n && rows; i++)
		if (src_rank[i] == c->rank)
			rows[src_idx[i]] = i + 1;
	free(src_rank);
	free(src_idx);
	return rows;
}

/* The sum of a token in some columns, by the reference: of a call with an expert on each rank, and this token alone. */
static void sum_of(const struct ep_call *c, int *const rows[], int token, int64_t column, int n, uint16_t *sum)
{
	const struct ep_job *j = &c->job;
	static const uint16_t *const none[2];
	int tokens[EP_CALL_RANKS] = { 0 };
	int64_t idx[EP_CALL_RANKS];
	const int64_t *idx_of[EP_CALL_RANKS];
	uint16_t row[EP_CALL_RANKS][EP_STRIP];
	const void *row_of[EP_CALL_RANKS];
	struct ep_inputs in = { .nranks = j->nranks,
		.experts = j->nranks,
		.topk = j->nranks,
		.hidden = n,
		.tokens = tokens,
		.topk_idx = idx_of };

	tokens[c->rank] = 1;
	for (int r = 0; r < j->nranks; r++) {
		idx_of[r] = idx;
		idx[r] = rows[r][token] ? r : -1;
		row_of[r] = row[r];
		if (idx[r] >= 0)
			ep_pattern_take(c,
			    ep_pattern_begin(j, r, EP_ROWS) + (uint64_t)(rows[r][token] - 1) * (uint64_t)j->hidden +
			        (uint64_t)column,
			    (uint64_t)n, row[r]);
	}
	ep_combine(&in, c->rank, SHUNT_BF16, row_of, (const void *const *)none, NULL, sum, NULL);
}

void ep_normal_check_combine(struct ep_check *k)
{
	struct ep_call *c = k->c;
	const struct ep_job *j = &c->job;
	uint64_t n = (uint64_t)j->tokens[c->rank], hidden = (uint64_t)j->hidden;
	uint16_t *got = ep_fetch(k, c->normal.combine.out, n * hidden * 2), want[EP_STRIP];
	int *rows[EP_CALL_RANKS] = { NULL };

	for (int r = 0; r < j->nranks && !k->err; r++) {
		rows[r] = rows_at(c, r);
		k->err = rows[r] ? 0 : -ENOMEM;
	}
	for (int t = 0; t < (int)n && !k->err; t++)
		for (int64_t at = ep_next_strip(j->hidden, false, -1); at >= 0;
		    at = ep_next_strip(j->hidden, false, at)) {
			int width = ep_strip_width(j->hidden, at);

			sum_of(c, rows, t, at, width, want);
			ep_check_bytes(k, "out", (uint64_t)t, (uint64_t)at, got + (uint64_t)t * hidden + (uint64_t)at,
			    want, (size_t)width * 2);
		}
	for (int r = 0; r < j->nranks; r++)
		free(rows[r]);
	free(got);
}
