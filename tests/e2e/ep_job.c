/* SPDX-License-Identifier: MIT */
#include "tests/e2e/ep_job.h"
#include "tools/common/libc.h"
#include "base/coll.h"
#include "tools/common/reference.h"

#define POISON EP_POISON

static size_t slots(const struct ep_job *j)
{
	return (size_t)j->nranks * (size_t)j->max_tokens;
}

static size_t local(const struct ep_job *j)
{
	return (size_t)(j->experts / j->nranks);
}

static size_t row_bytes(const struct ep_job *j)
{
	return (size_t)j->hidden * (j->form == SHUNT_EP_AS_IS ? 2 : 1);
}

static size_t scales(const struct ep_job *j)
{
	return j->form == SHUNT_EP_AS_IS ? 0 : (size_t)(j->hidden / (j->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128));
}

int ep_hosts;

int ep_hosts_of(const struct ep_job *j)
{
	return ep_hosts < j->nranks ? ep_hosts : j->nranks;
}

/* Of expert k of token t of rank s. */
static int64_t choose_expert(const struct ep_job *j, int s, size_t t, const int64_t *before, int k, uint64_t *seed)
{
	bool stays = j->routing == EP_STAY && (s || t || k);

	if (stays)
		return s * (int64_t)local(j) + k % (int)local(j);
	switch (j->routing) {
	case EP_TO_ONE:
		return k ? -1 : 0;
	case EP_TO_LAST:
		return k ? -1 : j->experts - 1;
	case EP_NOWHERE:
		return -1;
	case EP_SAME:
		return k ? before[0] : (int64_t)(ref_random(seed) % (unsigned)j->experts);
	case EP_TO_RANK_0:
		return (int64_t)(ref_random(seed) % local(j));
	default:
		return (int64_t)(ref_random(seed) % (unsigned)(j->experts + 1)) - 1;
	}
}

/* Of a rank; alike wherever they are made. */
static void make_inputs(struct ep_run *run, int s)
{
	const struct ep_job *j = &run->job;
	uint64_t seed = j->seed * 64 + (unsigned)s + 1;
	size_t n = (size_t)j->tokens[s], k = (size_t)j->topk, h = (size_t)j->hidden;

	run->topk_idx[s] = calloc(n * k + 1, sizeof(int64_t));
	run->topk_weights[s] = calloc(n * k + 1, sizeof(float));
	run->x[s] = calloc(n * h + 1, sizeof(uint16_t));
	for (size_t t = 0; t < n; t++)
		for (size_t i = 0; i < k; i++)
			run->topk_idx[s][t * k + i] = choose_expert(j, s, t, &run->topk_idx[s][t * k], (int)i, &seed);
	ref_fill(run->topk_weights[s], n * k, SHUNT_F32, &seed);
	ref_fill(run->x[s], n * h, (enum shunt_dtype)j->dtype, &seed);
	/* Numbers that casts get wrong. */
	for (size_t i = 0; i + 8 < n * h && j->form != SHUNT_EP_AS_IS; i += 701) {
		static const uint16_t odd[] = { 0x7fc0, 0x7f80, 0xff80, 0x8000, 0x0001, 0x7f7f, 0x3f80, 0x43e0 };

		run->x[s][i + i % 8] = odd[i / 701 % 8];
	}
}

void *ep_run_memory(struct ep_run *run, const void *from, size_t bytes, bool odd)
{
	size_t skip = odd ? 2 : 0;
	char *dev = NULL, *poison = malloc(bytes + 16);

	if (shunt_malloc((void **)&dev, bytes + 16) ||
	    run->nmemory == (int)(sizeof(run->memory) / sizeof(run->memory[0])))
		abort();
	run->memory[run->nmemory++] = dev;
	memset(poison, POISON, bytes + 16);
	if (from)
		memcpy(poison + skip, from, bytes);
	if (shunt_memcpy(dev, poison, bytes + 16))
		abort();
	free(poison);
	return dev + skip;
}

static void *device_memory(struct ep_run *run, const void *from, size_t bytes)
{
	return ep_run_memory(run, from, bytes, run->job.odd);
}

/* The same at a multiple of 16 bytes: elements of more than 2 bytes. */
static void *words(struct ep_run *run, const void *from, size_t bytes)
{
	return ep_run_memory(run, from, bytes, false);
}

void ep_run_inputs(struct ep_run *run, const struct ep_job *job, int rank)
{
	const struct ep_job *j = &run->job;

	*run = (struct ep_run){ .job = *job, .rank = rank };
	for (int s = 0; s < j->nranks; s++)
		make_inputs(run, s);
	run->in = (struct ep_inputs){ .nranks = j->nranks,
		.experts = j->experts,
		.topk = j->topk,
		.hidden = j->hidden,
		.tokens = run->job.tokens,
		.topk_idx = (const int64_t *const *)run->topk_idx,
		.topk_weights = (const float *const *)run->topk_weights,
		.x = (const uint16_t *const *)run->x,
		.masked = j->masked,
		.rank_sums = getenv("SHUNT_EP_SUM") && !strcmp(getenv("SHUNT_EP_SUM"), "rank") };
}

