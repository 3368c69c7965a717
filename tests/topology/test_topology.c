/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include "tests/support/fake_pci.h"
#include "tests/support/test.h"
#include "base/config.h"
#include "topology/claim.h"
#include "topology/pci.h"
#include "topology/topology.h"

TEST(test_ranks_of_one_host_are_one_island)
{
	struct shunt_topology t;

	assert_false(shunt_topology_is_split(&shunt_topology_one_island));
	for (int n = 1; n <= SHUNT_TOPOLOGY_LOCAL; n++) {
		shunt_topology_join(&t, n, n - 1);
		assert_false(shunt_topology_is_split(&t));
		assert_true(shunt_topology_is_regular(&t));
		assert_int_equal(shunt_topology_nlocal(&t), n);
		assert_int_equal(shunt_topology_local(&t), n - 1);
		for (int r = 0; r < n; r++) {
			assert_int_equal(shunt_topology_locals(&t)[r], r);
			assert_false(shunt_topology_connects(&t, true, 0, r));
		}
	}
	shunt_topology_join(&t, SHUNT_TOPOLOGY_RANKS, 9); /* an island has no more than so many */
	assert_int_equal(shunt_topology_nlocal(&t), SHUNT_TOPOLOGY_LOCAL);
	shunt_topology_join(&t, -1, -1); /* not known yet */
	assert_int_equal(shunt_topology_nlocal(&t), 0);
}

/* Ranks 0, 2, 3 on one island, 1 and 4 on the other: two rails, and rank 3 on none. */
TEST(test_rails_join_ranks_of_one_index)
{
	struct shunt_topology t = { .nranks = 5, .nislands = 2, .rank = 4, .island_of = { 0, 1, 0, 0, 1 } };

	shunt_topology_complete(&t);
	assert_true(shunt_topology_is_split(&t));
	assert_false(shunt_topology_is_regular(&t));
	assert_int_equal(t.rails, 2);
	assert_int_equal(shunt_topology_largest(&t), 3);
	assert_int_equal(shunt_topology_nlocal(&t), 2);
	assert_int_equal(shunt_topology_local(&t), 1);
	assert_int_equal(t.rank_at[0][2], 3);
	for (int a = 0; a < 5; a++)
		for (int b = 0; b < 5; b++) {
			int low = a < b ? a : b, high = a < b ? b : a;
			bool apart = t.island_of[a] != t.island_of[b],
			     rail = (low == 0 && high == 1) || (low == 2 && high == 4);

			assert_int_equal(shunt_topology_is_joint(&t, a, b), !apart);
			assert_int_equal(shunt_topology_connects(&t, true, a, b), apart);
			assert_int_equal(shunt_topology_connects(&t, false, a, b), rail);
			assert_true(a == b || apart || shunt_topology_rail(&t, a) != shunt_topology_rail(&t, b));
		}
}

/* A topology that threads have seen as one island gets all that another way of filling one in gives. */
TEST(test_placed_ranks_leave_one_island)
{
	struct shunt_topology t, whole = { .nranks = 5, .nislands = 2, .rank = 4, .island_of = { 0, 1, 0, 0, 1 } };

	shunt_topology_complete(&whole);
	shunt_topology_join(&t, 5, 4);
	shunt_topology_place(&t, 5, 2, 4, whole.island_of);
	assert_memory_equal(&t, &whole, sizeof(t));
	shunt_topology_place(&t, 3, 1, 2, (const uint8_t[]){ 0, 0, 0 });
	assert_false(shunt_topology_is_split(&t));
	assert_int_equal(shunt_topology_nlocal(&t), 3);
}

struct reading {
	const struct shunt_topology *topology;
	bool begun, wrong;
};

/* Reads what a call asks before its communicator is set up. Its marks are relaxed, so they order nothing. */
static void *read_until_split(void *arg)
{
	struct reading *reading = arg;

	while (!shunt_topology_is_split(reading->topology)) {
		reading->wrong |= shunt_topology_within(reading->topology) != SHUNT_LINK_NVLINK;
		__atomic_store_n(&reading->begun, true, __ATOMIC_RELAXED);
		sched_yield();
	}
	reading->wrong |= reading->topology->rails != 2;
	return NULL;
}

TEST(test_threads_may_read_while_ranks_are_placed)
{
	struct shunt_topology t;
	struct reading reading = { .topology = &t };
	pthread_t thread;

	shunt_topology_join(&t, 5, 4);
	assert_int_equal(pthread_create(&thread, NULL, read_until_split, &reading), 0);
	while (!__atomic_load_n(&reading.begun, __ATOMIC_RELAXED))
		sched_yield();
	shunt_topology_place(&t, 5, 2, 4, (const uint8_t[]){ 0, 1, 0, 0, 1 });
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(reading.wrong);
}

