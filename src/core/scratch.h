/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_CORE_SCRATCH_H
#define SHUNT_CORE_SCRATCH_H
/*
 * Device memory that one rank allocates and ranks of the same process use at the same address. A rank may end its communicator while
 * a peer's kernel still writes its last acknowledgement there, so the memory lives until the last of them lets go. Ranks in other
 * processes have mappings of their own and are not counted. Any thread.
 */
#include "gpu/gpu_ops.h"

/* The exporter: mem goes to the registry, with one user. -ENOMEM: mem is left alone. */
int shunt_scratch_own(const struct shunt_gpu_ops *gpu, const struct shunt_gpu_mem *mem);
/* One more user. -ESTALE: its owner has let go, and nobody else had it. */
int shunt_scratch_borrow(void *ptr);
/* One user less; the last one frees the memory. False: it is not in the registry, as NULL is not. */
bool shunt_scratch_drop(void *ptr);
#endif
