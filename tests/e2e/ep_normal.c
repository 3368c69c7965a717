/* SPDX-License-Identifier: MIT */
/*
 * Normal mode: layout, notify, dispatch and combine against the reference, ranks as threads, on the sim. With "hosts2"
 * and the like (ep_ranks.h) over hosts, ranks as processes.
 */
#include "tests/e2e/ep_ranks.h"
#include "tests/support/test.h"

static const struct ep_normal_job small = { .job = { .experts = 12,
	                                        .topk = 3,
	                                        .hidden = 136,
	                                        .dtype = 9,
	                                        .tokens = { 9, 5, 0, 7, 1, 12, 3, 2 },
	                                        .seed = 7 },
	.row_bytes = 272,
	.topk = 3,
	.alignment = 4,
	.dispatch_blocks = 2,
	.combine_blocks = 2 };

static bool quick; /* under sanitizers: what differs in the order of memory, and no more */

static int one_routing(struct rank *r, struct shunt_ep *group, const struct ep_normal_job *job)
{
	struct ep_normal_run n;

	ep_normal_prepare(&n, job, r);
	CHECK(ep_normal_route(&n, group, r) == 0);
	CHECK(ep_normal_go(&n, group, r) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	CHECK(shunt_ep_error(group, NULL, 0) == 0);
	CHECK(ep_normal_check(&n, r) == 0);
	ep_normal_finish(&n);
	return 0;
}

/* Groups of this rank, which all ranks make in the same order. */
static _Thread_local int groups;

/*
 * The same ranks run the cases that were added, each with a group of its own, and all else that needs so many ranks:
 * what takes longest is to begin, under ThreadSanitizer to make GPU threads in a new process.
 */
static struct {
	struct ep_normal_job job;
	uint32_t flags;
} cases[40];
static int ncases;

static int body_calls(struct rank *r)
{
	for (int k = 0; k < ncases; k++) {
		struct ep_normal_job job = cases[k].job;
		struct shunt_ep *group;

		job.job.nranks = r->nranks;
		CHECK(ep_normal_group(r, groups++, ep_normal_bytes(&job, 3), cases[k].flags, 0, &group) == 0);
		for (int i = 0; i < (quick ? 1 : 2); i++, job.job.seed++)
			if (one_routing(r, group, &job)) {
				fprintf(stderr, "rank %d: case %d\n", r->rank, k);
				return 1;
			}
		CHECK(shunt_ep_destroy(group, 0) == 0);
	}
	return 0;
}

static void add_with(const struct ep_normal_job *job, uint32_t flags)
{
	cases[ncases].job = *job;
	cases[ncases++].flags = flags;
}

static void add(const struct ep_normal_job *job)
{
	add_with(job, 0);
}

TEST(test_ranks)
{
	static const int experts[] = { 12, 12, 12, 12, 15, 12, 14, 16 };
#if defined(__SANITIZE_THREAD__)
	enum { RANKS = 1 << 1 | 1 << 4 }; /* the other tests have 2 and 3; the order of memory of 8 is that of 4 */
#else
	enum { RANKS = 0x3e | 1 << 8 };
#endif

	for (int n = 1; n <= 8; n++) {
		struct ep_normal_job job = small;

		job.job.experts = experts[n - 1];
		if (RANKS >> n & 1) {
			add(&job);
			assert_int_equal(ep_ranks_run(RANKS_THREADS, n, 0, body_calls), 0);
			ncases = 0;
		}
	}
}

static void add_routings(void)
{
	static const int topk[] = { 1, 2, 8, 9, 16 };

	for (enum ep_routing routing = EP_ANYWHERE; routing <= EP_TO_RANK_0; routing++) {
		struct ep_normal_job job = small;

		job.job.routing = routing;
		job.biases = (int)routing % 3;
		add(&job);
	}
	for (size_t i = 0; i < sizeof(topk) / sizeof(topk[0]) && !quick; i++) {
		struct ep_normal_job job = small;

		job.job.topk = job.topk = topk[i];
		job.job.experts = topk[i] == 9 ? 3 : 66;
		job.alignment = 128;
		add(&job);
	}
}

/* Sizes of rows, of scales and of inputs; types; addresses. */
static void add_sizes(void)
{
	static const int rows[] = { 1, 3, 14, 16, 18, 127, 480, 481, 4096, 8193 };
	static const int hiddens[] = { 1, 7, 8, 200, 2049 };
	static const int dtypes[] = { 6, 7, 9 };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !quick; i++) {
		struct ep_normal_job job = small;

		job.row_bytes = rows[i];
		job.nscales = (int)i % 4;
		job.columns = i % 2;
		job.topk = i % 3 ? 3 : 0;
		job.job.hidden = hiddens[i % 5];
		job.job.dtype = dtypes[i % 3];
		job.job.odd = i % 2 && job.row_bytes % 2 == 0;
		job.biases = (int)i % 3;
		add(&job);
	}
}

