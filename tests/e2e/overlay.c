/* SPDX-License-Identifier: MIT */
/*
 * A program against NCCL's ABI with a real NCCL present: Shunt over tests/fake_nccl, on the sim device. The fake gives
 * the handles and writes down what is forwarded to it; what Shunt takes is computed by its kernels.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "tests/e2e/ranks.h"
#include "shunt/shunt.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

/* ------------------------------------------------------------------------------------------------- what ranks share */

#define PATIENCE "90s" /* longer than a loaded machine takes for anything here */
#define SOON AT_ONCE_S /* how long an abort may take */

/* Zeroed before each run; mapped before the ranks are forked. */
static struct {
	char fake[FAKE_NCCL_SHARED_BYTES];
	struct ranks_ids ids;
	atomic_int barrier[16];
	atomic_int warnings[16]; /* lines about forward-only communicators */
	int odd;                 /* the rank that differs */
	atomic_int stopped;      /* process of the rank that stops itself */
	atomic_int victim;       /* process of the rank that is to die */
} *overlay_shared;

static int overlay_run(enum ranks_how how, int n, rank_fn body)
{
	memset(overlay_shared, 0, sizeof(*overlay_shared));
	return ranks_run(how, n, 1, body);
}

static int overlay_run_as(const struct ranks *ranks, int odd)
{
	memset(overlay_shared, 0, sizeof(*overlay_shared));
	overlay_shared->odd = odd;
	return ranks_run_as(ranks);
}

/* All ranks; each place once per run. */
static void overlay_barrier(struct rank *r, int place)
{
	ranks_barrier(r, &overlay_shared->barrier[place]);
}

/* ------------------------------------------------------------------------------------------------------- the fake */

/* Opened by us where Shunt did not: a rank without Shunt. */
static void *overlay_fake_lib(void)
{
	return dlopen(getenv("SHUNT_NCCL_LIB"), RTLD_NOW | RTLD_LOCAL);
}

#define FAKE(symbol) ((__typeof__(symbol) *)dlsym(overlay_fake_lib(), #symbol))

/* Calls of this name that reached the fake in this process. */
static int overlay_forwarded(const char *name)
{
	const char *at = FAKE(fake_nccl_log)();
	char want[64];
	int n = 0;

	snprintf(want, sizeof(want), "%s ", name);
	for (; at && *at; at = strchr(at, '\n'), at += at != NULL)
		n += !strncmp(at, want, strlen(want));
	return n;
}

/*
 * ------------------------------------------------------------------------------------------------------ what is done
 */

/* All-reduces of the communicator that our kernels took, or that went to NCCL. */
static long overlay_count_calls(ncclComm_t comm, int native)
{
	return ranks_count_calls(comm, "allreduce", native ? RANKS_NATIVE : "nccl");
}

enum how { NATIVE, FORWARDED };

/*
 * One all-reduce of int32, on a communicator in which we are `rank` of n; checks where it went and, if it was ours, the
 * values.
 */
static int overlay_reduce(struct rank *r, ncclComm_t comm, int rank, int n, size_t count, enum how how)
{
	long native = overlay_count_calls(comm, 1);
	int to_nccl = overlay_forwarded("AllReduce");
	int32_t *host = malloc(count * 4), *dev;

	CHECK(shunt_malloc((void **)&dev, count * 4) == 0);
	for (size_t i = 0; i < count; i++)
		host[i] = (int32_t)i * (rank + 1);
	CHECK(shunt_memcpy(dev, host, count * 4) == 0);
	NCCL(ncclAllReduce(dev, dev, count, ncclInt32, ncclSum, comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_memcpy(host, dev, count * 4) == 0);
	for (size_t i = 0; i < count; i++) {
		int32_t want = (int32_t)i * (how == NATIVE ? n * (n + 1) / 2 : rank + 1);

		if (host[i] != want)
			fprintf(stderr, "rank %d of %d: element %zu is %d, not %d\n", rank, n, i, host[i], want);
		CHECK(host[i] == want);
	}
	CHECK(overlay_count_calls(comm, 1) == native + (how == NATIVE));
	CHECK(how == NATIVE || overlay_forwarded("AllReduce") > to_nccl); /* > : other threads may count here */
	CHECK(shunt_free(dev) == 0);
	free(host);
	return 0;
}

#define REDUCE(comm, place, n, count, how) \
	do { \
		if (overlay_reduce(r, comm, place, n, count, how)) { \
			fprintf(stderr, "rank %d: from line %d\n", r->rank, __LINE__); \
			return 1; \
		} \
	} while (0)

static ncclConfig_t overlay_config(int blocking, int max_ctas)
{
	ncclConfig_t c = ranks_config();

	c.blocking = blocking;
	c.maxCTAs = max_ctas;
	return c;
}

/*
 * ----------------------------------------------------------------------------------------------------- ways to begin
 */

static int body_inits(struct rank *r)
{
	ncclConfig_t config = overlay_config(1, 1), lazy = overlay_config(0, NCCL_CONFIG_UNDEF_INT);
	ncclComm_t comm[4];
	ncclUniqueId id = ranks_id(r, &overlay_shared->ids, 2);
	ncclResult_t res;

	NCCL(ncclCommInitRank(&comm[0], r->nranks, ranks_id(r, &overlay_shared->ids, 0), r->rank));
	NCCL(ncclCommInitRankConfig(&comm[1], r->nranks, ranks_id(r, &overlay_shared->ids, 1), r->rank, &config));
	NCCL(ncclCommInitRankScalable(&comm[2], r->nranks, r->rank, 1, &id, NULL));
	res = ncclCommInitRankConfig(&comm[3], r->nranks, ranks_id(r, &overlay_shared->ids, 3), r->rank, &lazy);
	CHECK(res == ncclInProgress);
	CHECK(ranks_settled(comm[3]) == ncclSuccess);
	for (int k = 0; k < 4; k++) {
		REDUCE(comm[k], r->rank, r->nranks, 100, NATIVE);
		REDUCE(comm[k], r->rank, r->nranks, 20000, NATIVE);
		REDUCE(comm[k], r->rank, r->nranks, 100000, NATIVE);
	}
	CHECK(overlay_forwarded("AllReduce") == 0);
	for (int k = 0; k < 4; k++)
		NCCL(ncclCommDestroy(comm[k]));
	return 0;
}

static void test_every_init_is_accelerated(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 3, body_inits), 0);
	assert_int_equal(overlay_run(RANKS_THREADS, 3, body_inits), 0);
}

