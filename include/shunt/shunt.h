/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHUNT_H
#define SHUNT_SHUNT_H
/*
 * Information about Shunt. A program does not need this header to be accelerated; tools and tests use it. All functions
 * may be called from any thread at any time, and never block on a peer or a device. Functions that return an errno
 * answer -EINVAL to NULL, unless their comment says otherwise.
 *
 * A program is linked with libshunt_api.so.0 (`pkg-config --libs shunt`), whose functions hand their calls to the
 * libshunt.so that the process has loaded. If there is none, they load the file beside libshunt_api.so.0. Without
 * either, a line on stderr says so once, and functions return -ELIBACC, NULL, or in shunt_version the version of
 * libshunt_api.so.0; a function that an older libshunt.so lacks returns -ENOSYS or the same. That holds of device.h,
 * too.
 */
#include <stddef.h>
#include <stdint.h>

/* The library hides all other functions. */
#ifndef SHUNT_API
#define SHUNT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* "0.1.0". This string, like all strings that functions here return, has static storage. */
SHUNT_API const char *shunt_version(void);

/*
 * What the library was built from, and how, for people: "0.1.0 (12ef02d, 2026-11-26; gcc 12.2.0, release; CUDA 13.0:
 * sm_80 sm_90 sm_100)". The version, the commit and its day, the compiler, the kind of build, and the machine code that
 * it has for GPUs. A + behind the commit: the files differed from it.
 */
SHUNT_API const char *shunt_build(void);

/* Path of the real NCCL in use, or NULL in standalone mode or before the first NCCL call. */
SHUNT_API const char *shunt_real_nccl_path(void);

/*
 * One row of a communicator's counters: calls of one operation that took one path for one reason.
 *
 * | field  | meaning                                                  |
 * |--------|----------------------------------------------------------|
 * | op     | NCCL's name in lower case ("allreduce")                  |
 * | path   | name of an algorithm ("oneshot") or of a plan, or "nccl" |
 * | reason | why the calls went to NCCL; "" for Shunt's own           |
 * | bytes  | sum over the calls of count x element size               |
 *
 * Strings have static storage.
 */
struct shunt_counter {
	const char *op;
	const char *path;
	const char *reason;
	uint64_t calls;
	uint64_t bytes;
};

/*
 * Copies at most cap rows of the communicator's counters to rows (NULL if cap is 0), and stores the number of existing
 * rows in *count_p. comm is the program's ncclComm_t. Returns 0, or -ENOENT if Shunt does not know the communicator (or
 * it is NULL). Calls are counted when they are enqueued (a captured call once, not per replay).
 */
SHUNT_API int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p);

/*
 * The path that an operation would take on a communicator now, without running it, in *path_p; paths are those of
 * struct shunt_counter. op: as there, or all_reduce or AllReduce. count: in elements, as NCCL's function takes it.
 * dtype and redop: NCCL's values. 0; -ENOENT: unknown communicator, or NULL; -EINVAL: unknown op or dtype, or a
 * negative redop. Before the communicator's first accelerated call the answer assumes that its set-up succeeds.
 */
SHUNT_API int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p);

/*
 * Copies at most cap handles (ncclComm_t) of the communicators that the process has now to comms (NULL if cap is 0),
 * and stores how many there are in *count_p. In no order. Another thread may end one of them at any time. Those of the
 * parent of a forked child are not the child's: to all functions here they are unknown. Returns 0.
 */
SHUNT_API int shunt_comm_list(void **comms, size_t cap, size_t *count_p);

/*
 * Describes a communicator. The caller sets size to that of the struct; later versions may add fields at its end.
 *
 * | state      | meaning                                                                                   |
 * |------------|-------------------------------------------------------------------------------------------|
 * | untouched  | no call has needed Shunt's kernels yet; plans and selectors that come now still count     |
 * | ready      | Shunt's kernels run on it                                                                 |
 * | forwarding | all its calls go to the real NCCL, for the reason that stands beside it                   |
 */
struct shunt_comm_info {
	size_t size;
	int rank, nranks, device; /* -1: not known yet */
	int error;                /* 0, or the negative errno that broke it */
	const char *state;        /* static storage */
	char id[40];              /* the same on all ranks, as in the log and in dumps */
	char reason[160];
	uint64_t memory; /* bytes of device memory that it has on this rank */
	/* Of a ready communicator: taken at its first use, and fixed from then on. */
	uint64_t plans;
	int selector; /* 1: it has one */
	int hosts;    /* that its ranks are on; 0: not known yet */
	/*
	 * The provider between the hosts: "tcp", "verbs"; "": none, or the communicator is not ready. Static storage.
	 */
	const char *network;
};
/* 0; -ENOENT: comm is NULL, or Shunt does not know it; -EINVAL: size is not that of this struct. */
SHUNT_API int shunt_comm_describe(const void *comm, struct shunt_comm_info *info);

