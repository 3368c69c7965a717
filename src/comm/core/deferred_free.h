/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * When an aborted communicator's memory is freed. The driver frees memory once the device is idle, and another
 * communicator's kernel may hang on the device. The program may be about to abort that communicator next, from the
 * thread that would wait here. So an aborted communicator leaves its memory to the last communicator that lives on the
 * device, or to the next one that is destroyed and waits for the device itself. Any thread.
 */
#include <stdbool.h>

struct shunt_comm;

/* The communicator is about to have kernels on its device. */
void shunt_deferred_free_enter(struct shunt_comm *comm);
/* The communicator has ended. True: the caller frees it. False: the caller pushes it, and another thread frees it. */
bool shunt_deferred_free_leave(struct shunt_comm *comm);
/* From now on shunt_deferred_free_pop gives the communicator to any caller, which frees it. */
void shunt_deferred_free_push(struct shunt_comm *comm);
/* True: no other communicator has kernels on the device of this communicator. */
bool shunt_deferred_free_alone(const struct shunt_comm *comm);
/*
 * A communicator to free now, or NULL. waits: the caller waits for the device in any case; else no communicator may
 * live on the device.
 */
struct shunt_comm *shunt_deferred_free_pop(int device, bool waits);
