/* SPDX-License-Identifier: MIT */
#pragma once
/* The link that a rank claims to have to another one of its host. */
#include "device/gpu_ops.h"

#define SHUNT_LINK_WHY 120 /* bytes of a reason */

/* How far apart the two devices are. */
enum shunt_distance shunt_link_distance(
    const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs, enum shunt_link link);
/* How many devices these n ranks of a host have: some may share one. */
int shunt_link_devices(const struct shunt_gpu_info *const *info, int n);
/*
 * As NCCL has it without NCCL_P2P_LEVEL: peers reach each other through switches, and two GPUs on a host with AMD's
 * processors (amd) through these, too.
 */
enum shunt_distance shunt_link_farthest(bool amd, int ndevices);
/*
 * This rank is on `device`; theirs: the other rank's. NVLink and peer access as the device and NCCL's variables allow,
 * both and shared memory as SHUNT_LINKS does. ndevices: those that the communicator has on this host, where NCCL's
 * rules and variables count; 0: they do not. reason: why it is not NVLink.
 */
enum shunt_link shunt_link_claim(const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs,
    int rank, int peer, int ndevices, char reason[SHUNT_LINK_WHY]);
