/* SPDX-License-Identifier: MIT */
/*
 * Messages over several hosts in front of NCCL, where a rule gives them to Shunt: two ranks need no call of a third.
 * The fake NCCL carries no data, so a message of which only one end is Shunt's never arrives.
 */
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/world.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/test.h"

/* Of large messages ThreadSanitizer needs several chunks, not more than all slots hold. */
#if WORLD_TSAN
#define RULE { "SHUNT_ALGO", "send:0-64k:hierarchical" }
enum { LARGE = 15001, NCCLS = 17000, ROUNDS = 2 };
#else
#define RULE { "SHUNT_ALGO", "send:0-256k:hierarchical" }
enum { LARGE = 60001, NCCLS = 70000, ROUNDS = 3 };
#endif
#define RULE_AND_CHECK RULE, { "SHUNT_CHECK", "1" }

enum { SMALL = 1000, SIDES = 2 }; /* elements of 4 bytes */

static uint32_t value(int from, int to, int i)
{
	return (uint32_t)((from * 64 + to) * 100003 + i);
}

/* A pair's buffer: what this rank sends, and behind it what comes. */
static uint32_t *make(const struct rank *r, int peer, int count)
{
	uint32_t *buf = NULL;

	if (shunt_malloc((void **)&buf, (size_t)count * SIDES * 4))
		return NULL;
	memset(buf, 0xa5, (size_t)count * SIDES * 4);
	for (int i = 0; i < count; i++)
		buf[i] = value(r->rank, peer, i);
	return buf;
}

static int expect(const struct rank *r, uint32_t *buf, int peer, int count)
{
	for (int i = 0; i < count; i++)
		CHECK(buf[count + i] == value(peer, r->rank, i));
	shunt_free(buf);
	return 0;
}

/* One message in each direction, alone or as a group; the lower rank sends first. */
static int exchange(const struct rank *r, ncclComm_t comm, int me, int peer, int peer_here, int count, bool group)
{
	uint32_t *buf = make(r, peer, count);

	CHECK(buf);
	if (group)
		NCCL(ncclGroupStart());
	for (int k = 0; k < SIDES; k++)
		if ((k == 0) == (me < peer_here))
			NCCL(ncclSend(buf, (size_t)count, ncclUint32, peer_here, comm, r->stream));
		else
			NCCL(ncclRecv(buf + count, (size_t)count, ncclUint32, peer_here, comm, r->stream));
	if (group)
		NCCL(ncclGroupEnd());
	CHECK(!shunt_stream_synchronize(r->stream));
	return expect(r, buf, peer, count);
}

static int sum(const struct rank *r, ncclComm_t comm)
{
	uint32_t *buf;

	CHECK(!shunt_malloc((void **)&buf, 4096));
	for (int i = 0; i < 1024; i++)
		buf[i] = (uint32_t)(r->rank + i);
	NCCL(ncclAllReduce(buf, buf, 1024, ncclUint32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int i = 0; i < 1024; i++)
		CHECK(buf[i] == (uint32_t)(r->nranks * i + r->nranks * (r->nranks - 1) / 2));
	shunt_free(buf);
	return 0;
}

static int count_of(ncclComm_t comm, const char *path)
{
	return (int)(ranks_count_calls(comm, "send", path) + ranks_count_calls(comm, "recv", path));
}

/* The two ranks in the middle, on two hosts, whose others make no call before these have their messages. */
HOSTS_TEST(test_two_ranks_need_no_call_of_a_third, { .place = "01", .named = true, .plain = true, .env = { RULE } },
    { .place = "0123", .named = true, .plain = true, .env = { RULE } },
    { .place = "0011", .named = true, .env = { RULE_AND_CHECK } }, { .place = "0101", .env = { RULE } })
{
	int low = (r->nranks - 1) / 2, other = 2 * low + 1 - r->rank;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == low || r->rank == low + 1) {
		for (int k = 0; k < 4; k++)
			CHECK(!exchange(r, comm, r->rank, other, other, k % 2 ? LARGE : SMALL, k / 2));
		CHECK(count_of(comm, "hierarchical") == 8 && count_of(comm, NULL) == 8);
		atomic_fetch_add(&world_shared()->step[0], 1);
	}
	CHECK(!world_await(0, 2));
	CHECK(!sum(r, comm));
	CHECK(ranks_count_calls(comm, "allreduce", RANKS_NATIVE) == 1);
	ranks_barrier(r, &world_shared()->step[1]);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* A group with all ranks, of this host, of others and this one, of all sizes; those above the rule's are NCCL's. */
HOSTS_TEST(test_a_group_has_messages_with_all_ranks, { .place = "0011", .named = true, .plain = true, .env = { RULE } },
    { .place = "1000", .named = true, .env = { RULE_AND_CHECK } },
    { .place = "0123", .named = true, .plain = true, .env = { RULE } })
{
	static const int counts[] = { 1, SMALL, LARGE, NCCLS };
	enum { EACH = 4 };
	uint32_t *buf[8][EACH];
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int round = 0; round < ROUNDS; round++) {
		NCCL(ncclGroupStart());
		for (int k = 0; k < EACH; k++)
			for (int p = 0; p < r->nranks; p++) {
				size_t count = (size_t)counts[k];

				buf[p][k] = make(r, p, counts[k]);
				CHECK(buf[p][k]);
				NCCL(ncclSend(buf[p][k], count, ncclUint32, p, comm, r->stream));
				NCCL(ncclRecv(buf[p][k] + count, count, ncclUint32, p, comm, r->stream));
			}
		NCCL(ncclGroupEnd());
		CHECK(!shunt_stream_synchronize(r->stream));
		for (int p = 0; p < r->nranks; p++) {
			for (int k = 0; k < EACH - 1; k++)
				CHECK(!expect(r, buf[p][k], p, counts[k]));
			shunt_free(buf[p][EACH - 1]);
		}
	}
	CHECK(count_of(comm, "hierarchical") == ROUNDS * SIDES * (EACH - 1) * r->nranks);
	CHECK(count_of(comm, "nccl") == ROUNDS * SIDES * r->nranks);
	ranks_barrier(r, &world_shared()->step[0]);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* Whoever begins the set-up: ranks with a message before a collective, between two of them, and without one. */
HOSTS_TEST(test_messages_come_before_and_between_collectives,
    { .place = "012", .named = true, .plain = true, .env = { RULE } },
    { .place = "0011", .named = true, .env = { RULE } })
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int round = 0; round < 3; round++) {
		int a = round % r->nranks, b = (round + r->nranks / 2) % r->nranks;

		if (r->rank == a || r->rank == b)
			CHECK(!exchange(r, comm, r->rank, a + b - r->rank, a + b - r->rank, SMALL, round % 2));
		CHECK(!sum(r, comm));
	}
	ranks_barrier(r, &world_shared()->step[0]);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/*
 * A child with its ranks turned around, whose messages come first, and its parent: each has its own, also in one group,
 * in which ranks name the communicators in orders of their own.
 */
