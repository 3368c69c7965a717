/* SPDX-License-Identifier: MIT */
/* The buffers of an operation: filled before it, checked after it. */
#include "tools/common/libc.h"
#include "tools/torture/torture.h"

enum {
	TEXT_BYTES = 320,
	POISON = 0xa5,
	GUARD = 128,                 /* bytes before and behind a result; nothing may write there */
	WHOLE_CHECK_BYTES = 1 << 20, /* a larger result is checked in samples */
	SAMPLE = 2048,               /* elements of a sample */
	SAMPLES = 6,                 /* of a piece, in addition to its ends */
};

const struct bench_data *torture_data(struct torture_data *d, const struct torture_op *m, int n)
{
	struct bench_data **have = &d->have[m->dtype][m->redop][m->class][n];

	if (!*have)
		*have = bench_data_create(m->dtype, m->redop, m->class, n, 1);
	return *have;
}

void torture_data_destroy(struct torture_data *d)
{
	for (int t = 0; t < SHUNT_NDTYPES; t++)
		for (int o = 0; o < SHUNT_NREDOPS; o++)
			for (int c = 0; c < BENCH_NCLASSES; c++)
				for (int n = 0; n <= TORTURE_MAX_RANKS; n++)
					bench_data_destroy(d->have[t][o][c][n]);
}

static int buffer_open(const struct torture_env *b, bool symmetric, char **p)
{
	void *ptr = NULL;
	int err;

	if (symmetric)
		err = b->nccl->MemAlloc(&ptr, b->bytes) ? -ENOMEM : 0;
	else
		err = b->lib->malloc(&ptr, b->bytes);
	*p = ptr;
	return err;
}

static void buffer_close(const struct torture_env *b, bool symmetric, char *p)
{
	if (p && symmetric)
		b->nccl->MemFree(p);
	else if (p)
		b->lib->free(p);
}

int torture_slot_open(const struct torture_env *b, struct torture_slot *s, bool symmetric)
{
	int err;

	symmetric &=
	    b->nccl->MemAlloc && b->nccl->MemFree && b->nccl->CommWindowRegister && b->nccl->CommWindowDeregister;
	s->symmetric = symmetric;
	err = buffer_open(b, s->symmetric, &s->in);
	if (!err)
		err = buffer_open(b, s->symmetric, &s->out);
	return err;
}

void torture_slot_close(const struct torture_env *b, struct torture_slot *s)
{
	buffer_close(b, s->symmetric, s->in);
	buffer_close(b, s->symmetric, s->out);
	*s = (struct torture_slot){ 0 };
}

void torture_slot_place(
    struct torture_slot *s, const struct torture_op *m, int rank, int nranks, struct torture_random *own)
{
	size_t element = shunt_dtype_bytes[m->dtype];
	struct torture_random common = { m->pattern ^ m->data };

	s->op = *m;
	torture_view_create(m, rank, nranks, &s->view);
	if (s->symmetric)
		own = &common;
	/* Half of the inputs are aligned as allocators do it, the others begin at any element. */
	s->in_at = 2 * GUARD + (torture_random(own, 2) ? 0 : element * torture_random(own, 16));
	s->out_at = 2 * GUARD + (torture_random(own, 2) ? 0 : element * torture_random(own, 16));
}

static size_t result_bytes(const struct torture_slot *s)
{
	return s->view.recv_count * shunt_dtype_bytes[s->op.dtype];
}

int torture_slot_fill(const struct torture_env *b, struct torture_slot *s)
{
	const struct torture_view *view = &s->view;
	size_t element = shunt_dtype_bytes[s->op.dtype];
	const struct bench_data *data;
	char *to = s->in + s->in_at;
	uint64_t scalar = 0;
	int err;

	if (!view->n)
		return 0;
	data = torture_data(b->data, &s->op, view->n);
	if (!data)
		return -ENOMEM;
	err = b->lib->memset_async(s->out + s->out_at - GUARD, POISON, result_bytes(s) + 2 * GUARD, b->stream);
	if (!err)
		err = b->lib->stream_synchronize(b->stream);
	if (s->op.in_place)
		to = s->out + s->out_at + view->send * element;
	if (!err && s->op.device_scalar) {
		bench_data_scalar(data, view->me, &scalar);
		err = b->lib->memcpy(torture_slot_scalar(s), &scalar, sizeof(scalar));
	}
	bench_data_input(data, view->me, view->start, view->send_count, b->host);
	if (!err && view->send_count)
		err = b->lib->memcpy(to, b->host, view->send_count * element);
	return err;
}

const void *torture_slot_send(const struct torture_slot *s, const struct torture_call *p)
{
	return (s->op.in_place ? s->out + s->out_at : s->in + s->in_at) + p->send * shunt_dtype_bytes[s->op.dtype];
}

void *torture_slot_recv(const struct torture_slot *s, const struct torture_call *p)
{
	return s->out + s->out_at + p->recv * shunt_dtype_bytes[s->op.dtype];
}

void *torture_slot_scalar(const struct torture_slot *s)
{
	return s->in; /* the input begins behind the scalar */
}

/* ---- check ---- */

struct check {
	const struct torture_env *b;
	const struct torture_slot *s;
	const struct bench_data *data;
	bool whole; /* the whole result is on the host */
	uint64_t checked;
	int64_t wrong;
	int err;
	char *text;
	size_t text_bytes;
};

