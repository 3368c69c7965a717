/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The kernels. Each is made for a shape, an operator and a type: its index is SHUNT_KERNEL(shape, op, type), its name
 * SHUNT_KERNEL_NAME(shape, op, type).
 *
 *   Suffix of a shape  Kernels
 *   2, 4, 8            for at most 2, 4, 8 ranks. Narrow kernels reduce the types that training sums (hot rows).
 *                      oneshot8, twoshot8, reduce_scatter8, simple8 and direct8 reduce all types.
 *   _packs             for a message of whole, aligned packs of 16 bytes
 *   _few               for several messages at once: arguments with up to SHUNT_FEW_MESSAGES
 *   _many              for several messages at once: arguments with up to SHUNT_MANY_MESSAGES
 *   _one               for roles of one message each, with one batch on each channel
 *   v                  for parts whose sizes differ from rank to rank
 *   _parts             pairwise, exchange: each rank sends a part of its input (all-to-all), not all of it
 *   _ll128             plan: packets travel as LL128, not as LL
 *   hosts              over several hosts, for any number of ranks
 *   staged_            of the same name, through shared memory of the host (kernels/staged.h)
 *   ep_                of expert parallel groups (kernels/ep.h)
 *
 * The shapes tma* do between two ranks what the shapes simple* do among any number of ranks.
 *
 *   Operator   Kernels
 *   sum, prod  do not depend on the sign: signed integers use the kernel of the unsigned type
 *   ext        extremum: the smaller element with SHUNT_K_MIN, else the larger one
 *   copy       copies elements of one size. There is a kernel for each size, under the number of a type of that size;
 *              v16 (16 bytes) is under the number of int64.
 *   all        one kernel for all operators, or for none
 *
 * Types have the numbers of enum shunt_dtype. any8 and any16, behind NCCL's types, are elements of 1 and 2 bytes whose
 * format the launch says (kernels/any.h).
 */
#include "base/dtypes.def"
#include "kernels/ep.h"
#include "kernels/kargs.h"
#include "kernels/net_rings.h"

