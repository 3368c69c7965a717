/* SPDX-License-Identifier: MIT */
/* Collectives in windows: groups, graphs, plans, large messages, and calls that go wrong. */
#include "tests/e2e/symmem_job.h"
#include "shunt/shunt.h"
#include "tests/plan/exec_plans.h"
#include "tests/support/pause.h"

/* Several calls of a group share the barriers; one that is not for windows is beside them. */
RANKS_TEST(test_calls_of_a_group_share_barriers,
    symm_run(RANKS_PROCESSES, 4, body) + symm_run(RANKS_THREADS, 3, body) +
        symm_run_with(RANKS_PROCESSES, 2, body, -1, symm_set_check))
{
	struct place p;
	ncclWindow_t win;
	struct call c[KINDS];
	int32_t *sum, host[100];

	if (symm_begin(r, &p))
		return 1;
	sum = ranks_memory(r, sizeof(host));
	/* Registered inside a group, too. */
	NCCL(ncclGroupStart());
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclGroupEnd());
	for (int t = 0; t < 3; t++) {
		struct place at[KINDS];

		for (int i = 0; i < 100; i++)
			host[i] = i + r->rank;
		CHECK(shunt_memcpy(sum, host, sizeof(host)) == 0);
		for (enum kind kind = KINDS; kind-- > 0;) {
			c[kind] = (struct call){ .kind = kind,
				.root = (int)kind % p.n,
				.part = 3000 + (size_t)t,
				.at = GUARD + kind * 60000,
				.salt = (unsigned char)t };
			at[kind] = p;
		}
		char *host_bytes = malloc(ROOM);
		memset(host_bytes, 0x5a, ROOM);
		CHECK(shunt_memcpy(p.window, host_bytes, ROOM) == 0 && shunt_memcpy(p.plain, host_bytes, ROOM) == 0);
		for (enum kind kind = 0; kind < KINDS; kind++) {
			struct buffers b = symm_buffers_of(&p, &c[kind]);

			for (int q = 0; q < b.sends; q++) {
				for (size_t i = 0; i < c[kind].part; i++)
					host_bytes[i] = (char)symm_pattern(&c[kind], p.rank, q, i);
				CHECK(shunt_memcpy(b.send + (size_t)q * c[kind].part, host_bytes, c[kind].part) == 0);
			}
		}
		free(host_bytes);
		NCCL(ncclGroupStart());
		for (enum kind kind = 0; kind < KINDS; kind++) {
			NCCL(symm_enqueue(&at[kind], &c[kind]));
			if (kind == BROADCAST)
				NCCL(ncclAllReduce(sum, sum, 100, ncclInt32, ncclSum, p.comm, p.stream));
		}
		NCCL(ncclGroupEnd());
		if (symm_settle(r, &p))
			return 1;
		for (enum kind kind = 0; kind < KINDS; kind++)
			if (symm_check(r, &at[kind], &c[kind]))
				return 1;
		CHECK(shunt_memcpy(host, sum, sizeof(host)) == 0);
		for (int i = 0; i < 100; i++)
			CHECK(host[i] == p.n * i + p.n * (p.n - 1) / 2);
	}
	for (enum kind kind = 0; kind < KINDS; kind++)
		CHECK(ranks_count_calls(p.comm, symm_names[kind], "ce") == 3);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 100, .at = GUARD);
	return symm_end(r, &p);
}

