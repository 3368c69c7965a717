/* SPDX-License-Identifier: MIT */
#pragma once
/* The set of execution plans that a communicator's ranks agree on in the set-up. With the communicator's lock. */
#include <stdbool.h>
#include <stdint.h>

struct shunt_comm;
struct shunt_hello;
struct shunt_plan_set;
struct shunt_topology;

/*
 * The plans for the communicator's ranks, and their hosts as t has them. speak: say which do not fit. NULL: out of
 * memory. Any thread that may read t.
 */
struct shunt_plan_set *shunt_comm_plan_set_get(
    const struct shunt_comm *comm, const struct shunt_topology *t, bool speak);
/* Takes the current set of plans, and returns its hash for the first round; 0: no plans. */
uint64_t shunt_comm_plan_set_acquire(struct shunt_comm *comm);
/*
 * After that round, with all ranks' hellos. Where they differ, another round finds the plan that differs, rank 0 logs
 * it, and no plan is used.
 */
int shunt_comm_plan_set_agree(struct shunt_comm *comm, const struct shunt_hello *hellos);
/* After the last kernel: the set, and the device's part of its plans. */
void shunt_comm_plans_drop(struct shunt_comm *comm);
