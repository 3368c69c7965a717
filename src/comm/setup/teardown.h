/* SPDX-License-Identifier: MIT */
#pragma once
/* How a set-up ends that does not lead to a ready communicator. shunt_comm_teardown is in core/communicator.h. */
#include <stdbool.h>

struct shunt_comm;

/* All ranks forward from now on. logs: this rank logs the reason for all. Returns 0. */
int shunt_comm_forward_from_now(struct shunt_comm *comm, bool logs, const char *reason);
/* Logs the failure, and breaks the communicator. reason: more than err says, or empty. Returns err. */
int shunt_comm_setup_failed(struct shunt_comm *comm, const char *step, const char *reason, int err);
