/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * NCCL's profiler plug-ins (NCCL_PROFILER_PLUGIN) are told of the calls that Shunt takes. The real NCCL loads the same
 * file and tells it of its own calls. Each has a context of its own in the plug-in, so no call is told twice.
 *
 * | event                    | from                   | until                                          |
 * |--------------------------|------------------------|------------------------------------------------|
 * | GroupApi                 | begin                  | end                                            |
 * | CollApi, P2pApi          | begin                  | begin: what NCCL does there is done before     |
 * | Group, KernelLaunch      | begin                  | end                                            |
 * | Coll, P2p, CeColl        | begin                  | end                                            |
 * | KernelCh                 | later, by a thread of the communicator, which has the times from events on the stream |
 *
 * Events on the stream leave the kernels as they are. Calls that share launches share their times. Calls in captures
 * have none.
 *
 * Threads: create, destroy and the calls of a group from one thread at a time for a communicator.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "algos/algo.h"
#include "base/coll.h"
#include "device/gpu_ops.h"

struct shunt_profiler;
struct shunt_profiled;

struct shunt_profiler_desc {
	const struct shunt_gpu_ops *gpu;
	int device, rank, nranks, nnodes;
	uint64_t id;      /* not that of the real NCCL: plug-ins refuse a second context with the same one */
	const char *name; /* the program's, "" if there is none */
};

/* NULL: there is no plug-in, or it wants nothing of this communicator. It is looked for once in a process. */
struct shunt_profiler *shunt_profiler_create(const struct shunt_profiler_desc *desc);
/* NULL is allowed. Waits up to wait_ms for launches that have not ended; the plug-in does not hear of later ones. */
void shunt_profiler_destroy(struct shunt_profiler *p, int wait_ms);

/* A group of calls is about to be launched on the stream. NULL: the plug-in is told nothing of it. */
struct shunt_profiled *shunt_profiler_begin(struct shunt_profiler *p, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n, bool captured, void *stream);
/* The next launches are those of these calls of the group, up to the next such call or to end. */
void shunt_profiler_launches(struct shunt_profiled *g, const struct shunt_coll *const *calls, size_t n);
/* All is launched, or a launch has failed. */
void shunt_profiler_end(struct shunt_profiled *g);
