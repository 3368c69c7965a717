/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The running result of a piece. Sums of the types that training uses have inline code (HOT). Other operators and
 * types have code out of line, and keep a pack where the accumulator is the type itself.
 */
#include "kernels/elements.h"
#include "kernels/plan/slices.h"

#define REDOP_SUM 0u /* enum shunt_redop */
#define REDOP_PROD 1u
#define REDOP_MAX 2u
#define REDOP_MIN 3u

/*
 * Formats: the launch's flags with the operation's operator, as any.h wants them, in its place. A macro, because a
 * function that returns the operator for other types changes their kernels.
 */
#define PLAN_OPERATOR(redop, r) \
	if constexpr (is_any<T>::value) \
	(redop) = plan_format_flags(redop, (r)->flags)
GPU_FN uint32_t plan_format_flags(uint32_t redop, uint32_t flags)
{
	uint32_t kop = redop == REDOP_SUM ? SHUNT_KOP_SUM : redop == REDOP_PROD ? SHUNT_KOP_PROD : SHUNT_KOP_EXT;

	return (flags & (15 * SHUNT_K_ELEMENT | 15 * SHUNT_K_ACCUMULATOR)) | kop * SHUNT_K_OPERATOR |
	    (redop == REDOP_MIN ? SHUNT_K_MIN : 0);
}

template <typename T> GPU_FN void plan_add(struct wide<T> &acc, struct gpu_v16 v, uint32_t redop)
{
	if (redop == REDOP_PROD)
		wide_add<T, op_prod>(acc, v, 0);
	else if (redop == REDOP_MAX || redop == REDOP_MIN)
		wide_add<T, op_ext>(acc, v, redop == REDOP_MIN ? SHUNT_K_MIN : 0);
	else
		wide_add<T, op_sum>(acc, v, 0);
}

/* By value: an object with an address would be in memory, and every launch would begin with a stack frame. */
template <typename T> GPU_NOINLINE struct wide<T> plan_add_wide(struct wide<T> acc, struct gpu_v16 v, uint32_t redop)
{
	plan_add<T>(acc, v, redop);
	return acc;
}

template <typename T> GPU_NOINLINE struct gpu_v16 plan_add_pack(struct gpu_v16 a, struct gpu_v16 v, uint32_t redop)
{
	struct wide<T> acc;

	wide_start(acc, a);
	plan_add<T>(acc, v, redop);
	return wide_finish(acc);
}

template <typename T, bool HOT, bool PACK = !HOT && is_same<typename acc_of<T>::type, T>::value> struct plan_acc;

template <typename T> struct plan_acc<T, true, false> {
	struct wide<T> w;
	GPU_METHOD void start(struct gpu_v16 x, uint32_t) { wide_start(w, x); }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t) { wide_add<T, op_sum>(w, x, 0); }
	GPU_METHOD struct gpu_v16 result(uint32_t) { return wide_finish(w); }
};

template <typename T> struct plan_acc<T, false, false> {
	struct wide<T> w;
	GPU_METHOD void start(struct gpu_v16 x, uint32_t) { wide_start(w, x); }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t redop) { w = plan_add_wide<T>(w, x, redop); }
	GPU_METHOD struct gpu_v16 result(uint32_t) { return wide_finish(w); }
};

template <int B> struct plan_acc<struct formatted<B>, false, false> {
	struct wide<struct formatted<B>> w;
	GPU_METHOD void start(struct gpu_v16 x, uint32_t flags) { w = any_start<B>(x, flags); }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t flags) { w = any_add<B>(w, x, flags); }
	GPU_METHOD struct gpu_v16 result(uint32_t flags) { return any_finish<B>(w, flags); }
};

template <typename T> struct plan_acc<T, false, true> {
	struct gpu_v16 v;
	GPU_METHOD void start(struct gpu_v16 x, uint32_t) { v = x; }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t redop) { v = plan_add_pack<T>(v, x, redop); }
	GPU_METHOD struct gpu_v16 result(uint32_t) { return v; }
};

/*
 * Adds to the running result the packs q, q + 1, ... that `want` names, a bit each. The first source of all, source
 * 1, starts the result.
 */
template <int P, typename T, bool HOT>
GPU_FN void plan_reduce_packs(
    struct plan_acc<T, HOT> *acc, uint32_t q, uint32_t want, const struct gpu_v16 v[P], uint32_t redop)
{
	GPU_UNROLL for (uint32_t k = 0; k < P; k++)
		if (q + k == 1)
			acc->start(v[k], redop);
		else if (want >> k & 1)
			acc->add(v[k], redop);
}
