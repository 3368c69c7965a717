/* SPDX-License-Identifier: MIT */
/*
 * ncclCommAbort from another thread, whatever the communicator's own thread is doing: it returns at once (AT_ONCE_S),
 * the other thread comes back with an error, and all memory, mappings and descriptors are given back. SHUNT_TIMEOUT is
 * far away.
 */
#include "tests/fault/job.h"
#include "device/sim/hooks.h"
#include "tests/support/clock.h"
#include "shunt/device.h"
#include "tests/support/limits.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"
#include "tools/common/nccl_config.h"

enum { RANKS = 3, SETUP_SENDS = 4 }; /* what a rank but the first sends in a set-up: hello, and three rounds */

/* Ranks are threads of this process; each has a scenario of its own, and somebody aborts. */
struct scenario {
	struct lifecycle lifecycle[RANKS];
	ncclUniqueId id;
	ncclComm_t comm[RANKS];  /* as the ranks see them come */
	atomic_int in_place;     /* ranks that are about to do what hangs */
	atomic_int out;          /* ranks that came back from it */
	ncclComm_t other[RANKS]; /* aborted before comm */
	void *graph[RANKS];
};

/* What the hang is made of, which is to be complete when the aborts begin. */
enum hang_in { HANG_IN_KERNELS, HANG_IN_SECOND_STREAM, HANG_ON_HOST, HANG_IN_TEST };

struct rank_thread {
	struct scenario *scenario;
	int rank;
	int (*hang)(struct scenario *s, int rank); /* 0: as it should */
	int failed;
};

static int sum(struct scenario *s, int r)
{
	struct lifecycle *l = &s->lifecycle[r];

	return lifecycle_sum(l, s->comm[r], r, RANKS, 200, l->stream[0]);
}

static int init(struct scenario *s, int r)
{
	shunt_device_set(r);
	return ncclCommInitRank(&s->comm[r], RANKS, s->id, r) != ncclSuccess;
}

/* Kernels of ranks 0 and 1 spin: rank 2 does not come. The threads wait for their streams. */
static int hang_in_kernels(struct scenario *s, int r)
{
	struct lifecycle *l = &s->lifecycle[r];
	ncclResult_t res = ncclSuccess;

	if (init(s, r) || sum(s, r))
		return 1;
	if (r < 2)
		res = ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, s->comm[r], l->stream[0]);
	atomic_fetch_add(&s->in_place, 1);
	return res || shunt_stream_synchronize(l->stream[0]);
}

/*
 * The same beside another communicator, which is aborted first: its memory cannot be taken away while these kernels
 * run.
 */
static int hang_with_other_comm_of(struct scenario *s, int r, int n)
{
	struct lifecycle *l = &s->lifecycle[r];
	ncclResult_t res = ncclSuccess;
	int rank = r % n;

	if (init(s, r) || ncclCommSplit(s->comm[r], r / n, r, &s->other[r], NULL) ||
	    lifecycle_sum(l, s->other[r], rank, n, 200, l->stream[1]) || sum(s, r))
		return 1;
	if (r < 2)
		res = ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, s->comm[r], l->stream[0]);
	atomic_fetch_add(&s->in_place, 1);
	return res || shunt_stream_synchronize(l->stream[0]);
}

static int hang_with_other_comm(struct scenario *s, int r)
{
	return hang_with_other_comm_of(s, r, RANKS);
}

static int hang_with_one_rank_comm(struct scenario *s, int r)
{
	return hang_with_other_comm_of(s, r, 1);
}

/* A split: rank 2 does not call it. */
static int hang_in_split(struct scenario *s, int r)
{
	ncclComm_t child = NULL;
	ncclResult_t res = ncclInProgress;

	if (init(s, r))
		return 1;
	atomic_fetch_add(&s->in_place, 1);
	if (r < 2)
		res = ncclCommSplit(s->comm[r], 0, r, &child, NULL);
	return res == ncclSuccess || child;
}