HOSTS_TEST(test_communicators_have_messages_of_their_own, { .place = "0011", .named = true, .env = { RULE } },
    { .place = "0120", .named = true, .plain = true, .env = { RULE } })
{
	int last = r->nranks - 1, other = last - r->rank;
	ncclComm_t comm, turned, pair;
	uint32_t *buf[SIDES];

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	NCCL(ncclCommSplit(comm, 0, -r->rank, &turned, NULL));
	NCCL(ncclCommSplit(comm, r->rank < other ? r->rank : other, r->rank, &pair, NULL));
	CHECK(!exchange(r, turned, other, other, r->rank, SMALL, false));
	CHECK(!exchange(r, pair, r->rank > other, other, r->rank < other, LARGE, true));
	for (int k = 0; k < SIDES; k++) {
		buf[k] = make(r, other, SMALL + k);
		CHECK(buf[k]);
	}
	NCCL(ncclGroupStart());
	for (int i = 0; i < SIDES; i++) {
		int k = i ^ (r->rank & 1), to = k ? r->rank : other;

		NCCL(ncclRecv(buf[k] + SMALL + k, (size_t)(SMALL + k), ncclUint32, to, k ? turned : comm, r->stream));
		NCCL(ncclSend(buf[k], (size_t)(SMALL + k), ncclUint32, to, k ? turned : comm, r->stream));
	}
	NCCL(ncclGroupEnd());
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int k = 0; k < SIDES; k++)
		CHECK(!expect(r, buf[k], other, SMALL + k));
	CHECK(count_of(comm, "hierarchical") == 2 && count_of(turned, "hierarchical") == 4);
	ranks_barrier(r, &world_shared()->step[0]);
	NCCL(ncclCommDestroy(pair));
	NCCL(ncclCommDestroy(turned));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static int leaver;
static struct ranks_ids *ids;

/* Who leaves is the process with the directory, a rank beside it, the root of another host, or one beside that. */
static void run_leavers(rank_fn body)
{
	struct world world = { .named = true, .env = { RULE }, .body = body };

	for (int i = 0; i < 6; i++) {
		world.place = i < 4 ? "0011" : "0123"; /* and alone on its host */
		leaver = i < 4 ? i : 3 * (i - 4);
		memset(ids, 0, sizeof(*ids));
		run_world(&world);
	}
}

