/* SPDX-License-Identifier: MIT */
/* Which block of a launch in chunks has which role: launches on the sim have too few blocks for all cases. */
#include "tests/device/sim_test.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* those that are no templates */
#include "kernels/simple.h"

enum { WARPS = 3 };

/*
 * Counts the warps of a launch of so many blocks that say they are warp w of role r, and those that say they have none.
 */
static unsigned count_assigned(const struct shunt_kargs_few &a, uint32_t blocks, unsigned seen[][1024])
{
	struct shunt_sim_self self = { 0, (WARPS + 1) * 32, 0, blocks };
	unsigned none = 0;

	shunt_sim_self = &self;
	for (self.bid = 0; self.bid < blocks; self.bid++)
		for (uint32_t warp = 0; warp < WARPS; warp++) {
			struct shunt_role role;
			uint32_t channel;

			if (!simple_assign(a, warp, &role, &channel)) {
				none++;
				continue;
			}
			assert_true(role.first < a.k.roles && channel < 1024);
			if (a.role[role.first].blocks) { /* its blocks are side by side, and have no other */
				uint32_t from = 0;

				for (uint32_t r = 0; r < role.first; r++)
					from += a.role[r].blocks;
				if (a.role[0].blocks && (self.bid < from || self.bid >= from + role.blocks))
					fail_msg(
					    "block %u has role %u, which begins at %u", self.bid, role.first, from);
			}
			seen[role.first][channel]++;
		}
	shunt_sim_self = nullptr;
	return none;
}

/* first: which role it is, for count_assigned(). */
static void set_role(struct shunt_kargs_few &a, uint32_t r, uint32_t blocks, uint32_t channels)
{
	a.role[r].first = (uint16_t)r;
	a.role[r].blocks = (uint8_t)blocks;
	a.role[r].channels = (uint16_t)channels;
}

static void expect_each_once(const struct shunt_kargs_few &a, uint32_t blocks)
{
	static unsigned seen[SHUNT_MAX_ROLES][1024];
	unsigned want = 0;

	memset(seen, 0, sizeof(seen));
	unsigned none = count_assigned(a, blocks, seen);
	for (uint32_t r = 0; r < a.k.roles; r++) {
		want += a.role[r].channels;
		for (uint32_t c = 0; c < 1024; c++)
			if (seen[r][c] != (c < a.role[r].channels))
				fail_msg("%u blocks: warp %u of %u of role %u was found %u times", blocks, c,
				    a.role[r].channels, r, seen[r][c]);
	}
	assert_int_equal(none + want, blocks * WARPS);
}

/* Roles that have blocks of their own, few and many, and a block more that compares calls. */
TEST(test_simple_each_warp_has_a_role_of_its_own)
{
	for (uint32_t roles = 1; roles <= SHUNT_MAX_ROLES; roles++)
		for (uint32_t each = 1; each * roles <= 64; each++)
			for (int checks = 0; checks < 2; checks++) {
				struct shunt_kargs_few a = {};
				uint32_t blocks = checks;

				a.k.roles = (uint16_t)roles;
				a.k.check.what = checks ? SHUNT_CHECK_CALLS : 0;
				for (uint32_t r = 0; r < roles; r++) {
					uint32_t own = each + r % 3; /* not all the same */

					set_role(a, r, own, own * WARPS - r % 2);
					blocks += own;
				}
				expect_each_once(a, blocks);
			}
}

/* Fewer blocks than roles: all share all, but for the last one's own. */
TEST(test_simple_roles_share_few_blocks)
{
	for (uint32_t roles = 2; roles <= SHUNT_MAX_ROLES; roles++)
		for (uint32_t own = 0; own < 2; own++) {
			struct shunt_kargs_few a = {};
			uint32_t shared = roles - own, blocks = (2 * shared + WARPS - 1) / WARPS;

			a.k.roles = (uint16_t)roles;
			for (uint32_t r = 0; r < shared; r++)
				set_role(a, r, 0, 2);
			if (own)
				set_role(a, roles - 1, 2, 2 * WARPS);
			expect_each_once(a, blocks + 2 * own);
		}
}

/* The exchange finds a warp's turn by a factor instead of a division. */
TEST(test_p2p_warp_channel_is_a_division)
{
	for (uint32_t roles = 1; roles <= SHUNT_MAX_ROLES; roles++)
		for (uint32_t warp = 0; warp < SHUNT_MAX_BLOCKS * SHUNT_MAX_THREADS / 32; warp++)
			assert_int_equal(p2p_warp_channel(warp, (65536 + roles - 1) / roles), warp / roles);
}
