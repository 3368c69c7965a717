/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_KARGS_H
#define SHUNT_KERNELS_KARGS_H
/*
 * What host and kernels share: the arguments of a launch and the layout of a communicator's scratch.
 * Plain C, no pointers into host memory but those named so.
 *
 * Scratch (one per rank, mapped by all): [ctrl][LL128 slots][p2p rings of LL128 slots][LL128 slots][p2p rings of
 * chunks]. A *channel* is a warp. Channel c of an all-reduce speaks only to channel c of its peers, counts its own
 * epochs in its own rank's ctrl, and owns two slots at every peer that alternate by the epoch's parity, and one for a
 * second hop. Why they suffice: see docs/architecture.md, "Epochs and slots".
 */
#include <stdint.h>

#define SHUNT_KARGS_MAX_RANKS 8
#define SHUNT_MAX_THREADS 512u /* of a block */
#define SHUNT_MAX_BLOCKS \
	64u /* of a launch; fewer where a GPU has no room for those of two communicators at once (algos/algos.h) */

/* LL128 kernels: 32 lanes move a slot = 512 bytes on the wire, 480 bytes of data. */
#define SHUNT_LL128_SLOT_WIRE 512u
#define SHUNT_LL128_SLOT_DATA 480u

#define SHUNT_LL128_CHANNELS 1024u
#define SHUNT_LL128_SLOTS \
	8u /* slots per channel and parity: 4 x 2, 2 x 4 or 1 x 8 sources; 4 of one source for each of 4 epochs, \
	      between two ranks */
/* P2P kernels: a channel belongs to a pair of ranks and a direction; its slots are a ring. */
#define SHUNT_P2P_CHANNELS 512u /* of all peers together */
#define SHUNT_P2P_PER_PEER(n) (SHUNT_P2P_CHANNELS / ((n) > 1 ? (n) - 1 : 1))
#define SHUNT_P2P_BATCH 4u /* slots that a warp moves at a time; divides the ring */
#define SHUNT_P2P_RING 16u /* slots: covers a round trip of the data and the counter that gives slots back */
/*
 * Large messages in chunks (kernels/simple.h): the rings' slots hold one each, as many as cover the time until it is
 * sure to have arrived as well.
 */
#define SHUNT_SIMPLE_CHUNK 4096u
#define SHUNT_CLUSTER_BLOCKS 4u    /* blocks of a cluster */
#define SHUNT_SIMPLE_CHANNELS 480u /* of all peers together: no launch has warps for more */
#define SHUNT_SIMPLE_PER_PEER(n) (SHUNT_SIMPLE_CHANNELS / ((n) > 1 ? (n) - 1 : 1))
#define SHUNT_SIMPLE_RING(n) \
	((n) > 4 ? 4u : 8u) /* powers of two. With 4, send and receive between 2 of 4 ranks end at 240 GB/s */
/* ... sent by TMA copies (kernels/tma.h): */
#define SHUNT_TMA_SLOTS 3u    /* chunks of a warp in shared memory */
#define SHUNT_TMA_CHANNELS 2u /* channels of a warp that sends */
#define SHUNT_TMA_BYTES(warps) \
	((uint32_t)(warps) * SHUNT_TMA_SLOTS * SHUNT_SIMPLE_CHUNK)      /* of shared memory beside a kernel's own */
#define SHUNT_TMA_MAX_BYTES SHUNT_TMA_BYTES(SHUNT_MAX_THREADS / 32 - 1) /* one warp of a block is its proxy */

enum shunt_kflags {
	SHUNT_K_PREMUL = 1,           /* multiply every input by the scalar before it is used */
	SHUNT_K_SCALAR_ON_DEVICE = 2, /* scalar is the address of one element */
	SHUNT_K_DIVIDE = 4,           /* integer average: divide the sum by nranks */
	SHUNT_K_SIGNED = 8,           /* ... as a signed value */
	SHUNT_K_ALIGNED = 16,         /* all that this rank loads from and stores to is 16-byte aligned */
	SHUNT_K_MIN = 32,             /* of an extremum kernel: the smaller one, else the larger */
	SHUNT_K_FIRST_BARRIER = 64,   /* the first barrier of an operation */
	SHUNT_K_LAST_BARRIER = 128,   /* the last one */
	SHUNT_K_TO_ROOT = 256,        /* two-shot: only the root gets the result */
	SHUNT_K_OVER_SENT_INPUT =
	    512, /* chunks, two ranks: what is reduced goes over what is sent, once that has been read */
};

