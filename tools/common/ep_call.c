/* SPDX-License-Identifier: MIT */
#include "tools/common/ep_call.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "tools/common/reference.h"

enum {
	PATTERN = 1048573, /* elements: a prime, so that rows of all sizes differ */
	STRIP = 512,       /* columns that are looked at: as many as UE8M0 has for a word of scales */
	POISON = 0xa5,
	WHOLE = 4 << 20, /* bytes of outputs up to which everything is looked at */
};

int ep_lib_open(struct ep_lib *ep, const struct tool_lib *lib)
{
	const char *missing = NULL;

	ep->lib = lib;
#define X(name) \
	ep->name = (__typeof__(shunt_ep_##name) *)dlsym(lib->handle, "shunt_ep_" #name); \
	missing = ep->name ? missing : "shunt_ep_" #name;
	EP_LIB_FUNCS(X)
#undef X
	if (!missing)
		return 0;
	tool_error("%s has no %s: it is not the libshunt.so of this version", lib->path, missing);
	return -ELIBBAD;
}

/* As the library has read it. */
bool ep_sums_by_rank(void)
{
	return shunt_config()->ep_sum == SHUNT_EP_SUM_RANK;
}

/* ---- inputs */

static uint64_t mix(uint64_t seed, uint64_t a, uint64_t b)
{
	uint64_t state = seed ^ (a + 1) * 0x9e3779b97f4a7c15ull ^ (b + 1) * 0xc2b2ae3d27d4eb4full;

	ref_random(&state);
	return ref_random(&state);
}

static uint64_t slots(const struct ep_job *j)
{
	return (uint64_t)j->nranks * (uint64_t)j->max_tokens;
}

static uint64_t local(const struct ep_job *j)
{
	return (uint64_t)(j->experts / j->nranks);
}

/* Where a rank's tokens begin in the pattern, and the rows of its experts. */
static uint64_t x_begin(const struct ep_job *j, int rank)
{
	return mix(j->seed, (uint64_t)rank, 1) % PATTERN;
}

static uint64_t rows_begin(const struct ep_job *j, int rank)
{
	return mix(j->seed, (uint64_t)rank, 2) % PATTERN;
}

/* n elements from `at` on. */
static void take_elements(const struct ep_call *c, uint64_t at, uint64_t n, uint16_t *out)
{
	for (uint64_t i = 0; i < n; i++)
		out[i] = c->pattern[(at + i) % PATTERN];
}

static bool has(const int64_t *experts, int n, int64_t expert)
{
	for (int k = 0; k < n; k++)
		if (experts[k] == expert)
			return true;
	return false;
}

static int64_t choose_expert(const struct ep_job *j, const int64_t *before, int k, uint64_t *state)
{
	uint64_t random = ref_random(state);

	switch (j->routing) {
	case EP_FREE:
		while (k < j->experts && has(before, k, (int64_t)(random % (uint64_t)j->experts)))
			random = ref_random(state);
		return k < j->experts ? (int64_t)(random % (uint64_t)j->experts) : -1;
	case EP_ANYWHERE:
		return (int64_t)(random % (uint64_t)(j->experts + 1)) - 1;
	case EP_ONE:
		return k ? -1 : (int64_t)(j->seed % (uint64_t)j->experts);
	case EP_ONE_RANK:
		return (int64_t)(j->seed % (uint64_t)j->nranks * local(j) + random % local(j));
	default:
		return -1;
	}
}

static int make_routing(struct ep_call *c, int rank)
{
	const struct ep_job *j = &c->job;
	size_t n = (size_t)j->tokens[rank], topk = (size_t)j->topk;
	int64_t *idx = c->topk_idx[rank] = calloc(n * topk + 1, sizeof(*idx));
	float *weights = c->topk_weights[rank] = calloc(n * topk + 1, sizeof(*weights));

	if (!idx || !weights)
		return -ENOMEM;
	for (size_t t = 0; t < n; t++) {
		uint64_t state = mix(j->seed, (uint64_t)rank << 32 | t, 3);

		for (size_t k = 0; k < topk; k++) {
			idx[t * topk + k] = choose_expert(j, &idx[t * topk], (int)k, &state);
			weights[t * topk + k] = (float)(ref_random(&state) >> 40) / (1 << 24) - 0.125f;
		}
	}
	return 0;
}

/* ---- memory */

static int device_memory(struct ep_call *c, const void *from, uint64_t bytes, const void *out)
{
	void *ptr = NULL;
	int err = c->ep->lib->malloc(&ptr, bytes + 16);

	if (err)
		return err;
	c->memory[c->nmemory++] = ptr;
	memcpy((void *)(uintptr_t)out, &ptr, sizeof(ptr));
	return from && bytes ? c->ep->lib->memcpy(ptr, from, bytes) : 0;
}

/* n elements of the pattern from `at` on, in the device's memory. */
static int pattern_memory(struct ep_call *c, uint64_t at, uint64_t n, const void *out)
{
	char *to;
	int err = device_memory(c, NULL, n * 2, out);

	memcpy(&to, out, sizeof(to));
	for (uint64_t done = 0, count; !err && done < n; done += count) {
		uint64_t from = (at + done) % PATTERN;

		count = n - done < PATTERN - from ? n - done : PATTERN - from;
		err = c->ep->lib->memcpy(to + done * 2, c->pattern + from, count * 2);
	}
	return err;
}

static uint64_t row_bytes(const struct ep_job *j)
{
	return (uint64_t)j->hidden * (j->form == SHUNT_EP_AS_IS ? 2 : 1);
}

static uint64_t scales(const struct ep_job *j)
{
	return j->form == SHUNT_EP_AS_IS ? 0 : (uint64_t)j->hidden / (j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128);
}

uint64_t ep_job_ll_bytes(const struct ep_lib *ep, const struct ep_job *j)
{
	struct shunt_ep_shape shape = { .size = sizeof(shape),
		.nranks = j->nranks,
		.topk = j->topk,
		.hidden = j->hidden,
		.element_bytes = 2,
		.ll_tokens = j->max_tokens };
	uint64_t bytes = 0;

	return ep->bytes(&shape, NULL, &bytes) ? 0 : bytes;
}

static int open_dispatch(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	uint64_t n = (uint64_t)j->tokens[c->rank], rows = local(j) * slots(j);
	struct shunt_ep_ll_dispatch *d = &c->dispatch;
	int err;

	*d = (struct shunt_ep_ll_dispatch){ .size = sizeof(*d),
		.phases = SHUNT_EP_SEND | SHUNT_EP_RECEIVE,
		.form = j->form,
		.tokens = j->tokens[c->rank],
		.max_tokens = j->max_tokens,
		.hidden = j->hidden,
		.topk = j->topk,
		.experts = j->experts };
	err = pattern_memory(c, x_begin(j, c->rank), n * (uint64_t)j->hidden, &d->x);
	if (!err)
		err = device_memory(c, c->topk_idx[c->rank], n * (uint64_t)j->topk * 8, &d->topk_idx);
	if (!err)
		err = device_memory(c, NULL, rows * row_bytes(j), &d->recv_x);
	if (!err && scales(j))
		err = device_memory(c, NULL, rows * scales(j) * 4, &d->recv_scales);
	if (!err)
		err = device_memory(c, NULL, local(j) * 4, &d->count);
	if (!err)
		err = device_memory(c, NULL, rows * 4, &d->src_idx);
	if (!err)
		err = device_memory(c, NULL, local(j) * (uint64_t)j->nranks * 8, &d->ranges);
	return err ? err : device_memory(c, NULL, slots(j) * (uint64_t)j->topk * 2, &d->routing);
}

static int open_combine(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	uint64_t n = (uint64_t)j->tokens[c->rank], rows = local(j) * slots(j);
	struct shunt_ep_ll_combine *d = &c->combine;
	int err;

	*d = (struct shunt_ep_ll_combine){ .size = sizeof(*d),
		.phases = SHUNT_EP_SEND | SHUNT_EP_RECEIVE,
		.dtype = SHUNT_BF16,
		.tokens = j->tokens[c->rank],
		.max_tokens = j->max_tokens,
		.hidden = j->hidden,
		.topk = j->topk,
		.experts = j->experts,
		.src_idx = c->dispatch.src_idx,
		.ranges = c->dispatch.ranges,
		.routing = c->dispatch.routing,
		.topk_idx = c->dispatch.topk_idx };
	err = pattern_memory(c, rows_begin(j, c->rank), rows * (uint64_t)j->hidden, &d->x);
	if (!err)
		err = device_memory(c, c->topk_weights[c->rank], n * (uint64_t)j->topk * 4, &d->topk_weights);
	return err ? err : device_memory(c, NULL, n * (uint64_t)j->hidden * 2, &d->out);
}

int ep_call_open(struct ep_call *c, const struct ep_lib *ep, const struct ep_job *job, int rank)
{
	uint64_t seed = 1;
	int err = 0;

	*c = (struct ep_call){ .ep = ep, .job = *job, .rank = rank, .pattern = malloc(PATTERN * 2) };
	if (!c->pattern)
		return -ENOMEM;
	ref_fill(c->pattern, PATTERN, SHUNT_BF16, &seed);
	for (int r = 0; r < job->nranks && !err; r++)
		err = make_routing(c, r);
	if (!err)
		err = open_dispatch(c);
	return err ? err : open_combine(c);
}

void ep_call_close(struct ep_call *c)
{
	for (int i = 0; i < c->nmemory; i++)
		c->ep->lib->free(c->memory[i]);
	for (int r = 0; r < EP_CALL_RANKS; r++) {
		free(c->topk_idx[r]);
		free(c->topk_weights[r]);
	}
	free(c->pattern);
	*c = (struct ep_call){ 0 };
}

int ep_call_poison(struct ep_call *c, void *stream)
{
	const struct ep_job *j = &c->job;
	const struct shunt_ep_ll_dispatch *d = &c->dispatch;
	uint64_t rows = local(j) * slots(j);
	const struct {
		void *at;
		uint64_t bytes;
	} outputs[] = { { d->recv_x, rows * row_bytes(j) }, { d->recv_scales, rows * scales(j) * 4 },
		{ d->count, local(j) * 4 }, { d->src_idx, rows * 4 }, { d->ranges, local(j) * (uint64_t)j->nranks * 8 },
		{ d->routing, slots(j) * (uint64_t)j->topk * 2 },
		{ c->combine.out, (uint64_t)j->tokens[c->rank] * (uint64_t)j->hidden * 2 } };
	int err = 0;

	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]) && !err; i++)
		if (outputs[i].at)
			err = c->ep->lib->memset_async(outputs[i].at, POISON, outputs[i].bytes + 16, stream);
	return err;
}

