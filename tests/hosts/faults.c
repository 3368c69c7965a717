/* SPDX-License-Identifier: MIT */
/*
 * What goes wrong between hosts, standalone on the sim: ranks, the root's process and hosts that die at every stage,
 * networks that are cut, lossy, slow or narrow, ranks that are stopped, abort and end out of step. Whoever is left
 * gets an error that names a rank, within a limit, and makes a new communicator.
 */
#include "shunt/device.h"
#include "shunt/shunt.h"
#include "tests/hosts/faults.h"
#include "tests/hosts/naps.h"
#include "tests/support/clock.h"
#include "tests/support/own.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

enum { LARGE_PLANNED = WORLD_TSAN ? 200003 : 500003, CHECKED_ROUNDS = WORLD_TSAN ? 3 : 10 };

bool all;
enum phase phase;
static bool planned; /* all-reduces run as default plans */

/* ---- calls */

ncclResult_t sum(const struct rank *r, ncclComm_t comm, size_t count, uint32_t want, bool *right_p)
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

/* True: the call is what this test is about. */
static bool is_planned(ncclComm_t comm, size_t count)
{
	const char *path;

	return !shunt_path_of(comm, "allreduce", count, ncclUint32, ncclSum, &path) &&
	    !strncmp(path, "all_reduce_hierarchical", 23) == planned;
}

static size_t large_count(void)
{
	return planned ? LARGE_PLANNED : LARGE;
}

int good_call(const struct rank *r, ncclComm_t comm, size_t count, unsigned without)
{
	bool right;

	NCCL(sum(r, comm, count, sum_of(r, without), &right));
	CHECK(right);
	return 0;
}

int await_failure(const struct rank *r, ncclComm_t comm, size_t count)
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

int begin_anew(const struct rank *r, unsigned without, int place)
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

static bool leaves_child = true;
static unsigned victims;

/*
 * A data loader's process, say, is forked and lives on: until the survivors are done, or the test has ended. Its copies
 * of the dead one's connections, if it had any, would keep them open.
 */
static _Noreturn void die(void)
{
	pid_t test = getppid();

	if (leaves_child && !fork()) {
		while (world_shared()->step[5] < __builtin_popcount(~victims & 15) && !kill(test, 0))
			pause_us(PAUSE_POLL, 10000);
		_exit(0);
	}
	raise(SIGKILL);
	_exit(1);
}

static void *die_soon(void *arg)
{
	pause_us(PAUSE_LATE, *(unsigned *)arg);
	die();
}

static int victim_body(struct rank *r)
{
	static unsigned delay_us = 300000;
	pthread_t thread;
	ncclComm_t comm;
	bool right;

	if (phase == IN_INIT) {
		world_shared()->step[4] = (int)getpid();
		CHECK(!pthread_create(&thread, NULL, die_soon, &delay_us));
	}
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	if (phase == IN_SETUP) {
		CHECK(!world_await(0, r->nranks - __builtin_popcount(victims)));
		die();
	}
	CHECK(!good_call(r, comm, SMALL, 0));
	CHECK(is_planned(comm, SMALL) && is_planned(comm, large_count()));
	ranks_barrier(r, &world_shared()->step[2]); /* other victims are done, too */
	if (phase == IN_LARGE) {
		delay_us = 20000 + (unsigned)r->rank * 7000;
		CHECK(!pthread_create(&thread, NULL, die_soon, &delay_us));
		for (;;)
			sum(r, comm, large_count(), 0, &right);
	}
	CHECK(!world_await(0, r->nranks - __builtin_popcount(victims)));
	if (phase == IN_DESTROY) {
		delay_us = 100;
		CHECK(!pthread_create(&thread, NULL, die_soon, &delay_us));
		ncclCommDestroy(comm);
		pause_us(PAUSE_LATE, 10000000);
	}
	die();
}

