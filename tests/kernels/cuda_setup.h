/* SPDX-License-Identifier: MIT */
/* The CUDA device layer over a driver that needs no GPU (fake_cuda): what its tests share. */
#pragma once
#include "tests/support/test.h"
#include "device/cuda/dev.h"
#include "device/gpu_ops.h"
#include "kernels/fatbin.h"
#include "kernels/kargs.h"
#include "kernels/set.h"
#include "tests/device/mock_base.h"
#include "tests/support/fake_cuda/fake_cuda.h"

enum {
	NKERNELS_LISTED = 0
#define ONE(shape, op, opn, type, typen) +1
	SHUNT_KERNEL_LIST(ONE)
#undef ONE
};

static const struct shunt_gpu_ops *const ops = &shunt_gpu_cuda_ops;
enum {
	F32_SUM = SHUNT_KERNEL(SHUNT_SHAPE_twoshot8, SHUNT_KOP_SUM, 7),
	I8_SUM = SHUNT_KERNEL(SHUNT_SHAPE_twoshot8, SHUNT_KOP_SUM, 0), /* not in the list */
};

/* Opens the layer; group set-up. */
int cuda_setup(void **state);

/* A driver that does nothing unusual; test set-up. */
int cuda_each_setup(void **state);

/* Runs fn in a process of its own, where the layer is not open yet if the test was started so. Returns its result. */
int cuda_in_child(int (*fn)(long), long arg);

void cuda_count_drop(void *arg);
