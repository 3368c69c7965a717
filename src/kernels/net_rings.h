/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Calls over several hosts: the data that the host side, the kernels and the proxy thread share. Plain C.
 *
 * A kernel moves chunks through rings. A ring belongs to a pair of ranks, a direction, a leg and a channel; its slots
 * hold a chunk each. Where both ranks are on one host, the ring is in the receiver's scratch, and kernels write its
 * counters. Where they are not, the sender has slots in page-locked memory of its process, and the receiver has as
 * many: the kernel fills a slot and pushes a trigger into a FIFO, the proxy thread puts the slot into the peer's, and
 * the peer's proxy thread counts it (transport/net/proxy/proxy.h). Credits go the other way as signals.
 *
 * Small messages between hosts of a rank each go as packets: 4 bytes of data and 4 of flag in each 8. Whoever sees the
 * flags has the data, so the sender needs no fence, and the receiver one look instead of two (kernels/net_packets.h).
 *
 * All counters go up for ever, in memory that launches share, so a graph's replays continue where the last launch
 * ended.
 */
#include <stdint.h>
#include "kernels/kargs.h"

#define SHUNT_NET_MAX_RANKS 64u
/* A channel has its share of the chunks of every message, and a block or two of its own. */
#define SHUNT_NET_CHANNELS 4u
/* Slots of a ring: a power of two. Half of them are returned at a time, so that a sender still has the other half. */
#define SHUNT_NET_SLOTS 4u
#define SHUNT_NET_CREDIT_BATCH (SHUNT_NET_SLOTS / 2)
/* Legs: roles of one launch that fill rings to the same rank. Between hosts the first two are used. */
#define SHUNT_NET_LEGS 3u
#define SHUNT_NET_REMOTE_LEGS 2u
/* Rings of a pair and a direction, in the order leg, channel. */
#define SHUNT_NET_RINGS (SHUNT_NET_LEGS * SHUNT_NET_CHANNELS)
#define SHUNT_NET_REMOTE_RINGS (SHUNT_NET_REMOTE_LEGS * SHUNT_NET_CHANNELS)
#define SHUNT_NET_RING(leg, channel) ((leg) * SHUNT_NET_CHANNELS + (channel))

/*
 * Packets: a message for each pair and direction in a launch, in a ring of its own. Its slots hold packets alone, so
 * that no data is taken for a flag. A message is 32 bytes for each 16 of data, and 16 more for the credits.
 */
#define SHUNT_NET_PACKET_RANKS 8u   /* hosts of a rank each, at most */
#define SHUNT_NET_PACKET_MOST 4096u /* bytes of data */
#define SHUNT_NET_PACKET_PACKS(bytes) (((uint32_t)(bytes) + 15) / 16)
#define SHUNT_NET_PACKET_BYTES(bytes) (SHUNT_NET_PACKET_PACKS(bytes) * 32 + 16)
#define SHUNT_NET_PACKET_SLOT ((SHUNT_NET_PACKET_BYTES(SHUNT_NET_PACKET_MOST) + 63) & ~63u)

/*
 * Channels of signals between two ranks (transport/net/net.h): those of the rings, of their credits behind, and of the
 * packets' credits. Regions have channels of their own behind these.
 */
#define SHUNT_NET_CREDIT_CHANNEL SHUNT_NET_REMOTE_RINGS
#define SHUNT_NET_PACKET_CHANNEL (2 * SHUNT_NET_REMOTE_RINGS)
#define SHUNT_NET_SIGNAL_CHANNELS 48u /* groups of kernels/ep.h have the most */

/*
 * A trigger: 16 bytes in four halves of packets. The upper 4 bytes of each half are its place in the FIFO's count, from
 * 1 and modulo 2^32, so that the proxy thread sees at one look whether all of it has arrived.
 */
#define SHUNT_NET_FIFO 1024u /* triggers; a power of two */
struct shunt_net_trigger {
	uint64_t half[4];
};
/* The first half's value: bits of the connection, the signal's channel, and what to do. */
#define SHUNT_NET_TRIGGER(connection, channel, what) \
	((uint32_t)(connection) | (uint32_t)(channel) << 8 | (uint32_t)(what) << 24)
