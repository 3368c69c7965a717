/* SPDX-License-Identifier: MIT */
/* Where the parts of an installation find each other: as installed, moved, staged, by links, in a wheel and in a build
 * tree. */
#include "tests/support/unit.h"
#include "base/place.h"

static char root_dir[64];

/* An empty file of a tree, with the folders that it is in. */
static void make(const char *name)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", root_dir, name);
	for (char *slash = path + strlen(root_dir); (slash = strchr(slash + 1, '/'));) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
}

static int setup(void **state)
{
	static const char *const installed[] = { "bin/shunt", "lib/arch-linux/libshunt.so",
		"lib/arch-linux/shunt/libnccl.so", "include/shunt/shunt.h", "data/shunt/plans/a.json",
		"data/shunt/tuning/a.json", "lib/arch-linux/cmake/shunt/shuntConfig.cmake",
		"lib/arch-linux/pkgconfig/shunt.pc", "lib/python3/packages/libshunt/compat/mscclpp/__init__.py",
		"lib/arch-linux/shunt/bin/ncclras", "lib/arch-linux/shunt/nccl_ep/libnccl_ep.so.0" };
	static const char *const wheel[] = { "bin/shunt", "lib/libshunt.so", "lib/libnccl.so", "lib/shunt/libnccl.so",
		"include/shunt/shunt.h", "lib/cmake/shunt/shuntConfig.cmake", "lib/pkgconfig/shunt.pc",
		"share/shunt/plans/a.json", "share/shunt/tuning/a.json", "compat/mscclpp/__init__.py",
		"lib/shunt/nccl_ep/libnccl_ep.so.0" };
	static const char *const source[] = { "build/tools/shunt", "build/src/libshunt.so", "build/src/libnccl.so",
		"include/shunt/shunt.h", "python/libshunt/compat/mscclpp/__init__.py",
		"build/src/shim/nccl_ep/libnccl_ep.so.0" };
	char name[PATH_MAX];

	strcpy(root_dir, "/tmp/shunt-place-XXXXXX");
	if (!mkdtemp(root_dir))
		return -1;
	for (size_t i = 0; i < sizeof(installed) / sizeof(*installed); i++) {
		snprintf(name, sizeof(name), "stage/usr/%s", installed[i]);
		make(name);
	}
	for (size_t i = 0; i < sizeof(wheel) / sizeof(*wheel); i++) {
		snprintf(name, sizeof(name), "venv/packages/libshunt/%s", wheel[i]);
		make(name);
	}
	for (size_t i = 0; i < sizeof(source) / sizeof(*source); i++) {
		snprintf(name, sizeof(name), "source/%s", source[i]);
		make(name);
	}
	make("alone/bin/shunt");
	make("alone/lib/arch-linux/libshunt.so");
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", root_dir);
	return system(command);
}

/* from: the file that looks; expected: a folder, or NULL. Both in the tree. */
static void check(enum shunt_place what, const char *from, const char *expected)
{
	char file[PATH_MAX], wanted[PATH_MAX] = "nothing", got[PATH_MAX];

	snprintf(file, sizeof(file), "%s/%s", root_dir, from);
	if (expected)
		snprintf(wanted, sizeof(wanted), "%s/%s", root_dir, expected);
	if (!shunt_place_find(what, file, got))
		strcpy(got, "nothing");
	if (strcmp(got, wanted))
		fail_msg("part %d from %s: %s, expected %s", what, from, got, wanted);
}

static void check_installed(const char *command, const char *library, const char *prefix)
{
	static const char *const places[] = { "lib/arch-linux", "lib/arch-linux/shunt", "lib/arch-linux/shunt",
		"include", "lib/arch-linux/cmake/shunt", "lib/arch-linux/pkgconfig", "data/shunt/plans",
		"data/shunt/tuning", "lib/python3/packages/libshunt", "lib/arch-linux/shunt/bin",
		"lib/arch-linux/shunt/nccl_ep" };
	char expected[PATH_MAX];

	for (int what = 0; what < SHUNT_PLACE_COUNT; what++) {
		snprintf(expected, sizeof(expected), "%s/%s", prefix, places[what]);
		check(what, what == SHUNT_PLACE_LIBRARY || what == SHUNT_PLACE_PYTHON ? command : library, expected);
	}
	snprintf(expected, sizeof(expected), "%s/data/shunt/plans", prefix);
	check(SHUNT_PLACE_PLANS, command, expected);
}

