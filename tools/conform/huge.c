/* SPDX-License-Identifier: MIT */
/*
 * Messages over 4 GiB, where a size or an offset of 32 bits would wrap around. They are too large for programs, which
 * need host memory for all buffers of all ranks. The inputs repeat with a prime period, so that no power of two maps an
 * element to an equal one; the results repeat in the same way. Every byte is compared. Reductions are of small
 * integers: exact in every order.
 */
#include "tools/common/libc.h"
#include "tools/conform/conform.h"
#include "tools/common/reference.h"

enum { PERIOD = 65521, PIECE = 32 << 20, GUARD = 4096 };

/* The larger side has --huge bytes (whole: one block has), plus a few elements. */
static const struct row {
	enum bench_coll_id coll;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	bool in_place, whole;
} rows[] = {
	{ BENCH_COLL_ALLREDUCE, SHUNT_I8, SHUNT_SUM, false, true },
	{ BENCH_COLL_ALLREDUCE, SHUNT_F32, SHUNT_SUM, true, true },
	{ BENCH_COLL_ALLREDUCE, SHUNT_BF16, SHUNT_MAX, false, true },
	{ BENCH_COLL_ALLGATHER, SHUNT_U8, SHUNT_SUM, false, false },
	{ BENCH_COLL_ALLGATHER, SHUNT_F16, SHUNT_SUM, true, true },
	{ BENCH_COLL_REDUCESCATTER, SHUNT_I8, SHUNT_SUM, false, false },
	{ BENCH_COLL_REDUCESCATTER, SHUNT_F16, SHUNT_SUM, true, true },
	{ BENCH_COLL_BROADCAST, SHUNT_U8, SHUNT_SUM, false, true },
	{ BENCH_COLL_REDUCE, SHUNT_BF16, SHUNT_SUM, false, true },
	{ BENCH_COLL_ALLTOALL, SHUNT_U8, SHUNT_SUM, false, false },
	{ BENCH_COLL_ALLTOALL, SHUNT_I64, SHUNT_SUM, false, true },
	{ BENCH_COLL_GATHER, SHUNT_U8, SHUNT_SUM, false, true },
	{ BENCH_COLL_SCATTER, SHUNT_F32, SHUNT_SUM, false, true },
	{ BENCH_COLL_SENDRECV, SHUNT_U8, SHUNT_SUM, false, true },
	{ BENCH_COLL_ALLTOALLV, SHUNT_U8, SHUNT_SUM, false, false },
};
enum { NROWS = sizeof(rows) / sizeof(rows[0]) };

void conform_huge_add(struct conform_list *list)
{
	for (int i = 0; i < NROWS && list->o->huge; i++) {
		const struct bench_coll *coll = &bench_colls[rows[i].coll];
		uint64_t blocks =
		    rows[i].whole ? 1 : bench_coll_blocks(coll, coll->send_many || coll->recv_many, list->nranks);
		struct conform_case c = { .kind = CONFORM_HUGE,
			.row = i,
			.coll = rows[i].coll,
			.dtype = rows[i].dtype,
			.redop = rows[i].redop,
			.root = list->nranks - 1,
			.place = rows[i].in_place ? CONFORM_IN : CONFORM_OUT,
			.count = list->o->huge / shunt_dtype_bytes[rows[i].dtype] / blocks + 17 };

		snprintf(c.name, sizeof(c.name), "huge.%s.%s%s%s.n%zu.%s", coll->name, shunt_dtype_name(c.dtype),
		    coll->reduces ? "." : "", coll->reduces ? shunt_redop_name(c.redop) : "", c.count,
		    conform_place_names[c.place]);
		conform_case_add(list, &c);
	}
}

struct huge {
	struct conform_rank *r;
	const struct conform_case *c;
	const struct bench_coll *coll;
	size_t element;
	uint64_t send, recv;         /* elements of each side */
	char *period[RANKS_MAX + 1]; /* PERIOD elements of each rank's input, and of the reduced inputs */
	char *piece;
	char *out, *in; /* device memory of the result and of the input; in place they overlap */
	void *memory[2];
};