static void add_tokens(void)
{
	const int tokens[][3] = { { 0, 0, 0 }, { 1, 0, 0 }, { 31, 33, 64 }, { 65, 1, quick ? 66 : 300 } };
	struct ep_normal_job job = small;

	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		memcpy(job.job.tokens, tokens[i], sizeof(tokens[i]));
		add(&job);
	}
}

/* The host asks for nothing: outputs have room for more than comes, or for just that. */
static void add_worst(void)
{
	struct ep_normal_job job = small;

	job.worst = true;
	for (job.room = 0; job.room < 10; job.room += 9)
		add(&job);
}

/* Rows without room are left out, and nothing is written behind the end. */
static void add_drop(void)
{
	struct ep_normal_job job = small;

	job.room = -1;
	job.job.tokens[2] = 6; /* all ranks get some */
	add_with(&job, SHUNT_EP_DROP);
}

/*
 * A routing serves any number of dispatches and combines, with any number of blocks, and two of them in turns; ten
 * dispatches of one in a row.
 */
static int body_handles(struct rank *r)
{
	const int most = quick ? 3 : 8; /* blocks */
	struct ep_normal_job job = small;
	struct shunt_ep *group;
	struct ep_normal_run n[2];

	job.job.nranks = r->nranks;
	CHECK(ep_normal_group(r, groups++, ep_normal_bytes(&job, 8), 0, 0, &group) == 0);
	for (int b = 0; b < 2; b++, job.job.seed++) {
		ep_normal_prepare(&n[b], &job, r);
		CHECK(ep_normal_route(&n[b], group, r) == 0);
	}
	for (int i = 0; i < (quick ? 4 : 10); i++) {
		struct ep_normal_run *run = &n[i % 2];

		run->dispatch.blocks = 1 + i % most;
		run->combine.blocks = 1 + i * 3 % most;
		CHECK(ep_normal_go(run, group, r) == 0);
		CHECK(shunt_ep_combine(group, &run->combine) == 0);
		if (i % 5 == 0)
			for (int k = 0; k < 10; k++)
				CHECK(shunt_ep_dispatch(group, &run->dispatch) == 0);
		if (i % 3)
			continue;
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_ep_error(group, NULL, 0) == 0);
		CHECK(ep_normal_check(run, r) == 0);
	}
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	for (int b = 0; b < 2; b++) {
		CHECK(ep_normal_check(&n[b], r) == 0);
		ep_normal_finish(&n[b]);
	}
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

static int body_of_three(struct rank *r)
{
	return body_calls(r) || body_handles(r);
}

TEST(test_three_ranks)
{
	add_routings();
	add_sizes();
	add_tokens();
	add_worst();
	add_drop();
	assert_int_equal(ep_ranks_run(RANKS_THREADS, 3, 0, body_of_three), 0);
	ncases = 0;
}

