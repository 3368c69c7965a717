/* SPDX-License-Identifier: MIT */
/* Of faults.c: networks that are cut or bad, and ranks that are stopped. */
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/faults.h"
#include "tests/support/clock.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"

/*
 * ThreadSanitizer looks at the order of threads: fewer calls have all kinds, and kernels, whose waiting takes the most
 * of the time, wait for less long.
 */
enum { STEP = WORLD_TSAN ? 2 : 1, LOST = WORLD_TSAN ? 3 : 6, STOPPED_US = WORLD_TSAN ? 200000 : 700000 };

/* ---- networks that are cut */

static void cut(int host, bool out, bool in)
{
	netns_link(world_netns(), host)->cut_out = out;
	netns_link(world_netns(), host)->cut_in = in;
}

/* Loses so many frames of the host's, or to it. Each is sent again, and twice as long after the one before it. */
static int lose(const struct rank *r, int host, bool out, bool in, unsigned frames)
{
	struct netns_link *link = netns_link(world_netns(), host);
	unsigned long long before = atomic_load(&link->cut);

	cut(host, out, in);
	for (double end = now() + AT_ONCE_S; atomic_load(&link->cut) < before + frames; pause_us(PAUSE_POLL, 1000))
		CHECK(now() < end);
	cut(host, false, false);
	return 0;
}

/* TCP sends several times again, for less than the limit of silence. */
HOSTS_TEST(test_a_cut_that_heals_is_no_failure, { .place = "0011" })
{
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < 3; k++) {
		CHECK(!good_call(r, comm, SMALL, 0));
		ranks_barrier(r, &world_shared()->step[2 * k]);
		if (!r->rank) {
			CHECK(!lose(r, 1, k != 1, k != 0, all ? 12 : LOST));
		}
		CHECK(!good_call(r, comm, k == 2 ? LARGE : SMALL, 0));
		ranks_barrier(r, &world_shared()->step[2 * k + 1]);
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

/* The set-up and a split find a network that is away, for longer than a call tries by itself. */
HOSTS_TEST(test_a_set_up_outlives_a_cut, { .place = "0011", .env = { { "SHUNT_SETUP_TIMEOUT", "40s" } } })
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
	for (int k = 0; k < 20; k += STEP)
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

TEST(test_calls_over_bad_networks)
{
	static void (*const make[])(struct netns *) = { make_lossy, make_slow, make_narrow };

	for (size_t i = 0; i < (all ? 3 : 1); i++)
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

HOSTS_TEST(test_a_stopped_rank_is_not_dead, { .place = "0011" })
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
			pause_us(PAUSE_LATE, STOPPED_US);
			kill(world_shared()->step[0], SIGCONT);
		}
		if (!r->rank && k == 2) {
			pid_t child = fork();

			if (!child) {
				pause_us(PAUSE_LATE, all ? 30000000 : 2 * STOPPED_US);
				kill(world_shared()->step[0], SIGCONT);
				_exit(0);
			}
		}
		CHECK(!good_call(r, comm, LARGE, 0));
	}
	NCCL(ncclCommDestroy(comm));
	return 0;
}

int run_silences(void)
{
	const struct CMUnitTest silences[] = {
		cmocka_unit_test(test_a_host_that_is_cut_off_is_noticed),
		cmocka_unit_test(test_a_black_hole_for_large_packets_is_noticed),
	};

	return cmocka_run_group_tests_name("hosts_faults_silences", silences, NULL, NULL);
}
