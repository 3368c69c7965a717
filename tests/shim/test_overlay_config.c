/* SPDX-License-Identifier: MIT */
/* Configurations of calls, in front of a libnccl of 2.31 that records calls. SHUNT_NCCL_LIB names the fake. */
#include "tests/shim/mock_core.h"
#include "tests/shim/overlay_fixture.h"
#include "tests/support/test.h"
#include "tests/support/until.h"
#include "tools/common/nccl_config.h"

/* A later header's configuration, with a vendor's option. */
TEST(test_call_configuration_reaches_nccl_whole_or_short)
{
	ncclConfigExt_t ext = { .value.i = 7 };
	struct {
		ncclCollConfig_t known;
		char later[16];
	} config = { .known = nccl_coll_config_unset() };
	ncclComm_t comm = unused_comm(0, 2);

	config.known.size = sizeof(config);
	config.known.version = 23300;
	config.known.ext = &ext;
	memset(config.later, 1, sizeof(config.later));
	/*
	 * Behind a call that may be NCCL's it is kept until the group's end, when the program may have other things
	 * there.
	 */
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, &config.known), ncclSuccess);
	ext.value.i = 8;
	memset(config.later, 2, sizeof(config.later));
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(fake.log(), "config of 72, later 0, option -1\nAllReduce 5000"));
	fake.reset();
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, &config.known), ncclSuccess);
	assert_non_null(strstr(fake.log(), "config of 88, later 32, option 8\nAllReduce 5000"));
	ncclCommDestroy(comm);
}

/* Ours only if it asks for nothing that we do not know. */
TEST(test_call_configuration_of_every_version_is_understood_or_forwarded)
{
	struct {
		ncclCollConfig_t c;
		char later[8];
	} room = { .c = nccl_coll_config_unset() };
	ncclCollConfig_t *config = &room.c;
	const size_t first = offsetof(ncclCollConfig_t, launchCompletionEvent); /* 2.31's ends here, and its memory */
	ncclComm_t comm = unused_comm(0, 2);
	void *earlier = malloc(first);

	config->maxCTAs = 2;
	assert_int_equal(ncclAllReduceConfig(a, b, 5, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 5 0\n"));
	shunt_mock_reset();
	config->size = first;
	memcpy(earlier, config, first);
	assert_int_equal(ncclAllReduceConfig(a, b, 6, ncclInt8, ncclSum, comm, NULL, earlier), ncclSuccess);
	assert_non_null(strstr(shunt_mock_log(), "run 6 0\n"));
	free(earlier);

	shunt_mock_reset();
	config->size = sizeof(*config);
	config->launchCompletionEvent = config;
	assert_int_equal(ncclAllReduceConfig(a, b, 7, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_string_equal(shunt_mock_log(), "run 7 0 event\n");
	/* What is too large for us is NCCL's, with its event. */
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_non_null(strstr(fake.log(), "config of 72, later 0, option -1\nAllReduce 5000 "));
	config->launchCompletionEvent = NULL;
	config->size = sizeof(room);
	shunt_mock_reset();
	assert_int_equal(ncclAllReduceConfig(a, b, 8, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	config->size = first - 8; /* NCCL refuses it */
	assert_int_equal(ncclAllReduceConfig(a, b, 9, ncclInt8, ncclSum, comm, NULL, config), ncclSuccess);
	assert_null(strstr(shunt_mock_log(), "run"));
	assert_non_null(strstr(fake.log(), "AllReduce 8 "));
	assert_non_null(strstr(fake.log(), "AllReduce 9 "));
	ncclCommDestroy(comm);
}

/* Names of ours are ours, names of NCCL's are NCCL's; it gets them as they were at the call. */
TEST(test_call_configuration_selects_among_both_libraries)
{
	ncclCollConfig_t config = nccl_coll_config_unset();
	ncclComm_t comm = unused_comm(0, 2);
	char name[] = "RING_LL,TREE_LL";

	config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	shunt_mock_reset();
	fake.reset();
	config.algSelection = "RING_LL,oneshot";
	assert_int_equal(ncclAllReduceConfig(a, b, 5, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	config.forceAlgSelection = 0;
	config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;
	assert_int_equal(ncclAllReduceConfig(a, b, 6, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
	config.algSelection = "";
	assert_int_equal(ncclAllReduceConfig(a, b, 7, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	assert_string_equal(
	    shunt_mock_log(), "run 5 0 only oneshot policy 3\nrun 6 0 rather oneshot policy 5\nrun 7 0 policy 1\n");
	assert_string_equal(fake.log(), "");
	config.algSelection = "RING_LL"; /* a wish is NCCL's, too */
	assert_int_equal(ncclAllReduceConfig(a, b, 8, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	assert_non_null(strstr(fake.log(), "selection RING_LL, forced 0\nAllReduce 8 "));
	config.algSelection = NULL;
	config.CTAPolicy = 4;
	assert_int_equal(ncclAllReduceConfig(a, b, 9, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	assert_non_null(strstr(fake.log(), "AllReduce 9 "));
	ncclCommDestroy(comm);

	comm = unused_comm(0, 2); /* undecided, so that the group keeps the call */
	config.CTAPolicy = NCCL_CONFIG_UNDEF_INT;
	config.algSelection = name;
	ncclGroupStart();
	assert_int_equal(reduce(comm, 5), ncclSuccess);
	assert_int_equal(ncclAllReduceConfig(a, b, 5000, ncclInt8, ncclSum, comm, NULL, &config), ncclSuccess);
	memset(name, 'x', sizeof(name) - 1);
	assert_int_equal(ncclGroupEnd(), ncclSuccess);
	assert_non_null(strstr(fake.log(), "selection RING_LL,TREE_LL, forced 0\nAllReduce 5000 "));
	ncclCommDestroy(comm);
}

TESTS_EACH(setup, NULL)