/* One thread, all devices. */
static int body_init_all(struct rank *r)
{
	enum { N = 4, COUNT = 1000 };
	ncclComm_t comms[2][N];
	void *stream[N], *buf[2][N];
	int32_t host[COUNT];

	/* Two communicators, so that their first use is in one group. */
	for (int c = 0; c < 2; c++)
		NCCL(ncclCommInitAll(comms[c], N, NULL));
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_create(&stream[d]) == 0);
		for (int c = 0; c < 2; c++) {
			for (int i = 0; i < COUNT; i++)
				host[i] = i * (d + 1) + c;
			CHECK(shunt_malloc(&buf[c][d], sizeof(host)) == 0 &&
			    shunt_memcpy(buf[c][d], host, sizeof(host)) == 0);
		}
	}
	for (int t = 0; t < 3; t++) {
		NCCL(ncclGroupStart());
		for (int c = 0; c < 2; c++)
			for (int d = 0; d < N; d++)
				NCCL(ncclAllReduce(buf[c][d], buf[c][d], COUNT, ncclInt32, t ? ncclMax : ncclSum,
				    comms[c][d], stream[d]));
		NCCL(ncclGroupEnd());
	}
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		CHECK(shunt_stream_synchronize(stream[d]) == 0);
		for (int c = 0; c < 2; c++) {
			CHECK(shunt_memcpy(host, buf[c][d], sizeof(host)) == 0);
			for (int i = 0; i < COUNT; i++)
				CHECK(host[i] == i * 10 + 4 * c);
			CHECK(overlay_count_calls(comms[c][d], 1) == 3);
		}
	}
	for (int d = 0; d < N; d++) {
		shunt_device_set(d);
		for (int c = 0; c < 2; c++) {
			NCCL(ncclCommDestroy(comms[c][d]));
			CHECK(shunt_free(buf[c][d]) == 0);
		}
		CHECK(shunt_stream_destroy(stream[d]) == 0);
	}
	return 0;
}

static void test_init_all_first_used_in_a_group_of_several_communicators(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 1, body_init_all), 0);
}

static int body_children(struct rank *r)
{
	int rank = r->rank, n = r->nranks, v, excluded[1] = { n - 1 };
	ncclComm_t parent, half, reversed, none = (ncclComm_t)1, grandchild, grouped[2], shrunk;

	NCCL(ncclCommInitRank(&parent, n, r->id, rank));
	NCCL(ncclCommSplit(parent, rank % 2, rank, &half, NULL));
	NCCL(ncclCommSplit(parent, 7, -rank, &reversed, NULL));
	NCCL(ncclCommSplit(parent, rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL));
	CHECK(rank == 0 ? !none : none != NULL);
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(parent, 1, rank, &grouped[0], NULL));
	NCCL(ncclCommSplit(parent, 1, rank, &grouped[1], NULL));
	CHECK(!grouped[0] && !grouped[1]);
	NCCL(ncclGroupEnd());
	REDUCE(parent, rank, n, 100, NATIVE);
	REDUCE(half, rank / 2, rank % 2 ? n / 2 : (n + 1) / 2, 1000, NATIVE);
	NCCL(ncclCommUserRank(reversed, &v));
	CHECK(v == n - 1 - rank);
	REDUCE(reversed, v, n, 1000, NATIVE);
	if (none)
		REDUCE(none, rank - 1, n - 1, 1000, NATIVE);
	REDUCE(grouped[1], rank, n, 500, NATIVE);
	REDUCE(grouped[0], rank, n, 500, NATIVE);

	NCCL(ncclCommSplit(half, 0, 0, &grandchild, NULL));
	NCCL(ncclCommDestroy(half));
	REDUCE(grandchild, rank / 2, rank % 2 ? n / 2 : (n + 1) / 2, 1000, NATIVE);
	if (rank != n - 1) {
		NCCL(ncclCommShrink(parent, excluded, 1, &shrunk, NULL, NCCL_SHRINK_DEFAULT));
		REDUCE(shrunk, rank, n - 1, 700, NATIVE);
		NCCL(ncclCommDestroy(shrunk));
		NCCL(ncclCommShrink(parent, excluded, 1, &shrunk, NULL, NCCL_SHRINK_ABORT));
		REDUCE(shrunk, rank, n - 1, 700, NATIVE);
		NCCL(ncclCommDestroy(shrunk));
	}
	CHECK(overlay_forwarded("AllReduce") == 0);
	overlay_barrier(r, 0);
	NCCL(ncclCommDestroy(grandchild));
	NCCL(ncclCommDestroy(reversed));
	NCCL(ncclCommDestroy(grouped[0]));
	NCCL(ncclCommDestroy(grouped[1]));
	NCCL(ncclCommDestroy(none));
	NCCL(ncclCommDestroy(parent));
	return 0;
}

static void test_children_of_all_kinds_are_accelerated(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 4, body_children), 0);
	assert_int_equal(overlay_run(RANKS_THREADS, 4, body_children), 0);
}

/* The child's handle is written by a thread of NCCL's, after the call has returned. */
static int body_late_children(struct rank *r)
{
	ncclConfig_t lazy = overlay_config(0, NCCL_CONFIG_UNDEF_INT);
	ncclComm_t parent, child = NULL, second = NULL;
	ncclResult_t res = ncclCommInitRankConfig(&parent, r->nranks, r->id, r->rank, &lazy);

	CHECK(res == ncclInProgress && ranks_settled(parent) == ncclSuccess);
	FAKE(fake_nccl_late)(30);
	CHECK(ncclCommSplit(parent, 0, r->rank, &child, NULL) == ncclInProgress);
	CHECK(ranks_settled(parent) == ncclSuccess);
	CHECK(child);
	REDUCE(child, r->rank, r->nranks, 1000, NATIVE);
	/* Not asking the parent: the handle alone shows that it is there. */
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(parent, 0, r->rank, &second, NULL));
	CHECK(ncclGroupEnd() == ncclInProgress);
	while (!__atomic_load_n(&second, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 1000);
	REDUCE(second, r->rank, r->nranks, 1000, NATIVE);
	CHECK(ranks_settled(parent) == ncclSuccess);
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(parent));
	return 0;
}

static void test_child_whose_handle_comes_late_is_accelerated(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 3, body_late_children), 0);
	assert_int_equal(overlay_run(RANKS_THREADS, 2, body_late_children), 0);
}

