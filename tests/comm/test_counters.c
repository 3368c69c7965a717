/* SPDX-License-Identifier: MIT */
#include "tests/support/unit.h"
#include "comm/observe/counters.h"
#include "base/log.h"

#define THREADS 4
#define CALLS 5000

static const char oneshot[] = "oneshot", twoshot[] = "twoshot";

static int add_many(int rank, void *arg)
{
	static const char *const paths[] = { oneshot, twoshot, NULL };

	for (int i = 0; i < CALLS; i++)
		shunt_counters_add(arg, i % 2 ? SHUNT_ALLREDUCE : SHUNT_BROADCAST, paths[(i + rank) % 3],
		    i % 2 ? SHUNT_REASON_SIZE : SHUNT_REASON_KIND, 8);
	return 0;
}

TEST(test_counters_threads_lose_nothing)
{
	struct shunt_counters_table *table = calloc(1, sizeof(*table));
	struct shunt_counter rows[16];
	uint64_t calls = 0, bytes = 0;
	int errs[THREADS];
	size_t n;

	unit_run_threads(THREADS, add_many, table, errs);
	n = shunt_counters_list(table, rows, 16);
	assert_int_equal(n, 6); /* two operations on three paths, one reason each */
	for (size_t i = 0; i < n; i++) {
		calls += rows[i].calls;
		bytes += rows[i].bytes;
		assert_int_equal(rows[i].bytes, rows[i].calls * 8);
		assert_int_equal(!*rows[i].reason, strcmp(rows[i].path, "nccl") != 0);
	}
	assert_int_equal(calls, THREADS * CALLS);
	assert_int_equal(bytes, THREADS * CALLS * 8);
	free(table);
}

TEST(test_counters_small_cap_tells_how_many_exist)
{
	struct shunt_counters_table *table = calloc(1, sizeof(*table));
	struct shunt_counter rows[2] = { 0 };

	assert_int_equal(shunt_counters_list(table, rows, 2), 0);
	shunt_counters_add(table, SHUNT_ALLREDUCE, oneshot, SHUNT_REASON_NONE, 100);
	shunt_counters_add(table, SHUNT_ALLREDUCE, NULL, SHUNT_REASON_FORCED, 1);
	shunt_counters_add(table, SHUNT_ALLREDUCE, NULL, SHUNT_REASON_SIZE, 1);
	assert_int_equal(shunt_counters_list(table, rows, 1), 3);
	assert_ptr_equal(rows[0].path, oneshot);
	assert_int_equal(rows[0].bytes, 100);
	assert_string_equal(rows[0].op, shunt_kind_name(SHUNT_ALLREDUCE));
	assert_null(rows[1].op);
	free(table);
}

TEST(test_counters_too_many_paths_are_counted_as_other)
{
	static char names[SHUNT_COUNTER_PATHS + 5][16];
	struct shunt_counters_table *table = calloc(1, sizeof(*table));
	struct shunt_counter rows[64];
	size_t n;

	for (int i = 0; i < SHUNT_COUNTER_PATHS + 5; i++) {
		snprintf(names[i], sizeof(names[i]), "p%d", i);
		shunt_counters_add(table, SHUNT_RECV, names[i], SHUNT_REASON_NONE, 1);
	}
	n = shunt_counters_list(table, rows, 64);
	assert_int_equal(n, SHUNT_COUNTER_PATHS + 1);
	assert_string_equal(rows[n - 1].path, "other");
	assert_int_equal(rows[n - 1].calls, 5);
	free(table);
}

TEST(test_counters_print_shows_each_row)
{
	struct shunt_counters_table *table = calloc(1, sizeof(*table));
	struct unit_capture c;

	unit_capture_begin(&c);
	shunt_counters_print(table, "communicator 1");
	unit_capture_end(&c);
	assert_string_equal(c.text, "");
	shunt_counters_add(table, SHUNT_ALLREDUCE, oneshot, SHUNT_REASON_NONE, 123456);
	shunt_counters_add(table, SHUNT_ALLREDUCE, NULL, SHUNT_REASON_SIZE, 7);
	unit_capture_begin(&c);
	shunt_counters_print(table, "communicator 1");
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 4);
	assert_non_null(strstr(c.text, "communicator 1\n"));
	assert_non_null(strstr(c.text, "oneshot"));
	assert_non_null(strstr(c.text, "123456"));
	assert_non_null(strstr(c.text, shunt_reason_name(SHUNT_REASON_SIZE)));
	free(table);
}
