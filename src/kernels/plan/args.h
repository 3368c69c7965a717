/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_PLAN_ARGS_H
#define SHUNT_KERNELS_PLAN_ARGS_H
/*
 * What src/plan/compile/program.c and run.c share with the plan kernels (plan.cu): programs, and the layout of the
 * resources.
 *
 * A *program* is what the blocks of one rank do. Each block has an *image* of its own, all of one size: a struct
 * shunt_prog_head, the addresses of all ranks' resources, and the block's operations one after the other. Sizes are in
 * units of `unit` bytes (the plan's alignment) and chunks; how many units a chunk has comes with the launch, so that
 * one program serves all sizes.
 *
 * An *arena* is one rank's memory for one plan on one communicator, mapped by all ranks and laid out alike on all of
 * them: counters, then the staging buffers of input and output, where peers reach them instead of the caller's memory,
 * unless all ranks' buffers lie in windows: then they are used where they are; then scratch (once or twice), in which
 * packets have a place of their own if there is other data. Counters only ever grow, over all launches, so that the
 * arguments of a launch stay right if a graph repeats it.
 */
#include <stdint.h>

enum shunt_prog_code {
	SHUNT_PROG_END,
	SHUNT_PROG_SYNC,    /* the block's threads meet */
	SHUNT_PROG_BARRIER, /* blocks meet: nsrc of them at barrier `size` */
	/* Counters, one operand each, one thread each. */
	SHUNT_PROG_SIGNAL,      /* slot `index` of `rank` */
	SHUNT_PROG_WAIT,        /* our slot `index`; signalled by `rank` */
	SHUNT_PROG_SEM_ACQUIRE, /* our semaphore `index` */
	SHUNT_PROG_SEM_RELEASE,
	/* Data: nsrc + ndst slices of `size` chunks. */
	SHUNT_PROG_COPY,           /* one to one */
	SHUNT_PROG_REDUCE,         /* the sources (one, too) in order; the result to all destinations */
	SHUNT_PROG_PACK_PACKETS,   /* one plain source to packets */
	SHUNT_PROG_UNPACK_PACKETS, /* one packet source to one plain destination */
	SHUNT_PROG_PACK_PAIRS,     /* several of these; operands are source, destination, source, ... */
	SHUNT_PROG_UNPACK_PAIRS,
	SHUNT_PROG_FORWARD_PACKETS, /* one packet source to packets */
	SHUNT_PROG_REDUCE_PACKETS,  /* packet sources 1.. in order, then plain source 0; to plain destination 0 and
	                               packet destinations 1.. */
	SHUNT_PROG_LOOP, /* what follows, up to `next`, for each window of `index` units (of the operand) of `size`
	                    chunks */
	/* Before and after the plan's own operations. */
	SHUNT_PROG_READY, /* all peers have left the last launch */
	SHUNT_PROG_LOAD,  /* chunks of the caller's memory (first operand) to ours (second), if the launch has
	                     SHUNT_PLAN_LOAD0 << buffer */
	SHUNT_PROG_ENTER, /* all blocks, and if need be all ranks, are here */
	SHUNT_PROG_LEAVE, /* all blocks are done; peers are told */
	SHUNT_PROG_STORE, /* as LOAD, the other way */
};

/* Followed by its operands: 16 bytes each, like all pieces of an image. */
struct shunt_prog_op {
	uint8_t code;
	uint8_t redop;  /* enum shunt_redop: sum, product, maximum or minimum */
	uint16_t flags; /* SHUNT_PROG_WHOLE: not in windows, inside of a loop. Of LOAD and STORE: which of our buffers,
	                   0 or 1 */
	uint32_t next;  /* bytes from the image's start to the next operation (of a loop: behind the body) */
	uint32_t nsrc, ndst;
	uint32_t part, parts; /* of every slice */
	uint64_t size;
};
#define SHUNT_PROG_WHOLE 1u

/*
 * What the host writes. The kernel replaces those that say so in `as` by a struct shunt_prog_addr or shunt_prog_share,
 * all at once, when the launch begins: where a slice is follows from the size of chunks, which comes with the launch.
 * No other piece of an operation has its highest bit at that place.
 */
