/* SPDX-License-Identifier: MIT */
#pragma once
/* The record that a kernel leaves when it gives up becomes the communicator's error, and one line of log:
 * shunt_comm_error (comm.h). */

struct shunt_comm;

/* A rank died, and the operation (kargs.op) waits for it: sets the communicator's error and logs one line. */
void shunt_fault_died(struct shunt_comm *comm, int rank, int pid, unsigned long long op);
