/* SPDX-License-Identifier: MIT */
#include "kernels/staged.h"
/*
 * All-gathers and all-to-alls among more than two ranks, without NVLink: every rank hears from all others in each
 * epoch, as in a one-shot all-reduce or reduce-scatter, whose slots and rules these are. So nobody waits for credits,
 * and what all ranks need is stored once.
 */
#include "kernels/ll128.h"

/* PARTS: each rank gets its part of the input (all-to-all). Else all get all of it. */
template <typename T, int N, bool PARTS> GPU_FN void exchange(const struct shunt_kargs &a)
{
	constexpr bool P = is_same<T, v16>::value;
	constexpr uint32_t depth = SHUNT_LL128_SLOTS / N, parts = PARTS ? N : 1;
	struct ll128 l = ll128_init<T>(a);

	l.bytes = a.part;
	l.nslots = ll128_slots(l.bytes);
	if (l.channel >= l.nslots)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel];
	bool copies = (const char *)a.send + (PARTS ? a.rank * l.bytes : 0) != (char *)a.recv + a.rank * l.bytes;

	for (uint64_t first = l.channel; first < l.nslots; first += (uint64_t)l.nchannels * depth) {
		uint32_t nslots = ll128_round<N>(l, first, l.nslots);
		uint64_t slots = ll128_slots_at<N>(l, a, ++epoch);
		struct gpu_v16 own[parts * depth], v[SHUNT_LL128_SLOTS];

		ll128_load<T, parts, depth, P>(l, a, 0, 0, first, nslots, own);
		GPU_UNROLL for (uint32_t k = 0; k < depth; k++)
			if (!PARTS && k < nslots) {
				ll128_send_all(l, a, slots + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE, own[k], epoch);
				if (copies)
					ll128_write<T, P>(l, a, first + (uint64_t)k * l.nchannels, own[k], a.rank);
			}
		FOR_SLOTS (k, r, nslots, a) {
			if (PARTS && r != a.rank)
				gpu_ll128_st(a.peer[r] + slots + (k * N + a.rank) * SHUNT_LL128_SLOT_WIRE,
				    own[k * parts + r % parts], epoch);
			else if (PARTS && copies)
				ll128_write<T, P>(
				    l, a, first + (uint64_t)k * l.nchannels, own[k * parts + r % parts], r);
		}
		if (!ll128_wait<N>(l, a, slots, nslots, epoch, v, !PARTS && STORED_ONCE))
			return;
		FOR_SLOTS (k, r, nslots, a) {
			if (r != a.rank)
				ll128_write<T, P>(l, a, first + (uint64_t)k * l.nchannels, v[k * N + r], r);
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

#define EXCHANGE(n, parts, shape, op, type) LL128_KERNEL(shape, op, type, shunt_kargs, exchange<type, n, parts>)
#define GATHER4(shape, op, opn, type, typen) EXCHANGE(4, false, exchange4, op, type)
#define GATHER8(shape, op, opn, type, typen) EXCHANGE(8, false, exchange8, op, type)
#define PARTS4(shape, op, opn, type, typen) EXCHANGE(4, true, exchange4_parts, op, type)
#define PARTS8(shape, op, opn, type, typen) EXCHANGE(8, true, exchange8_parts, op, type)
SHUNT_COPY_ROWS(GATHER4, exchange4)
SHUNT_COPY_ROWS(GATHER8, exchange8)
SHUNT_COPY_ROWS(PARTS4, exchange4_parts)
SHUNT_COPY_ROWS(PARTS8, exchange8_parts)