static int survivor_body(struct rank *r)
{
	double start;
	ncclComm_t comm;

	if (phase == IN_INIT) {
		/* The one before the victim comes when that is dead. */
		if (r->rank == r->nranks - 2)
			CHECK(!world_await(4, 1) && until_process_ends(world_shared()->step[4]));
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
		CHECK(!await_failure(r, comm, phase == IN_LARGE ? large_count() : SMALL));
	}
	CHECK(now() - start < AT_ONCE_S);
	ncclCommAbort(comm);
	return begin_anew(r, victims, 1);
}

static int death_body(struct rank *r)
{
	int failed;

	if (victims >> r->rank & 1)
		return victim_body(r);
	failed = survivor_body(r);
	atomic_fetch_add(&world_shared()->step[5], 1);
	return failed;
}

/* Adds to the environment that all-reduces run as default plans, whose directory the build tells. */
static void add_plans(struct world *w)
{
	int i = 0;

	while (w->env[i][0])
		i++;
	w->env[i][0] = "SHUNT_ALGO";
	w->env[i][1] = "allreduce:0-inf:plan";
}

static void die_in(enum phase when, const char *place, unsigned who, bool named)
{
	struct world w = { .place = place,
		.named = named,
		.dies = who,
		.env = { { "SHUNT_TIMEOUT", "60s" }, { "SHUNT_SETUP_TIMEOUT", "60s" } },
		.body = death_body };

	phase = when;
	victims = who;
	if (planned)
		add_plans(&w);
	print_message("ranks 0x%x of %s die in phase %d\n", who, place, (int)when);
	run_world(&w);
}

TEST(test_a_rank_dies)
{
	for (enum phase p = IN_INIT; p <= IN_DESTROY; p++)
		die_in(p, "0011", 8, p % 2);
}

/* Rank 0, whose process made the unique id. */
TEST(test_the_root_dies)
{
	for (enum phase p = IN_SETUP; p <= IN_DESTROY; p++)
		if (all || p % 2 == 0)
			die_in(p, "0011", 1, !(p % 2));
}

TEST(test_all_ranks_of_a_host_die)
{
	for (enum phase p = IN_SETUP; p <= IN_DESTROY; p++)
		if (all || p == IN_LARGE)
			die_in(p, "0110", 6, false);
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

TEST(test_other_settings_on_one_rank_are_noticed)
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
		NCCL(ncclAllReduce(
		    buf, buf, phase == IN_LARGE ? large_count() : SMALL, ncclUint32, ncclSum, comm, r->stream));
		NCCL(ncclCommAbort(comm));
		CHECK(!shunt_stream_synchronize(r->stream));
		shunt_free(buf);
	} else {
		CHECK(!await_failure(r, comm, large_count()));
		NCCL(ncclCommAbort(comm));
	}
	CHECK(now() - start < AT_ONCE_S);
	return begin_anew(r, 0, 1);
}

TEST(test_an_abort_reaches_all)
{
	phase = IN_LARGE;
	run_world(&(struct world){ .place = "0011", .body = abort_body });
}

/* In the middle of a plan: the same as of other calls. */
TEST(test_a_rank_dies_or_aborts_in_a_plan)
{
	struct world w = { .place = "0011", .named = true, .body = abort_body };

	if (!getenv("SHUNT_DEFAULT_PLANS"))
		skip(); /* a build whose command does not run writes none */
	planned = true;
	die_in(IN_LARGE, "0011", 8, true);
	if (all)
		die_in(IN_SMALL, "0011", 1, true);
	phase = IN_LARGE;
	add_plans(&w);
	run_world(&w);
	planned = false;
}

