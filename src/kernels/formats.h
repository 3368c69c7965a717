/* SPDX-License-Identifier: MIT */
#pragma once
/* The kernels of formats (base/dtypes.def, kernels/any.h), and what a launch tells them. */
#include "base/coll.h"
#include "kernels/kernel_list.h"

/* The type of the kernel: in SHUNT_KERNEL. */
static inline unsigned shunt_kernel_type(enum shunt_dtype dtype)
{
	return !shunt_dtype_is_format(dtype) ? (unsigned)dtype :
	    shunt_dtype_bytes[dtype] == 1    ? SHUNT_KTYPE_ANY8 :
	                                       SHUNT_KTYPE_ANY16;
}

/* Of kargs.flags; 0 for NCCL's types. The operator is not among them: plans have their own. */
static inline uint32_t shunt_format_flags(enum shunt_dtype dtype)
{
	const struct shunt_dtype_row *row = &shunt_dtype_rows[dtype];

	return shunt_dtype_is_format(dtype) ? row->element * SHUNT_K_ELEMENT + row->accumulator * SHUNT_K_ACCUMULATOR :
	                                      0;
}