/*
 * Writes the state of all communicators of the process to a new file in dir, which is created if its parent exists, for
 * `shunt doctor dumps`; path gets its name (at most bytes, always terminated). 0, or the negative errno of the file.
 */
SHUNT_API int shunt_dump(const char *dir, char *path, size_t bytes);

/* A row of `shunt info -a`: an algorithm of one collective. All strings have static storage. */
struct shunt_algo_info {
	size_t size; /* that of the struct, set by the caller */
	const char *collective, *name, *description;
};
/* Row i, from 0. 0; -ENOENT: there are fewer; -EINVAL: as above. */
SHUNT_API int shunt_algo_at(size_t i, struct shunt_algo_info *info);

/*
 * For tools that compare algorithms: from the next call on, selection works as if SHUNT_ALGO had this value; NULL: the
 * variable's own value again. All ranks must do this at the same place among their calls; unlike the variable, the
 * value is not compared between them. 0; -EINVAL: a rule cannot be read (logged in one line), and nothing changes;
 * -ENOMEM.
 */
SHUNT_API int shunt_algo_force(const char *rules);

/*
 * Numbers of reductions that NCCL has no words for (docs/numbers.md): what elements are, and in what sums are kept. In
 * all-reduce, reduce-scatter and reduce; other collectives move bytes. A communicator has them for all its calls, an
 * operator for the calls that name it. Such calls are never NCCL's: where Shunt's kernels do not run they fail.
 */
enum shunt_accumulate {
	SHUNT_ACCUMULATE_DEFAULT, /* of a communicator: as SHUNT_ACCUMULATE says; of an operator: as its communicator */
	SHUNT_ACCUMULATE_FP32,
	SHUNT_ACCUMULATE_FP16, /* ncclFloat16 and the float8 types; a communicator's ncclBfloat16 keeps fp32 */
	SHUNT_ACCUMULATE_OWN   /* the element's type: rounded after each operation */
};
struct shunt_numerics {
	size_t size;    /* that of the struct, set by the caller */
	int e4m3b15;    /* 1: ncclUint8 means float8 with 4 bits of exponent, bias 15, and 3 of mantissa */
	int accumulate; /* enum shunt_accumulate; of 8- and 16-bit floats */
};
/*
 * Sets them for a communicator, for its calls from now on. Collective: all ranks make this call, at the same place
 * among their calls, and it waits for them; a thread that drives several ranks takes operators instead. Not in a group.
 * Children begin as all communicators do. 0; -ENOENT: unknown communicator; -EINVAL: size, a value that does not exist,
 * or on all ranks: they differ, and the log names the first that does; -EBUSY: in a group; -EOPNOTSUPP: no kernels of
 * Shunt run on the communicator; else an error that breaks the communicator. Then nothing changes.
 */
SHUNT_API int shunt_comm_numerics(const void *comm, const struct shunt_numerics *numerics);
/*
 * Makes an operator of the communicator, for calls of one type, alike on all ranks; ncclRedOpDestroy ends it. redop: 0
 * to 4, NCCL's, or one of ncclRedOpCreatePreMulSum for the type. 0; -ENOENT: unknown communicator; -EINVAL: a value
 * that does not exist, or the type has no such numbers (logged in one line); -ENOMEM.
 */
SHUNT_API int shunt_redop_create(
    const void *comm, int redop, int dtype, const struct shunt_numerics *numerics, int *redop_p);

/*
 * Execution plans. A plan is JSON text that says for each rank what its blocks do for one collective; docs/plans.md has
 * the format. A program can add its own plans to those of SHUNT_PLAN_DIR. A communicator takes the plans and the
 * selector that exist when it is first used, and keeps them: call the functions below before that, and alike on all
 * ranks. Ranks that differ use no plans, and log so.
 *
 * Functions return 0 or a negative errno: -EINVAL for a plan that is wrong, -EEXIST if the same plan exists already,
 * -EFBIG for more than 32 MiB, -ENOMEM, or the errno of reading the file. why gets one line about the error (at most
 * bytes, always terminated); it may be NULL. path, label and text may be freed afterwards.
 */
SHUNT_API int shunt_plan_register_file(const char *path, char *why, size_t bytes);
/* json: json_bytes of text, which need not end with a NUL. label: the plan's name in messages. */
SHUNT_API int shunt_plan_register(const char *label, const void *json, size_t json_bytes, char *why, size_t bytes);
/*
 * Removes all plans of this name, from any source; -ENOENT: no plan has this name. Communicators that use them continue
 * to.
 */
SHUNT_API int shunt_plan_unregister(const char *name);

