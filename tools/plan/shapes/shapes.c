/* SPDX-License-Identifier: MIT */
/* The table of shapes for new plans, with their sizes. */
#include "tools/plan/shapes/shapes.h"

#define ALLREDUCE \
	.collective = "all_reduce", .plan_collective = "allreduce", .reduces = true, .can_inplace = true, \
	.inplace = true
#define ALLGATHER .collective = "all_gather", .plan_collective = "allgather", .can_inplace = true
#define REDUCESCATTER \
	.collective = "reduce_scatter", .plan_collective = "reducescatter", .reduces = true, .can_inplace = true
#define ALLTOALL .collective = "all_to_all", .plan_collective = "alltoall"
#define ONESHOT .name = "oneshot-ll", .ll = true
#define PIPELINED .name = "pipelined", .pipelined = true, .max_bytes = UINT64_MAX
#define RING .name = "ring", .roles = 1, .blocks = 16, .max_bytes = UINT64_MAX, .priority = -1
#define HIERARCHICAL \
	.name = "hierarchical", .over_hosts = true, .roles = 1, .blocks = 4, .min_bytes = HOSTS_SMALL + 1, \
	.max_bytes = HOSTS_LARGE
#define HIERARCHICAL_LL .name = "hierarchical-ll", .over_hosts = true, .ll = true, .blocks = 2, .max_bytes = HOSTS_SMALL
#define HOSTS_SMALL (16 << 10)
#define HOSTS_LARGE (2 << 20)
#define SMALL (16 << 10)
#define MIDDLE (1 << 20)

const struct plan_shape plan_shapes[] = {
	{ ALLREDUCE, ONESHOT, .blocks = 16, .max_bytes = SMALL, .write = plan_shape_allreduce_oneshot,
	    .summary = "everybody sends all to all and reduces everything; packets" },
	{ ALLREDUCE, .name = "twoshot-ll", .ll = true, .blocks = 64, .min_bytes = SMALL + 1, .max_bytes = MIDDLE,
	    .write = plan_shape_allreduce_twoshot,
	    .summary = "each rank reduces one part and sends the result to all; packets" },
	{ ALLREDUCE, PIPELINED, .roles = 3, .blocks = 48, .min_bytes = MIDDLE + 1,
	    .write = plan_shape_allreduce_pipelined,
	    .summary = "the same in windows: send, reduce and collect at the same time" },
	{ ALLREDUCE, RING, .min_bytes = MIDDLE + 1, .write = plan_shape_allreduce_ring,
	    .summary = "parts go around twice, from neighbour to neighbour" },
	{ ALLGATHER, ONESHOT, .blocks = 64, .max_bytes = MIDDLE, .write = plan_shape_allgather_oneshot,
	    .summary = "everybody sends to all; packets" },
	{ ALLGATHER, PIPELINED, .roles = 2, .blocks = 32, .min_bytes = MIDDLE + 1,
	    .write = plan_shape_allgather_pipelined,
	    .summary = "the same in windows: send and copy out at the same time" },
	{ ALLGATHER, RING, .min_bytes = MIDDLE + 1, .write = plan_shape_allgather_ring,
	    .summary = "parts go around once" },
	{ REDUCESCATTER, ONESHOT, .blocks = 64, .max_bytes = MIDDLE, .write = plan_shape_reducescatter_oneshot,
	    .summary = "everybody sends each its part; packets" },
	{ REDUCESCATTER, PIPELINED, .roles = 2, .blocks = 32, .min_bytes = MIDDLE + 1,
	    .write = plan_shape_reducescatter_pipelined,
	    .summary = "the same in windows: send and reduce at the same time" },
	{ REDUCESCATTER, RING, .min_bytes = MIDDLE + 1, .write = plan_shape_reducescatter_ring,
	    .summary = "parts go around once and are added to" },
	{ ALLTOALL, ONESHOT, .blocks = 64, .max_bytes = MIDDLE, .write = plan_shape_alltoall_oneshot,
	    .summary = "everybody sends each its part; packets" },
	{ ALLTOALL, PIPELINED, .roles = 2, .blocks = 32, .min_bytes = MIDDLE + 1,
	    .write = plan_shape_alltoall_pipelined,
	    .summary = "the same in windows: send and copy out at the same time" },
	{ ALLREDUCE, HIERARCHICAL, .write = plan_shape_allreduce_hosts,
	    .summary = "sums of each host's ranks, then of the hosts, then to all of a host; a port per part" },
	{ ALLREDUCE, HIERARCHICAL_LL, .write = plan_shape_allreduce_hosts_ll, .summary = "the same; packets" },
	{ ALLGATHER, HIERARCHICAL, .write = plan_shape_allgather_hosts,
	    .summary = "each block crosses to a host once, and is passed on there" },
	{ ALLGATHER, HIERARCHICAL_LL, .write = plan_shape_allgather_hosts_ll, .summary = "the same; packets" },
	{ REDUCESCATTER, HIERARCHICAL, .write = plan_shape_reducescatter_hosts,
	    .summary = "sums of each host's ranks go to the rank's host, which adds them up" },
	{ REDUCESCATTER, HIERARCHICAL_LL, .write = plan_shape_reducescatter_hosts_ll, .summary = "the same; packets" },
	{ 0 },
};
