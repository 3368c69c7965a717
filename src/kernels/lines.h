/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_LINES_H
#define SHUNT_KERNELS_LINES_H
/*
 * What the line kernels share. A warp is a channel. In one round (epoch) it handles depth x n slots, slot j = k * n + r standing for unit k of
 * rank r; a unit is 480 bytes of the message on 512 bytes of the wire. Lanes 0-6 of each line hold 16 bytes of data, lane 7 holds 8 and
 * the flag, so that packs stay aligned: first the 28 full packs of the unit, then the 4 halves.
 */
#include "kernels/elements.h"
#include "kernels/spin.h"

/* A slot of the round: counts k and r along with the (constant, unrolled) slot number. */
struct slot { uint32_t k, r; };

GPU_FN void slot_next(struct slot *s, uint32_t nranks)
{
	if (++s->r == nranks) {
		s->r = 0;
		s->k++;
	}
}

struct lines {
	struct shunt_ctrl *ctrl;
	char *inbox;            /* our own scratch */
	uint32_t channel, nchannels;
	uint32_t depth;         /* units of each rank in a round */
	uint32_t width;         /* bytes of the message that this lane holds of a unit: 16 or 8 */
	uint32_t at;            /* where in the unit's 480 bytes */
	uint64_t bytes;         /* of the message */
	uint64_t units;         /* of the message */
	bool aligned;
};

template <typename T> GPU_FN struct lines lines_init(const struct shunt_kargs &a)
{
	struct lines l;
	uint32_t lane = gpu_lane(), line = lane / 8;

	l.inbox = a.peer[a.rank];
	l.ctrl = (struct shunt_ctrl *)l.inbox;
	l.channel = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32;
	l.nchannels = gpu_nbid() * gpu_ntid() / 32;
	l.depth = SHUNT_LINE_DEPTH(a.nranks);
	l.width = GPU_LINE_LAST ? 8 : 16;
	l.at = GPU_LINE_LAST ? 448 + line * 8 : (line * 7 + lane % 8) * 16;
	l.bytes = a.count * sizeof(T);
	l.units = (l.bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA;
	l.aligned = a.flags & SHUNT_K_ALIGNED;
	return l;
}

template <typename T> GPU_FN struct gpu_v16 lines_read(const struct lines &l, const struct shunt_kargs &a, uint64_t unit)
{
	return load_user<T>(a.send, unit * SHUNT_UNIT_DATA + l.at, l.width, l.bytes, l.aligned);
}

template <typename T> GPU_FN void lines_write(const struct lines &l, const struct shunt_kargs &a, uint64_t unit, struct gpu_v16 v)
{
	store_user<T>(a.recv, unit * SHUNT_UNIT_DATA + l.at, l.width, l.bytes, l.aligned, v);
}

/* Applies the factor of a pre-multiplied sum to what was read. */
template <typename T> GPU_FN void lines_scale(const struct shunt_kargs &a, struct gpu_v16 v[SHUNT_LINE_SLOTS])
{
	T factor = load_scalar<T>(a);

	GPU_UNROLL
	for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++)
		v[j] = premultiply(v[j], factor);
}

/* Stores to the same slot of every peer, beginning with the next rank: peers are not hit by all at once. */
GPU_FN void lines_send_all(const struct shunt_kargs &a, uint64_t at, struct gpu_v16 v, uint64_t epoch)
{
	GPU_ROLL
	for (uint32_t i = 1, p = a.rank; i < a.nranks; i++) {
		p = p + 1 == a.nranks ? 0 : p + 1;
		gpu_line_st(a.peer[p] + at, v, epoch);
	}
}

/* Offset of slot 0 of this channel's epoch in the area that starts at `area`, in every rank's scratch. */
GPU_FN uint64_t lines_slots(const struct lines &l, uint64_t area, uint64_t epoch)
{
	return area + ((uint64_t)l.channel * 2 + (epoch & 1)) * SHUNT_LINE_SLOTS * SHUNT_UNIT_WIRE;
}

/* By a lane that misses a flag: names the first rank that it misses. */
GPU_NOINLINE void lines_give_up(const struct lines &l, const struct shunt_kargs &a, uint64_t slots, uint64_t epoch, uint32_t missing, struct spin *s)
{
	uint32_t peer = 0, line = gpu_lane() / 8;
	uint32_t reason = gpu_ld_relaxed32(&l.ctrl->abort) ? SHUNT_FAULT_ABORT : SHUNT_FAULT_TIMEOUT;

	while (!(missing >> peer & 1))
		peer++;
	spin_report(s, reason, a.rank, peer, l.channel, epoch,
	    gpu_ld_relaxed((const uint64_t *)(l.inbox + slots + peer * SHUNT_UNIT_WIRE + line * 128 + 120)));
}

/*
 * Waits until the slots of the round that other ranks fill have arrived; v[j] of our own slots stays as it is. `units`: how many k of
 * this round are in use. False: gave up. Collective over the warp.
 */
GPU_FN bool lines_wait(const struct lines &l, const struct shunt_kargs &a, uint64_t slots, uint32_t units, uint64_t epoch,
    struct gpu_v16 v[SHUNT_LINE_SLOTS])
{
	struct spin spin;

	spin_init(&spin, l.ctrl);
	for (;;) {
		struct slot s = { 0, 0 };
		uint32_t missing = 0;

		GPU_UNROLL
		for (uint32_t j = 0; j < SHUNT_LINE_SLOTS; j++) {
			if (s.k < units && s.r != a.rank && !gpu_line_ld(l.inbox + slots + j * SHUNT_UNIT_WIRE, &v[j], epoch))
				missing |= 1u << s.r;
			slot_next(&s, a.nranks);
		}
		if (gpu_warp_all(!missing))
			return true;
		if (!gpu_warp_all(gpu_lane() != 7 || !spin_expired(&spin))) {
			if (missing)
				lines_give_up(l, a, slots, epoch, missing, &spin);
			return false;
		}
	}
}
#endif
