/* SPDX-License-Identifier: MIT */
/* Which NICs are used, which is near to which GPU, and with which addresses they connect. */
#include <arpa/inet.h>
#include <ftw.h>
#include "tests/support/unit.h"
#include "transport/net/nic.h"
#include "transport/net/verbs/gid.h"

/* ---- a made-up /sys */

static char root[] = "/tmp/shunt_nic_XXXXXX";

static void make_dirs(const char *path)
{
	char partial[512];

	for (size_t n = strlen(root) + 1; n <= strlen(path); n++) {
		if (path[n] && path[n] != '/')
			continue;
		snprintf(partial, sizeof(partial), "%.*s", (int)n, path);
		assert_true(!mkdir(partial, 0700) || errno == EEXIST);
	}
}

/* A PCI device with the path below /devices, and its NUMA node; link is what names it. */
static void make_device(const char *path, const char *numa, const char *link)
{
	char full[200], at[512];

	snprintf(full, sizeof(full), "%s/devices/%s", root, path);
	make_dirs(full);
	if (numa)
		unit_write_file(full, "numa_node", numa);
	snprintf(at, sizeof(at), "%s/%s", root, link);
	*strrchr(at, '/') = '\0';
	make_dirs(at);
	snprintf(at, sizeof(at), "%s/%s", root, link);
	assert_int_equal(symlink(full, at), 0);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	return remove(path);
}

static int begin(void **state)
{
	return mkdtemp(root) ? 0 : -1;
}

