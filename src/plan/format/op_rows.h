/* SPDX-License-Identifier: MIT */
#pragma once
/* The table of the operations (ops.def): the syntax and the effects of each opcode. */
#include "plan/format/plan.h"

/* The ids of an operation. */
enum shunt_plan_ids {
	SHUNT_PLAN_IDS_NONE,
	SHUNT_PLAN_IDS_CHANNELS,   /* channel_ids, all of one type */
	SHUNT_PLAN_IDS_PORTS,      /* channel_ids, one for each dst, if the type is port; else none */
	SHUNT_PLAN_IDS_SEMAPHORES, /* semaphore_ids */
};

/* The effects of an operation, beside reading its src and writing its dst. */
enum shunt_plan_effect {
	SHUNT_PLAN_SYNCS = 1 << 0,        /* the block's threads synchronize */
	SHUNT_PLAN_SYNCS_BLOCKS = 1 << 1, /* the block waits at a barrier for nblocks blocks of its rank */
	/* For each id, in order: waits and acquisitions before the data, signals and releases after it. */
	SHUNT_PLAN_SIGNALS = 1 << 2,
	SHUNT_PLAN_WAITS = 1 << 3,
	SHUNT_PLAN_RELEASES = 1 << 4,
	SHUNT_PLAN_ACQUIRES = 1 << 5,
	SHUNT_PLAN_COMPLETES = 1 << 6, /* data sent on ports is complete when the operation ends */
	SHUNT_PLAN_PAIRWISE = 1 << 7,  /* as many src as dst; dst[i] = src[i] */
	SHUNT_PLAN_REDUCES = 1 << 8,   /* has a reduce_op */
	SHUNT_PLAN_REPEATS = 1 << 9,   /* a pipeline */
	SHUNT_PLAN_OWN_KEYS = 1 << 10, /* the file has keys of its own for src and dst */
};

/* Kind of a slice; a list has that of its i-th slice in bits 4i to 4i + 3. */
enum shunt_plan_slice_kind {
	SHUNT_PLAN_SLICE_LOCAL = 1 + SHUNT_PLAN_LOCAL,
	SHUNT_PLAN_SLICE_REMOTE = 1 + SHUNT_PLAN_REMOTE,
	SHUNT_PLAN_SLICE_MULTICAST = 1 + SHUNT_PLAN_MULTICAST,
	SHUNT_PLAN_SLICE_PLACE = 3, /* mask of these */
	SHUNT_PLAN_SLICE_PACKETS = 4,
	SHUNT_PLAN_SLICE_MORE = 8, /* the last of a list: one or more */
};

struct shunt_plan_op_row {
	const char *name;
	/*
	 * Mask of 1 << enum shunt_plan_channel_type: the types that channel_type may have; 0: there is no channel_type
	 */
	uint8_t types;
	uint8_t ids;      /* enum shunt_plan_ids */
	uint16_t effects; /* mask of enum shunt_plan_effect */
	uint16_t src, dst,
	    port_src;      /* lists of slices; 0: none. port_src: instead of src if the type is port; 0: the same */
	const char *words; /* of an operation without slices, or NULL */
};

extern const struct shunt_plan_op_row shunt_plan_op_rows[SHUNT_PLAN_NOPCODES];
/* Lists of names that end with NULL. */
extern const char *const shunt_plan_op_names[],
    *const shunt_plan_collective_names[], *const shunt_plan_buffer_letters[], *const shunt_plan_type_names[],
                                                                                  *const shunt_plan_redop_names[];

/* True if the operation has one of the effects. */
static inline bool shunt_plan_op_does(const struct shunt_plan_op *op, unsigned effects)
{
	return shunt_plan_op_rows[op->code].effects & effects;
}

/* True if slices of the operation are packets. No window of a pipeline cuts such an operation. */
static inline bool shunt_plan_op_has_packets(const struct shunt_plan_op *op)
{
	const struct shunt_plan_op_row *row = &shunt_plan_op_rows[op->code];

	return (row->src | row->dst) & (SHUNT_PLAN_SLICE_PACKETS * 0x111);
}

/* The list of sources of an operation of this type. */
static inline uint16_t shunt_plan_op_src(const struct shunt_plan_op_row *row, unsigned type)
{
	return type == SHUNT_PLAN_PORT && row->port_src ? row->port_src : row->src;
}

/* Number of slices in a list, the least if there may be more. */
static inline unsigned shunt_plan_list_least(uint16_t list)
{
	return !list ? 0 : list >> 8 ? 3 : list >> 4 ? 2 : 1;
}

/* True if there may be more. */
static inline bool shunt_plan_list_more(uint16_t list)
{
	return list & (SHUNT_PLAN_SLICE_MORE * 0x111);
}

/* Kind of slice i, without SHUNT_PLAN_SLICE_MORE. */
static inline unsigned shunt_plan_list_kind(uint16_t list, uint32_t i)
{
	unsigned last = shunt_plan_list_least(list) - 1;

	return list >> 4 * (i < last ? i : last) & (SHUNT_PLAN_SLICE_PLACE | SHUNT_PLAN_SLICE_PACKETS);
}
