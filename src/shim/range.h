/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_RANGE_H
#define SHUNT_SHIM_RANGE_H
/*
 * Ranges on a profiler's time line of the host (NVTX): for each call that Shunt takes, and for the launches of a group,
 * in the domain and with the names that NCCL has for its own; a call that is forwarded has its range from there. Where
 * no tool listens, or NCCL_NVTX_DISABLE says so, or the build found no header of NVTX, there are none, and a call costs
 * a load and a branch more.
 */
#include <stdbool.h>
#include "core/coll.h"

/* Somebody listens. Set once, before shunt_mode() first says what there is. */
extern bool shunt_ranges;

void shunt_range_init(void);
/* Only where somebody listens. Ranges of a thread nest. */
void shunt_range_begin(const struct shunt_coll *coll);
void shunt_range_begin_group(size_t calls);
void shunt_range_end(void);
#endif
