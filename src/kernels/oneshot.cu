/* SPDX-License-Identifier: MIT */
/*
 * One-shot all-reduce: every rank sends its whole input to every peer and reduces all inputs itself. One hop; the
 * bytes on the wire are (n-1) times the message, so it serves small messages, and any size between two ranks.
 *
 * A channel may overwrite the slots of epoch e-2 when it starts epoch e: it has finished epoch e-1, so it has every
 * peer's data of e-1, which each peer sent after it had read e-2. Two-shot's first hop follows the same rule in the
 * same slots. Between two ranks pairwise.h has another rule, which this kernel follows as well.
 */
#include "kernels/pairwise.h"

template <typename T, typename Op, int N, bool P, typename A> GPU_FN void oneshot(const A &args)
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
		struct gpu_v16 own[depth], v[SHUNT_LL128_SLOTS];

		ll128_load<T, 1, depth, P>(l, args, 0, 0, first, nslots, own);
		ll128_scale<T, Op, depth>(a, own);
		GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
			if (k < nslots)
				ll128_send_all(l, a, slots + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, own[k], epoch);
		if (!ll128_wait<N>(l, a, slots, nslots, epoch, v, STORED_ONCE))
			return;
		GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
			if (k < nslots)
				ll128_write<T, P>(l, args, first + (uint64_t)k * l.nchannels,
				    ll128_reduce_own<T, Op, N>(a, &v[k * N], own[k]));
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

#define LL128_BODY oneshot
#define PAIRWISE_PARTS false
SHUNT_HOT_ROWS(INSTANCE2, oneshot2)
SHUNT_HOT_ROWS(PACKS2, oneshot2_packs)
SHUNT_HOT_ROWS(INSTANCE4, oneshot4)
SHUNT_HOT_ROWS(PACKS4, oneshot4_packs)
SHUNT_KERNEL_ROWS(INSTANCE8, oneshot8)
SHUNT_HOT_ROWS(FEW2, oneshot2_few)
SHUNT_HOT_ROWS(FEW4, oneshot4_few)
SHUNT_HOT_ROWS(FEW8, oneshot8_few)
