/* SPDX-License-Identifier: MIT */
#pragma once
/* The library with a real NCCL: the functions of nccl.h that Shunt has a part in, for the table in overlay.c. */
#include "shim/calls/mode_ops.h"
#include "shim/calls/thread.h"

extern const struct shunt_mode_ops shunt_overlay_ops;
/* The same with marks behind calls of the real NCCL (marked.c). To be called once, by the first call. */
const struct shunt_mode_ops *shunt_overlay_marked(void);

ncclResult_t shunt_overlay_coll(struct shunt_thread *thread, struct shunt_coll_call *call);

/* init.c */
ncclResult_t shunt_overlay_unique_id(ncclUniqueId *id);
ncclResult_t shunt_overlay_init_rank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank);
ncclResult_t shunt_overlay_init_rank_config(
    ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t shunt_overlay_init_rank_scalable(
    ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config);
ncclResult_t shunt_overlay_init_all(ncclComm_t *comms, int ndev, const int *devlist);
ncclResult_t shunt_overlay_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t shunt_overlay_shrink(
    ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *newcomm, ncclConfig_t *config, int flags);
ncclResult_t shunt_overlay_grow_id(ncclComm_t comm, ncclUniqueId *id);
ncclResult_t shunt_overlay_grow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config);

/* comm_end.c */
ncclResult_t shunt_overlay_finalize(ncclComm_t comm);
ncclResult_t shunt_overlay_destroy(ncclComm_t comm);
ncclResult_t shunt_overlay_abort(ncclComm_t comm);
ncclResult_t shunt_overlay_revoke(ncclComm_t comm, int flags);
ncclResult_t shunt_overlay_suspend(ncclComm_t comm, int flags);
ncclResult_t shunt_overlay_resume(ncclComm_t comm);
ncclResult_t shunt_overlay_async_error(ncclComm_t comm, ncclResult_t *state);
ncclResult_t shunt_overlay_mem_stats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* real_memory.c */
ncclResult_t shunt_overlay_mem_free(void *ptr);
ncclResult_t shunt_overlay_window_register(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags);
ncclResult_t shunt_overlay_window_deregister(ncclComm_t comm, ncclWindow_t win);

/* user_op.c */
ncclResult_t shunt_overlay_redop_create(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t shunt_overlay_redop_destroy(ncclRedOp_t op, ncclComm_t comm);

/* real_group.c */
ncclResult_t shunt_overlay_group_start(void);
ncclResult_t shunt_overlay_group_end(void);
ncclResult_t shunt_overlay_group_simulate_end(ncclSimInfo_t *info);
