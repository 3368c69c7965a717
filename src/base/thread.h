/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_THREAD_H
#define SHUNT_BASE_THREAD_H
#include <pthread.h>
#include <stddef.h>

/*
 * A thread of ours. It blocks all signals: the program's are for the program's threads. thread_p NULL: nobody joins it.
 * stack_bytes: what it needs in any case, beside what the system gives, which may be little (ulimit -s). 0 or -errno.
 */
int shunt_thread_start(pthread_t *thread_p, size_t stack_bytes, void *(*fn)(void *arg), void *arg);
#endif
