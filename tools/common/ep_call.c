/* SPDX-License-Identifier: MIT */
#include "tools/common/ep_call.h"
#include "tools/common/libc.h"
#include "base/config.h"
#include "tools/common/reference.h"

enum {
	PATTERN = 1048573, /* elements: a prime, so that rows of all sizes differ */
	WHOLE = 4 << 20,   /* bytes of outputs up to which everything is looked at */
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

uint64_t ep_pattern_begin(const struct ep_job *j, int rank, enum ep_pattern what)
{
	return mix(j->seed, (uint64_t)rank, what) % PATTERN;
}

void ep_pattern_take(const struct ep_call *c, uint64_t at, uint64_t n, uint16_t *out)
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

void *ep_device_memory(struct ep_call *c, const void *from, uint64_t bytes)
{
	void *ptr = NULL;

	if (!c->err)
		c->err = c->ep->lib->malloc(&ptr, bytes + 16);
	if (ptr)
		c->memory[c->nmemory++].at = ptr;
	if (!c->err && from && bytes)
		c->err = c->ep->lib->memcpy(ptr, from, bytes);
	return ptr;
}

void *ep_output_memory(struct ep_call *c, uint64_t bytes)
{
	void *ptr = ep_device_memory(c, NULL, bytes);

	if (ptr)
		c->memory[c->nmemory - 1].output = bytes + 16;
	return ptr;
}

void *ep_pattern_memory(struct ep_call *c, uint64_t at, uint64_t n)
{
	char *to = ep_device_memory(c, NULL, n * 2);

	for (uint64_t done = 0, count; !c->err && done < n; done += count) {
		uint64_t from = (at + done) % PATTERN;

		count = n - done < PATTERN - from ? n - done : PATTERN - from;
		c->err = c->ep->lib->memcpy(to + done * 2, c->pattern + from, count * 2);
	}
	return to;
}

static uint64_t row_bytes(const struct ep_job *j)
{
	return (uint64_t)j->hidden * (j->form == SHUNT_EP_AS_IS ? 2 : 1);
}

static uint64_t scales(const struct ep_job *j)
{
	return j->form == SHUNT_EP_AS_IS ? 0 : (uint64_t)j->hidden / (j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128);
}

uint64_t ep_job_bytes(const struct ep_lib *ep, const struct ep_job *j, int blocks)
{
	int hosts = j->hosts > 1 ? j->hosts : 1;
	struct shunt_ep_shape shape = { .size = sizeof(shape),
		.nranks = (j->nranks + hosts - 1) / hosts * hosts,
		.hosts = hosts,
		.topk = j->topk,
		.hidden = j->hidden,
		.element_bytes = 2,
		.ll_tokens = j->normal ? 0 : j->max_tokens,
		.blocks = j->normal ? blocks : 0 };
	uint64_t normal = 0, ll = 0;

	return ep->bytes(&shape, &normal, &ll) ? 0 : j->normal ? normal : ll;
}

static void open_calls(struct ep_call *c)
{
	const struct ep_job *j = &c->job;
	uint64_t n = (uint64_t)j->tokens[c->rank], rows = local(j) * slots(j), hidden = (uint64_t)j->hidden;
	struct shunt_ep_ll_dispatch *d = &c->dispatch;

	*d = (struct shunt_ep_ll_dispatch){ .size = sizeof(*d),
		.phases = SHUNT_EP_SEND | SHUNT_EP_RECEIVE,
		.form = j->form,
		.tokens = j->tokens[c->rank],
		.max_tokens = j->max_tokens,
		.hidden = j->hidden,
		.topk = j->topk,
		.experts = j->experts,
		.x = ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_TOKENS), n * hidden),
		.topk_idx = ep_device_memory(c, c->topk_idx[c->rank], n * (uint64_t)j->topk * 8),
		.recv_x = ep_output_memory(c, rows * row_bytes(j)),
		.recv_scales = scales(j) ? ep_output_memory(c, rows * scales(j) * 4) : NULL,
		.count = ep_output_memory(c, local(j) * 4),
		.src_idx = ep_output_memory(c, rows * 4),
		.ranges = ep_output_memory(c, local(j) * (uint64_t)j->nranks * 8),
		.routing = ep_output_memory(c, slots(j) * (uint64_t)j->topk * 2) };
	c->combine = (struct shunt_ep_ll_combine){ .size = sizeof(c->combine),
		.phases = d->phases,
		.dtype = SHUNT_BF16,
		.tokens = d->tokens,
		.max_tokens = d->max_tokens,
		.hidden = d->hidden,
		.topk = d->topk,
		.experts = d->experts,
		.src_idx = d->src_idx,
		.ranges = d->ranges,
		.routing = d->routing,
		.topk_idx = d->topk_idx,
		.x = ep_pattern_memory(c, ep_pattern_begin(j, c->rank, EP_ROWS), rows * hidden),
		.topk_weights = ep_device_memory(c, c->topk_weights[c->rank], n * (uint64_t)j->topk * 4),
		.out = ep_output_memory(c, n * hidden * 2) };
}

