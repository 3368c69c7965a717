/* SPDX-License-Identifier: MIT */
/*
 * Which library becomes the real one. Each case runs in a process of its own, because the choice is made once.
 * Arguments: the fake's directory, and the path of the library under test.
 */
#include "tests/support/child.h"
#include "tests/support/child_exit.h"
#include "tests/support/test.h"
#include "shim/nccl/abi.h"
#include "shunt/shunt.h"

static char fake_dir[PATH_MAX], fake_lib[PATH_MAX + 32], own_lib[PATH_MAX], dir[64];

struct outcome {
	int version;
	char path[PATH_MAX + 64];
	char error[1024];
};

/* What a process sees with these two variables ("" unsets). before, if given, is run there first. */
static struct outcome run_search(const char *lib, const char *ld_library_path, void (*before)(void))
{
	struct outcome o = { 0 };
	int fds[2], status;

	assert_int_equal(pipe(fds), 0);
	fflush(NULL);
	pid_t pid = child_fork();
	if (!pid) {
		const char *path;
		int quiet = 1;
		setenv("SHUNT_NCCL_LIB", lib, 1);
		setenv("LD_LIBRARY_PATH", ld_library_path, 1);
		setenv("SHUNT_TEST_CHILD", "1", 1);
		if (before)
			before();
		ncclGetVersion(&o.version);
		path = shunt_real_nccl_path();
		snprintf(o.path, sizeof(o.path), "%s", path ? path : "");
		snprintf(o.error, sizeof(o.error), "%s", ncclGetLastError(NULL));
		quiet = write(fds[1], &o, sizeof(o)) == sizeof(o);
		child_exit(quiet ? 0 : 1);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &o, sizeof(o)), sizeof(o));
	close(fds[0]);
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
	return o;
}

/*
 * The automatic search finds the fake behind every explicit path that is wrong. The last error is then the fake's own
 * text, so the log line is checked with a search that finds nothing of ours.
 */
static void check_wrong(const char *lib, const char *reason)
{
	struct outcome o = run_search(lib, fake_dir, NULL);
	char *wanted = realpath(fake_lib, NULL);

	assert_string_equal(o.path, wanted);
	assert_int_equal(o.version, 22809);
	free(wanted);
	o = run_search(lib, "", NULL);
	if (!*o.path) /* a machine without NCCL in the usual places */
		assert_non_null(strstr(o.error, reason));
}

TEST(test_explicit_path_is_taken)
{
	struct outcome o = run_search(fake_lib, "", NULL);

	assert_non_null(strstr(o.path, "libnccl.so.2"));
	assert_int_equal(o.version, 22809);
}

TEST(test_none_is_standalone)
{
	struct outcome o = run_search("none", fake_dir, NULL);

	assert_string_equal(o.path, "");
	assert_int_equal(o.version, 22809);
}

TEST_CALL(test_missing_file_goes_on_searching, check_wrong("/nonexistent/libnccl.so.2", "No such file"))
TEST_CALL(test_bare_name_is_not_looked_up_by_the_loader, check_wrong("libnccl.so.2", "No such file"))
TEST_CALL(test_directory_goes_on_searching, check_wrong("/tmp", "directory"))
TEST_CALL(test_text_file_goes_on_searching, check_wrong("/etc/passwd", "not a shared library"))
TEST_CALL(test_other_library_goes_on_searching, check_wrong("/proc/self/exe", ""))

TEST(test_ourselves_goes_on_searching)
{
	char link[128];

	check_wrong(own_lib, "Shunt itself");
	snprintf(link, sizeof(link), "%s/libnccl.so.2", dir);
	assert_int_equal(symlink(own_lib, link), 0);
	check_wrong(link, "Shunt itself");
	unlink(link);
}

TEST(test_copy_of_ourselves_goes_on_searching)
{
	char copy[128], command[2 * PATH_MAX];

	snprintf(copy, sizeof(copy), "%s/libnccl.so.2", dir);
	snprintf(command, sizeof(command), "cp '%s' '%s'", own_lib, copy);
	assert_int_equal(system(command), 0);
	check_wrong(copy, "Shunt itself");
	unlink(copy);
}

static void map_fake(void)
{
	dlopen(fake_lib, RTLD_NOW | RTLD_LOCAL);
}

TEST(test_mapped_library_is_found)
{
	struct outcome o = run_search("", "", map_fake);

	assert_non_null(strstr(o.path, "libnccl.so.2"));
	assert_null(strstr(o.path, "/usr/"));
	assert_int_equal(o.version, 22809);
}

static char wheel[96];

static void use_wheel(void)
{
	setenv("PYTHONPATH", wheel, 1);
}

TEST(test_python_path_is_searched)
{
	char command[2 * PATH_MAX];
	struct outcome o;

	snprintf(wheel, sizeof(wheel), "%s/packages", dir);
	snprintf(command, sizeof(command), "mkdir -p %s/nvidia/nccl/lib && ln -s '%s' %s/nvidia/nccl/lib/libnccl.so.2",
	    wheel, fake_lib, wheel);
	assert_int_equal(system(command), 0);
	o = run_search("", "", use_wheel);
	assert_int_equal(o.version, 22809);
	assert_null(strstr(o.path, "/usr/"));
}

int main(int argc, char **argv)
{
	char command[128];
	int failed;

	if (argc < 3 || !realpath(argv[1], fake_dir) || !realpath(argv[2], own_lib))
		return 2;
	snprintf(fake_lib, sizeof(fake_lib), "%s/libnccl.so.2", fake_dir);
	strcpy(dir, "/tmp/shunt-find-XXXXXX");
	if (!mkdtemp(dir) || chdir("/")) /* a bare name must not be found where we stand */
		return 2;
	failed = tests_run(NULL, NULL);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command) ? 2 : failed;
}
