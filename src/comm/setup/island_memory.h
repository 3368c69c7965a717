/* SPDX-License-Identifier: MIT */
#pragma once
/* Memory for the steps of calls over islands of one host (algos/engines/by_parts.c). */

struct shunt_comm;

/*
 * Two rounds for each part, if the ranks are on several islands: the selection key gets the parts. Without the memory
 * the communicator goes on without them, alike on all ranks. An error breaks the set-up.
 */
int shunt_comm_islands_share(struct shunt_comm *comm);
/* No kernel uses them. */
void shunt_comm_islands_drop(struct shunt_comm *comm);
