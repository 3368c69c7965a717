/* SPDX-License-Identifier: MIT */
/* Reading ncclConfig_t, of every version. */
#include "tests/support/test.h"
#include "base/config.h"
#include "shim/handles/comm_config.h"

static struct shunt_nccl_env env = { .comm_blocking = -1, .cga_cluster_size = -1, .cta_policy = -1 };

const struct shunt_nccl_env *shunt_nccl_env(void)
{
	return &env;
}

/* As NCCL_CONFIG_INITIALIZER of that version's header; what is behind it is garbage. */
static ncclConfig_t fresh(unsigned version)
{
	static const struct {
		unsigned version;
		size_t size;
	} sizes[] = { { 23200, 120 }, { 23100, 112 }, { 23000, 96 }, { 22900, 88 }, { 22800, 80 }, { 22700, 72 },
		{ 21800, 48 }, { 21700, 40 }, { 21400, 24 } };
	ncclConfig_t c;
	size_t i = 0;

	while (sizes[i].version > version)
		i++;
	memset(&c, 0x7d, sizeof(c));
	for (size_t at = offsetof(ncclConfig_t, blocking); at < sizes[i].size; at += 4)
		memcpy((char *)&c + at, &(int){ NCCL_CONFIG_UNDEF_INT }, 4);
	c.size = sizes[i].size;
	c.magic = SHUNT_NCCL_CONFIG_MAGIC;
	c.version = version;
	if (version >= 21700)
		c.netName = NULL;
	if (version >= 22700)
		c.commName = NULL;
	return c;
}

static int read_config(const ncclConfig_t *c, struct shunt_comm_config *out, char reason[128])
{
	reason[0] = 0;
	return shunt_comm_config_read(c, NULL, out, reason, 128);
}

/* The memory ends where the caller's struct does. */
static int read_exactly(const ncclConfig_t *c, struct shunt_comm_config *out)
{
	void *end = malloc(c->size);
	char reason[128];
	int err;

	memcpy(end, c, c->size);
	err = read_config(end, out, reason);
	free(end);
	return err;
}

static const unsigned versions[] = { 21400, 21705, 21800, 22005, 22505, 22600, 22700, 22809, 22907, 23003, 23007, 23100,
	23200, 99900 };

TEST(test_comm_config_of_every_version_is_read_within_its_size)
{
	struct shunt_comm_config out;

	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		ncclConfig_t c = fresh(versions[i]);

		assert_int_equal(read_exactly(&c, &out), 0);
		assert_true(out.blocking);
		assert_int_equal(out.max_ctas, 0);
		c.blocking = 0;
		if (versions[i] >= 21700)
			c.maxCTAs = 9;
		assert_int_equal(read_exactly(&c, &out), 0);
		assert_false(out.blocking);
		assert_int_equal(out.max_ctas, versions[i] >= 21700 ? 9 : 0);
	}
}

TEST(test_comm_config_says_whether_launches_may_come_as_clusters)
{
	static const struct {
		int size, env;
		bool none;
	} cases[] = {
		{ NCCL_CONFIG_UNDEF_INT, -1, false },
		{ 0, -1, true },
		{ 4, -1, false },
		{ 4, 0, true },
		{ 0, 4, false },
		{ NCCL_CONFIG_UNDEF_INT, 0, true },
	};
	struct shunt_comm_config out;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ncclConfig_t c = fresh(22809);

		c.cgaClusterSize = cases[i].size;
		env.cga_cluster_size = cases[i].env;
		assert_int_equal(read_exactly(&c, &out), 0);
		assert_int_equal(out.no_clusters, cases[i].none);
	}
	env.cga_cluster_size = -1;
}

TEST(test_comm_config_launch_order_is_the_programs_or_the_environments)
{
	static const struct {
		int order, env;
		bool in_order;
	} cases[] = { { NCCL_CONFIG_UNDEF_INT, 0, false }, { 0, 0, false }, { 1, 0, true },
		{ NCCL_CONFIG_UNDEF_INT, 1, true }, { 0, 1, true } };
	struct shunt_comm_config out;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ncclConfig_t c = fresh(23100);

		c.launchOrderImplicit = cases[i].order;
		env.launch_order_implicit = cases[i].env;
		assert_int_equal(read_exactly(&c, &out), 0);
		assert_int_equal(out.in_order, cases[i].in_order);
	}
	env.launch_order_implicit = 0;
}

