/* SPDX-License-Identifier: MIT */
/*
 * One-shot reduce-scatter: every rank sends part p to rank p and reduces its own part. One hop; the bytes on the wire
 * are (n-1)/n of the message. It is the first shot of a two-shot all-reduce, in the same slots and by the same rule:
 * see twoshot.cu.
 */
#include "kernels/pair.h"

template <typename T, typename Op, int N, bool P, typename A> GPU_FN void reduce_scatter(const A &args)
{
	const struct shunt_kargs &a = common(args);
	const uint32_t depth = SHUNT_LINE_SLOTS / N;
	struct lines l = lines_init<T>(args);

	if (l.channel >= l.units)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel];

	for (uint64_t first = l.channel; first < l.units; first += (uint64_t)l.nchannels * depth) {
		uint32_t units = lines_round<N>(l, first, l.units);
		uint64_t slots = lines_slots<N>(l, a, ++epoch);
		struct gpu_v16 v[SHUNT_LINE_SLOTS];

		lines_load<T, N, SHUNT_LINE_SLOTS / N, P>(l, args, 0, 0, first, units, v);
		lines_scale<T, Op, SHUNT_LINE_SLOTS>(a, v);
		FOR_SLOTS (k, r, units, a) {
			if (r != a.rank)
				gpu_line_st(
				    a.peer[r] + slots + (k * N + a.rank) * SHUNT_UNIT_WIRE, v[k * N + r], epoch);
		}
		if (!lines_wait<N>(l, a, slots, units, epoch, v))
			return;
		GPU_UNROLL
		for (uint32_t k = 0; k < depth; k++)
			if (k < units)
				lines_write<T, P>(
				    l, args, first + (uint64_t)k * l.nchannels, lines_fold<T, Op, N>(a, &v[k * N]));
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

#define LINES_BODY reduce_scatter
#define PAIR_PARTS true
SHUNT_HOT_ROWS(INSTANCE2, reduce_scatter2)
SHUNT_HOT_ROWS(PACKS2, reduce_scatter2_packs)
SHUNT_HOT_ROWS(INSTANCE4, reduce_scatter4)
SHUNT_HOT_ROWS(PACKS4, reduce_scatter4_packs)
SHUNT_KERNEL_ROWS(INSTANCE8, reduce_scatter8)
SHUNT_HOT_ROWS(FEW2, reduce_scatter2_few)
SHUNT_HOT_ROWS(FEW4, reduce_scatter4_few)
SHUNT_HOT_ROWS(FEW8, reduce_scatter8_few)