/* Replays with other tokens each time, and calls between them that are of no graph. */
static int body_graphs(struct rank *r)
{
	struct ep_normal_job job = small;
	struct ep_normal_run run, other;
	struct shunt_ep *group;
	void *graph;
	size_t places;

	job.job.nranks = r->nranks;
	job.worst = true;
	job.room = 40; /* for any routing */
	CHECK(ep_normal_group(r, groups++, ep_normal_bytes(&job, 3), 0, 0, &group) == 0);
	ep_normal_prepare(&run, &job, r);
	CHECK(shunt_capture_begin(r->stream) == 0);
	run.notify.counts = 1;
	CHECK(shunt_ep_layout(group, &run.layout) == 0);
	CHECK(shunt_ep_notify(group, &run.notify, &run.ticket) == -EBUSY);
	run.notify.counts = 0;
	CHECK(shunt_ep_notify(group, &run.notify, NULL) == 0 && ep_normal_go(&run, group, r) == 0);
	CHECK(shunt_capture_end(r->stream, &graph) == 0);
	places = (size_t)job.job.tokens[r->rank] * (size_t)job.job.topk;
	for (int i = 0; i < (quick ? 3 : 20); i++) {
		job.job.seed = (uint64_t)i + 100;
		ep_normal_prepare(&other, &job, r);
		CHECK(shunt_memcpy((void *)run.layout.topk_idx, other.layout.topk_idx, places * 8) == 0);
		CHECK(shunt_memcpy((void *)run.dispatch.x, other.dispatch.x,
		          (size_t)(job.job.tokens[r->rank] * job.row_bytes)) == 0);
		if (i % 3 == 0)
			CHECK(one_routing(r, group, &job) == 0);
		CHECK(shunt_graph_launch(graph, r->stream) == 0 && shunt_stream_synchronize(r->stream) == 0);
		CHECK(shunt_ep_error(group, NULL, 0) == 0);
		CHECK(ep_compare(r, "received", run.notify.received, &other.rows, 1, 2) == 0);
		CHECK(ep_normal_route(&other, group, r) == 0 && ep_normal_go(&other, group, r) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && ep_normal_check(&other, r) == 0);
		/* The same rows as of the graph. */
		{
			size_t bytes = (size_t)(other.rows * job.row_bytes);
			char *got = malloc(2 * bytes + 1);

			CHECK(shunt_memcpy(got, run.dispatch.recv_x, bytes) == 0);
			CHECK(shunt_memcpy(got + bytes, other.dispatch.recv_x, bytes) == 0);
			CHECK(!memcmp(got, got + bytes, bytes));
			free(got);
		}
		ep_normal_finish(&other);
	}
	CHECK(shunt_graph_destroy(graph) == 0);
	ep_normal_finish(&run);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/* Tickets: each once, in any order; of nine, the last is refused. */
static int body_tickets(struct rank *r)
{
	struct ep_normal_job job = small;
	struct shunt_ep *group;
	struct ep_normal_run n;
	uint64_t ticket[9];
	int32_t rows;

	job.job.nranks = r->nranks;
	CHECK(ep_normal_group(r, groups++, ep_normal_bytes(&job, 3), 0, 0, &group) == 0);
	ep_normal_prepare(&n, &job, r);
	CHECK(shunt_ep_layout(group, &n.layout) == 0);
	CHECK(shunt_ep_counts(group, 0, &rows, NULL) == -EINVAL && shunt_ep_counts(group, 1, &rows, NULL) == -EINVAL);
	CHECK(shunt_ep_notify(group, &n.notify, NULL) == -EINVAL);
	for (int i = 0; i < 8; i++)
		CHECK(shunt_ep_notify(group, &n.notify, &ticket[i]) == 0);
	CHECK(shunt_ep_notify(group, &n.notify, &ticket[8]) == -EDEADLK);
	for (int i = 7; i >= 0; i--) {
		CHECK(shunt_ep_counts(group, ticket[i], &rows, NULL) == 0 && rows == n.rows);
		CHECK(shunt_ep_counts(group, ticket[i], &rows, NULL) == -EINVAL);
	}
	CHECK(shunt_ep_notify(group, &n.notify, &ticket[8]) == 0);
	CHECK(shunt_ep_counts(group, ticket[8], NULL, NULL) == 0);
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	ep_normal_finish(&n);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

/* Calls that are wrong: refused at once, and the group goes on. */
static int body_bad_calls(struct rank *r)
{
	struct ep_normal_job job = small;
	struct shunt_ep *group, *none;
	struct ep_normal_run n;

	job.job.tokens[0] = job.job.tokens[1] = 4;
	job.job.nranks = r->nranks;
	job.nscales = 1;
	CHECK(ep_normal_group(r, groups++, ep_normal_bytes(&job, 3), 0, 0, &group) == 0);
	CHECK(ep_normal_group(r, groups++, 0, 0, 0, &none) == 0);
	ep_normal_prepare(&n, &job, r);
#define BAD(kind, change, expected) \
	do { \
		struct shunt_ep_##kind bad = n.kind; \
		change; \
		CHECK(shunt_ep_##kind(group, &bad) == (expected)); \
	} while (0)
#define shunt_ep_notify(group, call) (shunt_ep_notify)(group, call, &n.ticket)
	BAD(layout, bad.tokens = -1, -EINVAL);
	BAD(layout, bad.topk = 0, -EINVAL);
	BAD(layout, bad.topk = 17, -EINVAL);
	BAD(layout, bad.experts = 13, -EINVAL);
	BAD(layout, bad.experts = 32768, -EINVAL);
	BAD(layout, bad.per_rank = NULL, -EINVAL);
	BAD(layout, bad.per_host = bad.per_rank, ep_hosts ? 0 : -EINVAL);
	BAD(layout, bad.size = 8, -EINVAL);
	BAD(notify, bad.alignment = 0, -EINVAL);
	BAD(notify, bad.tokens = 1 << 24, -EINVAL);
	BAD(notify, bad.counts = 2, -EINVAL);
	BAD(notify, bad.received = NULL, -EINVAL);
	BAD(dispatch, bad.row_bytes = 0, -EINVAL);
	BAD(dispatch, bad.row_bytes = 1 << 25, -ENOSPC);
	BAD(dispatch, bad.nscales = -1, -EINVAL);
	BAD(dispatch, bad.capacity = -1, -EINVAL);
	BAD(dispatch, bad.blocks = 65, -EINVAL);
	BAD(dispatch, bad.topk = 17, -EINVAL);
	BAD(dispatch, bad.scales = NULL, -EINVAL);
	BAD(dispatch, bad.recv_x = NULL, -EINVAL);
	BAD(dispatch, bad.topk_idx = NULL, -EINVAL);
	BAD(combine, bad.dtype = 8, -EINVAL);
	BAD(combine, bad.hidden = 0, -EINVAL);
	BAD(combine, bad.hidden = 1 << 23, -ENOSPC);
	BAD(combine, bad.rows = -1, -EINVAL);
	BAD(combine, bad.src_idx = NULL, -EINVAL);
	BAD(combine, bad.topk_weights = NULL, -EINVAL);
#undef shunt_ep_notify
	CHECK(shunt_ep_layout(none, &n.layout) == 0);
	CHECK(
	    shunt_ep_notify(none, &n.notify, &n.ticket) == -ENOSPC && shunt_ep_dispatch(none, &n.dispatch) == -ENOSPC);
	CHECK(shunt_ep_error(group, NULL, 0) == 0 && one_routing(r, group, &job) == 0);
	ep_normal_finish(&n);
	CHECK(shunt_ep_destroy(group, 0) == 0 && shunt_ep_destroy(none, 0) == 0);
	return 0;
}

RANKS_TEST(test_two_ranks, ep_ranks_run(RANKS_THREADS, 2, 0, body))
{
	return body_graphs(r) || body_tickets(r) || body_bad_calls(r);
}

int main(int argc, char **argv)
{
	quick = getenv("KERNELS_QUICK") != NULL;
	return ep_main(argc, argv, true);
}
