/* SPDX-License-Identifier: MIT */
/*
 * Low latency dispatch and combine against the reference, ranks as threads, on the sim. With "hosts2" and the like
 * (ep_ranks.h) over hosts, ranks as processes.
 */
#include "tests/e2e/ep_ranks.h"
#include "tests/support/test.h"

static const struct ep_job small = { .experts = 6,
	.topk = 3,
	.hidden = 264,
	.max_tokens = 5,
	.dtype = 9,
	.tokens = { 5, 3, 4, 1, 5, 2, 0, 5 },
	.seed = 7 };

static struct ep_job the_job;
static bool quick; /* under sanitizers: what differs in the order of memory, and no more */

/* A dispatch and a combine, each in one launch. */
static int one_call(struct rank *r, struct shunt_ep *group, const struct ep_job *job)
{
	struct ep_run run;

	ep_run_prepare(&run, job, r);
	CHECK(ep_run_fill_rows(&run, r) == 0);
	CHECK(shunt_ep_ll_dispatch(group, &run.dispatch) == 0);
	CHECK(shunt_ep_ll_combine(group, &run.combine) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_ep_error(group, NULL, 0) == 0);
	CHECK(ep_run_check_dispatch(&run, r) == 0);
	CHECK(ep_run_check_combine(&run, r) == 0);
	ep_run_finish(&run);
	return 0;
}

/*
 * The same ranks run the cases that were added, each with a group of its own. One behind the other, as what takes
 * ThreadSanitizer longest is to make GPU threads in a new process.
 */
static struct ep_job cases[16];
static int ncases;

static int body_calls(struct rank *r)
{
	for (int k = 0; k < ncases; k++) {
		struct ep_job job = cases[k];
		struct shunt_ep *group;

		job.nranks = r->nranks;
		CHECK(ep_group_make(r, k, &job, 0, 0, &group) == 0);
		for (int i = 0; i < 3; i++, job.seed++)
			CHECK(one_call(r, group, &job) == 0);
		CHECK(shunt_ep_destroy(group, 0) == 0);
	}
	return 0;
}

static void add(const struct ep_job *job)
{
	cases[ncases++] = *job;
}

static void calls(int n)
{
	int failed = ep_ranks_run(RANKS_THREADS, n, 0, body_calls);

	ncases = 0;
	assert_int_equal(failed, 0);
}

TEST(test_ranks)
{
	static const int experts[EP_MOST_RANKS + 1] = { 0, 3, 6, 6, 8, 5, 0, 7, 16, [12] = 24 };

	for (int n = 1; n <= (ep_hosts ? EP_MOST_RANKS : 8); n++) {
		struct ep_job job = small;

		job.experts = experts[n];
		if (experts[n] && (!quick || n == 3)) {
			add(&job);
			calls(n);
		}
	}
}

TEST(test_routings)
{
	for (int routing = EP_TO_ONE; routing <= EP_TO_RANK_0; routing++) {
		struct ep_job job = small;

		job.routing = (enum ep_routing)routing;
		if (!quick || routing <= EP_TO_LAST)
			add(&job);
	}
	calls(3);
}

TEST(test_forms)
{
	for (int form = SHUNT_EP_AS_IS; form <= SHUNT_EP_FP8_UE8M0; form++)
		for (int odd = 0; odd < 2 - quick; odd++) {
			struct ep_job job = small;

			job.hidden = quick ? 512 : 1024;
			job.form = form;
			job.odd = odd;
			add(&job);
		}
	calls(2);
}