/* It leaves before the others' first call; they are left to NCCL, and nothing waits. */
static int left_body(struct rank *r)
{
	struct shunt_comm_info info = { .size = sizeof(info) };
	ncclComm_t comm;
	uint32_t *buf;
	int peer;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	ranks_barrier(r, &world_shared()->step[0]);
	if (r->rank == leaver) {
		NCCL(ncclCommDestroy(comm));
		world_shared()->step[1] = 1;
		return 0;
	}
	CHECK(!world_await(1, 1));
	/* Two rounds of pairs among those that are left, which are three. */
	for (int round = 0; round < 2; round++) {
		int out = (leaver + 1 + 2 * round) % r->nranks;

		peer = 6 - leaver - out - r->rank;
		if (r->rank == out)
			continue;
		buf = make(r, peer, SMALL);
		CHECK(buf);
		NCCL(ncclGroupStart());
		NCCL(ncclSend(buf, SMALL, ncclUint32, peer, comm, r->stream));
		NCCL(ncclRecv(buf + SMALL, SMALL, ncclUint32, peer, comm, r->stream));
		NCCL(ncclGroupEnd());
		CHECK(!shunt_stream_synchronize(r->stream));
		shunt_free(buf);
		CHECK(!shunt_comm_describe(comm, &info));
		CHECK(!strcmp(info.state, "forwarding") && count_of(comm, RANKS_NATIVE) == 0 && !info.error);
	}
	atomic_fetch_add(&world_shared()->step[2], 1);
	CHECK(!world_await(2, r->nranks - 1));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_messages_are_nccl_s_once_a_rank_has_left)
{
	run_leavers(left_body);
}

/* It leaves while the first message begins: the message is Shunt's or NCCL's, of both ranks alike, and has no error. */
static int leaving_body(struct rank *r)
{
	struct shunt_comm_info info = { .size = sizeof(info) };
	int low = leaver ? 0 : 1, high = leaver == 3 ? 2 : 3;
	ncclComm_t comm;
	uint32_t *buf;

	for (int round = 0; round < 4; round++) {
		ncclUniqueId id = ranks_id(r, ids, round);

		NCCL(ncclCommInitRank(&comm, r->nranks, id, r->rank));
		if (r->rank == low || r->rank == high) {
			int peer = low + high - r->rank;

			buf = make(r, peer, SMALL);
			CHECK(buf);
			NCCL(ncclGroupStart());
			NCCL(ncclSend(buf, SMALL, ncclUint32, peer, comm, r->stream));
			NCCL(ncclRecv(buf + SMALL, SMALL, ncclUint32, peer, comm, r->stream));
			NCCL(ncclGroupEnd());
			CHECK(!shunt_stream_synchronize(r->stream));
			CHECK(!shunt_comm_describe(comm, &info) && !info.error);
			if (!strcmp(info.state, "ready"))
				CHECK(!expect(r, buf, peer, SMALL));
			else
				shunt_free(buf);
		}
		if (r->rank != leaver) {
			atomic_fetch_add(&world_shared()->step[0], 1);
			CHECK(!world_await(0, (round + 1) * (r->nranks - 1)));
		}
		NCCL(ncclCommDestroy(comm));
	}
	ranks_barrier(r, &world_shared()->step[1]);
	return 0;
}

TEST(test_a_rank_may_leave_while_a_message_begins)
{
	run_leavers(leaving_body);
}

/* A peer dies, and later one that has no message: who waits for a message gets an error, and nobody hangs. */
HOSTS_TEST(test_the_death_of_a_peer_ends_a_message,
    { .place = "012", .named = true, .plain = true, .dies = 2, .env = { RULE } },
    { .place = "0011", .named = true, .dies = 4, .env = { RULE } })
{
	int dead = r->nranks / 2;
	ncclResult_t async = ncclSuccess;
	ncclComm_t comm;
	uint32_t *buf;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (!r->rank || r->rank == dead) {
		CHECK(!exchange(r, comm, r->rank, dead - r->rank, dead - r->rank, SMALL, true));
		atomic_fetch_add(&world_shared()->step[0], 1);
	}
	CHECK(!world_await(0, 2));
	if (r->rank == dead)
		raise(SIGKILL);
	if (!r->rank) {
		buf = make(r, dead, SMALL);
		CHECK(buf);
		async = ncclRecv(buf, SMALL, ncclUint32, dead, comm, r->stream); /* it may be known by now */
		CHECK(async == ncclSuccess || async == ncclRemoteError);
		(void)shunt_stream_synchronize(r->stream);
		NCCL(ncclCommGetAsyncError(comm, &async));
		CHECK(async == ncclRemoteError);
		shunt_free(buf);
	}
	atomic_fetch_add(&world_shared()->step[1], 1);
	CHECK(!world_await(1, r->nranks - 1));
	NCCL(ncclCommAbort(comm));
	return 0;
}

/* A message that never comes ends with an abort. */
HOSTS_TEST(test_an_abort_ends_a_message, { .place = "0011", .named = true, .env = { RULE } })
{
	ncclComm_t comm;
	uint32_t *buf;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == 1) {
		CHECK(!shunt_malloc((void **)&buf, 4));
		NCCL(ncclRecv(buf, 1, ncclUint32, 2, comm, r->stream));
		NCCL(ncclCommAbort(comm));
		(void)shunt_stream_synchronize(r->stream);
		shunt_free(buf);
	}
	ranks_barrier(r, &world_shared()->step[0]);
	if (r->rank != 1)
		NCCL(ncclCommAbort(comm));
	return 0;
}

TESTS_BEGIN
{
	void *shared = mmap(NULL, FAKE_NCCL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char text[32];

	ids = mmap(NULL, sizeof(*ids), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(text, sizeof(text), "%p", shared);
	setenv("FAKE_NCCL_SHARED", text, 1);
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_LOG", "error", 0);
}
