/* SPDX-License-Identifier: MIT */
/*
 * What goes wrong between hosts, standalone on the sim: ranks, the root's process and hosts that die at every stage,
 * networks that are cut, lossy, slow or narrow, ranks that are stopped, abort and end out of step. Whoever is left
 * gets an error that names a rank, within a limit, and makes a new communicator.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "shunt/device.h"
#include "tests/hosts/world.h"
#include "tests/support/clock.h"
#include "tests/support/pause.h"

static bool all; /* what takes long, too */

enum { SMALL = 300, LARGE = 1000003, SILENCE_S = 60 };

static void run_world(const struct world *w)
{
	int failed = world_run(w);

	if (failed == -EPERM)
		skip(); /* hosts are network namespaces: root only */
	assert_int_equal(failed, 0);
}

/* ---- calls */

/* What a call of `count` elements says, with its result if it has one. */
static ncclResult_t sum(const struct rank *r, ncclComm_t comm, size_t count, uint32_t want, bool *right_p)
{
	uint32_t *buf = NULL;
	ncclResult_t res, state = ncclSuccess;

	*right_p = false;
	if (shunt_malloc((void **)&buf, count * 4))
		return ncclSystemError;
	for (size_t i = 0; i < count; i++)
		buf[i] = (uint32_t)(r->rank + 1);
	res = ncclAllReduce(buf, buf, count, ncclUint32, ncclSum, comm, r->stream);
	if (shunt_stream_synchronize(r->stream) && !res)
		res = ncclUnhandledCudaError;
	if (!res)
		res = ncclCommGetAsyncError(comm, &state);
	*right_p = true;
	for (size_t i = 0; i < count && want; i++)
		*right_p &= buf[i] == want;
	shunt_free(buf);
	return res ? res : state;
}

static uint32_t sum_of(const struct rank *r, unsigned without)
{
	uint32_t s = 0;

	for (int k = 0; k < r->nranks; k++)
		s += without >> k & 1 ? 0 : (uint32_t)(k + 1);
	return s;
}

static int good_call(const struct rank *r, ncclComm_t comm, size_t count, unsigned without)
{
	bool right;

	NCCL(sum(r, comm, count, sum_of(r, without), &right));
	CHECK(right);
	return 0;
}

/* Calls until one fails, which must be within the limit, with an error that names a rank. */
static int await_failure(const struct rank *r, ncclComm_t comm, size_t count)
{
	double end = now() + SILENCE_S;
	ncclResult_t res = ncclSuccess;
	bool right;

	while (!res && now() < end)
		res = sum(r, comm, count, 0, &right);
	if (res != ncclRemoteError || !strstr(world_error(), "rank")) {
		fprintf(stderr, "rank %d: %d, \"%s\"\n", r->rank, (int)res, world_error());
		return 1;
	}
	return 0;
}

