/* SPDX-License-Identifier: MIT */
/*
 * What breaks an expert parallel group, and what one with masks survives. Ranks as processes, on the sim; with "hosts2"
 * and the like (ep_ranks.h) over hosts.
 */
#include "tests/e2e/ep_ranks.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tests/support/until.h"

#define LATE_NS 300000000ull     /* for a rank that never comes */
#define LONG_NS 3600000000000ull /* for a wait that must not last until its deadline */

static struct {
	atomic_int barrier[8];
	_Atomic pid_t pid; /* of the rank that is stopped */
} *shared;

static const struct ep_job job = {
	.experts = 6, .topk = 2, .hidden = 128, .max_tokens = 4, .dtype = 9, .tokens = { 4, 2, 3 }, .seed = 5
};

static unsigned dead; /* ranks that die in a run */

static int run(int n, unsigned dies, rank_fn body)
{
	dead = dies;
	memset(shared, 0, sizeof(*shared));
	return ep_ranks_run(RANKS_PROCESSES, n, dies, body);
}

static struct ep_job job_of(const struct rank *r)
{
	struct ep_job mine = job;

	mine.nranks = r->nranks;
	mine.experts = r->nranks == 4 ? 8 : job.experts;
	return mine;
}

static int make(struct rank *r, uint32_t flags, uint64_t timeout_ns, struct ep_run *call, struct shunt_ep **group_p)
{
	struct ep_job mine = job_of(r);

	CHECK(ep_group_make(r, 0, &mine, flags, timeout_ns, group_p) == 0);
	return ep_run_prepare(call, &mine, r);
}

/* What a rank does to its group in the end is an error on other hosts: waits for all ranks first. */
static int leave(struct rank *r, struct shunt_ep *group, int abort)
{
	if (!dead)
		ranks_barrier(r, &shared->barrier[7]);
	CHECK(shunt_ep_destroy(group, abort) == 0);
	return 0;
}

/* The group is broken by this error, whose text has these words. */
static int is_broken(struct rank *r, struct shunt_ep *group, int expected, const char *words)
{
	char text[300];
	int err;

	CHECK(shunt_stream_synchronize(r->stream) == 0);
	err = shunt_ep_error(group, text, sizeof(text));
	if (err != expected || !strstr(text, words))
		fprintf(stderr, "rank %d: error %d (%s), not %d (%s)\n", r->rank, err, text, expected, words);
	CHECK(err == expected && strstr(text, words));
	return 0;
}

/* It says so to every call from then on. */
static int broken(struct rank *r, struct shunt_ep *group, struct ep_run *call, int expected, const char *words)
{
	CHECK(is_broken(r, group, expected, words) == 0);
	CHECK(shunt_ep_ll_dispatch(group, &call->dispatch) == expected);
	CHECK(shunt_ep_barrier(group, r->stream) == expected);
	ep_run_finish(call);
	return leave(r, group, 0);
}

static struct {
	int max_tokens, hidden, experts, topk, form;
	const char *words[2]; /* of rank 0 and of rank 1 */
} other;

static int body_differs(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, 0, &call, &group) == 0);
	if (r->rank == 1) {
		call.dispatch.max_tokens -= other.max_tokens;
		call.dispatch.hidden -= other.hidden;
		call.dispatch.experts -= other.experts;
		call.dispatch.topk -= other.topk;
		call.dispatch.form = other.form;
		call.dispatch.recv_scales = call.dispatch.recv_x;
		call.dispatch.tokens = 2;
	}
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
	return broken(r, group, &call, -EPROTO, other.words[r->rank]);
}

TEST(test_values_that_differ)
{
	static const __typeof__(other) rows[] = {
		{ .max_tokens = 1,
		    .words = { "rank 0 calls ep_ll_dispatch with max_tokens 4 where rank 1 has 3",
		        "rank 1 calls ep_ll_dispatch with max_tokens 3 where rank 0 has 4" } },
		{ .hidden = 64, .words = { "hidden 128 where rank 1 has 64", "hidden 64 where rank 0 has 128" } },
		{ .experts = 2, .words = { "experts 6 where rank 1 has 4", "experts 4 where rank 0 has 6" } },
		{ .topk = 1, .words = { "topk 2 where rank 1 has 1", "topk 1 where rank 0 has 2" } },
		{ .form = SHUNT_EP_FP8, .words = { "form 0 where rank 1 has 1", "form 1 where rank 0 has 0" } },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		other = rows[i];
		assert_int_equal(run(2, 0, body_differs), 0);
	}
}

