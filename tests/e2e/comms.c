/* SPDX-License-Identifier: MIT */
/*
 * How communicators are made, of others, and how they end: Shunt as the whole library, ranks as processes and as
 * threads, on the sim.
 */
#include "tests/support/clock.h"
#include "tests/support/entries.h"
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

/* Mapped before the ranks are forked, zeroed before each run. */
static struct {
	struct ranks_ids ids;
	atomic_int barrier[32];
} *shared;

static int run(enum ranks_how how, int n, rank_fn body)
{
	memset(shared, 0, sizeof(*shared));
	return ranks_run(how, n, 1, body);
}

/* All ranks; each place once per run. */
static void all_ranks_barrier(struct rank *r, int place)
{
	ranks_barrier(r, &shared->barrier[place]);
}

/* One sum over a communicator in which we are `rank` of n, checked. */
static int sum(struct rank *r, ncclComm_t comm, int rank, int n)
{
	enum { COUNT = 3000 };
	int32_t host[COUNT], *dev;
	int v;

	NCCL(ncclCommUserRank(comm, &v));
	CHECK(v == rank);
	NCCL(ncclCommCount(comm, &v));
	CHECK(v == n);
	CHECK(shunt_malloc((void **)&dev, sizeof(host)) == 0);
	for (int i = 0; i < COUNT; i++)
		host[i] = i * (rank + 1);
	CHECK(shunt_memcpy(dev, host, sizeof(host)) == 0);
	NCCL(ncclAllReduce(dev, dev, COUNT, ncclInt32, ncclSum, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(host, dev, sizeof(host)) == 0);
	for (int i = 0; i < COUNT; i++)
		CHECK(host[i] == i * n * (n + 1) / 2);
	CHECK(shunt_free(dev) == 0);
	return 0;
}

#define SUM(comm, place, n) \
	do { \
		if (sum(r, comm, place, n)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)

RANKS_TEST(test_shrink_and_grow_make_working_communicators, run(RANKS_PROCESSES, 4, body) + run(RANKS_THREADS, 4, body))
{
	int last = r->nranks - 1, n = r->nranks;
	ncclComm_t comm, shrunk = NULL, grown;
	ncclUniqueId id;

	NCCL(ncclCommInitRank(&comm, n, r->id, r->rank));
	for (int round = 0; round < 2; round++) { /* unused and used parents */
		if (r->rank != 1) {
			NCCL(ncclCommShrink(comm, (int[]){ 1 }, 1, &shrunk, NULL, NCCL_SHRINK_DEFAULT));
			SUM(shrunk, r->rank - (r->rank > 1), n - 1);
			NCCL(ncclCommDestroy(shrunk));
		}
		if (r->rank != last) {
			pause_us(PAUSE_LATE, (unsigned)r->rank * 20000);
			NCCL(ncclCommShrink(comm, (int[]){ last }, 1, &shrunk, NULL, NCCL_SHRINK_DEFAULT));
			SUM(shrunk, r->rank, n - 1);
		} else {
			shrunk = NULL;
		}
		/* The one that was left out comes back as a new rank. */
		if (r->rank == 0) {
			NCCL(ncclCommGetUniqueId(shrunk, &id));
			shared->ids.id[round] = id;
		}
		all_ranks_barrier(r, 4 * round);
		id = shared->ids.id[round];
		NCCL(ncclCommGrow(shrunk, n, shrunk && r->rank ? NULL : &id, shrunk ? -1 : r->rank, &grown, NULL));
		SUM(grown, r->rank, n);
		if (shrunk)
			NCCL(ncclCommDestroy(shrunk));
		SUM(grown, r->rank, n);
		NCCL(ncclCommDestroy(grown));
		SUM(comm, r->rank, n);
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* Rank 1 dies in the middle of things; the others revoke what hangs, and go on without it. */
static int body_survive(struct rank *r)
{
	ncclComm_t comm, rest, again;
	ncclResult_t async;
	int32_t *buf = ranks_memory(r, 400);

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	SUM(comm, r->rank, r->nranks);
	all_ranks_barrier(r, 0);
	if (r->rank == 1)
		kill(getpid(), SIGKILL);
	NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, comm, r->stream));
	CHECK(until_begun(getpid(), 2));
	if (r->rank == 0)
		NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
	CHECK(r->rank != 0 || shunt_stream_synchronize(r->stream) == 0); /* nothing spins any more */
	CHECK(r->rank != 0 || ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, comm, r->stream) == ncclInvalidUsage);
	NCCL(ncclCommShrink(comm, (int[]){ 1 }, 1, &rest, NULL, r->rank ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT));
	SUM(rest, r->rank ? r->rank - 1 : 0, r->nranks - 1);
	NCCL(ncclCommSplit(rest, 0, -r->rank, &again, NULL));
	SUM(again, r->nranks - 1 - r->rank - (r->rank == 0), r->nranks - 1);
	NCCL(ncclCommGetAsyncError(rest, &async));
	CHECK(async == ncclSuccess);
	NCCL(ncclCommDestroy(again));
	NCCL(ncclCommAbort(comm));
	NCCL(ncclCommDestroy(rest));
	return 0;
}

TEST(test_survivors_of_a_dead_rank_go_on)
{
	memset(shared, 0, sizeof(*shared));
	assert_int_equal(ranks_run_as(&(struct ranks){ .n = 4, .raw = 1, .body = body_survive, .dies = 1u << 1 }), 0);
}

RANKS_TEST(test_revoked_communicator_can_be_split, run(RANKS_PROCESSES, 3, body) + run(RANKS_THREADS, 4, body))
{
	ncclComm_t comm, half, all;
	ncclResult_t async;
	int32_t *buf = ranks_memory(r, 400);

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	SUM(comm, r->rank, r->nranks);
	if (r->rank) /* without rank 0 it cannot end */
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, comm, r->stream));
	NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
	CHECK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT) == ncclInvalidArgument);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	NCCL(ncclCommGetAsyncError(comm, &async));
	CHECK(async == ncclSuccess);
	CHECK(ncclCommFinalize(comm) == ncclInvalidArgument);
	NCCL(ncclCommSplit(comm, r->rank % 2, 0, &half, NULL));
	SUM(half, r->rank / 2, r->rank % 2 ? r->nranks / 2 : (r->nranks + 1) / 2);
	NCCL(ncclCommSplit(comm, 0, -r->rank, &all, NULL));
	SUM(all, r->nranks - 1 - r->rank, r->nranks);
	NCCL(ncclCommDestroy(comm));
	SUM(half, r->rank / 2, r->rank % 2 ? r->nranks / 2 : (r->nranks + 1) / 2);
	NCCL(ncclCommDestroy(half));
	NCCL(ncclCommDestroy(all));
	return 0;
}

