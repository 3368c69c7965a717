/* SPDX-License-Identifier: MIT */
/*
 * Two-shot all-reduce: the message is cut into n parts. Every rank sends part p to rank p (shot one), reduces its own
 * part, and sends the result to all ranks (shot two). Two hops; the bytes on the wire are 2(n-1)/n of the message. A
 * reduce sends the result to the root only.
 *
 * Parts are padded to the same number of slots, so that in every round a channel hears from every peer in both shots.
 *
 * First shot: a channel that starts epoch e may overwrite the slots of epoch e-2. It has finished e-1, so it has data
 * that every peer sent after the peer had finished e-2.
 *
 * Second shot: there is one set of slots. A rank that stores there in epoch e has received the first shot of e from the
 * slots' owner, which had read the second shot of e-1 before it sent that.
 */
#include "kernels/ll128.h"

template <typename T, typename Op, int N, bool P, typename A> GPU_FN void twoshot(const A &args)
{
	const struct shunt_kargs &a = kargs_of(args);
	const uint32_t depth = SHUNT_LL128_SLOTS / N;
	struct ll128 l = ll128_init<T>(args);
	uint64_t part = (l.nslots + a.nranks - 1) / a.nranks;
	bool to_root = a.flags & SHUNT_K_TO_ROOT, stores = !to_root || a.rank == a.root;

	if (l.channel >= part)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel],
	         shot2 = SHUNT_HOP2_AT + (uint64_t)l.channel * SHUNT_LL128_SLOTS * SHUNT_LL128_SLOT_WIRE;

	for (uint64_t first = l.channel; first < part; first += (uint64_t)l.nchannels * depth) {
		uint32_t nslots = ll128_round<N>(l, first, part);
		uint64_t shot1 = ll128_slots_at<N>(l, a, ++epoch);
		struct gpu_v16 v[SHUNT_LL128_SLOTS];

		ll128_load<T, N, SHUNT_LL128_SLOTS / N, P>(l, args, part, 0, first, nslots, v);
		ll128_scale<T, Op, SHUNT_LL128_SLOTS>(a, v);
		FOR_SLOTS (k, r, nslots, a) {
			if (r != a.rank)
				gpu_ll128_st(
				    a.peer[r] + shot1 + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, v[k * N + r], epoch);
		}
		if (!ll128_wait<N, false>(l, a, shot1, nslots, epoch, v))
			return;
		GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
			if (k < nslots) {
				struct gpu_v16 sum = ll128_reduce<T, Op, N>(a, &v[k * N]);

				if (!to_root)
					ll128_send_all(
					    l, a, shot2 + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, sum, epoch);
				else if (!stores)
					gpu_ll128_st((STORED_ONCE ? l.inbox : a.peer[a.root]) + shot2 +
					        (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE,
					    sum, epoch);
				if (stores)
					ll128_write<T, P>(
					    l, args, a.rank * part + first + (uint64_t)k * l.nchannels, sum);
			}
		if (!stores)
			continue;
		if (!ll128_wait<N, false>(l, a, shot2, nslots, epoch, v, STORED_ONCE))
			return;
		FOR_SLOTS (k, r, nslots, a) {
			if (r != a.rank)
				ll128_write<T, P>(l, args, r * part + first + (uint64_t)k * l.nchannels, v[k * N + r]);
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

#define LL128_BODY twoshot
SHUNT_HOT_ROWS(INSTANCE4, twoshot4)
SHUNT_HOT_ROWS(PACKS4, twoshot4_packs)
SHUNT_KERNEL_ROWS(INSTANCE8, twoshot8)
SHUNT_HOT_ROWS(FEW4, twoshot4_few)
SHUNT_HOT_ROWS(FEW8, twoshot8_few)