static int64_t bad_id;

static int body_bad_id(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, 0, &call, &group) == 0);
	if (r->rank == 0) {
		CHECK(shunt_memcpy((int64_t *)call.dispatch.topk_idx + 5, &bad_id, sizeof(bad_id)) == 0);
		CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
		return broken(r, group, &call, -EINVAL, "token 2 names expert");
	}
	/* It has nobody to wait for. */
	ep_run_finish(&call);
	return leave(r, group, 1);
}

TEST(test_ids_that_are_no_experts)
{
	static const int64_t ids[] = { 6, -2, INT64_C(1) << 31, (INT64_C(1) << 33) + 1 };

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		bad_id = ids[i];
		assert_int_equal(run(2, 0, body_bad_id), 0);
	}
}

/* The host does not see what a graph sends. */
RANKS_TEST(test_third_call_of_a_graph, run(2, 0, body))
{
	struct shunt_ep *group;
	struct ep_run call;
	void *graph;

	CHECK(make(r, 0, 0, &call, &group) == 0);
	call.dispatch.phases = SHUNT_EP_SEND;
	CHECK(shunt_ep_barrier(group, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_capture_begin(r->stream) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	CHECK(shunt_graph_launch(graph, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_graph_destroy(graph) == 0);
	return broken(r, group, &call, -EDEADLK, "sends a third low latency dispatch");
}

RANKS_TEST(test_rank_that_does_not_come, run(2, 0, body))
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, LATE_NS, &call, &group) == 0);
	if (r->rank)
		return leave(r, group, 0);
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
	return broken(r, group, &call, -ETIMEDOUT, "waited 300 ms for the call of rank 1 in ep_ll_dispatch");
}

/* Stops this rank until the other one lets it go on. */
static void stop(void)
{
	atomic_store(&shared->pid, getpid());
	kill(getpid(), SIGSTOP);
}

static bool wait_for_stop(void)
{
	while (!atomic_load(&shared->pid))
		pause_us(PAUSE_POLL, 1000);
	return until_process_stops(shared->pid);
}

static unsigned stopped_us; /* for so long a call waits for the rank that is stopped */

/* A rank that is stopped is late, and not dead. */
static int body_stopped(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, 0, &call, &group) == 0);
	if (r->rank == 1)
		stop();
	else
		CHECK(wait_for_stop());
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
	if (r->rank == 0) {
		CHECK(until_begun(getpid(), 1));
		pause_us(PAUSE_GRACE, stopped_us);
		CHECK(kill(shared->pid, SIGCONT) == 0);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_ep_error(group, NULL, 0) == 0);
	CHECK(ep_run_check_dispatch(&call, r) == 0);
	ep_run_finish(&call);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

TEST(test_rank_that_is_stopped)
{
	stopped_us = 0;
	assert_int_equal(run(2, 0, body_stopped), 0);
}

/* Longer than it takes to notice a death. */
TEST(test_long_rank_that_is_stopped)
{
	stopped_us = 3000000;
	assert_int_equal(run(2, 0, body_stopped), 0);
}

RANKS_TEST(test_rank_that_is_stopped_past_the_deadline, run(2, 0, body))
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, LATE_NS, &call, &group) == 0);
	if (r->rank == 1) {
		stop();
		ep_run_finish(&call);
		return leave(r, group, 1);
	}
	CHECK(wait_for_stop());
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(kill(shared->pid, SIGCONT) == 0);
	return broken(r, group, &call, -ETIMEDOUT, "waited 300 ms for the call of rank 1 in ep_ll_dispatch");
}

/* Ranks 0 and 1 end the group; the others wait for them in vain, and end it, too. */
static int body_half_ends(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, LATE_NS, &call, &group) == 0);
	if (r->rank >= 2) {
		CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
		return broken(r, group, &call, -ETIMEDOUT, "waited 300 ms for the call of rank ");
	}
	ep_run_finish(&call);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	ranks_barrier(r, &shared->barrier[7]);
	return 0;
}

TEST(test_half_of_the_ranks_end_the_group)
{
	if (ep_hosts)
		skip(); /* they may hear first that a rank has left, or wait in vain */
	assert_int_equal(run(4, 0, body_half_ends), 0);
}