/* Rank 2 does not come to a split. The others are told to give up, and go on without it. */
static void *revoke_later(void *comm)
{
	if (!until_all_threads_wait()) /* the split's, too: it waits for rank 2 */
		return comm;
	return (void *)(intptr_t)ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
}

static int revoke_in_split(struct rank *r, int blocking)
{
	ncclConfig_t config = nccl_config_unset();
	ncclComm_t comm, child = NULL, rest = NULL;
	ncclResult_t async;
	pthread_t thread;
	void *result;

	config.blocking = blocking;
	ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config);
	CHECK(ranks_settled(comm) == ncclSuccess);
	if (r->rank == 2) {
		all_ranks_barrier(r, 0);
		NCCL(ncclCommAbort(comm));
		return 0;
	}
	CHECK(pthread_create(&thread, NULL, revoke_later, comm) == 0);
	CHECK(ncclCommSplit(comm, 0, r->rank, &child, NULL) == (blocking ? ncclInvalidUsage : ncclInProgress));
	CHECK(pthread_join(thread, &result) == 0 && result == NULL);
	CHECK(!child);
	NCCL(ncclCommGetAsyncError(comm, &async));
	CHECK(async == ncclSuccess); /* revoking is no error */
	CHECK(ncclCommShrink(comm, (int[]){ 2 }, 1, &rest, NULL, NCCL_SHRINK_DEFAULT) ==
	    (blocking ? ncclSuccess : ncclInProgress));
	CHECK(ranks_settled(comm) == ncclSuccess && rest);
	SUM(rest, r->rank, 2);
	all_ranks_barrier(r, 0);
	NCCL(ncclCommDestroy(rest));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static int body_revoke_in_split(struct rank *r)
{
	return revoke_in_split(r, 1);
}

