/* SPDX-License-Identifier: MIT */
/*
 * Calls over several hosts, standalone on the sim: values, to the bit and in the documented order of sums
 * (docs/decisions/016.md), communicators and streams side by side, and graphs.
 */
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/naps.h"
#include "tests/hosts/world.h"
#include "tests/support/clock.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tools/common/reference.h"

#define MAX_RANKS 64

static bool all; /* what takes long, too */

/* ---- calls and their results */

struct call {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop op;
	size_t count;
	int root;
	bool in_place;
};

/* A rank's view of a communicator. */
struct members {
	ncclComm_t comm;
	int n, me;
	int host[MAX_RANKS]; /* by rank of the communicator */
};

/* A call that was enqueued. */
struct issued {
	struct call call;
	uint64_t seed;
	char *send, *recv; /* one buffer if in place; guards lie behind */
	size_t send_count, recv_count;
};

enum { GUARD = 64 };

static uint64_t input_seed(uint64_t seed, int rank)
{
	return seed * 1000003 + (unsigned)rank;
}

static size_t side_count(const struct call *c, int n, int me, enum shunt_side side)
{
	return shunt_kind_has_side(c->kind, side, me == c->root) ? c->count * shunt_kind_parts(c->kind, side, n) : 0;
}

static ncclResult_t enqueue(const struct members *m, const struct issued *i, void *stream)
{
	const struct call *c = &i->call;
	ncclDataType_t type = (ncclDataType_t)c->dtype;
	ncclRedOp_t op = (ncclRedOp_t)c->op;

	switch (c->kind) {
	case SHUNT_ALLREDUCE:
		return ncclAllReduce(i->send, i->recv, c->count, type, op, m->comm, stream);
	case SHUNT_REDUCE:
		return ncclReduce(i->send, i->recv, c->count, type, op, c->root, m->comm, stream);
	case SHUNT_REDUCESCATTER:
		return ncclReduceScatter(i->send, i->recv, c->count, type, op, m->comm, stream);
	case SHUNT_ALLGATHER:
		return ncclAllGather(i->send, i->recv, c->count, type, m->comm, stream);
	case SHUNT_BROADCAST:
		return ncclBroadcast(i->send, i->recv, c->count, type, c->root, m->comm, stream);
	case SHUNT_ALLTOALL:
		return ncclAlltoAll(i->send, i->recv, c->count, type, m->comm, stream);
	case SHUNT_GATHER:
		return ncclGather(i->send, i->recv, c->count, type, c->root, m->comm, stream);
	case SHUNT_SCATTER:
		return ncclScatter(i->send, i->recv, c->count, type, c->root, m->comm, stream);
	default:
		return ncclInvalidArgument;
	}
}

static int issue(
    const struct rank *r, const struct members *m, const struct call *c, uint64_t seed, void *stream, struct issued *i)
{
	size_t esz = shunt_dtype_bytes[c->dtype], bytes = c->count * (size_t)m->n * esz + GUARD;
	uint64_t state = input_seed(seed, m->me);

	*i = (struct issued){ .call = *c,
		.seed = seed,
		.send_count = side_count(c, m->n, m->me, SHUNT_SIDE_SEND),
		.recv_count = side_count(c, m->n, m->me, SHUNT_SIDE_RECV) };
	CHECK(!shunt_malloc((void **)&i->send, bytes));
	i->recv = i->send;
	if (!c->in_place)
		CHECK(!shunt_malloc((void **)&i->recv, bytes));
	memset(i->recv, 0xa5, bytes);
	memset(i->send, 0xa5, bytes);
	ref_fill(i->send, i->send_count, c->dtype, &state);
	CHECK(enqueue(m, i, stream) == ncclSuccess);
	return 0;
}

/* What must be in the receive buffer. */
static void expect(const struct members *m, const struct issued *i, char *want)
{
	const struct call *c = &i->call;
	size_t esz = shunt_dtype_bytes[c->dtype], part = c->count * esz;
	char *inputs[MAX_RANKS];
	const void *from[MAX_RANKS];

	for (int p = 0; p < m->n; p++) {
		size_t count = side_count(c, m->n, p, SHUNT_SIDE_SEND);
		uint64_t state = input_seed(i->seed, p);

		inputs[p] = malloc(count * esz + 1);
		ref_fill(inputs[p], count, c->dtype, &state);
		from[p] = inputs[p] + shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, m->me) * part;
		if (shunt_kind_has_each(c->kind, SHUNT_SIDE_RECV))
			memcpy(want + (size_t)p * part, from[p], part);
	}
	if (shunt_kind_reduces(c->kind))
		ref_allreduce_over(want, from, m->host, m->n, c->count, c->dtype, c->op, NULL);
	else if (!shunt_kind_has_each(c->kind, SHUNT_SIDE_RECV))
		memcpy(want, from[c->root], part);
	for (int p = 0; p < m->n; p++)
		free(inputs[p]);
}

