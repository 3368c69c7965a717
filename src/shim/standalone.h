/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_STANDALONE_H
#define SHUNT_SHIM_STANDALONE_H
/* The library without a real NCCL: the functions of nccl.h under our own bootstrap, as entry_*.c calls them. */
#include "shim/attach.h"

ncclResult_t shunt_alone_unique_id(ncclUniqueId *id);
ncclResult_t shunt_alone_init(ncclComm_t *newcomm, int nranks, const ncclUniqueId *id, int rank, ncclConfig_t *config);
ncclResult_t shunt_alone_init_all(ncclComm_t *comms, int ndev, const int *devlist);
ncclResult_t shunt_alone_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
/* Destroy or abort. */
ncclResult_t shunt_alone_end(ncclComm_t comm, bool abort);
ncclResult_t shunt_alone_finalize(ncclComm_t comm);
ncclResult_t shunt_alone_async_error(ncclComm_t comm, ncclResult_t *state);

/* A communicator that can be used, with a reference; NULL and *result_p: InvalidArgument, or its error. what names the caller in
 * the log. */
struct shunt_entry *shunt_alone_find(ncclComm_t comm, const char *what, ncclResult_t *result_p);

/* All-reduce that our kernels declined: a copy for a single rank, else an error with its reason. */
ncclResult_t shunt_alone_declined(struct shunt_entry *entry, const struct shunt_coll *coll);
#endif
