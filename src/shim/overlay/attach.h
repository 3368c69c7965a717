/* SPDX-License-Identifier: MIT */
#pragma once
/* Overlay: makes Shunt's side of NCCL's communicators, and finds out their rank, size and device. */
#include "shim/handles/handles.h"

/*
 * To be called before the real NCCL creates the communicator, because peers look for our socket as soon as NCCL's call
 * has returned on any rank. If the socket cannot be created, the entry is forward-only: the peers find no socket and
 * forward, too. NULL: no memory.
 */
struct shunt_entry *shunt_overlay_attach(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config);

/*
 * Asks the real NCCL for rank, size and device, if they are not known yet. False: the real NCCL does not know
 * them yet. Not to be called in the group that creates the communicator, where NCCL's answers mean nothing.
 */
bool shunt_attach_ready(struct shunt_entry *entry, ncclComm_t comm);
/*
 * Asks it whether the communicator uses NVLink multicast. For those whose rank and device were known before; before
 * their first call.
 */
void shunt_attach_ask_nvls(struct shunt_entry *entry, ncclComm_t comm);
/* True: the communicator is non-blocking, and has work under way, such as a split. */
bool shunt_attach_in_progress(ncclComm_t comm);
/*
 * The same (logged). The call is to be refused, as NCCL would: then Shunt's side has not changed. NCCL itself is not
 * called, because from 2.28 on its ncclCommDestroy would leave the thread in a group that nobody ends. what: the
 * function's name.
 */
bool shunt_attach_not_ready(ncclComm_t comm, const char *what);
/* True: our kernels may run on the communicator. Asks the real NCCL in the same way. */
static inline bool shunt_attach_takes_calls(struct shunt_entry *entry, ncclComm_t comm)
{
	return shunt_life_takes_calls(&entry->life) ||
	    (shunt_life_is_open(&entry->life) && shunt_attach_ready(entry, comm));
}
/*
 * The same for a communicator that may have become ready, so that peers can set it up before the program here uses it.
 */
void shunt_attach_refresh(ncclComm_t comm);

/* Logs one line per process, on rank 0 of the first communicator. */
void shunt_overlay_banner(int rank);