/* After the stream was waited for. */
static int settle(const struct rank *r, const struct members *m, struct issued *i)
{
	const struct call *c = &i->call;
	size_t esz = shunt_dtype_bytes[c->dtype], first = 0, wrong = 0;
	char *want = malloc(i->recv_count * esz + 1);

	CHECK(want);
	if (i->recv_count) {
		expect(m, i, want);
		wrong = ref_compare(i->recv, want, i->recv_count, c->dtype, &first);
	}
	if (wrong)
		fprintf(stderr, "rank %d: %s of %zu %s, %s, root %d%s: %zu wrong, first %zu\n", r->rank,
		    shunt_kind_name(c->kind), c->count, shunt_dtype_name(c->dtype), shunt_redop_name(c->op), c->root,
		    c->in_place ? ", in place" : "", wrong, first);
	for (size_t k = 0; k < GUARD && i->recv_count && !c->in_place; k++)
		wrong += (unsigned char)i->recv[i->recv_count * esz + k] != 0xa5;
	free(want);
	if (i->send != i->recv)
		shunt_free(i->recv);
	shunt_free(i->send);
	CHECK(!wrong);
	return 0;
}

static struct members world_members(const struct rank *r, ncclComm_t comm)
{
	struct members m = { .comm = comm, .n = r->nranks, .me = r->rank };

	for (int k = 0; k < r->nranks; k++)
		m.host[k] = world_host(k);
	return m;
}

static int one_call(const struct rank *r, const struct members *m, const struct call *c, uint64_t seed)
{
	struct issued i;

	CHECK(!issue(r, m, c, seed, r->stream, &i));
	CHECK(!shunt_stream_synchronize(r->stream));
	return settle(r, m, &i);
}

/* ---- every collective, sizes from one element to what many chunks carry */

static const enum shunt_kind kinds[] = { SHUNT_ALLREDUCE, SHUNT_REDUCE, SHUNT_REDUCESCATTER, SHUNT_ALLGATHER,
	SHUNT_BROADCAST, SHUNT_ALLTOALL, SHUNT_GATHER, SHUNT_SCATTER };

/* ThreadSanitizer looks at the order of chunks, not at how many they are or how many bits are right. */
#if WORLD_TSAN
enum { MANY = 20011, MOST = 100003, LARGE = 300001, ROUNDS = 8, STEP = 1001, REPLAYS = 40 };
#else
enum { MANY = 100003, MOST = 300007, LARGE = 600011, ROUNDS = 12, STEP = 3001, REPLAYS = 100 };
#endif

static int collectives_body(struct rank *r)
{
	static const size_t counts[] = { 1, 5, 1023, 40001, MANY };
	static const struct {
		enum shunt_dtype dtype;
		enum shunt_redop op;
	} types[] = { { SHUNT_F32, SHUNT_SUM }, { SHUNT_BF16, SHUNT_AVG }, { SHUNT_I32, SHUNT_AVG },
		{ SHUNT_F16, SHUNT_MAX }, { SHUNT_U8, SHUNT_SUM } };
	struct members m;
	uint64_t seed = 1;

	NCCL(ncclCommInitRank(&m.comm, r->nranks, r->id, r->rank));
	m = world_members(r, m.comm);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
		for (size_t s = 0; s < sizeof(counts) / sizeof(counts[0]); s++) {
			size_t t = (k + s) % (sizeof(types) / sizeof(types[0]));

			if (WORLD_TSAN && s % 2) /* within a chunk, and of many */
				continue;
			CHECK(!one_call(r, &m,
			    &(struct call){ kinds[k], types[t].dtype, types[t].op, counts[s], (int)(k + s) % r->nranks,
			        s % 2 == !WORLD_TSAN && kinds[k] == SHUNT_ALLREDUCE },
			    seed++));
		}
	/* Many chunks, whose sums every rank must have alike. */
	for (size_t t = 0; t < 2 - WORLD_TSAN; t++)
		CHECK(!one_call(
		    r, &m, &(struct call){ SHUNT_ALLREDUCE, types[t].dtype, types[t].op, MOST, 0, false }, seed++));
	NCCL(ncclCommDestroy(m.comm));
	return 0;
}

TEST(test_calls_have_the_bits_of_the_documented_order)
{
	static const char *const places[] = { "0011", "001", "01", "010", "0122", "01230123", "0000111122223333",
		"0001112222" };

	for (size_t i = 0; i < (all ? 8 : 3); i++)
		run_world(
		    &(struct world){ .place = places[i], .named = i == 2, .plain = i != 1, .body = collectives_body });
}