/* clang-format off */
/* Shape, .cu file, arguments, and the rows, of those below, that its kernels are; Y is for X. */
#define SHUNT_SHAPE_LIST(X, Y) \
	X(oneshot2,                oneshot,               shunt_kargs,          HOT_ROWS, Y) \
	X(oneshot2_packs,          oneshot,               shunt_kargs,          HOT_ROWS, Y) \
	X(oneshot4,                oneshot,               shunt_kargs,          HOT_ROWS, Y) \
	X(oneshot4_packs,          oneshot,               shunt_kargs,          HOT_ROWS, Y) \
	X(oneshot8,                oneshot,               shunt_kargs,          KERNEL_ROWS, Y) \
	X(twoshot4,                twoshot,               shunt_kargs,          HOT_ROWS, Y) \
	X(twoshot4_packs,          twoshot,               shunt_kargs,          HOT_ROWS, Y) \
	X(twoshot8,                twoshot,               shunt_kargs,          KERNEL_ROWS, Y) \
	X(oneshot2_few,            oneshot,               shunt_kargs_few,      HOT_ROWS, Y) \
	X(oneshot4_few,            oneshot,               shunt_kargs_few,      HOT_ROWS, Y) \
	X(oneshot8_few,            oneshot,               shunt_kargs_few,      HOT_ROWS, Y) \
	X(twoshot4_few,            twoshot,               shunt_kargs_few,      HOT_ROWS, Y) \
	X(twoshot8_few,            twoshot,               shunt_kargs_few,      HOT_ROWS, Y) \
	X(reduce_scatter2,         reduce_scatter,        shunt_kargs,          HOT_ROWS, Y) \
	X(reduce_scatter2_packs,   reduce_scatter,        shunt_kargs,          HOT_ROWS, Y) \
	X(reduce_scatter4,         reduce_scatter,        shunt_kargs,          HOT_ROWS, Y) \
	X(reduce_scatter4_packs,   reduce_scatter,        shunt_kargs,          HOT_ROWS, Y) \
	X(reduce_scatter8,         reduce_scatter,        shunt_kargs,          KERNEL_ROWS, Y) \
	X(reduce_scatter2_few,     reduce_scatter,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(reduce_scatter4_few,     reduce_scatter,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(reduce_scatter8_few,     reduce_scatter,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(pairwise,                pairwise,              shunt_kargs,          COPY_ROWS, Y) \
	X(pairwise_parts,          pairwise,              shunt_kargs,          COPY_ROWS, Y) \
	X(allgatherv4,             uneven,                shunt_kargs_few,      UNEVEN_ROWS, Y) \
	X(allgatherv8,             uneven,                shunt_kargs_few,      UNEVEN_ROWS, Y) \
	X(reduce_scatterv4,        uneven,                shunt_kargs_few,      HOT_ROWS, Y) \
	X(reduce_scatterv8,        uneven,                shunt_kargs_few,      HOT_ROWS, Y) \
	X(ll128_2,                 ll128,                 shunt_kargs_few,      HOT_ROWS, Y) \
	X(ll128_4,                 ll128,                 shunt_kargs_few,      HOT_ROWS, Y) \
	X(ll128_8,                 ll128,                 shunt_kargs_few,      COPY_ROWS, Y) \
	X(ll128_one,               ll128,                 shunt_kargs_few,      PACKS_ROW, Y) \
	X(ll128_many,              ll128,                 shunt_kargs_many,     COPY_ROWS, Y) \
	X(simple2,                 simple,                shunt_kargs_few,      HOT_ROWS, Y) \
	X(simple4,                 simple,                shunt_kargs_few,      HOT_ROWS, Y) \
	X(simple8,                 simple,                shunt_kargs_few,      ALL_ROWS, Y) \
	X(simple_many,             simple,                shunt_kargs_many,     COPY_ROWS, Y) \
	X(tma2,                    tma,                   shunt_kargs_few,      HOT_ROWS, Y) \
	X(tma,                     tma,                   shunt_kargs_few,      COPY_ROWS, Y) \
	X(tma_many,                tma,                   shunt_kargs_many,     COPY_ROWS, Y) \
	X(barrier,                 barrier,               shunt_kargs_barrier,  BARRIER_ROW, Y) \
	X(direct2,                 direct,                shunt_kargs_direct,   HOT_ROWS, Y) \
	X(direct4,                 direct,                shunt_kargs_direct,   HOT_ROWS, Y) \
	X(direct8,                 direct,                shunt_kargs_direct,   KERNEL_ROWS, Y) \
	X(plan,                    plan,                  shunt_kargs_plan,     PLAN_ROWS, Y) \
	X(plan_ll128,              plan,                  shunt_kargs_plan,     PLAN_ROWS, Y) \
	X(plan_hosts,              plan,                  shunt_kargs_plan,     PLAN_ROWS, Y) \
	X(hosts,                   hosts,                 shunt_kargs_net_few,  ALL_ROWS, Y) \
	X(hosts_many,              hosts,                 shunt_kargs_net_many, ALL_ROWS, Y) \
	X(ep_barrier,              ep_barrier,            shunt_kargs,          BARRIER_ROW, Y) \
	X(ep_ll_dispatch,          ep_ll_dispatch,        shunt_kargs_ep_ll,    BARRIER_ROW, Y) \
	X(ep_ll_combine,           ep_ll_combine,         shunt_kargs_ep_ll,    EP_SUM_ROWS, Y) \
	X(ep_ll_combine_sums,      ep_ll_combine,         shunt_kargs_ep_ll,    EP_SUM_ROWS, Y) \
	X(ep_notify_layout,        ep_notify,             shunt_kargs_ep,       BARRIER_ROW, Y) \
	X(ep_notify,               ep_notify,             shunt_kargs_ep,       BARRIER_ROW, Y) \
	X(ep_dispatch,             ep_dispatch,           shunt_kargs_ep,       BARRIER_ROW, Y) \
	X(ep_combine,              ep_combine,            shunt_kargs_ep,       EP_NORMAL_SUM_ROWS, Y) \
	X(ep_barrier_hosts,        ep_barrier,            shunt_kargs,          BARRIER_ROW, Y) \
	X(ep_ll_dispatch_hosts,    ep_ll_dispatch,        shunt_kargs_ep_hosts, BARRIER_ROW, Y) \
	X(ep_ll_combine_hosts,     ep_ll_combine,         shunt_kargs_ep_hosts, EP_SUM_ROWS, Y) \
	X(ep_notify_layout_hosts,  ep_notify,             shunt_kargs_ep_far,   BARRIER_ROW, Y) \
	X(ep_notify_hosts,         ep_notify,             shunt_kargs_ep_far,   BARRIER_ROW, Y) \
	X(ep_dispatch_hosts,       ep_dispatch,           shunt_kargs_ep_far,   BARRIER_ROW, Y) \
	X(ep_combine_hosts,        ep_combine,            shunt_kargs_ep_far,   EP_NORMAL_SUM_ROWS, Y) \
	X(staged_oneshot2,         staged_oneshot,        shunt_kargs,          HOT_ROWS, Y) \
	X(staged_oneshot4,         staged_oneshot,        shunt_kargs,          HOT_ROWS, Y) \
	X(staged_oneshot8,         staged_oneshot,        shunt_kargs,          KERNEL_ROWS, Y) \
	X(staged_twoshot4,         staged_twoshot,        shunt_kargs,          HOT_ROWS, Y) \
	X(staged_twoshot8,         staged_twoshot,        shunt_kargs,          KERNEL_ROWS, Y) \
	X(staged_oneshot2_few,     staged_oneshot,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_oneshot4_few,     staged_oneshot,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_oneshot8_few,     staged_oneshot,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_twoshot4_few,     staged_twoshot,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_twoshot8_few,     staged_twoshot,        shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_reduce_scatter2,  staged_reduce_scatter, shunt_kargs,          HOT_ROWS, Y) \
	X(staged_reduce_scatter4,  staged_reduce_scatter, shunt_kargs,          HOT_ROWS, Y) \
	X(staged_reduce_scatter8,  staged_reduce_scatter, shunt_kargs,          KERNEL_ROWS, Y) \
	X(staged_reduce_scatter2_few, staged_reduce_scatter, shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_reduce_scatter4_few, staged_reduce_scatter, shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_reduce_scatter8_few, staged_reduce_scatter, shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_pairwise,         staged_pairwise,       shunt_kargs,          COPY_ROWS, Y) \
	X(staged_pairwise_parts,   staged_pairwise,       shunt_kargs,          COPY_ROWS, Y) \
	X(staged_exchange4,        staged_exchange,       shunt_kargs,          COPY_ROWS, Y) \
	X(staged_exchange8,        staged_exchange,       shunt_kargs,          COPY_ROWS, Y) \
	X(staged_exchange4_parts,  staged_exchange,       shunt_kargs,          COPY_ROWS, Y) \
	X(staged_exchange8_parts,  staged_exchange,       shunt_kargs,          COPY_ROWS, Y) \
	X(staged_ll128_2,          staged_ll128,          shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_ll128_4,          staged_ll128,          shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_ll128_8,          staged_ll128,          shunt_kargs_few,      COPY_ROWS, Y) \
	X(staged_ll128_one,        staged_ll128,          shunt_kargs_few,      PACKS_ROW, Y) \
	X(staged_ll128_many,       staged_ll128,          shunt_kargs_many,     COPY_ROWS, Y) \
	X(staged_simple2,          staged_simple,         shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_simple4,          staged_simple,         shunt_kargs_few,      HOT_ROWS, Y) \
	X(staged_simple8,          staged_simple,         shunt_kargs_few,      ALL_ROWS, Y) \
	X(staged_simple_many,      staged_simple,         shunt_kargs_many,     COPY_ROWS, Y) \
	X(staged_barrier,          staged_barrier,        shunt_kargs_barrier,  BARRIER_ROW, Y) \
	X(selftest,                selftest,              shunt_kargs_selftest, BARRIER_ROW, Y)
/* The .cu files, which meson.build compiles in this order. Each becomes a fatbin of its own. */
#define SHUNT_SOURCE_LIST(X) \
	X(barrier) X(tma) X(simple) X(ll128) X(oneshot) X(plan) X(direct) X(reduce_scatter) X(pairwise) X(twoshot) \
	X(uneven) X(hosts) X(ep_barrier) X(ep_ll_dispatch) X(ep_ll_combine) X(ep_notify) X(ep_dispatch) X(ep_combine) \
	X(staged_oneshot) X(staged_twoshot) X(staged_reduce_scatter) X(staged_pairwise) X(staged_ll128) \
	X(staged_simple) X(staged_exchange) X(staged_barrier) X(selftest)
/*
 * Rows of the types of dtypes.def. Sums and products do not depend on the sign, so there are none for SIGNED types;
 * the sums of HOT types have rows of their own.
 */
#define SHUNT_HOT_ROWS(X, shape) SHUNT_DTYPE_LIST(SHUNT_HOT_SUM, X, shape)
#define SHUNT_COLD_ROWS(X, shape) \
	SHUNT_DTYPE_LIST(SHUNT_COLD_SUM, X, shape) SHUNT_DTYPE_LIST(SHUNT_PROD_ROW, X, shape) \
	SHUNT_DTYPE_LIST(SHUNT_EXT_ROW, X, shape)
#define SHUNT_HOT_SUM(id, number, name, alias, nccl, type, bytes, kind, exponent, mantissa, acc, sums, X, shape) \
	SHUNT_HOT_##sums(X(shape, sum, 0, type, number))
#define SHUNT_COLD_SUM(id, number, name, alias, nccl, type, bytes, kind, exponent, mantissa, acc, sums, X, shape) \
	SHUNT_COLD_##sums(SHUNT_IF_##kind(X(shape, sum, 0, type, number)))
#define SHUNT_PROD_ROW(id, number, name, alias, nccl, type, bytes, kind, exponent, mantissa, acc, sums, X, shape) \
	SHUNT_IF_##kind(X(shape, prod, 1, type, number))
#define SHUNT_EXT_ROW(id, number, name, alias, nccl, type, bytes, kind, exponent, mantissa, acc, sums, X, shape) \
	X(shape, ext, 2, type, number)
#define SHUNT_HOT_HOT(...) __VA_ARGS__
#define SHUNT_HOT_COLD(...)
#define SHUNT_COLD_HOT(...)
#define SHUNT_COLD_COLD(...) __VA_ARGS__
#define SHUNT_IF_SIGNED(...)
#define SHUNT_IF_UNSIGNED(...) __VA_ARGS__
#define SHUNT_IF_FLOAT(...) __VA_ARGS__
#define SHUNT_IF_FINITE(...) __VA_ARGS__
#define SHUNT_COPY_ROWS(X, shape) \
	X(shape, copy, 3, u8, 1) X(shape, copy, 3, u16, 6) X(shape, copy, 3, u32, 3) X(shape, copy, 3, u64, 5) \
	X(shape, copy, 3, v16, 4)
#define SHUNT_PACKS_ROW(X, shape) X(shape, copy, 3, v16, 4)
/* Parts that are not aligned are rare. */
#define SHUNT_UNEVEN_ROWS(X, shape) X(shape, copy, 3, u8, 1) X(shape, copy, 3, v16, 4)
/* The barrier carries no data. */
#define SHUNT_BARRIER_ROW(X, shape) X(shape, all, 0, u8, 1)
/* Sums of experts' rows. */
#define SHUNT_EP_SUM_ROWS(X, shape) X(shape, sum, 0, f16, 6) X(shape, sum, 0, bf16, 9)
#define SHUNT_EP_NORMAL_SUM_ROWS(X, shape) SHUNT_EP_SUM_ROWS(X, shape) X(shape, sum, 0, f32, 7)
/* The interpreter of plans has a kernel for each type, which knows all operators. The shape says how packets travel. */
#define SHUNT_PLAN_ROWS(X, shape) SHUNT_DTYPE_LIST(SHUNT_PLAN_TYPE_ROW, X, shape) SHUNT_FORMAT_ROWS(X, shape)
/* Formats: one kernel for each size of elements. */
#define SHUNT_FORMAT_ROWS(X, shape) X(shape, all, 0, any8, 12) X(shape, all, 0, any16, 13)
#define SHUNT_PLAN_TYPE_ROW(id, number, name, alias, nccl, type, bytes, kind, exponent, mantissa, acc, sums, X, shape) \
	X(shape, all, 0, type, number)
#define SHUNT_KERNEL_ROWS(X, shape) SHUNT_HOT_ROWS(X, shape) SHUNT_COLD_ROWS(X, shape)
#define SHUNT_ALL_ROWS(X, shape) SHUNT_KERNEL_ROWS(X, shape) SHUNT_FORMAT_ROWS(X, shape) SHUNT_COPY_ROWS(X, shape)
/* For checks of the sources: the other rows are of the same templates, and plans have all types. */
#if defined(SHUNT_FEW_ROWS)
#undef SHUNT_HOT_ROWS
#undef SHUNT_COLD_ROWS
#undef SHUNT_COPY_ROWS
#undef SHUNT_ALL_ROWS
#define SHUNT_HOT_ROWS(X, shape) X(shape, sum, 0, bf16, 9)
#define SHUNT_COLD_ROWS(X, shape)
#define SHUNT_COPY_ROWS(X, shape) X(shape, copy, 3, u8, 1) SHUNT_PACKS_ROW(X, shape)
#define SHUNT_ALL_ROWS(X, shape) SHUNT_KERNEL_ROWS(X, shape) SHUNT_COPY_ROWS(X, shape)
#endif
#define SHUNT_KERNEL_LIST(X) SHUNT_SHAPE_LIST(SHUNT_ROWS_OF, X)
#define SHUNT_ROWS_OF(shape, source, args, rows, X) SHUNT_##rows(X, shape)
/* clang-format on */
#define SHUNT_SHAPE_ENUM(name, ...) SHUNT_SHAPE_##name,
#define SHUNT_SOURCE_ENUM(name) SHUNT_SOURCE_##name,
enum shunt_shape { SHUNT_SHAPE_LIST(SHUNT_SHAPE_ENUM, ) SHUNT_NSHAPES };
enum shunt_source { SHUNT_SOURCE_LIST(SHUNT_SOURCE_ENUM) SHUNT_NSOURCES };
#undef SHUNT_SHAPE_ENUM
#undef SHUNT_SOURCE_ENUM
enum shunt_kop { SHUNT_KOP_SUM, SHUNT_KOP_PROD, SHUNT_KOP_EXT, SHUNT_KOP_COPY, SHUNT_NKOPS };
#define SHUNT_COUNT_ROW(...) +1
enum { SHUNT_KTYPE_ANY8 = SHUNT_DTYPE_LIST(SHUNT_COUNT_ROW), SHUNT_KTYPE_ANY16, SHUNT_NKTYPES };
#undef SHUNT_COUNT_ROW
/* Elements and accumulators of formats: numbers of enum shunt_dtype, which kernels do not have. */
#define SHUNT_ELEMENT_ROW(id, number, ...) SHUNT_ELEMENT_##id = (number),
enum { SHUNT_DTYPE_LIST(SHUNT_ELEMENT_ROW, ) SHUNT_FORMAT_LIST(SHUNT_ELEMENT_ROW, ) };
#undef SHUNT_ELEMENT_ROW

#define SHUNT_KERNEL(shape, op, type) (((shape) * SHUNT_NKOPS + (op)) * SHUNT_NKTYPES + (type))
#define SHUNT_SHAPE_OF(kernel) ((kernel) / (SHUNT_NKOPS * SHUNT_NKTYPES))
#define SHUNT_NKERNELS (SHUNT_NSHAPES * SHUNT_NKOPS * SHUNT_NKTYPES)
/*
 * A row X(shape, op, op number, type, type number) of the lists above as index and as name:
 *
 *   SHUNT_KERNEL(SHUNT_SHAPE_##shape, opn, typen)   SHUNT_KERNEL_NAME(shape, op, type)
 *
 * Names begin like those of NCCL's kernels, by which profilers and readers of traces tell communication from
 * computation.
 */
#define SHUNT_KERNEL_NAME(shape, op, type) ncclDevKernel_Shunt_##shape##_##op##_##type
