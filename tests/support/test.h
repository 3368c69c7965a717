/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What tests of cmocka include. TEST(test_NAME) stands in front of a test's body and adds it to the tests of the
 * program; a member of struct CMUnitTest may follow, such as .setup_func = NAME. They run file by file, by their lines.
 *
 * main() is in the library, unless the program has its own: its first argument, if there is one, says which tests run,
 * as cmocka_set_test_filter() takes it. TESTS_BEGIN stands in front of a body that it runs before, with argc and argv;
 * TESTS_EACH(setup, teardown) says what runs before and after each test that names nothing of its own.
 */
#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#else
#include "tools/common/libc.h"
#endif
#include <cmocka.h>

void tests_add(struct CMUnitTest test, const char *file, int line);
void tests_each(CMFixtureFunction setup, CMFixtureFunction teardown);
void tests_begin(int argc, char **argv);
/* All tests of the program, between the two. Returns how many failed. */
int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown);
void tests_list(void); /* prints their names */
#ifdef __cplusplus
}
#endif

#define TEST(function, ...) \
	static void function(void **state); \
	__attribute__((constructor)) static void add_##function(void) \
	{ \
		tests_add( \
		    (struct CMUnitTest){ .name = #function, .test_func = function, __VA_ARGS__ }, __FILE__, __LINE__); \
	} \
	static void function(void **state)
/* The same of a body that is one statement. */
#define TEST_CALL(function, ...) \
	TEST(function) \
	{ \
		__VA_ARGS__; \
	}
/*
 * TEST() in front of a body that the test has run by others, in processes of its own or on each rank: it passes if
 * `failed`, which calls the body as `body`, is 0.
 */
#define TEST_OF(type, args, function, failed) \
	static type function##_body args; \
	TEST(function) \
	{ \
		type(*const body) args = function##_body; \
\
		assert_int_equal(failed, 0); \
	} \
	static type function##_body args
#define TESTS_BEGIN void tests_begin(int argc, char **argv)
#define TESTS_EACH(setup, teardown) \
	__attribute__((constructor)) static void tests_each_of_file(void) \
	{ \
		tests_each(setup, teardown); \
	}
