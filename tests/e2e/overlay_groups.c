/* SPDX-License-Identifier: MIT */
/* The overlay: groups with calls of ours and of the real NCCL. */
#include "tests/e2e/overlay_job.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

static int body_groups(struct rank *r)
{
	enum { N = 1000, K = 4 };
	int32_t host[N], *buf[K], n = r->nranks, tri = n * (n + 1) / 2;
	ncclSimInfo_t info = { sizeof(info), SHUNT_NCCL_SIM_MAGIC, 22809, 0 };
	const char *log;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, n, r->id, r->rank));
	for (int k = 0; k < K; k++)
		CHECK(shunt_malloc((void **)&buf[k], sizeof(host)) == 0);
	for (int round = 0; round < 2; round++) { /* the first one does the set-up */
		for (int k = 0; k < K; k++) {
			for (int i = 0; i < N; i++)
				host[i] = (i + k) * (r->rank + 1);
			CHECK(shunt_memcpy(buf[k], host, sizeof(host)) == 0);
		}
		FAKE(fake_nccl_reset)();
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(buf[0], buf[0], N, ncclInt32, ncclSum, comm, r->stream));
		NCCL(ncclBroadcast(buf[3], buf[3], 5, ncclInt32, 0, comm, r->stream));
		NCCL(ncclGroupStart());
		NCCL(ncclSend(buf[3], 6, ncclInt32, 0, comm, r->stream));
		NCCL(ncclAllReduce(buf[1], buf[1], N, ncclInt32, ncclMax, comm, r->stream));
		NCCL(ncclGroupEnd());
		NCCL(ncclRecv(buf[3], 7, ncclInt32, 0, comm, r->stream));
		/* Same stream, same buffer: in the order of the calls. */
		NCCL(ncclAllReduce(buf[2], buf[2], N, ncclInt32, ncclSum, comm, r->stream));
		NCCL(ncclAllReduce(buf[2], buf[2], N / 2, ncclInt32, ncclSum, comm, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_memcpy(host, buf[0], sizeof(host)) == 0);
		CHECK(host[N - 1] == (N - 1) * (r->rank + 1)); /* nothing before the outermost end */
		NCCL(ncclGroupEnd());
		/*
		 * One group of the real library, whose depth is not ours; before the set-up everything is kept until
		 * the end.
		 */
		log = FAKE(fake_nccl_log)();
		CHECK(
		    !strcmp(log, "GroupStart\nBroadcast 5 2 grouped\nSend 6 2 grouped\nRecv 7 2 grouped\nGroupEnd\n"));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		for (int k = 0; k < 3; k++) {
			CHECK(shunt_memcpy(host, buf[k], sizeof(host)) == 0);
			for (int i = 0; i < N; i++)
				CHECK(host[i] == (i + k) * (k == 1 ? n : tri * (k == 2 && i < N / 2 ? n : 1)));
		}
	}
	CHECK(overlay_count_calls(comm, 1) == 8);

	/* An error of ours drops everything, of the real group too; so does one of the real library. */
	for (int k = 0; k < 3; k++) {
		FAKE(fake_nccl_reset)();
		CHECK(shunt_memcpy(host, buf[0], sizeof(host)) == 0);
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(buf[0], buf[0], N, ncclInt32, ncclSum, comm, r->stream));
		NCCL(ncclSend(buf[3], 6, ncclInt32, 0, comm, r->stream));
		if (k == 0) {
			CHECK(
			    ncclAllReduce(NULL, buf[0], N, ncclInt32, ncclSum, comm, r->stream) == ncclInvalidArgument);
		} else if (k == 1) {
			CHECK(ncclAllReduce(buf[0], buf[0], N, 55, ncclSum, comm, r->stream) == ncclInvalidArgument);
		} else {
			FAKE(fake_nccl_fail_next)("Recv", ncclSystemError);
			CHECK(ncclRecv(buf[3], 6, ncclInt32, 0, comm, r->stream) == ncclSystemError);
		}
		CHECK(ncclGroupEnd() == (k == 2 ? ncclSystemError : ncclInvalidArgument));
		CHECK(FAKE(fake_nccl_launches)() == 0);
		CHECK(overlay_count_calls(comm, 1) == 8);
	}
	/* Nor does an estimate launch anything. */
	FAKE(fake_nccl_reset)();
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(buf[0], buf[0], N, ncclInt32, ncclSum, comm, r->stream));
	NCCL(ncclGroupSimulateEnd(&info));
	CHECK(overlay_forwarded("AllReduce") == 1 && FAKE(fake_nccl_launches)() == 0 &&
	    overlay_count_calls(comm, 1) == 8);
	CHECK(ncclGroupEnd() == ncclInvalidUsage);
	REDUCE(comm, r->rank, n, 300, NATIVE);
	for (int k = 0; k < K; k++)
		CHECK(shunt_free(buf[k]) == 0);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

