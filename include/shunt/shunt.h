/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHUNT_H
#define SHUNT_SHUNT_H
/*
 * What Shunt tells about itself. A program does not need this header to be accelerated; tools and tests use it.
 * All functions may be called from any thread at any time and never block on a peer or a device. Where nothing is said
 * of NULL, those that return an errno answer -EINVAL to it.
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

/* "0.1.0". Static storage, as of all strings that functions here return. */
SHUNT_API const char *shunt_version(void);

/* Path of the real NCCL in use, or NULL in standalone mode or before the first NCCL call. */
SHUNT_API const char *shunt_real_nccl_path(void);

/*
 * One row of a communicator's counters: calls of one operation that took one path for one reason.
 * op: NCCL's name in lower case ("allreduce"); path: name of an algorithm ("oneshot") or of a plan, or "nccl"; reason:
 * why it went to NCCL, "" for ours. Strings have static storage. bytes: sum over the calls of count x element size.
 */
struct shunt_counter {
	const char *op;
	const char *path;
	const char *reason;
	uint64_t calls;
	uint64_t bytes;
};

/*
 * Copies at most cap rows of the communicator's counters to rows (NULL if cap is 0) and stores the number of rows that
 * exist in *count_p. comm is the program's ncclComm_t. Returns 0, or -ENOENT if Shunt does not know the communicator
 * (or it is NULL). Calls count when they are enqueued (a captured call counts once, not per replay).
 */
SHUNT_API int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p);

/*
 * The path that an operation would take on a communicator now, without running it: as path above, in *path_p.
 * op as above, or all_reduce or AllReduce; count: in elements, as NCCL's function takes it; dtype and redop are NCCL's
 * values. 0; -ENOENT: unknown communicator, or NULL; -EINVAL: unknown op or dtype, or a negative redop. Before the
 * communicator's first accelerated call the answer assumes that its set-up succeeds.
 */
SHUNT_API int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p);

/*
 * For tools that compare algorithms: from the next call on as if SHUNT_ALGO had this value; NULL: its own value again.
 * All ranks must do it at the same place among their calls; unlike the variable it is not compared between them. 0;
 * -EINVAL: a rule cannot be read, which is said in one line, and nothing changes; -ENOMEM.
 */
SHUNT_API int shunt_algo_force(const char *rules);

/*
 * Execution plans. A plan is JSON text that says for each rank what its blocks do for one collective; docs/plans.md has
 * the format. Besides those of SHUNT_PLAN_DIR a program can bring its own. A communicator takes the plans and the
 * selector that there are when it is first used, and keeps them: do all of the below before that, and alike on all
 * ranks. Ranks that differ use no plans, and say so.
 *
 * Functions return 0 or a negative errno: -EINVAL for a plan that is wrong, -EEXIST if the same plan is there already,
 * -EFBIG for more than 32 MiB, -ENOMEM, or why the file cannot be read. why gets one line about what is wrong (at most
 * bytes, always terminated); NULL if that is not wanted. Of path, label and text nothing is needed afterwards.
 */
SHUNT_API int shunt_plan_register_file(const char *path, char *why, size_t bytes);
/* json: json_bytes of text, which need no NUL at the end. label: what messages call it. */
SHUNT_API int shunt_plan_register(const char *label, const void *json, size_t json_bytes, char *why, size_t bytes);
/*
 * Takes away all plans of this name, wherever they came from; -ENOENT: there is none. Communicators that use them go on
 * to.
 */
SHUNT_API int shunt_plan_unregister(const char *name);

/*
 * What a selector is asked. It must answer alike on all ranks: from these values, which are the same everywhere, and
 * nothing else. size is that of the struct; later versions may add fields at its end.
 */
struct shunt_plan_request {
	size_t size;
	const char *collective; /* "allreduce" */
	int nranks;
	int ranks_per_node;       /* 0: not equal or not known */
	uint64_t bytes;           /* of the message: what a rank sends, or for an all-gather receives */
	int dtype, redop;         /* NCCL's values; 5 and more for redop: an operator of the program's */
	const char *const *plans; /* names of the plans that fit, in the order in which they would be tried */
	size_t nplans;
};

/*
 * Sets the function that chooses for each call, NULL for none. It returns the name of a plan that fits, "native" for
 * Shunt's own kernels, "nccl" for the real NCCL (where there is one), or NULL for what would be done without it; the
 * string must live until the calling thread's next call. It may be called from any thread that calls NCCL, at the same
 * time from several, for as long as communicators live that were first used while it was set, and must not call NCCL
 * itself.
 */
SHUNT_API void shunt_plan_set_selector(
    const char *(*selector)(void *arg, const struct shunt_plan_request *request), void *arg);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
