/* SPDX-License-Identifier: MIT */
/*
 * All-gathers and reduce-scatters whose parts differ from rank to rank, in one hop: a group of a broadcast, or of a
 * reduce, for each root. message[r] is part r: `from` its source here, `to` its destination here, and first_slot[r] the
 * number of its slots. The last element of first_slot is that of the longest part.
 *
 * Slots and epochs are those of oneshot.cu, and follow the same rule. It needs a slot from each rank to each in every
 * round. So where a part has no slot left in a round, an empty one is sent.
 */
#include "kernels/ll128.h"

/* How many of the channel's slots from `first` on part r has, at most those of a round. */
template <int N>
GPU_FN uint32_t slots_left(const struct ll128 &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t first)
{
	const uint64_t end = a.first_slot[r];
	uint32_t n = 0;

	GPU_UNROLL for (uint32_t k = 0; k < SHUNT_LL128_SLOTS / N; k++)
		n += first + (uint64_t)k * l.nchannels < end;
	return n;
}

template <typename T>
GPU_FN struct gpu_v16 load_slot(const struct ll128 &l, const struct shunt_message &m, uint64_t slot)
{
	return load_user<T>(m.from, slot * SHUNT_LL128_SLOT_DATA + l.at, l.width, m.bytes, !((uintptr_t)m.from & 15));
}

template <typename T>
GPU_FN void store_slot(const struct ll128 &l, const struct shunt_message &m, uint64_t slot, struct gpu_v16 v)
{
	store_user<T>(m.to, slot * SHUNT_LL128_SLOT_DATA + l.at, l.width, m.bytes, !((uintptr_t)m.to & 15), v);
}

/* As ll128_wait(), for slots whose number differs from rank to rank: the k with `first + k` of its part, at least 1. */
template <int N>
GPU_FN bool wait_for_parts(const struct ll128 &l, const struct shunt_kargs_few &args, uint64_t slots, uint64_t first,
    uint64_t epoch, struct gpu_v16 v[SHUNT_LL128_SLOTS])
{
	const struct shunt_kargs &a = args.k;
	const uint32_t depth = SHUNT_LL128_SLOTS / N;
	struct spin spin;

	spin_init(&spin, l.ctrl);
	for (;;) {
		uint32_t missing = 0;

		FOR_SLOTS (k, r, depth, a) {
			if (r != a.rank && (k == 0 || first + (uint64_t)k * l.nchannels < args.first_slot[r]))
				gpu_ll128_ld(
				    l.inbox + slots + (k * N + r) * SHUNT_LL128_SLOT_WIRE, &v[k * N + r], epoch);
		}
		FOR_SLOTS (k, r, depth, a) {
			if (r != a.rank && (k == 0 || first + (uint64_t)k * l.nchannels < args.first_slot[r]) &&
			    !gpu_ll128_ready(v[k * N + r], epoch))
				missing |= 1u << r;
		}
		if (gpu_warp_all(!missing))
			return true;
		if (!gpu_warp_all(gpu_lane() != 7 || !spin_expired_for(&spin, missing))) {
			if (missing)
				ll128_give_up(
				    l.ctrl, l.inbox + slots, SHUNT_LL128_SLOT_WIRE, a.rank, l.channel, epoch, missing);
			return false;
		}
	}
}

/* Sends this rank's part to all, and stores the parts that come in. False: gave up. */
template <typename T, int N>
GPU_FN bool gather_round(
    const struct ll128 &l, const struct shunt_kargs_few &args, uint64_t slots, uint64_t first, uint64_t epoch)
{
	const struct shunt_kargs &a = args.k;
	const uint32_t depth = SHUNT_LL128_SLOTS / N, own = slots_left<N>(l, args, a.rank, first);
	const struct shunt_message &mine = args.message[a.rank];
	struct gpu_v16 v[SHUNT_LL128_SLOTS], sent[depth];

	GPU_UNROLL for (uint32_t k = 0; k < depth; k++) {
		sent[k] = { 0, 0 };
		if (k < own)
			sent[k] = load_slot<T>(l, mine, first + (uint64_t)k * l.nchannels);
	}
	GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
		if (k < own || k == 0)
			ll128_send_all(l, a, slots + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, sent[k], epoch);
	GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
		if (k < own && mine.from != mine.to)
			store_slot<T>(l, mine, first + (uint64_t)k * l.nchannels, sent[k]);
	if (!wait_for_parts<N>(l, args, slots, first, epoch, v))
		return false;
	FOR_SLOTS (k, r, depth, a) {
		uint64_t slot = first + (uint64_t)k * l.nchannels;

		if (r != a.rank && slot < args.first_slot[r])
			store_slot<T>(l, args.message[r], slot, v[k * N + r]);
	}
	return true;
}

/* Sends part r to rank r, and reduces what comes in for this rank's. False: gave up. */
template <typename T, typename Op, int N>
GPU_FN bool reduce_round(
    const struct ll128 &l, const struct shunt_kargs_few &args, uint64_t slots, uint64_t first, uint64_t epoch)
{
	const struct shunt_kargs &a = args.k;
	const uint32_t depth = SHUNT_LL128_SLOTS / N, own = slots_left<N>(l, args, a.rank, first);
	struct gpu_v16 v[SHUNT_LL128_SLOTS];

	FOR_SLOTS (k, r, depth, a) {
		uint64_t slot = first + (uint64_t)k * l.nchannels;

		v[k * N + r] = { 0, 0 };
		if (slot < args.first_slot[r])
			v[k * N + r] = load_slot<T>(l, args.message[r], slot);
	}
	ll128_scale<T, Op, SHUNT_LL128_SLOTS>(a, v);
	FOR_SLOTS (k, r, depth, a) {
		if (r != a.rank && (k == 0 || first + (uint64_t)k * l.nchannels < args.first_slot[r]))
			gpu_ll128_st(a.peer[r] + slots + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, v[k * N + r], epoch);
	}
	if (!ll128_wait<N>(l, a, slots, own ? own : 1, epoch, v))
		return false;
	GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
		if (k < own)
			store_slot<T>(l, args.message[a.rank], first + (uint64_t)k * l.nchannels,
			    ll128_reduce<T, Op, N>(a, &v[k * N]));
	return true;
}

template <typename T, typename Op, int N> GPU_FN void uneven(const struct shunt_kargs_few &args)
{
	struct ll128 l = ll128_init<T>(args);

	if (l.channel >= l.nslots)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel];

	GPU_ROLL for (uint64_t first = l.channel; first < l.nslots;
	    first += (uint64_t)l.nchannels * (SHUNT_LL128_SLOTS / N)) {
		uint64_t slots = ll128_slots_at<N>(l, args.k, ++epoch);
		bool done;

		if constexpr (is_same<Op, op_copy>::value)
			done = gather_round<T, N>(l, args, slots, first, epoch);
		else
			done = reduce_round<T, Op, N>(l, args, slots, first, epoch);
		if (!done)
			return;
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

#define UNEVEN(n, shape, op, type) LL128_KERNEL(shape, op, type, shunt_kargs_few, uneven<type, op_##op, n>)
#define UNEVEN4(shape, op, opn, type, typen) UNEVEN(4, shape, op, type)
#define UNEVEN8(shape, op, opn, type, typen) UNEVEN(8, shape, op, type)
SHUNT_UNEVEN_ROWS(UNEVEN4, allgatherv4)
SHUNT_UNEVEN_ROWS(UNEVEN8, allgatherv8)
SHUNT_HOT_ROWS(UNEVEN4, reduce_scatterv4)
SHUNT_HOT_ROWS(UNEVEN8, reduce_scatterv8)
