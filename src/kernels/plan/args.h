/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Shared by src/plan and the plan kernels (plan.cu): programs, and the layout of the resources.
 *
 * A *program* has the operations of all blocks of one rank. Each block has *bytecode* of its own, all of one size: a
 * struct shunt_prog_head, the addresses of all ranks' resources, and the block's operations one after the other. Sizes
 * are in units of `unit` bytes (the plan's alignment) and in chunks. The launch says how many units a chunk has, so
 * that one program serves all sizes.
 *
 * The *resources* are one rank's memory for one plan on one communicator. All ranks map them, and all have one
 * layout:
 *
 *   counters         Only grow, over all launches, so that a launch's arguments stay valid if a graph repeats it.
 *   staging buffers  Of input and output. Peers access them instead of the caller's memory, unless all ranks' buffers
 *                    are in symmetric memory and are used directly.
 *   scratch          Once or twice. Packets have a part of their own if scratch also holds other data.
 *
 * Over several hosts, buffers that a port between hosts reads or writes lie in a *region* (kernels/net_rings.h):
 * page-locked memory, which the ranks of a host map of each other. It begins with a counter for each channel of
 * signals. The table behind the head has 2 n + 1 addresses then: the resources of n ranks, their regions, and a struct
 * shunt_plan_ports. Operands on a region have n added to their rank. Ranks of other hosts have no resources, and their
 * region is at SHUNT_PLAN_FAR, where no memory is: only offsets from that address are used.
 */
#include <stdint.h>
#include "kernels/flags.h"
#include "kernels/net_rings.h"

enum shunt_prog_code {
#define PROG_CODE(code, src, dst) SHUNT_PROG_##code,
#include "kernels/plan/codes.def"
};

/* Followed by its operands: 16 bytes each, like all pieces of bytecode. */
struct shunt_prog_op {
	uint8_t code;
	uint8_t redop; /* enum shunt_redop: sum, product, maximum or minimum */
	/* SHUNT_PROG_WHOLE: inside of a loop, not cut by its windows. LOAD and STORE: the plan's buffer, 0 or 1. */
	uint16_t flags;
	uint32_t next; /* bytes from the bytecode's start to the next operation; of a loop: to its end */
	uint32_t nsrc, ndst;
	uint32_t part, parts; /* of every slice */
	uint64_t size;
};
#define SHUNT_PROG_WHOLE 1u

/*
 * Written by the host. If `as` says so, the kernel replaces an operand by a struct shunt_prog_addr or
 * shunt_prog_share, all operands at once, when the launch begins: the address of a slice follows from the size of
 * chunks, which comes with the launch. No other piece of an operation has its highest bit at the place of the highest
 * bit of `as`.
 */
struct shunt_prog_operand {
	uint16_t rank;
	/* 0 input, 1 output, 2 scratch. The caller's buffer of LOAD and STORE: 0 send, 1 receive. */
	uint8_t buffer;
	uint8_t as;     /* enum shunt_prog_as */
	uint32_t back;  /* 16-byte pieces back to the start of its operation */
	uint64_t index; /* chunks, or number of a counter */
};
enum shunt_prog_as {
	SHUNT_PROG_AS_HOST_WROTE,
	SHUNT_PROG_AS_SLICE = 0x80, /* address of a slice */
	SHUNT_PROG_AS_LL,           /* address of a slice of packets */
	SHUNT_PROG_AS_PART,         /* address of the operation's part of a slice; no window cuts it */
	SHUNT_PROG_AS_LL128,        /* the same of packets that travel as LL128 */
	/* Size of that part. The first operand of operations on LL128; nsrc and ndst do not count it. */
	SHUNT_PROG_AS_SHARE,
};
struct shunt_prog_addr {
	char *at;
	uint64_t in_scratch;
}; /* in_scratch: all bits or none. in_scratch & half is added to `at` in every other launch */
struct shunt_prog_share {
	uint32_t nslots, last;
	uint64_t pad;
}; /* slots, and 16-byte pieces of the last slot */

struct shunt_prog_head {
	uint32_t rank, nranks, nblocks, unit;
	uint32_t flags; /* enum shunt_prog_flags */
	/* Bytes from the bytecode's start to the first operation, and to the first one of the plan's own. */
	uint32_t first, body;
	/* Bytes from the resources' start. Struct shunt_plan_state of block b is at 64 * b. */
	uint32_t grid_at;                    /* struct shunt_plan_grid */
	uint32_t peers_at;                   /* struct shunt_plan_peer of each rank */
	uint32_t slots_at;                   /* struct shunt_plan_slot */
	uint32_t semaphores_at, barriers_at; /* uint64_t, 64 bytes apart */
	uint64_t staging_at[2];
	uint64_t scratch_at, half; /* half: bytes from the first scratch to the second */
	uint64_t dense;            /* LL128: ranges are packed closely if a chunk has at least this many units */
	uint64_t chunks[2];        /* of one part of the caller's send and receive buffers */
	/* Bytes from scratch_at to the packets if scratch also holds other data, else 0. */
	uint64_t packets_at;
	/* The size is a multiple of 16 bytes: bytecodes are adjacent, and are read in 16-byte pieces. */
};
/* Bytes from the start of a bytecode to its first operation. */
#define SHUNT_PROG_OPS_AT(nranks) \
	((uint32_t)(sizeof(struct shunt_prog_head) + ((nranks) + ((nranks) & 1)) * sizeof(char *)))

struct shunt_plan_state {
	uint64_t launches, chunk, pad[6];
}; /* of a block; chunk: of the last launch */
struct shunt_plan_grid {
	uint64_t enter, pad[7], leave, pad2[7];
}; /* arrivals of blocks */
struct shunt_plan_peer {
	uint64_t entered, left, place, pad[5];
}; /* the last launch that a rank entered and left, and the place of its buffers in it; written by that rank */
struct shunt_plan_slot {
	uint64_t signals, waits, pad[6];
}; /* of one end of a channel; the other end writes signals */

/*
 * Of plans over hosts. Channels of signals: first_channel + a slot's number; behind the slots those by which rank r
 * says that it has entered, `slots` + r, and left, `slots` + nranks + r.
 */
enum shunt_plan_reach { SHUNT_PLAN_NEVER, SHUNT_PLAN_BY_MEMORY, SHUNT_PLAN_BY_PORT };
struct shunt_plan_ports {
	const uint64_t *raised; /* by channel, from first_channel on: signals that have come */
	uint32_t region, first_channel, slots, pad;
	uint8_t reach[SHUNT_NET_MAX_RANKS]; /* by rank: how the plan's ranks reach each other, enum shunt_plan_reach */
};
#define SHUNT_PLAN_NO_SLOT UINT64_MAX /* of an operand: no signal */
#define SHUNT_PLAN_FAR 4096u
#define SHUNT_PLAN_PORTS_TABLE(nranks) (2 * (nranks) + 1)
#define SHUNT_PLAN_PORTS_CHANNELS(slots, nranks) ((slots) + 2 * (nranks))

/*
 * Packets as LL128. A plan cannot see how packets travel, only that their reader waits for them. If all readers of a
 * range of packets read exactly the range that was written (plan->ll128), the range travels in LL128 slots of four
 * lines (device/gpu.h): 480 bytes of data in 512, instead of 4 bytes of flag for each 4 bytes of data. The last slot
 * of a range may have fewer lines. The flag is the launch's number, in 64 bits. A slot's data fills the first seven
 * 16-byte pieces of each line, then the last 8 bytes before each flag.
 *
 * A range that begins at piece p of scratch (16 bytes each) begins at line p / 4, which is as much memory as packets
 * take. If some range may have fewer than 4 pieces, it begins at line p. Flags are always at the end of a line, so
 * stale data is never mistaken for a flag, whatever the size of chunks was.
 */
#define SHUNT_PLAN_LL128_LINES(pieces) ((2 * (pieces) + 14) / 15)

/* The flag of a launch's LL packets: never 0, odd and even in turns. */
#define SHUNT_PLAN_FLAG(launch) ((uint32_t)(((launch) - 1) % 0xfffffffeu) + 1)

/*
 * Bytecodes up to this size are resolved in shared memory (more than any other kernel needs), larger ones in a second
 * set of bytecodes behind the first.
 */
#define SHUNT_PLAN_SHARED_BYTECODE 14336u
