/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * For the kernels staged_*: those of NVLink, built once more for ranks that do not reach each other's memory. They
 * exchange data through segments of page-locked memory of the host, one of each rank, which all ranks of the host map.
 *
 * | over NVLink                    | over shared memory                                                               |
 * |--------------------------------|----------------------------------------------------------------------------------|
 * | a peer's scratch, k.peer[p]    | the peer's segment, k.peer[p]                                                    |
 * | this rank's scratch            | ctrl in its own memory, k.peer[rank], for what it alone writes; its segment for  |
 * |                                | what peers write (spin_inbox)                                                    |
 * | LL128: lines of 128 bytes      | sectors of 32 bytes (gpu.h), as PCIe may tear longer lines                       |
 * | a copy for each peer           | all-reduces: stored once in the own segment, loaded by the others (STORED_ONCE)  |
 * | 1024 channels, 8 chunks a ring | fewer: a segment is page-locked and counts for every rank                        |
 *
 * All else is the same: epochs, credits, waits, order of reduction. The reader's rules hold for a segment as they do
 * for a peer's scratch: a slot is written again when all its readers have sent what they send after they read it.
 */
#include "device/gpu.h"
#include "kernels/kernel_list.h"

#define SHUNT_OVER_SHARED
#define LINE_LANES 2u
#define LINE_COUNT UINT32_MAX
/* Not where stores reach the GPU itself: there its own scratch is what peers write. */
#define STORED_ONCE (l.inbox != (char *)l.ctrl)
#define gpu_ll128_st gpu_sector_st
#define gpu_ll128_ld gpu_sector_ld
#define gpu_ll128_ready gpu_sector_ready
#undef GPU_LL128_FLAG_LANE
#define GPU_LL128_FLAG_LANE GPU_SECTOR_FLAG_LANE
#undef SHUNT_LL128_SLOT_DATA
#define SHUNT_LL128_SLOT_DATA SHUNT_SECTOR_SLOT_DATA
#undef SHUNT_LL128_CHANNELS
#define SHUNT_LL128_CHANNELS SHUNT_STAGED_CHANNELS
#undef SHUNT_P2P_CHANNELS
#define SHUNT_P2P_CHANNELS SHUNT_STAGED_P2P_CHANNELS
#undef SHUNT_SIMPLE_CHANNELS
#define SHUNT_SIMPLE_CHANNELS SHUNT_STAGED_SIMPLE_CHANNELS
#undef SHUNT_SIMPLE_RING
#define SHUNT_SIMPLE_RING(n) SHUNT_STAGED_RING
#undef SHUNT_KERNEL_NAME
#define SHUNT_KERNEL_NAME(shape, op, type) ncclDevKernel_Shunt_staged_##shape##_##op##_##type

static_assert(SHUNT_SCRATCH_BYTES(2) == SHUNT_SEGMENT_BYTES(2), "the host allocates what the kernels use");
static_assert(SHUNT_SCRATCH_BYTES(3) == SHUNT_SEGMENT_BYTES(3), "the host allocates what the kernels use");
static_assert(sizeof(struct shunt_ctrl) <= SHUNT_CTRL_BYTES, "a segment begins with the words that peers write");