TEST(test_ranks_spread_evenly)
{
	uint8_t island_of[SHUNT_TOPOLOGY_RANKS];

	shunt_topology_spread(6, 3, island_of);
	assert_memory_equal(island_of, ((const uint8_t[]){ 0, 0, 1, 1, 2, 2 }), 6);
	shunt_topology_spread(3, 2, island_of);
	assert_memory_equal(island_of, ((const uint8_t[]){ 0, 0, 1 }), 3);
}

/* The slower claim of a pair holds, and a link that nobody serves becomes the next slower one that is. */
TEST(test_pairs_have_the_slower_claim)
{
	enum { NEAR = 1u << SHUNT_LINK_SELF | 1u << SHUNT_LINK_NVLINK };
	uint8_t claims[SHUNT_TOPOLOGY_RANKS][SHUNT_TOPOLOGY_LOCAL] = { { 0, 1, 1 }, { 1, 0, 2 }, { 1, 1, 0 } };
	struct shunt_topology t;
	int a = -1, b = -1;

	shunt_topology_join(&t, 3, 1);
	assert_int_equal(t.within, SHUNT_LINK_NVLINK);
	assert_false(shunt_topology_agree(&t, claims, NEAR, &a, &b));
	assert_int_equal(a, 1);
	assert_int_equal(b, 2);
	assert_true(shunt_topology_agree(&t, claims, NEAR | 1u << SHUNT_LINK_PEER, &a, &b));
	assert_int_equal(t.link[2][1], SHUNT_LINK_PEER);
	assert_true(shunt_topology_agree(&t, claims, NEAR | 1u << SHUNT_LINK_SHARED, &a, &b));
	assert_int_equal(t.link[0][1], SHUNT_LINK_NVLINK);
	assert_int_equal(t.link[1][2], SHUNT_LINK_SHARED);
	assert_int_equal(t.link[2][1], SHUNT_LINK_SHARED);
	assert_int_equal(t.within, SHUNT_LINK_SHARED);
	claims[0][2] = SHUNT_LINK_NET;
	assert_false(shunt_topology_agree(&t, claims, ~0u, &a, &b));
	assert_int_equal(a, 0);
	assert_int_equal(b, 2);
	/* Hosts: the index is that of the island. */
	shunt_topology_place(&t, 3, 2, 1, (const uint8_t[]){ 0, 1, 1 });
	memset(claims, 0, sizeof(claims));
	claims[2][0] = SHUNT_LINK_SHARED;
	assert_true(shunt_topology_agree(&t, claims, ~0u, &a, &b));
	assert_int_equal(t.link[1][1], SHUNT_LINK_SHARED);
	assert_int_equal(t.link[0][0], SHUNT_LINK_SELF);
}

/* Links of pairs by SHUNT_LINKS' rules; islands as text, one letter a rank. NULL: not used. */
TEST(test_islands_are_cliques_of_nvlink)
{
	static const struct {
		int nranks;
		const char *rules, *islands;
	} cases[] = {
		{ 4, "*:none;0/1:nvlink;2/3:nvlink", "aabb" },
		{ 4, "*:peer;0/3:nvlink;1/2:nvlink", "abba" },
		{ 8, "0/1/2/3-4/5/6/7:none", "aaaabbbb" },
		{ 8, "*:none;0/4:nvlink;1/5:nvlink;2/6:nvlink;3/7:nvlink", "abcdabcd" },
		{ 4, "0-3:none;1-2:none", "aabb" }, /* a ring */
		{ 4, "*:none;0/1/2:nvlink", NULL },
		{ 4, "*:none", NULL },
		{ 4, "", NULL },
	};
	uint8_t claims[SHUNT_TOPOLOGY_RANKS][SHUNT_TOPOLOGY_LOCAL];
	struct shunt_topology t, islands;
	int x, y;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		shunt_topology_join(&t, cases[i].nranks, 0);
		for (int a = 0; a < t.nranks; a++)
			for (int b = 0; b < t.nranks; b++)
				claims[a][b] = (uint8_t)shunt_link_rules_find(cases[i].rules, a, b);
		assert_true(shunt_topology_agree(&t, claims, ~0u, &x, &y));
		assert_int_equal(shunt_topology_find_islands(&t, &islands), cases[i].islands != NULL);
		for (int r = 0; cases[i].islands && r < t.nranks; r++)
			assert_int_equal(islands.island_of[r], cases[i].islands[r] - 'a');
	}
}

