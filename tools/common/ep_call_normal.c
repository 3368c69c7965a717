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

static int open_layout(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	struct shunt_ep_layout *l = &c->normal.layout;
	struct shunt_ep_notify *n = &c->normal.notify;
	uint64_t tokens = (uint64_t)j->tokens[c->rank], nranks = (uint64_t)j->nranks;
	int err;

	*l = (struct shunt_ep_layout){
		.size = sizeof(*l), .tokens = j->tokens[c->rank], .topk = j->topk, .experts = j->experts
	};
	*n = (struct shunt_ep_notify){
		.size = sizeof(*n), .tokens = j->tokens[c->rank], .experts = j->experts, .alignment = 1
	};
	err = ep_device_memory(c, c->topk_idx[c->rank], tokens * (uint64_t)j->topk * 8, &l->topk_idx);
	if (!err)
		err = ep_device_memory(c, NULL, nranks * 4, &l->per_rank);
	if (!err)
		err = ep_device_memory(c, NULL, (uint64_t)j->experts * 4, &l->per_expert);
	if (!err)
		err = ep_device_memory(c, NULL, tokens * nranks, &l->in_rank);
	if (!err)
		err = ep_device_memory(c, NULL, nranks * nranks * 4, &n->rank_prefix);
	if (!err)
		err = ep_device_memory(c, NULL, tokens * nranks * 4, &n->send_row);
	n->per_rank = l->per_rank;
	n->per_expert = l->per_expert;
	n->in_rank = l->in_rank;
	return err ? err : ep_device_memory(c, NULL, 4, &n->received);
}

static int open_dispatch(struct ep_call *c, int rows)
{
	const struct ep_job *j = &c->job;
	struct shunt_ep_dispatch *d = &c->normal.dispatch;
	const struct shunt_ep_notify *n = &c->normal.notify;
	uint64_t tokens = (uint64_t)j->tokens[c->rank], scales = (uint64_t)nscales(j);
	int err;

	*d = (struct shunt_ep_dispatch){ .size = sizeof(*d),
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
		.capacity = rows };
	err = ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_TOKENS), tokens * (uint64_t)row_elements(j), &d->x);
	if (!err && scales)
		err = ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_SCALES), tokens * scales * 2, &d->scales);
	if (!err)
		err = ep_device_memory(c, c->topk_weights[c->rank], tokens * (uint64_t)j->topk * 4, &d->topk_weights);
	if (!err)
		err = ep_device_memory(c, NULL, (uint64_t)rows * (uint64_t)d->row_bytes, &d->recv_x);
	if (!err && scales)
		err = ep_device_memory(c, NULL, (uint64_t)rows * scales * 4, &d->recv_scales);
	if (!err)
		err = ep_device_memory(c, NULL, (uint64_t)rows * (uint64_t)j->topk * 8, &d->recv_topk_idx);
	if (!err)
		err = ep_device_memory(c, NULL, (uint64_t)rows * (uint64_t)j->topk * 4, &d->recv_topk_weights);
	return err ? err : ep_device_memory(c, NULL, (uint64_t)rows * 4, &d->src_idx);
}

int ep_normal_open(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	struct ep_inputs in = ep_call_inputs(c);
	struct shunt_ep_combine *d = &c->normal.combine;
	int rows = ep_rows(&in, c->rank, NULL, NULL), err = open_layout(c);

	if (!err)
		err = open_dispatch(c, rows);
	*d = (struct shunt_ep_combine){ .size = sizeof(*d),
		.rank_prefix = c->normal.notify.rank_prefix,
		.send_row = c->normal.notify.send_row,
		.src_idx = c->normal.dispatch.src_idx,
		.dtype = SHUNT_BF16,
		.rows = rows,
		.hidden = j->hidden,
		.tokens = j->tokens[c->rank] };
	if (!err)
		err = ep_pattern_memory(
		    c, ep_pattern_begin(j, c->rank, EP_ROWS), (uint64_t)rows * (uint64_t)j->hidden, &d->x);
	return err ? err : ep_device_memory(c, NULL, (uint64_t)j->tokens[c->rank] * (uint64_t)j->hidden * 2, &d->out);
}