static int body_revoke_in_nonblocking_split(struct rank *r)
{
	return revoke_in_split(r, 0);
}

TEST(test_revoke_ends_a_split_and_no_more)
{
	assert_int_equal(run(RANKS_PROCESSES, 3, body_revoke_in_split), 0);
	assert_int_equal(run(RANKS_PROCESSES, 3, body_revoke_in_nonblocking_split), 0);
}

/* The rank that is to come new never does: what was begun is no communicator, and never will be one. */
RANKS_TEST(test_revoke_of_a_growth_leaves_its_error, run(RANKS_THREADS, 1, body))
{
	ncclConfig_t config = nccl_config_nonblocking();
	ncclComm_t comm, grown;
	ncclResult_t state;
	ncclUniqueId id;

	NCCL(ncclCommInitRank(&comm, 1, r->id, 0));
	NCCL(ncclCommGetUniqueId(comm, &id));
	CHECK(ncclCommGrow(comm, 2, &id, -1, &grown, &config) == ncclInProgress);
	NCCL(ncclCommRevoke(grown, NCCL_REVOKE_DEFAULT));
	NCCL(ncclCommGetAsyncError(grown, &state));
	CHECK(state != ncclSuccess && state != ncclInProgress);
	NCCL(ncclCommAbort(grown));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* One that hangs behind another on its stream: who revokes one after the other comes to the second. */
RANKS_TEST(test_revoke_does_not_wait_for_other_communicators, run(RANKS_PROCESSES, 2, body))
{
	ncclComm_t first, second;
	int32_t *buf = ranks_memory(r, 400);

	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	NCCL(ncclCommSplit(first, 0, r->rank, &second, NULL));
	SUM(first, r->rank, r->nranks);
	SUM(second, r->rank, r->nranks);
	if (!r->rank) {
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, first, r->stream)); /* rank 1 does not come */
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, second, r->stream));
		NCCL(ncclCommRevoke(second, NCCL_REVOKE_DEFAULT));
		NCCL(ncclCommRevoke(first, NCCL_REVOKE_DEFAULT));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
	}
	all_ranks_barrier(r, 0);
	NCCL(ncclCommAbort(second));
	NCCL(ncclCommAbort(first));
	return 0;
}

RANKS_TEST(
    test_nonblocking_communicators_come_by_themselves, run(RANKS_PROCESSES, 3, body) + run(RANKS_THREADS, 3, body))
{
	ncclConfig_t config = nccl_config_nonblocking();
	ncclComm_t comm, child, second, grouped;
	ncclResult_t res;

	/* The structure of NCCL 2.14. */
	config.size = 24;
	config.version = 21400;
	res = ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config);
	CHECK(res == ncclInProgress && ranks_settled(comm) == ncclSuccess);
	SUM(comm, r->rank, r->nranks);
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(comm, 0, r->rank, &child, NULL));
	NCCL(ncclCommSplit(comm, 0, -r->rank, &second, NULL));
	CHECK(ncclGroupEnd() == ncclInProgress);
	/* As PyTorch: no call of NCCL's until the handle is there. */
	while (!__atomic_load_n(&second, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 100);
	CHECK(ranks_settled(comm) == ncclSuccess);
	SUM(child, r->rank, r->nranks);
	SUM(second, r->nranks - 1 - r->rank, r->nranks);
	/* A group of an init of which the last rank comes when the others' calls have returned. */
	ncclUniqueId id = ranks_id(r, &shared->ids, 0);
	while (r->rank == r->nranks - 1 && shared->barrier[0] < r->nranks - 1)
		pause_us(PAUSE_POLL, 200);
	NCCL(ncclGroupStart());
	NCCL(ncclCommInitRankConfig(&grouped, r->nranks, id, r->rank, &config));
	CHECK(ncclGroupEnd() == ncclInProgress);
	atomic_fetch_add(&shared->barrier[0], 1);
	CHECK(ranks_settled(grouped) == ncclSuccess);
	SUM(grouped, r->rank, r->nranks);
	res = ncclCommFinalize(grouped);
	CHECK((res == ncclInProgress || res == ncclSuccess) && ranks_settled(grouped) == ncclSuccess);
	NCCL(ncclCommDestroy(grouped));
	NCCL(ncclCommDestroy(comm));
	SUM(child, r->rank, r->nranks);
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(child));
	return 0;
}

