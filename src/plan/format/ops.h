/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_FORMAT_OPS_H
#define SHUNT_PLAN_FORMAT_OPS_H
/* Syntax of the operations: one row per opcode. */
#include "plan/format/plan.h"

/* The ids of an operation. */
enum shunt_plan_ids {
	SHUNT_PLAN_IDS_NONE,
	SHUNT_PLAN_IDS_CHANNELS,   /* channel_ids, all of one type */
	SHUNT_PLAN_IDS_PORTS,      /* channel_ids, one for each dst, if the type is port; else none */
	SHUNT_PLAN_IDS_SEMAPHORES, /* semaphore_ids */
};

/*
 * src and dst have a letter for each slice. The last one may be followed by + for one or more.
 *            local  remote  switch channel
 *   plain    l      r       w
 *   packets  p      q       x
 */
struct shunt_plan_op_row {
	const char *name;
	uint8_t types;         /* mask of 1 << enum shunt_plan_channel_type that channel_type may be; 0: it has none */
	const char *src, *dst; /* "" none */
	const char *port_src;  /* instead of src if the type is port; NULL: the same */
	enum shunt_plan_ids ids;
	bool pairwise; /* as many src as dst */
	bool reduces;  /* has a reduce_op */
};

extern const struct shunt_plan_op_row shunt_plan_op_rows[SHUNT_PLAN_NOPCODES];
/* Lists of names that end with NULL. */
extern const char *const shunt_plan_op_names[],
    *const shunt_plan_collective_names[], *const shunt_plan_buffer_letters[], *const shunt_plan_type_names[],
                                                                                  *const shunt_plan_redop_names[];
#endif