/* The agreement happens inside the capture; replays are mixed with eager calls, on another stream. */
RANKS_TEST(
    test_graphs_replay_ce_mixed_with_eager_calls, symm_run(RANKS_PROCESSES, 3, body) + symm_run(RANKS_THREADS, 2, body))
{
	enum { REPLAYS = 60 };
	struct call c = { .kind = ALLGATHER, .part = 3001, .at = GUARD },
	            b = { .kind = BROADCAST, .root = 1, .part = 5003, .at = GUARD + 100000 };
	struct place p, other;
	void *graph;
	ncclWindow_t win;

	if (symm_begin(r, &p))
		return 1;
	other = p;
	CHECK(shunt_stream_create(&other.stream) == 0);
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	CHECK(shunt_capture_begin(p.stream) == 0);
	NCCL(symm_enqueue(&p, &c));
	NCCL(symm_enqueue(&p, &b));
	/* An eager call while the other stream captures: its own part must not become the graph's. */
	NCCL(symm_enqueue(&other, &c));
	CHECK(shunt_stream_synchronize(other.stream) == 0);
	CHECK(shunt_capture_end(p.stream, &graph) == 0);
	for (int t = 0; t < REPLAYS; t++) {
		struct buffers to = symm_buffers_of(&p, &c);
		char *host = malloc(ROOM);

		c.salt = (unsigned char)t;
		for (size_t i = 0; i < c.part; i++)
			host[i] = (char)symm_pattern(&c, p.rank, 0, i);
		CHECK(shunt_memcpy(to.send, host, c.part) == 0);
		to = symm_buffers_of(&p, &b);
		b.salt = (unsigned char)(t + 9);
		for (size_t i = 0; i < b.part; i++)
			host[i] = (char)symm_pattern(&b, p.rank, 0, i);
		CHECK(!to.sends || shunt_memcpy(to.send, host, b.part) == 0);
		CHECK(shunt_graph_launch(graph, p.stream) == 0);
		if (t % 7 == 0)
			NCCL(symm_enqueue(&other, &c));
		if (t % 5 == 0)
			CHECK(shunt_graph_launch(graph, p.stream) == 0);
		CHECK(shunt_stream_synchronize(other.stream) == 0);
		if (symm_settle(r, &p))
			return 1;
		memset(host, 0x5a, GUARD);
		for (int k = 0; k < 2; k++) { /* the guards are the first call's to have filled */
			const struct call *call = k ? &b : &c;
			struct buffers at = symm_buffers_of(&p, call);

			CHECK(shunt_memcpy(at.recv - GUARD, host, GUARD) == 0);
			CHECK(shunt_memcpy(at.recv + (size_t)at.receives * call->part, host, GUARD) == 0);
			if (symm_check(r, &p, call))
				return 1;
		}
		free(host);
	}
	CHECK(shunt_graph_destroy(graph) == 0);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(shunt_stream_destroy(other.stream) == 0);
	return symm_end(r, &p);
}

/* Rank 1 has its buffer elsewhere in the window than it promised. */
static int body_misplaced(struct rank *r)
{
	struct call c = {
		.kind = (enum kind)symm_shared->odd, .root = 0, .part = 1000, .at = r->rank == 1 ? 2 * GUARD : GUARD
	};
	ncclResult_t async = ncclSuccess;
	ncclWindow_t win;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
	if (symm_fill(r, &p, &c))
		return 1;
	NCCL(symm_enqueue(&p, &c));
	/* The root of a gather or scatter finds it; the others wait for the root in vain until they are aborted. */
	if (r->rank == 0 || (c.kind != GATHER && c.kind != SCATTER))
		CHECK(shunt_stream_synchronize(p.stream) == 0);
	for (double until = now() + AT_ONCE_S; r->rank == 0 && !async && now() < until; pause_us(PAUSE_POLL, 500))
		NCCL(ncclCommGetAsyncError(p.comm, &async));
	if (r->rank == 0)
		CHECK(async == ncclInvalidUsage && strstr(ncclGetLastError(p.comm), "another offset of its window"));
	symm_barrier(r, 0);
	return symm_end_broken(r, &p, false);
}

TEST(test_buffer_at_another_offset_than_promised_is_an_error)
{
	for (int kind = 0; kind < KINDS; kind++)
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_misplaced, kind, NULL), 0);
}

/* odd: 0: the kernel waits; 1: the host, for the agreement. */
static int body_abort(struct rank *r)
{
	struct call c = { .kind = ALLTOALL, .part = 1000, .at = GUARD };
	struct symm_lone_call lone;
	ncclResult_t res;
	ncclWindow_t win;
	struct place p;

	if (symm_begin(r, &p))
		return 1;
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (symm_shared->odd == 0)
		RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
	if (symm_fill(r, &p, &c))
		return 1;
	symm_barrier(r, 1); /* what rank 0 has enqueued is copied all the same when its barrier gives up */
	if (r->rank == 0) {
		symm_lone_call_begin(&lone, p.comm, symm_shared->odd ? HOST_WAITS : KERNEL_WAITS);
		res = symm_enqueue(&p, &c);
		CHECK(symm_shared->odd ? res != ncclSuccess : res == ncclSuccess);
		if (symm_lone_call_end(r, &lone, p.stream))
			return 1;
	}
	symm_barrier(r, 0);
	return symm_end_broken(r, &p, r->rank == 0);
}

