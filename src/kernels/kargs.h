/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Shared by host and kernels: the arguments of a launch and the layout of a communicator's scratch. Plain C. Pointers
 * into host memory are named as such.
 *
 * Each rank has one scratch, which all ranks map:
 *
 *   ctrl | LL128 slots, first hop | p2p rings of LL128 slots | LL128 slots, second hop | p2p rings of chunks
 *
 * A *channel* is a warp. Channel c of an all-reduce exchanges data only with channel c of its peers. It counts its
 * epochs in its own rank's ctrl. At every peer it owns two sets of slots for the first hop, which alternate by the
 * epoch's parity, and one set for the second hop. docs/architecture.md, "Epochs and slots", says why these suffice.
 */
#include <stdint.h>
#include "kernels/flags.h"

#define SHUNT_KARGS_MAX_RANKS 8
#define SHUNT_MAX_THREADS 512u /* of a block */
/* Of a launch. A launch has fewer where a GPU has no room for two communicators' launches at once (algos/algos.h). */
#define SHUNT_MAX_BLOCKS 64u

/* A warp moves an LL128 slot at a time: 512 bytes on the wire, 480 bytes of data. */
#define SHUNT_LL128_SLOT_WIRE 512u
#define SHUNT_LL128_SLOT_DATA 480u

#define SHUNT_LL128_CHANNELS 1024u
/*
 * Slots of a channel and parity, in kernels for up to N ranks: 8 / N of each rank. Between two ranks a channel has 4
 * sets of 4 slots instead, one for each of 4 epochs, all filled by the peer.
 */
#define SHUNT_LL128_SLOTS 8u
/* P2P kernels: a channel belongs to a pair of ranks and a direction. Its slots are a ring. */
#define SHUNT_P2P_CHANNELS 512u /* of all peers together */
#define SHUNT_P2P_PER_PEER(n) (SHUNT_P2P_CHANNELS / ((n) > 1 ? (n) - 1 : 1))
#define SHUNT_P2P_BATCH 4u /* slots that a warp handles at a time; divides the ring */
#define SHUNT_P2P_RING 16u /* slots: cover a round trip of the data and of the counter that returns slots */
/*
 * Simple, for large messages (kernels/simple.h): a slot of a ring holds one chunk. A ring has enough slots to cover
 * the time until a chunk has certainly arrived.
 */
#define SHUNT_SIMPLE_CHUNK 4096u
#define SHUNT_CLUSTER_BLOCKS 4u    /* blocks of a cluster */
#define SHUNT_SIMPLE_CHANNELS 480u /* of all peers together: no launch has warps for more */
#define SHUNT_SIMPLE_PER_PEER(n) (SHUNT_SIMPLE_CHANNELS / ((n) > 1 ? (n) - 1 : 1))
/* Slots of a ring: a power of two. With 4, send and receive between 2 of 4 ranks end at 240 GB/s. */
#define SHUNT_SIMPLE_RING(n) ((n) > 4 ? 4u : 8u)
/* Simple by TMA copies (kernels/tma.h). */
#define SHUNT_TMA_SLOTS 3u    /* chunks of a warp in shared memory */
#define SHUNT_TMA_CHANNELS 2u /* channels that a sending warp serves */
/* Dynamic shared memory of a block. */
#define SHUNT_TMA_BYTES(warps) ((uint32_t)(warps) * SHUNT_TMA_SLOTS * SHUNT_SIMPLE_CHUNK)
#define SHUNT_TMA_MAX_BYTES SHUNT_TMA_BYTES(SHUNT_MAX_THREADS / 32 - 1) /* one warp of a block is its proxy warp */

struct shunt_ctrl;

/*
 * Describes the calls of a launch where SHUNT_CHECK is on. The launch then has a block more than the kernel needs,
 * which compares the description with the peers' (kernels/check.h). Collectives are compared among all ranks; the
 * first launch of a group describes all collectives of the group. A message concerns two ranks, which may issue their
 * messages in different groups: messages are compared one by one, from the launch's own list.
 */
struct shunt_check {
	uint8_t what; /* SHUNT_CHECK_*; 0: the launch has no such block */
	/* Of the first collective; 0 where its kind has no such parameter. kargs.count is its count. */
	uint8_t kind, dtype, redop;
	uint16_t root;
	uint16_t calls; /* number of collectives, at most 65,535 */
	/* Of the first collective, counted from 1 on this communicator. In a fault about messages: of the message. */
	uint32_t number;
	uint32_t hash; /* of all collectives */
};