TEST(test_comm_config_newer_than_ours_is_cut)
{
	struct {
		ncclConfig_t c;
		char more[64];
	} later = { fresh(23200), "" };
	struct shunt_comm_config out;
	char reason[128];

	memset(later.more, 0x7f, sizeof(later.more));
	later.c.size = sizeof(later);
	later.c.version = 24000;
	later.c.blocking = 0;
	assert_int_equal(read_config(&later.c, &out, reason), 0);
	assert_false(out.blocking);
}

TEST(test_comm_config_without_magic_is_refused)
{
	ncclConfig_t c = fresh(22809);
	struct shunt_comm_config out;
	char reason[128];

	c.magic = 0;
	c.blocking = 0;
	assert_int_equal(read_config(&c, &out, reason), -EINVAL);
	assert_non_null(strstr(reason, "NCCL_CONFIG_INITIALIZER"));
	assert_true(out.blocking);
	c = fresh(22809);
	c.size = 8;
	assert_int_equal(read_config(&c, &out, reason), -EINVAL);
}

TEST(test_comm_config_values_are_checked_as_nccl_does)
{
	static const struct {
		const char *name;
		size_t offset;
		unsigned since;
		int good[3], bad[3];
	} rows[] = {
#define ROW(field, since, ...) { #field, offsetof(ncclConfig_t, field), since, __VA_ARGS__ }
		ROW(blocking, 21400, { 0, 1, 1 }, { 2, -1, 7 }),
		ROW(cgaClusterSize, 21700, { 0, 8, 100 }, { -1, -2, -3 }),
		ROW(maxCTAs, 21700, { 1, 32, 1000 }, { 0, -1, -2 }),
		ROW(splitShare, 21800, { 0, 1, 1 }, { 2, -1, 3 }),
		ROW(trafficClass, 22600, { 0, -5, 1000 }, { 0 }),
		ROW(collnetEnable, 22700, { 0, 1, 0 }, { -1, 2, 3 }),
		ROW(CTAPolicy, 22700, { 0, 1, 3 }, { -1, 4, 5 }),
		ROW(shrinkShare, 22700, { 0, 1, 0 }, { -1, 2, 3 }),
		ROW(nvlsCTAs, 22700, { 1, 2, 64 }, { 0, -1, -2 }),
		ROW(nChannelsPerNetPeer, 22800, { 1, 2, 64 }, { 0, -1, 65 }),
		ROW(nvlinkCentricSched, 22800, { 0, 1, 0 }, { -1, 2, 3 }),
		ROW(graphUsageMode, 22900, { 0, 1, 2 }, { -1, 3, 4 }),
		ROW(numRmaCtx, 22900, { 0, 1, 7 }, { -1, -2, -3 }),
		ROW(maxP2pPeers, 23003, { 1, 2, 7 }, { 0, -1, -2 }),
		ROW(graphStreamOrdering, 23007, { 0, 1, 1 }, { -1, 2, 3 }),
		ROW(numRmaSig, 23100, { 0, 1, -9 }, { 0 }),
		ROW(nvlsHostMode, 23200, { 0, 3, INT_MAX }, { -1, -2, -3 }),
	};
	struct shunt_comm_config out;
	char reason[128];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int k = 0; k < 3; k++) {
			ncclConfig_t c = fresh(23200);
			int *field = (int *)((char *)&c + rows[i].offset);

			*field = rows[i].good[k];
			assert_int_equal(read_config(&c, &out, reason), 0);
			*field = rows[i].bad[k];
			if (!rows[i].bad[0] && !rows[i].bad[1])
				continue; /* any value will do */
			assert_int_equal(read_config(&c, &out, reason), -EINVAL);
			assert_non_null(strstr(reason, rows[i].name));
			assert_true(out.blocking);
			/* To an older caller these bytes are padding, or beyond its struct. */
			c.version = rows[i].since - 100;
			if (rows[i].since >= 22600 && rows[i].since != 23007)
				assert_int_equal(read_config(&c, &out, reason), 0);
		}
}

TEST(test_comm_config_padding_of_older_versions_is_ignored)
{
	ncclConfig_t c = fresh(21800);
	struct shunt_comm_config out;
	char reason[128];

	c.trafficClass = 12345;
	assert_int_equal(read_config(&c, &out, reason), 0);
	c = fresh(23003);
	c.graphStreamOrdering = 12345;
	assert_int_equal(read_config(&c, &out, reason), 0);
	c.version = 23005;
	assert_int_equal(read_config(&c, &out, reason), -EINVAL);
}

