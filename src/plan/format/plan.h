/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * An execution plan in memory: the steps of each block of each rank for one collective.
 *
 * A plan is loaded from JSON, checked, and never changes afterwards. Any number of threads and communicators read it at
 * once; it is reference-counted. Users of a plan may rely on every "checked" remark below. The loader resolves all
 * indirections of the file: ids in an operation are those of its rank, not of its block; a remote buffer is a rank and
 * a buffer.
 *
 * Everything is in chunks, whose size follows from the call:
 *   message  parts of equal size: one per rank where ranks have parts (output of an all-gather, input of a
 *            reduce-scatter, both of an all-to-all), else one
 *   part     P bytes, in `part_chunks` chunks
 *   chunk    c = ceil(P / (alignment * part_chunks)) units; chunk k of any buffer begins at unit k * c
 *   unit     `alignment` bytes
 * This is the layout of scratch, and of the caller's buffers if P fills all chunks of a part. If it does not, the last
 * chunks of each part lack their end (or all) in the caller's memory. Their missing bytes must be neither read nor
 * written there, and an operation's result for them is irrelevant. (Where the format's own rule admits a size, it says
 * the same.)
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"

/* The planned rows of collectives.def, then what is no collective of NCCL and is run by name only. */
#define SHUNT_PLAN_ROW(id, name, long_name, function, ranks, send, recv, op, place, nccl, plans) \
	SHUNT_PLAN_ROW_##plans(id, name)
#define SHUNT_PLAN_ROW_UNPLANNED(id, name)
#define SHUNT_PLAN_ROW_PLANNED(id, name) SHUNT_PLAN_##id,
enum shunt_plan_collective {
	SHUNT_COLLECTIVE_LIST(SHUNT_PLAN_ROW) SHUNT_PLAN_SENDRECV,
	SHUNT_PLAN_TEST,
	SHUNT_PLAN_CUSTOM,
	SHUNT_PLAN_NCOLLECTIVES,
};
#undef SHUNT_PLAN_ROW
#undef SHUNT_PLAN_ROW_UNPLANNED
#undef SHUNT_PLAN_ROW_PLANNED

/* Also bit numbers in masks of buffers. */
enum shunt_plan_buffer { SHUNT_PLAN_INPUT, SHUNT_PLAN_OUTPUT, SHUNT_PLAN_SCRATCH, SHUNT_PLAN_NBUFFERS };

/* NONE: the operation uses no channel. */
enum shunt_plan_channel_type { SHUNT_PLAN_MEMORY, SHUNT_PLAN_PORT, SHUNT_PLAN_SWITCH, SHUNT_PLAN_NONE };

/*
 * Operations: ops.def says what each does. Checked: numbers and places of the slices, their equal sizes, packets only
 * in scratch, protocol LL for packets. Packets are always in scratch; they occupy twice their bytes at twice their
 * offset, apart from plain data.
 */
enum shunt_plan_opcode {
#define PLAN_OP(code, ...) SHUNT_PLAN_##code,
#include "plan/format/op_rows.def"
	SHUNT_PLAN_NOPCODES,
};

enum shunt_plan_locality { SHUNT_PLAN_LOCAL, SHUNT_PLAN_REMOTE, SHUNT_PLAN_MULTICAST };

/* Chunks [index, index + size) of a buffer; checked to lie inside it (on every member, for MULTICAST); size >= 1. */
struct shunt_plan_slice {
	uint8_t place;  /* enum shunt_plan_locality */
	uint8_t buffer; /* enum shunt_plan_buffer; for MULTICAST the switch channel's */
	bool packet;    /* a region of packets, see above; buffer is SCRATCH then */
	/*
	 * LOCAL: our rank; REMOTE: the owner's rank, may be our own; MULTICAST: the number of our switch channel. In
	 * range.
	 */
	uint32_t target;
	uint64_t index, size;
};

struct shunt_plan_op {
	uint8_t code;  /* enum shunt_plan_opcode */
	uint8_t type;  /* enum shunt_plan_channel_type */
	uint8_t redop; /* enum shunt_redop of a reducing operation: SUM, PROD, MAX, MIN or AVG; else SUM */
	/*
	 * Thread-block group: the operation covers part `part` of `parts` equal parts of every slice; part < parts. 0
	 * of 1: all of it.
	 */
	uint32_t part, parts;
	uint32_t nsrc, ndst, nids;
	const struct shunt_plan_slice *src, *dst; /* NULL where the number is 0 */
	/*
	 * Channels of `type`, or semaphores: ids of this rank, in range; an id may occur more than once. Signals,
	 * waits, flush, semaphores: nids >= 1. PORT data operations: nids == ndst, and channel ids[j] leads to the
	 * owner of dst[j]. Others: 0.
	 */
	const uint32_t *ids;
	uint32_t barrier, nblocks; /* BARRIER: its number, < gpu->nbarriers; participants, as many blocks as use this
	                              barrier (checked) */
	/*
	 * PIPELINE: bytes of a window, a multiple of the alignment; chunks that the windows run over, at most 65536.
	 * Both >= 1.
	 */
	uint64_t unit_size, num_chunks;
	uint32_t nbody; /* PIPELINE: >= 1, all within the block and no PIPELINE among them */
	/* Where in the file: threadblocks[].ops[at], or ops[at].ops[inner] if inner is not SHUNT_PLAN_NIL. */
	uint32_t at, inner;
	const char *lines; /* the program's file and lines that it comes from, or NULL */
};

