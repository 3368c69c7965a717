/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_OVERLAY_CHILDREN_H
#define SHUNT_SHIM_OVERLAY_CHILDREN_H
/*
 * Ids of communicators that are made of others: equal on all their ranks without a word being exchanged, and different
 * from all others. Each call counts, and has to be made where NCCL's is.
 */
#include "shim/handles.h"

struct shunt_id shunt_child_split(struct shunt_entry *parent, int color);
/* Counted by set: a rank that one shrink left out may be in the next. */
struct shunt_id shunt_child_shrunk(struct shunt_entry *parent, const int *excluded, int n);

/*
 * Growing: the old ranks know their parent's secret, the new ones get what follows from it with the unique id that one
 * of the old ranks made. It stands at the end of the id, which NCCL leaves zero. A real NCCL's id whose end is not is
 * left alone.
 */
void shunt_child_grow_id(const struct shunt_entry *parent, ncclUniqueId *id);
struct shunt_id shunt_child_grown(struct shunt_entry *parent);
/* A new rank. NULL, or why the id is of no use: it says that itself. */
const char *shunt_child_grown_by_id(const ncclUniqueId *id, struct shunt_id *id_p);
#endif