RANKS_TEST(test_scalable_init_uses_all_ids_up, run(RANKS_PROCESSES, 4, body))
{
	ncclUniqueId ids[3];
	ncclComm_t comm;

	for (int k = 0; k < 3; k++)
		ids[k] = ranks_id(r, &shared->ids, k);
	NCCL(ncclCommInitRankScalable(&comm, r->nranks, r->rank, 3, ids, NULL));
	SUM(comm, r->rank, r->nranks);
	NCCL(ncclCommDestroy(comm));
	all_ranks_barrier(r, 0);
	CHECK(ncclCommInitRank(&comm, 1, ids[2], 0) != ncclSuccess); /* all of them are used up */
	return 0;
}

/*
 * NCCL_COMM_ID gives all communicators of a job one unique id. Here several of them are alive, in which the ranks'
 * numbers differ, and their children.
 */
static int body_one_id(struct rank *r)
{
	int reversed = r->nranks - 1 - r->rank, numbers[3] = { r->rank, r->rank, reversed };
	struct shunt_comm_info info[2] = { { .size = sizeof(info[0]) }, { .size = sizeof(info[1]) } };
	ncclComm_t comms[3], children[3];
	ncclUniqueId id;

	for (int i = 0; i < 3; i++) {
		NCCL(ncclGetUniqueId(&id));
		NCCL(ncclCommInitRank(&comms[i], r->nranks, id, numbers[i]));
		NCCL(ncclCommSplit(comms[i], 0, -numbers[i], &children[i], NULL));
	}
	for (int i = 2; i >= 0; i--) {
		SUM(comms[i], numbers[i], r->nranks);
		SUM(children[i], r->nranks - 1 - numbers[i], r->nranks);
	}
	CHECK(!shunt_comm_describe(comms[0], &info[0]) && !shunt_comm_describe(comms[1], &info[1]));
	CHECK(strcmp(info[0].id, info[1].id) != 0);
	for (int i = 0; i < 3; i++) {
		NCCL(ncclCommDestroy(comms[i]));
		NCCL(ncclCommDestroy(children[i]));
	}
	return 0;
}

static void onto_two_hosts(int rank)
{
	setenv("SHUNT_HOSTID", rank % 2 ? "odd" : "even", 1);
}

TEST(test_communicators_of_one_unique_id_live_side_by_side)
{
	assert_true(own_comm_id());
	assert_int_equal(run(RANKS_PROCESSES, 3, body_one_id), 0);
	assert_int_equal(run(RANKS_THREADS, 2, body_one_id), 0);
	assert_int_equal(
	    ranks_run_as(&(struct ranks){ .n = 3, .raw = 1, .body = body_one_id, .prepare = onto_two_hosts }), 0);
	unsetenv("NCCL_COMM_ID");
}

/* A used communicator has one connection: between the root and each other rank. */
RANKS_TEST(test_used_communicator_has_one_connection, run(RANKS_PROCESSES, 2, body) + run(RANKS_PROCESSES, 4, body))
{
	ncclComm_t comms[4];
	int before;

	NCCL(ncclCommInitRank(&comms[0], r->nranks, r->id, r->rank));
	SUM(comms[0], r->rank, r->nranks);
	for (int i = 1; i < 4; i++) {
		/* The thread by which the ranks met has all that it waits for, and ends. */
		CHECK(until_all_threads_wait());
		before = entries("/proc/self/fd");
		NCCL(ncclCommSplit(comms[0], 0, r->rank, &comms[i], NULL));
		SUM(comms[i], r->rank, r->nranks);
		CHECK(entries("/proc/self/fd") == before + (r->rank ? 1 : r->nranks - 1));
	}
	for (int i = 0; i < 4; i++)
		NCCL(ncclCommDestroy(comms[i]));
	return 0;
}

/* Dozens alive, each used; ended in another order on each rank, and by another thread than the one that made them. */
enum { DOZENS = 36 };