struct shunt_kargs {
	char *peer[SHUNT_KARGS_MAX_RANKS]; /* base of each rank's scratch, as mapped here */
	const void *send;
	void *recv;
	uint64_t count; /* elements */
	union {
		uint64_t scalar;
		/*
		 * Pairwise exchanges: bytes that each rank sends the other. The elements of their kernels are not the
		 * call's.
		 */
		uint64_t part;
	};
	uint32_t flags;
	uint16_t rank, nranks;
	/*
	 * P2P kernels: most channels of a pair of ranks for LL128 messages; the same on all ranks. Over hosts: channels
	 * that have chunks.
	 */
	uint16_t channels;
	uint16_t roles;           /* P2P kernels: number of roles */
	uint16_t simple_channels; /* like channels, for Simple messages */
	uint16_t pad;
	union {
		uint32_t root;     /* with SHUNT_K_TO_ROOT */
		uint32_t per_role; /* ll128_one: 65536 / roles, rounded up */
	};
	uint64_t op; /* identifies the operation, for struct shunt_progress; 0: no account is kept */
	struct shunt_check check;
};

/*
 * P2P kernels: this rank's part in one or several calls, as messages in order of issue, sorted by role. A warp has
 * one role, for one of the channels.
 *
 *   Role     Task
 *   SEND     send to a peer
 *   RECV     receive from a peer
 *   REDUCE   reduce what all peers send, and this rank's own part
 *   COPY     copy from this rank to itself
 *   FORWARD  receive from a peer and pass on to all other ranks; LL128 only
 */
enum { SHUNT_ROLE_SEND, SHUNT_ROLE_RECV, SHUNT_ROLE_REDUCE, SHUNT_ROLE_COPY, SHUNT_ROLE_FORWARD };

struct shunt_role {
	uint8_t what, peer;
	/*
	 * simple.cu and tma.cu: blocks that have this role and no other, behind those of the roles before it. 0: the
	 * roles share the remaining blocks.
	 */
	uint8_t blocks;
	uint8_t pad;
	uint16_t channels;     /* most channels of a message; tma.cu: warps that have the role */
	uint16_t first, count; /* messages of the role */
};

struct shunt_message {
	const void *from; /* source of a send or copy; this rank's own input of a reduce */
	void *to;         /* destination of a receive, copy or reduce */
	uint64_t bytes;   /* | SHUNT_MESSAGE_SIMPLE (kernels/simple.h). Both ends of a message have the same value. */
};

#define SHUNT_MAX_ROLES (2 * (SHUNT_KARGS_MAX_RANKS - 1) + 1)
#define SHUNT_FEW_MESSAGES 16u    /* enough for any single collective */
#define SHUNT_MANY_MESSAGES 1280u /* as many as fit into the 32,764 bytes of a kernel's parameters */