TEST(test_comm_config_minimum_of_blocks_needs_a_maximum)
{
	ncclConfig_t c = fresh(22809);
	struct shunt_comm_config out;
	char reason[128];

	c.minCTAs = 4;
	assert_int_equal(read_config(&c, &out, reason), -EINVAL);
	c.maxCTAs = 4;
	assert_int_equal(read_config(&c, &out, reason), 0);
	assert_int_equal(out.max_ctas, 4);
	c.maxCTAs = 3;
	assert_int_equal(read_config(&c, &out, reason), -EINVAL);
	assert_non_null(strstr(reason, "minCTAs is 4 and maxCTAs only 3"));
	c.minCTAs = 0;
	assert_int_equal(read_config(&c, &out, reason), -EINVAL);
}

TEST(test_comm_config_name_is_kept_and_cut)
{
	ncclConfig_t c = fresh(22700);
	struct shunt_comm_config out;
	char reason[128], text[] = "mesh_default_pg_0";

	c.commName = text;
	assert_int_equal(read_config(&c, &out, reason), 0);
	memset(text, 'x', 3);
	assert_string_equal(out.name, "mesh_default_pg_0");
	c.commName = "0123456789012345678901234567890123456789012345678901234567890123456789";
	assert_int_equal(read_config(&c, &out, reason), 0);
	assert_int_equal(strlen(out.name), sizeof(out.name) - 1);
	c.version = 22600; /* no name there: not a pointer to be followed */
	c.commName = (const char *)8;
	assert_int_equal(read_config(&c, &out, reason), 0);
	assert_string_equal(out.name, "");
}

TEST(test_comm_config_inherits_only_without_one)
{
	struct shunt_comm_config parent = { .blocking = false, .max_ctas = 6, .name = "parent" }, out;
	ncclConfig_t c = fresh(22809);
	char reason[128];

	assert_int_equal(shunt_comm_config_read(NULL, &parent, &out, reason, sizeof(reason)), 0);
	assert_false(out.blocking);
	assert_int_equal(out.max_ctas, 6);
	assert_string_equal(out.name, "parent");
	assert_int_equal(shunt_comm_config_read(&c, &parent, &out, reason, sizeof(reason)), 0);
	assert_true(out.blocking);
	assert_int_equal(out.max_ctas, 0);
	assert_string_equal(out.name, "");
	assert_int_equal(shunt_comm_config_read(NULL, NULL, &out, reason, sizeof(reason)), 0);
	assert_true(out.blocking);
}

/* Of both policies zero counts; the environment's counts more than the program's, and a child's own more than none. */
TEST(test_comm_config_policy_of_blocks)
{
	static const struct {
		int policy, env;
		bool few, none;
	} cases[] = {
		{ NCCL_CONFIG_UNDEF_INT, -1, false, false },
		{ NCCL_CTA_POLICY_DEFAULT, -1, false, false },
		{ NCCL_CTA_POLICY_EFFICIENCY, -1, true, false },
		{ NCCL_CTA_POLICY_ZERO, -1, false, true },
		{ NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO, -1, false, true },
		{ NCCL_CTA_POLICY_ZERO, 1, true, false },
		{ NCCL_CTA_POLICY_EFFICIENCY, 0, false, false },
		{ NCCL_CONFIG_UNDEF_INT, 3, false, true },
	};
	struct shunt_comm_config out;
	char reason[128];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ncclConfig_t c = fresh(22809);

		c.CTAPolicy = cases[i].policy;
		env.cta_policy = cases[i].env;
		assert_int_equal(read_exactly(&c, &out), 0);
		assert_int_equal(out.few_ctas, cases[i].few);
		assert_int_equal(out.no_sms, cases[i].none);
		assert_int_equal(shunt_comm_config_read(NULL, NULL, &out, reason, sizeof(reason)), 0);
		assert_int_equal(out.few_ctas, cases[i].env == 1);
	}
	env.cta_policy = -1;
}

TEST(test_comm_config_environment_wins)
{
	struct shunt_comm_config out;
	ncclConfig_t c = fresh(22809);
	char reason[128];

	c.blocking = 1;
	c.maxCTAs = 8;
	env = (struct shunt_nccl_env){ .comm_blocking = 0, .max_ctas = 2, .cta_policy = -1 };
	assert_int_equal(read_config(&c, &out, reason), 0);
	assert_false(out.blocking);
	assert_int_equal(out.max_ctas, 2);
	assert_int_equal(read_config(NULL, &out, reason), 0);
	assert_false(out.blocking);
	env = (struct shunt_nccl_env){ .comm_blocking = 5, .max_ctas = -1, .cta_policy = -1 }; /* no such values */
	assert_int_equal(read_config(&c, &out, reason), 0);
	assert_true(out.blocking);
	assert_int_equal(out.max_ctas, 8);
	env = (struct shunt_nccl_env){ .comm_blocking = -1, .cga_cluster_size = -1, .cta_policy = -1 };
}