/* Killed between its send phase and its receive phase; the others have its rows, and wait for its next call. */
static int body_killed(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, 0, 0, &call, &group) == 0);
	call.dispatch.phases = SHUNT_EP_SEND;
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0 && shunt_stream_synchronize(r->stream) == 0);
	ranks_barrier(r, &shared->barrier[0]);
	if (dead >> r->rank & 1)
		kill(getpid(), SIGKILL);
	/*
	 * Over hosts the end of a connection breaks the group at once; what came before it may be lost. A rank may hear
	 * of the death from one of a third host, which has given up because of it.
	 */
	if (ep_hosts) {
		(void)shunt_ep_barrier(group, r->stream);
		return broken(r, group, &call, -EOWNERDEAD, ep_hosts == 2 ? "on host1" : "rank 1");
	}
	call.dispatch.phases = SHUNT_EP_RECEIVE;
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(ep_run_check_dispatch(&call, r) == 0);
	CHECK(shunt_ep_barrier(group, r->stream) == 0);
	return broken(r, group, &call, -EOWNERDEAD, "rank 1 died");
}

TEST(test_rank_that_dies)
{
	assert_int_equal(run(3, 2, body_killed), 0);
	if (ep_hosts == 2)
		assert_int_equal(run(4, 2 | 8, body_killed), 0); /* a whole host */
}