/* The program moves the handle and frees its place as soon as it is there, and calls nothing of NCCL's in between. */
static int body_moved_children(struct rank *r)
{
	ncclConfig_t lazy = overlay_config(0, NCCL_CONFIG_UNDEF_INT);
	ncclComm_t parent, moved[4];
	ncclResult_t res = ncclCommInitRankConfig(&parent, r->nranks, r->id, r->rank, &lazy);

	CHECK(res == ncclInProgress && ranks_settled(parent) == ncclSuccess);
	for (int k = 0; k < 4; k++) {
		ncclComm_t *place = malloc(sizeof(*place));

		FAKE(fake_nccl_late)(5 * k * (r->rank + 1));
		if (k % 2)
			NCCL(ncclGroupStart());
		CHECK(ncclCommSplit(parent, 0, k < 2 ? r->rank : -r->rank, place, NULL) ==
		    (k % 2 ? ncclSuccess : ncclInProgress));
		CHECK(!(k % 2) || ncclGroupEnd() == ncclInProgress);
		while (!(moved[k] = __atomic_load_n(place, __ATOMIC_ACQUIRE)))
			pause_us(PAUSE_POLL, 100);
		free(place);
		REDUCE(moved[k], k < 2 ? r->rank : r->nranks - 1 - r->rank, r->nranks, 1000, NATIVE);
		CHECK(ranks_settled(parent) == ncclSuccess);
	}
	for (int k = 0; k < 4; k++)
		NCCL(ncclCommDestroy(moved[k]));
	NCCL(ncclCommDestroy(parent));
	return 0;
}

static void test_child_whose_handle_was_moved_is_accelerated(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 3, body_moved_children), 0);
	assert_int_equal(overlay_run(RANKS_THREADS, 2, body_moved_children), 0);
}

/* The last rank is new; what its unique id says decides. */
static int body_grow(struct rank *r)
{
	ncclComm_t small = NULL, grown[2];
	ncclUniqueId id;

	ranks_id(r, &overlay_shared->ids, 1);
	if (r->rank < r->nranks - 1)
		NCCL(ncclCommInitRank(&small, r->nranks - 1, overlay_shared->ids.id[0], r->rank));
	for (int round = 0; round < 2; round++) {
		if (r->rank == 0) {
			NCCL(ncclCommGetUniqueId(small, &id));
			overlay_shared->ids.id[2 + round] = id;
		}
		overlay_barrier(r, 2 * round);
		id = overlay_shared->ids.id[2 + round];
		if (overlay_shared->odd) /* made by a rank without Shunt */
			memset(id.internal + 64, 0, 64);
		NCCL(ncclCommGrow(
		    small, r->nranks, small && r->rank ? NULL : &id, small ? -1 : r->rank, &grown[round], NULL));
		REDUCE(grown[round], r->rank, r->nranks, 500, overlay_shared->odd ? FORWARDED : NATIVE);
		overlay_barrier(r, 2 * round + 1);
	}
	if (!overlay_shared->odd)
		REDUCE(grown[0], r->rank, r->nranks, 700, NATIVE);
	for (int round = 0; round < 2; round++)
		NCCL(ncclCommDestroy(grown[round]));
	NCCL(ncclCommDestroy(small));
	return 0;
}

static void test_grown_communicator_is_accelerated(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 3, body_grow), 0);
	assert_int_equal(overlay_run(RANKS_THREADS, 3, body_grow), 0);
	assert_int_equal(overlay_run_as(&(struct ranks){ .n = 3, .raw = 1, .body = body_grow }, 1), 0);
}

/*
 * ------------------------------------------------------------------------------------------------------- ways to end
 */

static int body_ends(struct rank *r)
{
	ncclComm_t comm, before = NULL;
	int reused = 0;

	for (int k = 0; k < 12; k++) {
		NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &overlay_shared->ids, k), r->rank));
		reused += comm == before;
		before = comm;
		CHECK(overlay_count_calls(comm, 1) == 0 && overlay_count_calls(comm, 0) == 0);
		REDUCE(comm, r->rank, r->nranks, 100 + k, NATIVE);
		if (k % 3 == 0) {
			NCCL(ncclCommDestroy(comm));
		} else if (k % 3 == 1) {
			NCCL(ncclCommAbort(comm));
		} else {
			NCCL(ncclCommFinalize(comm));
			CHECK(overlay_count_calls(comm, 1) ==
			    1); /* known until it is destroyed, but not ours to run any more */
			REDUCE(comm, r->rank, r->nranks, 100 + k, FORWARDED);
			NCCL(ncclCommDestroy(comm));
		}
		CHECK(overlay_count_calls(comm, 1) == -1);
	}
	CHECK(reused > 0);
	NCCL(ncclCommDestroy(NULL));
	return 0;
}

static void test_handle_address_used_again_is_a_new_communicator(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 2, body_ends), 0);
}

/* --------------------------------------------------------------------------------------- all ranks forward, or none */

/* The process's stderr goes to a file of its own; the lines about forwarding communicators are counted at the end. */
static int stderr_was, stderr_file;

static void capture_stderr(void)
{
	stderr_was = dup(2);
	stderr_file = memfd_create("stderr", MFD_CLOEXEC);
	dup2(stderr_file, 2);
}

static int captured_lines(const char *with)
{
	char text[16384];
	ssize_t n = pread(stderr_file, text, sizeof(text) - 1, 0);
	int lines = 0;

	text[n > 0 ? n : 0] = 0;
	for (const char *at = text; (at = strstr(at, with)); at++)
		lines++;
	return lines;
}

/* What was captured matters only if the rank failed. */
static void release_stderr(int failed)
{
	char text[16384];
	ssize_t n = pread(stderr_file, text, sizeof(text), 0);

	dup2(stderr_was, 2);
	if (failed && n > 0)
		(void)!write(2, text, (size_t)n);
}

static int forward_only(struct rank *r)
{
	ncclComm_t comm, child;
	void *buf;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 3; k++)
		REDUCE(comm, r->rank, r->nranks, 100 << (4 * k), FORWARDED);
	CHECK(overlay_forwarded("AllReduce") == 3);
	CHECK(overlay_count_calls(comm, 1) == 0 && overlay_count_calls(comm, 0) == 3);
	CHECK(shunt_malloc(&buf, 64) == 0);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(buf, buf, 16, ncclInt32, ncclSum, comm, r->stream)); /* it may be kept until the end */
	NCCL(ncclGroupEnd());
	CHECK(overlay_forwarded("AllReduce") == 4 && shunt_free(buf) == 0);
	overlay_shared->warnings[r->rank] = captured_lines("stays with NCCL");
	/* A child inherits what is wrong, or finds it out. */
	NCCL(ncclCommSplit(comm, 0, r->rank, &child, NULL));
	REDUCE(child, r->rank, r->nranks, 64, FORWARDED);
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static int body_forward_only(struct rank *r)
{
	int failed;

	capture_stderr();
	failed = forward_only(r);
	release_stderr(failed);
	return failed;
}

