/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Page-locked memory of the host that processes map of each other, by a descriptor: it has no name, needs no mount such
 * as /dev/shm, and ends with its last mapping. In struct shunt_gpu_mem: ptr is the address for kernels of every device,
 * host the CPU's, fd the creator's descriptor. Any thread.
 */
#include "device/gpu_ops.h"

/*
 * Creates zeroed memory, all of which is there: -ENOMEM or -ENOSPC where the container has no room. device: of the rank
 * that it belongs to, or -1; part of the memory's name in /proc/self/maps. The memory is on the NUMA node of the
 * device, if that is known.
 */
int shunt_host_memory_create(const struct shunt_gpu_ops *gpu, int device, size_t bytes, struct shunt_gpu_mem *mem_p);
/* Maps it in another process, or once more. The caller keeps fd. */
int shunt_host_memory_map(const struct shunt_gpu_ops *gpu, int fd, size_t bytes, struct shunt_gpu_mem *mem_p);
/* Unmaps it, and closes its descriptor. mem may be empty, and is then. */
void shunt_host_memory_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem);