struct shunt_ctrl;

/*
 * What a launch says of its calls where SHUNT_CHECK is on: a block more than the kernel needs compares it with what the
 * peers say (kernels/check.h). Collectives are compared among all ranks, all those of a group by its first launch. A
 * message concerns two ranks, which may issue their messages in different groups: they are compared one by one, from
 * the launch's own list.
 */
enum {
	SHUNT_CHECK_CALLS = 1,    /* collectives; the rest of the struct and kargs.count describe them */
	SHUNT_CHECK_NUMBERED = 2, /* ... and their number is to be compared, too */
	SHUNT_CHECK_MESSAGES = 4,
};

struct shunt_check {
	uint8_t what; /* 0: there is no such block */
	uint8_t kind, dtype,
	    redop; /* of the first collective; 0 for what means nothing to its kind. kargs.count is its count */
	uint16_t root;
	uint16_t calls; /* how many there are, at most 65,535 */
	uint32_t
	    number; /* of the first, counted from 1 on this communicator; in a fault about messages: of the message */
	uint32_t hash; /* of all of them */
};

struct shunt_kargs {
	char *peer[SHUNT_KARGS_MAX_RANKS]; /* base of each rank's scratch, as mapped here; peer[rank] is our own */
	const void *send;
	void *recv;
	uint64_t count; /* elements */
	union {
		uint64_t scalar;
		uint64_t part; /* pairwise exchanges: bytes that each rank sends the other. Their kernels' elements are
		                  not the call's */
	};
	uint32_t flags;
	uint16_t rank, nranks;
	uint16_t channels; /* P2P kernels: the most of a pair of ranks, for messages in LL128; the same on all ranks */
	uint16_t roles;    /* ... how many there are */
	uint16_t simple_channels; /* ... as channels, for messages in chunks */
	uint16_t pad;
	union {
		uint32_t root;     /* SHUNT_K_TO_ROOT */
		uint32_t per_role; /* ll128_one: 65536 / roles, rounded up */
	};
	uint64_t op; /* what the launch belongs to, for struct shunt_progress */
	struct shunt_check check;
};

/*
 * P2P kernels: this rank's part in one or several calls, as messages in order of issue, sorted by role. A role is what
 * a warp does, for one of the channels: send to a peer, take what a peer sends, reduce what all peers send (and our own
 * part), copy a part of our own. A forwarder takes from a peer and passes on to all others, in LL128 only.
 */
enum { SHUNT_ROLE_SEND, SHUNT_ROLE_RECV, SHUNT_ROLE_REDUCE, SHUNT_ROLE_COPY, SHUNT_ROLE_FORWARD };

struct shunt_role {
	uint8_t what, peer;
	uint8_t blocks; /* of simple.cu and tma.cu: that have this role and no other, behind those of the roles before
	                   it. 0: all roles share all blocks */
	uint8_t pad;
	uint16_t channels;     /* that any of its messages uses; tma.cu: warps that have the role */
	uint16_t first, count; /* its messages */
};

struct shunt_message {
	const void *from; /* of what we send, copy, or reduce in as our own */
	void *to;         /* where what we take, copy or reduce goes */
	uint64_t bytes;   /* | SHUNT_MESSAGE_SIMPLE: see kernels/simple.h. Both ends of a message say the same */
};
#define SHUNT_MESSAGE_SIMPLE ((uint64_t)1 << 63)

#define SHUNT_MAX_ROLES (2 * (SHUNT_KARGS_MAX_RANKS - 1) + 1)
#define SHUNT_FEW_MESSAGES 16u    /* any collective by itself */
#define SHUNT_MANY_MESSAGES 1280u /* what the 32,764 bytes of a kernel's parameters hold */

struct shunt_kargs_few {
	struct shunt_kargs k;
	union {
		struct shunt_role role[SHUNT_MAX_ROLES];
		/*
		 * LL128 kernels, which number the slots of all messages through: of the message's first one, UINT32_MAX
		 * if there is no such message; the last one is how many slots there are.
		 */
		uint32_t first_slot[SHUNT_FEW_MESSAGES + 1];
	};
	struct shunt_message message[SHUNT_FEW_MESSAGES];
};

