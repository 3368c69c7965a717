/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_ALGOS_ALGO_H
#define SHUNT_ALGOS_ALGO_H
/*
 * Algorithms as rows, and their selection. Selection is a pure function of values that are equal on all ranks: the
 * selection key below (agreed when a communicator is set up), the kind of collective, type, operator and size. Never of
 * pointers, alignment or stream.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "kernels/kargs.h"
#include "kernels/kernel_list.h"

/* What selection may look at beside the call. Equal on all ranks. */
struct shunt_sel_key {
	int nranks;
	int min_ctas, max_ctas; /* 0: no limit */
	bool sim;
	bool standalone;    /* nothing to forward to: no size is declined */
	bool deterministic; /* SHUNT_DETERMINISTIC: the same for what reduces, which no plan takes either */
	uint16_t
	    cc; /* compute capability x 10, the smallest of the ranks'; 0: not known before the set-up, or the sim */
	const struct shunt_tuning *tuning; /* a file's table that all ranks have, or the built-in one; NULL: to be
	                                      looked up (algos/select/tuning.h) */
	uint32_t sms; /* multiprocessors, the fewest of the ranks'; 0: not known before the set-up, or the sim */
	bool tma;     /* all ranks' kernels can send chunks by TMA */
	bool no_sms;  /* copies are to leave the SMs alone, at any size: a communicator's CTAPolicy */
	bool symmem;  /* of one call: its buffers lie in a window that all ranks have mapped, or that they may yet agree
	                 on */
	uint16_t max_threads, max_channels; /* while a call is issued: of its decision's geometry */
};

/* Of two limits, of which 0 is none. */
static inline int shunt_limit_min(int a, int b)
{
	return !a || (b && b < a) ? b : a;
}

/* Blocks of each of so many launches that are to find room on a GPU at once, with one beside them for SHUNT_CHECK's. */
unsigned shunt_grid_coresident_blocks(uint32_t sms, unsigned launches);

/*
 * Limits on a launch, from the row that chose the algorithm; 0: the algorithm's own. Not for point-to-point, see
 * enqueue.c.
 */
struct shunt_geometry {
	uint16_t blocks, threads; /* threads of a block */
	uint16_t channels;        /* p2p: of a pair of ranks and a direction */
};

/* What selection says about a call. */
struct shunt_decision {
	const struct shunt_algo *algo;
	struct shunt_geometry geometry;
	unsigned kernel; /* index of kernel_list.h, for one call */
	uint32_t flags;  /* SHUNT_K_* that follow from type and operator */
	uint64_t scalar; /* the factor, if it follows from type and operator */
	void *plan;      /* of shunt_plan_algo: what the communicator has on the device for it */
};

/* One launch, complete but for the stream. */
struct shunt_work {
	unsigned kernel, blocks, threads;
	unsigned cluster; /* blocks that are to be near each other; 0: any */
	unsigned shared;  /* bytes of shared memory beside a kernel's own */
	union {
		struct shunt_kargs k; /* all begin with it */
		struct shunt_kargs_few few;
		struct shunt_kargs_many many;
		struct shunt_kargs_barrier barrier;
		struct shunt_kargs_direct direct;
	} args;
};

/*
 * Bytes that a copy engine moves. The peer's address is given as the one of ours that lies at the same place of the
 * same window: `to`, or `from` if this rank gets. peer may be this rank: then both are its own.
 */
struct shunt_copy {
	int peer;
	bool is_get;
	void *to;
	const void *from;
	uint64_t bytes;
};

/* Where the launches of a rank's calls go. */
struct shunt_enqueue_ctx {
	const struct shunt_sel_key *sel_key;
	const struct shunt_kargs *base; /* what is the same for every launch: peers, rank, nranks */
	int (*emit)(void *ctx, const struct shunt_work *work);
	/*
	 * Copies follow what was emitted before them, and what is emitted next follows them; they do not follow each
	 * other. NULL: no windows.
	 */
	int (*copy)(void *ctx, const struct shunt_copy *copy);
	/* Which window an address lies in, and where: the same number on all ranks. 0: in none. */
	uint64_t (*offset)(void *ctx, const void *ptr);
	/* Where peer has what we have at ptr, for kernels to use; NULL: it lies in no window. */
	void *(*peer_ptr)(void *ctx, const void *ptr, uint64_t bytes, int peer);
	int (*run_plan)(void *ctx, void *plan, const struct shunt_coll *coll); /* NULL: there are none */
	bool check; /* messages are to be compared; for collectives base says so, until emit has launched the first of a
	               group */
	void *ctx;
};