TEST(test_groups_mix_ours_and_forwarded_calls)
{
	for (int n = 2; n <= 3; n++)
		assert_int_equal(
		    overlay_run_as(
		        &(struct ranks){ .n = n, .raw = 1, .body = body_groups, .prepare = overlay_only_allreduce }, 0),
		    0);
}

struct stand_in {
	void *graph, *stream;
};

static void launch_stand_in(void *arg)
{
	struct stand_in *s = arg;

	shunt_graph_launch(s->graph, s->stream);
}

/*
 * Rank 0 sends a question and receives the answer in one group, and rank 1 has no group. One of the two messages is
 * NCCL's; a graph of another communicator stands in for what that would launch.
 */
static int check_queries(struct rank *r, ncclComm_t comm, ncclComm_t other, bool question_is_ours)
{
	enum { SMALL = 100, LARGE = 20000 };
	size_t ask = question_is_ours ? SMALL : LARGE, answer = question_is_ours ? LARGE : SMALL;
	int32_t host[SMALL], *ours, *theirs;
	struct stand_in s = { .stream = r->stream };
	bool sends = question_is_ours == !r->rank; /* what is ours */
	ncclResult_t ended;

	CHECK(shunt_malloc((void **)&ours, LARGE * 4) == 0 && shunt_malloc((void **)&theirs, LARGE * 4) == 0);
	for (int i = 0; i < SMALL; i++)
		host[i] = sends ? i + 5 : 0;
	CHECK(shunt_memcpy(ours, host, sizeof(host)) == 0);
	CHECK(shunt_capture_begin(r->stream) == 0);
	if (sends)
		NCCL(ncclRecv(theirs, SMALL, ncclInt32, 1 - r->rank, other, r->stream));
	else
		NCCL(ncclSend(theirs, SMALL, ncclInt32, 1 - r->rank, other, r->stream));
	CHECK(shunt_capture_end(r->stream, &s.graph) == 0);
	for (int round = 0; round < 3; round++) {
		if (r->rank == 0) {
			FAKE(fake_nccl_at_launch)(launch_stand_in, &s);
			NCCL(ncclGroupStart());
			NCCL(ncclRecv(question_is_ours ? theirs : ours, answer, ncclInt32, 1, comm, r->stream));
			NCCL(ncclSend(question_is_ours ? ours : theirs, ask, ncclInt32, 1, comm, r->stream));
			ended = ncclGroupEnd();
			CHECK(ended == ncclSuccess || ended == ncclInProgress);
			CHECK(ranks_settled(comm) == ncclSuccess);
			FAKE(fake_nccl_at_launch)(NULL, NULL);
		} else if (question_is_ours) {
			NCCL(ncclRecv(ours, ask, ncclInt32, 0, comm, r->stream));
			NCCL(ncclSend(theirs, answer, ncclInt32, 0, comm, r->stream));
			launch_stand_in(&s);
		} else {
			NCCL(ncclRecv(theirs, ask, ncclInt32, 0, comm, r->stream));
			launch_stand_in(&s);
			NCCL(ncclSend(ours, answer, ncclInt32, 0, comm, r->stream));
		}
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		NCCL(ncclCommGetAsyncError(comm, &(ncclResult_t){ ncclSuccess }));
		CHECK(shunt_memcpy(host, ours, sizeof(host)) == 0);
		for (int i = 0; i < SMALL; i++)
			CHECK(host[i] == i + 5);
	}
	CHECK(shunt_graph_destroy(s.graph) == 0);
	CHECK(shunt_free(ours) == 0 && shunt_free(theirs) == 0);
	return 0;
}

/* The same group on both ranks, captured: with what runs beside NCCL's part forked and joined. */
static int captured_mix(struct rank *r, ncclComm_t comm)
{
	enum { SMALL = 100, LARGE = 20000 };
	int32_t host[SMALL], *out, *in, *theirs;
	void *graph;

	CHECK(shunt_malloc((void **)&out, SMALL * 4) == 0 && shunt_malloc((void **)&in, SMALL * 4) == 0);
	CHECK(shunt_malloc((void **)&theirs, LARGE * 4) == 0);
	for (int i = 0; i < SMALL; i++)
		host[i] = i + r->rank;
	CHECK(shunt_memcpy(out, host, sizeof(host)) == 0);
	CHECK(shunt_capture_begin(r->stream) == 0);
	for (int k = 0; k < 2; k++) {
		NCCL(ncclGroupStart());
		NCCL(ncclSend(out, SMALL, ncclInt32, 1 - r->rank, comm, r->stream));
		NCCL(ncclRecv(in, SMALL, ncclInt32, 1 - r->rank, comm, r->stream));
		NCCL(ncclSend(theirs, LARGE, ncclInt32, 1 - r->rank, comm, r->stream));
		NCCL(ncclGroupEnd());
		NCCL(ncclAllReduce(in, out, SMALL, ncclInt32, ncclSum, comm, r->stream));
	}
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int round = 0; round < 3; round++) {
		CHECK(shunt_memcpy(out, host, sizeof(host)) == 0);
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(shunt_memcpy(host, out, sizeof(host)) == 0);
		for (int i = 0; i < SMALL; i++)
			CHECK(host[i] == 4 * i + 2);
		for (int i = 0; i < SMALL; i++)
			host[i] = i + r->rank;
	}
	CHECK(shunt_graph_destroy(graph) == 0);
	CHECK(shunt_free(out) == 0 && shunt_free(in) == 0 && shunt_free(theirs) == 0);
	return 0;
}