/* Rank 0 aborts an init in which a rank is missing; then all begin without blocking. */
HOSTS_TEST(test_inits_that_do_not_block, { .place = "0011" })
{
	ncclConfig_t config = nccl_config_nonblocking();
	struct world_shared *s = world_shared();
	ncclComm_t comm;
	double start = now();

	if (r->rank != 3) {
		ncclResult_t res = ncclCommInitRankConfig(&comm, r->nranks, r->id, r->rank, &config), state;

		CHECK(res == ncclInProgress || !res);
		NCCL(ncclCommGetAsyncError(comm, &state));
		CHECK(state == ncclInProgress);
		atomic_fetch_add(&s->step[1], 1); /* the others' inits fail once one has aborted */
		CHECK(!world_await(1, 3));
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

/* The root of a broadcast has ended its communicator before the others begin to receive. */
HOSTS_TEST(test_ends_out_of_step, { .place = "0123" })
{
	uint32_t *buf = ranks_memory(r, 4096);
	ncclComm_t comm;

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
	return 0;
}

/*
 * Rank 0 leaves after a broadcast, which the others still get. The next one has no root any more: each that would
 * receive from it is told so, as if it had died, and long before the limit; and who would receive from those, too.
 */
static int left_body(struct rank *r)
{
	ncclResult_t res, state = ncclSuccess;
	double start;
	uint32_t *buf;
	ncclComm_t comm;

	CHECK(!shunt_malloc((void **)&buf, LARGE * 4));
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	for (int i = 0; i < LARGE; i++)
		buf[i] = r->rank ? 0 : (uint32_t)i + 5;
	NCCL(ncclBroadcast(buf, buf, 1024, ncclUint32, 0, comm, r->stream));
	atomic_fetch_add(&world_shared()->step[2], 1);
	if (!r->rank) {
		CHECK(!world_await(2, r->nranks)); /* a call that is made later may fail */
		CHECK(!shunt_stream_synchronize(r->stream));
		NCCL(ncclCommDestroy(comm));
		atomic_fetch_add(&world_shared()->step[0], 1);
		shunt_free(buf);
		return world_await(1, r->nranks - 1); /* its process is still there */
	}
	CHECK(!world_await(0, 1));
	CHECK(!shunt_stream_synchronize(r->stream));
	for (int i = 0; i < 1024; i++)
		CHECK(buf[i] == (uint32_t)i + 5);
	start = now();
	res = ncclBroadcast(buf, buf, phase == IN_LARGE ? LARGE : 1024, ncclUint32, 0, comm, r->stream);
	CHECK(!shunt_stream_synchronize(r->stream));
	CHECK(now() - start < AT_ONCE_S);
	if (!res)
		NCCL(ncclCommGetAsyncError(comm, &state));
	CHECK((res ? res : state) == ncclRemoteError);
	if (!strstr(world_error(), "has left, and a call still waits for it") && !strstr(world_error(), "has given up"))
		fprintf(stderr, "rank %d: %s\n", r->rank, world_error());
	CHECK(
	    strstr(world_error(), "has left, and a call still waits for it") || strstr(world_error(), "has given up"));
	CHECK(strstr(world_error(), "rank"));
	NCCL(ncclCommAbort(comm));
	atomic_fetch_add(&world_shared()->step[1], 1);
	shunt_free(buf);
	return 0;
}

TEST(test_a_rank_that_has_left_is_noticed_by_who_receives)
{
	static const char *const places[] = { "011", "01", "0122" };

	for (size_t i = 0; i < 3; i++) {
		phase = i == 1 ? IN_LARGE : IN_SMALL;
		run_world(&(struct world){
		    .place = places[i], .named = i > 0, .env = { { "SHUNT_TIMEOUT", "200s" } }, .body = left_body });
	}
}

/* ---- SHUNT_CHECK */

/* Many calls that are right, of all kinds and in groups; then one rank has another count, and every rank says so. */
static int check_body(struct rank *r)
{
	size_t n = (size_t)r->nranks;
	char want[64];
	uint32_t *buf = ranks_memory(r, 2 * n * SMALL * 4);
	ncclComm_t comm;

	memset(buf, 0, 2 * n * SMALL * 4);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	for (int k = 0; k < CHECKED_ROUNDS; k++) {
		CHECK(!good_call(r, comm, (size_t)(1 + k * 1731), 0));
		NCCL(ncclAllGather(buf, buf + SMALL, SMALL - (size_t)k, ncclUint32, comm, r->stream));
		NCCL(ncclGroupStart());
		NCCL(ncclBroadcast(buf, buf, SMALL, ncclUint32, k % r->nranks, comm, r->stream));
		NCCL(ncclReduce(buf, buf + SMALL, SMALL, ncclUint32, ncclMax, k % r->nranks, comm, r->stream));
		NCCL(ncclGroupEnd());
	}
	CHECK(!shunt_stream_synchronize(r->stream));
	NCCL(ncclAllReduce(buf, buf, SMALL + (r->rank == 3), ncclUint32, ncclSum, comm, r->stream));
	CHECK(!shunt_stream_synchronize(r->stream));
	CHECK(ncclAllReduce(buf, buf, SMALL, ncclUint32, ncclSum, comm, r->stream) == ncclInvalidUsage);
	snprintf(want, sizeof(want), "rank 3 calls allreduce of %d uint32", SMALL + 1);
	if (!strstr(world_error(), want))
		fprintf(stderr, "rank %d: %s\n", r->rank, world_error());
	CHECK(strstr(world_error(), want));
	ranks_barrier(r, &world_shared()->step[0]); /* an abort would reach who has not looked */
	NCCL(ncclCommAbort(comm));
	return begin_anew(r, 0, 1);
}

TEST(test_calls_are_compared_over_hosts)
{
	static const char *const places[] = { "0110", "0123" };

	for (size_t i = 0; i < (all ? 2 : 1); i++)
		run_world(&(struct world){ .place = places[i],
		    .named = i > 0,
		    .env = { { "SHUNT_CHECK", "1" }, { "SHUNT_TIMEOUT", "100s" } },
		    .body = check_body });
}

/* ---- abort in the middle of a set-up, with and without blocking */

struct aborter {
	ncclComm_t comm;
	int round;
	bool sure; /* the call was in its set-up */
};

/* Once this rank waits in its set-up, for which rank 3 is stopped, that one goes on, and so does the set-up for a
 * while. */
static void *abort_soon(void *arg)
{
	struct aborter *a = arg;

	a->sure = until_dump_has(getpid(), "\"phase\": \"set-up\"");
	kill(world_shared()->step[3], SIGCONT);
	pause_us(PAUSE_LATE, (unsigned)a->round * 20000);
	ncclCommAbort(a->comm);
	return NULL;
}

/* The call, or one behind it, says that rank 2 is gone. */
static int await_abort(const struct rank *r, ncclComm_t comm, ncclResult_t res)
{
	double end = now() + SILENCE_S;
	ncclResult_t state = ncclSuccess;

	while ((!res || res == ncclInProgress) && now() < end) {
		CHECK(!shunt_stream_synchronize(r->stream));
		NCCL(ncclCommGetAsyncError(comm, &state));
		res = state;
		pause_us(PAUSE_POLL, 1000);
	}
	if (res != ncclRemoteError && res != ncclSystemError)
		fprintf(stderr, "rank %d: %d, \"%s\"\n", r->rank, (int)res, world_error());
	CHECK(res == ncclRemoteError || res == ncclSystemError);
	return 0;
}

/* A first call whose set-up is aborted on rank 2 after a time; who is left gets an error. */
static int abort_in_setup(struct rank *r, ncclConfig_t *config, int round)
{
	struct world_shared *s = world_shared();
	struct aborter aborter = { .round = round };
	ncclResult_t res;
	double start;
	uint32_t *buf;
	pthread_t thread;

	CHECK(!shunt_malloc((void **)&buf, SMALL * 4));
	if (!r->rank) {
		NCCL(ncclGetUniqueId(&s->id[0]));
		s->step[0] = round + 1;
	}
	CHECK(!world_await(0, round + 1));
	CHECK(ncclCommInitRankConfig(&aborter.comm, r->nranks, s->id[0], r->rank, config) <= ncclInProgress);
	NCCL(ranks_settled(aborter.comm));
	atomic_fetch_add(&s->step[1], 1);
	CHECK(!world_await(1, (round + 1) * r->nranks));
	start = now();
	/*
	 * Nobody answers for rank 3 then: a set-up needs its process, but no call of it. Rank 2 alone looks, since it
	 * alone ends the stop, and might do so before another rank's look.
	 */
	if (r->rank == 3) {
		s->step[3] = getpid();
		raise(SIGSTOP);
	} else if (r->rank == 2) {
		CHECK(!world_await(3, 1) && until_process_stops(s->step[3]));
		s->step[5] = round + 1;
		CHECK(!pthread_create(&thread, NULL, abort_soon, &aborter));
	} else {
		CHECK(!world_await(5, round + 1));
	}
	res = ncclAllReduce(buf, buf, SMALL, ncclUint32, ncclSum, aborter.comm, r->stream);
	if (r->rank == 2) {
		CHECK(!pthread_join(thread, NULL));
		CHECK(aborter.sure);
		CHECK(!shunt_stream_synchronize(r->stream));
	} else {
		CHECK(!await_abort(r, aborter.comm, res));
		NCCL(ncclCommAbort(aborter.comm));
	}
	CHECK(now() - start < AT_ONCE_S);
	atomic_fetch_add(&s->step[2], 1);
	CHECK(!world_await(2, (round + 1) * r->nranks));
	shunt_free(buf);
	return 0;
}

/* So that the rounds of a set-up, and its connections, take their time. */
static void make_far(struct netns *netns)
{
	for (int h = 0; h < 2; h++)
		netns_link(netns, h)->delay_us = 10000;
}

HOSTS_TEST(test_an_abort_in_any_phase_of_the_setup,
    { .place = "0011",
        .env = { { "SHUNT_TIMEOUT", "200s" }, { "SHUNT_SETUP_TIMEOUT", "100s" } },
        .meanwhile = make_far })
{
	ncclConfig_t config = nccl_config_unset();

	for (int round = 0; round < (all ? 24 : 10); round++) {
		config.blocking = round % 2;
		CHECK(!abort_in_setup(r, &config, round));
	}
	return begin_anew(r, 0, 4);
}

/* ---- what an idle proxy does */

/* All ranks have come here. */
static int together(const struct rank *r, int step)
{
	atomic_fetch_add(&world_shared()->step[step], 1);
	return world_await(step, r->nranks);
}

HOSTS_TEST(test_an_idle_proxy_sleeps, { .place = "01", .named = true })
{
	enum { NAPS = 300 };
	int naps_before, turns_before, taken, turns;
	ncclComm_t comm;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, LARGE, 0));
	/* What one rank does may wake the other's proxy: both are idle until both have counted. */
	CHECK(naps_until_longest(1));
	CHECK(!together(r, 0));
	CHECK(naps_until_longest(1));
	CHECK(!together(r, 1));
	naps_before = atomic_load(&naps.naps);
	turns_before = atomic_load(&naps.turns);
	CHECK(naps_until_longest(NAPS));
	turns = atomic_load(&naps.turns) - turns_before;
	taken = atomic_load(&naps.naps) - naps_before;
	if (!r->rank)
		fprintf(stderr, "an idle proxy took %d naps for %d long ones, and %d turns\n", taken, NAPS, turns);
	CHECK(!together(r, 2));
	CHECK(taken < 2 * NAPS);
	CHECK(turns < 2 * taken + NAPS);
	CHECK(!good_call(r, comm, SMALL, 0));
	NCCL(ncclCommDestroy(comm));
	for (double end = now() + AT_ONCE_S; naps_proxies(); pause_us(PAUSE_POLL, 1000))
		CHECK(now() < end); /* it ends with the last communicator */
	return 0;
}

