/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What tests of cmocka include, and their list. TEST(test_NAME) stands in front of a test's body and adds it to the
 * tests of this file; a member of struct CMUnitTest may follow, such as .setup_func = NAME.
 */
#include <setjmp.h>
#include "tools/common/libc.h"
#include <cmocka.h>

enum { TESTS_MAX = 64 };
static struct {
	struct CMUnitTest test[TESTS_MAX];
	int line[TESTS_MAX], n;
} tests_of_file;

/* By their lines: a compiler may call the constructors of a file in another order. */
static inline void tests_add(struct CMUnitTest test, int line)
{
	int i = tests_of_file.n++;

	if (i >= TESTS_MAX)
		abort();
	for (; i > 0 && tests_of_file.line[i - 1] > line; i--) {
		tests_of_file.test[i] = tests_of_file.test[i - 1];
		tests_of_file.line[i] = tests_of_file.line[i - 1];
	}
	tests_of_file.test[i] = test;
	tests_of_file.line[i] = line;
}

#define TEST(function, ...) \
	static void function(void **state); \
	__attribute__((constructor)) static void add_##function(void) \
	{ \
		tests_add((struct CMUnitTest){ .name = #function, .test_func = function, __VA_ARGS__ }, __LINE__); \
	} \
	static void function(void **state)

/* Before tests_run(): what runs before and after each test that names nothing of its own. */
static inline void tests_each(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	for (int i = 0; i < tests_of_file.n; i++) {
		struct CMUnitTest *t = &tests_of_file.test[i];

		if (!t->setup_func && !t->teardown_func) {
			t->setup_func = setup;
			t->teardown_func = teardown;
		}
	}
}

/* All tests of this file, between the two. Returns how many failed. */
static inline int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	return _cmocka_run_group_tests("tests", tests_of_file.test, (size_t)tests_of_file.n, setup, teardown);
}
