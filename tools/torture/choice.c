/* SPDX-License-Identifier: MIT */
/* The possible operations: a row for each call and each pattern of messages, and its expansion for one rank. */
#include <dlfcn.h>
#include <string.h>
#include "tools/torture/torture.h"

struct torture_kind {
	const char *name;
	int coll;   /* enum bench_coll_id, or -1: a pattern of messages */
	int blocks; /* of a pattern's larger side; 0: one for each rank */
	bool some;  /* some members have no call */
	void (*expand)(const struct torture_op *m, size_t count, struct torture_view *s);
};

uint32_t torture_random(struct torture_random *r, uint32_t n)
{
	r->state += 0x9e3779b97f4a7c15ull;
	return (uint32_t)((conform_hash_mix(r->state) >> 32) * n >> 32);
}

unsigned torture_random_bit(struct torture_random *r, unsigned set)
{
	uint32_t nth = torture_random(r, (unsigned)__builtin_popcount(set));

	while (nth--)
		set &= set - 1;
	return (unsigned)__builtin_ctz(set);
}

static int coll_of(const struct torture_op *m);

/* ---- pieces of a result ---- */

/* Adds a piece. It replaces the parts of earlier pieces that it covers. */
static void piece_overlay(struct torture_view *s, struct torture_piece p)
{
	struct torture_piece old[4 * TORTURE_MAX_RANKS];
	int n = s->npieces;

	if (!p.count)
		return;
	memcpy(old, s->pieces, sizeof(old));
	s->npieces = 0;
	for (int i = 0; i < n; i++) {
		struct torture_piece left = old[i], right = old[i];
		size_t end = old[i].at + old[i].count;

		if (end <= p.at || old[i].at >= p.at + p.count) {
			s->pieces[s->npieces++] = old[i];
			continue;
		}
		left.count = p.at > left.at ? p.at - left.at : 0;
		right.at = p.at + p.count;
		right.from_at += right.at - old[i].at;
		right.count = end > right.at ? end - right.at : 0;
		if (left.count)
			s->pieces[s->npieces++] = left;
		if (right.count)
			s->pieces[s->npieces++] = right;
	}
	s->pieces[s->npieces++] = p;
}

static void copy_add(struct torture_view *s, int from, size_t from_at, size_t at, size_t count)
{
	piece_overlay(s, (struct torture_piece){ TORTURE_COPY, from, from_at, at, count });
}

static void call_add(struct torture_view *s, enum bench_coll_id coll, int root, size_t count, size_t send, size_t recv)
{
	s->calls[s->ncalls++] = (struct torture_call){ coll, root, count, send, recv };
}

/* ---- calls ---- */

static void coll_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	enum bench_coll_id id = (enum bench_coll_id)coll_of(m);
	const struct bench_coll *coll = &bench_colls[id];
	int root = (int)(m->pattern % (unsigned)s->n);
	size_t recv = m->in_place ? bench_coll_recv_offset(coll, count, s->me) : 0;

	s->send_count = count * bench_coll_blocks(coll, coll->send_many, s->n);
	s->recv_count = count * bench_coll_blocks(coll, coll->recv_many, s->n);
	if (m->in_place) {
		s->send = bench_coll_send_offset(coll, count, s->me);
		s->recv_count = s->send_count > s->recv_count ? s->send_count : s->recv_count;
	}
	call_add(s, id, root, count, s->send, recv);
	piece_overlay(s, (struct torture_piece){ TORTURE_POISON, .count = s->recv_count });
	if (m->in_place)
		copy_add(s, s->me, 0, s->send, s->send_count);
	if (!bench_coll_has_recv(coll, s->me, root))
		return;
	for (int i = 0; i < (coll->recv_many ? s->n : 1); i++) {
		struct bench_block b = bench_coll_block(coll, s->me, s->n, root, i, count);

		piece_overlay(s,
		    (struct torture_piece){
		        b.from < 0 ? TORTURE_REDUCED : TORTURE_COPY, b.from, b.from_at, recv + b.at, b.count });
	}
}

/* ---- patterns of messages: all calls of a rank are one group ---- */

static void messages_begin(struct torture_view *s, size_t send_count, size_t recv_count)
{
	s->send_count = send_count;
	s->recv_count = recv_count;
	piece_overlay(s, (struct torture_piece){ TORTURE_POISON, .count = recv_count });
}

static void send_to(struct torture_view *s, int to, size_t at, size_t count)
{
	call_add(s, BENCH_COLL_SEND, to, count, at, 0);
}

static void recv_from(struct torture_view *s, int from, size_t from_at, size_t at, size_t count)
{
	call_add(s, BENCH_COLL_RECV, from, count, 0, at);
	copy_add(s, from, from_at, at, count);
}

