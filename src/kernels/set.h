/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_SET_H
#define SHUNT_KERNELS_SET_H
/* All kernels of this build, for the device layer. Indices are those of kernel_list.h. */
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
#endif
