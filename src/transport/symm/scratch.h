/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_SYMM_SCRATCH_H
#define SHUNT_TRANSPORT_SYMM_SCRATCH_H
/*
 * Device memory that one rank allocates and ranks of the same process use at the same address. A rank may end its
 * communicator while a peer's kernel still writes its last acknowledgement there, so the memory lives until the last of
 * them lets go. Ranks in other processes have mappings of their own and are not counted. Any thread.
 */
#include "device/gpu_ops.h"

/* Such memory, as gpu->share_alloc gives it, with one user. */
int shunt_scratch_alloc(const struct shunt_gpu_ops *gpu, int device, size_t bytes, struct shunt_gpu_mem *mem_p);
/*
 * Who is to have the descriptor of the exporter's memory has it, as he does when it was sent: closes it, in the
 * registry or not.
 */
void shunt_scratch_close_fd(struct shunt_gpu_mem *mem);
/*
 * One more user, on this device. ptr and bytes are the owner's. -ESTALE: that one has let go, and nobody else had it.
 */
int shunt_scratch_borrow(
    const struct shunt_gpu_ops *gpu, int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
/*
 * One user less, of whom the last one frees the memory; or what share_map gave is unmapped. No harm if mem has nothing.
 */
void shunt_scratch_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem);
#endif
