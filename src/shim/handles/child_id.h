/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ids of communicators that are made from others: equal on all their ranks without communication, and different from
 * all other ids. Each call is counted, so it must be made exactly where NCCL's is.
 */
#include "shim/handles/handles.h"
#include "transport/rendezvous/host_table.h"

struct shunt_id shunt_child_split(struct shunt_entry *parent, int color);
/* Counted for each set of excluded ranks: a rank that one shrink excludes may take part in the next. */
struct shunt_id shunt_child_shrunk(struct shunt_entry *parent, const int *excluded, int n);

/* Of an expert parallel group. */
struct shunt_id shunt_child_group(struct shunt_entry *parent);

/*
 * Growing. The old ranks know their parent's secret. The new ranks get a secret that is derived from it, in the unique
 * id that an old rank creates: at its end, which NCCL leaves zero. If the end of a real NCCL's id is not zero, the id
 * stays as it is. root: in standalone the address where old and new ranks find each other, or NULL: on their host.
 */
void shunt_child_grow_id(const struct shunt_entry *parent, const struct shunt_host_address *root, ncclUniqueId *id);
struct shunt_id shunt_child_grown(struct shunt_entry *parent);
/* For a new rank. NULL and *id_p, or the reason why the id cannot be used. */
const char *shunt_child_grown_by_id(const ncclUniqueId *id, struct shunt_id *id_p);
/* Standalone: the root in the id; of no family: none. */
struct shunt_host_address shunt_child_grow_root(const ncclUniqueId *id);