/* Every rank sends to one rank, perhaps itself. */
static void permutation(const struct torture_op *m, int n, int me, int *to_p, int *from_p)
{
	struct torture_random r = { m->pattern };
	int to[TORTURE_MAX_RANKS] = { 0 };

	for (int i = 0; i < n; i++)
		to[i] = i;
	for (int i = n - 1; i > 0; i--) {
		int j = (int)torture_random(&r, (uint32_t)i + 1), t = to[i];

		to[i] = to[j];
		to[j] = t;
	}
	*to_p = to[me];
	for (int i = 0; i < n; i++)
		if (to[i] == me)
			*from_p = i;
}

static void permutation_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	int to = 0, from = 0;

	permutation(m, s->n, s->me, &to, &from);
	messages_begin(s, count, count);
	send_to(s, to, 0, count);
	recv_from(s, from, 0, 0, count);
}

/* Several messages of one pair; they keep their order. */
static void burst_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	size_t sizes[] = { count / 2, count / 3, 0, count - count / 2 - count / 3 }, at = 0;
	int to = 0, from = 0;

	permutation(m, s->n, s->me, &to, &from);
	messages_begin(s, count, count);
	for (int i = 0; i < 4; i++) {
		send_to(s, to, at, sizes[i]);
		recv_from(s, from, at, at, sizes[i]);
		at += sizes[i];
	}
}

static void one_way_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	int from = (int)(m->pattern % (unsigned)s->n), to = (int)(m->pattern / 64 % (unsigned)s->n);

	messages_begin(s, count, count);
	if (s->me == from)
		send_to(s, to, 0, count);
	if (s->me == to)
		recv_from(s, from, 0, 0, count);
}

/* The root has a group, the others one message each. */
static void star_out_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	int root = (int)(m->pattern % (unsigned)s->n);

	messages_begin(s, count * (size_t)s->n, count);
	for (int i = 0; s->me == root && i < s->n; i++)
		send_to(s, i, (size_t)i * count, count);
	recv_from(s, root, (size_t)s->me * count, 0, count);
}

static void star_in_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	int root = (int)(m->pattern % (unsigned)s->n);

	messages_begin(s, count, count * (size_t)s->n);
	send_to(s, root, 0, count);
	for (int i = 0; s->me == root && i < s->n; i++)
		recv_from(s, i, 0, (size_t)i * count, count);
}

/* To and from both neighbours; with two ranks these are two messages of one pair. */
static void halo_expand(const struct torture_op *m, size_t count, struct torture_view *s)
{
	int next = (s->me + 1) % s->n, before = (s->me + s->n - 1) % s->n;

	(void)m;
	messages_begin(s, 2 * count, 2 * count);
	send_to(s, next, 0, count);
	send_to(s, before, count, count);
	recv_from(s, before, 0, 0, count);
	recv_from(s, next, count, count, count);
}

#define CALL(id) { NULL, BENCH_COLL_##id, 0, false, coll_expand }
static const struct torture_kind kinds[] = {
	CALL(ALLREDUCE),
	CALL(ALLGATHER),
	CALL(REDUCESCATTER),
	CALL(BROADCAST),
	CALL(BCAST),
	CALL(REDUCE),
	CALL(ALLTOALL),
	CALL(GATHER),
	CALL(SCATTER),
	CALL(SENDRECV),
	CALL(ALLTOALLV),
	{ "permutation", -1, 1, false, permutation_expand },
	{ "burst", -1, 1, false, burst_expand },
	{ "one_way", -1, 1, true, one_way_expand },
	{ "star_out", -1, 0, false, star_out_expand },
	{ "star_in", -1, 0, false, star_in_expand },
	{ "halo", -1, 2, false, halo_expand },
};
enum { NKINDS = sizeof(kinds) / sizeof(kinds[0]) };

static int coll_of(const struct torture_op *m)
{
	return kinds[m->kind].coll;
}

bool torture_op_needs_all(const struct torture_op *m)
{
	int coll = coll_of(m);

	return coll >= BENCH_COLL_ALLREDUCE && coll <= BENCH_COLL_REDUCE && m->bytes >= 4096; /* some of each member */
}

int torture_nkinds(void)
{
	return NKINDS;
}

const char *torture_kind_name(int kind)
{
	const struct torture_kind *k = &kinds[kind];

	return k->coll < 0 ? k->name : bench_colls[k->coll].name;
}

const char *torture_kind_lacks(int kind, const struct bench_nccl *nccl)
{
	const struct torture_kind *k = &kinds[kind];

	return bench_coll_missing(&bench_colls[k->coll < 0 ? BENCH_COLL_SENDRECV : k->coll], nccl);
}

bool torture_kind_is_configured(int kind, const struct bench_nccl *nccl)
{
	const struct torture_kind *k = &kinds[kind];
	char name[64];

	if (k->coll < 0 || !bench_colls[k->coll].configured)
		return false;
	snprintf(name, sizeof(name), "nccl%s", bench_colls[k->coll].configured_name);
	return dlsym(nccl->handle, name);
}

