/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The bits of each word that several files or folders share, and the proof that none stands for two things. Shared by
 * host and kernels; plain C.
 */
#include <stdint.h>
#ifndef __cplusplus
#include <assert.h>
#endif

/*
 * Of a launch: shunt_kargs.flags.
 *
 * | column  | meaning                                                                                   |
 * |---------|-------------------------------------------------------------------------------------------|
 * | name    | SHUNT_name is the lowest bit's value                                                      |
 * | bit     | the lowest one                                                                            |
 * | bits    | 1; 2: one for each buffer of a plan, SHUNT_name << buffer                                 |
 * | kernels | that have it: ANY, or a family of them. Two families may use the same bit                 |
 */
/* clang-format off */
#define SHUNT_LAUNCH_FLAG_LIST(ROW) \
	ROW(K_PREMUL,            0, 1, ANY)     /* multiply every input by the scalar before its use */ \
	ROW(K_SCALAR_ON_DEVICE,  1, 1, ANY)     /* scalar is the device address of one element */ \
	ROW(K_DIVIDE,            2, 1, ANY)     /* integer average: divide the sum by nranks */ \
	ROW(K_SIGNED,            3, 1, ANY)     /* with SHUNT_K_DIVIDE: the sum is signed */ \
	ROW(K_ALIGNED,           4, 1, ANY)     /* all buffers that this rank loads and stores are 16-byte aligned */ \
	ROW(K_MIN,               5, 1, ANY)     /* extremum kernels: the smaller element, else the larger one */ \
	ROW(K_FIRST_BARRIER,     6, 1, BARRIER) /* the first barrier of an operation */ \
	ROW(K_LAST_BARRIER,      7, 1, BARRIER) /* the last barrier of an operation */ \
	ROW(K_TO_ROOT,           8, 1, TWOSHOT) /* only the root gets the result */ \
	ROW(K_OVER_SENT_INPUT,   9, 1, SIMPLE)  /* two ranks: the result overwrites the input once that is sent */ \
	ROW(PLAN_LOAD0,          8, 2, PLAN)    /* copy the caller's memory to the buffer first */ \
	ROW(PLAN_STORE0,        10, 2, PLAN)    /* copy the buffer to the caller's memory last */ \
	ROW(K_EP_MASKS,          6, 1, EP)      /* go on without ranks that are masked, or do not come in time */ \
	ROW(K_EP_SEND,           7, 1, EP)      /* phases of a call */ \
	ROW(K_EP_RECEIVE,        8, 1, EP) \
	ROW(K_EP_DROP,           9, 1, EP)      /* rows without room are left out */ \
	ROW(K_EP_PAD,           10, 1, EP)      /* -1 behind the last row's experts */ \
	ROW(K_ELEMENT,          16, 4, ANY)     /* kernels of formats (any.h): SHUNT_ELEMENT_* of the elements */ \
	ROW(K_ACCUMULATOR,      20, 4, ANY)     /* ... and of the accumulator */ \
	ROW(K_OPERATOR,         24, 2, ANY)     /* ... and the operator, SHUNT_KOP_* */ \
	ROW(PLAN_LL8,           12, 1, PLAN)    /* LL packets are stored 8 bytes at a time */ \
	ROW(PLAN_DIRECT0,       13, 2, PLAN)    /* peers access the callers' memory, not staging buffers */
/* Of a plan's program: shunt_prog_head.flags. */
#define SHUNT_PROG_FLAG_LIST(ROW) \
	ROW(PROG_STAGED,         0, 1, PLAN)    /* peers access this rank's input or output */ \
	ROW(PROG_DOUBLE_SCRATCH, 1, 1, PLAN)    /* launches use one half of scratch in turns */ \
	ROW(PROG_RESYNC,         2, 1, PLAN)    /* ranks synchronize before a launch changes the size of chunks */ \
	ROW(PROG_LL128,          3, 1, PLAN)    /* packets travel as LL128 */
/* Of a check of the ranks' calls: shunt_check.what. 0: the launch has no such block. */
#define SHUNT_CHECK_FLAG_LIST(ROW) \
	ROW(CHECK_CALLS,         0, 1, ANY)     /* collectives, described by the rest of the struct and kargs.count */ \
	ROW(CHECK_NUMBERED,      1, 1, ANY)     /* compare the collectives' number, too */ \
	ROW(CHECK_MESSAGES,      2, 1, ANY) \
	ROW(CHECK_PLUGIN,        3, 1, ANY)     /* a plug-in takes one of the collectives */
