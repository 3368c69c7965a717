/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Algorithms as rows, and their selection. Selection is a pure function of values that are equal on all ranks: the
 * selection key below (agreed on in the set-up), the kind of collective, type, operator and size. It never depends on
 * pointers, alignment or stream.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "kernels/kargs.h"
#include "kernels/kernel_list.h"
#include "kernels/work.h"
#include "topology/topology.h"

/*
 * The values that the ranks agreed on in the set-up: equal on all ranks, and fixed from then on. Before the set-up,
 * those of these values that are known.
 */
struct shunt_sel_key {
	int nranks;
	int max_ctas; /* 0: no limit */
	bool sim;
	bool takes_all;     /* no call is declined, since there is no real NCCL to forward it to */
	bool pairs;         /* over several islands: any two ranks are connected; else those of a rail alone */
	bool deterministic; /* SHUNT_DETERMINISTIC: reductions are never declined, and plans do not take them */
	uint16_t
	    cc; /* compute capability x 10, the smallest of the ranks'; 0: not known before the set-up, or the sim */
	const struct shunt_tuning *tuning;  /* a file's table that all ranks have, or the built-in one; NULL: not looked
	                                       up yet (algos/select/tuning.h) */
	const struct shunt_tuning *by_link; /* in its place where some pair has no NVLink: a file's table, or NULL */
	/*
	 * Multiprocessors, the fewest of the ranks', or as many as launches may have blocks for; 0: not known before
	 * the set-up, or the sim.
	 */
	uint32_t sms;
	bool tma;       /* all ranks' kernels can send chunks by TMA */
	bool nvls;      /* NCCL uses NVLink multicast on all ranks (algos/select/nvls.h), as far as can be told */
	bool no_sms;    /* CTAPolicy zero: copies leave the SMs alone at any size */
	bool ce_shared; /* segments of shared memory have room for copy engines (SHUNT_COPY_BYTES) */
	bool few_ctas;  /* CTAPolicy efficiency: half the blocks, each with more warps (algos/launch/grid.c) */
	const struct shunt_topology *topology; /* never NULL */
	bool early;                            /* before the set-up: some of these values are not known */
	bool staged; /* the kernels are those of kernels/staged.h: some pair has no NVLink (topology->within) */
	uint32_t net_channels, net_slot_bytes; /* over several islands: geometry of the rings (kernels/net_rings.h) */
	const char *net; /* ... and the provider between them; NULL: not known before the set-up, or one island */
	const struct shunt_plugin_set *plugins; /* on which the ranks agreed (algos/plugins.h); NULL: none */
	const struct shunt_part *parts;         /* SHUNT_PARTS of them; NULL: calls have no steps among some ranks */
};

/*
 * Some ranks of a communicator on one host, which work together in steps of calls (algos/engines/by_parts.c): the ranks
 * of this rank's island, and the ranks of its index on all islands. They have scratch of their own for that.
 */
enum shunt_part_kind { SHUNT_PART_ISLAND, SHUNT_PART_RAIL, SHUNT_PARTS };
struct shunt_part {
	struct shunt_topology topology;
	struct shunt_sel_key key;         /* its ranks', numbered within the part */
	struct shunt_kargs kargs;         /* equal for every launch */
	uint8_t rank_of[SHUNT_MAX_RANKS]; /* by number in the part */
	char *room; /* of an island: SHUNT_PARTS_ROOM bytes of this rank's memory, for what a step leaves to the next */
};
#define SHUNT_PARTS_ROOM(sim) ((uint64_t)((sim) ? 4 << 10 : 8 << 20))
/* In place of kargs.op in a part's ctrl, so that a fault tells whose ranks it names. */
#define SHUNT_PART_OP(kind) (((uint64_t)1 << 62) + (kind))

/* All but kargs. The key is the communicator's. False: its ranks are not on several islands that are alike. */
bool shunt_parts_make(struct shunt_part parts[SHUNT_PARTS], const struct shunt_sel_key *key);

/* The input of selection for one call, beside its kind, type, operator and size. */
struct shunt_sel {
	const struct shunt_sel_key *key;
	bool symmem; /* its buffers lie in windows that all ranks have mapped, or may still agree on */
	bool no_sms; /* ... and its CTAPolicy, or the communicator's, is zero */
};
/* True: the call is to leave the SMs alone, by its own CTAPolicy or else the communicator's. */
static inline bool shunt_coll_no_sms(const struct shunt_sel_key *key, const struct shunt_coll *coll)
{
	return coll->cta_policy ? coll->cta_policy & SHUNT_CTAS_ZERO : key->no_sms;
}