/* ---- checks */

struct check {
	struct ep_call *c;
	uint64_t *wrong_p;
	char *text;
	size_t bytes;
};

/* The same bytes? Of row and column for the text. */
static void compare(
    struct check *k, const char *what, uint64_t row, uint64_t column, const void *got, const void *want, size_t bytes)
{
	if (!memcmp(got, want, bytes))
		return;
	if (!(*k->wrong_p)++)
		snprintf(k->text, k->bytes, "%s: row %llu from column %llu on", what, (unsigned long long)row,
		    (unsigned long long)column);
}

/* A copy of the device's memory; NULL: no memory, or it cannot be read. */
static void *fetch(const struct ep_call *c, const void *from, uint64_t bytes)
{
	void *host = malloc(bytes + 1);

	if (host && c->ep->lib->memcpy(host, from, bytes)) {
		free(host);
		host = NULL;
	}
	return host;
}

static struct ep_inputs inputs(const struct ep_call *c)
{
	const struct ep_job *j = &c->job;

	return (struct ep_inputs){ .nranks = j->nranks,
		.experts = j->experts,
		.topk = j->topk,
		.tokens = j->tokens,
		.topk_idx = (const int64_t *const *)c->topk_idx,
		.topk_weights = (const float *const *)c->topk_weights,
		.masked = j->masked,
		.rank_sums = ep_sums_by_rank() };
}