/* Rows that end in the middle of a slot, a line, a half; sizes of which the group has just enough. */
TEST(test_sizes)
{
	static const struct {
		int hidden, topk, local, max_tokens, tokens[2], form, dtype;
	} rows[] = {
		{ 8, 1, 1, 1, { 1, 1 }, SHUNT_EP_AS_IS, 9 },
		{ 56, 16, 2, 7, { 7, 0 }, SHUNT_EP_AS_IS, 6 },
		{ 64, 9, 64, 33, { 31, 33 }, SHUNT_EP_AS_IS, 9 },
		{ 240, 2, 3, 64, { 0, 0 }, SHUNT_EP_AS_IS, 6 },
		{ 8, 2, 2, 1024, { 1024, 1000 }, SHUNT_EP_AS_IS, 9 },
		{ 248, 8, 1, 3, { 2, 3 }, SHUNT_EP_AS_IS, 9 },
		{ 128, 8, 4, 32, { 32, 32 }, SHUNT_EP_FP8, 9 },
		{ 384, 8, 4, 5, { 1, 5 }, SHUNT_EP_FP8_ROUND, 9 },
		{ 7168, 8, 4, 2, { 2, 2 }, SHUNT_EP_FP8, 9 },
		{ 16384, 2, 2, 2, { 2, 1 }, SHUNT_EP_FP8_UE8M0, 9 },
		{ 16384, 2, 2, 2, { 2, 2 }, SHUNT_EP_AS_IS, 6 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && (!quick || rows[i].hidden <= 128); i++) {
		struct ep_job job = { .experts = 2 * rows[i].local,
			.topk = rows[i].topk,
			.hidden = rows[i].hidden,
			.max_tokens = rows[i].max_tokens,
			.form = rows[i].form,
			.dtype = rows[i].dtype,
			.tokens = { rows[i].tokens[0], rows[i].tokens[1] },
			.seed = i };

		add(&job);
	}
	calls(2);
}

/* The number of blocks changes no bit: the reference has none. */
RANKS_TEST(test_blocks, ep_ranks_run(RANKS_THREADS, 2, 0, body))
{
	/* Under ThreadSanitizer a process has 8128 threads at most, and one of the sim's GPUs counts. */
	static const int all[] = { 1, 2, 3, 5, 16, 64 }, few[] = { 1, 2, 3, 2, 1, 3 };
	const int *blocks = quick ? few : all;
	struct ep_job job = small;
	struct shunt_ep *group;
	struct ep_run run;

	job.nranks = r->nranks;
	job.hidden = 1024;
	job.form = SHUNT_EP_FP8;
	job.max_tokens = 12;
	job.tokens[0] = 12;
	CHECK(ep_group_make(r, 0, &job, 0, 0, &group) == 0);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		ep_run_prepare(&run, &job, r);
		CHECK(ep_run_fill_rows(&run, r) == 0);
		/* Nor need the ranks have the same. */
		run.dispatch.blocks = r->rank ? blocks[i] : blocks[sizeof(all) / sizeof(all[0]) - 1 - i];
		run.combine.blocks = blocks[i];
		CHECK(shunt_ep_ll_dispatch(group, &run.dispatch) == 0 && shunt_ep_ll_combine(group, &run.combine) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(ep_run_check_dispatch(&run, r) == 0 && ep_run_check_combine(&run, r) == 0);
		ep_run_finish(&run);
	}
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/* One group, calls of all sizes one after the other, without a wait between them. */
RANKS_TEST(test_mixed_sizes, ep_ranks_run(RANKS_THREADS, 3, 0, body))
{
	enum { CALLS = 8 };
	struct ep_run run[CALLS];
	struct shunt_ep *group;
	struct ep_job job = small;

	job.nranks = r->nranks;
	job.hidden = 1024;
	job.max_tokens = 16;
	CHECK(ep_group_make(r, 0, &job, 0, 0, &group) == 0);
	for (int i = 0; i < CALLS; i++) {
		struct ep_job mine = job;

		mine.seed = (uint64_t)i;
		mine.hidden = i % 3 ? 512 : 1024;
		mine.max_tokens = i % 4 ? 5 : 16;
		mine.topk = 1 + i % 3;
		mine.form = mine.hidden == 512 ? i % 4 : 0;
		ep_run_prepare(&run[i], &mine, r);
		CHECK(ep_run_fill_rows(&run[i], r) == 0);
	}
	for (int i = 0; i < CALLS; i++) {
		CHECK(shunt_ep_ll_dispatch(group, &run[i].dispatch) == 0);
		CHECK(shunt_ep_ll_combine(group, &run[i].combine) == 0);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int i = 0; i < CALLS; i++) {
		CHECK(ep_run_check_dispatch(&run[i], r) == 0 && ep_run_check_combine(&run[i], r) == 0);
		ep_run_finish(&run[i]);
	}
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/*
 * Phases of two batches, as programs overlap them: 0, 1 send a dispatch of the first and the second batch, 2, 3 receive
 * it, 4, 5 send a combine, 6, 7 receive it.
 */
static const char *const orders[] = { "02460246", "01243567", "02135467", "01325467", "01324576" };

static int phase(struct shunt_ep *group, struct ep_run *run, char what)
{
	run->dispatch.phases = run->combine.phases = (what - '0') & 2 ? SHUNT_EP_RECEIVE : SHUNT_EP_SEND;
	return what < '4' ? shunt_ep_ll_dispatch(group, &run->dispatch) : shunt_ep_ll_combine(group, &run->combine);
}

RANKS_TEST(test_phases_in_any_order, ep_ranks_run(RANKS_THREADS, 3, 0, body) + ep_ranks_run(RANKS_THREADS, 1, 0, body))
{
	struct ep_job job = small;
	struct shunt_ep *group;
	struct ep_run run[2];
	void *streams[2];

	job.nranks = r->nranks;
	CHECK(ep_group_make(r, 0, &job, 0, 0, &group) == 0);
	CHECK(shunt_stream_create(&streams[0]) == 0 && shunt_stream_create(&streams[1]) == 0);
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		for (int b = 0; b < 2; b++, job.seed++) {
			job.routing = i % 2 ? EP_TO_RANK_0 : EP_ANYWHERE;
			ep_run_prepare(&run[b], &job, r);
			CHECK(ep_run_fill_rows(&run[b], r) == 0);
			run[b].dispatch.stream = streams[b];
			run[b].combine.stream = streams[1 - b]; /* any stream will do */
		}
		for (const char *what = orders[i]; *what; what++)
			CHECK(phase(group, &run[*what & 1], *what) == 0);
		for (int b = 0; b < 2; b++)
			CHECK(shunt_stream_synchronize(streams[b]) == 0);
		for (int b = 0; b < 2; b++) {
			CHECK(b && i == 0 ? 1 : ep_run_check_dispatch(&run[b], r) == 0);
			CHECK(b && i == 0 ? 1 : ep_run_check_combine(&run[b], r) == 0);
			ep_run_finish(&run[b]);
		}
	}
	CHECK(shunt_stream_destroy(streams[0]) == 0 && shunt_stream_destroy(streams[1]) == 0);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/* A third call of a kind is refused at once; the two under way go on. */
RANKS_TEST(test_third_call_is_refused, ep_ranks_run(RANKS_THREADS, 2, 0, body))
{
	struct ep_job job = small;
	struct shunt_ep *group;
	struct ep_run run[3];

	job.nranks = r->nranks;
	CHECK(ep_group_make(r, 0, &job, 0, 0, &group) == 0);
	for (int i = 0; i < 3; i++, job.seed++)
		ep_run_prepare(&run[i], &job, r);
	CHECK(phase(group, &run[0], '0') == 0 && phase(group, &run[1], '0') == 0);
	CHECK(phase(group, &run[2], '0') == -EDEADLK && phase(group, &run[2], '2') == -EINVAL);
	CHECK(phase(group, &run[1], '2') == 0);
	CHECK(phase(group, &run[2], '0') == -EDEADLK); /* the first is still not received */
	CHECK(phase(group, &run[0], '2') == 0 && phase(group, &run[0], '2') == -EINVAL);
	CHECK(phase(group, &run[2], '0') == 0 && phase(group, &run[2], '2') == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_ep_error(group, NULL, 0) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(ep_run_check_dispatch(&run[i], r) == 0);
		ep_run_finish(&run[i]);
	}
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

static int replays;

/* Replays with other tokens each time, an eager call between them, and one that a replay comes in the middle of. */
static int body_graph(struct rank *r)
{
	struct ep_job job = the_job;
	struct ep_run run, eager, other;
	struct shunt_ep *group;
	void *graph;
	size_t bytes;

	job.nranks = r->nranks;
	CHECK(ep_group_make(r, 0, &job, 0, 0, &group) == 0);
	ep_run_prepare(&run, &job, r);
	CHECK(ep_run_fill_rows(&run, r) == 0);
	CHECK(shunt_ep_barrier(group, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_capture_begin(r->stream) == 0);
	CHECK(phase(group, &run, '0') == 0 && phase(group, &run, '2') == 0);
	run.combine.phases = SHUNT_EP_SEND | SHUNT_EP_RECEIVE;
	CHECK(shunt_ep_ll_combine(group, &run.combine) == 0);
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	for (int i = 0; i < replays; i++) {
		/* The graph's memory gets the inputs of another job. */
		job.seed = (uint64_t)i + 100;
		ep_run_prepare(&other, &job, r);
		bytes = (size_t)job.tokens[r->rank] * (size_t)job.topk;
		CHECK(shunt_memcpy((void *)run.dispatch.topk_idx, other.dispatch.topk_idx, bytes * 8) == 0);
		CHECK(shunt_memcpy((void *)run.combine.topk_weights, other.combine.topk_weights, bytes * 4) == 0);
		CHECK(shunt_memcpy((void *)run.dispatch.x, other.dispatch.x,
		          (size_t)job.tokens[r->rank] * (size_t)job.hidden * 2) == 0);
		CHECK(ep_run_fill_rows(&other, r) == 0);
		CHECK(shunt_memcpy((void *)run.combine.x, other.combine.x,
		          (size_t)(job.experts * job.max_tokens * job.hidden) * 2) == 0);
		ep_run_prepare(&eager, &job, r);
		if (i % 3 == 0)
			CHECK(phase(group, &eager, '0') == 0);
		CHECK(shunt_graph_launch(graph, r->stream) == 0);
		if (i % 3 == 0)
			CHECK(phase(group, &eager, '2') == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_ep_error(group, NULL, 0) == 0);
		other.combine.out = run.combine.out;
		CHECK(ep_run_check_combine(&other, r) == 0);
		ep_run_finish(&eager);
		ep_run_finish(&other);
	}
	CHECK(shunt_graph_destroy(graph) == 0);
	ep_run_finish(&run);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

TEST(test_graphs)
{
	the_job = small;
	replays = quick ? 4 : 20;
	assert_int_equal(ep_ranks_run(RANKS_THREADS, 2, 0, body_graph), 0);
}

TEST(test_long_graphs)
{
	the_job = small;
	the_job.hidden = 16;
	replays = 1000;
	assert_int_equal(ep_ranks_run(RANKS_THREADS, 2, 0, body_graph), 0);
}

/* What is added to, and a token alone and among others. */
RANKS_TEST(test_stats, ep_ranks_run(RANKS_THREADS, 3, 0, body))
{
	struct ep_job job = small;
	struct shunt_ep *group;
	struct ep_run run;
	int32_t *stats, host[8], count[8], total[8] = { 0 };
	int64_t *wait_ns, waited[8];

	job.nranks = r->nranks;
	CHECK(ep_group_make(r, 0, &job, 0, 0, &group) == 0);
	CHECK(shunt_malloc((void **)&stats, sizeof(host)) == 0 && shunt_malloc((void **)&wait_ns, sizeof(waited)) == 0);
	memset(host, 0, sizeof(host));
	memset(waited, 0, sizeof(waited));
	CHECK(shunt_memcpy(stats, host, sizeof(host)) == 0 && shunt_memcpy(wait_ns, waited, sizeof(waited)) == 0);
	for (int i = 0; i < 3; i++, job.seed++) {
		ep_run_prepare(&run, &job, r);
		CHECK(ep_run_fill_rows(&run, r) == 0);
		run.dispatch.stats = stats;
		run.dispatch.wait_ns = run.combine.wait_ns = wait_ns;
		CHECK(shunt_ep_ll_dispatch(group, &run.dispatch) == 0 && shunt_ep_ll_combine(group, &run.combine) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		CHECK(ep_run_check_dispatch(&run, r) == 0 && ep_run_check_combine(&run, r) == 0);
		CHECK(
		    shunt_memcpy(count, run.dispatch.count, sizeof(int32_t) * (size_t)(job.experts / job.nranks)) == 0);
		for (int e = 0; e < job.experts / job.nranks; e++)
			total[e] += count[e];
		ep_run_finish(&run);
	}
	CHECK(shunt_memcpy(host, stats, sizeof(host)) == 0 && shunt_memcpy(waited, wait_ns, sizeof(waited)) == 0);
	CHECK(!memcmp(host, total, sizeof(total)));
	for (int s = 0; s < r->nranks; s++)
		CHECK(waited[s] > 0);
	for (int s = r->nranks; s < 8; s++)
		CHECK(waited[s] == 0);
	CHECK(shunt_free(stats) == 0 && shunt_free(wait_ns) == 0);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

int main(int argc, char **argv)
{
	quick = getenv("KERNELS_QUICK") != NULL;
	return ep_main(argc, argv, true);
}