/* Init itself: rank 2 never joins. */
static int hang_in_init(struct scenario *s, int r)
{
	shunt_device_set(r);
	if (r == 2) {
		atomic_fetch_add(&s->in_place, 1);
		return 0;
	}
	atomic_fetch_add(&s->in_place, 1);
	return ncclCommInitRank(&s->comm[r], RANKS, s->id, r) == ncclSuccess;
}

/* In ncclGroupEnd: the group's init waits for rank 2. */
static int hang_in_group(struct scenario *s, int r)
{
	shunt_device_set(r);
	if (r == 2) {
		atomic_fetch_add(&s->in_place, 1);
		return 0;
	}
	if (ncclGroupStart() || ncclCommInitRank(&s->comm[r], RANKS, s->id, r))
		return 1;
	atomic_fetch_add(&s->in_place, 1);
	return ncclGroupEnd() == ncclSuccess;
}

/* A group with calls of the communicator is open when it is aborted; its end reports an error and launches nothing. */
static int hang_before_group_end(struct scenario *s, int r)
{
	struct lifecycle *l = &s->lifecycle[r];
	ncclResult_t res;

	if (init(s, r) || sum(s, r) || ncclGroupStart())
		return 1;
	res = ncclAllReduce(l->dev, l->dev, 100, ncclInt32, ncclSum, s->comm[r], l->stream[0]);
	atomic_fetch_add(&s->in_place, 1);
	while (s->in_place < 2 * RANKS) /* the aborts are over */
		pause_us(PAUSE_POLL, 100);
	return ncclGroupEnd() == ncclSuccess || res != ncclSuccess || shunt_stream_synchronize(l->stream[0]);
}

/* A captured sum is replayed on another stream than the last call's, without rank 2, and the graph stays alive. */
static int hang_in_graph(struct scenario *s, int r)
{
	struct lifecycle *l = &s->lifecycle[r];
	ncclResult_t res;

	if (init(s, r) || sum(s, r))
		return 1;
	if (shunt_capture_begin(l->stream[0]))
		return 1;
	res = ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, s->comm[r], l->stream[0]);
	if (shunt_capture_end(l->stream[0], &s->graph[r]) || res || sum(s, r))
		return 1;
	if (r < 2 && shunt_graph_launch(s->graph[r], l->stream[1]))
		return 1;
	atomic_fetch_add(&s->in_place, 1);
	return shunt_stream_synchronize(l->stream[1]);
}

/* A background task of a non-blocking communicator waits for rank 2. */
static int hang_nonblocking(struct scenario *s, int r)
{
	ncclConfig_t config = nccl_config_nonblocking();
	ncclResult_t res = ncclInProgress;

	shunt_device_set(r);
	if (r < 2)
		res = ncclCommInitRankConfig(&s->comm[r], RANKS, s->id, r, &config);
	atomic_fetch_add(&s->in_place, 1);
	return res != ncclInProgress;
}

/*
 * The same, which is to begin when the group ends, after the abort. Rank 2 uses the id, whose root would wait for
 * somebody.
 */
static int hang_before_nonblocking(struct scenario *s, int r)
{
	ncclComm_t alone;
	ncclConfig_t config = nccl_config_nonblocking();

	shunt_device_set(r);
	if (r < 2 && (ncclGroupStart() || ncclCommInitRankConfig(&s->comm[r], RANKS, s->id, r, &config)))
		return 1;
	atomic_fetch_add(&s->in_place, 1);
	while (s->in_place < 2 * RANKS) /* the aborts are over */
		pause_us(PAUSE_POLL, 100);
	if (r < 2)
		return ncclGroupEnd() == ncclSuccess;
	return ncclCommInitRank(&alone, 1, s->id, 0) || ncclCommDestroy(alone);
}

static void *rank_thread_main(void *arg)
{
	struct rank_thread *a = arg;

	a->failed = a->hang(a->scenario, a->rank);
	atomic_fetch_add(&a->scenario->out, 1);
	return NULL;
}