struct shunt_kargs_many {
	struct shunt_kargs k;
	struct shunt_role role[SHUNT_MAX_ROLES];
	struct shunt_message message[SHUNT_MANY_MESSAGES];
};

/* Barriers around copies in windows. */
struct shunt_kargs_barrier {
	struct shunt_kargs k;
	uint64_t own_place; /* where this rank's buffers lie, to the others: comm/symmem.h's places */
	uint64_t peer_places[SHUNT_KARGS_MAX_RANKS]; /* what a rank must have said; 0: anything */
};

/*
 * Reductions between such barriers: k.send, k.recv and k.count are unused. Both lists begin at what this rank reduces.
 */
struct shunt_kargs_direct {
	struct shunt_kargs k;
	const void *from[SHUNT_KARGS_MAX_RANKS]; /* every rank's input, as mapped here */
	void *to[SHUNT_KARGS_MAX_RANKS];         /* where the result goes, by rank; NULL: not there */
	uint64_t bytes;                          /* of one input */
};

/*
 * Plan kernels: k.peer is unused, k.count is only for the check. What the rest points to is described in plan_args.h.
 */
struct shunt_kargs_plan {
	struct shunt_kargs k;
	struct shunt_ctrl *ctrl; /* of the communicator: abort word, deadline, where to report */
	const char *bytecodes;   /* of block 0; the others follow */
	char *resources;         /* our own */
	char *buffer[2];         /* what the plan takes for our input and output */
	uint64_t chunk;          /* units */
	uint64_t part_bytes[2];  /* of one part of what the caller sends and receives */
	uint32_t bytecode_bytes;
	uint32_t pad;
	/*
	 * Of a buffer with SHUNT_PLAN_DIRECT0 << buffer: where each rank has it; and what tells all these places, the
	 * same on all ranks.
	 */
	char *remote[2][SHUNT_KARGS_MAX_RANKS];
	uint64_t place;
};

/* What a kernel writes before it gives up. Written once per communicator, `set` last. */
enum { SHUNT_FAULT_NONE, SHUNT_FAULT_TIMEOUT, SHUNT_FAULT_ABORT, SHUNT_FAULT_MISMATCH, SHUNT_FAULT_PLACE };
struct shunt_fault {
	uint64_t set; /* one of the above */
	uint32_t rank, peer, channel, pad;
	uint64_t expected, seen; /* epochs or steps of the channel; of SHUNT_FAULT_PLACE: places of buffers, one as it
	                            is or several mixed */
	uint64_t op;             /* progress.now */
	/*
	 * Of a mismatch: what this rank says and what the peer says, with their counts. Messages: what is
	 * SHUNT_CHECK_MESSAGES, kind 0 at the end that sends and 1 at the one that receives, the counts are bytes.
	 */
	struct shunt_check mine, theirs;
	uint64_t mine_count, theirs_count;
};

/*
 * What a rank's host and its kernels have to tell each other, in page-locked host memory. Neither needs the driver for
 * it, which a call that waits for kernels, such as cudaFree, holds for as long as it waits.
 */
#define SHUNT_LIMIT_ABORT UINT64_MAX
struct shunt_host_ctrl {
	struct shunt_fault fault;
	uint64_t limit_ns; /* by the host: how long a spin may last; 0: for ever; SHUNT_LIMIT_ABORT: it is to end now */
};

/*
 * How far the launches of a communicator have come on this rank; for diagnosis only. comm/observe/recorder.h says who
 * writes what.
 */
struct shunt_progress {
	uint64_t now;          /* kargs.op of the last launch that began */
	uint64_t eager;        /* ... of the last that was not a graph's */
	uint64_t replays;      /* launches that began and were a graph's */
	uint64_t begun, ended; /* warps */
};

/* SHUNT_CHECK's part of a rank's scratch. Packets carry 4 bytes and as many of flag in each half. Indices are ranks. */
#define SHUNT_CHECK_PACKETS 3u         /* of what a rank says: its count and check */
#define SHUNT_CHECK_CHANNEL UINT32_MAX /* in a fault: it was the check that waited */
#define SHUNT_CHECK_RING \
	32u /* messages of a pair that wait to be compared: never fewer than there can be slots of channel 0 */