/* Elements first ... first + n - 1 of a repeating period. */
static void elements_repeat(const struct huge *h, const char *period, uint64_t first, size_t n, char *out)
{
	while (n) {
		size_t at = first % PERIOD, some = PERIOD - at < n ? PERIOD - at : n;

		memcpy(out, period + at * h->element, some * h->element);
		out += some * h->element;
		first += some;
		n -= some;
	}
}

static int periods_create(struct huge *h)
{
	const void *in[RANKS_MAX];
	int n = h->r->nranks;

	for (int rank = 0; rank <= n; rank++) {
		uint64_t seed = conform_hash_mix(h->c->seed ^ (uint64_t)rank);

		h->period[rank] = malloc(PERIOD * h->element);
		if (!h->period[rank])
			return -ENOMEM;
		for (size_t i = 0; i < PERIOD && rank < n; i++)
			ref_from_double(h->period[rank] + i * h->element, h->c->dtype, (double)(ref_random(&seed) % 8));
		if (rank < n)
			in[rank] = h->period[rank];
	}
	if (h->coll->reduces)
		ref_allreduce(h->period[n], in, n, PERIOD, h->c->dtype, h->c->redop, NULL);
	return 0;
}

static int memory_create(struct huge *h)
{
	int rank = h->r->rank;
	bool in_place = h->c->place == CONFORM_IN;
	uint64_t larger = h->send > h->recv ? h->send : h->recv;
	int err;

	h->piece = malloc(2 * PIECE);
	err = h->piece ? periods_create(h) : -ENOMEM;
	if (!err)
		err = h->r->lib.malloc(&h->memory[0], (in_place ? larger : h->recv) * h->element + GUARD);
	if (!err && !in_place)
		err = h->r->lib.malloc(&h->memory[1], h->send * h->element + GUARD);
	if (err)
		return err;
	h->out = h->memory[0];
	h->in = in_place ? h->memory[0] : h->memory[1];
	if (in_place) {
		h->in += bench_coll_send_offset(h->coll, h->c->count, rank) * h->element;
		h->out += bench_coll_recv_offset(h->coll, h->c->count, rank) * h->element;
	}
	return 0;
}

static void huge_finish(struct huge *h)
{
	for (int i = 0; i < 2; i++)
		if (h->memory[i])
			h->r->lib.free(h->memory[i]);
	for (int i = 0; i <= h->r->nranks; i++)
		free(h->period[i]);
	free(h->piece);
}

static int inputs_upload(struct huge *h)
{
	size_t per_piece = PIECE / h->element;
	uint64_t larger = h->c->place == CONFORM_IN && h->send > h->recv ? h->send : h->recv;
	int err = h->r->lib.memset_async(h->memory[0], CONFORM_POISON, larger * h->element + GUARD, h->r->stream[0]);

	if (!err)
		err = h->r->lib.stream_synchronize(h->r->stream[0]);
	for (uint64_t first = 0; !err && first < h->send; first += per_piece) {
		size_t n = h->send - first < per_piece ? h->send - first : per_piece;

		elements_repeat(h, h->period[h->r->rank], first, n, h->piece);
		err = h->r->lib.memcpy(h->in + first * h->element, h->piece, n * h->element);
		atomic_fetch_add(&h->r->progress->heartbeats, 1);
	}
	return err;
}