/*
 * What NCCL launches for a communicator that does not block comes from a thread of its own, some time after the group's
 * end.
 */
static bool asks_without_blocking;

static int body_question(struct rank *r)
{
	ncclConfig_t config = nccl_config_unset();
	ncclComm_t comm, other;
	int failed;

	config.blocking = !asks_without_blocking;
	ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config);
	CHECK(ranks_settled(comm) == ncclSuccess);
	config.blocking = 1;
	ncclCommSplit(comm, 0, r->rank, &other, &config);
	CHECK(ranks_settled(comm) == ncclSuccess);
	failed = check_queries(r, comm, other, true) || check_queries(r, comm, other, false) || captured_mix(r, comm) ||
	    check_queries(r, comm, other, true);
	NCCL(ncclCommDestroy(other));
	NCCL(ncclCommDestroy(comm));
	return failed;
}

TEST(test_messages_of_a_group_go_on_beside_nccls)
{
	for (int i = 0; i < 2; i++) {
		asks_without_blocking = i;
		assert_int_equal(overlay_run_set(2, "SHUNT_ALGO", "send:64k-inf:nccl", body_question), 0);
	}
}

/*
 * A group in which rank 1 hears, between two calls, that its set-up is done: rank 0 has come to the group's end by
 * then. What is NCCL's reaches it in the order of issue all the same, of one communicator and of two, of which one was
 * in use before.
 */
RANKS_TEST(test_set_up_in_mid_group_keeps_the_order, overlay_run_set(2, "SHUNT_ALGO", "allreduce:64k-inf:nccl", body))
{
	enum { LARGE = 20001, SMALL = 1000 };
	static const char want[] =
	    "GroupStart\nAllReduce 20001 2 grouped\nAllReduce 20002 2 grouped\nAllReduce 20003 55 grouped\n";
	ncclComm_t comm[2];
	void *buf[4];

	NCCL(ncclCommInitRank(&comm[0], r->nranks, r->id, r->rank));
	NCCL(ncclCommSplit(comm[0], 0, r->rank, &comm[1], NULL));
	for (int i = 0; i < 4; i++)
		CHECK(shunt_malloc(&buf[i], (LARGE + 4) * 4) == 0);
	for (int round = 0; round < 2; round++) { /* the second one: comm[1] is new, comm[0] is not */
		FAKE(fake_nccl_reset)();
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(buf[0], buf[0], LARGE, ncclInt32, ncclSum, comm[round], r->stream));
		if (r->rank == 1)
			pause_us(PAUSE_LATE, 300000);
		NCCL(ncclAllReduce(buf[1], buf[1], LARGE + 1, ncclInt32, ncclSum, comm[0], r->stream));
		NCCL(ncclAllReduce(buf[2], buf[2], SMALL, ncclInt32, ncclSum, comm[round], r->stream));
		/* A type that nobody knows: NCCL's to judge, and not before its turn. */
		if (round)
			ncclAllReduce(buf[3], buf[3], LARGE + 2, 55, ncclSum, comm[0], r->stream);
		CHECK(ncclGroupEnd() == (round ? ncclInvalidArgument : ncclSuccess));
		CHECK(!strncmp(
		    FAKE(fake_nccl_log)(), want, strlen(want) - (round ? 0 : strlen("AllReduce 20003 55 grouped\n"))));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
	}
	for (int i = 0; i < 4; i++)
		CHECK(shunt_free(buf[i]) == 0);
	NCCL(ncclCommDestroy(comm[1]));
	NCCL(ncclCommDestroy(comm[0]));
	return 0;
}

/*
 * A split is under way on a non-blocking communicator: it may not be destroyed, as with NCCL. Both live on, and the
 * child comes.
 */