struct shunt_check_packet {
	uint64_t half[2];
};
struct shunt_check_area {
	struct shunt_check_packet announced[2][SHUNT_KARGS_MAX_RANKS]
	                                   [SHUNT_CHECK_PACKETS]; /* by launch's parity and source */
	struct shunt_check_packet size[SHUNT_KARGS_MAX_RANKS]
	                              [SHUNT_CHECK_RING]; /* of the messages that we receive, by source */
	char *peer[SHUNT_KARGS_MAX_RANKS];                /* the ranks' ctrl, as mapped here */
	uint64_t launches;                                /* with collectives; the packets' flag is this one's number */
	uint64_t sent[SHUNT_KARGS_MAX_RANKS], received[SHUNT_KARGS_MAX_RANKS]; /* messages */
	uint64_t head[SHUNT_KARGS_MAX_RANKS]; /* of those we sent, compared by the receiver, who writes this */
	/* Written by a receiver that expects another size, before it raises our abort word. `set` last. */
	struct {
		uint64_t set, number, ours, theirs;
	} rejected[SHUNT_KARGS_MAX_RANKS];
};

/* What a rank says when it comes to a barrier; number last. */
struct shunt_barrier_flag {
	uint64_t place, number;
};

/*
 * Counters of the p2p engine's rings, in slots or chunks since the communicator was made; [peer][channel], peers
 * without ourselves.
 */
struct shunt_rings {
	uint64_t sent[SHUNT_P2P_CHANNELS];
	uint64_t received[SHUNT_P2P_CHANNELS];
	uint64_t head[SHUNT_P2P_CHANNELS]; /* of what we sent: out of the ring. Written by the receiver */
	uint64_t tail[SHUNT_P2P_CHANNELS]; /* of what we receive: in the ring for sure. Written by the sender, of chunks
	                                      only */
	uint64_t read[SHUNT_P2P_CHANNELS]; /* of what we send: out of the program's memory. Kept with
	                                      SHUNT_K_OVER_SENT_INPUT only, for the reduces */
};

struct shunt_ctrl {
	uint32_t
	    abort; /* set by the host through a copy, by a peer, or by a kernel that gave up; polled by every spin */
	uint32_t zero;   /* a peer raises abort by a store of 8 bytes */
	uint32_t broken; /* whether the fault is already being written */
	uint32_t pad[5];
	struct shunt_host_ctrl *host_ctrl; /* device address */
	struct shunt_progress progress;
	uint64_t epoch[SHUNT_LL128_CHANNELS]; /* of all-reduces, whichever kernel made them */
	struct shunt_rings ll128, simple;
	struct shunt_check_area check;
	uint64_t barriers;                                           /* that this rank has been in */
	struct shunt_barrier_flag barrier[2][SHUNT_KARGS_MAX_RANKS]; /* by the number's parity and source */
};

/*
 * Byte offsets within the scratch, the same on every rank of n.
 *   line areas:  [channel][parity][slot] slots of the first hop; of the second, which two ranks do not have,
 * [channel][slot] exchange:    [source][channel][ring] slots, and the same of chunks; sources without ourselves
 */
#define SHUNT_CTRL_BYTES (128u << 10)
#define SHUNT_HOP_BYTES ((uint64_t)SHUNT_LL128_CHANNELS * SHUNT_LL128_SLOTS * SHUNT_LL128_SLOT_WIRE)
#define SHUNT_HOP1_AT ((uint64_t)SHUNT_CTRL_BYTES)
#define SHUNT_P2P_AT (SHUNT_HOP1_AT + 2 * SHUNT_HOP_BYTES)
#define SHUNT_HOP2_AT (SHUNT_P2P_AT + (uint64_t)SHUNT_P2P_CHANNELS * SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE)
#define SHUNT_SIMPLE_AT(n) (SHUNT_HOP2_AT + ((n) > 2 ? SHUNT_HOP_BYTES : 0))
#define SHUNT_SCRATCH_BYTES(n) \
	(SHUNT_SIMPLE_AT(n) + (uint64_t)SHUNT_SIMPLE_CHANNELS * SHUNT_SIMPLE_RING(n) * SHUNT_SIMPLE_CHUNK)
#endif