/* 61 ranks on 9 hosts with 6 or 7, in any order; and 8 hosts with 8. Names: a wire in user space does not carry so
 * many.
 */
static int many_body(struct rank *r)
{
	static const size_t counts[] = { 1, 777, 9001 };
	struct members m;
	double start = now();

	NCCL(ncclCommInitRank(&m.comm, r->nranks, r->id, r->rank));
	m = world_members(r, m.comm);
	if (!r->rank)
		fprintf(stderr, "%d ranks: init after %.1f s\n", r->nranks, now() - start);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
		for (size_t s = 0; s < sizeof(counts) / sizeof(counts[0]); s++) {
			CHECK(!one_call(r, &m,
			    &(struct call){
			        kinds[k], SHUNT_F32, SHUNT_SUM, counts[s], (int)(k * 7 + s) % r->nranks, false },
			    1 + k * 3 + s));
			if (!r->rank)
				fprintf(stderr, "%s of %zu: after %.1f s\n", shunt_kind_name(kinds[k]), counts[s],
				    now() - start);
		}
	NCCL(ncclCommDestroy(m.comm));
	return 0;
}

static void test_as_many_ranks_as_there_may_be(void **state)
{
	char place[MAX_RANKS + 1] = "";

	if (!all)
		skip(); /* takes minutes */
	for (int r = 0; r < 61; r++)
		place[r] = (char)('0' + (r * 29 % 61) % 9);
	run_world(&(struct world){ .place = place, .named = true, .body = many_body });
	for (int r = 0; r < 64; r++)
		place[r] = (char)('0' + r / 8);
	run_world(&(struct world){ .place = place, .named = true, .body = many_body });
}

/* ---- two communicators, whose hosts come in different orders, on two streams */

static int two_body(struct rank *r)
{
	struct members m[2];
	struct issued i[2][ROUNDS];
	void *streams[2] = { r->stream };
	ncclComm_t comm[2];

	CHECK(!shunt_stream_create(&streams[1]));
	NCCL(ncclCommInitRank(&comm[0], r->nranks, r->id, r->rank));
	NCCL(ncclCommSplit(comm[0], 0, -r->rank, &comm[1], NULL));
	m[0] = world_members(r, comm[0]);
	m[1] = (struct members){ .comm = comm[1], .n = r->nranks, .me = r->nranks - 1 - r->rank };
	for (int k = 0; k < r->nranks; k++)
		m[1].host[k] = world_host(r->nranks - 1 - k);
	for (int k = 0; k < ROUNDS; k++)
		for (int c = 0; c < 2; c++)
			CHECK(!issue(r, &m[c],
			    &(struct call){ kinds[(k + c) % 8], SHUNT_F32, SHUNT_SUM, (size_t)(1 + k * STEP),
			        k % r->nranks, false },
			    (uint64_t)(100 + 2 * k + c), streams[c], &i[c][k]));
	for (int c = 0; c < 2; c++)
		CHECK(!shunt_stream_synchronize(streams[c]));
	for (int k = 0; k < ROUNDS; k++)
		for (int c = 0; c < 2; c++)
			CHECK(!settle(r, &m[c], &i[c][k]));
	NCCL(ncclCommDestroy(comm[r->rank % 2])); /* in another order than on the other ranks */
	NCCL(ncclCommDestroy(comm[!(r->rank % 2)]));
	CHECK(!shunt_stream_destroy(streams[1]));
	return 0;
}

TEST(test_two_communicators_on_two_streams)
{
	run_world(&(struct world){ .place = "0011", .plain = true, .body = two_body });
	run_world(&(struct world){ .place = "001", .body = two_body });
}

