/* SPDX-License-Identifier: MIT */
/*
 * Random collectives and messages: kinds, sizes, roots, groups, streams, graphs, two communicators, delays of single
 * ranks. All ranks draw the same program from one seed; every result is checked. FAULT_SOAK_ROUNDS says how long it is,
 * a fifth of it with a sanitizer, whose rounds take ten times as long; FAULT_SEED says which it is.
 */
#include "tests/fault/lifecycle.h"
#include "shunt/device.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

enum { RANKS = 3, BUFFERS = 8, MOST = 6000, GROUP = 4 };

enum kind { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, RING, ALLTOALL, KINDS };
static const char *const names[] = { "allreduce", "broadcast", "reduce", "allgather", "reducescatter", "ring",
	"alltoall" };

/* One call, drawn alike by all ranks; buffer: its buffers. */
struct call {
	enum kind kind;
	size_t count;
	int root, comm, place, buffer, graph, stream, of; /* of: calls in its group */
	uint32_t salt;                                    /* of its data */
};

struct rank_state {
	int rank, failed, nopen;
	ncclUniqueId id;
	ncclComm_t comm[2];
	void *stream[2];
	int32_t *in[BUFFERS], *out[BUFFERS];
	struct call open[BUFFERS]; /* issued, not checked yet */
	uint64_t common, own;      /* generators: the same on all ranks, and not */
	long calls, graphs, groups;
};

static long rounds = 4000;

static uint32_t random_below(uint64_t *s, uint32_t n)
{
	*s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((*s >> 33) % n);
}

static int32_t value(const struct call *c, int rank, size_t i)
{
	return (int32_t)((c->salt + (uint32_t)rank * 0x9e3779b1u) ^ (uint32_t)i * 0x85ebca6bu);
}

static int32_t sum_of(const struct call *c, size_t i)
{
	uint32_t sum = 0;

	for (int r = 0; r < RANKS; r++)
		sum += (uint32_t)value(c, r, i);
	return (int32_t)sum;
}

/* What must stand at i of the output; false: nothing is said about it. */
static bool expected(const struct call *c, int rank, size_t i, int32_t *want)
{
	int from = c->count ? (int)(i / c->count) : 0;
	size_t at = c->count ? i % c->count : 0;

	switch (c->kind) {
	case ALLREDUCE:
		*want = sum_of(c, i);
		return true;
	case BROADCAST:
		*want = value(c, c->root, i);
		return true;
	case REDUCE:
		*want = sum_of(c, i);
		return rank == c->root;
	case ALLGATHER:
		*want = value(c, from, at);
		return true;
	case REDUCESCATTER:
		*want = sum_of(c, (size_t)rank * c->count + i);
		return true;
	case RING:
		*want = value(c, (rank + RANKS - 1) % RANKS, i);
		return true;
	default:
		*want = value(c, from, (size_t)rank * c->count + at);
		return true;
	}
}

static size_t in_count(const struct call *c)
{
	return c->kind == REDUCESCATTER || c->kind == ALLTOALL ? RANKS * c->count : c->count;
}

static size_t out_count(const struct call *c)
{
	return c->kind == ALLGATHER || c->kind == ALLTOALL ? RANKS * c->count : c->count;
}

static struct call random_call(struct rank_state *s, int buffer, bool graph)
{
	struct call c = { .kind = (enum kind)random_below(&s->common, KINDS),
		.root = (int)random_below(&s->common, RANKS),
		.comm = (int)random_below(&s->common, 2),
		.buffer = buffer };
	uint32_t size = random_below(&s->common, 10);

	c.count = size == 0 ? 0 : random_below(&s->common, size < 5 ? 64 : size < 9 ? 1500 : MOST) + 1;
	c.place = random_below(&s->common, 2) && !graph && c.kind <= BROADCAST;
	c.salt = random_below(&s->common, 1u << 31);
	return c;
}

static int prepare(struct rank_state *s, const struct call *c)
{
	static _Thread_local int32_t host[RANKS * MOST];
	size_t n = in_count(c);

	for (size_t i = 0; i < n; i++)
		host[i] = value(c, s->rank, i);
	if (shunt_memcpy(c->place ? s->out[c->buffer] : s->in[c->buffer], host, n * sizeof(*host)))
		return -1;
	if (c->place)
		return 0;
	memset(host, 0x5a, out_count(c) * sizeof(*host));
	return shunt_memcpy(s->out[c->buffer], host, out_count(c) * sizeof(*host));
}

