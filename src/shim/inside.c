/* SPDX-License-Identifier: MIT */
/* Calls that the real NCCL makes itself: it gets them back as they are. */
#include "shim/mode.h"
#include "shim/real/real.h"
#include "shim/real/forward.h"

static ncclResult_t forward(struct shunt_thread *thread, struct shunt_coll_call *call)
{
	return shunt_forward(call);
}

const struct shunt_mode_ops shunt_inside_ops = {
	.coll = forward,
#define MODE(name, params, args) .name = real_##name,
#define TEXT(name, params, args) .name = real_##name,
#include "shim/nccl/symbols.def"
};
