/* SPDX-License-Identifier: MIT */
/* Which block of a launch in chunks has which role: launches on the sim have too few blocks for all cases. */
#include "sim_test.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* those that are no templates */
#include "kernels/chunks.h"

/* Every role has the same number of blocks, and each of them another of its channels. */
static void test_chunks_each_block_has_a_place_of_its_own(void **state)
{
	for (uint32_t roles = 1; roles <= SHUNT_MAX_ROLES; roles++)
		for (uint32_t each = 1; each * roles <= 128; each++) {
			bool seen[SHUNT_MAX_ROLES][128] = { { false } };

			for (uint32_t bid = 0; bid < each * roles; bid++) {
				uint32_t turn, role = chunks_role(bid, each * roles, roles, &turn);

				if (role >= roles || turn >= each || seen[role][turn])
					fail_msg("%u blocks of %u roles: block %u is number %u of role %u", each * roles, roles, bid, turn, role);
				seen[role][turn] = true;
			}
		}
}

/* ... as far as each role has whole ones. */
static void test_chunks_blocks_of_a_cluster_have_one_role(void **state)
{
	for (uint32_t roles = 1; roles <= SHUNT_MAX_ROLES; roles++)
		for (uint32_t each = 1; each * roles <= 128; each++)
			for (uint32_t bid = 0; bid < each / SHUNT_CHUNKS_SIDE * SHUNT_CHUNKS_SIDE * roles; bid++) {
				uint32_t turn, first = chunks_role(bid / SHUNT_CHUNKS_SIDE * SHUNT_CHUNKS_SIDE, each * roles, roles, &turn);

				assert_int_equal(chunks_role(bid, each * roles, roles, &turn), first);
			}
}

/* The exchange finds a warp's turn by a factor instead of a division. */
static void test_exchange_turn_is_a_division(void **state)
{
	for (uint32_t roles = 1; roles <= SHUNT_MAX_ROLES; roles++)
		for (uint32_t warp = 0; warp < SHUNT_MAX_BLOCKS * SHUNT_MAX_THREADS / 32; warp++)
			assert_int_equal(xchg_turn(warp, (65536 + roles - 1) / roles), warp / roles);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_each_block_has_a_place_of_its_own),
		cmocka_unit_test(test_chunks_blocks_of_a_cluster_have_one_role),
		cmocka_unit_test(test_exchange_turn_is_a_division),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
