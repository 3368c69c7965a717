/* SPDX-License-Identifier: MIT */
#include "tests/support/test.h"

#pragma weak tests_begin

int main(int argc, char **argv)
{
	if (tests_begin)
		tests_begin(argc, argv);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return tests_run(NULL, NULL);
}
