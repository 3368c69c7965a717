/* SPDX-License-Identifier: MIT */
#pragma once
/* The library without a real NCCL: the functions of nccl.h on Shunt's own bootstrap, for the table in standalone.c. */
#include "shim/calls/mode_ops.h"
#include "shim/calls/thread.h"

extern const struct shunt_mode_ops shunt_standalone_ops;

ncclResult_t shunt_standalone_coll(struct shunt_thread *thread, struct shunt_coll_call *call);

/* join.c */
ncclResult_t shunt_standalone_unique_id(ncclUniqueId *id);
ncclResult_t shunt_standalone_init_rank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank);
ncclResult_t shunt_standalone_init_rank_config(
    ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t shunt_standalone_init_rank_scalable(
    ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config);
ncclResult_t shunt_standalone_init_all(ncclComm_t *comms, int ndev, const int *devlist);

/* child.c */
ncclResult_t shunt_standalone_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t shunt_standalone_shrink(
    ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *newcomm, ncclConfig_t *config, int flags);
ncclResult_t shunt_standalone_grow_id(ncclComm_t comm, ncclUniqueId *id);
ncclResult_t shunt_standalone_grow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config);

/* end.c */
ncclResult_t shunt_standalone_destroy(ncclComm_t comm);
ncclResult_t shunt_standalone_abort(ncclComm_t comm);
ncclResult_t shunt_standalone_finalize(ncclComm_t comm);
ncclResult_t shunt_standalone_revoke(ncclComm_t comm, int flags);
ncclResult_t shunt_standalone_suspend(ncclComm_t comm, int flags);
ncclResult_t shunt_standalone_resume(ncclComm_t comm);
ncclResult_t shunt_standalone_async_error(ncclComm_t comm, ncclResult_t *state);
ncclResult_t shunt_standalone_mem_stats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* register.c */
ncclResult_t shunt_standalone_mem_alloc(void **ptr, size_t size);
ncclResult_t shunt_standalone_mem_free(void *ptr);
ncclResult_t shunt_standalone_register(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t shunt_standalone_deregister(const ncclComm_t comm, void *handle);
ncclResult_t shunt_standalone_window_register(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags);
ncclResult_t shunt_standalone_window_deregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t shunt_standalone_window_ptr(ncclComm_t comm, ncclWindow_t win, void **ptr);

/* redop.c */
ncclResult_t shunt_standalone_redop_create(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t shunt_standalone_redop_destroy(ncclRedOp_t op, ncclComm_t comm);

/* group_end.c */
ncclResult_t shunt_standalone_group_start(void);
ncclResult_t shunt_standalone_group_end(void);
ncclResult_t shunt_standalone_group_simulate_end(ncclSimInfo_t *info);