TEST(test_abort_ends_a_barrier_and_an_agreement)
{
	for (int odd = 0; odd < 2; odd++) {
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 2, body_abort, odd, NULL), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_abort, odd, NULL), 0);
	}
}

static void set_default(int rank)
{
	unsetenv("SHUNT_ALGO");
}

static ncclConfig_t config_of(int policy)
{
	ncclConfig_t c = nccl_config_unset();

	c.CTAPolicy = policy;
	return c;
}

/* Without a rule: from 64 MB of a message on, or at any size for who wants no SM used, if all ranks do. */
RANKS_TEST(test_large_messages_and_zero_ctas_take_ce,
    symm_run_with(RANKS_PROCESSES, 2, body, -1, set_default) + symm_run_with(RANKS_PROCESSES, 2, body, 1, set_default))
{
	enum { LARGE = 64 << 20 };
	ncclConfig_t config = config_of(
	    symm_shared->odd < 0 || r->rank == symm_shared->odd ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_DEFAULT);
	ncclWindow_t win[2];
	ncclComm_t parent;
	struct place p;
	char *large;

	if (symm_begin(r, &p))
		return 1;
	CHECK(shunt_malloc_shared((void **)&large, 3 * (size_t)LARGE) == 0);
	NCCL(ncclCommWindowRegister(p.comm, large, 2 * (size_t)LARGE, &win[0], NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win[1], NCCL_WIN_COLL_SYMMETRIC));
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclAllGather(large + 2 * LARGE, large, LARGE - 1, ncclInt8, p.comm, p.stream));
	CHECK(ranks_count_calls(p.comm, "allgather", "ce") == 0);
	NCCL(ncclAllGather(large + 2 * LARGE, large, LARGE, ncclInt8, p.comm, p.stream));
	CHECK(ranks_count_calls(p.comm, "allgather", "ce") == 1);
	if (symm_settle(r, &p))
		return 1;
	parent = p.comm;
	NCCL(ncclCommSplit(parent, 0, r->rank, &p.comm, &config));
	NCCL(ncclCommDestroy(parent));
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win[1], NCCL_WIN_COLL_SYMMETRIC));
	for (enum kind kind = 0; kind < KINDS; kind++)
		RUN_CALL(&p, symm_shared->odd < 0 ? "ce" : STAGED, .kind = kind, .part = 700, .at = GUARD);
	CHECK(shunt_free(large) == 0);
	return symm_end(r, &p);
}

/* Pieces and shares of a broadcast: more than one of each, and a last run_call that is short. */
RANKS_TEST(test_large_broadcast_goes_in_segments, symm_run(RANKS_PROCESSES, 3, body))
{
	enum { BYTES = (40 << 20) + 77 };
	unsigned char *window, *host = malloc(BYTES);
	ncclWindow_t win;
	struct place p;
	int root = 1;

	if (symm_begin(r, &p))
		return 1;
	CHECK(shunt_malloc_shared((void **)&window, BYTES) == 0);
	NCCL(ncclCommWindowRegister(p.comm, window, BYTES, &win, NCCL_WIN_COLL_SYMMETRIC));
	for (size_t i = 0; i < BYTES; i++)
		host[i] = (unsigned char)(r->rank == root ? i * 11 + i / 4093 : 0);
	CHECK(shunt_memcpy(window, host, BYTES) == 0);
	NCCL(ncclBroadcast(window, window, BYTES, ncclInt8, root, p.comm, p.stream));
	CHECK(ranks_count_calls(p.comm, "broadcast", "ce") == 1);
	if (symm_settle(r, &p))
		return 1;
	CHECK(shunt_memcpy(host, window, BYTES) == 0);
	for (size_t i = 0; i < BYTES; i++)
		CHECK(host[i] == (unsigned char)(i * 11 + i / 4093));
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(shunt_free(window) == 0);
	free(host);
	return symm_end(r, &p);
}

static char plan_folder[] = "/tmp/shunt-windows-XXXXXX";

static void set_plan(int rank)
{
	unsetenv("SHUNT_ALGO");
	setenv("SHUNT_PLAN_DIR", plan_folder, 1);
}

/*
 * Plans whose peers reach input and output: in windows without shadows, eager, in graphs, and as soon as the agreement
 * was inside a capture.
 */
