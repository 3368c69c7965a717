/* SPDX-License-Identifier: MIT */
/*
 * The checks of base/lock.h, built with them whatever the rest is built with: a thread that breaks a rule ends the
 * process with a line that names both locks.
 */
#include "tests/support/child.h"
#include "tests/support/test.h"
#include "base/lock.h"

static struct shunt_mutex comm, other, windows;

static void against_the_order(void)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	shunt_mutex_lock(&comm);
}

static void two_of_a_row(void)
{
	shunt_mutex_lock(&comm);
	shunt_mutex_lock(&other);
}

static void twice(void)
{
	shunt_lock_acquire(SHUNT_LOCK_LOG);
	shunt_lock_acquire(SHUNT_LOCK_LOG);
}

static void after_a_release_in_between(void)
{
	shunt_mutex_lock(&comm);
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	shunt_mutex_unlock(&comm);
	shunt_mutex_lock(&windows);
}

static void print_in_process_lock(void)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	shunt_lock_check_blocking("prints", false);
}

static void print_while_opening(void)
{
	shunt_lock_acquire(SHUNT_LOCK_KERNELS);
	shunt_lock_check_blocking("prints", false);
}

static void device_in_process_lock(void)
{
	shunt_mutex_lock(&comm);
	shunt_lock_acquire(SHUNT_LOCK_SYMM);
	shunt_lock_check_blocking("calls the device", true);
}

/* What the library does: each is right. */
static void by_the_rules(void)
{
	shunt_lock_acquire(SHUNT_LOCK_REAL);
	shunt_mutex_lock(&comm);
	shunt_lock_check_blocking("calls the device", true);
	shunt_mutex_lock(&windows);
	shunt_lock_acquire(SHUNT_LOCK_LOG);
	shunt_lock_release(SHUNT_LOCK_LOG);
	shunt_mutex_unlock(&windows);
	if (!shunt_mutex_trylock(&other)) /* a try waits for nobody, but two of a row are two of a row */
		_exit(1);
}

static void try_against_the_order(void)
{
	shunt_mutex_lock(&windows);
	if (!shunt_mutex_trylock(&comm))
		_exit(1);
	shunt_mutex_unlock(&comm);
	shunt_mutex_unlock(&windows);
	shunt_lock_check_blocking("prints", false);
	_exit(0);
}

/* Runs it in a child; its output in text. Gives the child's status. */
static int run(void (*fn)(void), char *text, size_t bytes)
{
	int out[2], status;
	ssize_t n;
	pid_t child;

	assert_int_equal(pipe(out), 0);
	child = child_fork();
	if (!child) {
		alarm(60);
		dup2(out[1], STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		fn();
		_exit(0);
	}
	close(out[1]);
	n = read(out[0], text, bytes - 1);
	text[n > 0 ? n : 0] = '\0';
	close(out[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

TEST(test_lock_checks_name_both_locks)
{
	static const struct {
		void (*fn)(void);
		const char *holds, *then;
	} cases[] = {
		{ against_the_order, "REGISTRY", "takes COMM" },
		{ two_of_a_row, "COMM", "takes COMM" },
		{ twice, "LOG", "takes LOG" },
		{ after_a_release_in_between, "REGISTRY", "takes WINDOWS" },
		{ print_in_process_lock, "REGISTRY", "prints" },
		{ print_while_opening, "KERNELS", "prints" },
		{ device_in_process_lock, "SYMM", "calls the device" },
		{ by_the_rules, "COMM", "takes COMM" },
	};
	char text[1024], holds[64];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = run(cases[i].fn, text, sizeof(text));

		snprintf(holds, sizeof(holds), "SHUNT lock order: this thread holds %s (", cases[i].holds);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
		assert_int_equal(strncmp(text, holds, strlen(holds)), 0);
		assert_non_null(strstr(text, cases[i].then));
	}
}

TEST(test_lock_checks_let_a_try_pass)
{
	char text[1024];

	assert_int_equal(run(try_against_the_order, text, sizeof(text)), 0);
	assert_string_equal(text, "");
}

TESTS_BEGIN
{
	shunt_mutex_init(&comm, SHUNT_LOCK_COMM);
	shunt_mutex_init(&other, SHUNT_LOCK_COMM);
	shunt_mutex_init(&windows, SHUNT_LOCK_WINDOWS);
}
