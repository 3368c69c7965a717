/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * For symm.c: memory that one rank allocates and that ranks of the same process use at the same address. A rank
 * may destroy its communicator while a peer's kernel still writes its last acknowledgement there, so the last user
 * frees the memory. Ranks in other processes have their own mappings and are not counted. Any thread.
 */
#include "device/gpu_ops.h"

/*
 * Allocates memory by gpu->share_alloc, on the host by shunt_host_memory_create, and registers it with one user. 0 or
 * -errno.
 */
int shunt_shared_alloc(
    const struct shunt_gpu_ops *gpu, int device, bool on_host, size_t bytes, struct shunt_gpu_mem *mem_p);
/*
 * Closes the exporter's descriptor of the memory, in the registry as well. To be called when all receivers have the
 * descriptor.
 */
void shunt_shared_close_fd(struct shunt_gpu_mem *mem);
/* Adds a user, on this device. ptr and bytes are the owner's. -ESTALE: the last user has already freed the memory. */
int shunt_shared_borrow(
    const struct shunt_gpu_ops *gpu, int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
/* Removes a user; the last one frees the memory. A mapping from share_map is unmapped. mem may be empty. */
void shunt_shared_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem);