struct ending {
	struct rank *r;
	ncclComm_t *comms;
	int failed;
};

static void *end_half(void *arg)
{
	struct ending *e = arg;

	shunt_device_set(e->r->rank);
	for (int i = 1; i < DOZENS; i += 2)
		e->failed |= ncclCommDestroy(e->comms[(i * 7 + 3 * e->r->rank) % DOZENS | 1]) != ncclSuccess;
	return NULL;
}

RANKS_TEST(test_dozens_of_communicators_end_in_any_order, run(RANKS_PROCESSES, 2, body) + run(RANKS_THREADS, 3, body))
{
	ncclComm_t comms[DOZENS];
	struct ending ending = { r, comms, 0 };
	pthread_t thread;

	NCCL(ncclCommInitRank(&comms[0], r->nranks, r->id, r->rank));
	for (int i = 1; i < DOZENS; i++)
		NCCL(ncclCommSplit(comms[i / 2], 0, r->rank, &comms[i], NULL));
	for (int i = 0; i < DOZENS; i += 3)
		SUM(comms[i], r->rank, r->nranks);
	pthread_create(&thread, NULL, end_half, &ending); /* the odd ones */
	for (int i = DOZENS - 2; i >= 0; i -= 2)
		NCCL(ncclCommDestroy(comms[r->rank % 2 ? i : DOZENS - 2 - i]));
	pthread_join(thread, NULL);
	CHECK(!ending.failed);
	return 0;
}

/*
 * The root is done as soon as its data lies in the others' memory; they still acknowledge it when it has ended its
 * communicator.
 */
RANKS_TEST(test_rank_may_end_while_peers_still_write_to_it, run(RANKS_THREADS, 4, body) + run(RANKS_PROCESSES, 3, body))
{
	enum { COUNT = 20000 };
	int32_t *host = malloc(COUNT * 4), *dev;
	ncclComm_t comm;

	dev = ranks_memory(r, COUNT * 4);
	for (int k = 0; k < 8; k++) {
		NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &shared->ids, k), r->rank));
		SUM(comm, r->rank, r->nranks);
		for (int i = 0; i < COUNT; i++)
			host[i] = r->rank ? -1 : i + k;
		CHECK(shunt_memcpy(dev, host, COUNT * 4) == 0);
		if (r->rank == r->nranks - 1)
			pause_us(PAUSE_LATE, 3000);
		NCCL(ncclBroadcast(dev, dev, 800, ncclInt32, 0, comm, r->stream));
		if (r->rank)
			CHECK(shunt_stream_synchronize(r->stream) == 0);
		NCCL(ncclCommDestroy(comm));
		CHECK(shunt_memcpy(host, dev, COUNT * 4) == 0);
		for (int i = 0; i < 800; i++)
			CHECK(host[i] == i + k);
	}
	free(host);
	return 0;
}

/* Graphs outlive their communicator, as where a program ends in any order. */
RANKS_TEST(test_graphs_may_outlive_their_communicator, run(RANKS_PROCESSES, 3, body) + run(RANKS_THREADS, 2, body))
{
	enum { COUNT = 1000, GRAPHS = 3 };
	void *graphs[GRAPHS], *other;
	ncclComm_t comm;
	int32_t *dev;
	double began;

	CHECK(shunt_malloc((void **)&dev, COUNT * 4) == 0 && shunt_stream_create(&other) == 0);
	for (int how = 0; how < 3; how++) { /* destroy, finalize and destroy, abort */
		NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &shared->ids, how), r->rank));
		SUM(comm, r->rank, r->nranks);
		for (int g = 0; g < GRAPHS; g++) {
			void *stream = g % 2 ? other : r->stream;

			CHECK(shunt_capture_begin(stream) == 0);
			NCCL(ncclAllReduce(dev, dev, COUNT, ncclInt32, ncclSum, comm, stream));
			NCCL(ncclAllReduce(dev, dev, COUNT, ncclInt32, ncclMax, comm, stream));
			CHECK(shunt_capture_end(stream, &graphs[g]) == 0);
			CHECK(shunt_graph_launch(graphs[g], r->stream) == 0);
		}
		CHECK(how < 2 || shunt_stream_synchronize(r->stream) == 0);
		began = now();
		if (how == 1)
			NCCL(ncclCommFinalize(comm));
		NCCL(how == 2 ? ncclCommAbort(comm) :
		                ncclCommDestroy(comm)); /* what runs is waited for, what may run is not */
		CHECK(now() - began < AT_ONCE_S);
		for (int g = 0; g < GRAPHS; g++)
			CHECK(shunt_graph_destroy(graphs[GRAPHS - 1 - g]) == 0);
	}
	CHECK(shunt_free(dev) == 0 && shunt_stream_destroy(other) == 0);
	return 0;
}

