/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_CORE_GPU_H
#define SHUNT_COMM_CORE_GPU_H
#include "device/gpu_ops.h"

/* This process's device layer with our kernels, as shunt_gpu_open returns it. */
const struct shunt_gpu_ops *shunt_gpu(void);
#endif
