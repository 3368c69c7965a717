/* SPDX-License-Identifier: MIT */
#pragma once
/* Functions of the system: this process's identity, random bytes, threads, CPUs. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Random number of this process; a forked child has another one. Tells peers in the same process, which borrow each
 * other's memory, from others.
 */
uint64_t shunt_process_token(void);

/*
 * Opens /dev/null as stdin, stdout or stderr where the program has closed them. Else our own descriptors would get
 * these numbers, and the program's output would go into memory or connections that we share with peers. To be called
 * before Shunt opens any descriptor.
 */
void shunt_process_reserve_stdio(void);

/* Fills buf with random bytes from the kernel. 0 or -errno (logged). */
int shunt_random(void *buf, size_t bytes);

/*
 * Starts a thread with all signals blocked: signals are for the program's threads. thread_p NULL: detached.
 * stack_bytes: stack that fn needs in addition to the system's default, or to 8 MB if that is less (ulimit -s). 0 or
 * -errno.
 */
int shunt_thread_start(pthread_t *thread_p, size_t stack_bytes, void *(*fn)(void *arg), void *arg);

/* CPUs that the process may use: of its mask, and of its control group's share. At least 1. */
int shunt_usable_cpus(void);