/* A communicator that all ranks leave to NCCL; exactly rank 0 says so, once. */
static void expect_forward_only(int n, int odd, void (*prepare)(int rank), rank_fn body)
{
	int others = 0;

	assert_int_equal(overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body, .prepare = prepare }, odd), 0);
	for (int i = 1; i < n; i++)
		others += overlay_shared->warnings[i];
	assert_int_equal(overlay_shared->warnings[0], 1);
	assert_int_equal(others, 0);
}

static const char *overlay_odd_name, *overlay_odd_value;

static void overlay_set_odd(int rank)
{
	if (rank == overlay_shared->odd)
		setenv(overlay_odd_name, overlay_odd_value, 1);
}

static void test_other_settings_on_one_rank_forward_on_all(void **state)
{
	static const char *const settings[][2] = {
		{ "SHUNT_ALGO", "allreduce:0-inf:twoshot" },
		{ "SHUNT_ALGO", "allreduce:0-inf:nccl" },
		{ "SHUNT_FORCE_NCCL", "allreduce" },
		{ "SHUNT_FORCE_NCCL", "all" },
		{ "NCCL_ALGO", "ring" },
		{ "NCCL_PROTO", "simple" },
		{ "NCCL_P2P_DISABLE", "1" },
		{ "NCCL_LAUNCH_ORDER_IMPLICIT", "1" },
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		overlay_odd_name = settings[i][0];
		overlay_odd_value = settings[i][1];
		expect_forward_only(3, 1 + (int)(i % 2), overlay_set_odd, body_forward_only);
	}
}

/* Rank 0 is the odd one: it may know of nothing, but somebody says it. */
static void test_other_settings_on_rank_0_forward_on_all(void **state)
{
	int lines = 0;

	overlay_odd_name = "SHUNT_FORCE_NCCL";
	overlay_odd_value = "allreduce";
	assert_int_equal(
	    overlay_run_as(
	        &(struct ranks){ .n = 3, .raw = 1, .body = body_forward_only, .prepare = overlay_set_odd }, 0),
	    0);
	for (int i = 0; i < 3; i++)
		lines += overlay_shared->warnings[i];
	assert_int_equal(lines, 1);
}

static void overlay_set_all(int rank)
{
	setenv(overlay_odd_name, overlay_odd_value, 1);
}

static void test_p2p_disable_on_all_ranks_forwards(void **state)
{
	overlay_odd_name = "NCCL_P2P_DISABLE";
	overlay_odd_value = "1";
	expect_forward_only(2, 0, overlay_set_all, body_forward_only);
}

static void test_more_than_8_ranks_forward(void **state)
{
	expect_forward_only(9, 0, NULL, body_forward_only);
}

static void no_scratch(int rank)
{
	if (rank != overlay_shared->odd)
		return;
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 }); /* a memfd is a file */
}

static void test_scratch_that_one_rank_cannot_allocate_forwards_on_all(void **state)
{
	expect_forward_only(3, 1, no_scratch, body_forward_only);
	expect_forward_only(3, 0, no_scratch, body_forward_only);
}

static void test_device_that_one_rank_cannot_open_forwards_on_all(void **state)
{
	overlay_odd_name = "SHUNT_SIM_DEVICES";
	overlay_odd_value = "1";
	expect_forward_only(3, 2, overlay_set_odd, body_forward_only);
}

