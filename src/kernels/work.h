/* SPDX-License-Identifier: MIT */
#pragma once
/* One launch, as it is handed from layer to layer. For the host alone. */
#include <stdbool.h>
#include "kernels/ep.h"
#include "kernels/kargs.h"
#include "kernels/net_rings.h"

/* Complete except for the stream. */
struct shunt_work {
	unsigned kernel, blocks, threads; /* blocks: without the block that SHUNT_CHECK adds */
	unsigned cluster;                 /* blocks of a cluster; 0: no clusters */
	unsigned shared;                  /* bytes of shared memory in addition to the kernel's own */
	/*
	 * The kernel keeps no account of its warps (kernels/progress.h): the account of the kernel before it counts for
	 * both.
	 */
	bool uncounted;
	union {
		struct shunt_kargs k; /* the others begin with it */
		struct shunt_kargs_few few;
		struct shunt_kargs_many many;
		struct shunt_kargs_barrier barrier;
		struct shunt_kargs_direct direct;
		struct shunt_kargs_plan plan;
		struct shunt_kargs_net_few net_few;
		struct shunt_kargs_net_many net_many;
		struct shunt_kargs_ep_ll ep_ll;
		struct shunt_kargs_ep_hosts ep_hosts; /* begins with it */
		struct shunt_kargs_ep ep;
		struct shunt_kargs_ep_far ep_far; /* begins with it */
	} args;
};