RANKS_TEST(test_communicator_destroyed_too_early_lives_on, overlay_run(RANKS_PROCESSES, 2, body))
{
	ncclConfig_t config = nccl_config_nonblocking();
	ncclComm_t comm, child = NULL;

	ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config);
	CHECK(ranks_settled(comm) == ncclSuccess);
	REDUCE(comm, r->rank, r->nranks, 100, NATIVE);
	FAKE(fake_nccl_late)(500);
	CHECK(ncclCommSplit(comm, 0, r->rank, &child, NULL) == ncclInProgress);
	CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
	CHECK(ranks_settled(comm) == ncclSuccess);
	for (int i = 0; i < 5000 && !__atomic_load_n(&child, __ATOMIC_ACQUIRE); i++)
		pause_us(PAUSE_POLL, 1000);
	CHECK(child && ranks_settled(child) == ncclSuccess);
	FAKE(fake_nccl_late)(0);
	REDUCE(comm, r->rank, r->nranks, 100, NATIVE);
	REDUCE(child, r->rank, r->nranks, 100, NATIVE);
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/*
 * An operator that a group's end is to destroy, because a call uses it, and a communicator that another thread has
 * aborted by then: both have gone.
 */
static void *abort_in_set_up(void *comm)
{
	bool waits = until_dump_has(getpid(), "\"phase\": \"set-up\"");

	ncclCommAbort(comm);
	return waits ? NULL : comm;
}

RANKS_TEST(test_operator_goes_with_its_aborted_communicator, overlay_run(RANKS_PROCESSES, 2, body))
{
	float half = 0.5f;
	void *buf, *missed;
	pthread_t thread;
	ncclRedOp_t op;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc(&buf, 4000) == 0);
	if (r->rank) {
		atomic_store(&overlay_shared->stopped, getpid());
		raise(SIGSTOP); /* nobody answers for it in the set-up */
		NCCL(ncclCommAbort(comm));
		return 0;
	}
	CHECK(until_counted(&overlay_shared->stopped, 1, "ranks that stop") &&
	    until_process_stops(overlay_shared->stopped));
	CHECK(pthread_create(&thread, NULL, abort_in_set_up, comm) == 0);
	NCCL(ncclGroupStart());
	NCCL(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, comm));
	NCCL(ncclAllReduce(buf, buf, 1000, ncclFloat32, op, comm, r->stream));
	NCCL(ncclRedOpDestroy(op, comm));
	CHECK(ncclGroupEnd() != ncclSuccess);
	CHECK(pthread_join(thread, &missed) == 0 && !missed);
	CHECK(strstr(FAKE(fake_nccl_log)(), "CommAbort") && !strstr(FAKE(fake_nccl_log)(), "RedOpDestroy"));
	kill(atomic_load(&overlay_shared->stopped), SIGCONT);
	return 0;
}

/* One process, all ranks, communicators made in a group; then one is forwarded and one is ours in the same group. */
RANKS_TEST(test_one_thread_drives_all_ranks_in_groups, overlay_run(RANKS_PROCESSES, 1, body))
{
	enum { N = 3, COUNT = 500 };
	ncclComm_t comms[N];
	ncclUniqueId id = ranks_id(r, &overlay_shared->ids, 0);
	int32_t *buf[N], host[COUNT];
	void *stream[N];

	NCCL(ncclGroupStart());
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		NCCL(ncclCommInitRank(&comms[d], N, id, d));
	}
	NCCL(ncclGroupEnd());
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_create(&stream[d]) == 0 && shunt_malloc((void **)&buf[d], sizeof(host)) == 0);
		for (int i = 0; i < COUNT; i++)
			host[i] = i << d;
		CHECK(shunt_memcpy(buf[d], host, sizeof(host)) == 0);
	}
	NCCL(ncclGroupStart());
	for (int d = 0; d < N; d++) {
		NCCL(ncclAllReduce(buf[d], buf[d], COUNT, ncclInt32, ncclSum, comms[d], stream[d]));
		NCCL(ncclAllReduce(buf[d], buf[d], COUNT, ncclInt32, ncclMax, comms[d], stream[d]));
	}
	NCCL(ncclGroupEnd());
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_synchronize(stream[d]) == 0 && shunt_memcpy(host, buf[d], sizeof(host)) == 0);
		for (int i = 0; i < COUNT; i++)
			CHECK(host[i] == 7 * i);
		CHECK(overlay_count_calls(comms[d], 1) == 2);
	}
	/* Aborting them in one group, as PyTorch does. */
	NCCL(ncclGroupStart());
	for (int d = 0; d < N; d++)
		NCCL(ncclCommAbort(comms[d]));
	NCCL(ncclGroupEnd());
	for (int d = 0; d < N; d++)
		CHECK(overlay_count_calls(comms[d], 1) == -1 && shunt_free(buf[d]) == 0 &&
		    shunt_stream_destroy(stream[d]) == 0);
	return 0;
}

TESTS_BEGIN
{
	overlay_begin();
}
