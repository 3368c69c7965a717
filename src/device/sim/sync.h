/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Locks and waits on a word, by futex. pthread's would tell ThreadSanitizer of an order between kernels that a device
 * does not have.
 */
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct sim_lock {
	uint32_t v; /* 0 free, 1 held, 2 held with waiters */
};

/* Returns when *p may differ from seen. */
static inline void sim_wait(const uint32_t *p, uint32_t seen)
{
	if (__atomic_load_n(p, __ATOMIC_ACQUIRE) == seen)
		syscall(SYS_futex, p, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

static inline void sim_wake(const uint32_t *p)
{
	syscall(SYS_futex, p, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

static inline void sim_lock(struct sim_lock *l)
{
	uint32_t seen = 0;

	if (__atomic_compare_exchange_n(&l->v, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	while (__atomic_exchange_n(&l->v, 2, __ATOMIC_ACQUIRE))
		sim_wait(&l->v, 2);
}

static inline void sim_unlock(struct sim_lock *l)
{
	if (__atomic_exchange_n(&l->v, 0, __ATOMIC_RELEASE) == 2)
		syscall(SYS_futex, &l->v, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

static inline void sim_sleep_us(unsigned us)
{
	struct timespec t = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };

	syscall(SYS_nanosleep, &t, nullptr);
}