/* The odd rank calls the real library without Shunt. */
static int body_without_shunt(struct rank *r)
{
	ncclComm_t comm, child;
	static int buf[4];

	if (r->rank != overlay_shared->odd)
		return body_forward_only(r);
	NCCL(FAKE(ncclCommInitRank)(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 4; k++)
		NCCL(FAKE(ncclAllReduce)(buf, buf, 4, ncclInt32, ncclSum, comm, NULL));
	NCCL(FAKE(ncclCommSplit)(comm, 0, r->rank, &child, NULL));
	NCCL(FAKE(ncclAllReduce)(buf, buf, 4, ncclInt32, ncclSum, child, NULL));
	CHECK(overlay_forwarded("AllReduce") == 5);
	return 0;
}

static void test_one_rank_without_shunt_forwards_on_all(void **state)
{
	int lines = 0;

	expect_forward_only(3, 2, NULL, body_without_shunt);
	/* Rank 0 cannot say it then. The harness asks Shunt for the id on rank 0, which does not matter. */
	assert_int_equal(overlay_run_as(&(struct ranks){ .n = 3, .raw = 1, .body = body_without_shunt }, 0), 0);
	for (int i = 0; i < 3; i++)
		lines += overlay_shared->warnings[i];
	assert_int_equal(lines, 1);
}

/*
 * ---------------------------------------------------------------------------------------------- chosen to be forwarded
 */

static int body_forced(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 100, FORWARDED);
	REDUCE(comm, r->rank, r->nranks, 100000, FORWARDED);
	CHECK(overlay_count_calls(comm, 1) == 0);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_force_nccl_forwards(void **state)
{
	static const char *const settings[][2] = {
		{ "SHUNT_FORCE_NCCL", "all" },
		{ "SHUNT_FORCE_NCCL", "broadcast,allreduce" },
		{ "MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION", "allreduce" },
		{ "MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION", "all" },
		{ "NCCL_ALGO", "allreduce:tree" },
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		overlay_odd_name = settings[i][0];
		overlay_odd_value = settings[i][1];
		assert_int_equal(
		    overlay_run_as(
		        &(struct ranks){ .n = 2, .raw = 1, .body = body_forced, .prepare = overlay_set_all }, 0),
		    0);
	}
}

static int body_not_forced(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 20000, NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void set_all_deterministic(int rank)
{
	setenv(overlay_odd_name, overlay_odd_value, 1);
	setenv("SHUNT_DETERMINISTIC", "1", 1);
}

/* What asks for NCCL's order gets ours; what asks for NCCL gets it. */
static void test_deterministic_sums_are_forwarded_by_name_only(void **state)
{
	overlay_odd_name = "NCCL_ALGO";
	overlay_odd_value = "allreduce:tree";
	assert_int_equal(
	    overlay_run_as(
	        &(struct ranks){ .n = 2, .raw = 1, .body = body_not_forced, .prepare = set_all_deterministic }, 0),
	    0);
	overlay_odd_name = "SHUNT_FORCE_NCCL";
	overlay_odd_value = "allreduce";
	assert_int_equal(
	    overlay_run_as(
	        &(struct ranks){ .n = 2, .raw = 1, .body = body_forced, .prepare = set_all_deterministic }, 0),
	    0);
}

static const char *want_nccl(void *arg, const struct shunt_plan_request *request)
{
	return request->bytes > 1000 ? "nccl" : NULL;
}

/* One rank's selector counts for nothing, not for the first call either; that of all ranks does. */
static int body_selector(struct rank *r)
{
	bool all = overlay_shared->odd < 0;
	ncclComm_t comm;

	if (all || r->rank == overlay_shared->odd)
		shunt_plan_set_selector(want_nccl, NULL);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 1000, all ? FORWARDED : NATIVE);
	REDUCE(comm, r->rank, r->nranks, 100, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 1000, all ? FORWARDED : NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_selector_of_one_rank_forwards_nothing(void **state)
{
	for (int odd = -1; odd < 2; odd++)
		assert_int_equal(overlay_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_selector }, odd), 0);
}

static int body_above_the_range(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	REDUCE(comm, r->rank, r->nranks, 20000, FORWARDED);
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	REDUCE(comm, r->rank, r->nranks, 20000, FORWARDED);
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_size_above_the_native_range_is_forwarded(void **state)
{
	overlay_odd_name = "SHUNT_ALGO";
	overlay_odd_value = "allreduce:64k-inf:nccl";
	assert_int_equal(
	    overlay_run_as(
	        &(struct ranks){ .n = 2, .raw = 1, .body = body_above_the_range, .prepare = overlay_set_all }, 0),
	    0);
}

/*
 * A rank may come to a call before the set-up that another rank's call brought: what goes to NCCL must not depend on
 * that.
 */
static int body_same_before_and_after(struct rank *r)
{
	static const char *const ops[] = { "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce",
		"gather", "scatter", "send" };
	bool ours[sizeof(ops) / sizeof(ops[0])][27];
	const char *path;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int after = 0; after < 2; after++) {
		for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
			for (int log = 0; log < 27; log++) {
				CHECK(shunt_path_of(comm, ops[i], (size_t)1 << log, ncclFloat32, ncclSum, &path) == 0);
				if (!after)
					ours[i][log] = strcmp(path, "nccl");
				else if (ours[i][log] != !!strcmp(path, "nccl"))
					return printf(
					    "%s of %zu: %s after the set-up\n", ops[i], (size_t)1 << log, path);
			}
		if (!after)
			REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_what_goes_to_nccl_does_not_depend_on_the_set_up(void **state)
{
	for (int n = 2; n <= 8; n += 3)
		assert_int_equal(
		    overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body_same_before_and_after }, 0), 0);
}

static int body_others(struct rank *r)
{
	static char a[8], b[8]; /* never touched */
	ncclComm_t comm;
	void *s = r->stream;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int round = 0; round < 2; round++) {
#define CALL(short_name, call, ...) \
	do { \
		struct fake_call got, want = { #short_name, __VA_ARGS__ }; \
		if (round) \
			FAKE(fake_nccl_fail_next)(#short_name, ncclRemoteError); \
		CHECK((call) == (round ? ncclRemoteError : ncclSuccess)); \
		got = FAKE(fake_nccl_last_call)(); \
		CHECK(!strcmp(got.name, want.name) && got.send == want.send && got.recv == want.recv); \
		CHECK(got.count == want.count && got.dtype == want.dtype && got.op == want.op); \
		CHECK(got.root == want.root && got.comm == want.comm && got.stream == want.stream); \
	} while (0)
		CALL(Reduce, ncclReduce(a, b, 3, ncclFloat16, ncclMax, 1, comm, s), a, b, 3, ncclFloat16, ncclMax, 1,
		    comm, s);
		CALL(Broadcast, ncclBroadcast(a, b, 4, ncclInt8, 1, comm, s), a, b, 4, ncclInt8, 0, 1, comm, s);
		CALL(Broadcast, ncclBcast(b, 5, ncclInt8, 1, comm, s), b, b, 5, ncclInt8, 0, 1, comm, s);
		CALL(ReduceScatter, ncclReduceScatter(a, b, 6, ncclBfloat16, ncclMin, comm, s), a, b, 6, ncclBfloat16,
		    ncclMin, 0, comm, s);
		CALL(AllGather, ncclAllGather(a, b, 7, ncclFloat64, comm, s), a, b, 7, ncclFloat64, 0, 0, comm, s);
		CALL(Send, ncclSend(a, 0, ncclInt8, 1, comm, s), a, NULL, 0, ncclInt8, 0, 1, comm, s);
		CALL(Recv, ncclRecv(b, (size_t)1 << 40, ncclInt8, 0, comm, s), NULL, b, (size_t)1 << 40, ncclInt8, 0, 0,
		    comm, s);
	}
	/* The last one stayed an error of that call only. */
	REDUCE(comm, r->rank, r->nranks, 1000, NATIVE);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void overlay_only_allreduce(int rank)
{
	setenv("SHUNT_FORCE_NCCL", "reduce,broadcast,allgather,reducescatter,alltoall,gather,scatter,send,recv", 1);
}

static void test_other_collectives_reach_nccl_unchanged(void **state)
{
	assert_int_equal(
	    overlay_run_as(
	        &(struct ranks){ .n = 2, .raw = 1, .body = body_others, .prepare = overlay_only_allreduce }, 0),
	    0);
}

/* A communicator that Shunt has not seen born: the program got it from another copy of the library. */
static int body_unknown(struct rank *r)
{
	static char a[8], b[8];
	struct fake_call got;
	ncclComm_t comm;
	int v;

	NCCL(ncclGetVersion(&v));
	NCCL(FAKE(ncclCommInitRank)(&comm, r->nranks, r->id, r->rank));
	CHECK(overlay_count_calls(comm, 1) == -1);
	NCCL(ncclAllReduce(a, b, 11, ncclUint8, ncclAvg, comm, r->stream));
	got = FAKE(fake_nccl_last_call)();
	CHECK(got.send == a && got.recv == b && got.count == 11 && got.dtype == ncclUint8 && got.op == ncclAvg &&
	    got.comm == comm);
	FAKE(fake_nccl_fail_next)("AllReduce", ncclSystemError);
	CHECK(ncclAllReduce(a, b, 11, ncclUint8, ncclAvg, comm, r->stream) == ncclSystemError);
	NCCL(ncclCommUserRank(comm, &v));
	CHECK(v == r->rank);
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_unknown_handle_passes_through(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 2, body_unknown), 0);
}

/*
 * ------------------------------------------------------------------------------------------------------------ groups
 */

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

static void test_groups_mix_ours_and_forwarded_calls(void **state)
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
	ncclConfig_t config = ranks_config();
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

static void test_messages_of_a_group_go_on_beside_nccls(void **state)
{
	overlay_odd_name = "SHUNT_ALGO";
	overlay_odd_value = "send:64k-inf:nccl";
	for (int i = 0; i < 2; i++) {
		asks_without_blocking = i;
		assert_int_equal(
		    overlay_run_as(
		        &(struct ranks){ .n = 2, .raw = 1, .body = body_question, .prepare = overlay_set_all }, 0),
		    0);
	}
}

/*
 * A group in which rank 1 hears, between two calls, that its set-up is done: rank 0 has come to the group's end by
 * then. What is NCCL's reaches it in the order of issue all the same, of one communicator and of two, of which one was
 * in use before.
 */
static int body_set_up_in_mid_group(struct rank *r)
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

static void test_set_up_in_mid_group_keeps_the_order(void **state)
{
	overlay_odd_name = "SHUNT_ALGO";
	overlay_odd_value = "allreduce:64k-inf:nccl";
	assert_int_equal(
	    overlay_run_as(
	        &(struct ranks){ .n = 2, .raw = 1, .body = body_set_up_in_mid_group, .prepare = overlay_set_all }, 0),
	    0);
}

/*
 * A split is under way on a non-blocking communicator: NCCL refuses to destroy that. Both live on, and the child comes.
 */
static int body_destroyed_too_early(struct rank *r)
{
	ncclConfig_t config = ranks_config();
	ncclComm_t comm, child = NULL;

	config.blocking = 0;
	ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config);
	CHECK(ranks_settled(comm) == ncclSuccess);
	REDUCE(comm, r->rank, r->nranks, 100, NATIVE);
	FAKE(fake_nccl_late)(500);
	CHECK(ncclCommSplit(comm, 0, r->rank, &child, NULL) == ncclInProgress);
	FAKE(fake_nccl_fail_next)("CommDestroy", ncclInvalidArgument); /* what NCCL makes of it */
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

static void test_communicator_destroyed_too_early_lives_on(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 2, body_destroyed_too_early), 0);
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

static int body_aborted_before_its_operator(struct rank *r)
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

static void test_operator_goes_with_its_aborted_communicator(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 2, body_aborted_before_its_operator), 0);
}