TEST(test_rules_name_links_of_pairs)
{
	static const char *const bad[] = { "x", "0-1", "0-1:", "0-1:fast", "0-1:nvlink,", "0/:none", "-1:none",
		"64:none", "0-1:none;;", "0-1:none x", "*:none,", "*:none,lie", "*:none,lie=", "*:none,lie=big",
		"*:none,dies=x", "*:none,dies=4294967296", "*:none,distance=near", "*:none,,lie=old",
		"*:none,lie=old;;", "*:none,stores=late", "*:none,stores=postedx", "*:none,store=posted" };
	const char *rules = "*:none;0-1:nvlink;2/3-4/*:peer";

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_non_null(shunt_link_rules_check(bad[i]));
	assert_non_null(shunt_link_rules_check(rules));
	rules = "*:none;0-1:nvlink;2/3-4/5:peer;6/7:nvlink;63:shared";
	assert_null(shunt_link_rules_check(rules));
	assert_null(shunt_link_rules_check(""));
	assert_int_equal(shunt_link_rules_find("", 0, 1), SHUNT_LINK_NVLINK);
	assert_int_equal(shunt_link_rules_find(rules, 0, 2), SHUNT_LINK_SHARED);
	assert_int_equal(shunt_link_rules_find(rules, 1, 0), SHUNT_LINK_NVLINK);
	assert_int_equal(shunt_link_rules_find(rules, 4, 3), SHUNT_LINK_PEER);
	assert_int_equal(shunt_link_rules_find(rules, 2, 5), SHUNT_LINK_PEER);
	assert_int_equal(shunt_link_rules_find(rules, 2, 3), SHUNT_LINK_SHARED);
	assert_int_equal(shunt_link_rules_find(rules, 6, 7), SHUNT_LINK_NVLINK);
	assert_int_equal(shunt_link_rules_find("*-0:none", 0, 7), SHUNT_LINK_SHARED);
	assert_int_equal(shunt_link_rules_find("*-0:none", 1, 7), SHUNT_LINK_NVLINK);
	rules = "*:peer,distance=PHB,lie=old;0-1:none,dies=70;2-3:nvlink";
	assert_null(shunt_link_rules_check(rules));

	struct shunt_link_rule rule = shunt_link_rules_look(rules, 1, 4);

	assert_int_equal(rule.link, SHUNT_LINK_PEER);
	assert_int_equal(rule.distance, SHUNT_DISTANCE_PHB);
	assert_int_equal(rule.play, SHUNT_LINK_OLD);
	rule = shunt_link_rules_look(rules, 1, 0);
	assert_int_equal(rule.play, SHUNT_LINK_DIES);
	assert_int_equal(rule.after, 70);
	rule = shunt_link_rules_look("*:peer,stores=posted,distance=PXB", 1, 0);
	assert_int_equal(rule.play, SHUNT_LINK_POSTED);
	assert_int_equal(rule.distance, SHUNT_DISTANCE_PXB);
	rule = shunt_link_rules_look(rules, 3, 2);
	assert_int_equal(rule.play, SHUNT_LINK_HONEST);
	assert_int_equal(rule.distance, SHUNT_DISTANCE_NVL);
}

static int sim_peers(int device, const struct shunt_gpu_info *peer, const char **reason_p)
{
	return device == peer->uuid[3] ? SHUNT_LINK_SELF : SHUNT_LINK_PEER;
}

/* NCCL's words and numbers for distances, by the letter; a pair that is farther apart gets the host's memory. */
TEST(test_peers_are_as_near_as_nccl_wants)
{
	static const struct {
		const char *level;
		int disable, is;
	} levels[] = { { "", 0, -1 }, { "", 1, SHUNT_DISTANCE_LOC }, { "SYS", 1, SHUNT_DISTANCE_LOC },
		{ "SYS", 2, SHUNT_DISTANCE_SYS }, { "LOC", 0, SHUNT_DISTANCE_LOC }, { "NVL", 0, SHUNT_DISTANCE_NVL },
		{ "PHB", 0, SHUNT_DISTANCE_PHB }, { "0", 0, SHUNT_DISTANCE_LOC }, { "1", 0, SHUNT_DISTANCE_PIX },
		{ "2", 0, SHUNT_DISTANCE_PXB }, { "3", 0, SHUNT_DISTANCE_PHB }, { "4", 0, SHUNT_DISTANCE_SYS },
		{ "99", 0, SHUNT_DISTANCE_SYS }, { "0x1", 0, SHUNT_DISTANCE_PIX }, { "loc", 0, -1 }, { "far", 0, -1 } };
	static const struct shunt_gpu_ops gpu = { .peer_check = sim_peers };
	struct shunt_gpu_info theirs = { .sim = 1 };
	char reason[SHUNT_LINK_WHY];

	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		const struct shunt_nccl_env env = { .p2p_disable = levels[i].disable, .p2p_level = levels[i].level };

		assert_int_equal(shunt_nccl_p2p_level(&env), levels[i].is);
	}
	/* main() has set NCCL_P2P_LEVEL=PHB, and distances from device 0 to the others. */
	for (int peer = 1; peer <= 4; peer++) {
		theirs.uuid[3] = (uint8_t)peer;
		assert_int_equal(shunt_link_claim(&gpu, 0, &theirs, 0, peer, 5, reason),
		    peer < 4 ? SHUNT_LINK_PEER : SHUNT_LINK_SHARED);
		assert_int_equal(shunt_link_claim(&gpu, 0, &theirs, 0, peer, 0, reason), SHUNT_LINK_PEER);
	}
	assert_int_equal(shunt_link_distance(&gpu, 0, &theirs, SHUNT_LINK_NVLINK), SHUNT_DISTANCE_NVL);
	shunt_link_claim(&gpu, 0, &theirs, 0, 4, 5, reason);
	assert_string_equal(reason, "peers over PCIe are farther apart than NCCL_P2P_LEVEL says");
	strcpy(theirs.name, "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
	assert_int_equal(shunt_link_claim(&gpu, 0, &theirs, 0, 1, 5, reason), SHUNT_LINK_NET);
	assert_string_equal(reason, "MIG slices are left to NCCL, as none was at hand");
	/* Without it: two GPUs on a host with AMD's processors have peer access wherever they are. */
	assert_int_equal(shunt_link_farthest(true, 2), SHUNT_DISTANCE_SYS);
	assert_int_equal(shunt_link_farthest(true, 3), SHUNT_DISTANCE_PXB);
	assert_int_equal(shunt_link_farthest(false, 2), SHUNT_DISTANCE_PXB);
#if defined(__x86_64__)
	assert_int_equal(shunt_pci_amd(), system("grep -q AuthenticAMD /proc/cpuinfo") == 0);
#endif
}