/* Ended while another stream of the thread captures. */
RANKS_TEST(test_another_communicator_may_end_during_a_capture, run(RANKS_PROCESSES, 2, body))
{
	ncclComm_t comm, other;
	int32_t *dev, host[4] = { 1, 2, 3, 4 };
	void *graph;

	CHECK(shunt_malloc((void **)&dev, sizeof(host)) == 0 && shunt_memcpy(dev, host, sizeof(host)) == 0);
	NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &shared->ids, 0), r->rank));
	NCCL(ncclCommInitRank(&other, r->nranks, ranks_id(r, &shared->ids, 1), r->rank));
	SUM(comm, r->rank, r->nranks);
	SUM(other, r->rank, r->nranks);
	CHECK(shunt_capture_begin(r->stream) == 0);
	NCCL(ncclAllReduce(dev, dev, 4, ncclInt32, ncclSum, comm, r->stream));
	NCCL(ncclCommDestroy(other));
	NCCL(ncclAllReduce(dev, dev, 4, ncclInt32, ncclSum, comm, r->stream));
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	CHECK(shunt_graph_launch(graph, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_memcpy(host, dev, sizeof(host)) == 0 && host[3] == 4 * r->nranks * r->nranks);
	NCCL(ncclCommDestroy(comm));
	CHECK(shunt_graph_destroy(graph) == 0 && shunt_free(dev) == 0);
	return 0;
}

/* A rank by itself, on any device, with every way to be made. */
/* A capture is spoiled: without mixing nobody knows what graphs have launched, and who ends waits for the device. */
static int body_spoiled_capture(struct rank *r)
{
	ncclComm_t comm, other;
	int32_t *dev = ranks_memory(r, 16);
	void *graph;

	NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &shared->ids, 0), r->rank));
	NCCL(ncclCommInitRank(&other, r->nranks, ranks_id(r, &shared->ids, 1), r->rank));
	SUM(comm, r->rank, r->nranks);
	SUM(other, r->rank, r->nranks);
	CHECK(shunt_capture_begin(r->stream) == 0);
	NCCL(ncclAllReduce(dev, dev, 4, ncclInt32, ncclSum, other, r->stream));
	ncclCommDestroy(other);
	CHECK(ncclAllReduce(dev, dev, 4, ncclInt32, ncclSum, comm, r->stream) == ncclInvalidUsage);
	CHECK(shunt_capture_end(r->stream, &graph) != 0);
	SUM(comm, r->rank, r->nranks);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_communicator_outlives_a_spoiled_capture)
{
	setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
	assert_int_equal(run(RANKS_PROCESSES, 2, body_spoiled_capture), 0);
	unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
}