static int body_plan(struct rank *r)
{
	struct call c = { .kind = ALLGATHER, .part = 4800, .at = 256 };
	ncclWindow_t win;
	struct place p;
	void *graph;
	int before;

	if (symm_begin(r, &p))
		return 1;
	RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 256);
	before = symm_mappings();
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	if (symm_shared->odd == 1) {
		if (symm_fill(r, &p, &c))
			return 1;
		CHECK(shunt_capture_begin(p.stream) == 0);
		NCCL(symm_enqueue(&p, &c));
		CHECK(shunt_capture_end(p.stream, &graph) == 0);
		for (int t = 0; t < 5; t++) {
			c.salt = (unsigned char)t;
			if (symm_fill(r, &p, &c))
				return 1;
			symm_barrier(r,
			    2 + t); /* a peer's data may come as soon as we fill: it is all there is in this window */
			CHECK(shunt_graph_launch(graph, p.stream) == 0);
			if (symm_settle(r, &p) || symm_check(r, &p, &c))
				return 1;
			symm_barrier(r, 8 + t);
		}
		CHECK(shunt_graph_destroy(graph) == 0);
	}
	for (int t = 0; t < 10; t++) {
		RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 256 + 16 * (size_t)t, .in_place = t % 2,
		    .salt = (unsigned char)t);
		RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4801, .at = 256,
		    .salt = (unsigned char)t); /* chunks that are not full */
		RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 257, .salt = (unsigned char)t);
	}
	CHECK(symm_shared->odd < 0 || symm_mappings() == before + p.n - 1);
	NCCL(ncclCommWindowDeregister(p.comm, win));
	CHECK(symm_shared->odd < 0 || symm_mappings() == before);
	RUN_CALL(&p, "port", .kind = ALLGATHER, .part = 4800, .at = 256);
	return symm_end(r, &p);
}

TEST(test_plans_reach_windows_in_place)
{
	char path[80], *text;
	FILE *f;

	assert_non_null(mkdtemp(plan_folder));
	snprintf(path, sizeof(path), "%s/port.json", plan_folder);
	for (int inplace = 0; inplace < 2; inplace++) {
		text = plan_port(3, inplace);
		f = fopen(path, "w");
		assert_non_null(f);
		fputs(text, f);
		fclose(f);
		free(text);
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_plan, 0, set_plan), 0);
		assert_int_equal(symm_run_with(RANKS_PROCESSES, 3, body_plan, 1, set_plan), 0);
		assert_int_equal(symm_run_with(RANKS_THREADS, 3, body_plan, -1, set_plan), 0);
	}
	unlink(path);
	rmdir(plan_folder);
}

/*
 * Overlay: a handle that NCCL does not give, in a group or not. What was so registered lasts until somebody deregisters
 * NULL.
 */
static int body_no_handle(struct rank *r)
{
	void *lib = dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_LOCAL);
	ncclWindow_t win = (ncclWindow_t)1;
	struct place p;

	((__typeof__(fake_nccl_no_windows) *)dlsym(lib, "fake_nccl_no_windows"))(1);
	if (symm_begin(r, &p))
		return 1;
	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			NCCL(ncclGroupStart());
		NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
		if (grouped)
			NCCL(ncclGroupEnd());
		CHECK(!win);
		RUN_CALL(&p, "ce", .kind = ALLGATHER, .part = 700, .at = GUARD);
		NCCL(ncclCommWindowDeregister(p.comm, win));
		RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	}
	/* A registration that NCCL refuses is none. */
	((__typeof__(fake_nccl_fail_next) *)dlsym(lib, "fake_nccl_fail_next"))(
	    "CommWindowRegister", ncclInvalidArgument);
	CHECK(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidArgument);
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	NCCL(ncclGroupStart());
	((__typeof__(fake_nccl_fail_next) *)dlsym(lib, "fake_nccl_fail_next"))("GroupEnd", ncclInternalError);
	NCCL(ncclCommWindowRegister(p.comm, p.window, ROOM, &win, NCCL_WIN_COLL_SYMMETRIC));
	CHECK(ncclGroupEnd() == ncclInternalError);
	RUN_CALL(&p, STAGED, .kind = ALLGATHER, .part = 700, .at = GUARD);
	return symm_end(r, &p);
}

TEST(test_window_without_a_handle_is_used)
{
	if (!symm_overlay)
		skip();
	assert_int_equal(symm_run(RANKS_PROCESSES, 2, body_no_handle), 0);
}

TESTS_BEGIN
{
	symm_begin_all();
}
