/* SPDX-License-Identifier: MIT */
/* For tests of the CUDA layer: the set of kernels without those of the sim. */
#include "kernels/set.h"

shunt_sim_kernel *const shunt_sim_kernels[SHUNT_NKERNELS];