static int block_check(struct huge *h, int lib, struct bench_block b, struct conform_outcome *out)
{
	const char *period = h->period[b.from < 0 ? h->r->nranks : b.from];
	size_t per_piece = PIECE / h->element;

	for (uint64_t first = 0; first < b.count; first += per_piece) {
		size_t n = b.count - first < per_piece ? b.count - first : per_piece;
		char *got = h->piece, *want = h->piece + PIECE;
		int err = h->r->lib.memcpy(got, h->out + (b.at + first) * h->element, n * h->element);

		if (err)
			return err;
		atomic_fetch_add(&h->r->progress->heartbeats, 1);
		elements_repeat(h, period, b.from_at + first, n, want);
		for (size_t i = 0; memcmp(got, want, n * h->element) && i < n; i++) {
			if (!memcmp(got + i * h->element, want + i * h->element, h->element))
				continue;
			conform_outcome_set(out, CONFORM_FAIL, "%s: element %llu is %.9g, not %.9g",
			    h->r->side[lib].nccl.label, (unsigned long long)(b.at + first + i),
			    ref_to_double(got + i * h->element, h->c->dtype),
			    ref_to_double(want + i * h->element, h->c->dtype));
			return 0;
		}
	}
	return 0;
}

static int result_check(struct huge *h, int lib, struct conform_outcome *out)
{
	const struct conform_rank *r = h->r;
	bool has = bench_coll_has_recv(h->coll, r->rank, h->c->root);
	int blocks = has ? h->coll->recv_many ? r->nranks : 1 : 0, err = 0;

	for (int block = 0; !err && block < blocks; block++)
		err = block_check(
		    h, lib, bench_coll_block(h->coll, r->rank, r->nranks, h->c->root, block, h->c->count), out);
	if (err || h->c->place == CONFORM_IN)
		return err;
	err = r->lib.memcpy(h->piece, h->out + (has ? h->recv * h->element : 0), GUARD);
	for (int i = 0; !err && i < GUARD; i++)
		if ((unsigned char)h->piece[i] != CONFORM_POISON) {
			conform_outcome_set(
			    out, CONFORM_FAIL, "%s: byte %d behind the result was written", r->side[lib].nccl.label, i);
			break;
		}
	return err;
}

static int library_run(struct huge *h, int lib, struct conform_outcome *out)
{
	struct conform_rank *r = h->r;
	struct conform_side *s = &r->side[lib];
	struct bench_args a = { .send = h->in,
		.recv = h->out,
		.count = h->c->count,
		.dtype = (ncclDataType_t)h->c->dtype,
		.redop = (ncclRedOp_t)h->c->redop,
		.root = h->c->root,
		.rank = r->rank,
		.nranks = r->nranks,
		.comm = s->comm[CONFORM_WORLD],
		.stream = r->stream[0] };
	ncclResult_t result;
	int err;

	conform_rank_progress(r, RANKS_CHECK, lib);
	err = inputs_upload(h);
	if (err)
		return err;
	result = h->coll->call(&s->nccl, &a);
	if (result)
		conform_outcome_set(out, CONFORM_FAIL, "%s: %s returned %d: %s", s->nccl.label, h->coll->name,
		    (int)result, s->nccl.GetErrorString(result));
	err = r->lib.stream_synchronize(r->stream[0]);
	return err || result ? err : result_check(h, lib, out);
}

void conform_huge_run(struct conform_rank *r, const struct conform_case *c, struct conform_outcome *out)
{
	const struct bench_coll *coll = &bench_colls[c->coll];
	struct huge h = { .r = r,
		.c = c,
		.coll = coll,
		.element = shunt_dtype_bytes[c->dtype],
		.send = c->count * bench_coll_blocks(coll, coll->send_many, r->nranks),
		.recv = c->count * bench_coll_blocks(coll, coll->recv_many, r->nranks) };
	int err;

	for (int i = 0; i < r->o->ranks.nlibs; i++)
		if (r->side[i].lacks >> c->coll & 1)
			conform_outcome_set(out, CONFORM_SKIP, "%s lacks %s", r->side[i].nccl.label, coll->name);
	if (out->status)
		return;
	err = memory_create(&h);
	for (int i = 0; !err && i < r->o->ranks.nlibs; i++)
		err = library_run(&h, i, out);
	if (err)
		conform_outcome_set(out, CONFORM_FAIL, "of %llu and %llu bytes: %s",
		    (unsigned long long)(h.send * h.element), (unsigned long long)(h.recv * h.element), strerror(-err));
	huge_finish(&h);
}