enum {
	SHUNT_NET_TRIGGER_SIGNAL = 1,  /* raise the channel */
	SHUNT_NET_TRIGGER_PUT = 2,     /* put the bytes first */
	SHUNT_NET_TRIGGER_PACKETS = 4, /* ... of which each aligned 8 arrive at once */
	SHUNT_NET_TRIGGER_REGION = 8,  /* ... in a region, and all in units of 16 bytes */
	/*
	 * Alone: the launch waits for a rank that has left (struct shunt_net_words), which BYTES has. FROM: 1: it is
	 * the connection's peer.
	 */
	SHUNT_NET_TRIGGER_FORSAKEN = 16,
	/*
	 * With a put of packets that may still be on their way here: each has the flag of which the channel has the
	 * lower half. There is no signal.
	 */
	SHUNT_NET_TRIGGER_FLAGGED = 32,
};
/* The values of the other halves. From and to are offsets in the memory of the sender and of the peer. */
enum {
	SHUNT_NET_TRIGGER_BYTES = 1, /* without a put: the count of the signal; with a put the count is 1 */
	SHUNT_NET_TRIGGER_FROM,
	SHUNT_NET_TRIGGER_TO,
};
/* Regions: more page-locked memory, which ranks number alike. Of a put in one, BYTES has the region and the units. */
#define SHUNT_NET_REGION_BITS 12
#define SHUNT_NET_MAX_REGIONS (1u << SHUNT_NET_REGION_BITS)
#define SHUNT_NET_REGION_UNIT 16u
#define SHUNT_NET_REGION_PUT ((1u << (32 - SHUNT_NET_REGION_BITS)) - 1) /* units of a put, at most */
#define SHUNT_NET_REGION_BYTES(region, units) ((uint32_t)(region) << (32 - SHUNT_NET_REGION_BITS) | (uint32_t)(units))

/* Page-locked memory of a rank. The fields after the FIFO are written by the proxy thread, and read by kernels. */
struct shunt_net_words {
	struct shunt_net_trigger fifo[SHUNT_NET_FIFO];
	uint64_t taken; /* triggers out of the FIFO */
	uint64_t pad[7];
	/*
	 * By connection: the place, from 1, of the first trigger out of the FIFO whose source may still be read; 0:
	 * none. Written before `taken`.
	 */
	uint64_t busy[SHUNT_NET_MAX_RANKS];
	/* By connection and channel of signals: how often it was raised. */
	uint64_t raised[SHUNT_NET_MAX_RANKS][SHUNT_NET_SIGNAL_CHANNELS];
	/* By connection: 1: the peer has left, and `raised` goes up no more. `left`, written later: how many. */
	uint64_t gone[SHUNT_NET_MAX_RANKS], left;
	uint64_t pad2; /* packets are 16 aligned bytes */
	/*
	 * SHUNT_CHECK, in two sets that launches use in turns: the announcements of this rank, written by its kernels,
	 * and those of its peers, by connection.
	 */
	struct shunt_check_packet announcement[2][SHUNT_CHECK_PACKETS];
	struct shunt_check_packet announced[SHUNT_NET_MAX_RANKS][2][SHUNT_CHECK_PACKETS];
};

/* A peer, or this rank itself, as a kernel sees it. Pointers are this rank's. */
struct shunt_net_pair {
	char *out, *in;                /* slots of the first ring; the peer's own where the pair is on one host */
	uint64_t *out_tail, *out_head; /* by ring: slots filled, written by this rank; slots taken, read by it */
	uint64_t *in_tail, *in_head;   /* ... read by this rank; written by it */
	uint64_t out_at, to_at;        /* between hosts: offsets of `out` here, and of `in` at the peer */
	uint32_t connection;           /* between hosts */
	uint32_t there;                /* between hosts: the number of the connection at the peer */
	uint32_t remote;               /* 1: between hosts: instead of writing a counter, push a trigger */
	uint32_t pad;
	struct shunt_net_ctrl *ctrl; /* on one host: the peer's */
};

/* Messages of packets with a rank. The peer has taken credits + seen of them, at least. */
struct shunt_net_mail {
	uint64_t sent, received;
	uint64_t told;    /* of the received ones, the peer knows of so many */
	uint64_t credits; /* that came with messages */
	uint64_t seen;    /* signals of the peer's, when this rank last looked */
};