/* ---- who tells of a death */

/*
 * Rank 3 is killed while the others are idle (phase IN_IDLE) or call. By verbs the time-outs of the NICs are far behind
 * the test's end: all that the others know comes from rank 2, which is on the same host. Each names rank 3.
 */
static int untold_body(struct rank *r)
{
	ncclResult_t state = ncclSuccess;
	ncclComm_t comm;
	bool right;

	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	ranks_barrier(r, &world_shared()->step[0]);
	if (r->rank == 3)
		raise(SIGKILL);
	if (phase != IN_IDLE)
		state = sum(r, comm, SMALL, 0, &right);
	for (double end = now() + SILENCE_S; !state && now() < end; pause_us(PAUSE_POLL, 1000))
		NCCL(ncclCommGetAsyncError(comm, &state));
	if (state != ncclRemoteError || !strstr(world_error(), "rank 3"))
		fprintf(stderr, "rank %d: %d, \"%s\"\n", r->rank, (int)state, world_error());
	CHECK(state == ncclRemoteError && strstr(world_error(), "rank 3"));
	/* At once: rank 2 hears the reason from the others all the same, and inside a host an abort tells nobody. */
	NCCL(ncclCommAbort(comm));
	return 0;
}

TEST(test_a_death_is_told_by_a_rank_of_the_same_host)
{
	for (int idle = 0; idle < 2; idle++) {
		phase = idle ? IN_IDLE : IN_SMALL;
		run_world(&(struct world){ .place = "0011",
		    .named = true,
		    .dies = 8,
		    .env = { { "FAKE_IBV_TIMEOUT_MIN_MS", "600000" } },
		    .body = untold_body });
	}
}

