/* SPDX-License-Identifier: MIT */
/* NCCL's configuration files. They are read once in a process, so each case has a process of its own. */
#include "tests/support/unit.h"
#include "base/env.h"
#include "tests/support/setuid.h"

struct home {
	char dir[64], conf[96];
	const char *text; /* of the file that NCCL_CONF_FILE names */
	int (*body)(void);
};

static int in_process(int rank, void *arg)
{
	const struct home *h = arg;
	int fd = open(h->conf, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
	size_t n = strlen(h->text);

	if (fd < 0 || write(fd, h->text, n) != (ssize_t)n || close(fd) || setenv("NCCL_CONF_FILE", h->conf, 1))
		return -EIO;
	return h->body();
}

static void check_named(const char *name, const char *text, int (*body)(void))
{
	struct home h = { .dir = "/tmp/shunt-env-XXXXXX", .text = text, .body = body };
	int err;

	assert_non_null(mkdtemp(h.dir));
	snprintf(h.conf, sizeof(h.conf), "%s/%s", h.dir, name);
	unit_run_processes(1, in_process, &h, &err);
	unlink(h.conf);
	rmdir(h.dir);
	assert_int_equal(err, 0);
}

static void check(const char *text, int (*body)(void))
{
	check_named("nccl.conf", text, body);
}

/* What a process answers in place of an assertion: the line that is not as it should be. */
#define WANT(cond) \
	do { \
		if (!(cond)) \
			return -(__LINE__ % 250 + 1); \
	} while (0)

static bool is(const char *value, const char *want)
{
	return value && !strcmp(value, want);
}

static int body_values(void)
{
	const char *first;

	unsetenv("NCCL_P2P_LEVEL");
	unsetenv("NCCL_ALGO");
	first = shunt_env("NCCL_P2P_LEVEL");
	WANT(is(first, "LOC"));
	WANT(shunt_env("NCCL_P2P_LEVEL") == first); /* callers keep it */
	WANT(shunt_env_from_file("NCCL_P2P_LEVEL"));
	WANT(is(shunt_env("NCCL_ALGO"), "ring, tree"));
	WANT(!shunt_env("NCCL_PROTO"));
	WANT(!shunt_env("NCCL_NOT_THERE"));
	WANT(!shunt_env_from_file("NCCL_NOT_THERE"));
	return 0;
}

TEST_CALL(test_env_file_gives_values_that_stay,
    check("# NCCL_PROTO=simple\n NCCL_P2P_LEVEL = LOC \nNCCL_ALGO=ring, tree", body_values))

static int body_environment_first(void)
{
	setenv("NCCL_ALGO", "tree", 1);
	WANT(is(shunt_env("NCCL_ALGO"), "tree"));
	WANT(!shunt_env_from_file("NCCL_ALGO"));
	setenv("NCCL_ALGO", "", 1);
	WANT(is(shunt_env("NCCL_ALGO"), ""));
	unsetenv("SHUNT_ALGO");
	WANT(!shunt_env("SHUNT_ALGO")); /* the files are NCCL's */
	return 0;
}

TEST_CALL(test_env_environment_comes_before_the_file,
    check("NCCL_ALGO=ring\nSHUNT_ALGO=allreduce:0-1k:oneshot\n", body_environment_first))

/* A home that is not the account's, as containers and batch systems give. */
static int body_home(void)
{
	char dir[96];

	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(getenv("NCCL_CONF_FILE"), '/') - getenv("NCCL_CONF_FILE")),
	    getenv("NCCL_CONF_FILE"));
	setenv("HOME", dir, 1);
	unsetenv("NCCL_CONF_FILE");
	unsetenv("NCCL_P2P_LEVEL");
	WANT(is(shunt_env("NCCL_P2P_LEVEL"), "LOC"));
	return 0;
}

TEST_CALL(test_env_file_in_home_is_read, check_named(".nccl.conf", "NCCL_P2P_LEVEL=LOC\n", body_home))

static int body_not_read(void)
{
	WANT(!shunt_env("NCCL_P2P_LEVEL"));
	return 0;
}

static int body_directory(void)
{
	setenv("NCCL_CONF_FILE", "/tmp", 1);
	return body_not_read();
}

