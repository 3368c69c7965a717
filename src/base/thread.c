/* SPDX-License-Identifier: MIT */
#include "base/thread.h"
#include <signal.h>

int shunt_thread_start(pthread_t *thread_p, size_t stack_bytes, void *(*fn)(void *arg), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, before;
	size_t usual;
	int err;

	pthread_attr_init(&attr);
	if (!thread_p)
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	/*
	 * The stack also holds the thread-local variables of the program's libraries, which may need more than fn. The
	 * C library's default has room for them.
	 */
	if (stack_bytes && !pthread_attr_getstacksize(&attr, &usual))
		pthread_attr_setstacksize(&attr, usual + stack_bytes);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = -pthread_create(thread_p ? thread_p : &thread, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return err;
}