/* clang-format on */
#define SHUNT_FLAG_ENUM(name, bit, bits, kernels) SHUNT_##name = 1 << (bit),
enum shunt_kflags { SHUNT_LAUNCH_FLAG_LIST(SHUNT_FLAG_ENUM) };
enum shunt_prog_flags { SHUNT_PROG_FLAG_LIST(SHUNT_FLAG_ENUM) };
enum shunt_check_flags { SHUNT_CHECK_FLAG_LIST(SHUNT_FLAG_ENUM) };
#undef SHUNT_FLAG_ENUM

/* The top bit of a message's bytes: it is in chunks (kernels/simple.h). */
#define SHUNT_MESSAGE_SIMPLE ((uint64_t)1 << 63)
/* The top bit of an operation's word (comm/observe/recorder.h): it was captured. */
#define SHUNT_OP_CAPTURED_BIT 63
#define SHUNT_OP_CAPTURED ((uint64_t)1 << SHUNT_OP_CAPTURED_BIT)

/* In the flags of a family of kernels, the sum of all bits is their union: no two are the same. */
enum {
	SHUNT_FAMILY_BARRIER = 1,
	SHUNT_FAMILY_TWOSHOT = 2,
	SHUNT_FAMILY_SIMPLE = 4,
	SHUNT_FAMILY_PLAN = 8,
	SHUNT_FAMILY_EP = 16,
	SHUNT_FAMILY_ANY = 31
};
#define SHUNT_FLAG_BITS(bit, bits, kernels, family) \
	(SHUNT_FAMILY_##kernels & SHUNT_FAMILY_##family ? (((uint64_t)1 << (bits)) - 1) << (bit) : 0)
#define SHUNT_FLAG_SUM_BARRIER(name, bit, bits, kernels) +SHUNT_FLAG_BITS(bit, bits, kernels, BARRIER)
#define SHUNT_FLAG_SUM_TWOSHOT(name, bit, bits, kernels) +SHUNT_FLAG_BITS(bit, bits, kernels, TWOSHOT)
#define SHUNT_FLAG_SUM_SIMPLE(name, bit, bits, kernels) +SHUNT_FLAG_BITS(bit, bits, kernels, SIMPLE)
#define SHUNT_FLAG_SUM_PLAN(name, bit, bits, kernels) +SHUNT_FLAG_BITS(bit, bits, kernels, PLAN)
#define SHUNT_FLAG_SUM_EP(name, bit, bits, kernels) +SHUNT_FLAG_BITS(bit, bits, kernels, EP)
#define SHUNT_FLAG_OR_EP(name, bit, bits, kernels) | SHUNT_FLAG_BITS(bit, bits, kernels, EP)
#define SHUNT_FLAG_OR_BARRIER(name, bit, bits, kernels) | SHUNT_FLAG_BITS(bit, bits, kernels, BARRIER)
#define SHUNT_FLAG_OR_TWOSHOT(name, bit, bits, kernels) | SHUNT_FLAG_BITS(bit, bits, kernels, TWOSHOT)
#define SHUNT_FLAG_OR_SIMPLE(name, bit, bits, kernels) | SHUNT_FLAG_BITS(bit, bits, kernels, SIMPLE)
#define SHUNT_FLAG_OR_PLAN(name, bit, bits, kernels) | SHUNT_FLAG_BITS(bit, bits, kernels, PLAN)
#define SHUNT_FLAGS_APART(list, family, most) \
	static_assert((0 list(SHUNT_FLAG_SUM_##family)) == (0 list(SHUNT_FLAG_OR_##family)) && \
	        (0 list(SHUNT_FLAG_SUM_##family)) <= (most), \
	    #list ": two flags of the same kernels share a bit, or one is outside the word")
SHUNT_FLAGS_APART(SHUNT_LAUNCH_FLAG_LIST, BARRIER, UINT32_MAX);
SHUNT_FLAGS_APART(SHUNT_LAUNCH_FLAG_LIST, TWOSHOT, UINT32_MAX);
SHUNT_FLAGS_APART(SHUNT_LAUNCH_FLAG_LIST, SIMPLE, UINT32_MAX);
SHUNT_FLAGS_APART(SHUNT_LAUNCH_FLAG_LIST, PLAN, UINT32_MAX);
SHUNT_FLAGS_APART(SHUNT_LAUNCH_FLAG_LIST, EP, UINT32_MAX);
SHUNT_FLAGS_APART(SHUNT_PROG_FLAG_LIST, PLAN, UINT32_MAX);
SHUNT_FLAGS_APART(SHUNT_CHECK_FLAG_LIST, PLAN, UINT8_MAX);
