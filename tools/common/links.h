/* SPDX-License-Identifier: MIT */
#pragma once
/* What joins the devices that this process sees, for people. */
#include "device/gpu_ops.h"
#include "topology/claim.h"

#define TOOL_LINKS_MOST 16 /* devices */

/* All devices. Their number; -1: they cannot be asked. */
int tool_links_find(const struct shunt_gpu_ops *gpu, struct shunt_gpu_info info[TOOL_LINKS_MOST]);
/* The links of device `from`, as " 1 nvlink, 2 peer (PIX)"; *slowest_p and reason: of its slowest. */
void tool_links_show(const struct shunt_gpu_ops *gpu, const struct shunt_gpu_info *info, int n, int from, char *text,
    size_t bytes, enum shunt_link *slowest_p, char reason[SHUNT_LINK_WHY]);
