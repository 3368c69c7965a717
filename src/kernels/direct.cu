/* SPDX-License-Identifier: MIT */
/*
 * Direct reductions of inputs in symmetric memory: a thread loads the same 16 bytes of every rank's input, reduces
 * them in rank order and stores the result. Barriers in launches of their own (kernels/barrier.cu) make sure that the
 * inputs are ready, and afterwards that the outputs are.
 *
 * The output may overwrite the input (in place). An all-reduce divides the offsets among the ranks, and a launch
 * among its threads, so one thread of one rank reads an offset of all inputs. That thread stores the result only
 * after it has used what it loaded there, on all ranks. Other offsets of the same line belong to other threads, and
 * no store touches them.
 */
#include "kernels/elements.h"
#include "kernels/kernel_list.h"

/* Reduces one pack of every rank's input in rank order; ignores absent ranks. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 direct_reduce(const struct shunt_kargs_direct &a, const struct gpu_v16 *v, T factor)
{
	bool scales = is_same<Op, op_sum>::value && (a.k.flags & SHUNT_K_PREMUL);
	struct acc<T, Op> acc;

	GPU_UNROLL for (int p = 0; p < N; p++) {
		if (p && p >= a.k.nranks)
			break;
		struct gpu_v16 x = scales ? premultiply<T, Op>(v[p], factor) : v[p];

		if (p)
			acc.add(x, a.k.flags);
		else
			acc.start(x, a.k.flags);
	}
	return acc_finish<T, Op>(acc, a.k);
}

/* Reduces D aligned packs, `step` bytes apart. All loads are under way before the first value is used. */
template <typename T, typename Op, int N, int D>
GPU_FN void direct_packs(const struct shunt_kargs_direct &a, u64 at, u64 step, T factor)
{
	struct gpu_v16 v[D][N];

	GPU_UNROLL for (int d = 0; d < D; d++) {
		GPU_UNROLL for (int p = 0; p < N; p++)
			if (p < a.k.nranks)
				v[d][p] = gpu_ld16_stream((const char *)a.from[p] + at + d * step);
	}
	GPU_UNROLL for (int d = 0; d < D; d++) {
		struct gpu_v16 x = direct_reduce<T, Op, N>(a, v[d], factor);

		GPU_UNROLL for (int p = 0; p < N; p++)
			if (a.to[p])
				gpu_st16_stream((char *)a.to[p] + at + d * step, x);
	}
}

/* Reduces a pack that is not aligned or not whole. */
template <typename T, typename Op, int N>
GPU_FN void direct_elements(const struct shunt_kargs_direct &a, u64 at, T factor)
{
	struct gpu_v16 v[N], x;

	GPU_UNROLL for (int p = 0; p < N; p++)
		if (p < a.k.nranks)
			v[p] = load_user<T>(a.from[p], at, 16, a.bytes, false);
	x = direct_reduce<T, Op, N>(a, v, factor);
	GPU_ROLL for (uint32_t p = 0; p < a.k.nranks; p++)
		if (a.to[p])
			store_user<T>(a.to[p], at, 16, a.bytes, false, x);
}

template <typename T, typename Op, int N> GPU_FN void direct(const struct shunt_kargs_direct &a)
{
	const int depth = N > 4 ? 2 : 4; /* limited by the registers of 512 threads */
	struct shunt_ctrl *ctrl = (struct shunt_ctrl *)a.k.peer[a.k.rank];
	u64 step = (u64)gpu_nbid() * gpu_ntid() * 16, at = ((u64)gpu_bid() * gpu_ntid() + gpu_tid()) * 16;
	u64 whole = a.k.flags & SHUNT_K_ALIGNED ? a.bytes & ~(u64)15 : 0;
	T factor = {};

	gpu_grid_dependency_wait();
	/* After an abort the barrier synchronized nothing, and the peers' buffers must not be accessed. */
	if (gpu_ld_relaxed32(&ctrl->abort))
		return;
	if (is_same<Op, op_sum>::value && (a.k.flags & SHUNT_K_PREMUL))
		factor = load_scalar<T>(a.k);
	for (; at + (depth - 1) * step < whole; at += depth * step)
		direct_packs<T, Op, N, depth>(a, at, step, factor);
	for (; at < whole; at += step)
		direct_packs<T, Op, N, 1>(a, at, step, factor);
	for (; at < a.bytes; at += step)
		direct_elements<T, Op, N>(a, at, factor);
}

#define INSTANCE(n, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_direct) a) \
	{ \
		direct<type, op_##op, n>(a); \
	}
#define INSTANCE2(shape, op, opn, type, typen) INSTANCE(2, shape, op, type)
#define INSTANCE4(shape, op, opn, type, typen) INSTANCE(4, shape, op, type)
#define INSTANCE8(shape, op, opn, type, typen) INSTANCE(8, shape, op, type)
SHUNT_HOT_ROWS(INSTANCE2, direct2)
SHUNT_HOT_ROWS(INSTANCE4, direct4)
SHUNT_KERNEL_ROWS(INSTANCE8, direct8)
