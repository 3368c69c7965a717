/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Functions of the program that are kept for longer than their code or their interpreter may live: selectors, and the
 * functions of plug-ins. The program may end one wherever it is kept. A thread that calls counts itself before it looks
 * at `ended`. So a thread that ends the function and then finds the count 0 knows that no other thread will call it.
 * Any thread; a forked child has the functions of its parent, and no thread of the parent in them.
 */
#include <stdatomic.h>
#include <stdbool.h>

struct shunt_callback {
	struct shunt_callback *next; /* in the list of all */
	void *function, *arg;        /* by which the program names it */
	atomic_uint callers;
	atomic_bool ended;
};

/* One that the calling thread is in. */
struct shunt_callback_inside {
	struct shunt_callback_inside *outer;
	struct shunt_callback *callback;
};

/* Puts it into the list, from which it is removed before its memory is freed. */
void shunt_callback_add(struct shunt_callback *callback, void *function, void *arg);
void shunt_callback_remove(struct shunt_callback *callback);
/* True: the function may be called. Then and else leave() follows, on the same thread. */
bool shunt_callback_enter(struct shunt_callback *callback, struct shunt_callback_inside *here);
void shunt_callback_leave(struct shunt_callback_inside *here);
/*
 * Ends all that have this function and argument, and waits for other threads that are in one of them. 0; -ENOENT: there
 * is none; -ETIMEDOUT: a thread has been in one for ten seconds.
 */
int shunt_callback_end(void *function, void *arg);
