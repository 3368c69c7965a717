/* SPDX-License-Identifier: MIT */
#include "kernels/staged.h"
/* Built for shared memory. */
#include "kernels/barrier.cu"
