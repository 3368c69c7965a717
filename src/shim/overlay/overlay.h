/* SPDX-License-Identifier: MIT */
#pragma once
/* The library with a real NCCL: the functions of nccl.h that Shunt has a part in, for the table in overlay.c. */
#include "shim/calls/mode_ops.h"
#include "shim/calls/thread.h"

extern const struct shunt_mode_ops shunt_overlay_ops;
/* The same with marks behind calls of the real NCCL (marked.c). To be called once, by the first call. */
const struct shunt_mode_ops *shunt_overlay_marked(void);

ncclResult_t shunt_overlay_coll(struct shunt_thread *thread, struct shunt_coll_call *call);

/* NCCL's functions that Shunt has a part in. */
#define MODE(name, params, args) ncclResult_t shunt_overlay_##name params;
#define TEXT(name, params, args) const char *shunt_overlay_##name params;
#include "shim/nccl/symbols.def"
