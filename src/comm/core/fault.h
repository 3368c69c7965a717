/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_CORE_FAULT_H
#define SHUNT_COMM_CORE_FAULT_H
/* The record that a kernel leaves when it gives up becomes the communicator's error, and one line of log:
 * shunt_comm_error (comm.h). */

struct shunt_comm;

/* A rank died, and the operation (kargs.op) waits for it: sets the communicator's error and logs one line. */
void shunt_fault_died(struct shunt_comm *comm, int rank, int pid, unsigned long long op);
#endif
