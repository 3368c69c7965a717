/* SPDX-License-Identifier: MIT */
/* The kernels of the sim by index. A listed kernel that is not built fails to link. */
#include "kernels/set.h"

#define DECLARE(shape, op, opn, type, typen) extern void SHUNT_KERNEL_NAME(shape, op, type)(const void *args);
SHUNT_KERNEL_LIST(DECLARE)
#undef DECLARE

#define ROW(shape, op, opn, type, typen) \
	[SHUNT_KERNEL(SHUNT_SHAPE_##shape, opn, typen)] = SHUNT_KERNEL_NAME(shape, op, type),
shunt_sim_kernel *const shunt_sim_kernels[SHUNT_NKERNELS] = { SHUNT_KERNEL_LIST(ROW) };
#undef ROW