/* A communicator of the ranks that are left, by an id that the first of them makes. */
static int begin_anew(const struct rank *r, unsigned without, int place)
{
	struct world_shared *s = world_shared();
	int n = 0, me = 0;
	ncclComm_t comm;

	for (int k = 0; k < r->nranks; k++) {
		me += k < r->rank && !(without >> k & 1);
		n += !(without >> k & 1);
	}
	if (!me) {
		NCCL(ncclGetUniqueId(&s->id[place]));
		s->step[place] = 1;
	}
	CHECK(!world_await(place, 1));
	NCCL(ncclCommInitRank(&comm, n, s->id[place], me));
	CHECK(!good_call(r, comm, SMALL, without));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* ---- death */

enum phase { IN_INIT, IN_SETUP, IN_SMALL, IN_LARGE, IN_IDLE, IN_DESTROY };

static enum phase phase;
static unsigned victims;

static void *die_soon(void *arg)
{
	pause_us(PAUSE_LATE, *(unsigned *)arg);
	raise(SIGKILL);
	return NULL;
}

static int victim_body(struct rank *r)
{
	static unsigned delay_us = 300000;
	pthread_t thread;
	ncclComm_t comm;
	bool right;

	if (phase == IN_INIT)
		CHECK(!pthread_create(&thread, NULL, die_soon, &delay_us));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (phase == IN_SETUP) {
		CHECK(!world_await(0, r->nranks - __builtin_popcount(victims)));
		raise(SIGKILL);
	}
	CHECK(!good_call(r, comm, SMALL, 0));
	ranks_barrier(r, &world_shared()->step[2]); /* other victims are done, too */
	if (phase == IN_LARGE) {
		delay_us = 20000 + (unsigned)r->rank * 7000;
		CHECK(!pthread_create(&thread, NULL, die_soon, &delay_us));
		for (;;)
			sum(r, comm, LARGE, 0, &right);
	}
	CHECK(!world_await(0, r->nranks - __builtin_popcount(victims)));
	if (phase == IN_DESTROY) {
		delay_us = 100;
		CHECK(!pthread_create(&thread, NULL, die_soon, &delay_us));
		ncclCommDestroy(comm);
		pause_us(PAUSE_LATE, 10000000);
	}
	raise(SIGKILL);
	return 1;
}

static int survivor_body(struct rank *r)
{
	double start;
	ncclComm_t comm;

	if (phase == IN_INIT) {
		/* The one before the victim comes when that is dead. */
		if (r->rank == r->nranks - 2)
			pause_us(PAUSE_LATE, 1500000);
		CHECK(ncclCommInitRank(&comm, r->nranks, r->id, r->rank) != ncclSuccess);
		return begin_anew(r, victims, 1);
	}
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (phase != IN_SETUP) {
		CHECK(!good_call(r, comm, SMALL, 0));
		ranks_barrier(r, &world_shared()->step[2]);
	}
	atomic_fetch_add(&world_shared()->step[0], 1);
	start = now();
	if (phase == IN_DESTROY) {
		NCCL(ncclCommDestroy(comm));
		CHECK(now() - start < AT_ONCE_S);
		return begin_anew(r, victims, 1);
	}
	if (phase == IN_IDLE) {
		ncclResult_t state = ncclSuccess;

		while (!state && now() - start < AT_ONCE_S) {
			pause_us(PAUSE_POLL, 1000);
			NCCL(ncclCommGetAsyncError(comm, &state));
		}
		CHECK(state == ncclRemoteError);
	}
	if (phase == IN_SETUP) {
		bool right;

		CHECK(sum(r, comm, SMALL, 0, &right) != ncclSuccess);
	} else {
		CHECK(!await_failure(r, comm, phase == IN_LARGE ? LARGE : SMALL));
	}
	CHECK(now() - start < AT_ONCE_S);
	ncclCommAbort(comm);
	return begin_anew(r, victims, 1);
}

static int death_body(struct rank *r)
{
	return victims >> r->rank & 1 ? victim_body(r) : survivor_body(r);
}

static void die_in(enum phase when, const char *place, unsigned who, bool named)
{
	phase = when;
	victims = who;
	print_message("ranks 0x%x of %s die in phase %d\n", who, place, (int)when);
	run_world(&(struct world){ .place = place,
	    .named = named,
	    .dies = who,
	    .env = { { "SHUNT_TIMEOUT", "20s" }, { "SHUNT_SETUP_TIMEOUT", "5s" } },
	    .body = death_body });
}

static void test_a_rank_dies(void **state)
{
	for (enum phase p = IN_INIT; p <= IN_DESTROY; p++)
		die_in(p, "0011", 8, p % 2);
}

/* Rank 0, whose process made the unique id. */
static void test_the_root_dies(void **state)
{
	for (enum phase p = IN_SETUP; p <= IN_DESTROY; p++)
		if (all || p % 2 == 0)
			die_in(p, "0011", 1, !(p % 2));
}

static void test_all_ranks_of_a_host_die(void **state)
{
	for (enum phase p = IN_SETUP; p <= IN_DESTROY; p++)
		if (all || p == IN_LARGE)
			die_in(p, "0110", 6, false);
}

/* ---- networks that are cut */

static void cut(int host, bool out, bool in)
{
	netns_link(world_netns(), host)->cut_out = out;
	netns_link(world_netns(), host)->cut_in = in;
}

/* Longer than several times that TCP sends again, and shorter than the limit of silence. */
static int healed_body(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 3; k++) {
		CHECK(!good_call(r, comm, SMALL, 0));
		ranks_barrier(r, &world_shared()->step[2 * k]);
		if (!r->rank) {
			cut(1, k != 1, k != 0);
			pause_us(PAUSE_LATE, all ? 8000000 : 1500000);
			cut(1, false, false);
		}
		CHECK(!good_call(r, comm, k == 2 ? LARGE : SMALL, 0));
		ranks_barrier(r, &world_shared()->step[2 * k + 1]);
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_a_cut_that_heals_is_no_failure(void **state)
{
	run_world(&(struct world){ .place = "0011", .body = healed_body });
}

/* The set-up and a split find a network that is away, for longer than a call tries by itself. */
static int healed_setup_body(struct rank *r)
{
	ncclComm_t comm, child;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 2; k++) {
		ranks_barrier(r, &world_shared()->step[3 * k]);
		if (r->rank == 3)
			cut(1, true, true);
		ranks_barrier(r, &world_shared()->step[3 * k + 1]);
		if (r->rank == 3) {
			pause_us(PAUSE_LATE, 5500000);
			cut(1, false, false);
		}
		if (k)
			NCCL(ncclCommSplit(comm, 0, r->rank, &child, NULL));
		CHECK(!good_call(r, k ? child : comm, SMALL, 0));
	}
	NCCL(ncclCommDestroy(child));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_a_set_up_outlives_a_cut(void **state)
{
	run_world(
	    &(struct world){ .place = "0011", .env = { { "SHUNT_SETUP_TIMEOUT", "40s" } }, .body = healed_setup_body });
}

/* Nothing comes through any more: both sides hear nothing of the other one, say so, and go on by themselves. */
static int silence_body(struct rank *r)
{
	unsigned others = world_host(r->rank) ? 3 : 12;
	double start;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	ranks_barrier(r, &world_shared()->step[0]);
	if (!r->rank)
		cut(1, true, true);
	start = now();
	CHECK(!await_failure(r, comm, phase == IN_LARGE ? LARGE : SMALL));
	CHECK(now() - start < SILENCE_S);
	fprintf(stderr, "rank %d: silence was noticed after %.1f s: %s\n", r->rank, now() - start, world_error());
	ranks_barrier(r, &world_shared()->step[3]);
	if (!r->rank)
		cut(1, false, false); /* too late */
	ncclCommAbort(comm);
	return begin_anew(r, others, 1 + world_host(r->rank));
}

static void test_a_host_that_is_cut_off_is_noticed(void **state)
{
	for (phase = IN_SMALL; phase <= IN_LARGE; phase++)
		run_world(&(struct world){ .place = "0011", .body = silence_body });
}

/* ---- networks that are bad */

static int calls_body(struct rank *r)
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 20; k++)
		CHECK(!good_call(r, comm, (size_t)(2 + k * k * 211), 0));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void make_lossy(struct netns *netns)
{
	for (int h = 0; h < 2; h++) {
		netns_link(netns, h)->loss_ppm = 10000;
		netns_link(netns, h)->delay_us = 1000;
		netns_link(netns, h)->reorder_ppm = 20000;
		netns_link(netns, h)->repeat_ppm = 10000;
	}
}

static void make_slow(struct netns *netns)
{
	for (int h = 0; h < 2; h++)
		netns_link(netns, h)->rate_kbps = 20000;
}

static void make_narrow(struct netns *netns)
{
	assert_int_equal(netns_set_mtu(netns, 0, 1280), 0);
}

static void test_calls_over_bad_networks(void **state)
{
	static void (*const make[])(struct netns *) = { make_lossy, make_slow, make_narrow };

	for (size_t i = 0; i < 3; i++)
		run_world(&(struct world){ .place = "0011", .body = calls_body, .meanwhile = make[i] });
}

static void lose_large_frames(struct netns *netns)
{
	for (int h = 0; h < 2; h++)
		netns_link(netns, h)->largest = 900;
}

/* Small calls may come through; the large one ends with a line, on all ranks. */
static int black_hole_body(struct rank *r)
{
	ncclResult_t res;
	ncclComm_t comm;
	bool right;

	res = ncclCommInitRank(&comm, r->nranks, r->id, r->rank);
	if (res) {
		CHECK(strstr(world_error(), "rank") || strstr(world_error(), "missing"));
		return 0;
	}
	res = sum(r, comm, LARGE, 0, &right);
	CHECK(res == ncclRemoteError || res == ncclSystemError || res == ncclInvalidUsage);
	CHECK(strstr(world_error(), "rank"));
	fprintf(stderr, "rank %d: %s\n", r->rank, world_error());
	ncclCommAbort(comm);
	return 0;
}

static void test_a_black_hole_for_large_packets_is_noticed(void **state)
{
	run_world(&(struct world){ .place = "0011", .body = black_hole_body, .meanwhile = lose_large_frames });
}

/* ---- ranks that are stopped */

static int stopped_body(struct rank *r)
{
	ncclComm_t comm;

	if (r->rank == 3)
		world_shared()->step[0] = (int)getpid();
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	for (int k = 0; k < 3; k++) {
		if (!r->rank)
			kill(world_shared()->step[0], SIGSTOP);
		if (!r->rank && k < 2) { /* ... and while this rank waits for it */
			pause_us(PAUSE_LATE, 700000);
			kill(world_shared()->step[0], SIGCONT);
		}
		if (!r->rank && k == 2) {
			pid_t child = fork();

			if (!child) {
				pause_us(PAUSE_LATE, all ? 30000000 : 1500000);
				kill(world_shared()->step[0], SIGCONT);
				_exit(0);
			}
		}
		CHECK(!good_call(r, comm, LARGE, 0));
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_a_stopped_rank_is_not_dead(void **state)
{
	run_world(&(struct world){ .place = "0011", .body = stopped_body });
}

/* ---- one rank is not like the others */

static int odd_body(struct rank *r)
{
	bool right;
	ncclComm_t comm;
	ncclResult_t res = ncclCommInitRank(&comm, r->nranks, r->id, r->rank);

	if (!res)
		res = sum(r, comm, SMALL, 0, &right);
	CHECK(res != ncclSuccess);
	CHECK(*world_error());
	return 0;
}

static void test_other_settings_on_one_rank_are_noticed(void **state)
{
	static const char *const odd[][2] = { { "NCCL_SOCKET_IFNAME", "eth7" },
		{ "SHUNT_ALGO", "allreduce:0-:oneshot" } };

	for (size_t i = 0; i < 2; i++)
		run_world(&(struct world){ .place = "0011",
		    .named = true,
		    .odd = 3,
		    .odd_env = { odd[i][0], odd[i][1] },
		    .env = { { "SHUNT_TIMEOUT", "3s" }, { "SHUNT_SETUP_TIMEOUT", "3s" } },
		    .body = odd_body });
}

/* ---- abort, and ends that come out of step */

static int abort_body(struct rank *r)
{
	ncclComm_t comm;
	double start;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	ranks_barrier(r, &world_shared()->step[0]); /* an abort loses what is under way */
	start = now();
	if (r->rank == 2) {
		uint32_t *buf;

		CHECK(!shunt_malloc((void **)&buf, LARGE * 4));
		NCCL(ncclAllReduce(buf, buf, phase == IN_LARGE ? LARGE : SMALL, ncclUint32, ncclSum, comm, r->stream));
		NCCL(ncclCommAbort(comm));
		CHECK(!shunt_stream_synchronize(r->stream));
		shunt_free(buf);
	} else {
		CHECK(!await_failure(r, comm, LARGE));
		NCCL(ncclCommAbort(comm));
	}
	CHECK(now() - start < AT_ONCE_S);
	return begin_anew(r, 0, 1);
}

static void test_an_abort_reaches_all(void **state)
{
	phase = IN_LARGE;
	run_world(&(struct world){ .place = "0011", .body = abort_body });
}

/* Rank 0 aborts an init in which a rank is missing; then all begin without blocking. */
static int nonblocking_body(struct rank *r)
{
	ncclConfig_t config = ranks_config();
	struct world_shared *s = world_shared();
	ncclComm_t comm;
	double start = now();

	config.blocking = 0;
	if (r->rank != 3) {
		ncclResult_t res = ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config), state;

		CHECK(res == ncclInProgress || !res);
		NCCL(ncclCommGetAsyncError(comm, &state));
		CHECK(state == ncclInProgress);
		NCCL(ncclCommAbort(comm));
		CHECK(now() - start < AT_ONCE_S);
	}
	if (!r->rank) {
		NCCL(ncclGetUniqueId(&s->id[0]));
		s->step[0] = 1;
	}
	CHECK(!world_await(0, 1));
	CHECK(ncclCommInitRankConfig(&comm, r->nranks, s->id[0], r->rank, &config) <= ncclInProgress);
	NCCL(ranks_settled(comm));
	CHECK(!good_call(r, comm, SMALL, 0));
	CHECK(!good_call(r, comm, LARGE, 0));
	CHECK(ncclCommFinalize(comm) <= ncclInProgress);
	NCCL(ranks_settled(comm));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void test_inits_that_do_not_block(void **state)
{
	run_world(&(struct world){ .place = "0011", .body = nonblocking_body });
}

/* The root of a broadcast has ended its communicator before the others begin to receive. */
static int skew_body(struct rank *r)
{
	uint32_t *buf;
	ncclComm_t comm;

	CHECK(!shunt_malloc((void **)&buf, 4096));
	for (int i = 0; i < 1024; i++)
		buf[i] = r->rank ? 0 : (uint32_t)i + 5;
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	if (r->rank) {
		CHECK(!world_await(0, 1));
		pause_us(PAUSE_LATE, (unsigned)r->rank * 700000);
	}
	NCCL(ncclBroadcast(buf, buf, 1024, ncclUint32, 0, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	NCCL(ncclCommDestroy(comm));
	if (!r->rank) {
		world_shared()->step[0] = 1;
		CHECK(!world_await(1, r->nranks - 1)); /* its process is still there: the connections linger */
	}
	for (int i = 0; i < 1024; i++)
		CHECK(buf[i] == (uint32_t)i + 5);
	atomic_fetch_add(&world_shared()->step[1], 1);
	shunt_free(buf);
	return 0;
}

static void test_ends_out_of_step(void **state)
{
	run_world(&(struct world){ .place = "0123", .body = skew_body });
}

/* ---- what an idle proxy takes */

/* ns of CPU time of the process's proxy threads; -1: the kernel does not tell. */
static long long proxy_ns(void)
{
	DIR *dir = opendir("/proc/self/task");
	long long total = 0, ns;
	struct dirent *e;
	char path[300], name[32];

	while (dir && (e = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		if (!fgets(name, sizeof(name), f))
			*name = 0;
		fclose(f);
		if (strcmp(name, "shunt-proxy\n"))
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", e->d_name);
		f = fopen(path, "re");
		if (!f || fscanf(f, "%lld", &ns) != 1)
			ns = -1;
		if (f)
			fclose(f);
		total = ns < 0 || total < 0 ? -1 : total + ns;
	}
	if (dir)
		closedir(dir);
	return total;
}

static int idle_body(struct rank *r)
{
	ncclComm_t comm;
	long long before, spent;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, LARGE, 0));
	pause_us(PAUSE_GRACE, 1000000);
	before = proxy_ns();
	pause_us(PAUSE_GRACE, 2000000);
	spent = proxy_ns() - before;
	CHECK(before > 0); /* the thread has worked */
	if (!r->rank)
		fprintf(stderr, "an idle proxy takes %.2f %% of a CPU\n", (double)spent / 2e7);
	CHECK(spent <= 20000000);
	CHECK(!good_call(r, comm, SMALL, 0));
	NCCL(ncclCommDestroy(comm));
	CHECK(proxy_ns() == 0); /* it ends with the last communicator */
	return 0;
}

static void test_an_idle_proxy_sleeps(void **state)
{
	run_world(&(struct world){ .place = "01", .named = true, .body = idle_body });
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_rank_dies),
		cmocka_unit_test(test_the_root_dies),
		cmocka_unit_test(test_all_ranks_of_a_host_die),
		cmocka_unit_test(test_a_cut_that_heals_is_no_failure),
		cmocka_unit_test(test_a_set_up_outlives_a_cut),
		cmocka_unit_test(test_calls_over_bad_networks),
		cmocka_unit_test(test_a_stopped_rank_is_not_dead),
		cmocka_unit_test(test_other_settings_on_one_rank_are_noticed),
		cmocka_unit_test(test_an_abort_reaches_all),
		cmocka_unit_test(test_inits_that_do_not_block),
		cmocka_unit_test(test_ends_out_of_step),
		cmocka_unit_test(test_an_idle_proxy_sleeps),
	};
	const struct CMUnitTest silent[] = {
		cmocka_unit_test(test_a_host_that_is_cut_off_is_noticed),
		cmocka_unit_test(test_a_black_hole_for_large_packets_is_noticed),
	};

	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_LOG", "error", 0);
	all = argc > 1 && !strcmp(argv[1], "all");
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	if (all && cmocka_run_group_tests_name("hosts_faults_silent", silent, NULL, NULL))
		return 1;
	return cmocka_run_group_tests_name("hosts_faults", tests, NULL, NULL);
}
