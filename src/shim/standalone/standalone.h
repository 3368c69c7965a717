/* SPDX-License-Identifier: MIT */
#pragma once
/* The library without a real NCCL: the functions of nccl.h on Shunt's own bootstrap, for the table in standalone.c. */
#include "shim/calls/mode_ops.h"
#include "shim/calls/thread.h"

extern const struct shunt_mode_ops shunt_standalone_ops;

ncclResult_t shunt_standalone_coll(struct shunt_thread *thread, struct shunt_coll_call *call);

/* NCCL's functions. */
#define MODE(name, params, args) ncclResult_t shunt_standalone_##name params;
#define TEXT(name, params, args) const char *shunt_standalone_##name params;
#include "shim/nccl/symbols.def"
