/* SPDX-License-Identifier: MIT */
#pragma once
#include "shunt/plugin.h"

/* A plug-in for sums of float32 that lacks only its kernel. */
static inline struct shunt_plugin plugin_table(const char *name)
{
	return (struct shunt_plugin){ .size = sizeof(struct shunt_plugin),
		.abi = SHUNT_PLUGIN_ABI,
		.name = name,
		.collectives = "allreduce",
		.dtypes = 1u << 7, /* float32 */
		.redops = 1,       /* sum */
		.max_bytes = 1 << 20,
		.min_ranks = 2,
		.max_ranks = 8,
		.launch = { .blocks = 1, .threads = 64 } };
}
