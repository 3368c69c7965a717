/* SPDX-License-Identifier: MIT */
#pragma once
#include "shim/calls/coll_call.h"

/*
 * Makes the same call of the real NCCL; its result. NCCL before 2.31 gets the call without a configuration of only
 * hints.
 */
ncclResult_t shunt_forward(const struct shunt_coll_call *call);