static void wait_for_hang(const struct scenario *s, const char *what, enum hang_in in)
{
	if (!until_counted(&s->in_place, RANKS, "ranks that are about to hang"))
		fail_msg("%s: %d ranks are in place, %d came back", what, s->in_place, s->out);
	if (in == HANG_ON_HOST)
		assert_true(until_all_threads_wait());
	for (int r = 0; r < 2 && in <= HANG_IN_SECOND_STREAM; r++)
		assert_true(shunt_sim_wait_stuck(r, s->lifecycle[r].stream[in == HANG_IN_SECOND_STREAM]));
}

/* All but rank 2 hang at the end of it. */
static void run_scenario(const char *what, int (*hang)(struct scenario *s, int rank), enum hang_in in)
{
	static struct scenario scenario;
	struct scenario *s = &scenario;
	struct rank_thread rank_thread[RANKS];
	pthread_t thread[RANKS];
	double start, worst = 0;

	s->in_place = s->out = 0;
	memset(s->comm, 0, sizeof(s->comm));
	memset(s->other, 0, sizeof(s->other));
	memset(s->graph, 0, sizeof(s->graph));
	for (int r = 0; r < RANKS; r++)
		if (!s->lifecycle[r].dev)
			assert_int_equal(lifecycle_prepare(&s->lifecycle[r], r, RANKS), 0);
	assert_int_equal(ncclGetUniqueId(&s->id), 0);
	for (int r = 0; r < RANKS; r++) {
		rank_thread[r] = (struct rank_thread){ s, r, hang, 0 };
		assert_int_equal(pthread_create(&thread[r], NULL, rank_thread_main, &rank_thread[r]), 0);
	}
	wait_for_hang(s, what, in);
	for (int i = 0; i < 2 * RANKS; i++) {
		int r = i % RANKS;
		/* An init that has not returned yet has written the handle. */
		ncclComm_t comm = __atomic_load_n(i < RANKS ? &s->other[r] : &s->comm[r], __ATOMIC_ACQUIRE);

		if (!comm)
			continue;
		start = now();
		assert_int_equal(ncclCommAbort(comm), ncclSuccess);
		worst = now() - start > worst ? now() - start : worst;
	}
	atomic_fetch_add(&s->in_place, RANKS);
	start = now();
	for (int r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
	for (int r = 0; r < RANKS; r++) {
		if (rank_thread[r].failed)
			fail_msg("%s: rank %d did not come back as it should", what, r);
		if (s->graph[r])
			assert_int_equal(shunt_graph_destroy(s->graph[r]), 0);
	}
	if (worst > AT_ONCE_S || now() - start > AT_ONCE_S)
		fail_msg("%s: abort took %.2f s, the hanging calls %.2f s more", what, worst, now() - start);
}

/*
 * Roots of ids whose ranks never came stay until the limit of the set-up is over: short, where no rank is to come
 * through it.
 */
enum { IN_VAIN_MS = 600 };

static const struct {
	const char *what;
	int (*hang)(struct scenario *s, int rank);
	enum hang_in in;
	int setup_ms;
} scenarios[] = {
	{ "kernels", hang_in_kernels, HANG_IN_KERNELS, LIMIT_LONG_MS },
	{ "kernels beside another communicator", hang_with_other_comm, HANG_IN_KERNELS, LIMIT_LONG_MS },
	{ "kernels beside a communicator of one rank", hang_with_one_rank_comm, HANG_IN_KERNELS, LIMIT_LONG_MS },
	{ "split", hang_in_split, HANG_ON_HOST, LIMIT_LONG_MS },
	{ "init", hang_in_init, HANG_ON_HOST, IN_VAIN_MS },
	{ "group of an init", hang_in_group, HANG_ON_HOST, IN_VAIN_MS },
	{ "open group", hang_before_group_end, HANG_IN_TEST, LIMIT_LONG_MS },
	{ "graph", hang_in_graph, HANG_IN_SECOND_STREAM, LIMIT_LONG_MS },
	{ "non-blocking init", hang_nonblocking, HANG_ON_HOST, IN_VAIN_MS },
	{ "open group of a non-blocking init", hang_before_nonblocking, HANG_IN_TEST, IN_VAIN_MS },
};

/* One rank is dead, the others' kernels wait for it. */
static enum lifecycle_result abort_after_a_death(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	double start;

	if (lifecycle_begin(l) || !job_all_ready(l, c, at))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim && until_counted(&at->waiting, c->n - 1, "kernels wait"))
		kill(getpid(), SIGKILL);
	if (ncclAllReduce(l->dev, l->dev, 5000, ncclInt32, ncclSum, l->comm, l->stream[0]) ||
	    !shunt_sim_wait_stuck(l->rank, l->stream[0]))
		return LIFECYCLE_WRONG;
	atomic_fetch_add(&at->waiting, 1);
	if (!until_process_ends(at->victim))
		return LIFECYCLE_WRONG;
	start = now();
	if (ncclCommAbort(l->comm) || now() - start > AT_ONCE_S || shunt_stream_synchronize(l->stream[0])) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: abort took %.2f s", l->rank, now() - start);
		return LIFECYCLE_WRONG;
	}
	return LIFECYCLE_FAILED;
}

