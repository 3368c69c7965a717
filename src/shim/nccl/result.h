/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_NCCL_RESULT_H
#define SHUNT_SHIM_NCCL_RESULT_H
#include "shim/nccl/abi.h"

/* The only place that turns 0 / -errno into a code of NCCL. */
ncclResult_t shunt_to_nccl(int err);
#endif
