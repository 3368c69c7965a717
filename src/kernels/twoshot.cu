/* SPDX-License-Identifier: MIT */
/*
 * Two-shot all-reduce: the message is cut into n parts; every rank sends part p to rank p (shot one), reduces its own part, and
 * sends the result to everybody (shot two). Two hops; the bytes on the wire are 2(n-1)/n of the message.
 *
 * Parts are padded to the same number of units, so that in every round a channel hears from every peer in both shots. It may
 * overwrite the slots of epoch e-2 when it starts epoch e: it has finished e-1, so it has data that every peer sent after it had
 * finished e-2.
 */
#include "kernels/lines.h"

template <typename T, typename Op> GPU_FN void twoshot(const struct shunt_kargs &a)
{
	struct lines l = lines_init<T>(a);
	uint64_t part = (l.units + a.nranks - 1) / a.nranks;

	if (l.channel >= part)
		return;
	uint64_t epoch = l.ctrl->twoshot_epoch[l.channel];

	for (uint64_t first = l.channel; first < part; first += (uint64_t)l.nchannels * l.depth) {
		uint64_t left = (part - first + l.nchannels - 1) / l.nchannels;
		uint32_t units = left < l.depth ? (uint32_t)left : l.depth;
		uint64_t shot1 = lines_slots(l, SHUNT_TWOSHOT_AT, ++epoch), shot2 = shot1 + SHUNT_LINE_BYTES;
		struct gpu_v16 v[SHUNT_LINE_SLOTS];
		struct slot s = { 0, 0 };

		/* Slot (k, r) of rank r's inbox is ours to fill at [k, rank]; slot numbers are k * n + source. */
		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units)
				v[j] = lines_read<T>(l, a, s.r * part + first + (uint64_t)s.k * l.nchannels);
			slot_next(&s, a.nranks);
		}
		if (a.flags & SHUNT_K_PREMUL)
			lines_scale<T>(a, v);
		s = { 0, 0 };
		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units && s.r != a.rank)
				gpu_line_st(a.peer[s.r] + shot1 + (s.k * a.nranks + a.rank) * SHUNT_UNIT_WIRE, v[j], epoch);
			slot_next(&s, a.nranks);
		}
		if (!lines_wait(l, a, shot1, units, epoch, v))
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
				if (s.r == a.nranks - 1u) {
					struct gpu_v16 sum = acc_finish(acc, a);

					lines_send_all(a, shot2 + (s.k * a.nranks + a.rank) * SHUNT_UNIT_WIRE, sum, epoch);
					lines_write<T>(l, a, a.rank * part + first + (uint64_t)s.k * l.nchannels, sum);
				}
			}
			slot_next(&s, a.nranks);
		}
		if (!lines_wait(l, a, shot2, units, epoch, v))
			return;
		s = { 0, 0 };
		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units && s.r != a.rank)
				lines_write<T>(l, a, s.r * part + first + (uint64_t)s.k * l.nchannels, v[j]);
			slot_next(&s, a.nranks);
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->twoshot_epoch[l.channel] = epoch;
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs) a) { twoshot<type, op_##op>(a); }
SHUNT_KERNEL_ROWS(INSTANCE, twoshot)
