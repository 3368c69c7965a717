/* SPDX-License-Identifier: MIT */
/*
 * A peer's process ends: those who wait for it, in a kernel or before one, are told within seconds, whatever
 * SHUNT_TIMEOUT is. Where nobody waits for it, nothing happens: programs end without destroying their communicators,
 * and not all at once.
 */
#include <sched.h>
#include "comm/core/communicator.h"
#include "tests/support/child.h"
#include "tests/support/clock.h"
#include "tests/support/grace.h"
#include "tests/support/limits.h"
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "tests/support/pause.h"
#include "tests/support/stderr.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { N = 3, VICTIM = 1 };

/* Mapped before the ranks are forked, zeroed before each run. */
static struct {
	atomic_int in_place; /* ranks in the middle of what the victim's death is to hit */
	atomic_int victim;   /* process that is about to end */
	atomic_int told;     /* ranks that were told of the death */
	atomic_int over;     /* the ranks have ended */
} *shared;

static int run(const struct ranks *ranks)
{
	int failed;

	memset(shared, 0, sizeof(*shared));
	failed = ranks_run_as(ranks);
	atomic_store(&shared->over, 1);
	return failed;
}

static void victim_ends(void)
{
	atomic_store(&shared->victim, getpid());
}

/* The victim has ended, with whatever of it would answer. */
static bool until_victim_is_gone(void)
{
	return until_counted(&shared->victim, 1, "victims on their way") && until_process_ends(shared->victim);
}

