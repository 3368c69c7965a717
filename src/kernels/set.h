/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_SET_H
#define SHUNT_KERNELS_SET_H
/* All of this build's kernels, for the device layer: indices are those of kernel_list.h. */
#include "device/kernel_set.h"
#include "kernels/kernel_list.h"

#ifdef __cplusplus
extern "C" {
#endif
extern const struct shunt_kernel_set shunt_kernels;
/* Its part for the sim (sim_kernels.c). */
extern shunt_sim_kernel *const shunt_sim_kernels[SHUNT_NKERNELS];
#ifdef __cplusplus
}
#endif
#endif