static int end(void **state)
{
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TEST(test_places_come_from_sysfs)
{
	struct shunt_pci_place place;
	char text[32];

	shunt_pci_sysfs(root);
	make_device("pci0000:16/0000:16:01.0/0000:17:00.0", "1\n", "class/infiniband/mlx5_7/device");
	make_device("pci0000:16/0000:16:02.0/0000:19:00.0", NULL, "bus/pci/devices/0000:19:00.0");
	shunt_nic_place("mlx5_7", &place);
	assert_string_equal(place.pci, "/devices/pci0000:16/0000:16:01.0/0000:17:00.0");
	assert_int_equal(place.numa, 1);
	shunt_pci_place("0000:19:00.0", &place);
	assert_string_equal(place.pci, "/devices/pci0000:16/0000:16:02.0/0000:19:00.0");
	assert_int_equal(place.numa, -1);
	shunt_nic_place("mlx5_8", &place);
	assert_string_equal(place.pci, "");
	assert_int_equal(place.numa, -1);
	unit_write_file(root, "class/infiniband/mlx5_7/node_type", "1: CA\nmore\n");
	assert_true(shunt_nic_read("mlx5_7", "node_type", text, sizeof(text)));
	assert_string_equal(text, "1: CA");
	assert_false(shunt_nic_read("mlx5_7", "nothing", text, sizeof(text)));
	shunt_pci_sysfs("/sys");
}

/* ---- distances */

#define ROOT "/devices/pci0000:16/0000:16:01.0"
#define SWITCH ROOT "/0000:17:00.0"

static struct shunt_pci_place at(const char *path, int numa)
{
	struct shunt_pci_place place = { .numa = numa };

	snprintf(place.pci, sizeof(place.pci), "%s", path);
	return place;
}

TEST(test_distances_are_ordered)
{
	const struct shunt_pci_place gpu = at(SWITCH "/0000:18:00.0/0000:19:00.0", 0);
	const struct {
		struct shunt_pci_place nic;
		enum shunt_pci_distance distance;
	} cases[] = {
		{ at(SWITCH "/0000:18:01.0/0000:1a:00.0", 0), SHUNT_PCI_SWITCH },
		{ at(SWITCH "/0000:18:01.0/0000:1a:00.1", 0), SHUNT_PCI_SWITCH },
		{ at(SWITCH "/0000:18:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0", 0), SHUNT_PCI_SWITCHES },
		{ at("/devices/pci0000:16/0000:16:02.0/0000:30:00.0", 0), SHUNT_PCI_BRIDGE },
		{ at("/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0), SHUNT_PCI_NODE },
		{ at("/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 1), SHUNT_PCI_SYSTEM },
		{ at("/devices/pci0000:40/0000:40:01.0/0000:41:00.0", -1), SHUNT_PCI_SYSTEM },
		{ at("", 0), SHUNT_PCI_NODE },
		{ at("", -1), SHUNT_PCI_SYSTEM },
		{ at("/devices/virtual/siw", -1), SHUNT_PCI_SYSTEM },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(shunt_pci_distance(&gpu, &cases[i].nic), cases[i].distance);
		assert_int_equal(shunt_pci_distance(&cases[i].nic, &gpu), cases[i].distance);
	}
}

/* ---- pairs */

TEST(test_eight_gpus_and_eight_nics_are_pairs)
{
	struct shunt_pci_place gpus[8], nics[8];
	char path[128];

	/* A switch each, numbered the other way round. */
	for (int i = 0; i < 8; i++) {
		snprintf(path, sizeof(path),
		    "/devices/pci0000:%d0/0000:%d0:01.0/0000:%d1:00.0/0000:%d2:00.0/0000:%d3:00.0", i, i, i, i, i);
		gpus[i] = at(path, i / 4);
		snprintf(path, sizeof(path),
		    "/devices/pci0000:%d0/0000:%d0:01.0/0000:%d1:00.0/0000:%d2:01.0/0000:%d4:00.0", i, i, i, i, i);
		nics[7 - i] = at(path, i / 4);
	}
	for (int i = 0; i < 8; i++)
		assert_int_equal(shunt_nic_pair(gpus, 8, i, nics, 8), 7 - i);
}

TEST(test_gpus_share_nics_in_turn)
{
	struct shunt_pci_place gpus[8], nics[3];

	/* A flat machine: only the NUMA node tells. */
	for (int i = 0; i < 8; i++)
		gpus[i] = at("", i / 4);
	nics[0] = at("", 1);
	nics[1] = at("", 0);
	nics[2] = at("", 1);
	for (int i = 0; i < 4; i++)
		assert_int_equal(shunt_nic_pair(gpus, 8, i, nics, 3), 1);
	for (int i = 4; i < 8; i++)
		assert_int_equal(shunt_nic_pair(gpus, 8, i, nics, 3), i % 2 ? 2 : 0);
	/* Nothing is known: by index. */
	for (int i = 0; i < 8; i++)
		gpus[i] = at("", -1);
	for (int i = 0; i < 8; i++)
		assert_int_equal(shunt_nic_pair(gpus, 8, i, nics, 3), i % 3);
}

/* The GPU's own NIC, then those of its node, then the rest. */
TEST(test_rails_are_the_nearest_first)
{
	struct shunt_pci_place gpus[4], nics[4];
	int rails[4];

	for (int i = 0; i < 4; i++) {
		gpus[i] = at("", i / 2);
		nics[i] = at("", i / 2);
	}
	assert_int_equal(shunt_nic_rails(gpus, 4, 3, nics, 4, 1, rails), 1);
	assert_int_equal(rails[0], 3);
	assert_int_equal(shunt_nic_rails(gpus, 4, 3, nics, 4, 3, rails), 3);
	assert_int_equal(rails[0], 3);
	assert_int_equal(rails[1], 2);
	assert_int_equal(rails[2], 0);
	assert_int_equal(shunt_nic_rails(gpus, 4, 0, nics, 4, 4, rails), 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(rails[i], i);
	assert_int_equal(shunt_nic_rails(gpus, 4, 0, nics, 2, 4, rails), 2);
}

/* ---- addresses */

static struct shunt_gid gid(const char *address, enum shunt_gid_type type, int index)
{
	struct shunt_gid g = { .type = (uint8_t)type, .index = (uint8_t)index };
	char mapped[64];

	snprintf(mapped, sizeof(mapped), "%s%s", strchr(address, ':') ? "" : "::ffff:", address);
	assert_int_equal(inet_pton(AF_INET6, mapped, g.raw), 1);
	return g;
}

/* A table as RoCE NICs have it. */
static int table(struct shunt_gid *t)
{
	t[0] = gid("fe80::ba59:9fff:fe12:3456", SHUNT_GID_ROCE_V1, 0);
	t[1] = gid("fe80::ba59:9fff:fe12:3456", SHUNT_GID_ROCE_V2, 1);
	t[2] = gid("10.1.0.5", SHUNT_GID_ROCE_V1, 2);
	t[3] = gid("10.1.0.5", SHUNT_GID_ROCE_V2, 3);
	t[4] = gid("fd00::5", SHUNT_GID_ROCE_V1, 4);
	t[5] = gid("fd00::5", SHUNT_GID_ROCE_V2, 5);
	t[6] = gid("::", SHUNT_GID_ROCE_V2, 6);
	t[7] = gid("192.168.3.4", SHUNT_GID_ROCE_V2, 7);
	return 8;
}

TEST(test_gids_are_offered_by_preference)
{
	static const int order[] = { 3, 7, 5, 1, 2, 4, 0 };
	struct shunt_gid t[8], offered[SHUNT_GID_MAX_OFFERED];
	struct shunt_gid_rules any = { .index = -1 };
	int n = table(t);

	assert_int_equal(shunt_gid_offer(t, n, &any, offered), 7);
	for (int i = 0; i < 7; i++)
		assert_int_equal(offered[i].index, order[i]);
}

static void expect_offer(const struct shunt_gid_rules *rules, const char *indices)
{
	struct shunt_gid t[8], offered[SHUNT_GID_MAX_OFFERED];
	char got[SHUNT_GID_MAX_OFFERED + 1] = "";
	int n = shunt_gid_offer(t, table(t), rules, offered);

	for (int i = 0; i < n; i++)
		got[i] = (char)('0' + offered[i].index);
	assert_string_equal(got, indices);
}

TEST(test_rules_allow_gids)
{
	struct shunt_gid_rules rules;
	const char *bad = NULL;

	assert_int_equal(shunt_gid_rules_parse("AF_INET", "", &rules, &bad), 0);
	expect_offer(&rules, "372");
	assert_int_equal(shunt_gid_rules_parse("AF_INET6", NULL, &rules, &bad), 0);
	expect_offer(&rules, "5140");
	assert_int_equal(shunt_gid_rules_parse("", "10.0.0.0/8", &rules, &bad), 0);
	expect_offer(&rules, "32");
	assert_int_equal(shunt_gid_rules_parse("", "192.168.3.4", &rules, &bad), 0);
	expect_offer(&rules, "7");
	assert_int_equal(shunt_gid_rules_parse("", "192.168.2.0/23", &rules, &bad), 0);
	expect_offer(&rules, "7");
	assert_int_equal(shunt_gid_rules_parse("", "192.168.2.0/24", &rules, &bad), 0);
	expect_offer(&rules, "");
	assert_int_equal(shunt_gid_rules_parse("", "fd00::/16", &rules, &bad), 0);
	expect_offer(&rules, "54");
	rules = (struct shunt_gid_rules){ .index = -1, .version = 1 };
	expect_offer(&rules, "240");
	/* An index is the user's choice, whatever else is asked for; an empty entry is none. */
	rules = (struct shunt_gid_rules){ .index = 0, .version = 2, .family = AF_INET };
	expect_offer(&rules, "0");
	rules.index = 6;
	expect_offer(&rules, "");
}

TEST(test_rules_that_cannot_be_read)
{
	static const char *const ranges[] = { "10.0.0/8", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "x", "10.0.0.0/8x",
		"::/0/0", "1234567890123456789012345678901234567890123456789/8" };
	struct shunt_gid_rules rules;

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		const char *bad = NULL;

		assert_int_equal(shunt_gid_rules_parse("AF_INET", ranges[i], &rules, &bad), -EINVAL);
		assert_ptr_equal(bad, ranges[i]);
		assert_int_equal(rules.family, AF_INET);
		assert_int_equal(rules.range_bits, 0);
	}
	for (int i = 0; i < 2; i++) {
		const char *bad = NULL, *family = i ? "inet" : "AF_INET7";

		assert_int_equal(shunt_gid_rules_parse(family, "10.0.0.0/8", &rules, &bad), -EINVAL);
		assert_ptr_equal(bad, family);
		assert_int_equal(rules.range_bits, 96 + 8);
	}
}

/* Both ends find the same pair. */
static bool choose(const struct shunt_gid *a, int na, const struct shunt_gid *b, int nb, int *a_p, int *b_p)
{
	const struct shunt_gids as = { a, na }, bs = { b, nb };
	int other_a = -1, other_b = -1;
	bool found = shunt_gid_choose(as, bs, true, a_p, b_p);

	assert_int_equal(shunt_gid_choose(bs, as, false, &other_b, &other_a), found);
	if (found) {
		assert_int_equal(other_a, *a_p);
		assert_int_equal(other_b, *b_p);
	}
	return found;
}

TEST(test_both_ends_choose_one_pair)
{
	const struct shunt_gid v4 = gid("10.1.0.5", SHUNT_GID_ROCE_V2, 3), v4b = gid("10.2.0.5", SHUNT_GID_ROCE_V2, 7);
	const struct shunt_gid v6 = gid("fd00::5", SHUNT_GID_ROCE_V2, 5), old = gid("10.1.0.6", SHUNT_GID_ROCE_V1, 2);
	const struct shunt_gid ib = gid("fe80::1:2:3:4", SHUNT_GID_IB, 0);
	int a = -1, b = -1;

	assert_true(choose((struct shunt_gid[]){ v4, v6 }, 2, (struct shunt_gid[]){ v6, v4b }, 2, &a, &b));
	assert_int_equal(a, 0);
	assert_int_equal(b, 1);
	assert_true(choose((struct shunt_gid[]){ v4, v6, old }, 3, (struct shunt_gid[]){ v6, old }, 2, &a, &b));
	assert_int_equal(a, 1);
	assert_int_equal(b, 0);
	assert_true(choose((struct shunt_gid[]){ v4, old }, 2, (struct shunt_gid[]){ old }, 1, &a, &b));
	assert_int_equal(a, 1);
	assert_int_equal(b, 0);
	assert_true(choose((struct shunt_gid[]){ v4, v4b }, 2, (struct shunt_gid[]){ v4, v4b }, 2, &a, &b));
	assert_int_equal(a, 0);
	assert_int_equal(b, 0);
	assert_true(choose(&ib, 1, &ib, 1, &a, &b));
	assert_false(choose(&v4, 1, &v6, 1, &a, &b));
	assert_false(choose(&v4, 1, &old, 1, &a, &b));
	assert_false(choose(&v4, 1, &ib, 1, &a, &b));
	assert_false(choose(&v4, 0, &v4, 1, &a, &b));
}

TEST(test_every_two_lists_give_one_pair)
{
	struct shunt_gid all[7], own[7], peers[7];
	struct shunt_gid_rules any = { .index = -1 };
	struct shunt_gid t[8];
	int a, b;

	assert_int_equal(shunt_gid_offer(t, table(t), &any, all), 7);
	for (int i = 0; i < 1 << 7; i++) {
		for (int j = 0; j < 1 << 7; j++) {
			int nown = 0, npeers = 0;

			for (int k = 0; k < 7; k++) {
				if (i >> k & 1)
					own[nown++] = all[k];
				if (j >> k & 1)
					peers[npeers++] = all[6 - k];
			}
			if (choose(own, nown, peers, npeers, &a, &b)) {
				assert_int_equal(shunt_gid_class(&own[a]), shunt_gid_class(&peers[b]));
				assert_int_equal(own[a].type, peers[b].type);
			}
		}
	}
}

TEST(test_infiniband_offers_one)
{
	struct shunt_gid t[3] = { gid("fe80::1:2:3:4", SHUNT_GID_IB, 0), gid("::", SHUNT_GID_IB, 1),
		gid("fec0::1:2:3:4", SHUNT_GID_IB, 2) };
	struct shunt_gid offered[SHUNT_GID_MAX_OFFERED];
	struct shunt_gid_rules rules = { .index = -1, .family = AF_INET, .version = 1 };

	/* Family and version are RoCE's. */
	assert_int_equal(shunt_gid_offer(t, 3, &rules, offered), 1);
	assert_int_equal(offered[0].index, 0);
	rules.index = 2;
	assert_int_equal(shunt_gid_offer(t, 3, &rules, offered), 1);
	assert_int_equal(offered[0].index, 2);
}

TEST(test_gids_are_shown)
{
	struct shunt_gid v4 = gid("10.1.0.5", SHUNT_GID_ROCE_V2, 3), v6 = gid("fd00::5", SHUNT_GID_ROCE_V2, 5);
	char text[64];

	shunt_gid_show(&v4, text, sizeof(text));
	assert_string_equal(text, "10.1.0.5");
	shunt_gid_show(&v6, text, sizeof(text));
	assert_string_equal(text, "fd00::5");
}

int main(void)
{
	return tests_run(begin, end);
}