/* Which calls of a group may share launches: those with one answer, and one type and operator where they reduce. */
enum shunt_fuse {
	SHUNT_FUSE_NONE,
	SHUNT_FUSE_LL128,
	SHUNT_FUSE_COPY,
	SHUNT_FUSE_REDUCE,
	SHUNT_FUSE_SYMMEM /* only for calls whose buffers lie in windows; one barrier serves all */
};

/* Among how many ranks an algorithm is one of its own; elsewhere its calls are another one's launches. */
enum shunt_among { SHUNT_AMONG_ANY, SHUNT_AMONG_TWO, SHUNT_AMONG_MORE };

struct shunt_algo {
	const char *name;
	const char *doc;
	enum shunt_kind kind;
	enum shunt_fuse fuse;
	enum shunt_shape shapes[3]; /* for 2, up to 4 and up to 8 ranks */
	enum shunt_shape few[3];    /* SHUNT_FUSE_LL128: the same for several messages, of hot types */
	/* Blocks and threads for a message of this size, within SHUNT_MAX_THREADS and the channels of the shape. */
	void (*geometry)(const struct shunt_sel_key *sel_key, uint64_t bytes, struct shunt_work *work);
	/*
	 * Emits the launches of calls that fuse, each with its decision; the first's speaks for all but where their
	 * algorithms differ. -errno: what emit said, or -ENOMEM.
	 */
	int (*enqueue)(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
	    const struct shunt_coll *const *calls, size_t ncalls);
	uint64_t proto; /* p2p.c: SHUNT_MESSAGE_SIMPLE or 0 */
	/*
	 * ... emits a call by itself, among more than 2 ranks, if no other of those that fuse has such a function;
	 * NULL: there is none.
	 */
	int (*single)(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
	    const struct shunt_coll *coll);
	enum shunt_among among;
};

/*
 * Emits the launches of a group's calls on one communicator. Calls of one kind share launches as far as they fuse;
 * point-to-point comes last. Which launches there are, and in what order, follows from values that all ranks share, so
 * that no two ranks wait for each other crosswise. -EBADMSG: sends to this rank itself and receives from it do not pair
 * up; nothing was emitted then.
 */
int shunt_enqueue_calls(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n);

/* The kernel of an algorithm; dtype may be a signed integer. */
unsigned shunt_algo_kernel(
    const struct shunt_algo *algo, enum shunt_kind kind, int nranks, enum shunt_redop redop, enum shunt_dtype dtype);
/* Has a type kernels for few ranks, and for several messages, when it is summed? */
bool shunt_algo_hot(enum shunt_redop redop, enum shunt_dtype dtype);

/* Calls that an execution plan takes; in no row. */
extern const struct shunt_algo shunt_plan_algo;

/*
 * For algorithms of SHUNT_FUSE_SYMMEM: the i-th buffer of a call that must lie in a window, on every rank; false: there
 * are no more, or (of i = 0) there is no such algorithm for the call. The buffer is not looked at.
 */
bool shunt_symmem_buffer(const struct shunt_coll *coll, int nranks, unsigned i, const void **ptr_p, uint64_t *bytes_p);

/* Row i of all, or NULL. */
const struct shunt_algo *shunt_algo_row(size_t i);

/* True and *decision_p, or false and *reason_p. bytes: of the message as NCCL's count x type gives it. */
bool shunt_select(const struct shunt_sel_key *sel_key, const struct shunt_coll *coll, struct shunt_decision *decision_p,
    enum shunt_reason *reason_p);

/* May plans take calls of this kind? */
bool shunt_select_plans(const struct shunt_sel_key *sel_key, enum shunt_kind kind);

/* For tools: the name of the path ("oneshot", ..., "nccl"). */
const char *shunt_select_name(const struct shunt_sel_key *sel_key, enum shunt_kind kind, enum shunt_dtype dtype,
    enum shunt_redop redop, uint64_t bytes, enum shunt_reason *reason_p);

/*
 * ... and where the answer comes from, in words: "SHUNT_ALGO", "built-in, measured on H200", "/x/y.json". Cut if
 * longer.
 */
void shunt_select_source(const struct shunt_sel_key *sel_key, enum shunt_kind kind, enum shunt_dtype dtype,
    uint64_t bytes, char *text, size_t text_bytes);

/*
 * ... and the sizes at which rules or rows of a kind begin, or those before them end: others lie at powers of two. In
 * any order.
 */
void shunt_select_crossovers(
    const struct shunt_sel_key *sel_key, enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx);

/* Reads SHUNT_ALGO and the tuning files once, and warns about what it cannot use. */
void shunt_select_check(void);
#endif
