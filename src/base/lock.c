/* SPDX-License-Identifier: MIT */
#include "base/lock.h"

#include <stddef.h>

static _Atomic(struct shunt_lock *) locks; /* all that were ever taken */

/* In the child. No other thread is there. */
static void child_after_fork(void)
{
	for (struct shunt_lock *l = atomic_load(&locks); l; l = l->next) {
		pthread_mutex_init(&l->mutex, NULL);
		if (l->forked)
			l->forked();
	}
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, child_after_fork);
}

void shunt_lock_list(struct shunt_lock *lock)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct shunt_lock *head = atomic_load(&locks);

	if (atomic_exchange(&lock->listed, true))
		return;
	pthread_once(&once, watch_forks);
	do
		lock->next = head;
	while (!atomic_compare_exchange_weak(&locks, &head, lock));
}