bool torture_kind_is_for_all(int kind)
{
	return !kinds[kind].some;
}

/* ---- ops ---- */

/* All orders of magnitude are equally likely; some sizes are 0, some are powers of two. */
static uint64_t choose_bytes(struct torture_random *r, uint64_t max)
{
	unsigned log = torture_random(r, 64 - (unsigned)__builtin_clzll(max)), how = torture_random(r, 16);
	uint64_t bytes = 1ull << log, more = torture_random(r, 1u << (log < 31 ? log : 31));

	return how == 0 ? 0 : how < 4 || bytes + more > max ? bytes : bytes + more;
}

/* True: with some numbers of ranks, this communicator has a single rank. */
static bool may_be_single_rank(enum conform_comm comm)
{
	return comm != CONFORM_WORLD && comm != CONFORM_REVERSED && comm != CONFORM_TIES && comm != CONFORM_ASYNC;
}

struct torture_op torture_op_choose(
    struct torture_random *r, unsigned comms, unsigned can, unsigned configured, uint64_t max_bytes)
{
	struct torture_op m = { .kind = (int)torture_random_bit(r, can) };
	int coll = coll_of(&m), few;
	uint32_t limits;
	bool in_place;

	/* Every second operation is on the world if it exists, so that all ranks take part. */
	m.comm = torture_random(r, 2) && comms & 1 << CONFORM_WORLD ? CONFORM_WORLD : torture_random_bit(r, comms);
	m.dtype = torture_random(r, SHUNT_NDTYPES);
	m.redop = torture_random(r, SHUNT_NREDOPS);
	m.class = torture_random(r, 2) ? BENCH_REAL : BENCH_EXACT;
	in_place = torture_random(r, 3) == 0;
	m.stream = torture_random(r, TORTURE_STREAMS);
	m.bytes = choose_bytes(r, max_bytes);
	m.pattern = torture_random(r, UINT32_MAX);
	m.data = torture_random(r, UINT32_MAX);
	m.in_place = coll == BENCH_COLL_BCAST || (coll >= 0 && bench_colls[coll].in_place && in_place);
	if (coll < 0 || !bench_colls[coll].reduces)
		m.redop = SHUNT_SUM;
	/* NCCL gets these wrong on a communicator of one rank (docs/conformance.md). */
	if (may_be_single_rank(m.comm) &&
	    (m.redop == SHUNT_PREMUL || (m.redop == SHUNT_AVG && shunt_dtype_is_float(m.dtype))))
		m.redop = SHUNT_SUM;
	if (!bench_data_has(m.dtype, m.class))
		m.class = BENCH_EXACT;
	m.device_scalar = torture_random(r, 2) && m.redop == SHUNT_PREMUL;
	limits = torture_random(r, 8);
	few = 1 + (int)torture_random(r, 3);
	if (limits < 3 && configured & 1u << m.kind) {
		m.min_ctas = limits != 0 ? few : 0;
		m.max_ctas = limits != 1 ? few : 0;
	}
	return m;
}

void torture_op_describe(const struct torture_op *m, char *text, size_t bytes)
{
	int coll = coll_of(m);
	bool reduces = coll >= 0 && bench_colls[coll].reduces;
	char limits[64] = "";

	if (m->min_ctas || m->max_ctas)
		snprintf(limits, sizeof(limits), ", minCTAs %d, maxCTAs %d", m->min_ctas, m->max_ctas);
	snprintf(text, bytes, "%s of %llu bytes, %s%s%s%s, %s place%s, communicator \"%s\"", torture_kind_name(m->kind),
	    (unsigned long long)m->bytes, shunt_dtype_name(m->dtype), reduces ? ", " : "",
	    reduces ? shunt_redop_name(m->redop) : "", m->device_scalar ? " from the device" : "",
	    m->in_place ? "in" : "out of", limits, conform_comm_name(m->comm));
}

void torture_view_create(const struct torture_op *m, int rank, int nranks, struct torture_view *s)
{
	const struct torture_kind *k = &kinds[m->kind];
	int members[RANKS_MAX];
	uint64_t blocks;

	*s = (struct torture_view){ 0 };
	s->n = conform_comm_members(m->comm, rank, nranks, members, &s->me);
	if (!s->n)
		return;
	if (k->coll < 0)
		blocks = k->blocks ? (uint64_t)k->blocks : (uint64_t)s->n;
	else
		blocks = bench_coll_blocks(
		    &bench_colls[k->coll], bench_colls[k->coll].send_many || bench_colls[k->coll].recv_many, s->n);
	/* Communicators that work at the same time have different inputs. */
	s->start = m->data + ((uint64_t)members[0] << 40);
	k->expand(m, m->bytes / shunt_dtype_bytes[m->dtype] / blocks, s);
}
