/* SPDX-License-Identifier: MIT */
/* Low latency dispatch and combine against the reference, ranks as threads, on the sim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <cmocka.h>
#include "tests/e2e/ep_job.h"
#include "tests/support/own.h"

static const struct ep_job small = { .experts = 6,
	.topk = 3,
	.hidden = 264,
	.max_tokens = 5,
	.dtype = 9,
	.tokens = { 5, 3, 4, 1, 5, 2, 0, 5 },
	.seed = 7 };

static struct ep_job the_job;
static struct ranks_ids ids;

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

static int body_calls(struct rank *r)
{
	struct ep_job job = the_job;
	struct shunt_ep *group;

	job.nranks = r->nranks;
	CHECK(ep_group_make(r, ep_id(r, &ids, 0), &job, 0, 0, &group) == 0);
	for (int i = 0; i < 3; i++, job.seed++)
		CHECK(one_call(r, group, &job) == 0);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

static void calls(int n, const struct ep_job *job)
{
	the_job = *job;
	assert_int_equal(ranks_run(RANKS_THREADS, n, 1, body_calls), 0);
}

static void test_ranks(void **state)
{
	static const int experts[] = { 0, 3, 6, 6, 8, 5, 0, 0, 16 };

	for (int n = 1; n <= 8; n++) {
		struct ep_job job = small;

		job.experts = experts[n];
		if (experts[n])
			calls(n, &job);
	}
}

static void test_routings(void **state)
{
	for (int routing = EP_TO_ONE; routing <= EP_TO_RANK_0; routing++) {
		struct ep_job job = small;

		job.routing = (enum ep_routing)routing;
		calls(3, &job);
	}
}

static void test_forms(void **state)
{
	for (int form = SHUNT_EP_AS_IS; form <= SHUNT_EP_FP8_UE8M0; form++)
		for (int odd = 0; odd < 2; odd++) {
			struct ep_job job = small;

			job.hidden = 1024;
			job.form = form;
			job.odd = odd;
			calls(2, &job);
		}
}

/* Rows that end in the middle of a slot, a line, a half; sizes of which the group has just enough. */
static void test_sizes(void **state)
{
	static const struct {
		int hidden, topk, local, max_tokens, tokens[2], form, dtype;
	} rows[] = {
		{ 8, 1, 1, 1, { 1, 1 }, SHUNT_EP_AS_IS, 9 },
		{ 56, 16, 2, 7, { 7, 0 }, SHUNT_EP_AS_IS, 6 },
		{ 64, 9, 64, 33, { 31, 33 }, SHUNT_EP_AS_IS, 9 },
		{ 240, 2, 3, 64, { 0, 0 }, SHUNT_EP_AS_IS, 6 },
		{ 248, 8, 1, 3, { 2, 3 }, SHUNT_EP_AS_IS, 9 },
		{ 128, 8, 4, 32, { 32, 32 }, SHUNT_EP_FP8, 9 },
		{ 384, 8, 4, 5, { 1, 5 }, SHUNT_EP_FP8_ROUND, 9 },
		{ 7168, 8, 4, 2, { 2, 2 }, SHUNT_EP_FP8, 9 },
		{ 16384, 2, 2, 2, { 2, 1 }, SHUNT_EP_FP8_UE8M0, 9 },
		{ 16384, 2, 2, 2, { 2, 2 }, SHUNT_EP_AS_IS, 6 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ep_job job = { .experts = 2 * rows[i].local,
			.topk = rows[i].topk,
			.hidden = rows[i].hidden,
			.max_tokens = rows[i].max_tokens,
			.form = rows[i].form,
			.dtype = rows[i].dtype,
			.tokens = { rows[i].tokens[0], rows[i].tokens[1] },
			.seed = i };

		calls(2, &job);
	}
}

/* One group, calls of all sizes one after the other, without a wait between them. */
static int body_mixed(struct rank *r)
{
	enum { CALLS = 8 };
	struct ep_run run[CALLS];
	struct shunt_ep *group;
	struct ep_job job = small;

	job.nranks = r->nranks;
	job.hidden = 1024;
	job.max_tokens = 16;
	CHECK(ep_group_make(r, ep_id(r, &ids, 0), &job, 0, 0, &group) == 0);
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

static void test_mixed_sizes(void **state)
{
	memset(&ids, 0, sizeof(ids));
	assert_int_equal(ranks_run(RANKS_THREADS, 3, 1, body_mixed), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_routings),
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_mixed_sizes),
	};

	own_environment();
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_DEVICE", "sim", 1);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