/*
 * A rank that has ended in peace, though without destroying its communicator, is no death. Its NIC is slow to send, and
 * what it has not sent by the end of the process is lost.
 */
static int peace_body(struct rank *r)
{
	ncclResult_t state;
	uint32_t *buf = ranks_memory(r, SMALL * 4);
	ncclComm_t comm;

	if (r->rank == 3)
		setenv("FAKE_IBV_LATE_READ_US", "40000", 1);
	NCCL(ncclCommInitRank(&comm, r->nranks, r->id, r->rank));
	CHECK(!good_call(r, comm, SMALL, 0));
	if (r->rank == 3) {
		world_shared()->step[1] = (int)getpid();
		ranks_barrier(r, &world_shared()->step[0]);
		exit(0); /* with the handlers, which say farewell */
	}
	ranks_barrier(r, &world_shared()->step[0]);
	CHECK(until_process_ends(world_shared()->step[1]));
	for (int k = 0; k < 50; k++) { /* for longer than a farewell is waited for */
		NCCL(r->rank == 1    ? ncclSend(buf, SMALL, ncclUint32, 2, comm, r->stream) :
		        r->rank == 2 ? ncclRecv(buf, SMALL, ncclUint32, 1, comm, r->stream) :
		                       ncclSuccess);
		CHECK(!shunt_stream_synchronize(r->stream));
		pause_us(PAUSE_GRACE, 10000);
		NCCL(ncclCommGetAsyncError(comm, &state));
		CHECK(state == ncclSuccess);
	}
	ranks_barrier(&(struct rank){ .rank = r->rank, .nranks = 3 }, &world_shared()->step[2]);
	NCCL(ncclCommAbort(comm));
	return 0;
}