/* `bytes` of the result's buffer, at an offset from the start of the result; NULL: error. */
static const char *result_fetch(struct check *k, ptrdiff_t at, size_t bytes)
{
	if (k->whole)
		return k->b->host + GUARD + at;
	k->err = k->b->lib->memcpy(k->b->host, k->s->out + (ptrdiff_t)k->s->out_at + at, bytes);
	return k->err ? NULL : k->b->host;
}

static void poison_check(struct check *k, ptrdiff_t at, size_t bytes)
{
	const char *p = bytes && !k->err ? result_fetch(k, at, bytes) : NULL;

	for (size_t i = 0; p && i < bytes; i++) {
		if ((unsigned char)p[i] == POISON)
			continue;
		if (!k->wrong++)
			snprintf(k->text, k->text_bytes, "a byte that is no result was written: at %lld of %zu, 0x%02x",
			    (long long)at + (long long)i, result_bytes(k->s), (unsigned char)p[i]);
	}
}

/* text, unless NULL: TEXT_BYTES for the first wrong element. */
static size_t elements_check(
    const struct check *k, const struct torture_piece *p, size_t from, size_t count, const char *got, char *text)
{
	return p->source == TORTURE_COPY ? bench_data_check_copy(k->data, p->from, from, count, got, text, TEXT_BYTES) :
	                                   bench_data_check(k->data, from, count, got, text, TEXT_BYTES);
}

/* Checks `count` elements of a piece, from `first` on. */
static void sample_check(struct check *k, const struct torture_piece *p, size_t first, size_t count)
{
	size_t element = shunt_dtype_bytes[k->s->op.dtype], from = k->s->view.start + p->from_at + first, wrong, i = 0;
	ptrdiff_t at = (ptrdiff_t)((p->at + first) * element);
	const char *got;
	char text[TEXT_BYTES];

	k->checked += count;
	if (p->source == TORTURE_POISON) {
		poison_check(k, at, count * element);
		return;
	}
	got = count && !k->err ? result_fetch(k, at, count * element) : NULL;
	if (!got)
		return;
	wrong = elements_check(k, p, from, count, got, NULL);
	if (wrong && !k->wrong) {
		while (!elements_check(k, p, from + i, 1, got + i * element, text))
			i++;
		/* `text` has the index in the data; the index in the result goes before it. */
		snprintf(k->text, k->text_bytes, "at %zu of %zu elements: %s", p->at + first + i, k->s->view.recv_count,
		    text);
	}
	k->wrong += (int64_t)wrong;
}

static void piece_check(struct check *k, const struct torture_piece *p, struct torture_random *own)
{
	if (k->whole || p->count <= (2 + SAMPLES) * SAMPLE) {
		/* By samples, too: their inputs have room on the host. */
		for (size_t at = 0; at < p->count; at += SAMPLE)
			sample_check(k, p, at, p->count - at < SAMPLE ? p->count - at : SAMPLE);
		return;
	}
	sample_check(k, p, 0, SAMPLE);
	sample_check(k, p, p->count - SAMPLE, SAMPLE);
	for (int i = 0; i < SAMPLES; i++)
		sample_check(k, p, torture_random(own, (uint32_t)(p->count - SAMPLE)), SAMPLE);
}

/* Checks that a sample of the input has not changed. */
static void input_check(struct check *k, struct torture_random *own)
{
	const struct torture_view *view = &k->s->view;
	size_t element = shunt_dtype_bytes[k->s->op.dtype];
	size_t n = view->send_count < SAMPLE ? view->send_count : SAMPLE, first;
	char text[256] = "";

	if (!n || k->s->op.in_place || k->err || k->wrong)
		return;
	first = torture_random(own, (uint32_t)(view->send_count - n + 1));
	k->err = k->b->lib->memcpy(k->b->host, k->s->in + k->s->in_at + first * element, n * element);
	if (k->err)
		return;
	k->wrong =
	    (int64_t)bench_data_check_copy(k->data, view->me, view->start + first, n, k->b->host, text, sizeof(text));
	if (k->wrong)
		snprintf(k->text, k->text_bytes, "the input was written: %s", text);
}

int64_t torture_slot_check(const struct torture_env *b, const struct torture_slot *s, struct torture_random *own,
    uint64_t *checked_p, char *text, size_t text_bytes)
{
	struct check k = { .b = b, .s = s, .text = text, .text_bytes = text_bytes };
	size_t bytes = result_bytes(s);

	*checked_p = 0;
	if (!s->view.n)
		return 0;
	k.data = torture_data(b->data, &s->op, s->view.n);
	if (!k.data)
		return -ENOMEM;
	if (bytes <= WHOLE_CHECK_BYTES) {
		k.err = b->lib->memcpy(b->host, s->out + s->out_at - GUARD, bytes + 2 * GUARD);
		k.whole = true;
	}
	poison_check(&k, -GUARD, GUARD);
	poison_check(&k, (ptrdiff_t)bytes, GUARD);
	for (int i = 0; i < s->view.npieces && !k.err; i++)
		piece_check(&k, &s->view.pieces[i], own);
	input_check(&k, own);
	*checked_p = k.checked;
	return k.err ? k.err : k.wrong;
}