/* A dispatch and a combine in which the masked ranks have no part. */
static int go_on(struct rank *r, struct shunt_ep *group, uint32_t masked, int n)
{
	struct ep_job mine = job_of(r);
	struct ep_run call;
	int32_t masks[4] = { 7, 7, 7, 7 };

	mine.masked = masked;
	for (int i = 0; i < n; i++, mine.seed++) {
		ep_run_prepare(&call, &mine, r);
		CHECK(ep_run_fill_rows(&call, r) == 0);
		CHECK(
		    shunt_ep_ll_dispatch(group, &call.dispatch) == 0 && shunt_ep_ll_combine(group, &call.combine) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_ep_error(group, NULL, 0) == 0);
		CHECK(ep_run_check_dispatch(&call, r) == 0 && ep_run_check_combine(&call, r) == 0);
		ep_run_finish(&call);
	}
	CHECK(shunt_ep_masks(group, masks, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	for (int p = 0; p < r->nranks; p++)
		CHECK(masks[p] == (int32_t)(masked >> p & 1));
	return 0;
}

static int body_masked_dead(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, SHUNT_EP_MASKS, 0, &call, &group) == 0);
	CHECK(go_on(r, group, 0, 1) == 0);
	ranks_barrier(r, &shared->barrier[0]); /* over hosts what a rank has sent may go with it */
	if (dead >> r->rank & 1)
		kill(getpid(), SIGKILL);
	CHECK(go_on(r, group, dead, 3) == 0);
	CHECK(shunt_ep_barrier(group, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_ep_error(group, NULL, 0) == 0);
	ep_run_finish(&call);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

TEST(test_masks_survive_a_death)
{
	assert_int_equal(run(3, 2, body_masked_dead), 0);
	if (ep_hosts == 2)
		assert_int_equal(run(4, 2 | 8, body_masked_dead), 0); /* a whole host */
	else if (ep_hosts)
		assert_int_equal(run(4, 2 | 4, body_masked_dead), 0); /* two */
}

/* Over hosts it is known of a rank that aborts its group, or ends it, that it does not come any more. */
static int body_masked_left(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_run call;
	uint32_t left = r->nranks == 3 ? 2 : ep_hosts == 2 ? 2 | 8 : 2 | 4;

	CHECK(make(r, SHUNT_EP_MASKS, 0, &call, &group) == 0);
	CHECK(go_on(r, group, 0, 1) == 0);
	ranks_barrier(r, &shared->barrier[0]);
	if (r->rank == 1)
		CHECK(shunt_ep_barrier(group, r->stream) == 0); /* the others do not come */
	if (left >> r->rank & 1)
		CHECK(shunt_ep_destroy(group, r->rank == 1) == 0);
	else
		CHECK(go_on(r, group, left, 3) == 0);
	ranks_barrier(r, &shared->barrier[1]);
	ep_run_finish(&call);
	if (!(left >> r->rank & 1))
		CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

TEST(test_masks_survive_ranks_that_leave)
{
	if (!ep_hosts)
		skip();
	assert_int_equal(run(3, 0, body_masked_left), 0);
	assert_int_equal(run(4, 0, body_masked_left), 0);
}

RANKS_TEST(test_masks_survive_a_rank_that_does_not_come, run(2, 0, body))
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, SHUNT_EP_MASKS, r->rank ? 0 : LATE_NS, &call, &group) == 0);
	if (r->rank == 0) {
		CHECK(go_on(r, group, 2, 2) == 0);
		CHECK(shunt_ep_barrier(group, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	}
	ranks_barrier(r, &shared->barrier[0]);
	ep_run_finish(&call);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/* Masked by hand on both sides, and taken back. */
RANKS_TEST(test_masks_by_hand, run(3, 0, body))
{
	struct shunt_ep *group;
	struct ep_run call;

	CHECK(make(r, SHUNT_EP_MASKS, 0, &call, &group) == 0);
	CHECK(shunt_ep_mask(group, 3, 1, r->stream) == -EINVAL && shunt_ep_mask(group, -1, 1, r->stream) == -EINVAL);
	for (int i = 0; i < 3; i++) {
		uint32_t masked = r->rank == 2 ? 3 : 4;

		CHECK(go_on(r, group, 0, 2) == 0);
		for (int p = 0; p < 3; p++)
			CHECK(!(masked >> p & 1) || shunt_ep_mask(group, p, 1, r->stream) == 0);
		CHECK(go_on(r, group, masked, 3) == 0);
		for (int p = 0; p < 3 && i; p++)
			CHECK(!(masked >> p & 1) || shunt_ep_mask(group, p, 0, r->stream) == 0);
		CHECK(i || shunt_ep_masks_clear(group, r->stream) == 0);
		CHECK(shunt_ep_barrier(group, r->stream) == 0);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	ep_run_finish(&call);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/*
 * Masked for so many calls that all that counts them has gone round, the triggers of the proxy, too. The ranks work
 * alone meanwhile, each at its own pace.
 */
RANKS_TEST(test_masks_for_many_calls, run(3, 0, body))
{
	enum { CALLS = 300 };
	struct ep_job mine = job_of(r);
	struct shunt_ep *group;
	struct ep_run call, alone;

	CHECK(make(r, SHUNT_EP_MASKS, 0, &call, &group) == 0);
	ep_run_prepare(&alone, &mine, r);
	CHECK(ep_run_fill_rows(&alone, r) == 0);
	CHECK(go_on(r, group, 0, 1) == 0);
	for (int p = 0; p < r->nranks; p++)
		CHECK(p == r->rank || shunt_ep_mask(group, p, 1, r->stream) == 0);
	for (int i = 0; i < CALLS; i++)
		CHECK(shunt_ep_ll_dispatch(group, &alone.dispatch) == 0 &&
		    shunt_ep_ll_combine(group, &alone.combine) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	ep_run_finish(&alone);
	CHECK(go_on(r, group, 7u & ~(1u << r->rank), 1) == 0);
	CHECK(shunt_ep_masks_clear(group, r->stream) == 0);
	CHECK(shunt_ep_barrier(group, r->stream) == 0);
	CHECK(go_on(r, group, 0, 3) == 0);
	ep_run_finish(&call);
	return leave(r, group, 0);
}

/*
 * Masked for the dispatch alone. So neither rank has the other's tokens, and no rows for the combine: what lies where
 * these would come is not taken for them. On one host they wait for rows until the deadline.
 */
static int body_masked_between(struct rank *r)
{
	struct ep_job mine = job_of(r);
	struct shunt_ep *group;
	struct ep_run call;
	int32_t masks[2];

	CHECK(make(r, SHUNT_EP_MASKS, 0, &call, &group) == 0);
	CHECK(go_on(r, group, 0, 4) == 0);
	ep_run_finish(&call);
	mine.masked = r->rank ? 1 : 2;
	mine.seed = 50;
	ep_run_prepare(&call, &mine, r);
	CHECK(ep_run_fill_rows(&call, r) == 0);
	CHECK(shunt_ep_mask(group, 1 - r->rank, 1, r->stream) == 0);
	CHECK(shunt_ep_ll_dispatch(group, &call.dispatch) == 0);
	CHECK(shunt_ep_masks_clear(group, r->stream) == 0);
	CHECK(shunt_ep_ll_combine(group, &call.combine) == 0);
	CHECK(shunt_ep_masks(group, masks, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_ep_error(group, NULL, 0) == 0);
	CHECK(masks[r->rank] == 0 && masks[1 - r->rank] == 1);
	CHECK(ep_run_check_dispatch(&call, r) == 0 && ep_run_check_combine(&call, r) == 0);
	ep_run_finish(&call);
	return leave(r, group, 0);
}

TEST(test_masks_between_dispatch_and_combine)
{
	if (!ep_hosts)
		skip();
	assert_int_equal(run(2, 0, body_masked_between), 0);
}

/* ---- normal mode */

static const struct ep_normal_job normal_job = {
	.job = { .experts = 6, .topk = 2, .hidden = 64, .dtype = 9, .tokens = { 6, 5, 7 }, .seed = 5 },
	.row_bytes = 128,
	.topk = 2,
	.dispatch_blocks = 2,
	.combine_blocks = 2
};

static int make_normal(
    struct rank *r, uint32_t flags, uint64_t timeout_ns, int room, struct ep_normal_run *n, struct shunt_ep **group_p)
{
	struct ep_normal_job mine = normal_job;

	mine.job.nranks = r->nranks;
	mine.room = room;
	CHECK(ep_normal_group(r, 0, ep_normal_bytes(&mine, 4), flags, timeout_ns, group_p) == 0);
	ep_normal_prepare(n, &mine, r);
	return 0;
}

static int broken_normal(
    struct rank *r, struct shunt_ep *group, struct ep_normal_run *n, int expected, const char *words)
{
	CHECK(is_broken(r, group, expected, words) == 0);
	CHECK(shunt_ep_layout(group, &n->layout) == expected && shunt_ep_dispatch(group, &n->dispatch) == expected);
	CHECK(shunt_ep_notify(group, &n->notify, &n->ticket) == expected);
	CHECK(shunt_ep_counts(group, 1, NULL, NULL) == expected);
	ep_normal_finish(n);
	return leave(r, group, 0);
}

static struct {
	int blocks, row_bytes, topk, experts, hidden, kind; /* what rank 1 has otherwise */
	bool combines;
	const char *words[2];
} normal_other;

static int body_normal_differs(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_normal_run n;

	CHECK(make_normal(r, 0, 0, 0, &n, &group) == 0);
	CHECK(ep_normal_route(&n, group, r) == 0 && ep_normal_go(&n, group, r) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	if (r->rank == 1) {
		n.dispatch.blocks += normal_other.blocks;
		n.dispatch.row_bytes -= normal_other.row_bytes;
		n.dispatch.topk -= normal_other.topk;
		n.dispatch.experts -= normal_other.experts;
		n.combine.hidden -= normal_other.hidden;
	}
	if (normal_other.kind && r->rank)
		CHECK(shunt_ep_notify(group, &n.notify, &n.ticket) == 0);
	else if (normal_other.combines)
		CHECK(shunt_ep_combine(group, &n.combine) == 0);
	else
		CHECK(shunt_ep_dispatch(group, &n.dispatch) == 0);
	return broken_normal(r, group, &n, -EPROTO, normal_other.words[r->rank]);
}

TEST(test_normal_values_that_differ)
{
	static const __typeof__(normal_other) rows[] = {
		{ .blocks = 1,
		    .words = { "rank 0 calls ep_dispatch with blocks 2 where rank 1 has 3",
		        "rank 1 calls ep_dispatch with blocks 3 where rank 0 has 2" } },
		{ .row_bytes = 16,
		    .words = { "row_bytes 128 where rank 1 has 112", "row_bytes 112 where rank 0 has 128" } },
		{ .topk = 1, .words = { "topk 2 where rank 1 has 1", "topk 1 where rank 0 has 2" } },
		{ .experts = 2, .words = { "experts 6 where rank 1 has 4", "experts 4 where rank 0 has 6" } },
		{ .hidden = 8,
		    .combines = true,
		    .words = { "ep_combine with hidden 64 where rank 1 has 56", "hidden 56 where rank 0 has 64" } },
		{ .kind = 1,
		    .words = { "rank 0 calls ep_dispatch where rank 1 calls ep_notify",
		        "rank 1 calls ep_notify where rank 0 calls ep_dispatch" } },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		normal_other = rows[i];
		assert_int_equal(run(2, 0, body_normal_differs), 0);
	}
}

/*
 * One rank has too little room, and all hear of it; nothing is written behind the end. The calls behind that one, which
 * the host does not see fail, wait for nothing: no rank ends them for the others.
 */
static int body_overflow(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_normal_run n;
	uint8_t behind[8];
	void *graph;

	CHECK(make_normal(r, 0, LONG_NS, r->rank == 1 ? -1 : 0, &n, &group) == 0);
	CHECK(ep_normal_route(&n, group, r) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_capture_begin(r->stream) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(shunt_ep_dispatch(group, &n.dispatch) == 0);
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	CHECK(shunt_graph_launch(graph, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_graph_destroy(graph) == 0);
	CHECK(shunt_memcpy(behind, (char *)n.dispatch.recv_x + n.dispatch.capacity * n.dispatch.row_bytes, 8) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(behind[i] == EP_POISON);
	return broken_normal(r, group, &n, -EOVERFLOW, "in ep_dispatch rank 1 has room for");
}

/* One rank gives fewer rows back than it got. */
static int body_few_rows(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_normal_run n;

	CHECK(make_normal(r, 0, 0, 0, &n, &group) == 0);
	CHECK(ep_normal_route(&n, group, r) == 0 && shunt_ep_dispatch(group, &n.dispatch) == 0);
	n.combine.rows -= r->rank == 1;
	CHECK(shunt_ep_combine(group, &n.combine) == 0);
	return broken_normal(r, group, &n, -EOVERFLOW, "in ep_combine rank 1 gives");
}

TEST(test_overflow)
{
	assert_int_equal(run(3, 0, body_few_rows), 0);
	assert_int_equal(run(3, 0, body_overflow), 0);
}

RANKS_TEST(test_counts_of_a_rank_that_does_not_come, run(2, 0, body))
{
	struct shunt_ep *group;
	struct ep_normal_run n;

	CHECK(make_normal(r, 0, LATE_NS, 0, &n, &group) == 0);
	if (r->rank == 0) {
		CHECK(shunt_ep_layout(group, &n.layout) == 0 && shunt_ep_notify(group, &n.notify, &n.ticket) == 0);
		CHECK(shunt_ep_counts(group, n.ticket, NULL, NULL) == -ETIMEDOUT);
		return broken_normal(r, group, &n, -ETIMEDOUT, "waited 300 ms for the call of rank 1 in ep_notify");
	}
	ep_normal_finish(&n);
	return leave(r, group, 1);
}

/* Over hosts a death is known as soon as the connection ends. */
static bool may_be_dead(int err)
{
	return err == 0 || (ep_hosts && err == -EOWNERDEAD);
}

/* Killed before a notify, a dispatch or a combine of the others. */
static int dies_before;

static int body_normal_killed(struct rank *r)
{
	struct shunt_ep *group;
	struct ep_normal_run n;
	int step = 0;

	CHECK(make_normal(r, 0, 0, 0, &n, &group) == 0);
	if (step++ != dies_before) {
		CHECK(ep_normal_route(&n, group, r) == 0);
		if (step++ != dies_before)
			CHECK(shunt_ep_dispatch(group, &n.dispatch) == 0);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	ranks_barrier(r, &shared->barrier[0]);
	if (r->rank == 1)
		kill(getpid(), SIGKILL);
	if (step == 1) {
		CHECK(may_be_dead(shunt_ep_layout(group, &n.layout)));
		CHECK(may_be_dead(shunt_ep_notify(group, &n.notify, &n.ticket)));
		CHECK(shunt_ep_counts(group, n.ticket, NULL, NULL) == -EOWNERDEAD);
	} else {
		CHECK(may_be_dead(step == 2 && dies_before == 1 ? shunt_ep_dispatch(group, &n.dispatch) :
		                                                  shunt_ep_combine(group, &n.combine)));
	}
	return broken_normal(r, group, &n, -EOWNERDEAD, ep_hosts ? "rank 1" : "rank 1 died");
}

TEST(test_rank_that_dies_in_normal_mode)
{
	for (dies_before = 0; dies_before < 3; dies_before++)
		assert_int_equal(run(3, 2, body_normal_killed), 0);
}

/* A notify that waits for its peers ends with the group, and its ticket with it. */
RANKS_TEST(test_abort_of_a_notify, run(2, 0, body))
{
	struct shunt_ep *group;
	struct ep_normal_run n;

	CHECK(make_normal(r, 0, 0, 0, &n, &group) == 0);
	if (r->rank == 0) {
		CHECK(shunt_ep_layout(group, &n.layout) == 0 && shunt_ep_notify(group, &n.notify, &n.ticket) == 0);
		ranks_barrier(r, &shared->barrier[0]); /* over hosts the other's abort would end this rank's calls */
		CHECK(shunt_ep_destroy(group, 1) == 0);
		CHECK(shunt_ep_counts(group, n.ticket, NULL, NULL) == -EINVAL);
	} else {
		ranks_barrier(r, &shared->barrier[0]);
		CHECK(shunt_ep_destroy(group, 1) == 0);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	ep_normal_finish(&n);
	return 0;
}

int main(int argc, char **argv)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return ep_main(argc, argv, true);
}