struct shunt_kargs_few {
	struct shunt_kargs k;
	union {
		struct shunt_role role[SHUNT_MAX_ROLES];
		/*
		 * LL128 kernels for few messages number the slots of all messages consecutively. Element i is the
		 * first slot of message i, UINT32_MAX: no such message. The last element is the number of slots.
		 * uneven.cu: element i is the number of slots of part i, the last one that of the longest part.
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

/* Barriers around operations on symmetric memory. */
struct shunt_kargs_barrier {
	struct shunt_kargs k;
	/* The places of this rank's buffers in their windows (comm/calls/windows.h), mixed into one number. */
	uint64_t own_place;
	uint64_t peer_places[SHUNT_KARGS_MAX_RANKS]; /* the places that a peer must announce; 0: any */
};

/*
 * Reductions between such barriers. k.send, k.recv and k.count are unused. Both lists begin at the part that this
 * rank reduces.
 */
struct shunt_kargs_direct {
	struct shunt_kargs k;
	const void *from[SHUNT_KARGS_MAX_RANKS]; /* every rank's input, as mapped here */
	void *to[SHUNT_KARGS_MAX_RANKS];         /* destinations of the result, by rank; NULL: none on that rank */
	uint64_t bytes;                          /* of one input */
};

/*
 * Plan kernels. k.peer is unused, k.count is only for the check. k.nranks: addresses behind each bytecode's head.
 * kernels/plan/args.h describes the memory that the pointers refer to.
 */
struct shunt_kargs_plan {
	struct shunt_kargs k;
	struct shunt_ctrl *ctrl; /* of the communicator: abort word, deadline, fault record */
	const char *bytecodes;   /* of block 0; those of the other blocks follow */
	char *resources;         /* this rank's */
	char *buffer[2];         /* memory that the plan uses as this rank's input and output */
	uint64_t chunk;          /* units */
	uint64_t part_bytes[2];  /* of one part of the caller's send and receive buffers */
	uint32_t bytecode_bytes;
	uint32_t pad;
	/*
	 * Of a buffer with SHUNT_PLAN_DIRECT0 << buffer: its address on each rank, as mapped here. `place` stands for
	 * all these addresses and is the same on all ranks.
	 */
	char *remote[2][SHUNT_KARGS_MAX_RANKS];
	uint64_t place;
};

/* Written by a kernel that gives up: once per communicator, `set` last. */
enum {
	SHUNT_FAULT_NONE,
	SHUNT_FAULT_TIMEOUT,
	SHUNT_FAULT_ABORT,
	SHUNT_FAULT_MISMATCH,
	SHUNT_FAULT_PLACE,
	/* Of expert parallel groups (kernels/ep.h). */
	SHUNT_FAULT_EXPERT, /* seen: an id that is no expert of `expected` ones; channel, pad: its token and place */
	/*
	 * expected, seen: the values of this rank's call, and of the peer's. channel: the kind of a call of normal
	 * mode, of which pad says the value; SHUNT_CHECK_CHANNEL: of a low latency dispatch.
	 */
	SHUNT_FAULT_DIFFERS,
	SHUNT_FAULT_UNDER_WAY, /* a third call of a kind is sent (seen 1), or one is received that was not sent (0) */
	SHUNT_FAULT_OVERFLOW,  /* the peer has room for `expected` of `seen` rows. channel: the kind of the call */
};
/* Peer of a fault: packets are missing, which do not say who should have written them. */
#define SHUNT_FAULT_ANY_PEER UINT32_MAX
struct shunt_fault {
	uint64_t set; /* SHUNT_FAULT_* */
	uint32_t rank, peer, channel, pad;
	/*
	 * Epochs or steps of the channel. SHUNT_FAULT_PLACE: places of buffers, one place or several mixed into one
	 * number.
	 */
	uint64_t expected, seen;
	uint64_t op; /* progress.now */
	/*
	 * Of a mismatch: the descriptions of this rank and of the peer, with their counts. Messages: `what` is
	 * SHUNT_CHECK_MESSAGES, `kind` is 0 at the sender and 1 at the receiver, the counts are bytes.
	 */
	struct shunt_check mine, theirs;
	uint64_t mine_count, theirs_count;
};

/*
 * Shared by a rank's host and its kernels, in page-locked host memory. Neither side needs the driver for an access: a
 * call that waits for kernels, such as cudaFree, holds the driver as long as it waits.
 */
#define SHUNT_LIMIT_ABORT UINT64_MAX
#define SHUNT_WAIT_RANKS 64u
struct shunt_wait {
	uint64_t ns, last; /* how long kernels have waited for a peer, and when one last did so (spin.h) */
};
struct shunt_host_ctrl {
	struct shunt_fault fault;
	/* Written by the host. Longest time of a spin; 0: no limit; SHUNT_LIMIT_ABORT: every spin ends now. */
	uint64_t limit_ns;
	/* Of communicators whose kernels go on without ranks (kernels/ep_wait.h). */
	uint64_t gone;                             /* written by the host: ranks whose processes have ended, as bits */
	uint64_t masked[SHUNT_KARGS_MAX_RANKS];    /* not 0: a kernel has masked the rank */
	struct shunt_wait waits[SHUNT_WAIT_RANKS]; /* by rank of the communicator */
};

/*
 * Progress of a communicator's launches on this rank, for diagnosis only. comm/observe/recorder.h says who writes
 * which field.
 */
struct shunt_progress {
	uint64_t now;          /* kargs.op of the last launch that began */
	uint64_t eager;        /* kargs.op of the last launch outside of a graph that began */
	uint64_t replays;      /* launches by a graph that began */
	uint64_t begun, ended; /* warps */
};

/*
 * SHUNT_CHECK's part of a rank's scratch. Each half of a packet holds 4 bytes of data and 4 bytes of flag. Indices
 * are ranks.
 */
#define SHUNT_CHECK_PACKETS 3u         /* of an announcement: count and check */
#define SHUNT_CHECK_CHANNEL UINT32_MAX /* in a fault: the check waited, not a channel */
/* Messages of a pair that wait to be compared: never fewer than channel 0 of the pair has slots. */
#define SHUNT_CHECK_RING 32u
struct shunt_check_packet {
	uint64_t half[2];
};
struct shunt_check_area {
	struct shunt_check_packet announced[2][SHUNT_KARGS_MAX_RANKS]
	                                   [SHUNT_CHECK_PACKETS]; /* [parity of the launch][source] */
	struct shunt_check_packet size[SHUNT_KARGS_MAX_RANKS]
	                              [SHUNT_CHECK_RING]; /* sizes of the messages to this rank, by source */
	char *peer[SHUNT_KARGS_MAX_RANKS];                /* each rank's ctrl, as mapped here */
	uint64_t launches; /* launches with collectives; the number of a launch is its packets' flag */
	uint64_t sent[SHUNT_KARGS_MAX_RANKS], received[SHUNT_KARGS_MAX_RANKS]; /* messages */
	/* Messages sent by this rank that the receiver has compared. Written by the receiver. */
	uint64_t head[SHUNT_KARGS_MAX_RANKS];
	/* Written by a receiver that expects another size, before it raises this rank's abort word. `set` last. */
	struct {
		uint64_t set, number, ours, theirs;
	} rejected[SHUNT_KARGS_MAX_RANKS];
};

/* A rank's announcement at a barrier; number last. */
struct shunt_barrier_flag {
	uint64_t place, number;
};

/*
 * Counters of the p2p engine's rings, in slots or chunks since the creation of the communicator: [peer][channel],
 * peers without this rank.
 */
struct shunt_rings {
	uint64_t sent[SHUNT_P2P_CHANNELS];
	uint64_t received[SHUNT_P2P_CHANNELS];
	/* Sent by this rank and out of the ring. Written by the receiver. */
	uint64_t head[SHUNT_P2P_CHANNELS];
	/* Sent to this rank and certainly in the ring. Written by the sender, of chunks only. */
	uint64_t tail[SHUNT_P2P_CHANNELS];
	/*
	 * Sent by this rank and read from the program's memory. Kept with SHUNT_K_OVER_SENT_INPUT only, for the role
	 * that reduces.
	 */
	uint64_t read[SHUNT_P2P_CHANNELS];
};

struct shunt_ctrl {
	/* Set by the host through a copy, by a peer, or by a kernel that gave up. Every spin polls it. */
	uint32_t abort;
	uint32_t zero;   /* 0: a peer raises abort by a store of 8 bytes */
	uint32_t broken; /* 1: a thread writes or has written the fault */
	uint32_t pad;
	/*
	 * Over shared memory of the host: this rank's segment, as mapped here. It begins with such a struct, of which
	 * the peers write the words that they would write into this one.
	 */
	struct shunt_ctrl *inbox;
	/* Of the communicator, by the number that kernels on this memory have for it. */
	uint8_t rank_of[SHUNT_KARGS_MAX_RANKS];
	struct shunt_host_ctrl *host_ctrl; /* device address */
	struct shunt_progress progress;
	uint64_t epoch[SHUNT_LL128_CHANNELS]; /* of all-reduces, by whichever kernel */
	struct shunt_rings ll128, simple;
	struct shunt_check_area check;
	uint64_t barriers;                                           /* barriers that this rank has completed */
	struct shunt_barrier_flag barrier[2][SHUNT_KARGS_MAX_RANKS]; /* [parity of the number][source] */
};

/*
 * Byte offsets within the scratch, the same on every rank of n.
 *
 *   Area         Layout
 *   first hop    [channel][parity][slot] of LL128 slots
 *   second hop   [channel][slot] of LL128 slots; none with two ranks
 *   p2p rings    [source][channel][slot] of LL128 slots, and the same of chunks; sources without this rank
 */
#define SHUNT_CTRL_BYTES (128u << 10)
#define SHUNT_HOP_BYTES ((uint64_t)SHUNT_LL128_CHANNELS * SHUNT_LL128_SLOTS * SHUNT_LL128_SLOT_WIRE)
#define SHUNT_HOP1_AT ((uint64_t)SHUNT_CTRL_BYTES)
#define SHUNT_P2P_AT (SHUNT_HOP1_AT + 2 * SHUNT_HOP_BYTES)
#define SHUNT_HOP2_AT (SHUNT_P2P_AT + (uint64_t)SHUNT_P2P_CHANNELS * SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE)
#define SHUNT_SIMPLE_AT(n) (SHUNT_HOP2_AT + ((n) > 2 ? SHUNT_HOP_BYTES : 0))
/*
 * Over shared memory of the host each rank has a segment of its own with these areas, and in its scratch the ctrl alone
 * (kernels/staged.h). A slot of sectors has 512 bytes on the wire, too.
 */
#define SHUNT_SECTOR_SLOT_DATA 384u
#define SHUNT_STAGED_BLOCKS 32u /* of a launch */
#define SHUNT_STAGED_CHANNELS (SHUNT_STAGED_BLOCKS * SHUNT_MAX_THREADS / 32)
#define SHUNT_STAGED_P2P_CHANNELS 256u
#define SHUNT_STAGED_SIMPLE_CHANNELS 240u
#define SHUNT_STAGED_RING 4u /* of chunks */
#define SHUNT_SEGMENT_BYTES(n) \
	(SHUNT_HOP1_AT + \
	    ((n) > 2 ? 3u : 2u) * (uint64_t)SHUNT_STAGED_CHANNELS * SHUNT_LL128_SLOTS * SHUNT_LL128_SLOT_WIRE + \
	    (uint64_t)SHUNT_STAGED_P2P_CHANNELS * SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE + \
	    (uint64_t)SHUNT_STAGED_SIMPLE_CHANNELS * SHUNT_STAGED_RING * SHUNT_SIMPLE_CHUNK)
/*
 * The self-test of links (kernels/selftest.cu): where what one rank sends another one in a lane, a warp, lies. It uses
 * the end of the p2p rings of chunks, of which nothing is read that their counters do not announce.
 */
#define SHUNT_SELFTEST_LANES 4u
struct shunt_selftest_lane {
	uint64_t packet[64]; /* lower half: data, upper half: the round */
	uint64_t chunk[512];
	uint64_t tail, pad[15];  /* rounds that the chunk is there for */
	uint64_t head, pad2[15]; /* rounds that the owner of this memory has read, in its lane to the other rank */
};
#define SHUNT_SELFTEST_BYTES \
	((uint64_t)SHUNT_KARGS_MAX_RANKS * SHUNT_SELFTEST_LANES * sizeof(struct shunt_selftest_lane))
/* Of one lane, in memory of the host. The first mistake; done: the lane and the one that sends have ended. */
enum { SHUNT_SELFTEST_RIGHT, SHUNT_SELFTEST_PACKET, SHUNT_SELFTEST_CHUNK, SHUNT_SELFTEST_SILENT };
struct shunt_selftest_status {
	uint64_t done;
	uint32_t kind, round, word, pad;
	uint64_t expected, seen;
};
#define SHUNT_SELFTEST_STATUS_BYTES \
	(SHUNT_KARGS_MAX_RANKS * SHUNT_SELFTEST_LANES * sizeof(struct shunt_selftest_status))
struct shunt_kargs_selftest {
	char *area[SHUNT_KARGS_MAX_RANKS];    /* SHUNT_SELFTEST_BYTES of each rank, as mapped here */
	struct shunt_selftest_status *status; /* of each peer's lanes */
	uint32_t rank, peers;                 /* peers to be tested, as bits */
	uint32_t rounds, pad;
	uint64_t first_ns, wait_ns; /* longest wait for a peer's first word, and for each later one */
	uint64_t all_ns;            /* longest time of the kernel */
};
#define SHUNT_SCRATCH_BYTES(n) \
	(SHUNT_SIMPLE_AT(n) + (uint64_t)SHUNT_SIMPLE_CHANNELS * SHUNT_SIMPLE_RING(n) * SHUNT_SIMPLE_CHUNK)
