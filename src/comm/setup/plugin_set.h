/* SPDX-License-Identifier: MIT */
#pragma once
/* The set of plug-ins that a communicator's ranks agree on in the set-up. With the communicator's lock. */
#include <stdint.h>

struct shunt_comm;
struct shunt_hello;

/* Takes the current plug-ins, and returns their hash for the first round; 0: none. */
uint64_t shunt_comm_plugins_acquire(struct shunt_comm *comm);
/*
 * After that round, with all ranks' hellos. Where they differ, another round finds the plug-in that differs, rank 0
 * logs it, and none is used. Loads their images.
 */
int shunt_comm_plugins_agree(struct shunt_comm *comm, const struct shunt_hello *hellos);
/* After the last kernel. */
void shunt_comm_plugins_drop(struct shunt_comm *comm);