/* One process, all ranks, communicators made in a group; then one is forwarded and one is ours in the same group. */
static int body_one_thread(struct rank *r)
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

static void test_one_thread_drives_all_ranks_in_groups(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 1, body_one_thread), 0);
}

/* ------------------------------------------------------------------------------------------------- death and rescue */

static useconds_t dies_after_us;
static int rank_that_dies, dies_after_calls;
static atomic_int calls; /* that this rank has made */

/* At any time from the set-up on, or in the loop after it. */
static void *die_later(void *arg)
{
	pause_us(PAUSE_LATE, dies_after_us);
	until_counted(&calls, dies_after_calls, "calls");
	kill(getpid(), SIGKILL);
	return NULL;
}

static void *die_in_set_up(void *arg)
{
	until_dump_has(getpid(), "\"phase\": \"set-up\"");
	kill(getpid(), SIGKILL);
	return NULL;
}

/* The stopped rank goes on when the other one is dead. */
static void *wake_later(void *arg)
{
	if (until_process_ends(overlay_shared->victim))
		kill(overlay_shared->stopped, SIGCONT);
	return NULL;
}

/*
 * The others notice within the deadline and can go on to abort. Who finds at its first call that a rank is gone cannot
 * know that it was ever there, and leaves the communicator to NCCL, which has its own way with dead ranks.
 */
static int survive(struct rank *r, ncclComm_t comm, int may_forward)
{
	double began = now();
	ncclResult_t res, state = ncclSuccess;
	int32_t *buf;

	CHECK(shunt_malloc((void **)&buf, 4000) == 0 && shunt_memcpy(buf, (char[4000]){ 0 }, 4000) == 0);
	do {
		res = ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, comm, r->stream);
		if (!res)
			CHECK(shunt_stream_synchronize(r->stream) == 0);
		atomic_fetch_add(&calls, 1);
		NCCL(ncclCommGetAsyncError(comm, &state));
	} while (!res && !state && !overlay_count_calls(comm, 0) && now() < began + 2 * AT_ONCE_S);
	if (may_forward && overlay_count_calls(comm, 0)) {
		CHECK(!res && !state && overlay_count_calls(comm, 1) == 0);
		NCCL(ncclCommAbort(comm));
		return 0;
	}
	CHECK(state == ncclRemoteError && (!res || res == ncclRemoteError));
	CHECK(now() < began + AT_ONCE_S);
	CHECK(ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, comm, r->stream) == ncclRemoteError);
	began = now();
	NCCL(ncclCommAbort(comm));
	CHECK(now() < began + SOON);
	CHECK(shunt_free(buf) == 0);
	return 0;
}

static int body_dies_before(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == rank_that_dies)
		kill(getpid(), SIGKILL);
	return survive(r, comm, 1);
}

static int body_dies_inside(struct rank *r)
{
	ncclComm_t comm;
	pthread_t thread;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	overlay_barrier(r, 0);
	if (r->rank == rank_that_dies)
		pthread_create(&thread, NULL, die_later, NULL);
	return survive(r, comm, !dies_after_calls);
}