int ep_run_prepare(struct ep_run *run, const struct ep_job *job, const struct rank *r)
{
	const struct ep_job *j = &run->job;
	size_t nslots = slots(job), nlocal = local(job), n = (size_t)job->tokens[r->rank], k = (size_t)job->topk;

	ep_run_inputs(run, job, r->rank);
	run->dispatch = (struct shunt_ep_ll_dispatch){ .size = sizeof(run->dispatch),
		.stream = r->stream,
		.phases = SHUNT_EP_SEND | SHUNT_EP_RECEIVE,
		.form = j->form,
		.x = device_memory(run, run->x[r->rank], n * (size_t)j->hidden * 2),
		.topk_idx = words(run, run->topk_idx[r->rank], n * k * 8),
		.tokens = j->tokens[r->rank],
		.max_tokens = j->max_tokens,
		.hidden = j->hidden,
		.topk = j->topk,
		.experts = j->experts,
		.recv_x = device_memory(run, NULL, nlocal * nslots * row_bytes(j)),
		.recv_scales = scales(j) ? words(run, NULL, nlocal * nslots * scales(j) * 4) : NULL,
		.count = words(run, NULL, nlocal * 4),
		.src_idx = words(run, NULL, nlocal * nslots * 4),
		.ranges = words(run, NULL, nlocal * (size_t)j->nranks * 8),
		.routing = device_memory(run, NULL, nslots * k * 2) };
	run->combine = (struct shunt_ep_ll_combine){ .size = sizeof(run->combine),
		.stream = r->stream,
		.phases = SHUNT_EP_SEND | SHUNT_EP_RECEIVE,
		.dtype = j->dtype,
		.tokens = j->tokens[r->rank],
		.max_tokens = j->max_tokens,
		.hidden = j->hidden,
		.topk = j->topk,
		.experts = j->experts,
		.x = device_memory(run, NULL, nlocal * nslots * (size_t)j->hidden * 2),
		.src_idx = run->dispatch.src_idx,
		.ranges = run->dispatch.ranges,
		.routing = run->dispatch.routing,
		.topk_idx = run->dispatch.topk_idx,
		.topk_weights = words(run, run->topk_weights[r->rank], n * k * 4),
		.out = device_memory(run, NULL, n * (size_t)j->hidden * 2) };
	return 0;
}

/* The same outputs by the reference, of any rank, poisoned before. */
static struct ep_ll_outputs expected(const struct ep_run *run, int rank)
{
	const struct ep_job *j = &run->job;
	size_t nslots = slots(j), nlocal = local(j);
	struct ep_ll_outputs out = { malloc(nlocal * nslots * row_bytes(j)),
		malloc(nlocal * nslots * scales(j) * 4 + 1), malloc(nlocal * 4), malloc(nlocal * nslots * 4),
		malloc(nlocal * (size_t)j->nranks * 8), malloc(nslots * (size_t)j->topk * 2) };

	memset(out.x, POISON, nlocal * nslots * row_bytes(j));
	memset(out.scales, POISON, nlocal * nslots * scales(j) * 4);
	memset(out.src_idx, POISON, nlocal * nslots * 4);
	memset(out.routing, POISON, nslots * (size_t)j->topk * 2);
	ep_ll_dispatch(&run->in, rank, j->max_tokens, j->form, &out);
	return out;
}

static void drop(struct ep_ll_outputs *out)
{
	free(out->x);
	free(out->scales);
	free(out->count);
	free(out->src_idx);
	free(out->ranges);
	free(out->routing);
}

int ep_compare(const struct rank *r, const char *what, const void *dev, const void *host, size_t n, int dtype)
{
	size_t each = shunt_dtype_bytes[dtype], bytes = n * each, first = 0;
	char *got;
	int wrong;

	if (!dev)
		return 0;
	got = malloc(bytes + 8);
	if (shunt_memcpy(got, dev, bytes + 8))
		abort();
	wrong = ref_compare(got, host, n, (enum shunt_dtype)dtype, &first) != 0;
	if (wrong)
		fprintf(stderr, "rank %d: %s: element %zu of %zu is %llx, not %llx\n", r->rank, what, first, n,
		    (unsigned long long)ref_to_double(got + first * each, (enum shunt_dtype)dtype),
		    (unsigned long long)ref_to_double((const char *)host + first * each, (enum shunt_dtype)dtype));
	for (size_t i = bytes; i < bytes + 8 && !wrong; i++)
		if ((unsigned char)got[i] != POISON && (wrong = 1))
			fprintf(stderr, "rank %d: %s: written past its end\n", r->rank, what);
	free(got);
	return wrong;
}

