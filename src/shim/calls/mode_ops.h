/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_CALLS_MODE_OPS_H
#define SHUNT_SHIM_CALLS_MODE_OPS_H
/* What differs between the modes: a function for each operation. shim/mode.h says which tables of them there are. */
#include "shim/calls/thread.h"
#include "shim/nccl/abi.h"

struct shunt_mode_ops {
	ncclResult_t (*coll)(struct shunt_thread *thread, struct shunt_coll_call *call); /* a collective or a message */
#define MODE(name, params, args) ncclResult_t(*name) params;
#define TEXT(name, params, args) const char *(*name)params;
#include "shim/nccl/symbols.def"
};
#endif