/* The description of a plan. Names that are too long are cut. */
struct shunt_plan_info {
	size_t size; /* that of the struct, set by the caller */
	char name[128];
	char source[256];           /* the file or label that it came from */
	const char *collective;     /* static storage */
	int nranks, ranks_per_node; /* ranks_per_node 0: any */
	uint64_t min_bytes, max_bytes;
	uint64_t hash;   /* equal for equal plans, on all machines */
	uint32_t dtypes; /* mask of 1 << ncclDataType_t */
	int32_t priority;
	int automatic; /* 0: it runs only when a selector names it */
	int in_place;  /* 1: made for calls in place */
};
/*
 * Plan i (from 0) of the plans from which a new communicator would choose, for any number of ranks: first the program's
 * plans, then those of files. 0; -ENOENT: there are fewer; -EINVAL: size is not that of this struct.
 */
SHUNT_API int shunt_plan_at(size_t i, struct shunt_plan_info *info);
/*
 * Loads and checks a plan as registering does, without registering it. report gets a JSON object (as of `shunt plan
 * check --json`, label for the file's name), terminated, of which *needed_p is the size with the terminator. 0: the
 * plan is right; -EINVAL, -EFBIG, -ENOMEM: the plan is not right, and the report says why; -ENOBUFS: the report needs
 * more than `bytes`, and is not written.
 */
SHUNT_API int shunt_plan_verify(
    const char *label, const void *json, size_t json_bytes, char *report, size_t bytes, size_t *needed_p);

/* A call by a plan's name. The caller sets size to that of the struct. Addresses are of the device. */
struct shunt_plan_run {
	size_t size;
	const char *name;
	const void *send;
	void *recv;
	size_t send_bytes, recv_bytes; /* of the whole buffers: of an all-gather, recv is that of all ranks */
	int dtype, redop;              /* NCCL's values; redop counts if the plan reduces */
	void *stream;
};
/*
 * Runs this plan on a stream; never another plan or algorithm. Its collective may also be sendrecv, test or custom, for
 * which NCCL has no function. Not in a group. All ranks make the call, at the same place among their calls. It may wait
 * for the peers where it is the communicator's first use, or larger than any call of the plan before. Counters and
 * dumps do not include such calls. 0: enqueued; -ENOENT: the communicator is unknown, or none of its plans has the
 * name; -EINVAL: size is wrong, or the plan does not admit the type, operator or bytes; -EBUSY: in a group;
 * -EOPNOTSUPP: no kernels of Shunt run on the communicator, or some rank lacks memory for the plan; else an error that
 * breaks the communicator.
 */
SHUNT_API int shunt_plan_run(const void *comm, const struct shunt_plan_run *run);

/*
 * A selector's question. Its answer must be the same on all ranks, so it must follow from these values alone, which are
 * the same on all ranks. size is that of the struct; later versions may add fields at its end.
 */
struct shunt_plan_request {
	size_t size;
	const char *collective; /* "allreduce" */
	int nranks;
	int ranks_per_node; /* 0: different, or not known */
	uint64_t bytes;     /* of the message: the bytes that a rank sends, or for an all-gather receives */
	int dtype, redop;   /* NCCL's values; dtype 12 and more: other numbers; redop 5 and more: made by the program */
	const char *const *plans; /* names of the plans that fit, in the order of preference */
	size_t nplans;
};

/*
 * Sets the function that chooses for each call; NULL: none. It returns the name of a plan that fits, the name of an
 * algorithm as in a rule of SHUNT_ALGO ("oneshot", "twoshot@8x256"), "native" for Shunt's own choice among these,
 * "nccl" for the real NCCL (if there is one), or NULL for the choice without a selector. A communicator asks each
 * question once and remembers the answer. An answer that cannot be followed counts as NULL; the first gets a line in
 * the log. An algorithm that needs windows is taken for calls in windows only.
 *
 * The string must live until the calling thread's next call. The function may be called from any thread that calls
 * NCCL, from several at the same time, for as long as communicators live that were first used while it was set. It must
 * not call NCCL itself.
 */
SHUNT_API void shunt_plan_set_selector(
    const char *(*selector)(void *arg, const struct shunt_plan_request *request), void *arg);
/*
 * Ends a selector that was set with this argument, wherever a communicator still has it: from the return on nobody
 * calls it. Its answers remain; other calls go on without an answer. For a selector whose code or interpreter is about
 * to be unloaded; set another selector first, else later communicators begin with one that has ended. Waits for other
 * threads that run it. 0; -ENOENT: no such selector is in use; -ETIMEDOUT: a thread has run it for ten seconds.
 */
SHUNT_API int shunt_plan_end_selector(
    const char *(*selector)(void *arg, const struct shunt_plan_request *request), void *arg);
/*
 * Makes all communicators ask their selectors again, because what the answers follow from has changed. All ranks must
 * do this at the same place among their calls.
 */
SHUNT_API void shunt_plan_forget_answers(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
