/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOPOLOGY_CLAIM_H
#define SHUNT_TOPOLOGY_CLAIM_H
/* The link that a rank claims to have to another one of its host. */
#include "device/gpu_ops.h"

/* How far apart the two devices are. */
enum shunt_distance shunt_link_distance(
    const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs, enum shunt_link link);
/*
 * This rank is on `device`; theirs: the other rank's. NVLink and peer access as the device and NCCL's variables allow,
 * both and shared memory as SHUNT_LINKS does. obeys: NCCL's variables count. *reason_p (static storage): why it is not
 * NVLink.
 */
enum shunt_link shunt_link_claim(const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs,
    int rank, int peer, bool obeys, const char **reason_p);
#endif