/* Limits on the launches of calls that share them: the communicator's, the calls' and their decision's. */
struct shunt_limits {
	const struct shunt_sel_key *key;
	int min_ctas, max_ctas;             /* 0: no limit */
	uint16_t max_threads, max_channels; /* of the decision's geometry; 0: no limit */
	bool few_ctas;                      /* as in the key, or as the calls say */
};

/* The smaller of two limits; 0: no limit. */
static inline int shunt_limit_min(int a, int b)
{
	return !a || (b && b < a) ? b : a;
}

/*
 * Blocks per launch, so that `launches` launches find room on a GPU at once, each with one block more for SHUNT_CHECK.
 */
unsigned shunt_grid_coresident_blocks(uint32_t sms, unsigned launches);

/*
 * Limits on a launch, from the rule or row that chose the algorithm; 0: the algorithm's own. Not for point-to-point,
 * see enqueue.c.
 */
struct shunt_geometry {
	uint16_t blocks, threads; /* threads of a block */
	uint16_t channels;        /* p2p engine: of a pair of ranks and a direction */
};

/* An algorithm with limits on its launches, as SHUNT_ALGO and selectors name it. algo is NULL for none. */
struct shunt_path {
	const struct shunt_algo *algo;
	struct shunt_geometry geometry;
};

/* The work among the ranks that a call needs before its launch. */
enum shunt_need {
	SHUNT_NEED_NOTHING,
	SHUNT_NEED_HOSTS,  /* to find out on which hosts the ranks are */
	SHUNT_NEED_SETUP,  /* the communicator's first use */
	SHUNT_NEED_PLAN,   /* memory for a plan */
	SHUNT_NEED_WINDOW, /* an agreement on a window */
	SHUNT_NEED_PLUGIN, /* memory for a plug-in */
};

/*
 * The decision about one call: an algorithm, a plan or NCCL, and what it still needs. The same on all ranks. Selection
 * fills in the first part, the communicator (comm/calls/decide.c) the second.
 */
struct shunt_decision {
	const struct shunt_algo *algo; /* NULL: the call is forwarded, for this reason */
	uint32_t kernel;               /* index in kernel_list.h, for a single call */
	uint32_t flags;                /* SHUNT_K_* for type and operator */
	struct shunt_geometry geometry;
	uint8_t reason; /* enum shunt_reason */

	uint8_t need;     /* enum shunt_need */
	bool settled;     /* no outcome that the ranks still wait for can change the path */
	uint32_t version; /* the communicator's version when this was decided (struct shunt_comm); 0: not decided yet */
	const char *path; /* name of the algorithm or the plan, valid for ever; NULL: forwarded */
	union {
		const struct shunt_plan *plan; /* SHUNT_NEED_PLAN: the plan that needs memory */
		void *exec;                    /* of shunt_plan_algo: the plan's executor, for plan_work */
	} u;
};

/*
 * Bytes that a copy engine copies. The peer's address is given by our own address at the same offset of the same
 * window: `to`, or `from` if this rank gets. If peer is this rank, both are its own. In place of a NULL address: the
 * offset `at` in that rank's part of shared memory that copy engines have.
 */
struct shunt_copy {
	int peer;
	bool is_get;
	void *to;
	const void *from;
	uint64_t bytes, at;
};
/* Bytes of a segment that copy engines have, twice; less on the sim, so that tests have several pieces. */
#define SHUNT_COPY_BYTES(sim) ((uint64_t)((sim) ? 1 << 10 : 4 << 20))

/* Receives the launches and copies of a rank's calls. */
struct shunt_enqueue_ctx {
	const struct shunt_sel_key *sel_key;
	const struct shunt_kargs *base; /* equal for every launch: peers, rank, nranks */
	int (*emit)(void *ctx, const struct shunt_work *work);
	/* The next launches and copies are those of these calls, which share them. NULL: the caller need not know. */
	int (*begin)(void *ctx, const struct shunt_coll *const *calls, size_t n);
	/*
	 * Copies follow the launches that were emitted before them, and later launches follow the copies. Copies are
	 * not ordered among themselves. NULL: no windows.
	 */
	int (*copy)(void *ctx, const struct shunt_copy *copy);
	/* An address's window and offset, as a number that is the same on all ranks. 0: it lies in no window. */
	uint64_t (*offset)(void *ctx, const void *ptr);
	/* The address of peer's counterpart of ptr, for kernels; NULL: ptr lies in no window. */
	void *(*peer_ptr)(void *ctx, const void *ptr, uint64_t bytes, int peer);
	/* The launch of a call that a plan takes. NULL: no plans. */
	int (*plan_work)(void *ctx, void *exec, const struct shunt_coll *coll, struct shunt_work *work);
	/* Launches a call that a plug-in takes. NULL: no plug-ins. */
	int (*plugin)(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
	    const struct shunt_coll *coll);
	/* Written by shunt_enqueue_calls: limits of the next launches; shunt_select, for the total of their calls. */
	struct shunt_limits limits;
	bool (*select)(const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_decision *decision);
	bool check; /* compare messages; for collectives base->check says so, until emit has launched a group's first
	               kernel */
	void *ctx;
};

