/* SPDX-License-Identifier: MIT */
/* Normal mode: layout, notify, dispatch and combine against the reference, ranks as threads, on the sim. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/e2e/ep_normal_job.h"
#include "tests/support/own.h"

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

static struct ep_normal_job the_job;
static bool quick; /* under sanitizers: what differs in the order of memory, and no more */
static struct ranks_ids ids;

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

static int body_calls(struct rank *r)
{
	struct ep_normal_job job = the_job;
	struct shunt_ep *group;

	job.job.nranks = r->nranks;
	CHECK(ep_normal_group(r, ep_id(r, &ids, 0), ep_normal_bytes(&job, 3), 0, 0, &group) == 0);
	for (int i = 0; i < (quick ? 1 : 3); i++, job.job.seed++)
		CHECK(one_routing(r, group, &job) == 0);
	CHECK(shunt_ep_destroy(group, 0) == 0);
	return 0;
}

static int run(int n, struct ep_normal_job job, rank_fn body)
{
	the_job = job;
	memset(&ids, 0, sizeof(ids));
	return ranks_run(RANKS_THREADS, n, 1, body);
}

static void test_ranks(void **state)
{
	static const int experts[] = { 12, 12, 12, 12, 15, 12, 14, 16 };

	for (int n = 1; n <= 8; n++) {
		struct ep_normal_job job = small;

		job.job.experts = experts[n - 1];
		if (n < 6 || n == 8)
			assert_int_equal(run(n, job, body_calls), 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranks),
	};

	own_environment();
	quick = getenv("KERNELS_QUICK") != NULL;
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_DEVICE", "sim", 0);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