static ncclResult_t enqueue(struct rank_state *s, const struct call *c, void *stream)
{
	int32_t *out = s->out[c->buffer], *in = c->place ? out : s->in[c->buffer];
	ncclComm_t comm = s->comm[c->comm];
	ncclResult_t res = ncclSuccess;

	switch (c->kind) {
	case ALLREDUCE:
		return ncclAllReduce(in, out, c->count, ncclInt32, ncclSum, comm, stream);
	case BROADCAST:
		return ncclBroadcast(in, out, c->count, ncclInt32, c->root, comm, stream);
	case REDUCE:
		return ncclReduce(in, out, c->count, ncclInt32, ncclSum, c->root, comm, stream);
	case ALLGATHER:
		return ncclAllGather(in, out, c->count, ncclInt32, comm, stream);
	case REDUCESCATTER:
		return ncclReduceScatter(in, out, c->count, ncclInt32, ncclSum, comm, stream);
	case RING:
		res = ncclSend(in, c->count, ncclInt32, (s->rank + 1) % RANKS, comm, stream);
		return res ? res : ncclRecv(out, c->count, ncclInt32, (s->rank + RANKS - 1) % RANKS, comm, stream);
	default:
		for (int r = 0; r < RANKS && !res; r++) {
			res = ncclSend(in + (size_t)r * c->count, c->count, ncclInt32, r, comm, stream);
			if (!res)
				res = ncclRecv(out + (size_t)r * c->count, c->count, ncclInt32, r, comm, stream);
		}
		return res;
	}
}

static int check_open(struct rank_state *s)
{
	static _Thread_local int32_t host[RANKS * MOST];

	if (shunt_stream_synchronize(s->stream[0]) || shunt_stream_synchronize(s->stream[1]))
		return -1;
	for (int k = 0; k < s->nopen; k++) {
		const struct call *c = &s->open[k];
		size_t n = out_count(c);
		int32_t want;

		if (shunt_memcpy(host, s->out[c->buffer], n * sizeof(*host)))
			return -1;
		for (size_t i = 0; i < n; i++)
			if (expected(c, s->rank, i, &want) && host[i] != want) {
				fprintf(stderr,
				    "rank %d, after %ld calls: %s of %zu, root %d, %s place, communicator %d, %s on "
				    "stream %d, in a group "
				    "of %d: [%zu] is %d, not %d\n",
				    s->rank, s->calls, names[c->kind], c->count, c->root, c->place ? "in" : "out of",
				    c->comm, c->graph ? "graph" : "eager", c->stream, c->of, i, host[i], want);
				return -1;
			}
	}
	s->nopen = 0;
	return 0;
}

/* A group of calls, on one of the streams; eagerly, or captured and launched a few times. */
static int round_of(struct rank_state *s)
{
	uint32_t n = random_below(&s->common, 3) ? 1 : 1 + random_below(&s->common, GROUP),
	         which = random_below(&s->common, 2);
	bool graph = !random_below(&s->common, 8);
	uint32_t launches = 1 + random_below(&s->common, 3), elsewhere = random_below(&s->common, 2);
	ncclResult_t res = ncclSuccess, end;
	struct call calls[GROUP];
	void *stream = s->stream[which], *made = NULL;
	int err = 0;

	/* Before a capture all is waited for, as frameworks do: what src/comm/parts/stream_order.h leaves to the
	 * program. */
	if ((graph || s->nopen + (int)n > BUFFERS) && check_open(s))
		return -1;
	for (uint32_t i = 0; i < n; i++) {
		calls[i] = random_call(s, s->nopen, graph);
		calls[i].graph = graph;
		calls[i].of = (int)n;
		calls[i].stream = (int)(graph ? elsewhere : which);
		s->open[s->nopen++] = calls[i];
		if (prepare(s, &calls[i]))
			return -1;
	}
	if (!random_below(&s->own, 4))
		pause_us(PAUSE_LATE, random_below(&s->own, 2000));
	if (graph && shunt_capture_begin(stream))
		return -1;
	/* Messages go in a group always: sent and received one after another they may wait for each other. */
	res = ncclGroupStart();
	for (uint32_t i = 0; i < n && !res; i++)
		res = enqueue(s, &calls[i], stream);
	end = ncclGroupEnd();
	if (graph) {
		err = shunt_capture_end(stream, &made);
		for (uint32_t i = 0; i < launches && !err; i++)
			err = shunt_graph_launch(made, s->stream[elsewhere]);
		if (!err) /* what follows on the stream where it was captured knows nothing of its end */
			err = check_open(s);
		if (made)
			shunt_graph_destroy(made);
		s->graphs++;
	}
	if (res || end || err) {
		fprintf(stderr, "rank %d: call %ld: %d, %d, %d\n", s->rank, s->calls, (int)res, (int)end, err);
		return -1;
	}
	s->calls += n;
	s->groups += n > 1;
	return random_below(&s->common, 3) ? 0 : check_open(s);
}