/*
 * Which calls of a group may share launches: those with the same value, and the same type and operator if they reduce.
 */
enum shunt_fuse {
	SHUNT_FUSE_NONE,
	SHUNT_FUSE_LL128,
	SHUNT_FUSE_COPY,
	SHUNT_FUSE_REDUCE,
	SHUNT_FUSE_UNEVEN, /* parts of one all-gather or reduce-scatter */
	SHUNT_FUSE_SYMMEM  /* calls whose buffers lie in windows; they share the barriers */
};

/* For how many ranks an algorithm has launches of its own. For other numbers it uses another algorithm's. */
enum shunt_among { SHUNT_AMONG_ANY, SHUNT_AMONG_TWO, SHUNT_AMONG_MORE };

struct shunt_algo {
	const char *name;
	const char *doc;
	enum shunt_kind kind;
	enum shunt_fuse fuse;
	enum shunt_shape shapes[3]; /* for 2, up to 4 and up to 8 ranks */
	enum shunt_shape few[3];    /* SHUNT_FUSE_LL128: the same for several messages, for hot types */
	/* Blocks and threads for a message of this size, within SHUNT_MAX_THREADS and the shape's channels. */
	void (*geometry)(const struct shunt_limits *limits, uint64_t bytes, struct shunt_work *work);
	/*
	 * Emits the launches of calls that fuse. Each call has its decision; the first decision counts for all, except
	 * where their algorithms differ. -errno of emit, or -ENOMEM.
	 */
	int (*enqueue)(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
	    const struct shunt_coll *const *calls, size_t ncalls);
	uint64_t proto; /* engines/p2p.c: SHUNT_MESSAGE_SIMPLE or 0 */
	/*
	 * Emits one call in a launch of its own, among more than 2 ranks, if it is the only one of the calls that fuse
	 * with such a function. NULL: none.
	 */
	int (*single)(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
	    const struct shunt_coll *coll);
	unsigned links; /* that its kernels are right on, as bits (base/link.h); over islands: inside an island */
	enum shunt_among among;
	/* The row whose kernels and geometry two ranks take (SHUNT_AMONG_MORE), or `single`. NULL: none. */
	const struct shunt_algo *uses;
	bool over_islands; /* for communicators of several islands, and for no others */
	/*
	 * The first plan that fits the call, also one that runs by name only, such as the default plans for several
	 * hosts. If no plan fits, the call is enqueued as with the kind's first row over islands.
	 */
	bool planned;
	bool plugin;   /* a user's own (algos/plugins.h) */
	bool copies;   /* copy engines move the data, and kernels only wait */
	bool by_parts; /* in steps among some ranks, if shunt_islands_fit */
};

/*
 * Emits the launches of a group's calls on one communicator. Calls share launches as far as they fuse; point-to-point
 * comes last. The launches and their order follow from values that all ranks share, so that no two ranks wait for each
 * other crosswise. -EBADMSG: this rank's sends to itself and receives from itself do not pair up; nothing was emitted.
 */
int shunt_enqueue_calls(struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n);

/*
 * Recognises the calls of a group that are the parts of one all-gather or reduce-scatter, and decides them anew. The
 * same on all ranks. Parts are calls of these kinds, so a group without them need not be asked about.
 */
#define SHUNT_UNEVEN_KINDS (1u << SHUNT_BROADCAST | 1u << SHUNT_REDUCE)
void shunt_uneven_decide(
    const struct shunt_sel_key *key, const struct shunt_coll *const *calls, struct shunt_decision *decisions, size_t n);

/* Index of an algorithm's kernel; dtype may be a signed integer. */
unsigned shunt_algo_kernel(
    const struct shunt_algo *algo, enum shunt_kind kind, int nranks, enum shunt_redop redop, enum shunt_dtype dtype);
