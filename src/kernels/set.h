/* SPDX-License-Identifier: MIT */
#pragma once
/* All kernels of this build, for the device layer. Indices are those of kernel_list.h. */
#include "device/gpu_ops.h"
#include "device/kernel_set.h"
#include "kernels/kernel_list.h"

#ifdef __cplusplus
extern "C" {
#endif
extern const struct shunt_kernel_set shunt_kernels;
/* The kernels of the sim (sim_kernels.c). */
extern shunt_sim_kernel *const shunt_sim_kernels[SHUNT_NKERNELS];
#ifdef __cplusplus
}
#endif

/* This process's device layer with these kernels, as shunt_gpu_open returns it. */
static inline const struct shunt_gpu_ops *shunt_gpu(void) { return shunt_gpu_open(&shunt_kernels); }
