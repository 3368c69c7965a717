/* SPDX-License-Identifier: MIT */
/* The communicators of the process: a thread looks at one without the lock, and its end waits for the look. */
#include "tests/support/child.h"
#include "tests/support/test.h"
#include "comm/core/communicator.h"
#include "tests/support/until.h"

static bool any(const struct shunt_registration *r)
{
	return true;
}

static bool has_windows(const struct shunt_registration *r)
{
	return r->windows;
}

static size_t count(bool (*wanted)(const struct shunt_registration *r))
{
	struct shunt_registration *r = NULL;
	size_t n = 0;

	while ((r = shunt_registry_next(r, wanted)))
		n++;
	return n;
}

static struct shunt_registration a, b, c;

static void add_three(void)
{
	shunt_registry_add(&a, NULL, NULL);
	shunt_registry_add(&b, NULL, NULL);
	shunt_registry_add(&c, NULL, NULL);
	b.windows = true;
}

static void remove_three(void)
{
	shunt_registry_remove(&a);
	shunt_registry_remove(&b);
	shunt_registry_remove(&c);
}

TEST(test_registry_finds_what_is_wanted)
{
	add_three();
	assert_int_equal(count(any), 3);
	assert_int_equal(count(has_windows), 1);
	shunt_registry_remove(&b);
	assert_int_equal(count(any), 2);
	assert_int_equal(count(has_windows), 0);
	shunt_registry_remove(&b); /* which is not there */
	remove_three();
	assert_int_equal(count(any), 0);
}

static atomic_bool removed;

static void *remove_b(void *arg)
{
	shunt_registry_remove(&b);
	atomic_store(&removed, true);
	return NULL;
}

TEST(test_registry_removal_waits_for_a_look)
{
	struct shunt_registration *r;
	pthread_t thread;

	add_three();
	r = shunt_registry_next(NULL, has_windows);
	assert_ptr_equal(r, &b);
	assert_int_equal(pthread_create(&thread, NULL, remove_b, NULL), 0);
	assert_true(until_all_threads_wait());
	/* The lock is free, and others come and go. */
	for (int i = 0; i < 100; i++) {
		shunt_registry_remove(&c);
		shunt_registry_add(&c, NULL, NULL);
	}
	assert_true(until_all_threads_wait());
	assert_false(atomic_load(&removed));
	assert_null(shunt_registry_next(r, has_windows));
	pthread_join(thread, NULL);
	assert_true(atomic_load(&removed));
	remove_three();
}

TEST(test_registry_is_empty_in_a_forked_child)
{
	struct shunt_registration *r;

	add_three();
	r = shunt_registry_next(NULL, has_windows);
	assert_int_equal(IN_CHILD(count(any) || (shunt_registry_add(&a, NULL, NULL), count(any) != 1)), 0);
	assert_int_equal(count(any), 3);
	assert_null(shunt_registry_next(r, has_windows));
	remove_three();
}