static uint16_t pattern[PATTERN];

static void fill_pattern(void)
{
	uint64_t seed = 1;

	ref_fill(pattern, PATTERN, SHUNT_BF16, &seed);
}

int ep_call_open(struct ep_call *c, const struct ep_lib *ep, const struct ep_job *job, int rank)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fill_pattern);
	*c = (struct ep_call){ .ep = ep, .job = *job, .rank = rank, .pattern = pattern };
	for (int r = 0; r < job->nranks && !c->err; r++)
		c->err = make_routing(c, r);
	if (!c->err)
		(job->normal ? ep_normal_open : open_calls)(c);
	return c->err;
}

void ep_call_place(struct ep_call *c, void *stream, int blocks)
{
	c->dispatch.stream = c->combine.stream = c->normal.layout.stream = c->normal.notify.stream =
	    c->normal.dispatch.stream = c->normal.combine.stream = stream;
	c->dispatch.blocks = c->combine.blocks = c->normal.dispatch.blocks = c->normal.combine.blocks = blocks;
}

int ep_call_run(const struct ep_call *c, struct shunt_ep *group, int part)
{
	int err;

	switch (part) {
	case EP_LAYOUT:
		err = c->job.normal ? c->ep->layout(group, &c->normal.layout) : 0;
		return err || !c->job.normal ? err : c->ep->notify(group, &c->normal.notify, NULL);
	case EP_DISPATCHES:
		return c->job.normal ? c->ep->dispatch(group, &c->normal.dispatch) :
		                       c->ep->ll_dispatch(group, &c->dispatch);
	default:
		return c->job.normal ? c->ep->combine(group, &c->normal.combine) :
		                       c->ep->ll_combine(group, &c->combine);
	}
}

void ep_call_close(struct ep_call *c)
{
	for (int i = 0; i < c->nmemory; i++)
		c->ep->lib->free(c->memory[i].at);
	for (int r = 0; r < EP_CALL_RANKS; r++) {
		free(c->topk_idx[r]);
		free(c->topk_weights[r]);
	}
	*c = (struct ep_call){ 0 };
}

int ep_call_poison(struct ep_call *c, void *stream)
{
	int err = 0;

	for (int i = 0; i < c->nmemory && !err; i++)
		if (c->memory[i].output)
			err = c->ep->lib->memset_async(c->memory[i].at, EP_POISON, c->memory[i].output, stream);
	return err;
}

/* ---- checks */

/* The same bytes? Of row and column for the text. */
void ep_check_bytes(struct ep_check *k, const char *what, uint64_t row, uint64_t column, const void *got,
    const void *want, size_t bytes)
{
	if (!memcmp(got, want, bytes))
		return;
	if (!(*k->wrong_p)++)
		snprintf(k->text, k->bytes, "%s: row %llu from column %llu on", what, (unsigned long long)row,
		    (unsigned long long)column);
}

