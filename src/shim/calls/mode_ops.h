/* SPDX-License-Identifier: MIT */
#pragma once
/* The operations that differ between the modes, a function for each. shim/mode.h lists the tables. */
#include "shim/calls/thread.h"
#include "shim/nccl/abi.h"

struct shunt_mode_ops {
	ncclResult_t (*coll)(struct shunt_thread *thread, struct shunt_coll_call *call); /* a collective or a message */
#define MODE(name, params, args) ncclResult_t(*name) params;
#define TEXT(name, params, args) const char *(*name)params;
#include "shim/nccl/symbols.def"
};