/* In the set-up, which waits for the last rank: that is stopped. */
static int body_dies_while_waiting(struct rank *r)
{
	ncclComm_t comm;
	pthread_t thread;
	int failed;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (r->rank == r->nranks - 1) {
		CHECK(until_counted(&overlay_shared->victim, 1, "ranks that die"));
		atomic_store(&overlay_shared->stopped, getpid());
		raise(SIGSTOP);
		return survive(r, comm, 1);
	}
	if (r->rank == rank_that_dies)
		atomic_store(&overlay_shared->victim, getpid());
	CHECK(until_counted(&overlay_shared->stopped, 1, "ranks that stop") &&
	    until_process_stops(overlay_shared->stopped));
	pthread_create(&thread, NULL, r->rank == rank_that_dies ? die_in_set_up : wake_later, NULL);
	failed = survive(r, comm, 1);
	pthread_join(thread, NULL);
	return failed;
}

static void expect_survivors(rank_fn body, int n, int who)
{
	rank_that_dies = who;
	setenv("SHUNT_TIMEOUT", "2s", 1);
	assert_int_equal(overlay_run_as(&(struct ranks){ .n = n, .raw = 1, .body = body, .dies = 1u << who }, who), 0);
	setenv("SHUNT_TIMEOUT", PATIENCE, 1);
}

static void test_rank_killed_before_the_first_call_is_an_error_for_the_rest(void **state)
{
	expect_survivors(body_dies_before, 3, 0);
	expect_survivors(body_dies_before, 3, 1);
}

static void test_rank_killed_during_set_up_is_an_error_for_the_rest(void **state)
{
	expect_survivors(body_dies_while_waiting, 3, 0);
	expect_survivors(body_dies_while_waiting, 3, 1);
	for (int i = 0; i < 8; i++) {
		dies_after_us = 500 + 1500 * (useconds_t)i;
		expect_survivors(body_dies_inside, 3, i % 3);
	}
}

static void test_rank_killed_in_a_loop_is_an_error_for_the_rest(void **state)
{
	dies_after_us = 0;
	dies_after_calls = 50;
	expect_survivors(body_dies_inside, 3, 1);
	dies_after_calls = 0;
}

/* A second thread aborts while the first is stuck. */
struct rescue {
	ncclComm_t comm;
	unsigned seq; /* of the call that hangs */
	double took;
	ncclResult_t res;
};

static void *abort_later(void *arg)
{
	struct rescue *rescue = arg;
	double began;

	bool hangs = until_begun(getpid(), rescue->seq);

	began = now();
	rescue->res = ncclCommAbort(rescue->comm);
	if (!hangs)
		rescue->res = ncclInternalError;
	rescue->took = now() - began;
	return NULL;
}

static int body_abort(struct rank *r)
{
	struct rescue rescue = { 0 };
	ncclResult_t res;
	pthread_t thread;
	int32_t *buf;
	double began;

	NCCL(ncclCommInitRank(&rescue.comm, r->nranks, r->id, r->rank));
	CHECK(shunt_malloc((void **)&buf, 4000) == 0 && shunt_memcpy(buf, (char[4000]){ 0 }, 4000) == 0);
	if (!overlay_shared->odd) /* else it is the first call that waits, and rank 1 never makes one */
		NCCL(ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, rescue.comm, r->stream));
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (r->rank == 0) {
		rescue.seq = overlay_shared->odd ? 1 : 2;
		pthread_create(&thread, NULL, abort_later, &rescue);
		began = now();
		res = ncclAllReduce(buf, buf, 1000, ncclInt32, ncclSum, rescue.comm, r->stream);
		CHECK(res == ncclSuccess);
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(now() < began + SOON);
		pthread_join(thread, NULL);
		NCCL(rescue.res);
		CHECK(rescue.took < SOON);
	}
	overlay_barrier(r, 0);
	if (r->rank != 0)
		NCCL(ncclCommAbort(rescue.comm));
	CHECK(shunt_free(buf) == 0);
	return 0;
}

static void test_abort_from_another_thread_frees_a_stuck_rank(void **state)
{
	for (int during_setup = 0; during_setup < 2; during_setup++) {
		assert_int_equal(
		    overlay_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_abort }, during_setup), 0);
		assert_int_equal(
		    overlay_run_as(
		        &(struct ranks){ .how = RANKS_THREADS, .n = 2, .raw = 1, .body = body_abort }, during_setup),
		    0);
	}
}

/*
 * Stands for a kernel of the real library that ends when that is told to abort: here it is one of ours, of another
 * communicator.
 */
static void *abort_after_the_real_one(void *arg)
{
	while (!strstr(FAKE(fake_nccl_log)(), "CommAbort"))
		pause_us(PAUSE_POLL, 1000);
	ncclCommAbort(arg);
	return NULL;
}

static int body_abort_behind(struct rank *r)
{
	ncclComm_t ours, ahead;
	pthread_t thread;
	int32_t *buf;
	double began;

	NCCL(ncclCommInitRank(&ours, r->nranks, ranks_id(r, &overlay_shared->ids, 0), r->rank));
	NCCL(ncclCommInitRank(&ahead, r->nranks, ranks_id(r, &overlay_shared->ids, 1), r->rank));
	REDUCE(ours, r->rank, r->nranks, 100, NATIVE);
	REDUCE(ahead, r->rank, r->nranks, 100, NATIVE);
	CHECK(shunt_malloc((void **)&buf, 400) == 0);
	if (r->rank == 0) {
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, ahead, r->stream)); /* nobody else calls */
		NCCL(ncclAllReduce(buf, buf, 100, ncclInt32, ncclSum, ours, r->stream));
		pthread_create(&thread, NULL, abort_after_the_real_one, ahead);
		began = now();
		NCCL(ncclCommAbort(ours));
		CHECK(now() < began + SOON);
		pthread_join(thread, NULL);
	}
	overlay_barrier(r, 0);
	if (r->rank != 0) {
		NCCL(ncclCommAbort(ours));
		NCCL(ncclCommAbort(ahead));
	}
	CHECK(shunt_free(buf) == 0);
	return 0;
}

static void test_abort_reaches_nccl_before_it_waits_for_the_stream(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 2, body_abort_behind), 0);
}

/*
 * --------------------------------------------------------------------------------------------------------- watchdogs
 */

struct watch {
	_Atomic(ncclComm_t) comm;
	atomic_int stop, bad;
	atomic_long polls;
};

static void *watchdog(void *arg)
{
	struct watch *w = arg;
	ncclResult_t state, res;

	while (!w->stop) {
		ncclComm_t comm = w->comm;

		if (!comm)
			continue;
		state = ncclSuccess;
		res = ncclCommGetAsyncError(comm, &state);
		if (res == ncclSuccess && state != ncclSuccess)
			w->bad++;
		w->polls++;
		sched_yield();
	}
	return NULL;
}

