/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Collectives in LL128 between two ranks: each rank sends the other what the other needs, all of its input or a part.
 * Received data is reduced with the rank's own data, or only stored (op_copy). A channel sends its next round before it
 * waits for the one under way, so that the link stays busy.
 *
 * That takes four sets of slots. A rank that starts to send epoch e has finished e-2. So the peer had sent e-2, and
 * before that had finished e-4.
 */
#include "kernels/ll128.h"

#define PAIRWISE_SLOTS (SHUNT_LL128_SLOTS / 2) /* slots of a round */

/* A round that a channel has sent and not yet received from the peer. */
struct pairwise_round {
	uint64_t first;
	uint32_t nslots;
	struct gpu_v16 own[PAIRWISE_SLOTS];
};

/* PARTS: each rank needs the part of the input with its rank's number. Else each rank needs all of it. */
template <typename T, typename Op, bool P, bool PARTS, typename A>
GPU_FN void pairwise_send(
    const struct ll128 &l, const A &args, uint64_t first, uint64_t epoch, struct pairwise_round *round)
{
	const struct shunt_kargs &a = kargs_of(args);
	const int parts = PARTS ? 2 : 1;
	uint64_t slots = ll128_slots_at<2>(l, a, epoch);
	struct gpu_v16 v[parts * PAIRWISE_SLOTS];
	bool copies = is_same<Op, op_copy>::value &&
	    (const char *)a.send + (PARTS ? a.rank * l.bytes : 0) != (char *)a.recv + a.rank * l.bytes;

	round->first = first;
	round->nslots = ll128_round<2>(l, first, l.nslots);
	ll128_load<T, parts, PAIRWISE_SLOTS, P>(l, args, 0, a.rank, first, round->nslots, v);
	ll128_scale<T, Op, parts * PAIRWISE_SLOTS>(a, v);
	GPU_UNROLL for (uint32_t k = 0; k < PAIRWISE_SLOTS; k++) {
		round->own[k] = v[k * parts];
		if (k < round->nslots)
			gpu_ll128_st(
			    a.peer[1 - a.rank] + slots + k * SHUNT_LL128_SLOT_WIRE, v[k * parts + parts - 1], epoch);
	}
	if constexpr (is_same<Op, op_copy>::value) {
		GPU_UNROLL for (uint32_t k = 0; k < PAIRWISE_SLOTS; k++)
			if (copies && k < round->nslots)
				ll128_write<T, P>(l, args, first + (uint64_t)k * l.nchannels, v[k * parts], a.rank);
	}
}

/* False: gave up. */
template <typename T, typename Op, bool P, typename A>
GPU_FN bool pairwise_recv(const struct ll128 &l, const A &args, uint64_t epoch, const struct pairwise_round &round)
{
	const struct shunt_kargs &a = kargs_of(args);
	struct gpu_v16 v[PAIRWISE_SLOTS];

	if (!ll128_wait<2>(l, a, ll128_slots_at<2>(l, a, epoch), round.nslots, epoch, v))
		return false;
	GPU_UNROLL for (uint32_t k = 0; k < PAIRWISE_SLOTS; k++)
		if (k < round.nslots) {
			uint64_t slot = round.first + (uint64_t)k * l.nchannels;

			if constexpr (is_same<Op, op_copy>::value)
				ll128_write<T, P>(l, args, slot, v[k], 1 - a.rank);
			else
				ll128_write<T, P>(l, args, slot, ll128_reduce_own<T, Op, 2>(a, &v[k], round.own[k]));
		}
	return true;
}

template <typename T, typename Op, bool P, bool PARTS, typename A> GPU_FN void pair(const A &args)
{
	struct ll128 l = ll128_init<T>(args);

	if constexpr (is_same<Op, op_copy>::value) {
		l.bytes = args.part;
		l.nslots = ll128_slots(l.bytes);
	}
	const uint64_t step = (uint64_t)l.nchannels * PAIRWISE_SLOTS;
	struct pairwise_round now, ahead;
	bool sent = false; /* `now` is sent and not yet received from the peer */

	if (l.channel >= l.nslots)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel]; /* loaded as late as possible */

	if (P && l.nslots <= step) { /* only one round: the shortest code, as each instruction counts */
		pairwise_send<T, Op, P, PARTS>(l, args, l.channel, ++epoch, &now);
		if (!pairwise_recv<T, Op, P>(l, args, epoch, now))
			return;
	} else {
		for (uint64_t first = l.channel; sent || first < l.nslots; first += step) {
			bool more = first < l.nslots;

			if (more)
				pairwise_send<T, Op, P, PARTS>(l, args, first, epoch + sent + 1, &ahead);
			if (sent && !pairwise_recv<T, Op, P>(l, args, ++epoch, now))
				return;
			now = ahead;
			sent = more;
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

/* The kernels of a file that defines PAIRWISE_PARTS. */
#define PAIRWISE_INSTANCE(packs, shape, op, type, args) \
	LL128_KERNEL(shape, op, type, args, pair<type, op_##op, packs, PAIRWISE_PARTS>)
#define INSTANCE2(shape, op, opn, type, typen) PAIRWISE_INSTANCE(false, shape, op, type, shunt_kargs)
#ifndef SHUNT_OVER_SHARED
#define PACKS2(shape, op, opn, type, typen) PAIRWISE_INSTANCE(true, shape, op, type, shunt_kargs)
#else
#define PACKS2(...)
#endif
#define FEW2(shape, op, opn, type, typen) PAIRWISE_INSTANCE(false, shape, op, type, shunt_kargs_few)