static int make_comms(struct rank_state *s)
{
	if (ncclCommInitRank(&s->comm[0], RANKS, s->id, s->rank) ||
	    ncclCommSplit(s->comm[0], 0, s->rank, &s->comm[1], NULL))
		return -1;
	return 0;
}

static void *rank_main(void *arg)
{
	struct rank_state *s = arg;
	long most = getenv("FAULT_SLOW") ? (rounds + 4) / 5 : rounds;
	ncclResult_t async;

	s->failed = 1;
	shunt_device_set(s->rank);
	for (int i = 0; i < 2; i++)
		if (shunt_stream_create(&s->stream[i]))
			return NULL;
	for (int i = 0; i < BUFFERS; i++)
		if (shunt_malloc((void **)&s->in[i], RANKS * MOST * 4) ||
		    shunt_malloc((void **)&s->out[i], RANKS * MOST * 4))
			return NULL;
	if (make_comms(s))
		return NULL;
	for (long round = 0; round < most; round++) {
		if (round_of(s))
			return NULL;
		/* Now and then a new child takes the old one's place. */
		if (random_below(&s->common, 200) == 0) {
			if (check_open(s) || ncclCommDestroy(s->comm[1]) ||
			    ncclCommSplit(s->comm[0], 0, s->rank, &s->comm[1], NULL))
				return NULL;
		}
	}
	if (check_open(s))
		return NULL;
	for (int i = 0; i < 2; i++)
		if (ncclCommGetAsyncError(s->comm[i], &async) || async || ncclCommDestroy(s->comm[i]))
			return NULL;
	for (int i = 0; i < BUFFERS; i++) {
		shunt_free(s->in[i]);
		shunt_free(s->out[i]);
	}
	shunt_stream_destroy(s->stream[0]);
	shunt_stream_destroy(s->stream[1]);
	s->failed = 0;
	return NULL;
}

TEST(test_soak_random_calls_give_right_values)
{
	static struct rank_state rank_state[RANKS];
	const char *text = getenv("FAULT_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : 20261126;
	pthread_t thread[RANKS];
	ncclUniqueId id;

	print_message("FAULT_SEED=%llu FAULT_SOAK_ROUNDS=%ld\n", (unsigned long long)seed, rounds);
	assert_int_equal(ncclGetUniqueId(&id), 0);
	for (int r = 0; r < RANKS; r++) {
		rank_state[r] =
		    (struct rank_state){ .rank = r, .id = id, .common = seed, .own = seed + 77 * (uint64_t)r };
		assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &rank_state[r]), 0);
	}
	for (int r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
	for (int r = 0; r < RANKS; r++)
		if (rank_state[r].failed)
			fail_msg("rank %d: FAULT_SEED=%llu, after %ld calls: %s", r, (unsigned long long)seed,
			    rank_state[r].calls, ncclGetLastError(NULL));
	print_message(
	    "%ld calls, %ld groups, %ld graphs\n", rank_state[0].calls, rank_state[0].groups, rank_state[0].graphs);
	assert_true(rank_state[0].calls > 100);
}

TESTS_BEGIN
{
	if (getenv("FAULT_SOAK_ROUNDS"))
		rounds = atol(getenv("FAULT_SOAK_ROUNDS"));
	lifecycle_environment("60s", "60s");
}