static int sum(struct rank *r, int32_t *buf, size_t count)
{
	for (size_t i = 0; i < count; i++)
		buf[i] = (int32_t)i;
	NCCL(ncclAllReduce(buf, buf, count, ncclInt32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(buf[count - 1] == (int32_t)(count - 1) * r->nranks);
	return 0;
}

static int make_comm(struct rank *r, int32_t **buf_p)
{
	CHECK(shunt_malloc((void **)buf_p, 1 << 20) == 0);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	return sum(r, *buf_p, 1000);
}

/* In time, with the right code and line; and the stream works afterwards. */
static int expect_death_reported(
    struct rank *r, int32_t *buf, const struct stderr_kept *kept, double since, const char *call)
{
	ncclResult_t async = ncclSuccess;
	char line[128];

	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(now() - since < AT_ONCE_S);
	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async == ncclRemoteError);
	snprintf(line, sizeof(line), "and rank %d waits for it in %s", r->rank, call);
	/* The thread that notices the death keeps its line until it has told all communicators. */
	while (!stderr_count(kept, line) && now() - since < AT_ONCE_S)
		pause_us(PAUSE_POLL, 1000);
	CHECK(stderr_count(kept, "rank 1 died (pid ") && stderr_count(kept, line));
	atomic_fetch_add(&shared->told, 1); /* the next one to die is none that another rank is to be told of */
	CHECK(until_counted(&shared->told, r->nranks - 1, "ranks that were told"));
	CHECK(ncclAllReduce(buf, buf, 10, ncclInt32, ncclSum, r->comm, r->stream) == ncclRemoteError);
	since = now();
	NCCL(ncclCommAbort(r->comm));
	CHECK(now() - since < AT_ONCE_S);
	return 0;
}

/* Of a rank that is about to die: no handler closes its copies of all descriptors, so that its sockets stay open. */
static void fork_child_that_stays(void)
{
	pid_t test = getppid();

	if (!_Fork()) { /* it is to outlive the rank, but not the test */
		while (!atomic_load(&shared->over) && !kill(test, 0))
			pause_us(PAUSE_POLL, 10000);
		_exit(0);
	}
}

/* how: 0 in a collective, 1 between two, 2 in a graph's, 3 in a message, 4 and leaves a child behind. */
static int how;

static int body_killed(struct rank *r)
{
	struct stderr_kept kept;
	int failed;
	const char *call = "allreduce of 5000 int32, sum (collective 2";
	void *graph;
	int32_t *buf;
	double since;

	if (make_comm(r, &buf))
		return 1;
	if (r->rank == VICTIM) {
		if (how != 1)
			until_counted(&shared->in_place, N - 1, "ranks in the collective");
		if (how == 4)
			fork_child_that_stays();
		victim_ends();
		kill(getpid(), SIGKILL);
	}
	CHECK(stderr_keep(&kept));
	if (how == 1)
		CHECK(until_victim_is_gone());
	since = now();
	if (how == 2) {
		CHECK(shunt_capture_begin(r->stream) == 0);
		NCCL(ncclAllReduce(buf, buf, 5000, ncclInt32, ncclSum, r->comm, r->stream));
		CHECK(shunt_capture_end(r->stream, &graph) == 0);
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
	} else if (how == 3) {
		NCCL(ncclRecv(buf, 100, ncclInt32, VICTIM, r->comm, r->stream));
		call = "recv of 100 int32 (message 1 from rank 1)";
	} else {
		NCCL(ncclAllReduce(buf, buf, 5000, ncclInt32, ncclSum, r->comm, r->stream));
	}
	CHECK(how == 1 || until_begun(getpid(), 2));
	atomic_fetch_add(&shared->in_place, 1);
	failed = expect_death_reported(r, buf, &kept, since, call);
	return stderr_give_back(&kept, failed);
}

TEST(test_death_is_told_to_those_who_wait)
{
	for (how = 0; how < 5; how++)
		if (run(&(struct ranks){ .n = N, .raw = 1, .body = body_killed, .dies = 1 << VICTIM }))
			fail_msg("case %d", how);
	/* Who dies has its segment mapped by the others. */
	setenv("SHUNT_SIM_LINKS", "*:none", 1);
	how = 0;
	assert_int_equal(run(&(struct ranks){ .n = N, .raw = 1, .body = body_killed, .dies = 1 << VICTIM }), 0);
	unsetenv("SHUNT_SIM_LINKS");
}

/* Makes stderr a pipe that is full and that nobody reads: whoever writes a line to it hangs. */
static int block_stderr(void)
{
	static const char zeros[4096];
	int ends[2], flags;

	if (pipe(ends) || (flags = fcntl(ends[1], F_GETFL)) < 0 || fcntl(ends[1], F_SETFL, flags | O_NONBLOCK))
		return -1;
	while (write(ends[1], zeros, sizeof(zeros)) > 0)
		;
	return fcntl(ends[1], F_SETFL, flags) || dup2(ends[1], 2) < 0 ? -1 : 0;
}

static struct ranks_ids *ids;

/* The thread that notices the death hangs in its line of log. What the program does next does not hang behind it. */
static int body_killed_and_log_hangs(struct rank *r)
{
	int before = dup(2);
	ncclResult_t async = ncclSuccess;
	ncclComm_t other;
	int32_t *buf;
	double since;

	if (make_comm(r, &buf))
		return 1;
	other = r->comm;
	r->id = ranks_id(r, ids, 0);
	if (make_comm(r, &buf))
		return 1;
	if (r->rank == VICTIM) {
		until_counted(&shared->in_place, 1, "ranks in the collective");
		kill(getpid(), SIGKILL);
	}
	NCCL(ncclAllReduce(buf, buf, 5000, ncclInt32, ncclSum, r->comm, r->stream));
	CHECK(until_begun(getpid(), 2));
	CHECK(block_stderr() == 0);
	atomic_fetch_add(&shared->in_place, 1);
	since = now();
	while (ncclCommGetAsyncError(r->comm, &async) == ncclSuccess && !async && now() - since < AT_ONCE_S)
		pause_us(PAUSE_POLL, 10000);
	since = now();
	ncclResult_t aborted = ncclCommAbort(r->comm), aborted_other = ncclCommAbort(other);

	dup2(before, 2);
	CHECK(async == ncclRemoteError && !aborted && !aborted_other && now() - since < AT_ONCE_S);
	return 0;
}

TEST(test_death_whose_line_of_log_hangs_keeps_no_abort)
{
	ids = mmap(NULL, sizeof(*ids), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(ids != MAP_FAILED);
	assert_int_equal(
	    run(&(struct ranks){ .n = 2, .raw = 1, .body = body_killed_and_log_hangs, .dies = 1 << VICTIM }), 0);
}

/* The others wait for it on the host: in the set-up, or in what a plan's first call agrees on after that. */
static int in_plan;

/* The set-up is over, and the call waits for the other rank all the same. */
static void *tell_of_agreement(void *arg)
{
	if (until_dump_has(getpid(), "\"state\": \"ready\"") && until_all_threads_wait())
		atomic_fetch_add(&shared->in_place, 1);
	return NULL;
}

static int body_killed_before_kernels(struct rank *r)
{
	pthread_t thread;
	float *buf;
	double since;

	CHECK(shunt_malloc((void **)&buf, 1 << 20) == 0);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	if (r->rank == VICTIM) {
		if (in_plan) /* the set-up goes on without its program */
			until_counted(&shared->in_place, 1, "ranks in the plan's first call");
		fork_child_that_stays();
		victim_ends();
		kill(getpid(), SIGKILL);
	}
	CHECK(in_plan || until_victim_is_gone());
	CHECK(!in_plan || pthread_create(&thread, NULL, tell_of_agreement, NULL) == 0);
	since = now();
	CHECK(ncclAllReduce(buf, buf, 20000, ncclFloat32, ncclSum, r->comm, r->stream) == ncclRemoteError);
	CHECK(!in_plan || pthread_join(thread, NULL) == 0);
	CHECK(now() - since < AT_ONCE_S);
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_death_before_kernels_is_told_though_a_child_lives)
{
	setenv("SHUNT_PLAN_DIR", getenv("DEATH_PLANS"), 1);
	for (in_plan = 0; in_plan < 2; in_plan++)
		if (run(&(struct ranks){ .n = 2, .raw = 1, .body = body_killed_before_kernels, .dies = 1 << VICTIM }))
			fail_msg("in_plan %d", in_plan);
	unsetenv("SHUNT_PLAN_DIR");
}

/* One is late for what a plan's first call agrees on. */
static int body_late(struct rank *r)
{
	float *buf;

	CHECK(shunt_malloc((void **)&buf, 1 << 20) == 0);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	pause_us(PAUSE_LATE, r->rank == VICTIM ? 1500000 : 0);
	NCCL(ncclAllReduce(buf, buf, 20000, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	NCCL(ncclCommDestroy(r->comm));
	return 0;
}

TEST(test_late_rank_is_awaited_however_long_the_timeout_is)
{
	setenv("SHUNT_PLAN_DIR", getenv("DEATH_PLANS"), 1);
	setenv("SHUNT_TIMEOUT", "4294968296ms", 1); /* 50 days: 2^32 ms, and one second */
	if (ranks_run(RANKS_PROCESSES, 2, 1, body_late))
		fail();
	setenv("SHUNT_TIMEOUT", "30m", 1);
	unsetenv("SHUNT_PLAN_DIR");
}

/* A rank is late for a second launch of a plan, whose packets the other waits for in its kernel. */
static atomic_int *given_up;

static int body_late_packets(struct rank *r)
{
	ncclResult_t async = ncclSuccess;
	struct stderr_kept kept;
	float *buf;

	CHECK(shunt_malloc((void **)&buf, 1 << 20) == 0);
	NCCL(ncclCommInitRank(&r->comm, r->nranks, r->id, r->rank));
	NCCL(ncclAllReduce(buf, buf, 256, ncclFloat32, ncclSum, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(stderr_keep(&kept));
	if (r->rank != VICTIM) {
		limits_of_kernels(1000);
		NCCL(ncclAllReduce(buf, buf, 256, ncclFloat32, ncclSum, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		NCCL(ncclCommGetAsyncError(r->comm, &async));
		dup2(kept.before, 2);
	}
	ranks_barrier(r, given_up);
	if (r->rank != VICTIM) {
		CHECK(async == ncclRemoteError);
		CHECK(stderr_count(
		    &kept, "waited 1800000 ms for a plan's packets in allreduce of 256 float32, sum (collective 2)"));
		CHECK(
		    stderr_count(&kept, "): a peer is late, dead or in another call, or the plan writes over packets"));
		CHECK(!stderr_count(&kept, "4294967295"));
	}
	NCCL(ncclCommAbort(r->comm));
	return 0;
}

TEST(test_late_rank_whose_packets_are_awaited_is_told_without_its_number)
{
	given_up = mmap(NULL, sizeof(*given_up), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(given_up, MAP_FAILED);
	setenv("SHUNT_PLAN_DIR", getenv("DEATH_PLANS"), 1);
	if (ranks_run(RANKS_PROCESSES, 2, 1, body_late_packets))
		fail();
	unsetenv("SHUNT_PLAN_DIR");
	munmap(given_up, sizeof(*given_up));
}

/* Waits for its child and ends as that did. */
static void end_like(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) != child)
		;
	if (WIFSIGNALED(status) || WEXITSTATUS(status) == 128 + SIGKILL)
		kill(getpid(), SIGKILL); /* the first process of a namespace outlives that */
	_exit(WIFSIGNALED(status) ? 128 + SIGKILL : WEXITSTATUS(status));
}

/* The victim is the second process of a PID namespace of its own, as in a container. */
static void into_namespace(int rank)
{
	if (rank != VICTIM)
		return;
	if (unshare(CLONE_NEWPID))
		_exit(1);
	for (int i = 0; i < 2; i++) {
		pid_t child = child_fork();

		if (child < 0)
			_exit(1);
		if (child)
			end_like(child);
	}
}

TEST(test_death_in_another_pid_namespace_is_told)
{
	if (IN_CHILD(unshare(CLONE_NEWPID) != 0)) {
		print_message("not allowed to make a PID namespace\n");
		skip();
	}
	how = 0;
	assert_int_equal(run(&(struct ranks){
	                     .n = N, .raw = 1, .body = body_killed, .prepare = into_namespace, .dies = 1 << VICTIM }),
	    0);
}

static int no_error(struct rank *r)
{
	ncclResult_t async = ncclInternalError;

	NCCL(ncclCommGetAsyncError(r->comm, &async));
	CHECK(async == ncclSuccess);
	return 0;
}

/* Its work is done; it ends without a word. The others idle, and then end as they should. */
RANKS_TEST(test_death_of_who_is_done_breaks_nothing, run(&(struct ranks){ .n = N, .raw = 1, .body = body }))
{
	int32_t *buf;

	if (make_comm(r, &buf))
		return 1;
	if (r->rank == VICTIM) {
		victim_ends();
		return 0;
	}
	CHECK(until_victim_is_gone());
	CHECK(grace_is_over());
	if (no_error(r))
		return 1;
	NCCL(ncclCommDestroy(r->comm));
	return 0;
}

/* The others have messages for each other, and wait for these longer than a death would be waited for. */
RANKS_TEST(test_death_leaves_the_others_messages_alone, run(&(struct ranks){ .n = N, .raw = 1, .body = body }))
{
	int32_t *buf;

	if (make_comm(r, &buf))
		return 1;
	if (r->rank == VICTIM) {
		victim_ends();
		return 0;
	}
	CHECK(until_victim_is_gone());
	if (r->rank == 0) {
		CHECK(until_counted(&shared->in_place, 1, "ranks that have waited for the message"));
		buf[0] = 4711;
		NCCL(ncclSend(buf, 1, ncclInt32, 2, r->comm, r->stream));
	} else {
		NCCL(ncclRecv(buf, 1, ncclInt32, 0, r->comm, r->stream));
		CHECK(until_begun(getpid(), 2) && grace_is_over() && grace_is_over()); /* from the kernel's begin on */
		atomic_fetch_add(&shared->in_place, 1);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(buf[0] == 4711);
	return no_error(r);
}

/* A root may have sent all it has, and be gone when the others come for it. */
static int body_root_leaves(struct rank *r)
{
	int32_t *buf;

	if (make_comm(r, &buf))
		return 1;
	buf[0] = r->rank == VICTIM ? 4711 : 0;
	CHECK(r->rank == VICTIM || until_victim_is_gone());
	NCCL(ncclBroadcast(buf, buf, 1, ncclInt32, VICTIM, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (r->rank == VICTIM)
		victim_ends();
	CHECK(buf[0] == 4711);
	return no_error(r);
}

TEST(test_death_of_a_root_that_has_sent_all_breaks_nothing)
{
	grace_ms = GRACE_LONG_MS;
	assert_int_equal(run(&(struct ranks){ .n = N, .raw = 1, .body = body_root_leaves }), 0);
	grace_ms = GRACE_SHORT_MS;
}

/*
 * A child that runs what the parent registered for its exit: its copies of the communicator's sockets and words are the
 * parent's, too.
 */
static int body_child_ends_its_copy(struct rank *r)
{
	ncclResult_t async = ncclInternalError;
	int32_t *buf, *window;
	ncclWindow_t win;

	if (make_comm(r, &buf))
		return 1;
	for (int how_child = 0; how_child < 2; how_child++) {
		CHECK(r->rank ||
		    !IN_CHILD((how_child ? ncclCommAbort(r->comm) : ncclCommDestroy(r->comm)) != ncclSuccess));
		if (sum(r, buf, 1000 + 20000 * (size_t)how_child))
			return 1;
		/* What the ranks agree on goes over the sockets. */
		CHECK(ncclMemAlloc((void **)&window, 1 << 16) == ncclSuccess);
		NCCL(ncclCommWindowRegister(r->comm, window, 1 << 16, &win, NCCL_WIN_COLL_SYMMETRIC));
		NCCL(ncclAllGather(window + 1000 * r->rank, window, 1000, ncclInt32, r->comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		NCCL(ncclCommGetAsyncError(r->comm, &async));
		CHECK(async == ncclSuccess);
		NCCL(ncclCommWindowDeregister(r->comm, win));
		NCCL(ncclMemFree(window));
	}
	NCCL(ncclCommDestroy(r->comm));
	return shunt_free(buf);
}

TEST(test_death_of_a_child_with_a_copy_of_the_communicator_is_none)
{
	setenv("SHUNT_ALGO", "allgather:0-:ce", 1);
	assert_int_equal(ranks_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_child_ends_its_copy }), 0);
	unsetenv("SHUNT_ALGO");
}

static int is_refused_in_child(const struct rank *r, int32_t *buf)
{
	ncclResult_t state = ncclInternalError;
	ncclWindow_t window = NULL;
	struct shunt_counter row;
	size_t n = 1;

	CHECK(ncclGroupEnd() == ncclInvalidUsage);
	CHECK(ncclAllReduce(buf, buf, 1, ncclInt32, ncclSum, r->comm, r->stream) == ncclInvalidArgument);
	CHECK(strstr(ncclGetLastError(NULL), "parent of this process"));
	CHECK(ncclCommFinalize(r->comm) == ncclInvalidArgument);
	CHECK(ncclCommRevoke(r->comm, 0) == ncclInvalidArgument);
	CHECK(strstr(ncclGetLastError(NULL), "ncclCommRevoke: the communicator is that of the parent"));
	CHECK(ncclCommWindowRegister(r->comm, buf, 4096, &window, 0) == ncclInvalidArgument);
	CHECK(ncclCommGetAsyncError(r->comm, &state) == ncclSuccess && state == ncclSuccess);
	CHECK(shunt_comm_list(NULL, 0, &n) == 0 && n == 0);
	CHECK(shunt_counters(r->comm, &row, 1, &n) == -ENOENT);
	CHECK(shunt_stream_synchronize(r->stream) != 0);
	CHECK(ncclCommAbort(r->comm) == ncclSuccess);
	return 0;
}

static int makes_a_communicator_in_child(const struct rank *r, int32_t *buf)
{
	ncclUniqueId id;
	ncclComm_t comm;
	void *stream;

	CHECK(shunt_stream_create(&stream) == 0);
	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclCommInitRank(&comm, 1, id, 0));
	for (int i = 0; i < 2; i++) {
		NCCL(ncclAllReduce(buf, buf + 10, 1, ncclInt32, ncclSum, comm, i ? NULL : stream));
		CHECK(shunt_stream_synchronize(i ? NULL : stream) == 0);
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* A forked child has its parent's handles, but not what they stand for: calls are refused, and wait for nobody. */
RANKS_TEST(test_forked_child_is_refused_its_parents_communicators, ranks_run(RANKS_PROCESSES, N, 1, body))
{
	int held = child_holds("nothing");
	int32_t *buf;

	if (make_comm(r, &buf))
		return 1;
	CHECK(held > 0 && child_holds("nothing") == held);
	/* The default stream has a thread now. */
	NCCL(ncclAllReduce(buf, buf, 1, ncclInt32, ncclMax, r->comm, NULL));
	CHECK(shunt_stream_synchronize(NULL) == 0);
	/* It is inside a group now, which has a call. */
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(buf, buf, 1, ncclInt32, ncclMax, r->comm, r->stream));
	CHECK(!IN_CHILD(is_refused_in_child(r, buf) || makes_a_communicator_in_child(r, buf)));
	NCCL(ncclGroupEnd());
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	buf[0] = 7;
	NCCL(ncclAllReduce(buf, buf, 1, ncclInt32, ncclMax, r->comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(buf[0] == 7);
	return no_error(r);
}

TESTS_BEGIN
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		exit(1);
	grace_ms = GRACE_SHORT_MS;
	own_standalone();
	setenv("SHUNT_TIMEOUT", "30m", 1);
}
