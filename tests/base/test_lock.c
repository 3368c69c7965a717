/* SPDX-License-Identifier: MIT */
/* A lock of the whole process is free in a forked child, whoever holds it in the parent. */
#include <semaphore.h>
#include "tests/support/child.h"
#include "tests/support/test.h"
#include "base/lock.h"

static int dropped, guarded = 7;

static void drop(void)
{
	dropped++;
	guarded = 0;
}

SHUNT_IN_FORKED_CHILD(drop)

static const enum shunt_lock first = SHUNT_LOCK_REGISTRY, second = SHUNT_LOCK_LOG;
static sem_t held, done;

static void *hold_both(void *arg)
{
	shunt_lock_acquire(first);
	shunt_lock_acquire(second);
	sem_post(&held);
	sem_wait(&done);
	shunt_lock_release(second);
	shunt_lock_release(first);
	return NULL;
}

/* A child that hangs is ended by its alarm, and the test fails. */
static int take_both(void)
{
	alarm(60);
	if (shunt_process_generation() != 1)
		return 2;
	shunt_lock_acquire(first);
	shunt_lock_acquire(second);
	if (dropped != 1 || guarded)
		return 1;
	shunt_lock_release(second);
	shunt_lock_release(first);
	shunt_lock_acquire(second);
	shunt_lock_release(second);
	return 0;
}

TEST(test_lock_is_free_in_a_forked_child)
{
	pthread_t thread;

	sem_init(&held, 0, 0);
	sem_init(&done, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, hold_both, NULL), 0);
	sem_wait(&held);
	for (int i = 0; i < 3; i++)
		assert_int_equal(IN_CHILD(take_both()), 0);
	sem_post(&done);
	pthread_join(thread, NULL);
	assert_int_equal(dropped, 0);
	assert_int_equal(guarded, 7);
	assert_int_equal(shunt_process_generation(), 0);
}