#define SHUNT_PLAN_NIL UINT32_MAX
#define SHUNT_PLAN_MAX_RANKS 1024u

struct shunt_plan_block {
	uint32_t nops; /* bodies of pipelines included; may be 0 */
	const struct shunt_plan_op *ops;
};

/*
 * One end of a memory or port channel. Signals on it count at the other end, which is channel `pair` of `peer` (same
 * type). pair is NIL if peer has fewer channels to us than we to it; such a channel is for data only, without signals
 * and waits (checked). A channel to our own rank is its own other end. In one launch the signals from one end are as
 * many as the waits at the other (checked).
 */
struct shunt_plan_channel {
	uint32_t peer; /* rank, in range */
	uint32_t pair;
};

/* One of our switch channels: `buffer` of all members. Each member lists the same one, as often as we do (checked). */
struct shunt_plan_switch {
	uint8_t buffer;        /* enum shunt_plan_buffer */
	uint32_t nranks;       /* >= 1 */
	const uint32_t *ranks; /* distinct, in range, in the file's order; ours is among them */
};

/* A buffer of another rank (or of ours) that this rank's blocks may use through memory or port channels. */
struct shunt_plan_remote {
	uint32_t rank;
	uint8_t buffer;
	uint8_t types; /* mask of 1 << enum shunt_plan_channel_type */
};

struct shunt_plan_gpu {
	/* 0 to 2^40 each; input's and output's are the same on all ranks, scratch's need not be. */
	uint64_t chunks[SHUNT_PLAN_NBUFFERS];
	uint32_t nchannels[2]; /* of type MEMORY, PORT */
	const struct shunt_plan_channel *channels[2];
	uint32_t nswitches;
	const struct shunt_plan_switch *switches;
	uint32_t nremotes;
	const struct shunt_plan_remote *remotes;
	uint32_t nsemaphores;
	const uint32_t *semaphores; /* initial values, 0 to 2^31 - 1; a launch leaves them as they were (checked) */
	uint32_t nbarriers;         /* numbered densely, unlike in the file */
	uint32_t nblocks;           /* may be 0: then no rank uses this rank's memory (checked) */
	const struct shunt_plan_block *blocks;
	/* Masks of 1 << enum shunt_plan_buffer: our buffers that operations of any rank use as REMOTE or MULTICAST. */
	uint8_t peers_read, peers_write;
	/* The same, LOCAL operations included. */
	uint8_t read, written;
};

/* The result of the proof for a loaded plan; a plan that is proved wrong does not load (verify/prove.h). */
enum shunt_plan_status { SHUNT_PLAN_UNDECIDED, SHUNT_PLAN_PROVED };

struct shunt_plan {
	const char *name;   /* not empty; need not be unique among plans */
	const char *source; /* file or label, for messages */
	enum shunt_plan_collective collective;
	bool ll; /* protocol LL: packet operations allowed, scratch is twice as large */
	/*
	 * The calls that the plan was written for.
	 *   true   all-reduce, all-to-all  send == recv; operations may use input and output for the same memory
	 *          all-gather              input is output's part of this rank; operations use output
	 *          reduce-scatter          output is input's part of this rank; operations use input
	 *   false                          input and output do not overlap
	 *
	 * Ranks need not agree on whether their call is in place, so matching does not look at it (see registry.h). The
	 * executor runs plans of both kinds for calls of both kinds, with copies on the ranks that need them. It never
	 * changes memory that the collective only reads.
	 */
	bool inplace;
	bool reuse_resources; /* the plan reaches peers through scratch only (checked) */
	bool double_scratch;  /* launches alternate between two halves of scratch */
	uint32_t alignment;   /* bytes of a unit: a multiple of 16, at most 1 GiB */
	uint32_t threads;     /* per block, 1 to 1024 */
	/* Of the message, inclusive: receive bytes of an all-gather, send bytes of all others; min <= max. */
	uint64_t min_bytes, max_bytes;
	uint32_t nranks; /* 1 to SHUNT_PLAN_MAX_RANKS; gpus[nranks] */
	const struct shunt_plan_gpu *gpus;
	/* Derived. */
	uint64_t part_chunks; /* see the top of this file; 0 only if no operation has slices */
	/*
	 * Of INPUT and OUTPUT: 1 or nranks; chunks[b], if not 0, is parts[b] * part_chunks (except with TEST and
	 * CUSTOM).
	 */
	uint32_t parts[2];
	uint64_t scratch_chunks; /* the largest of any rank */
	uint32_t redops;         /* mask of 1 << enum shunt_redop of all reducing operations; 0: none reduces */
	uint32_t max_blocks;     /* on one rank */
	/*
	 * True if packets may travel as LL128, in larger pieces than the format's: ranges of packets that overlap are
	 * equal, on the writer and on all readers, each is written once, and scratch has no other data. With chunks of
	 * `dense` units or more every range of packets has at least 64 bytes.
	 */
	bool ll128;
	uint64_t dense;
	enum shunt_plan_status status;
	const char *doubt;  /* UNDECIDED: the fault that the proof could not exclude, or NULL */
	const char *unread; /* PROVED: data in scratch that no operation reads, or NULL; no error */
	uint64_t hash;      /* of all fields but source and the derived ones; equal on all ranks and machines for equal
	                       plans, never 0 */
	/* Extensions of the format by Shunt: absent in other generators' files. */
	uint32_t ranks_per_node; /* 0: any */
	uint32_t dtypes;         /* mask of 1 << enum shunt_dtype; never 0 */
	int32_t priority;        /* tag "priority": higher ones are tried first; 0 by default */
	bool automatic;          /* false by tag "auto": 0: run by name only */
	/* It is from a directory that the user named: a line in the log says where it is not used */
	bool asked;
};

