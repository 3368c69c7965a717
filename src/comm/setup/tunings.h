/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The tables of the program's tuning files that a communicator may take. The ranks compare tables before they know
 * which case they are in, so a rank looks up a table for each case:
 *
 * | the ranks are on  | cases                                                        |
 * |-------------------|--------------------------------------------------------------|
 * | one host          | without NVLink multicast, with it; by PCIe; by shared memory |
 * | several hosts     | each provider, if all hosts have the same number of ranks    |
 */
#include <stdint.h>

struct shunt_comm;
struct shunt_gpu_info;
struct shunt_hello;

/* Hashes of this rank's tables, one for each case; 0: none. */
void shunt_tunings_hash(const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, uint64_t *hashes);
/* The tables that all ranks have become those of the communicator. Rank 0 warns where ranks differ. */
void shunt_tunings_agree(struct shunt_comm *comm, const struct shunt_hello *hellos);
/* The same on one host where NVLink does not join all ranks, once they have agreed on links. NULL: none has a file. */
void shunt_tunings_agree_on_link(struct shunt_comm *comm, const struct shunt_hello *hellos);
/* Over several hosts, once the ranks are connected by a provider: its table is the one. */
void shunt_tunings_choose_provider(struct shunt_comm *comm);
