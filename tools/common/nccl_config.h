/* SPDX-License-Identifier: MIT */
#pragma once
/* Configurations that leave everything, or all else, to the library. */
#include <stddef.h>
#include <string.h>
#include "shim/nccl/abi.h"

static inline ncclConfig_t nccl_config_unset(void)
{
	ncclConfig_t c;

	memset(&c, 0, sizeof(c));
	for (size_t at = offsetof(ncclConfig_t, blocking); at < sizeof(c); at += 4)
		memcpy((char *)&c + at, &(int){ NCCL_CONFIG_UNDEF_INT }, 4);
	c.size = sizeof(c);
	c.magic = SHUNT_NCCL_CONFIG_MAGIC;
	c.version = 23200;
	c.netName = c.commName = NULL;
	return c;
}

static inline ncclConfig_t nccl_config_nonblocking(void)
{
	ncclConfig_t c = nccl_config_unset();

	c.blocking = 0;
	return c;
}

/* Of one call. */
static inline ncclCollConfig_t nccl_coll_config_unset(void)
{
	return (ncclCollConfig_t){ .size = sizeof(ncclCollConfig_t),
		.magic = SHUNT_NCCL_CONFIG_MAGIC,
		.version = 23200,
		.minCTAs = NCCL_CONFIG_UNDEF_INT,
		.maxCTAs = NCCL_CONFIG_UNDEF_INT,
		.nvlsCTAs = NCCL_CONFIG_UNDEF_INT,
		.cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
		.forceAlgSelection = 1,
		.CTAPolicy = NCCL_CONFIG_UNDEF_INT };
}
