/* SPDX-License-Identifier: MIT */
#pragma once
/* A communicator's scratch: each rank allocates its own, and maps that of the ranks of its host. */
#include <stddef.h>

struct shunt_comm;
struct shunt_hello;

/*
 * The third and fourth round: all ranks have comm->mem, and comm->words. -EOPNOTSUPP: some rank cannot, alike on all
 * ranks, and reason says why.
 */
int shunt_scratch_share(struct shunt_comm *comm, const struct shunt_hello *hellos, char *reason, size_t bytes);
/* Frees what that made, for another try. */
void shunt_scratch_drop(struct shunt_comm *comm);
/* A kernel goes on using that, so it stays as long as the process. */
void shunt_scratch_leave(struct shunt_comm *comm);
/* For a rank alone, whose kernels keep their counters there, and wait for nobody. Loads the kernels. 0 or -errno. */
int shunt_scratch_make_single(struct shunt_comm *comm);
