/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ranges on a profiler's time line of the host (NVTX): for each call that Shunt takes, and for a group's launches, in
 * NCCL's domain and with NCCL's names. A forwarded call has its range from NCCL. There are none if no tool listens, if
 * NCCL_NVTX_DISABLE is set, or if the build found no NVTX header; a call then costs one load and one branch more.
 */
#include <stdbool.h>
#include "base/coll.h"

/* A tool listens. Set once, before shunt_mode_ops() first returns. */
extern bool shunt_nvtx_enabled;

void shunt_nvtx_init(void);
/* Only if a tool listens. Ranges of a thread nest. */
void shunt_nvtx_range_push(const struct shunt_coll *coll);
void shunt_nvtx_range_push_group(size_t calls);
void shunt_nvtx_range_pop(void);
