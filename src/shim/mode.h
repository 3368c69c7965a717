/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The mode of the process, as a table of operations. An entry point of NCCL's ABI calls the table's function.
 *
 * | table                | calls                                    | file                         |
 * |----------------------|------------------------------------------|------------------------------|
 * | shunt_overlay_ops    | of a program with a real NCCL            | shim/overlay/overlay.c       |
 * | shunt_standalone_ops | of a program without a real NCCL         | shim/standalone/standalone.c |
 * | shunt_inside_ops     | of the real NCCL, inside a call to it    | shim/inside.c                |
 *
 * The process's table is chosen once, by the first call, and never changes.
 */
#include <stdatomic.h>
#include "shim/calls/mode_ops.h"
#include "shim/calls/thread.h"

extern const struct shunt_mode_ops shunt_inside_ops;
extern _Atomic(const struct shunt_mode_ops *) shunt_process_ops; /* NULL before the first call; set once */

/* Looks for the real NCCL and opens it, on the first call; returns the process's table. Any thread. */
const struct shunt_mode_ops *shunt_mode_choose(void);

/* The table for a call that comes from the calling thread. */
static inline const struct shunt_mode_ops *shunt_mode_ops_of(const struct shunt_thread *thread)
{
	const struct shunt_mode_ops *ops = atomic_load_explicit(&shunt_process_ops, memory_order_acquire);

	if (thread->inside)
		return &shunt_inside_ops;
	return ops ? ops : shunt_mode_choose();
}

static inline const struct shunt_mode_ops *shunt_mode_ops(void)
{
	return shunt_mode_ops_of(shunt_thread());
}

/*
 * To stand after the definition of pncclX: exports ncclX, weak as in NCCL, so that tools can replace it and call
 * pncclX.
 */
#define SHUNT_WEAK_ALIAS(name) extern __typeof__(pnccl##name) nccl##name __attribute__((weak, alias("pnccl" #name)))
