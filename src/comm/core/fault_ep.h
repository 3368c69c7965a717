/* SPDX-License-Identifier: MIT */
#pragma once
/* The records of kernels of expert parallel groups, as texts. err: the communicator's from now on. */

struct shunt_comm;
struct shunt_fault;

void shunt_fault_expert(struct shunt_comm *comm, int err, const struct shunt_fault *f);
void shunt_fault_differs(struct shunt_comm *comm, int err, const struct shunt_fault *f);
void shunt_fault_under_way(struct shunt_comm *comm, int err, const struct shunt_fault *f);
void shunt_fault_overflow(struct shunt_comm *comm, int err, const struct shunt_fault *f);
