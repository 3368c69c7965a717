/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_MODE_H
#define SHUNT_SHIM_MODE_H
/*
 * What differs between the modes: a function for each operation, and a table of them for each mode. An entry point of
 * NCCL's ABI calls the table's function, and nothing else asks for the mode.
 *
 * | table                | calls                                                            | file |
 * |----------------------|------------------------------------------------------------------|---------------------------|
 * | shunt_overlay_ops    | of a program with a real NCCL                                    | shim/overlay/overlay.c |
 * | shunt_standalone_ops | of a program without one                                         | shim/standalone/ops.c |
 * | shunt_inside_ops     | that the real NCCL makes itself, inside a call that it was given | shim/inside.c |
 *
 * The process's table is chosen once, by the first call, and never changes (shunt_real_open).
 */
#include <stdatomic.h>
#include "shim/nccl/abi.h"
#include "shim/calls/thread.h"

struct shunt_mode_ops {
	ncclResult_t (*coll)(struct shunt_thread *thread, struct shunt_coll_call *call); /* a collective or a message */
#define MODE(name, params, args) ncclResult_t(*name) params;
#define TEXT(name, params, args) const char *(*name)params;
#include "shim/nccl/symbols.def"
};

extern const struct shunt_mode_ops shunt_overlay_ops, shunt_standalone_ops, shunt_inside_ops;
extern _Atomic(const struct shunt_mode_ops *) shunt_process_ops; /* NULL before the first call; set once */

/* Looks for the real NCCL and opens it, on the first call; returns the process's table. Any thread. */
const struct shunt_mode_ops *shunt_real_open(void);

/* The table for a call that comes from the calling thread. */
static inline const struct shunt_mode_ops *shunt_mode_ops_of(const struct shunt_thread *thread)
{
	const struct shunt_mode_ops *ops = atomic_load_explicit(&shunt_process_ops, memory_order_acquire);

	if (thread->inside)
		return &shunt_inside_ops;
	return ops ? ops : shunt_real_open();
}

static inline const struct shunt_mode_ops *shunt_mode_ops(void)
{
	return shunt_mode_ops_of(shunt_thread());
}
#endif