int ep_normal_poison(struct ep_call *c, void *stream)
{
	const struct ep_job *j = &c->job;
	const struct shunt_ep_dispatch *d = &c->normal.dispatch;
	uint64_t rows = (uint64_t)d->capacity;
	const struct {
		void *at;
		uint64_t bytes;
	} outputs[] = { { d->recv_x, rows * (uint64_t)d->row_bytes },
		{ d->recv_scales, rows * (uint64_t)nscales(j) * 4 }, { d->recv_topk_idx, rows * (uint64_t)j->topk * 8 },
		{ d->recv_topk_weights, rows * (uint64_t)j->topk * 4 }, { d->src_idx, rows * 4 },
		{ c->normal.combine.out, (uint64_t)j->tokens[c->rank] * (uint64_t)j->hidden * 2 } };
	int err = 0;

	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]) && !err; i++)
		if (outputs[i].at)
			err = c->ep->lib->memset_async(outputs[i].at, EP_POISON, outputs[i].bytes + 16, stream);
	return err;
}

/* ---- checks */

/* n elements of each row from `column` on, of all that came. */
static int check_rows(struct ep_check *k, const char *what, const void *dev, enum ep_pattern pattern, int n,
    const int32_t *src_rank, const int32_t *src_idx)
{
	struct ep_call *c = k->c;
	uint64_t rows = (uint64_t)c->normal.dispatch.capacity, width = (uint64_t)n;
	uint16_t *got = ep_fetch(c, dev, rows * width * 2), want[EP_STRIP];

	if (!got)
		return -EIO;
	for (uint64_t i = 0; i < rows; i++)
		for (int64_t at = ep_next_strip(n, false, -1); at >= 0; at = ep_next_strip(n, false, at)) {
			ep_pattern_take(c,
			    ep_pattern_begin(&c->job, src_rank[i], pattern) + (uint64_t)src_idx[i] * width +
			        (uint64_t)at,
			    (uint64_t)ep_strip_width(n, at), want);
			ep_check_bytes(k, what, i, (uint64_t)at, got + i * width + (uint64_t)at, want,
			    (size_t)ep_strip_width(n, at) * 2);
		}
	free(got);
	return 0;
}

static int check_experts(
    struct ep_check *k, const struct ep_inputs *in, const int32_t *src_rank, const int32_t *src_idx)
{
	const struct shunt_ep_dispatch *d = &k->c->normal.dispatch;
	size_t rows = (size_t)d->capacity, topk = (size_t)d->topk;
	int64_t *idx = malloc(rows * topk * 8 + 1);
	float *weights = malloc(rows * topk * 4 + 1);
	int err = idx && weights ? 0 : -ENOMEM;

	for (size_t i = 0; i < rows && !err; i++)
		ep_row_experts(in, k->c->rank, src_rank[i], src_idx[i], idx + i * topk, weights + i * topk);
	if (!err)
		err = ep_check_array(k, "recv_topk_idx", d->recv_topk_idx, idx, rows * topk * 8);
	if (!err)
		err = ep_check_array(k, "recv_topk_weights", d->recv_topk_weights, weights, rows * topk * 4);
	free(idx);
	free(weights);
	return err;
}

int ep_normal_check_dispatch(struct ep_check *k)
{
	struct ep_call *c = k->c;
	const struct shunt_ep_dispatch *d = &c->normal.dispatch;
	struct ep_inputs in = ep_call_inputs(c);
	size_t rows = (size_t)d->capacity;
	int32_t *src_rank = malloc(rows * 4 + 1), *src_idx = malloc(rows * 4 + 1);
	int err = src_rank && src_idx ? 0 : -ENOMEM;

	if (!err) {
		ep_rows(&in, c->rank, src_rank, src_idx);
		err = ep_check_array(k, "received", d->received, &d->capacity, 4);
	}
	if (!err)
		err = ep_check_array(k, "src_idx", d->src_idx, src_idx, rows * 4);
	if (!err)
		err = check_rows(k, "recv_x", d->recv_x, EP_TOKENS, row_elements(&c->job), src_rank, src_idx);
	if (!err && d->nscales)
		err = check_rows(k, "recv_scales", d->recv_scales, EP_SCALES, 2 * d->nscales, src_rank, src_idx);
	if (!err)
		err = check_experts(k, &in, src_rank, src_idx);
	free(src_rank);
	free(src_idx);
	return err;
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

int ep_normal_check_combine(struct ep_check *k)
{
	struct ep_call *c = k->c;
	const struct ep_job *j = &c->job;
	uint64_t n = (uint64_t)j->tokens[c->rank], hidden = (uint64_t)j->hidden;
	uint16_t *got = ep_fetch(c, c->normal.combine.out, n * hidden * 2), want[EP_STRIP];
	int *rows[EP_CALL_RANKS] = { NULL }, err = got ? 0 : -EIO;

	for (int r = 0; r < j->nranks && !err; r++) {
		rows[r] = rows_at(c, r);
		err = rows[r] ? 0 : -ENOMEM;
	}
	for (int t = 0; t < (int)n && !err; t++)
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
	return err;
}