/* The pollers may be a step behind: the handle is dead by then, or another communicator. */
static int body_watched(struct rank *r)
{
	struct watch w = { 0 };
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, watchdog, &w);
	for (int k = 0; k < 6; k++) {
		ncclComm_t comm;

		NCCL(ncclCommInitRank(&comm, r->nranks, ranks_id(r, &overlay_shared->ids, k), r->rank));
		w.comm = comm;
		for (int i = 0; i < 10; i++)
			REDUCE(comm, r->rank, r->nranks, 50 + i, NATIVE);
		NCCL(ncclCommDestroy(comm));
	}
	w.stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(w.polls > 0 && w.bad == 0);
	return 0;
}

static void test_watchdogs_poll_while_communicators_come_and_go(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 2, body_watched), 0);
	assert_int_equal(overlay_run(RANKS_THREADS, 2, body_watched), 0);
}

/*
 * ---------------------------------------------------------------------------------------------------------- equal ids
 */

static int body_same_id(struct rank *r)
{
	ncclComm_t first, second;

	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	NCCL(ncclCommInitRank(&second, r->nranks, r->id, r->rank));
	REDUCE(first, r->rank, r->nranks, 1000, NATIVE);
	REDUCE(second, r->rank, r->nranks, 1000, FORWARDED);
	REDUCE(first, r->rank, r->nranks, 500, NATIVE);
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(first));
	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	REDUCE(first, r->rank, r->nranks, 1000, NATIVE);
	NCCL(ncclCommDestroy(first));
	return 0;
}

static void test_second_use_of_an_id_does_not_mix(void **state)
{
	assert_int_equal(overlay_run(RANKS_PROCESSES, 3, body_same_id), 0);
}

/* All communicators of the job have this id. Some ranks still have an old one when they make the next. */
static int body_comm_id(struct rank *r)
{
	ncclComm_t first, second, third, child;

	NCCL(ncclCommInitRank(&first, r->nranks, r->id, r->rank));
	REDUCE(first, r->rank, r->nranks, 1000, FORWARDED);
	if (r->rank == 0)
		NCCL(ncclCommDestroy(first));
	NCCL(ncclCommInitRank(&second, r->nranks, ranks_id(r, &overlay_shared->ids, 0), r->rank));
	NCCL(ncclCommInitRank(&third, r->nranks, ranks_id(r, &overlay_shared->ids, 1), r->rank));
	REDUCE(third, r->rank, r->nranks, 1000, FORWARDED);
	REDUCE(second, r->rank, r->nranks, 1000, FORWARDED);
	NCCL(ncclCommSplit(second, 0, r->rank, &child, NULL));
	REDUCE(child, r->rank, r->nranks, 1000, FORWARDED);
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(second));
	NCCL(ncclCommDestroy(third));
	if (r->rank != 0)
		NCCL(ncclCommDestroy(first));
	return 0;
}

static void test_equal_ids_of_nccl_comm_id_do_not_mix(void **state)
{
	overlay_odd_name = "NCCL_COMM_ID";
	overlay_odd_value = "127.0.0.1:29999";
	assert_int_equal(
	    overlay_run_as(&(struct ranks){ .n = 2, .raw = 1, .body = body_comm_id, .prepare = overlay_set_all }, 0),
	    0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_init_is_accelerated),
		cmocka_unit_test(test_init_all_first_used_in_a_group_of_several_communicators),
		cmocka_unit_test(test_children_of_all_kinds_are_accelerated),
		cmocka_unit_test(test_child_whose_handle_comes_late_is_accelerated),
		cmocka_unit_test(test_child_whose_handle_was_moved_is_accelerated),
		cmocka_unit_test(test_grown_communicator_is_accelerated),
		cmocka_unit_test(test_handle_address_used_again_is_a_new_communicator),
		cmocka_unit_test(test_other_settings_on_one_rank_forward_on_all),
		cmocka_unit_test(test_other_settings_on_rank_0_forward_on_all),
		cmocka_unit_test(test_p2p_disable_on_all_ranks_forwards),
		cmocka_unit_test(test_more_than_8_ranks_forward),
		cmocka_unit_test(test_scratch_that_one_rank_cannot_allocate_forwards_on_all),
		cmocka_unit_test(test_device_that_one_rank_cannot_open_forwards_on_all),
		cmocka_unit_test(test_one_rank_without_shunt_forwards_on_all),
		cmocka_unit_test(test_force_nccl_forwards),
		cmocka_unit_test(test_deterministic_sums_are_forwarded_by_name_only),
		cmocka_unit_test(test_selector_of_one_rank_forwards_nothing),
		cmocka_unit_test(test_size_above_the_native_range_is_forwarded),
		cmocka_unit_test(test_what_goes_to_nccl_does_not_depend_on_the_set_up),
		cmocka_unit_test(test_other_collectives_reach_nccl_unchanged),
		cmocka_unit_test(test_unknown_handle_passes_through),
		cmocka_unit_test(test_groups_mix_ours_and_forwarded_calls),
		cmocka_unit_test(test_messages_of_a_group_go_on_beside_nccls),
		cmocka_unit_test(test_set_up_in_mid_group_keeps_the_order),
		cmocka_unit_test(test_communicator_destroyed_too_early_lives_on),
		cmocka_unit_test(test_operator_goes_with_its_aborted_communicator),
		cmocka_unit_test(test_one_thread_drives_all_ranks_in_groups),
		cmocka_unit_test(test_rank_killed_before_the_first_call_is_an_error_for_the_rest),
		cmocka_unit_test(test_rank_killed_during_set_up_is_an_error_for_the_rest),
		cmocka_unit_test(test_rank_killed_in_a_loop_is_an_error_for_the_rest),
		cmocka_unit_test(test_abort_from_another_thread_frees_a_stuck_rank),
		cmocka_unit_test(test_abort_reaches_nccl_before_it_waits_for_the_stream),
		cmocka_unit_test(test_watchdogs_poll_while_communicators_come_and_go),
		cmocka_unit_test(test_second_use_of_an_id_does_not_mix),
		cmocka_unit_test(test_equal_ids_of_nccl_comm_id_do_not_mix),
	};
	char address[32];

	overlay_shared = mmap(NULL, sizeof(*overlay_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(address, sizeof(address), "%p", (void *)overlay_shared->fake);
	setenv("FAKE_NCCL_SHARED", address, 1);
	own_environment();
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_TIMEOUT", PATIENCE, 1);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