static void drop(struct ep_ll_outputs *out)
{
	free(out->x);
	free(out->count);
	free(out->src_idx);
	free(out->ranges);
	free(out->routing);
	*out = (struct ep_ll_outputs){ 0 };
}

/* Where the rows of a rank lie, without the rows. */
static int lay_out(const struct ep_call *c, int rank, struct ep_ll_outputs *out)
{
	const struct ep_job *j = &c->job;
	uint64_t rows = local(j) * slots(j), routing = slots(j) * (uint64_t)j->topk * 2;
	const uint16_t none = 0, *x[EP_CALL_RANKS];
	struct ep_inputs in = inputs(c);

	for (int r = 0; r < j->nranks; r++)
		x[r] = &none;
	in.x = x;
	*out = (struct ep_ll_outputs){ .x = malloc(1),
		.count = malloc(local(j) * 4),
		.src_idx = malloc(rows * 4),
		.ranges = malloc(local(j) * (uint64_t)j->nranks * 8),
		.routing = malloc(routing) };
	if (!out->x || !out->count || !out->src_idx || !out->ranges || !out->routing)
		return -ENOMEM;
	memset(out->src_idx, POISON, rows * 4);
	memset(out->routing, POISON, routing);
	ep_ll_dispatch(&in, rank, j->max_tokens, SHUNT_EP_AS_IS, out);
	return 0;
}

