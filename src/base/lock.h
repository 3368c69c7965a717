/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_LOCK_H
#define SHUNT_BASE_LOCK_H
/*
 * A lock of the whole process. A forked child finds it free, whichever thread of its parent held it at the fork: that
 * thread is not in the child and would never release it. What the lock guards in the parent stands for threads,
 * connections and communicators that the child does not have, so the lock may name a function that drops it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct shunt_lock {
	pthread_mutex_t mutex;
	void (*forked)(void); /* in a forked child, before anything takes the lock; NULL: what it guards stays */
	atomic_bool listed;
	struct shunt_lock *next;
};

/* Initialiser of a static lock. */
#define SHUNT_LOCK(forked_) { .mutex = PTHREAD_MUTEX_INITIALIZER, .forked = (forked_) }

/* Before the first acquisition: from now on a forked child finds the lock free. */
void shunt_lock_list(struct shunt_lock *lock);

static inline void shunt_lock_acquire(struct shunt_lock *lock)
{
	if (__builtin_expect(!atomic_load_explicit(&lock->listed, memory_order_relaxed), 0))
		shunt_lock_list(lock);
	pthread_mutex_lock(&lock->mutex);
}

static inline void shunt_lock_release(struct shunt_lock *lock)
{
	pthread_mutex_unlock(&lock->mutex);
}
#endif
