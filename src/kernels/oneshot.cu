/* SPDX-License-Identifier: MIT */
/*
 * One-shot all-reduce: every rank sends its whole input to every peer and reduces all inputs itself. One hop; the bytes on
 * the wire are (n-1) times the message, so it is for small messages, and for any size between two ranks.
 *
 * A channel may overwrite the slots of epoch e-2 when it starts epoch e: it has finished epoch e-1, so it has every peer's data of
 * e-1, which each of them sent after it had finished reading e-2.
 */
#include "kernels/lines.h"

template <typename T, typename Op> GPU_FN void oneshot(const struct shunt_kargs &a)
{
	struct lines l = lines_init<T>(a);

	if (l.channel >= l.units)
		return;
	uint64_t epoch = l.ctrl->oneshot_epoch[l.channel];

	for (uint64_t first = l.channel; first < l.units; first += (uint64_t)l.nchannels * l.depth) {
		uint64_t left = (l.units - first + l.nchannels - 1) / l.nchannels;
		uint32_t units = left < l.depth ? (uint32_t)left : l.depth;
		uint64_t slots = lines_slots(l, SHUNT_ONESHOT_AT, ++epoch);
		struct gpu_v16 v[SHUNT_LINE_SLOTS];
		struct slot s = { 0, 0 };

		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units && s.r == a.rank)
				v[j] = lines_read<T>(l, a, first + (uint64_t)s.k * l.nchannels);
			slot_next(&s, a.nranks);
		}
		if (a.flags & SHUNT_K_PREMUL)
			lines_scale<T>(a, v);
		s = { 0, 0 };
		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units && s.r == a.rank)
				lines_send_all(a, slots + j * SHUNT_UNIT_WIRE, v[j], epoch);
			slot_next(&s, a.nranks);
		}
		if (!lines_wait(l, a, slots, units, epoch, v))
			return;
		struct acc_pack<T> acc = {};
		s = { 0, 0 };
		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units) {
				if (s.r == 0)
					acc_start(acc, v[j]);
				else
					acc_add<T, Op>(acc, v[j], a.flags);
				if (s.r == a.nranks - 1u)
					lines_write<T>(l, a, first + (uint64_t)s.k * l.nchannels, acc_finish(acc, a));
			}
			slot_next(&s, a.nranks);
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->oneshot_epoch[l.channel] = epoch;
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs) a) { oneshot<type, op_##op>(a); }
SHUNT_KERNEL_ROWS(INSTANCE, oneshot)