/* The first columns of a row that are looked at: behind `column`, or -1: no more. */
static int64_t next_strip(const struct ep_job *j, int64_t column)
{
	int64_t last = j->hidden <= STRIP ? 0 : (j->hidden - 1) / STRIP * STRIP;
	bool whole = local(j) * slots(j) * (uint64_t)j->hidden * 2 <= WHOLE;

	if (column < 0)
		return 0;
	return column >= last ? -1 : whole ? column + STRIP : last;
}

static int strip_width(const struct ep_job *j, int64_t column)
{
	return j->hidden - column < STRIP ? (int)(j->hidden - column) : STRIP;
}

/* A strip of a received row, and its scales. */
static int check_strip(
    struct check *k, uint64_t expert, uint64_t slot, int64_t column, int source, int token, const uint32_t *all_scales)
{
	const struct ep_job *j = &k->c->job;
	uint64_t row = expert * slots(j) + slot, each = row_bytes(j) / (uint64_t)j->hidden;
	int n = strip_width(j, column);
	uint16_t x[STRIP], got[STRIP];
	uint8_t cast[STRIP];
	uint32_t want[STRIP / 128] = { 0 };
	int per = j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128,
	    err = k->c->ep->lib->memcpy(
	        got, (char *)k->c->dispatch.recv_x + row * row_bytes(j) + (uint64_t)column * each, (size_t)n * each);

	if (err)
		return err;
	take_elements(
	    k->c, x_begin(j, source) + (uint64_t)token * (uint64_t)j->hidden + (uint64_t)column, (uint64_t)n, x);
	if (j->form == SHUNT_EP_AS_IS) {
		compare(k, "recv_x", row, (uint64_t)column, got, x, (size_t)n * 2);
		return 0;
	}
	ep_cast_row(x, n, j->form, cast, want);
	compare(k, "recv_x", row, (uint64_t)column, got, cast, (size_t)n);
	for (int i = 0; i * per < n; i++)
		compare(k, "recv_scales", row, (uint64_t)column / (uint64_t)per + (uint64_t)i,
		    &all_scales[(expert * scales(j) + (uint64_t)column / (uint64_t)per + (uint64_t)i) * slots(j) +
		        slot],
		    &want[i], 4);
	return 0;
}