void *ep_fetch(struct ep_check *k, const void *from, uint64_t bytes)
{
	void *host = k->err ? NULL : malloc(bytes + 1);

	if (host && !k->c->ep->lib->memcpy(host, from, bytes))
		return host;
	k->err = k->err ? k->err : -EIO;
	free(host);
	return NULL;
}

struct ep_inputs ep_call_inputs(const struct ep_call *c)
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
	struct ep_inputs in = ep_call_inputs(c);

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
	memset(out->src_idx, EP_POISON, rows * 4);
	memset(out->routing, EP_POISON, routing);
	ep_ll_dispatch(&in, rank, j->max_tokens, SHUNT_EP_AS_IS, out);
	return 0;
}

int64_t ep_next_strip(int n, bool whole, int64_t column)
{
	int64_t last = n <= EP_STRIP ? 0 : (n - 1) / EP_STRIP * EP_STRIP;

	if (column < 0)
		return 0;
	return column >= last ? -1 : whole ? column + EP_STRIP : last;
}

int ep_strip_width(int n, int64_t column)
{
	return n - column < EP_STRIP ? (int)(n - column) : EP_STRIP;
}

static int64_t next_strip(const struct ep_job *j, int64_t column)
{
	return ep_next_strip(j->hidden, local(j) * slots(j) * (uint64_t)j->hidden * 2 <= WHOLE, column);
}

static int strip_width(const struct ep_job *j, int64_t column)
{
	return ep_strip_width(j->hidden, column);
}

/* A strip of a received row, and its scales; all_scales NULL: rows that are sent as they are have none. */
static void check_strip(struct ep_check *k, uint64_t expert, uint64_t slot, int64_t column, int source, int token,
    const uint32_t *all_scales)
{
	const struct ep_job *j = &k->c->job;
	uint64_t row = expert * slots(j) + slot, each = row_bytes(j) / (uint64_t)j->hidden;
	int n = strip_width(j, column);
	uint16_t x[EP_STRIP], got[EP_STRIP];
	uint8_t cast[EP_STRIP];
	uint32_t want[EP_STRIP / 128] = { 0 };
	int per = j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128;

	k->err = k->c->ep->lib->memcpy(
	    got, (char *)k->c->dispatch.recv_x + row * row_bytes(j) + (uint64_t)column * each, (size_t)n * each);
	if (k->err)
		return;
	ep_pattern_take(k->c,
	    ep_pattern_begin(j, source, EP_TOKENS) + (uint64_t)token * (uint64_t)j->hidden + (uint64_t)column,
	    (uint64_t)n, x);
	if (!all_scales) {
		ep_check_bytes(k, "recv_x", row, (uint64_t)column, got, x, (size_t)n * 2);
		return;
	}
	ep_cast_row(x, n, j->form, cast, want);
	ep_check_bytes(k, "recv_x", row, (uint64_t)column, got, cast, (size_t)n);
	for (int i = 0; i * per < n; i++)
		ep_check_bytes(k, "recv_scales", row, (uint64_t)column / (uint64_t)per + (uint64_t)i,
		    &all_scales[(expert * scales(j) + (uint64_t)column / (uint64_t)per + (uint64_t)i) * slots(j) +
		        slot],
		    &want[i], 4);
}

static void check_rows(struct ep_check *k, const struct ep_ll_outputs *out)
{
	const struct ep_job *j = &k->c->job;
	uint32_t *all_scales =
	    scales(j) ? ep_fetch(k, k->c->dispatch.recv_scales, local(j) * slots(j) * scales(j) * 4) : NULL;

	for (uint64_t e = 0; e < local(j); e++)
		for (int s = 0; s < j->nranks; s++) {
			uint64_t range = (uint64_t)out->ranges[e * (uint64_t)j->nranks + (uint64_t)s];

			for (uint64_t i = range >> 32; i < (range >> 32) + (range & 0xffffffff); i++)
				for (int64_t at = next_strip(j, -1); at >= 0 && !k->err; at = next_strip(j, at))
					check_strip(k, e, i, at, s, out->src_idx[e * slots(j) + i], all_scales);
		}
	free(all_scales);
}

