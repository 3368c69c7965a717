/* SPDX-License-Identifier: MIT */
/*
 * One-shot reduce-scatter: every rank sends part p to rank p and reduces its own part. One hop; the bytes on the wire
 * are (n-1)/n of the message. It is the first shot of a two-shot all-reduce, in the same slots and by the same rule:
 * see twoshot.cu.
 */
#include "kernels/pairwise.h"

template <typename T, typename Op, int N, bool P, typename A> GPU_FN void reduce_scatter(const A &args)
{
	const struct shunt_kargs &a = kargs_of(args);
	const uint32_t depth = SHUNT_LL128_SLOTS / N;
	struct ll128 l = ll128_init<T>(args);

	if (l.channel >= l.nslots)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel];

	for (uint64_t first = l.channel; first < l.nslots; first += (uint64_t)l.nchannels * depth) {
		uint32_t nslots = ll128_round<N>(l, first, l.nslots);
		uint64_t slots = ll128_slots_at<N>(l, a, ++epoch);
		struct gpu_v16 v[SHUNT_LL128_SLOTS];

		ll128_load<T, N, SHUNT_LL128_SLOTS / N, P>(l, args, 0, 0, first, nslots, v);
		ll128_scale<T, Op, SHUNT_LL128_SLOTS>(a, v);
		FOR_SLOTS (k, r, nslots, a) {
			if (r != a.rank)
				gpu_ll128_st(
				    a.peer[r] + slots + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, v[k * N + r], epoch);
		}
		if (!ll128_wait<N>(l, a, slots, nslots, epoch, v))
			return;
		GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
			if (k < nslots)
				ll128_write<T, P>(
				    l, args, first + (uint64_t)k * l.nchannels, ll128_reduce<T, Op, N>(a, &v[k * N]));
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

#define LL128_BODY reduce_scatter
#define PAIRWISE_PARTS true
SHUNT_HOT_ROWS(INSTANCE2, reduce_scatter2)
SHUNT_HOT_ROWS(PACKS2, reduce_scatter2_packs)
SHUNT_HOT_ROWS(INSTANCE4, reduce_scatter4)
SHUNT_HOT_ROWS(PACKS4, reduce_scatter4_packs)
SHUNT_KERNEL_ROWS(INSTANCE8, reduce_scatter8)
SHUNT_HOT_ROWS(FEW2, reduce_scatter2_few)
SHUNT_HOT_ROWS(FEW4, reduce_scatter4_few)
SHUNT_HOT_ROWS(FEW8, reduce_scatter8_few)
