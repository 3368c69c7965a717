/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_CORE_FAULT_H
#define SHUNT_COMM_CORE_FAULT_H
/* The record that a kernel leaves when it gives up becomes the communicator's error, and one line of log. */

struct shunt_comm;

/*
 * The communicator's error, including what kernels have found by now: 0, or as shunt_comm_error(). The first thread
 * that finds a record logs it. Any thread, while the communicator is READY.
 */
int shunt_fault_poll(struct shunt_comm *comm);
/* A rank died, and the operation (kargs.op) waits for it: sets the communicator's error and logs one line. */
void shunt_fault_died(struct shunt_comm *comm, int rank, int pid, unsigned long long op);
#endif