/* Text larger than this is refused. */
#define SHUNT_PLAN_MAX_JSON ((size_t)32 << 20)

/*
 * Proves that a loaded plan does what its collective means, in every order of events (verify/prove.h), and fills in
 * plan->status, plan->doubt and plan->unread. To be called before others have the plan. 0; -EINVAL: it is wrong, or
 * -ENOMEM: reason gets one line with rank, block, operation and, if the file has it, the program's line. Takes up to a
 * second or two.
 */
int shunt_plan_prove(struct shunt_plan *plan, char *reason, size_t bytes);

struct shunt_plan *shunt_plan_ref(struct shunt_plan *plan);
void shunt_plan_unref(struct shunt_plan *plan); /* NULL allowed; the last one frees */

const char *shunt_plan_collective_name(enum shunt_plan_collective collective); /* "allreduce" */
const char *shunt_plan_op_name(enum shunt_plan_opcode code);                   /* "rppkt" */
const char *shunt_plan_buffer_name(enum shunt_plan_buffer buffer);             /* "input" */
const char *shunt_plan_channel_type_name(enum shunt_plan_channel_type type);   /* "memory" */
/* The ranks on which a slice of one of this rank's operations lies: returns their number, and *ranks_p. */
uint32_t shunt_plan_slice_ranks(
    const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *slice, const uint32_t **ranks_p);

/* Units of a chunk, c above, for a message of this many bytes. 0 only if bytes or part_chunks is 0. */
uint64_t shunt_plan_chunk_units(const struct shunt_plan *plan, uint64_t message_bytes);
/*
 * Part `part` of `parts` (of a thread-block group) of a slice of this many units: its first unit in the slice, and its
 * number of units.
 */
void shunt_plan_group_part(uint64_t units, uint32_t part, uint32_t parts, uint64_t *first_p, uint64_t *count_p);
/* Units of a chunk, and the window of a pipeline in which an operation runs: its number, and its units or 0. */
struct shunt_plan_window {
	uint64_t chunk_units, units, number;
};
/* Units of a buffer from `low` up to `high`; none if they are equal. */
struct shunt_plan_units {
	uint64_t low, high;
};
/* The units of one of its slices that the operation handles. */
struct shunt_plan_units shunt_plan_slice_units(
    const struct shunt_plan_op *op, const struct shunt_plan_slice *slice, const struct shunt_plan_window *window);
/* Runs of a pipeline's body: ceil(num_chunks * chunk_units * alignment / unit_size), saturated. */
uint64_t shunt_plan_windows(const struct shunt_plan *plan, const struct shunt_plan_op *pipeline, uint64_t chunk_units);
/* Parts of one side's buffer: those of the collective's row in collectives.def, else 1. */
uint64_t shunt_plan_parts(enum shunt_plan_collective collective, enum shunt_side side, int nranks);
/* True if only the receive buffer, or only the send buffer, has a part for each rank. */
bool shunt_plan_gathers(enum shunt_plan_collective collective);
bool shunt_plan_scatters(enum shunt_plan_collective collective);
/* True for collectives without defined semantics: only the plan's use of buffers is known. */
static inline bool shunt_plan_is_custom(enum shunt_plan_collective collective)
{
	return collective == SHUNT_PLAN_TEST || collective == SHUNT_PLAN_CUSTOM;
}
/*
 * The message's bytes (those of min_bytes and max_bytes) of an NCCL call with count elements; false if they overflow.
 */
bool shunt_plan_message_bytes(
    enum shunt_plan_collective collective, int nranks, uint64_t count, enum shunt_dtype dtype, uint64_t *bytes_p);
