/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHUNT_H
#define SHUNT_SHUNT_H
/*
 * What Shunt tells about itself. A program does not need this header to be accelerated; tools and tests use it.
 * All functions may be called from any thread at any time and never block on a peer or a device.
 */
#include <stddef.h>
#include <stdint.h>

/* The library hides everything that is not marked. */
#ifndef SHUNT_API
#define SHUNT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* "0.1.0". Static storage. */
SHUNT_API const char *shunt_version(void);

/* Path of the real NCCL in use, or NULL in standalone mode or before the first NCCL call. Static storage. */
SHUNT_API const char *shunt_real_nccl_path(void);

/*
 * One row of a communicator's counters: calls of one operation that took one path for one reason.
 * op: NCCL's name in lower case ("allreduce"); path: kernel name ("oneshot") or "nccl"; reason: why it went to NCCL, "" for
 * ours. Strings have static storage. bytes: sum over the calls of count x element size.
 */
struct shunt_counter {
	const char *op;
	const char *path;
	const char *reason;
	uint64_t calls;
	uint64_t bytes;
};

/*
 * Copies at most cap rows of the communicator's counters to rows and stores the number of rows that exist in *count_p.
 * comm is the program's ncclComm_t. Returns 0, or -ENOENT if Shunt does not know the communicator.
 * Calls count when they are enqueued (a captured call counts once, not per replay).
 */
SHUNT_API int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p);

/*
 * The path that an operation would take on a communicator now, without running it: the kernel's name or "nccl".
 * op as above; dtype and redop are NCCL's values. -ENOENT: unknown communicator, -EINVAL: unknown op.
 * Before the communicator's first accelerated call the answer assumes that its set-up succeeds.
 */
SHUNT_API int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
