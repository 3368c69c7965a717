/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_THREAD_H
#define SHUNT_BASE_THREAD_H
#include <pthread.h>
#include <stddef.h>

/*
 * Starts a thread with all signals blocked: signals are for the program's threads. thread_p NULL: detached.
 * stack_bytes: stack that fn needs in addition to the system's default, which may be small (ulimit -s). 0 or -errno.
 */
int shunt_thread_start(pthread_t *thread_p, size_t stack_bytes, void *(*fn)(void *arg), void *arg);
#endif
