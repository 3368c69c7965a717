/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_STANDALONE_STANDALONE_H
#define SHUNT_SHIM_STANDALONE_STANDALONE_H
/* The library without a real NCCL: the functions of nccl.h on Shunt's own bootstrap, for entry_*.c. */
#include "shim/overlay/attach.h"

ncclResult_t shunt_standalone_unique_id(ncclUniqueId *id);
/* One id or several (ncclCommInitRankScalable); the ranks use the first one. what: the function's name, for the log. */
ncclResult_t shunt_standalone_init(const char *what, ncclComm_t *newcomm, int nranks, const ncclUniqueId *ids, int nids,
    int rank, const ncclConfig_t *config);
ncclResult_t shunt_standalone_init_all(ncclComm_t *comms, int ndev, const int *devlist);

/* child.c */
ncclResult_t shunt_standalone_split(
    ncclComm_t comm, int color, int key, ncclComm_t *newcomm, const ncclConfig_t *config);
ncclResult_t shunt_standalone_shrink(
    ncclComm_t comm, const int *excluded, int nexcluded, ncclComm_t *newcomm, const ncclConfig_t *config, int flags);
ncclResult_t shunt_standalone_grow_id(ncclComm_t comm, ncclUniqueId *id);
ncclResult_t shunt_standalone_grow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, const ncclConfig_t *config);

/* end.c. end: destroy or abort. */
ncclResult_t shunt_standalone_end(ncclComm_t comm, bool abort);
ncclResult_t shunt_standalone_finalize(ncclComm_t comm);
ncclResult_t shunt_standalone_revoke(ncclComm_t comm, int flags);
ncclResult_t shunt_standalone_suspend(ncclComm_t comm, int flags);
ncclResult_t shunt_standalone_resume(ncclComm_t comm);
ncclResult_t shunt_standalone_async_error(ncclComm_t comm, ncclResult_t *state);

/*
 * A communicator that can be used, with a reference. NULL and *result_p: InvalidArgument, or the communicator's error.
 * what: the caller's name, for the log.
 */
struct shunt_entry *shunt_standalone_find(ncclComm_t comm, const char *what, ncclResult_t *result_p);
/* Success: the communicator exists, in whatever state. Takes no lock, so an allocator's callback may call it. */
ncclResult_t shunt_standalone_check(ncclComm_t comm, const char *what);

/* For a call that our kernels declined: an error, logged with the reason. */
ncclResult_t shunt_standalone_declined(struct shunt_entry *entry, const struct shunt_coll *coll);

/* Logs, and returns InvalidArgument; it is the error of an open group, too. */
ncclResult_t shunt_standalone_refuse(const char *what, const char *reason);
/* A new entry, and the struct that its handle points to. NULL: logged. */
struct shunt_entry *shunt_standalone_new(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config);
ncclComm_t shunt_standalone_handle(const struct shunt_entry *entry);
#endif
