/* SPDX-License-Identifier: MIT */
#include "comm/core/gpu.h"

#include "kernels/set.h"

const struct shunt_gpu_ops *shunt_gpu(void)
{
	return shunt_gpu_open(&shunt_kernels);
}
