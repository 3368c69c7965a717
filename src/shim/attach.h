/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_ATTACH_H
#define SHUNT_SHIM_ATTACH_H
/* Ties a communicator of NCCL's ABI to a struct shunt_comm: who it is, when it is known well enough to be used. */
#include "shim/handles.h"

/* What we read of an ncclConfig_t. */
struct shunt_settings {
	bool blocking;
	int max_ctas; /* 0: no limit */
};

/* config may be NULL, and may be of any version. Without a value of its own the parent's holds (NULL: NCCL's defaults);
 * NCCL_COMM_BLOCKING and NCCL_MAX_CTAS win over both. -EINVAL: NCCL would refuse it (*settings_p is set nevertheless). */
int shunt_settings_read(const ncclConfig_t *config, const struct shunt_entry *parent, struct shunt_settings *settings_p);

/*
 * Makes an unpublished entry. Must come before the real NCCL's call that creates the communicator, because peers look for our
 * socket as soon as that call has returned anywhere. Where a socket cannot be made the entry is forward-only: the peers find nobody
 * and do likewise. NULL: no memory.
 */
struct shunt_entry *shunt_attach(const struct shunt_comm_desc *desc, const struct shunt_settings *settings);

/* Overlay: asks the real NCCL for rank, size and device if that was not done yet. False: it does not know them yet either. */
bool shunt_attach_ready(struct shunt_entry *entry, ncclComm_t comm);

/* One line per process at the first communicator, by its rank 0. device < 0: not said. */
void shunt_attach_banner(int rank, int device);
#endif