TEST(test_place_in_an_installation)
{
	char from[PATH_MAX], to[PATH_MAX];

	check_installed("stage/usr/bin/shunt", "stage/usr/lib/arch-linux/libshunt.so", "stage/usr");
	/* The tree by a link, and each file by one. */
	snprintf(from, sizeof(from), "%s/linked", root_dir);
	assert_int_equal(symlink("stage/usr", from), 0);
	check_installed("linked/bin/shunt", "linked/lib/arch-linux/libshunt.so", "stage/usr");
	snprintf(from, sizeof(from), "%s/command", root_dir);
	assert_int_equal(symlink("stage/usr/bin/shunt", from), 0);
	snprintf(from, sizeof(from), "%s/lib.so", root_dir);
	assert_int_equal(symlink("linked/lib/arch-linux/libshunt.so", from), 0);
	check_installed("command", "lib.so", "stage/usr");
	/* Moved as a whole. */
	snprintf(from, sizeof(from), "%s/stage/usr", root_dir);
	snprintf(to, sizeof(to), "%s/moved", root_dir);
	assert_int_equal(rename(from, to), 0);
	check_installed("moved/bin/shunt", "moved/lib/arch-linux/libshunt.so", "moved");
}

TEST(test_place_in_a_wheel)
{
#define WHEEL "venv/packages/libshunt"
	check(SHUNT_PLACE_LIBRARY, WHEEL "/bin/shunt", WHEEL "/lib");
	check(SHUNT_PLACE_PYTHON, WHEEL "/bin/shunt", WHEEL);
	check(SHUNT_PLACE_LINKS, WHEEL "/lib/libshunt.so", WHEEL "/lib/shunt");
	check(SHUNT_PLACE_LINKING, WHEEL "/lib/libshunt.so", WHEEL "/lib");
	check(SHUNT_PLACE_HEADERS, WHEEL "/lib/libshunt.so", WHEEL "/include");
	check(SHUNT_PLACE_CMAKE, WHEEL "/lib/libshunt.so", WHEEL "/lib/cmake/shunt");
	check(SHUNT_PLACE_PKGCONFIG, WHEEL "/lib/libshunt.so", WHEEL "/lib/pkgconfig");
	check(SHUNT_PLACE_PLANS, WHEEL "/lib/libshunt.so", WHEEL "/share/shunt/plans");
	check(SHUNT_PLACE_TUNING, WHEEL "/bin/shunt", WHEEL "/share/shunt/tuning");
	check(SHUNT_PLACE_NCCL_EP, WHEEL "/lib/libshunt.so", WHEEL "/lib/shunt/nccl_ep");
}

TEST(test_place_in_a_build_tree)
{
	check(SHUNT_PLACE_LIBRARY, "source/build/tools/shunt", "source/build/src");
	check(SHUNT_PLACE_PYTHON, "source/build/tools/shunt", "source/python/libshunt");
	check(SHUNT_PLACE_LINKS, "source/build/src/libshunt.so", NULL);
	check(SHUNT_PLACE_LINKING, "source/build/src/libshunt.so", "source/build/src");
	check(SHUNT_PLACE_HEADERS, "source/build/src/libshunt.so", "source/include");
	check(SHUNT_PLACE_PLANS, "source/build/src/libshunt.so", NULL);
	check(SHUNT_PLACE_NCCL_EP, "source/build/src/libshunt.so", "source/build/src/shim/nccl_ep");
}

/* No part of another installation is taken, and the nearest one wins. */
TEST(test_place_that_is_not_there)
{
	for (int what = 0; what < SHUNT_PLACE_COUNT; what++)
		check(what, "alone/bin/shunt", what == SHUNT_PLACE_LIBRARY ? "alone/lib/arch-linux" : NULL);
	check(SHUNT_PLACE_LIBRARY, "alone/bin/nothing", NULL);
	make("source/build/bin/shunt");
	make("source/build/lib/arch-linux/libshunt.so");
	make("source/build/include/shunt/shunt.h");
	check(SHUNT_PLACE_HEADERS, "source/build/lib/arch-linux/libshunt.so", "source/build/include");
}

TEST(test_place_of_this_program)
{
	char own[PATH_MAX], exe[PATH_MAX];

	assert_true(shunt_place_own(own));
	assert_non_null(realpath("/proc/self/exe", exe));
	assert_string_equal(own, exe);
	/* A program that was started by a relative name, and then went elsewhere. */
	assert_int_equal(chdir("/"), 0);
	assert_true(shunt_place_own(own));
	assert_string_equal(own, exe);
}

TESTS_EACH(setup, teardown)
