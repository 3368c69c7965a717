/* SPDX-License-Identifier: MIT */
#include "tests/support/test.h"

enum { TESTS_MAX = 64 };
static struct CMUnitTest tests[TESTS_MAX];
static struct {
	const char *file;
	int line;
} places[TESTS_MAX];
static int ntests;
static CMFixtureFunction each_setup, each_teardown;

/* By their lines: a compiler may call the constructors of a file in another order. */
void tests_add(struct CMUnitTest test, const char *file, int line)
{
	int i = ntests++;

	if (i >= TESTS_MAX)
		abort();
	for (; i > 0 && !strcmp(places[i - 1].file, file) && places[i - 1].line > line; i--) {
		tests[i] = tests[i - 1];
		places[i] = places[i - 1];
	}
	tests[i] = test;
	places[i].file = file;
	places[i].line = line;
}

void tests_each(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	each_setup = setup;
	each_teardown = teardown;
}

int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	if (!ntests)
		abort();
	for (int i = 0; i < ntests; i++)
		if (!tests[i].setup_func && !tests[i].teardown_func) {
			tests[i].setup_func = each_setup;
			tests[i].teardown_func = each_teardown;
		}
	return _cmocka_run_group_tests("tests", tests, (size_t)ntests, setup, teardown);
}

void tests_list(void)
{
	for (int i = 0; i < ntests; i++)
		puts(tests[i].name);
}
