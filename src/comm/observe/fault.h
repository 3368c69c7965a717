/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_OBSERVE_FAULT_H
#define SHUNT_COMM_OBSERVE_FAULT_H
/* The record that a kernel leaves when it gives up becomes the communicator's error, and one line of log. */

#include <stdbool.h>
#include <stddef.h>

struct shunt_comm;

/*
 * The communicator's error, including what kernels have found by now: 0, or as shunt_comm_error(). The first thread
 * that finds a record logs it. Any thread, while the communicator is READY.
 */
int shunt_fault_poll(struct shunt_comm *comm);
/*
 * The same for a thread that must not log, as what is to be logged may block for ever: true: text has a line for
 * shunt_error.
 */
#define SHUNT_FAULT_TEXT 1024
bool shunt_fault_take(struct shunt_comm *comm, char *text, size_t bytes);
/* A rank died, and the operation (kargs.op) waits for it: sets the communicator's error. True: text has a line. */
bool shunt_fault_set_died(struct shunt_comm *comm, int rank, int pid, unsigned long long op, char *text, size_t bytes);
#endif