TEST_CALL(test_abort_with_a_dead_peer_returns_and_a_new_communicator_works,
    job_run_each(&(struct job){ .n = RANKS, .action = FAULT_KILL, .body = abort_after_a_death }))

struct first_use {
	struct lifecycle *lifecycle;
	int err;
};

static void *first_use_main(void *arg)
{
	struct first_use *u = arg;
	struct lifecycle *l = u->lifecycle;

	u->err = lifecycle_sum(l, l->comm, l->rank, l->nranks, 100, l->stream[0]);
	return NULL;
}

/* One rank is stopped before the first use, the others hang in the set-up. */
static enum lifecycle_result abort_in_setup(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	struct first_use use = { l, 0 };
	pthread_t thread;
	double start;
	bool waits;
	int err;

	if (ncclCommInitRank(&l->comm, l->nranks, l->id, l->rank) || !job_all_ready(l, c, at))
		return LIFECYCLE_WRONG;
	if (l->rank == c->victim) {
		kill(getpid(), SIGSTOP);
		return ncclCommAbort(l->comm) ? LIFECYCLE_WRONG : LIFECYCLE_FAILED;
	}
	if (!until_process_stops(at->victim) || pthread_create(&thread, NULL, first_use_main, &use))
		return LIFECYCLE_WRONG;
	waits = until_dump_has(getpid(), "\"phase\": \"set-up\"");
	atomic_fetch_add(&at->waiting, 1); /* the first abort ends the others' wait, too */
	waits &= until_counted(&at->waiting, c->n - 1, "set-ups wait");
	start = now();
	err = ncclCommAbort(l->comm);
	pthread_join(thread, NULL);
	if (!waits || err || use.err <= 0 || now() - start > AT_ONCE_S) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: abort gave %d, the call %d, after %.2f s", l->rank, err,
		    use.err, now() - start);
		return LIFECYCLE_WRONG;
	}
	return LIFECYCLE_FAILED;
}

TEST_CALL(test_abort_in_the_setup_ends_the_first_call,
    job_run_each(&(struct job){ .n = RANKS, .action = FAULT_STOP, .stopped_ms = 60000, .body = abort_in_setup }))

/*
 * One rank is stopped in the middle of a second communicator's set-up, when the others have memory for it already, and
 * the first one's kernels wait for that rank. Rank 0 makes the call, the others' service answers it.
 */