/* In each rank's scratch, behind its struct shunt_ctrl. */
struct shunt_net_ctrl {
	struct shunt_net_words *words; /* device address */
	uint64_t pushed;               /* triggers into the FIFO, by all blocks */
	uint64_t taken_seen;           /* words->taken, when a block last looked: a look goes over PCIe */
	uint32_t rank, nranks;         /* of all hosts */
	uint32_t channels, slot_bytes;
	struct shunt_net_pair pair[SHUNT_NET_MAX_RANKS]; /* by rank */
	/* Slots filled and taken by this rank. */
	uint64_t sent[SHUNT_NET_MAX_RANKS][SHUNT_NET_RINGS], received[SHUNT_NET_MAX_RANKS][SHUNT_NET_RINGS];
	uint64_t head_seen[SHUNT_NET_MAX_RANKS][SHUNT_NET_RINGS]; /* out_head, when this rank last looked */
	struct shunt_net_mail mail[SHUNT_NET_PACKET_RANKS];       /* by rank */
	/* Of pairs on one host: written by the peer. By index of the peer on its host. */
	uint64_t tail[SHUNT_KARGS_MAX_RANKS][SHUNT_NET_RINGS], head[SHUNT_KARGS_MAX_RANKS][SHUNT_NET_RINGS];
	/*
	 * 1 + a rank of another host that has left, but for which a launch on this host waits; written by the rank of
	 * that launch.
	 */
	uint64_t forsaken;
	/* SHUNT_CHECK: the announcements of the ranks of this host, in two sets, by rank. */
	struct shunt_check_packet announced[2][SHUNT_NET_MAX_RANKS][SHUNT_CHECK_PACKETS];
};

/*
 * Scratch: ctrl | net ctrl | rings of pairs on one host, by the sender's index on the host.
 */
#define SHUNT_NET_CTRL_AT SHUNT_CTRL_BYTES
#define SHUNT_NET_CTRL_BYTES (64u << 10)
#define SHUNT_NET_LOCAL_AT ((uint64_t)SHUNT_NET_CTRL_AT + SHUNT_NET_CTRL_BYTES)
#define SHUNT_NET_PAIR_BYTES(slot_bytes) ((uint64_t)SHUNT_NET_RINGS * SHUNT_NET_SLOTS * (slot_bytes))
#define SHUNT_NET_SCRATCH_BYTES(nlocal, slot_bytes) \
	(SHUNT_NET_LOCAL_AT + (uint64_t)(nlocal) * SHUNT_NET_PAIR_BYTES(slot_bytes))
/* Page-locked memory: words | slots to, and slots from, each rank on another host, by connection; packets' come last.
 */
#define SHUNT_NET_REMOTE_AT (((uint64_t)sizeof(struct shunt_net_words) + 4095) & ~(uint64_t)4095)
#define SHUNT_NET_PACKETS_AT(slot_bytes) ((uint64_t)SHUNT_NET_REMOTE_RINGS * SHUNT_NET_SLOTS * (slot_bytes))
#define SHUNT_NET_REMOTE_BYTES(slot_bytes) \
	(SHUNT_NET_PACKETS_AT(slot_bytes) + (uint64_t)SHUNT_NET_SLOTS * SHUNT_NET_PACKET_SLOT)
#define SHUNT_NET_OUT_AT(connection, slot_bytes) \
	(SHUNT_NET_REMOTE_AT + 2 * (uint64_t)(connection) * SHUNT_NET_REMOTE_BYTES(slot_bytes))
#define SHUNT_NET_IN_AT(connection, slot_bytes) \
	(SHUNT_NET_OUT_AT(connection, slot_bytes) + SHUNT_NET_REMOTE_BYTES(slot_bytes))
#define SHUNT_NET_MEMORY_BYTES(connections, slot_bytes) SHUNT_NET_OUT_AT(connections, slot_bytes)

/*
 * The program of a launch. A role is a list of moves that come one after the other; roles proceed by themselves. A move
 * takes chunks from this rank's own memory, from rings, or from both, and reduces them in the order of its sources. It
 * stores the result into this rank's memory, into rings, or into both. So it sends, receives, reduces, copies or passes
 * on.
 */