/* The kernel that does the same without NVLink (kernels/staged.h). */
unsigned shunt_algo_staged(unsigned kernel);
/* Sets a kernel's flags and factor for type and operator. Each rank has its own factor for SHUNT_PREMUL. */
void shunt_algo_set_factor(struct shunt_kargs *k, const struct shunt_decision *decision, const struct shunt_coll *coll);
static inline void shunt_algo_set_op(
    struct shunt_kargs *k, const struct shunt_decision *decision, const struct shunt_coll *coll)
{
	k->flags = decision->flags;
	k->scalar = 0;
	if (decision->flags & SHUNT_K_PREMUL)
		shunt_algo_set_factor(k, decision, coll);
}
/* True: sums of this type have kernels for few ranks, and for several messages. */
bool shunt_algo_hot(enum shunt_redop redop, enum shunt_dtype dtype);

/* The algorithm of calls that an execution plan takes. No row of shunt_algo_row. */
extern const struct shunt_algo shunt_plan_algo;

/*
 * For SHUNT_FUSE_SYMMEM: the i-th buffer of a call that must lie in a window, on every rank. False: there is no i-th
 * buffer; for i = 0: the call has no such algorithm. Does not access the buffer.
 */
bool shunt_symmem_buffer(const struct shunt_coll *coll, int nranks, unsigned i, const void **ptr_p, uint64_t *bytes_p);

/* Row i of all algorithms (algos/rows.c), or NULL. */
const struct shunt_algo *shunt_algo_row(size_t i);
/* The links that some row is right on, as bits, of those over islands or of the others. */
unsigned shunt_algo_links(bool over_islands);
/* True: over islands, data of its calls goes between any two ranks, not on rails alone. */
static inline bool shunt_algo_needs_pairs(const struct shunt_algo *algo)
{
	const unsigned kinds = 1u << SHUNT_SEND | 1u << SHUNT_ALLTOALL | 1u << SHUNT_GATHER | 1u << SHUNT_SCATTER;

	return algo->over_islands && kinds >> algo->kind & 1;
}
/* The kind's first row over islands, or NULL. */
const struct shunt_algo *shunt_algo_over_islands(enum shunt_kind kind);

/* Selects the algorithm of a call, or false and the reason. Sizes are NCCL's count x type. */
bool shunt_select(const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_decision *decision);

/* Reads "oneshot" or "oneshot@16x256", as in a rule of SHUNT_ALGO. False: it is not an algorithm of this kind. */
bool shunt_path_parse(enum shunt_kind kind, const char *text, struct shunt_path *path_p);
/*
 * As shunt_select, with the algorithm of this path. False: the path has no algorithm, or one for windows and the call
 * is not in a window; then nothing is decided. For more than one rank.
 */
bool shunt_select_path(const struct shunt_sel *sel, const struct shunt_coll *coll, const struct shunt_path *path,
    struct shunt_decision *decision);

/*
 * Goes up when shunt_algo_force() has changed the results of selection, or when all answers of selectors are forgotten:
 * earlier decisions then hold no more.
 */
extern _Atomic uint32_t shunt_select_version;

/* True: plans may take calls of this kind. */
bool shunt_select_plans(const struct shunt_sel_key *sel_key, enum shunt_kind kind);

/*
 * True: a rule of SHUNT_ALGO or of shunt_algo_force(), now or earlier, or a tuning file wants plans over hosts, so that
 * the default ones are to be loaded.
 */
bool shunt_select_wants_plans(void);
/* The same of calls whose data goes between any two ranks of several hosts, beyond those of a rail. */
bool shunt_select_wants_pairs(void);
/* The row to run if a row with `planned` finds no plan. */
const struct shunt_algo *shunt_select_unplanned(const struct shunt_algo *algo);

/* For tools: the name of the path ("oneshot", ..., "nccl"). */
const char *shunt_select_name(const struct shunt_sel *sel, enum shunt_kind kind, enum shunt_dtype dtype,
    enum shunt_redop redop, uint64_t bytes, enum shunt_reason *reason_p);

/* ... and the blocks of its launch, the largest one if there are several; 0: copy engines, NCCL, or not known. */
unsigned shunt_select_blocks(
    const struct shunt_sel *sel, enum shunt_kind kind, enum shunt_dtype dtype, enum shunt_redop redop, uint64_t bytes);

/* ... and the source of that answer: "SHUNT_ALGO", "built-in, measured on H200", "/x/y.json". Cut if it is too long. */
void shunt_select_source(const struct shunt_sel *sel, enum shunt_kind kind, enum shunt_dtype dtype, uint64_t bytes,
    char *text, size_t text_bytes);

/*
 * ... and the sizes at which a kind's rules or rows begin, or the rows before them end; other such sizes are powers of
 * two. In any order.
 */
void shunt_select_crossovers(
    const struct shunt_sel *sel, enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx);

/* Reads SHUNT_ALGO and the tuning files once, and warns about whatever cannot be used. */
void shunt_select_check(void);
