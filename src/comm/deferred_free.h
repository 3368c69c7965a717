/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_DEFERRED_FREE_H
#define SHUNT_COMM_DEFERRED_FREE_H
/*
 * When an aborted communicator's memory goes. The driver takes memory away when the device is idle, and a kernel of
 * another communicator may hang on it: the one whose abort comes next, for which the caller's thread would never get if
 * it waited here. So an aborted communicator leaves its memory to the last of ours that lives on the device, or to the
 * next that is destroyed, which waits for the device itself. Any thread.
 */
#include <stdbool.h>

struct shunt_comm;

/* The communicator is about to have kernels on its device. */
void shunt_deferred_free_enter(struct shunt_comm *comm);
/* It has ended. True: the caller frees it; false: the caller leaves it to somebody else. */
bool shunt_deferred_free_leave(struct shunt_comm *comm);
/* From here on it is freed by whoever finds it with shunt_deferred_free_pop. */
void shunt_deferred_free_push(struct shunt_comm *comm);
/* Has no other than this one kernels on its device? */
bool shunt_deferred_free_alone(const struct shunt_comm *comm);
/*
 * One that is to be freed now, as no other lives on the device, or as the caller waits for the device in any case;
 * NULL: none.
 */
struct shunt_comm *shunt_deferred_free_pop(int device, bool waits);
#endif