static void test_a_rank_that_ends_in_peace_is_no_death(void **state)
{
	run_world(&(struct world){ .place = "0011", .named = true, .body = peace_body });
}

/* Hosts that are names, by the libibverbs of tests/fake_ibverbs. */
static int run_by_verbs(void)
{
	const struct CMUnitTest by_verbs[] = {
		cmocka_unit_test(test_a_rank_dies_or_aborts_in_a_plan),
		cmocka_unit_test(test_a_death_is_told_by_a_rank_of_the_same_host),
		cmocka_unit_test(test_a_rank_that_ends_in_peace_is_no_death),
	};
	char folder[64], fabric[96];
	int failed;

	if (!own_folder(folder))
		return 1;
	snprintf(fabric, sizeof(fabric), "%s/fabric", folder);
	setenv("FAKE_IBV_FABRIC", fabric, 1);
	setenv("FAKE_IBV_DEVICES", "mlx0 link=roce", 1);
	setenv("SHUNT_NET", "verbs", 1);
	leaves_child = false; /* it would have the fake's own connections */
	failed = cmocka_run_group_tests_name("hosts_faults_verbs", by_verbs, NULL, NULL);
	own_folder_end(folder);
	return failed;
}

int main(int argc, char **argv)
{
	setenv("SHUNT_DEVICE", "sim", 1);
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_LOG", "error", 0);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	if (argc > 1 && !strcmp(argv[1], "verbs"))
		return run_by_verbs();
	all = argc > 1 && !strcmp(argv[1], "all");
	if (all && run_silences())
		return 1;
	return tests_run(NULL, NULL);
}
