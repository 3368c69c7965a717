/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_OVERLAY_ATTACH_H
#define SHUNT_SHIM_OVERLAY_ATTACH_H
/* Ties a communicator of NCCL's ABI to a struct shunt_comm: who it is, when it is known well enough to be used. */
#include "shim/handles.h"

/*
 * Makes an unpublished entry. Must come before the real NCCL's call that creates the communicator, because peers look
 * for our socket as soon as that call has returned anywhere. Where a socket cannot be made the entry is forward-only:
 * the peers find nobody and do likewise. NULL: no memory.
 */
struct shunt_entry *shunt_attach(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config);

/*
 * Overlay: asks the real NCCL for rank, size and device if that was not done yet. False: it does not know them yet
 * either. Not to be called in the group that makes the communicator: what NCCL says there means nothing.
 */
bool shunt_attach_ready(struct shunt_entry *entry, ncclComm_t comm);
/*
 * The same, for a communicator that may have become ready now: peers may then set it up before the program here uses
 * it.
 */
void shunt_attach_refresh(ncclComm_t comm);

/* One line per process at the first communicator, by its rank 0. device < 0: not said. */
void shunt_attach_banner(int rank, int device);
#endif