static enum lifecycle_result abort_in_setup_with_kernels(
    struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	bool dies = l->rank == c->victim, hangs;
	struct first_use use = { l, 0 };
	ncclComm_t other = NULL;
	pthread_t thread;
	double start;
	int err;

	shunt_sim_set_free_blocks(1);
	if (ncclCommInitRank(&other, l->nranks, l->id, l->rank) ||
	    lifecycle_sum(l, other, l->rank, l->nranks, 100, l->stream[1]) ||
	    ncclCommSplit(other, 0, l->rank, &l->comm, NULL))
		return LIFECYCLE_WRONG;
	if (dies)
		fault_arm(FAULT_SEND, FAULT_STOP, SETUP_SENDS);
	else if (ncclAllReduce(l->dev + 6000, l->dev + 6000, 5000, ncclInt32, ncclSum, other, l->stream[1]))
		return LIFECYCLE_WRONG;
	if (!job_all_ready(l, c, at) || (!l->rank && pthread_create(&thread, NULL, first_use_main, &use)))
		return LIFECYCLE_WRONG;
	hangs = dies ? until_counted(&at->out, c->n - 1, "ranks are out") : until_process_stops(at->victim);
	start = now();
	err = !hangs || ncclCommAbort(l->comm) || ncclCommAbort(other);
	if (!l->rank)
		pthread_join(thread, NULL);
	atomic_fetch_add(&at->out, 1);
	if (!dies && (err || now() - start > AT_ONCE_S)) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: the aborts gave %d after %.2f s", l->rank, err,
		    now() - start);
		return LIFECYCLE_WRONG;
	}
	return LIFECYCLE_FAILED;
}

TEST(test_abort_in_a_setup_with_kernels_that_hang_returns)
{
	struct job c = { .n = RANKS,
		.victim = RANKS - 1,
		.action = FAULT_STOP,
		.at = -1,
		.stopped_ms = 60000,
		.body = abort_in_setup_with_kernels };

	job_assert(job_run(&c));
	assert_true(c.stopped);
}

static int child_of(struct lifecycle *l, ncclComm_t parent, ncclResult_t (*end)(ncclComm_t comm))
{
	ncclComm_t child = NULL;

	return ncclCommSplit(parent, 0, l->rank, &child, NULL) ||
	    lifecycle_sum(l, child, l->rank, l->nranks, 300, l->stream[0]) || end(child);
}

/* Aborted beside one that lives on: what they had goes with the next that is destroyed. */
static enum lifecycle_result abort_and_destroy(struct lifecycle *l, const struct job *c, struct job_progress *at)
{
	long before;

	if (lifecycle_begin(l) || child_of(l, l->comm, ncclCommDestroy))
		return LIFECYCLE_WRONG;
	before = fault_balance().maps;
	for (int i = 0; i < 3; i++)
		if (child_of(l, l->comm, ncclCommAbort))
			return LIFECYCLE_WRONG;
	if (child_of(l, l->comm, ncclCommDestroy) || fault_balance().maps != before) {
		snprintf(l->wrong, sizeof(l->wrong), "rank %d: %ld mappings are left", l->rank,
		    fault_balance().maps - before);
		return LIFECYCLE_WRONG;
	}
	return ncclCommDestroy(l->comm) ? LIFECYCLE_WRONG : LIFECYCLE_OK;
}

TEST_CALL(test_abort_leaves_memory_to_the_next_that_is_destroyed,
    job_assert(job_run(&(struct job){ .n = RANKS, .victim = -1, .body = abort_and_destroy })))

/* Last: ThreadSanitizer forbids processes with threads of their own after a fork beside other threads. */
TEST(test_abort_from_another_thread_ends_all_waits_and_frees_all)
{
	enum { N = sizeof(scenarios) / sizeof(scenarios[0]) };
	struct fault_balance mark = { 0 };

	shunt_sim_set_free_blocks(1);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++) {
			limits_set(LIMIT_LONG_MS, scenarios[i].setup_ms);
			run_scenario(scenarios[i].what, scenarios[i].hang, scenarios[i].in);
		}
		/* Roots of ids whose ranks never came stay until SHUNT_TIMEOUT, or what follows a failure is over. */
		if (!round)
			pause_us(PAUSE_GRACE, 2000000);
		else if (!fault_back_to(&mark, AT_ONCE_S * 500))
			fail_msg("round %d left %s", round, fault_left_since(&mark));
		mark = fault_balance();
	}
}

TESTS_BEGIN
{
	lifecycle_environment("90s", "60s");
}