/* While a collective on another communicator waits for a peer, which comes only after that. */
RANKS_TEST(test_communicator_may_end_beside_a_waiting_one, run(RANKS_PROCESSES, 2, body))
{
	ncclConfig_t config = nccl_config_nonblocking();
	ncclComm_t comm, other;
	ncclResult_t res;
	int32_t *dev, host[4] = { 1, 2, 3, 4 };

	CHECK(shunt_malloc((void **)&dev, sizeof(host)) == 0 && shunt_memcpy(dev, host, sizeof(host)) == 0);
	CHECK(ncclCommInitRankConfig(&comm, r->nranks, ranks_id(r, &shared->ids, 0), r->rank, &config) ==
	        ncclInProgress &&
	    ranks_settled(comm) == ncclSuccess);
	NCCL(ncclCommInitRank(&other, r->nranks, ranks_id(r, &shared->ids, 1), r->rank));
	SUM(comm, r->rank, r->nranks);
	SUM(other, r->rank, r->nranks);
	for (double end = now() + 10; r->rank && !shared->barrier[0] && now() < end;)
		pause_us(PAUSE_POLL, 1000);
	CHECK(!r->rank || shared->barrier[0]);
	NCCL(ncclAllReduce(dev, dev, 4, ncclInt32, ncclSum, other, r->stream));
	res = ncclCommFinalize(comm);
	CHECK((res == ncclInProgress || res == ncclSuccess) && ranks_settled(comm) == ncclSuccess);
	NCCL(ncclCommDestroy(comm));
	shared->barrier[0] = 1;
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_memcpy(host, dev, sizeof(host)) == 0 && host[3] == 4 * r->nranks);
	NCCL(ncclCommDestroy(other));
	CHECK(shunt_free(dev) == 0);
	return 0;
}

RANKS_TEST(test_one_rank_works_on_every_device, run(RANKS_PROCESSES, 1, body))
{
	ncclComm_t comm, child;
	ncclUniqueId id;
	ncclRedOp_t op;

	for (int device = 0; device < 8; device++) {
		float in[3] = { 1, 2, 3 }, out[3] = { 0 }, factor = 2.5f, *a, *b;
		void *stream;
		int v;

		CHECK(shunt_device_set(device) == 0 && shunt_stream_create(&stream) == 0);
		CHECK(shunt_malloc((void **)&a, 12) == 0 && shunt_malloc((void **)&b, 12) == 0 &&
		    shunt_memcpy(a, in, 12) == 0);
		if (device % 2) {
			NCCL(ncclGetUniqueId(&id));
			NCCL(ncclCommInitRank(&comm, 1, id, 0));
		} else {
			NCCL(ncclCommInitAll(&comm, 1, &device));
		}
		NCCL(ncclCommCuDevice(comm, &v));
		CHECK(v == device);
		NCCL(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
		NCCL(ncclAllReduce(a, b, 3, ncclFloat32, op, comm, stream));
		NCCL(ncclRedOpDestroy(op, comm));
		CHECK(shunt_stream_synchronize(stream) == 0 && shunt_memcpy(out, b, 12) == 0);
		CHECK(out[0] == 2.5f && out[1] == 5.0f && out[2] == 7.5f);
		NCCL(ncclCommSplit(comm, 3, 0, &child, NULL));
		NCCL(ncclCommDestroy(comm));
		NCCL(ncclAllReduce(a, b, 3, ncclFloat32, ncclSum, child, stream));
		CHECK(shunt_stream_synchronize(stream) == 0 && shunt_memcpy(out, b, 12) == 0 && out[2] == 3.0f);
		NCCL(ncclCommDestroy(child));
		CHECK(shunt_free(a) == 0 && shunt_free(b) == 0 && shunt_stream_destroy(stream) == 0);
	}
	return 0;
}

RANKS_TEST(test_memory_of_nccl_can_be_used_and_registered, run(RANKS_PROCESSES, 2, body))
{
	int32_t host[100], *buf;
	ncclComm_t comm;
	ncclWindow_t win;
	void *handle;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	buf = host;
	NCCL(ncclMemAlloc((void **)&buf, 0));
	CHECK(!buf);
	CHECK(ncclMemAlloc(NULL, sizeof(host)) != ncclSuccess);
	NCCL(ncclMemAlloc((void **)&buf, sizeof(host)));
	NCCL(ncclCommRegister(comm, buf, sizeof(host), &handle));
	NCCL(ncclCommWindowRegister(comm, buf, sizeof(host), &win, NCCL_WIN_COLL_SYMMETRIC));
	for (int i = 0; i < 100; i++)
		host[i] = i;
	CHECK(shunt_memcpy(buf, host, sizeof(host)) == 0);
	NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(host, buf, sizeof(host)) == 0);
	for (int i = 0; i < 100; i++)
		CHECK(host[i] == i * r->nranks);
	NCCL(ncclCommWindowDeregister(comm, win));
	NCCL(ncclCommDeregister(comm, handle));
	NCCL(ncclMemFree(buf));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TESTS_BEGIN
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	own_standalone();
}