struct shunt_prog_operand {
	uint16_t rank;
	uint8_t buffer; /* 0 input, 1 output, 2 scratch; the caller's of LOAD and STORE: 0 what it sends, 1 what it
	                   receives */
	uint8_t as;     /* enum shunt_prog_as */
	uint32_t back;  /* 16-byte pieces to its operation's first one */
	uint64_t index; /* chunks, or a counter's number */
};
enum shunt_prog_as {
	SHUNT_PROG_AS_HOST_WROTE,
	SHUNT_PROG_AS_SLICE = 0x80, /* where a slice begins */
	SHUNT_PROG_AS_LL,           /* likewise, of packets */
	SHUNT_PROG_AS_PART,         /* where the operation's part of a slice begins; no window cuts it */
	SHUNT_PROG_AS_LL128,        /* likewise, of packets that travel as LL128 */
	SHUNT_PROG_AS_SHARE, /* how large that part is: the first operand of operations on LL128, beside nsrc and ndst
	                      */
};
struct shunt_prog_addr {
	char *at;
	uint64_t in_scratch;
}; /* all bits or none: in_scratch & half is what to add in every other launch */
struct shunt_prog_share {
	uint32_t nslots, last;
	uint64_t pad;
}; /* slots, and 16-byte pieces of the last one */

struct shunt_prog_head {
	uint32_t rank, nranks, nblocks, unit;
	uint32_t flags;
	uint32_t first,
	    body; /* bytes from the image's start to the first operation, and to the first of the plan's own */
	/* Bytes from the resources' start. Struct shunt_plan_state of block b is at 64 * b. */
	uint32_t grid_at;                    /* struct shunt_plan_grid */
	uint32_t peers_at;                   /* struct shunt_plan_peer of each rank */
	uint32_t slots_at;                   /* struct shunt_plan_slot */
	uint32_t semaphores_at, barriers_at; /* uint64_t, 64 bytes apart */
	uint64_t staging_at[2];
	uint64_t scratch_at, half; /* half: bytes to the second one */
	uint64_t dense;            /* lines: units of a chunk from which on ranges of lines are packed closely */
	uint64_t chunks[2];        /* of one part of what the caller sends and receives */
	uint64_t packets_at; /* from scratch_at on: where packets begin, if other data is in scratch, too; else 0 */
	/* All of it a multiple of 16 bytes: bytecodes lie one behind the other, and are read in 16-byte pieces. */
};
/* Bytes from an image's start to its first operation. */
#define SHUNT_PROG_OPS_AT(nranks) \
	((uint32_t)(sizeof(struct shunt_prog_head) + ((nranks) + ((nranks) & 1)) * sizeof(char *)))
#define SHUNT_PROG_STAGED 1u /* peers use our input or output */
#define SHUNT_PROG_DOUBLE_SCRATCH 2u
#define SHUNT_PROG_LL128 8u  /* packets travel as LL128 */
#define SHUNT_PROG_RESYNC 4u /* ranks must meet before chunks of another size than the last launch's are used */

struct shunt_plan_state {
	uint64_t launches, chunk, pad[6];
}; /* of a block; chunk of the last launch */
struct shunt_plan_grid {
	uint64_t enter, pad[7], leave, pad2[7];
}; /* arrivals of blocks */
struct shunt_plan_peer {
	uint64_t entered, left, place, pad[5];
}; /* the last launch that this rank entered, left; where its buffers are in that; written by it */
struct shunt_plan_slot {
	uint64_t signals, waits, pad[6];
}; /* of one end of a channel; signals are written by the other end */

/* Flags of a launch, beside those of enum shunt_kflags. LOAD and STORE bits: << buffer. */
#define SHUNT_PLAN_LOAD0 0x100u
#define SHUNT_PLAN_STORE0 0x400u
#define SHUNT_PLAN_LL8 0x1000u     /* packets are stored 8 bytes at a time */
#define SHUNT_PLAN_DIRECT0 0x2000u /* peers reach the callers' memory, and not staging buffers; << buffer */

/*
 * Packets as LL128. A plan cannot see how packets travel, only that who reads them waits for them. Where all that read
 * a range of packets read the very range that was written (plan->lines), it travels in slots of four lines (gpu.h), 480
 * bytes of data in 512, instead of 4 bytes beside each 4. The last slot of a range may have fewer lines. Their flag is
 * the launch's number, in 64 bits. A slot's data is in the first seven 16-byte places of each line, then in the last 8
 * bytes beside each flag.
 *
 * A range that begins at piece p of scratch (16 bytes each) begins at line p / 4, which is as much memory as packets
 * take; if some range may have fewer than 4 pieces, at line p. Flags are always at the end of a line, so stale data is
 * never taken for one, whatever the size of chunks was then.
 */
#define SHUNT_PLAN_LL128_LINES(pieces) ((2 * (pieces) + 14) / 15)

/* The flag of a launch's packets: never 0, odd and even in turns. */
#define SHUNT_PLAN_FLAG(launch) ((uint32_t)(((launch) - 1) % 0xfffffffeu) + 1)

/*
 * Bytecodes up to this size are made ready in shared memory (more than any other kernel needs), larger ones in a second
 * set of bytecodes behind the first.
 */
#define SHUNT_PLAN_SHARED_BYTECODE 14336u
#endif