static int check_rows(struct check *k, const struct ep_ll_outputs *out)
{
	const struct ep_job *j = &k->c->job;
	uint32_t *all_scales =
	    scales(j) ? fetch(k->c, k->c->dispatch.recv_scales, local(j) * slots(j) * scales(j) * 4) : NULL;
	int err = scales(j) && !all_scales ? -EIO : 0;

	for (uint64_t e = 0; e < local(j); e++)
		for (int s = 0; s < j->nranks; s++) {
			uint64_t range = (uint64_t)out->ranges[e * (uint64_t)j->nranks + (uint64_t)s];

			for (uint64_t i = range >> 32; i < (range >> 32) + (range & 0xffffffff); i++)
				for (int64_t at = next_strip(j, -1); at >= 0 && !err; at = next_strip(j, at))
					err = check_strip(k, e, i, at, s, out->src_idx[e * slots(j) + i], all_scales);
		}
	free(all_scales);
	return err;
}

static int check_array(struct check *k, const char *what, const void *dev, const void *want, uint64_t bytes)
{
	void *got = fetch(k->c, dev, bytes);

	if (!got)
		return -EIO;
	compare(k, what, 0, 0, got, want, bytes);
	free(got);
	return 0;
}

int ep_call_check_dispatch(struct ep_call *c, uint64_t *wrong_p, char *text, size_t bytes)
{
	const struct ep_job *j = &c->job;
	struct check k = { c, wrong_p, text, bytes };
	struct ep_ll_outputs out;
	int err = lay_out(c, c->rank, &out);

	*wrong_p = 0;
	if (!err)
		err = check_array(&k, "count", c->dispatch.count, out.count, local(j) * 4);
	if (!err)
		err = check_array(&k, "src_idx", c->dispatch.src_idx, out.src_idx, local(j) * slots(j) * 4);
	if (!err)
		err = check_array(&k, "ranges", c->dispatch.ranges, out.ranges, local(j) * (uint64_t)j->nranks * 8);
	if (!err)
		err = check_array(&k, "routing", c->dispatch.routing, out.routing, slots(j) * (uint64_t)j->topk * 2);
	if (!err)
		err = check_rows(&k, &out);
	drop(&out);
	return err;
}

/* The slot of a token of this rank at an expert. */
static uint64_t slot_of(const struct ep_call *c, const struct ep_ll_outputs *out, uint64_t expert, int token)
{
	uint64_t range = (uint64_t)out->ranges[expert * (uint64_t)c->job.nranks + (uint64_t)c->rank], i = range >> 32;

	while (out->src_idx[expert * slots(&c->job) + i] != token)
		i++;
	return i;
}

/*
 * The sum of one token, in some columns, by the reference: of a call in which each rank has an expert for each place
 * of the token, and the token is the only one.
 */
