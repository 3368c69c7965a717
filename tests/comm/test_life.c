/* SPDX-License-Identifier: MIT */
/* The states of a communicator's life: at random against their tables, and from several threads. */
#include "comm/parts/comm_life.h"
#include "tests/comm/comm_life_walk.h"
#include "tests/support/unit.h"

TEST(test_life_follows_its_tables)
{
	for (uint64_t seed = 1; seed <= 20000; seed++)
		comm_life_walk(&(struct choices){ .seed = seed * UINT64_C(0x9e3779b97f4a7c15) });
}

static struct shunt_comm_life shared;
static atomic_int told, failed;

static int tell_and_fail(int rank, void *arg)
{
	for (int i = 0; i < 1000; i++) {
		atomic_fetch_add(&told, shunt_comm_life_tell(&shared));
		if (rank == 0) {
			shunt_comm_life_lost(&shared, 3, 77);
			shunt_comm_life_found(&shared);
		}
		if (i == 500)
			atomic_fetch_add(&failed, shunt_comm_life_failed(&shared, -1 - rank));
	}
	return shunt_comm_life_error(&shared);
}

TEST(test_life_one_thread_tells_and_the_first_error_stays)
{
	int errs[4];

	for (int round = 0; round < 50; round++) {
		shared = (struct shunt_comm_life){ 0 };
		told = failed = 0;
		shunt_comm_life_forward(&shared, "a reason", false);
		unit_run_threads(4, tell_and_fail, NULL, errs);
		assert_int_equal(told, 1);
		assert_int_equal(failed, 1);
		assert_true(errs[0] < 0 && errs[0] >= -4);
		for (int r = 1; r < 4; r++)
			assert_int_equal(errs[r], errs[0]);
	}
}

TEST(test_life_reason_is_cut_not_overrun)
{
	struct shunt_comm_life life = { 0 };
	char text[1000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	shunt_comm_life_forward(&life, text, false);
	assert_int_equal(strlen(life.reason), sizeof(life.reason) - 1);
}
