/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ranks that are threads of one process and share a GPU have one CUDA context, and CUDA does not promise that their
 * kernels progress at the same time. A block that waits keeps its multiprocessor from the blocks for which it waits. A
 * call that frees memory waits for all kernels of the context, and holds a lock that every launch needs.
 * tests/gpu/one_context.cu shows both. One communicator with one launch under way is safe. So such ranks have a device
 * for one communicator at a time, unless SHUNT_MULTI_RANK_GPU=2. Ranks that are processes take turns on the GPU, and
 * need none of this.
 */
#include <stdbool.h>

struct shunt_comm;

/* Takes the device for the communicator. False: ranks of another communicator have it. Any thread. */
bool shunt_shared_gpu_take(struct shunt_comm *comm);
/* The communicator's kernels have ended. Does nothing if it has not taken the device. */
void shunt_shared_gpu_release(struct shunt_comm *comm);