static int body_absent(void)
{
	setenv("NCCL_CONF_FILE", "/nonexistent/nccl.conf", 1);
	return body_not_read();
}

static int body_fifo(void)
{
	char path[96];

	snprintf(path, sizeof(path), "%s.fifo", getenv("NCCL_CONF_FILE"));
	if (mkfifo(path, 0600))
		return -EIO;
	setenv("NCCL_CONF_FILE", path, 1);
	alarm(10); /* nobody writes into it */
	WANT(!shunt_env("NCCL_P2P_LEVEL"));
	unlink(path);
	return 0;
}

TEST(test_env_what_is_no_file_has_no_values)
{
	unsetenv("NCCL_P2P_LEVEL");
	check("NCCL_P2P_LEVEL=LOC\n", body_directory);
	check("NCCL_P2P_LEVEL=LOC\n", body_absent);
	check("NCCL_P2P_LEVEL=LOC\n", body_fifo);
}

static int body_long(void)
{
	const char *value = shunt_env("NCCL_ALGO");

	WANT(value && strlen(value) == 1023); /* cut, with its end */
	WANT(!shunt_env("NCCL_P2P_LEVEL"));   /* beyond what is read of a file */
	return 0;
}

TEST(test_env_long_values_and_files_are_cut)
{
	static char text[70000];
	size_t n = (size_t)snprintf(text, sizeof(text), "NCCL_ALGO=");

	memset(text + n, 'x', 5000);
	n += 5000;
	memset(text + n, '\n', 65536 - n);
	snprintf(text + 65536, sizeof(text) - 65536, "NCCL_P2P_LEVEL=LOC\n");
	unsetenv("NCCL_ALGO");
	unsetenv("NCCL_P2P_LEVEL");
	check(text, body_long);
}

static int body_many(void)
{
	char name[100], value[16];

	/* More than are kept: those that do not fit are not there, and nothing is overwritten. */
	for (int i = 0; i < 100; i++) {
		const char *got;

		snprintf(name, sizeof(name), "NCCL_TEST_%d", i);
		snprintf(value, sizeof(value), "%d", i * i);
		got = shunt_env(name);
		WANT(i < 64 ? is(got, value) : !got);
	}
	WANT(is(shunt_env("NCCL_TEST_63"), "3969"));
	snprintf(name, sizeof(name), "NCCL_%090d", 1); /* longer than any of NCCL's */
	WANT(!shunt_env(name));
	return 0;
}

TEST(test_env_many_variables_are_bounded)
{
	static char text[4096];
	size_t n = 0;

	for (int i = 0; i < 100; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "NCCL_TEST_%d=%d\n", i, i * i);
	snprintf(text + n, sizeof(text) - n, "NCCL_%090d=1\n", 1);
	check(text, body_many);
}

/* As a program that another user has made setuid. */
static int body_setuid(void)
{
	if (!getauxval(AT_SECURE))
		return SETUID_UNKNOWN;
	return shunt_env("SHUNT_NCCL_LIB") || shunt_env("NCCL_DEBUG_FILE") || shunt_env("NCCL_TEST_FILE") ||
	    shunt_env_from_file("NCCL_TEST_FILE");
}

TEST(test_env_of_a_setuid_program_is_not_read)
{
	char dir[] = "/tmp/shunt-env-XXXXXX", variables[128], command[64], conf[64];
	FILE *file;
	int status;

	if (geteuid())
		skip(); /* to give a file to another user */
	assert_non_null(mkdtemp(dir));
	snprintf(conf, sizeof(conf), "%s/.nccl.conf", dir);
	file = fopen(conf, "w");
	assert_non_null(file);
	fputs("NCCL_TEST_FILE=1\n", file);
	fclose(file);
	snprintf(variables, sizeof(variables), "HOME=%s SHUNT_NCCL_LIB=/evil.so NCCL_DEBUG_FILE=/evil", dir);
	status = setuid_run(dir, variables, "setuid");
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
	if (status == SETUID_UNKNOWN)
		skip();
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "setuid"))
		_exit(body_setuid()); /* what looks for leaks at a program's end may not trace this one */

	return tests_run(NULL, NULL);
}
