/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLUGIN_H
#define SHUNT_PLUGIN_H
/*
 * A user's own kernel as an algorithm. docs/plugins.md shows how to write one; shunt/kernel.h has what kernels call.
 *
 * A plug-in is registered before a communicator's first use, alike on all ranks. It runs where a rule of SHUNT_ALGO, a
 * tuning file or a selector names it, and nowhere else. Everything that decides whether it runs must be equal on all
 * ranks. A file (SHUNT_PLUGINS, shunt_plugin_load) exports `const struct shunt_plugin *const shunt_plugins_1[]`, which
 * ends in NULL.
 */
#if defined(__CUDACC_RTC__) /* which has size_t, and no headers of the C library */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

#ifndef SHUNT_API
#define SHUNT_API __attribute__((visibility("default")))
#endif
#ifdef __cplusplus
extern "C" {
#endif

#define SHUNT_PLUGIN_ABI 1u
#define SHUNT_PLUGIN_RANKS 8u
#define SHUNT_PLUGIN_EPOCHS 64u
#define SHUNT_PLUGIN_SIGNALS 64u
#define SHUNT_PLUGIN_MAX_SCRATCH (256ull << 20)
#define SHUNT_PLUGIN_MAX_BLOCKS 64u
#define SHUNT_PLUGIN_MAX_THREADS 512u
#define SHUNT_PLUGIN_MAX_PARAMS 64u
/*
 * A word of struct shunt_plugin's params: the offset of a field in struct shunt_plugin_call, of which the kernel gets
 * as many bytes as its parameter has. AFTER(k): of an array of the ranks, scratch or signals, the element of the rank
 * that is k after this one, 0 to 7.
 */
#define SHUNT_PLUGIN_PARAM(field) ((uint16_t)offsetof(struct shunt_plugin_call, field))
#define SHUNT_PLUGIN_PARAM_AFTER(k) ((uint16_t)(0x8000u | (k) << 12))

/* Of a call. */
enum {
	SHUNT_PLUGIN_IN_PLACE = 1,
	SHUNT_PLUGIN_ALIGNED = 2,          /* send, recv and bytes are multiples of 16; differs by rank */
	SHUNT_PLUGIN_CAPTURED = 4,         /* the call becomes part of a graph */
	SHUNT_PLUGIN_SCALAR_ON_DEVICE = 8, /* `scalar` is an address of the device */
};

/* Of a plug-in. */
enum {
	/*
	 * Every thread of its kernel runs shunt_k_begin() first and shunt_k_end() last, as in kernels of
	 * SHUNT_PLUGIN_KERNEL. Without it each call costs the host more.
	 */
	SHUNT_PLUGIN_COUNTED = 1,
};

/* Written by a kernel that gives up. The one that sets `set` from 0 to 1 writes the rest, then sets it to 2. */
struct shunt_plugin_fault {
	uint32_t set, peer; /* peer: UINT32_MAX if not known */
	uint64_t expected, seen;
};

/*
 * For host functions. The calls of one `enqueue` alone, with its `call` and stream. 0, or -errno, which is to be handed
 * on.
 */
struct shunt_plugin_call;
struct shunt_plugin_host {
	size_t size;
	/* Between device memory of this rank, its scratch and the peers' scratch. */
	int (*copy)(const struct shunt_plugin_call *call, void *to, const void *from, uint64_t bytes, void *stream);
	/*
	 * What comes on the stream after it sees all that the ranks' streams had before theirs. Ends early when the
	 * communicator breaks.
	 */
	int (*barrier)(const struct shunt_plugin_call *call, void *stream);
};

/* What a kernel gets: its only parameter, by value. */
struct shunt_plugin_call {
	uint32_t size, abi;
	uint32_t rank, nranks;
	uint32_t dtype, redop, root, flags; /* NCCL's numbers, redop ncclNumOps for any created one; SHUNT_PLUGIN_* */
	const void *send;
	void *recv;
	uint64_t count, bytes;             /* as NCCL's function takes it; of the message, as in rules of SHUNT_ALGO */
	uint64_t scalar;                   /* of a pre-multiplied sum: its bits in dtype */
	uint64_t op;                       /* for shunt_k_begin() */
	char *scratch[SHUNT_PLUGIN_RANKS]; /* each rank's, as mapped here; zeroed once, then the plug-in's own */
	uint64_t scratch_bytes;
	/* Each rank's words [8 sources][SHUNT_PLUGIN_SIGNALS], zeroed once. */
	uint64_t *signals[SHUNT_PLUGIN_RANKS];
	uint64_t *epoch;          /* this rank's [SHUNT_PLUGIN_EPOCHS], which its kernels count up: graphs replay */
	const uint32_t *abort;    /* not 0: return now */
	const uint64_t *limit_ns; /* longest wait for a peer; 0: none, UINT64_MAX: return now */
	struct shunt_plugin_fault *fault; /* page-locked host memory */
	uint64_t *progress;               /* for shunt_k_begin() and shunt_k_end() */
	const struct shunt_plugin_host *host;
	uint64_t reserved[6];
};

/* A call, as far as it is the same on all ranks. */
struct shunt_plugin_request {
	size_t size;
	const char *collective; /* "allreduce" */
	uint32_t dtype, redop, root, nranks, cc, max_blocks;
	uint64_t count, bytes;
};

/* What shunt/kernel.h needs of the sim. Its functions are hidden in libshunt.so, so they come as a table. */
struct shunt_sim_ops {
	size_t size;
	const uint32_t *(*self)(void); /* tid, ntid, bid, nbid of the running thread */
	uint32_t (*ballot)(int vote);
	void (*block_barrier)(void);
	void (*relax)(void);
	void (*advanced)(void);
	void (*fence)(void);
	void *(*shared)(const void *key, uint64_t bytes);
};

/*
 * Blocks: at most SHUNT_PLUGIN_MAX_BLOCKS, and as many as the GPU has room for (request->max_blocks); the launch has
 * fewer where a limit of the user's says so. Threads: a multiple of 32, at most SHUNT_PLUGIN_MAX_THREADS.
 */
struct shunt_plugin_launch {
	const char *symbol; /* in the image; NULL: the plug-in's name. The same for all calls */
	uint32_t blocks, threads, shared_bytes, cluster;
};

struct shunt_plugin {
	uint32_t size, abi;
	const char *name, *doc;  /* name: a-z, 0-9 and _, at most 31; none of Shunt's */
	const char *collectives; /* "allreduce,allgather" */
	uint64_t dtypes, redops; /* bits of NCCL's numbers; redops count for collectives that reduce */
	uint64_t min_bytes, max_bytes;
	uint64_t scratch_bytes; /* of each rank, at most SHUNT_PLUGIN_MAX_SCRATCH */
	uint32_t min_ranks, max_ranks, min_cc;
	uint32_t flags;    /* SHUNT_PLUGIN_COUNTED */
	const void *image; /* cubin, fatbin or PTX text; NULL: enqueue */
	uint64_t image_bytes;
	struct shunt_plugin_launch launch; /* of the image's kernel, for every call unless geometry is there */
	/* The kernel for the sim, made by shunt/kernel.h's SHUNT_PLUGIN_KERNEL; NULL: GPUs only. */
	void (*sim)(const struct shunt_sim_ops *sim, const struct shunt_plugin_call *call);
	/* Functions may be NULL. They may be called from any thread that calls NCCL, and must not call NCCL or wait. */
	int (*supports)(void *arg, const struct shunt_plugin_request *request); /* 1: takes the call */
	int (*geometry)(void *arg, const struct shunt_plugin_request *request, struct shunt_plugin_launch *launch);
	/* In place of a kernel. 0, or -errno, which becomes the communicator's. */
	int (*enqueue)(void *arg, const struct shunt_plugin_call *call, void *stream);
	void *arg;
	uint64_t identity;       /* of what enqueue does, the same on all ranks; part of the plug-in's hash */
	void (*drop)(void *arg); /* when no communicator has it any more */
	/*
	 * Of an image's kernel that has parameters of its own, as compilers of other languages make them: a word for
	 * each, as above. nparams 0: its only parameter is the call.
	 */
	const uint16_t *params;
	uint64_t nparams;
};

#ifndef __CUDACC_RTC__
/*
 * Copies what it is given, the image too. 0; -EINVAL: why names the field and its value; -EEXIST: the name is taken;
 * -ENOEXEC: the image is none, or does not fit the device that the process uses; -ENOMEM; of load also the errno of the
 * file. why may be NULL. Of a file that has several, those before the first error stay registered.
 */
SHUNT_API int shunt_plugin_register(const struct shunt_plugin *plugin, char *why, size_t bytes);
SHUNT_API int shunt_plugin_load(const char *path, char *why, size_t bytes);
/* -ENOENT: none has the name. Communicators and graphs that have it keep it. */
SHUNT_API int shunt_plugin_unregister(const char *name);
/*
 * Ends the functions of all plug-ins with this arg, wherever a communicator still has them: from the return on nobody
 * calls one. A call that would is an error of its communicator. For functions whose code or interpreter is about to be
 * unloaded; unregister the plug-ins first. Waits for other threads that run one. 0; -ENOENT: there is none;
 * -ETIMEDOUT: a thread has run one for ten seconds.
 */
SHUNT_API int shunt_plugin_end(void *arg);
#endif

#ifdef __cplusplus
}
#endif
#endif
