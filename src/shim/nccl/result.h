/* SPDX-License-Identifier: MIT */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include "shim/nccl/abi.h"

extern atomic_bool shunt_real_error_is_last; /* the process's latest error came from the real library */

/* Of a call on a non-blocking communicator with work under way, which NCCL refuses: ncclInvalidArgument. */
#define SHUNT_NOT_READY "the communicator is not ready; call ncclCommGetAsyncError until it is, or abort it"

/* The only place that turns 0 / -errno into a code of NCCL. */
ncclResult_t shunt_to_nccl(int err);