static void sum_of(const struct ep_call *c, const struct ep_ll_outputs *all, int token, int64_t column, uint16_t *sum)
{
	const struct ep_job *j = &c->job;
	enum { PLACES = SHUNT_EP_MAX_TOPK };
	static const int32_t src_idx[PLACES * EP_CALL_RANKS]; /* token 0 everywhere */
	int n = strip_width(j, column), tokens[EP_CALL_RANKS] = { 0 };
	int64_t idx[PLACES], ranges[PLACES * EP_CALL_RANKS];
	const int64_t *idx_of[EP_CALL_RANKS], *ranges_of[EP_CALL_RANKS], *experts;
	const float *weights_of[EP_CALL_RANKS];
	const int32_t *src_idx_of[EP_CALL_RANKS];
	uint16_t *rows = calloc((size_t)(PLACES * EP_CALL_RANKS) * STRIP, sizeof(*rows));
	const uint16_t *rows_of[EP_CALL_RANKS];
	struct ep_inputs in = { j->nranks, j->nranks * j->topk, j->topk, n, tokens, idx_of, weights_of, NULL, j->masked,
		ep_sums_by_rank() };

	experts = c->topk_idx[c->rank] + (size_t)token * (size_t)j->topk;
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		ranges[i] = 1;
	for (int r = 0; r < j->nranks; r++) {
		idx_of[r] = idx;
		weights_of[r] = c->topk_weights[c->rank] + (size_t)token * (size_t)j->topk;
		src_idx_of[r] = src_idx;
		ranges_of[r] = ranges;
		rows_of[r] = rows;
	}
	tokens[c->rank] = 1;
	for (int k = 0; k < j->topk; k++) {
		int at = (int)((uint64_t)experts[k] / local(j));
		uint64_t e = (uint64_t)experts[k] % local(j);

		idx[k] = experts[k] < 0 ? -1 : at * j->topk + k;
		if (experts[k] < 0 || (j->masked >> at & 1))
			continue;
		take_elements(c,
		    rows_begin(j, at) + (e * slots(j) + slot_of(c, &all[at], e, token)) * (uint64_t)j->hidden +
		        (uint64_t)column,
		    (uint64_t)n, rows + (size_t)(k * j->nranks) * (size_t)n);
	}
	ep_ll_combine(&in, c->rank, 1, SHUNT_BF16, rows_of, src_idx_of, ranges_of, sum);
	free(rows);
}

int ep_call_check_combine(struct ep_call *c, uint64_t *wrong_p, char *text, size_t bytes)
{
	const struct ep_job *j = &c->job;
	struct check k = { c, wrong_p, text, bytes };
	struct ep_ll_outputs all[EP_CALL_RANKS] = { 0 };
	uint64_t n = (uint64_t)j->tokens[c->rank];
	uint16_t *got = fetch(c, c->combine.out, n * (uint64_t)j->hidden * 2), want[STRIP];
	int err = got ? 0 : -EIO;

	*wrong_p = 0;
	for (int r = 0; r < j->nranks && !err; r++)
		err = lay_out(c, r, &all[r]);
	for (int t = 0; t < (int)n && !err; t++)
		for (int64_t at = next_strip(j, -1); at >= 0; at = next_strip(j, at)) {
			sum_of(c, all, t, at, want);
			compare(&k, "out", (uint64_t)t, (uint64_t)at, got + (uint64_t)t * (uint64_t)j->hidden + at,
			    want, (size_t)strip_width(j, at) * 2);
		}
	for (int r = 0; r < j->nranks; r++)
		drop(&all[r]);
	free(got);
	return err;
}

/* ---- floors */

uint64_t ep_job_wire_bytes(const struct ep_job *j, int64_t *const topk_idx[], uint64_t bytes, bool each)
{
	uint64_t out[EP_CALL_RANKS] = { 0 }, in[EP_CALL_RANKS] = { 0 }, most = 0;

	for (int s = 0; s < j->nranks; s++)
		for (int t = 0; t < j->tokens[s]; t++) {
			const int64_t *experts = topk_idx[s] + (size_t)t * (size_t)j->topk;
			uint32_t seen = 0;

			for (int k = 0; k < j->topk; k++) {
				int at = (int)((uint64_t)experts[k] / local(j));

				if (experts[k] < 0 || at == s || has(experts, k, experts[k]) ||
				    (!each && seen >> at & 1))
					continue;
				seen |= 1u << at;
				out[s]++;
				in[at]++;
			}
		}
	for (int r = 0; r < j->nranks; r++) {
		most = out[r] > most ? out[r] : most;
		most = in[r] > most ? in[r] : most;
	}
	return most * bytes;
}