#define SHUNT_NET_MAX_ENDS (2 * SHUNT_NET_MAX_RANKS) /* sources and outputs of a move */
struct shunt_net_move {
	const void *from; /* NULL: no own memory */
	void *to;         /* NULL: not stored here */
	uint64_t bytes;
	uint16_t ends;              /* index in `end` of the first source; outputs follow the sources */
	uint8_t nsources, noutputs; /* rings */
	uint8_t own;                /* place of own memory among the sources */
	uint8_t flags;              /* SHUNT_NET_MOVE_* */
	uint16_t pad;
};
enum {
	SHUNT_NET_MOVE_SCALE = 1,  /* multiply own memory by the factor of the call before its use */
	SHUNT_NET_MOVE_FINISH = 2, /* the result of the call: divide integer averages */
};
/* A ring: its rank and leg. */
#define SHUNT_NET_END(rank, leg) ((uint16_t)((rank) | (leg) << 8))
struct shunt_net_role {
	uint16_t first, count; /* moves */
	/*
	 * Roles of different groups may have blocks of their own, below SHUNT_NET_GROUPS. If one role stores to memory
	 * that another role loads, both are in one group, or a ring from this rank to itself orders them.
	 */
	uint32_t group;
};
#define SHUNT_NET_GROUPS 2u

#define SHUNT_NET_FEW_ROLES 16u
#define SHUNT_NET_FEW_MOVES 24u
#define SHUNT_NET_FEW_ENDS 64u
#define SHUNT_NET_MANY_ROLES 192u
#define SHUNT_NET_MANY_MOVES 600u
#define SHUNT_NET_MANY_ENDS 2400u
struct shunt_kargs_net_few {
	struct shunt_kargs k; /* rank, nranks and peer are those of the host */
	uint16_t roles;
	/* Bits of ranks to which the launch sends packets, and from which it receives some; 0, 0: it has no packets. */
	uint8_t sends, receives;
	uint32_t total; /* ranks of all hosts */
	struct shunt_net_role role[SHUNT_NET_FEW_ROLES];
	struct shunt_net_move move[SHUNT_NET_FEW_MOVES];
	uint16_t end[SHUNT_NET_FEW_ENDS];
};
struct shunt_kargs_net_many {
	struct shunt_kargs k;
	uint32_t roles;
	uint32_t total; /* ranks of all hosts */
	struct shunt_net_role role[SHUNT_NET_MANY_ROLES];
	struct shunt_net_move move[SHUNT_NET_MANY_MOVES];
	uint16_t end[SHUNT_NET_MANY_ENDS];
};

/*
 * Bytes of a chunk of a message: as much as a slot holds; less where the message would otherwise leave channels idle,
 * or where a channel would have less than four, so that kernels and the network work at the same time. Both ends of a
 * ring have the same message, and so the same chunks. Chunk k travels on channel k mod channels.
 */
#define SHUNT_NET_MIN_CHUNK 8192u
#define SHUNT_NET_MIN_OVERLAP 32768u /* a smaller chunk costs more than its overlap gains */
#ifdef __CUDACC__
#define SHUNT_NET_FN static __device__ __forceinline__
#else
#define SHUNT_NET_FN static inline
#endif
SHUNT_NET_FN uint32_t shunt_net_chunk(uint64_t bytes, uint32_t channels, uint32_t slot_bytes)
{
	/* Constants, as a GPU takes a quarter of a microsecond to divide by a variable. */
	uint64_t each = channels == 4 ? bytes / 4 :
	    channels == 2             ? bytes / 2 :
	    channels == 1             ? bytes :
	                                bytes / channels;
	uint64_t chunk = (each + 511) & ~(uint64_t)511;

	if (chunk > SHUNT_NET_MIN_OVERLAP)
		chunk = chunk / 4 < SHUNT_NET_MIN_OVERLAP ? SHUNT_NET_MIN_OVERLAP : (chunk / 4 + 511) & ~(uint64_t)511;
	if (chunk < SHUNT_NET_MIN_CHUNK)
		chunk = SHUNT_NET_MIN_CHUNK;
	return chunk < slot_bytes ? (uint32_t)chunk : slot_bytes;
}