void ep_check_array(struct ep_check *k, const char *what, const void *dev, const void *want, uint64_t bytes)
{
	void *got = ep_fetch(k, dev, bytes);

	if (got)
		ep_check_bytes(k, what, 0, 0, got, want, bytes);
	free(got);
}

static void check_dispatch(struct ep_check *k)
{
	struct ep_call *c = k->c;
	const struct ep_job *j = &c->job;
	struct ep_ll_outputs out;

	k->err = lay_out(c, c->rank, &out);
	if (!k->err) {
		ep_check_array(k, "count", c->dispatch.count, out.count, local(j) * 4);
		ep_check_array(k, "src_idx", c->dispatch.src_idx, out.src_idx, local(j) * slots(j) * 4);
		ep_check_array(k, "ranges", c->dispatch.ranges, out.ranges, local(j) * (uint64_t)j->nranks * 8);
		ep_check_array(k, "routing", c->dispatch.routing, out.routing, slots(j) * (uint64_t)j->topk * 2);
		check_rows(k, &out);
	}
	drop(&out);
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
	uint16_t *rows = calloc((size_t)(PLACES * EP_CALL_RANKS) * EP_STRIP, sizeof(*rows));
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
		ep_pattern_take(c,
		    ep_pattern_begin(j, at, EP_ROWS) +
		        (e * slots(j) + slot_of(c, &all[at], e, token)) * (uint64_t)j->hidden + (uint64_t)column,
		    (uint64_t)n, rows + (size_t)(k * j->nranks) * (size_t)n);
	}
	ep_ll_combine(&in, c->rank, 1, SHUNT_BF16, rows_of, src_idx_of, ranges_of, sum);
	free(rows);
}

static void check_combine(struct ep_check *k)
{
	struct ep_call *c = k->c;
	const struct ep_job *j = &c->job;
	struct ep_ll_outputs all[EP_CALL_RANKS] = { 0 };
	uint64_t n = (uint64_t)j->tokens[c->rank];
	uint16_t *got = ep_fetch(k, c->combine.out, n * (uint64_t)j->hidden * 2), want[EP_STRIP];

	for (int r = 0; r < j->nranks && !k->err; r++)
		k->err = lay_out(c, r, &all[r]);
	for (int t = 0; t < (int)n && !k->err; t++)
		for (int64_t at = next_strip(j, -1); at >= 0; at = next_strip(j, at)) {
			sum_of(c, all, t, at, want);
			ep_check_bytes(k, "out", (uint64_t)t, (uint64_t)at,
			    got + (uint64_t)t * (uint64_t)j->hidden + at, want, (size_t)strip_width(j, at) * 2);
		}
	for (int r = 0; r < j->nranks; r++)
		drop(&all[r]);
	free(got);
}

int ep_call_check(struct ep_call *c, int part, uint64_t *wrong_p, char *text, size_t bytes)
{
	struct ep_check k = { c, wrong_p, text, bytes, 0 };

	*wrong_p = 0;
	if (part == EP_DISPATCHES)
		(c->job.normal ? ep_normal_check_dispatch : check_dispatch)(&k);
	else if (part == EP_COMBINES)
		(c->job.normal ? ep_normal_check_combine : check_combine)(&k);
	return k.err;
}

/* ---- floors */

uint64_t ep_job_wire_bytes(const struct ep_job *j, int64_t *const topk_idx[], uint64_t bytes, bool each)
{
	uint64_t out[EP_CALL_RANKS] = { 0 }, in[EP_CALL_RANKS] = { 0 }, most = 0;

	for (int s = 0; s < j->nranks; s++)
		for (int t = 0; t < j->tokens[s]; t++) {
			const int64_t *experts = topk_idx[s] + (size_t)t * (size_t)j->topk;
			uint64_t seen = 0; /* ranks that get the token, as bits */

			for (int k = 0; k < j->topk; k++) {
				int at = (int)((uint64_t)experts[k] / local(j));

				if (experts[k] < 0 || at == s || has(experts, k, experts[k]) ||
				    (!each && seen >> at & 1))
					continue;
				seen |= UINT64_C(1) << at;
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