/* Messages in groups: every rank to every other one, of different sizes, and a ring that is larger than all slots. */
static int messages_body(struct rank *r)
{
	enum { EACH = 70001 };
	uint8_t *out, *in, *large;
	ncclComm_t comm;
	int n = r->nranks, next = (r->rank + 1) % n, last = (r->rank + n - 1) % n;

	out = ranks_memory(r, (size_t)n * EACH);
	in = ranks_memory(r, (size_t)n * EACH);
	large = ranks_memory(r, 2 * LARGE);
	NCCL(ncclCommInitRank(&comm, n, r->id, r->rank));
	for (int p = 0; p < n; p++)
		memset(out + (size_t)p * EACH, 1 + r->rank * n + p, EACH);
	memset(in, 0, (size_t)n * EACH);
	memset(large, r->rank + 1, LARGE);
	NCCL(ncclGroupStart());
	for (int p = 0; p < n; p++) {
		NCCL(ncclSend(out + (size_t)p * EACH, (size_t)(1 + (r->rank * 7919 + p * 104729) % EACH), ncclUint8, p,
		    comm, r->stream));
		NCCL(ncclRecv(in + (size_t)p * EACH, (size_t)(1 + (p * 7919 + r->rank * 104729) % EACH), ncclUint8, p,
		    comm, r->stream));
	}
	NCCL(ncclGroupEnd());
	NCCL(ncclGroupStart());
	NCCL(ncclSend(large, LARGE, ncclUint8, next, comm, r->stream));
	NCCL(ncclRecv(large + LARGE, LARGE, ncclUint8, last, comm, r->stream));
	NCCL(ncclGroupEnd());
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int p = 0; p < n; p++)
		for (int k = 0, bytes = 1 + (p * 7919 + r->rank * 104729) % EACH; k < EACH; k++)
			CHECK(in[(size_t)p * EACH + (size_t)k] == (uint8_t)(k < bytes ? 1 + p * n + r->rank : 0));
	for (int k = 0; k < LARGE; k++)
		CHECK(large[LARGE + k] == (uint8_t)(last + 1));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_messages_in_groups)
{
	run_world(&(struct world){ .place = "0011", .plain = true, .body = messages_body });
	run_world(&(struct world){ .place = "0012", .body = messages_body });
}

/* ---- graphs */

/*
 * x becomes the sum of all ranks' x: after k replays 3^(k-1) times what it was after the first, on three ranks. So a
 * replay that is left out, or runs twice, shows.
 */
HOSTS_TEST(test_graphs_are_replayed, { .place = "001", .limit_s = all ? 600 : 0 })
{
	enum { COUNT = 3001 };
	int replays = all ? 10000 : REPLAYS;
	double start = now();
	uint32_t *x, *y, want = 0, eager = 0;
	void *graph[2];
	ncclComm_t comm;

	x = ranks_memory(r, COUNT * 4);
	y = ranks_memory(r, COUNT * 4);
	for (uint32_t k = 0; k < COUNT; k++) {
		x[k] = (uint32_t)r->rank + k;
		y[k] = 7;
	}
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int g = 0; g < 2; g++) {
		CHECK(!shunt_capture_begin(r->stream));
		NCCL(ncclAllReduce(g ? y : x, g ? y : x, COUNT, ncclUint32, ncclSum, comm, r->stream));
		if (g)
			NCCL(ncclAllReduce(y, y, COUNT, ncclUint32, ncclMax, comm, r->stream));
		CHECK(!shunt_capture_end(r->stream, &graph[g]));
	}
	for (int k = 0; k < replays; k++) {
		CHECK(!shunt_graph_launch(graph[0], r->stream));
		if (k % 16 == 5) {
			CHECK(!shunt_graph_launch(graph[1], r->stream));
			NCCL(ncclAllReduce(y, y, COUNT, ncclUint32, ncclSum, comm, r->stream)); /* eager, in between */
			eager++;
		}
		if (k % 32 == 31)
			CHECK(!shunt_stream_synchronize(r->stream));
		if (k == replays / 2) {
			CHECK(!shunt_stream_synchronize(r->stream));
			CHECK(naps_until_longest(20)); /* the proxies sleep */
			if (all)
				pause_us(PAUSE_LATE, 10000000);
		}
	}
	CHECK(!shunt_stream_synchronize(r->stream));
	if (!r->rank && all)
		fprintf(stderr, "%d replays took %.0f s\n", replays, now() - start);
	for (uint32_t k = 0; k < COUNT; k += 1000) {
		want = 3 * k + 3;
		for (int i = 1; i < replays; i++)
			want *= 3;
		CHECK(x[k] == want);
		want = 7;
		for (uint32_t i = 0; i < eager; i++)
			want *= 9;
		CHECK(y[k] == want);
	}
	CHECK(!shunt_graph_destroy(graph[1]));
	if (r->rank)
		NCCL(ncclCommDestroy(comm)); /* with a live graph, which is not launched any more */
	CHECK(!shunt_graph_destroy(graph[0]));
	if (!r->rank)
		NCCL(ncclCommDestroy(comm));
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest many[] = { cmocka_unit_test(test_as_many_ranks_as_there_may_be) };

	all = argc > 1 && !strcmp(argv[1], "all");
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_MULTI_RANK_GPU", "1", 1); /* the sim has 8 devices */
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_LOG", "error", 0);
	if (all && cmocka_run_group_tests_name("hosts_calls_many", many, NULL, NULL))
		return 1;
	return tests_run(NULL, NULL);
}