int ep_run_check_dispatch(struct ep_run *run, const struct rank *r)
{
	const struct ep_job *j = &run->job;
	struct ep_ll_outputs out = expected(run, run->rank);
	size_t nslots = slots(j), nlocal = local(j);
	const struct shunt_ep_ll_dispatch *d = &run->dispatch;
	int wrong = ep_compare(r, "count", d->count, out.count, nlocal, SHUNT_I32);

	wrong |= ep_compare(r, "src_idx", d->src_idx, out.src_idx, nlocal * nslots, SHUNT_I32);
	wrong |= ep_compare(r, "ranges", d->ranges, out.ranges, nlocal * (size_t)j->nranks, SHUNT_I64);
	wrong |= ep_compare(r, "routing", d->routing, out.routing, nslots * (size_t)j->topk * 2, SHUNT_U8);
	wrong |= ep_compare(r, "recv_x", d->recv_x, out.x, nlocal * nslots * (size_t)j->hidden,
	    j->form == SHUNT_EP_AS_IS ? j->dtype : SHUNT_F8E4M3);
	if (scales(j))
		wrong |= ep_compare(r, "recv_scales", d->recv_scales, out.scales, nlocal * nslots * scales(j),
		    j->form == SHUNT_EP_FP8_UE8M0 ? SHUNT_U32 : SHUNT_F32);
	drop(&out);
	return wrong;
}

/* The rows that a rank's experts give. */
static uint16_t *make_rows(const struct ep_run *run, int rank, const int32_t *src_idx, const int64_t *ranges)
{
	const struct ep_job *j = &run->job;
	size_t nslots = slots(j), h = (size_t)j->hidden;
	uint16_t *rows = malloc(local(j) * nslots * h * 2);

	memset(rows, POISON, local(j) * nslots * h * 2);
	for (size_t e = 0; e < local(j); e++)
		for (int s = 0; s < j->nranks; s++) {
			int64_t range = ranges[e * (size_t)j->nranks + (size_t)s];

			for (int64_t i = range >> 32; i < (range >> 32) + (range & 0xffffffff); i++) {
				size_t at = e * nslots + (size_t)i;
				uint64_t seed =
				    ((uint64_t)rank * local(j) + e) << 40 | (uint64_t)s << 32 | (uint32_t)src_idx[at];

				ref_fill(rows + at * h, h, (enum shunt_dtype)j->dtype, &seed);
			}
		}
	return rows;
}

int ep_run_fill_rows(struct ep_run *run, const struct rank *r)
{
	const struct ep_job *j = &run->job;
	struct ep_ll_outputs out = expected(run, run->rank);
	uint16_t *rows = make_rows(run, run->rank, out.src_idx, out.ranges);

	CHECK(shunt_memcpy((void *)run->combine.x, rows, local(j) * slots(j) * (size_t)j->hidden * 2) == 0);
	free(rows);
	drop(&out);
	return 0;
}

int ep_run_check_combine(struct ep_run *run, const struct rank *r)
{
	const struct ep_job *j = &run->job;
	struct ep_ll_outputs out[EP_MOST_RANKS];
	uint16_t *rows[EP_MOST_RANKS];
	const int32_t *src_idx[EP_MOST_RANKS];
	const int64_t *ranges[EP_MOST_RANKS];
	size_t n = (size_t)j->tokens[run->rank] * (size_t)j->hidden;
	uint16_t *sums = malloc(n * 2 + 1);
	int wrong;

	for (int s = 0; s < j->nranks; s++) {
		out[s] = expected(run, s);
		rows[s] = make_rows(run, s, out[s].src_idx, out[s].ranges);
		src_idx[s] = out[s].src_idx;
		ranges[s] = out[s].ranges;
	}
	ep_ll_combine(
	    &run->in, run->rank, j->max_tokens, j->dtype, (const uint16_t *const *)rows, src_idx, ranges, sums);
	wrong = ep_compare(r, "out", run->combine.out, sums, n, j->dtype);
	for (int s = 0; s < j->nranks; s++) {
		drop(&out[s]);
		free(rows[s]);
	}
	free(sums);
	return wrong;
}

void ep_run_finish(struct ep_run *run)
{
	for (int s = 0; s < run->job.nranks; s++) {
		free(run->topk_idx[s]);
		free(run->topk_weights[s]);
		free(run->x[s]);
	}
	for (int i = 0; i < run->nmemory; i++)
		shunt_free(run->memory[i]);
}