static int no_peers(int device, const struct shunt_gpu_info *peer, const char **reason_p)
{
	*reason_p = "the devices cannot access each other's memory";
	return -EOPNOTSUPP;
}

static int large_bar(int device, struct shunt_gpu_info *info_p)
{
	*info_p = (struct shunt_gpu_info){ .pci = "0000:5e:00.0" };
	return 0;
}

/* GPUs have 256 MiB without resizable BAR. Whoever of the two has so little is named. */
TEST(test_a_small_bar_is_named)
{
	static const struct {
		uint64_t bytes;
		const char *says;
	} bars[] = { { 0, "0000:3b:00.0 has a BAR1 of 32 MiB only: turn on resizable BAR" },
		{ (uint64_t)256 << 20, "0000:3b:00.0 has a BAR1 of 256 MiB only: turn on resizable BAR" },
		{ (uint64_t)512 << 20, "" }, { (uint64_t)128 << 30, "" } };
	static const struct shunt_gpu_ops gpu = { .peer_check = no_peers, .device_info = large_bar };
	const struct shunt_gpu_info theirs = { .pci = "0000:3b:00.0" };
	char text[SHUNT_LINK_WHY], want[2 * SHUNT_LINK_WHY];
	struct fake_pci pci;

	for (size_t i = 0; i < sizeof(bars) / sizeof(bars[0]); i++) {
		fake_pci_begin(&pci, theirs.pci, bars[i].bytes);
		shunt_pci_small_bar(theirs.pci, text, sizeof(text));
		assert_string_equal(text, bars[i].says);
		snprintf(want, sizeof(want), "the devices cannot access each other's memory%s%s",
		    *bars[i].says ? "; " : "", bars[i].says);
		assert_int_equal(shunt_link_claim(&gpu, 0, &theirs, 0, 1, 0, text), SHUNT_LINK_SHARED);
		assert_string_equal(text, want);
		unit_write_file(pci.dir, "resource", "0x00000000fa000000 0x00000000faffffff\nno more\n");
		shunt_pci_small_bar(theirs.pci, text, sizeof(text));
		assert_string_equal(text, "");
		shunt_pci_small_bar("0000:3c:00.0", text, sizeof(text));
		assert_string_equal(text, "");
		fake_pci_end(&pci);
	}
}

/* Ranks that share a device count once, whichever ones they are. */
TEST(test_topology_counts_devices)
{
	static const struct shunt_gpu_info device[3] = { { .uuid = { 1 } }, { .uuid = { 2 } }, { .uuid = { 3 } } };
	const struct shunt_gpu_info same = device[0],
	                            *ranks[] = { &device[0], &device[1], &same, &device[1], &device[2] };
	static const int counts[] = { 0, 1, 2, 2, 2, 3 };

	for (int n = 0; n <= 5; n++)
		assert_int_equal(shunt_link_devices(ranks, n), counts[n]);
}

TESTS_BEGIN
{
	setenv("NCCL_P2P_LEVEL", "PHB", 1);
	setenv("SHUNT_SIM_LINKS", "*:peer;0-2:peer,distance=PXB;0-3:peer,distance=PHB;0-4:peer,distance=SYS", 1);
}
