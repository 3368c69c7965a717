/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_NVTX_H
#define SHUNT_SHIM_NVTX_H
/*
 * Ranges on a profiler's time line of the host (NVTX): for each call that Shunt takes, and for the launches of a group,
 * in the domain and with the names that NCCL has for its own; a call that is forwarded has its range from there. Where
 * no tool listens, or NCCL_NVTX_DISABLE says so, or the build found no header of NVTX, there are none, and a call costs
 * a load and a branch more.
 */
#include <stdbool.h>
#include "base/coll.h"

/* Somebody listens. Set once, before shunt_mode() first says what there is. */
extern bool shunt_nvtx_enabled;

void shunt_nvtx_init(void);
/* Only where somebody listens. Ranges of a thread nest. */
void shunt_nvtx_range_push(const struct shunt_coll *coll);
void shunt_nvtx_range_push_group(size_t calls);
void shunt_nvtx_range_pop(void);
#endif
