/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_PAIR_H
#define SHUNT_KERNELS_PAIR_H
/*
 * Collectives in lines between two ranks: each sends the other what that one needs, all of its input or a part. What
 * comes in is folded with our own, or stored beside it where nothing is reduced (op_copy). A channel sends its next
 * round before it waits for the one that is under way, so the link has something to carry meanwhile.
 *
 * That takes four sets of slots. Who starts to send epoch e has finished e-2; so the peer had sent that, and had
 * finished e-4 before it did.
 */
#include "kernels/lines.h"

#define PAIR_UNITS (SHUNT_LINE_SLOTS / 2) /* of a round */

/* What a channel has sent while the peer's is still to come. */
struct pair_round {
	uint64_t first;
	uint32_t units;
	struct gpu_v16 own[PAIR_UNITS];
};

/* PARTS: what we need and what the peer needs are parts of the input, each its rank's. */
template <typename T, typename Op, bool P, bool PARTS, typename A>
GPU_FN void pair_send(const struct lines &l, const A &args, uint64_t first, uint64_t epoch, struct pair_round *round)
{
	const struct shunt_kargs &a = common(args);
	const int parts = PARTS ? 2 : 1;
	uint64_t slots = lines_slots<2>(l, a, epoch);
	struct gpu_v16 v[parts * PAIR_UNITS];
	bool copies = is_same<Op, op_copy>::value &&
	    (const char *)a.send + (PARTS ? a.rank * l.bytes : 0) != (char *)a.recv + a.rank * l.bytes;

	round->first = first;
	round->units = lines_round<2>(l, first, l.units);
	lines_load<T, parts, PAIR_UNITS, P>(l, args, 0, a.rank, first, round->units, v);
	lines_scale<T, Op, parts * PAIR_UNITS>(a, v);
	GPU_UNROLL
	for (uint32_t k = 0; k < PAIR_UNITS; k++) {
		round->own[k] = v[k * parts];
		if (k < round->units)
			gpu_line_st(a.peer[1 - a.rank] + slots + k * SHUNT_UNIT_WIRE, v[k * parts + parts - 1], epoch);
	}
	if constexpr (is_same<Op, op_copy>::value) {
		GPU_UNROLL
		for (uint32_t k = 0; k < PAIR_UNITS; k++)
			if (copies && k < round->units)
				lines_write<T, P>(l, args, first + (uint64_t)k * l.nchannels, v[k * parts], a.rank);
	}
}

/* False: gave up. */
template <typename T, typename Op, bool P, typename A>
GPU_FN bool pair_take(const struct lines &l, const A &args, uint64_t epoch, const struct pair_round &round)
{
	const struct shunt_kargs &a = common(args);
	struct gpu_v16 v[PAIR_UNITS];

	if (!lines_wait<2>(l, a, lines_slots<2>(l, a, epoch), round.units, epoch, v))
		return false;
	GPU_UNROLL
	for (uint32_t k = 0; k < PAIR_UNITS; k++)
		if (k < round.units) {
			uint64_t unit = round.first + (uint64_t)k * l.nchannels;

			if constexpr (is_same<Op, op_copy>::value)
				lines_write<T, P>(l, args, unit, v[k], 1 - a.rank);
			else
				lines_write<T, P>(l, args, unit, lines_reduce<T, Op, 2>(a, &v[k], round.own[k]));
		}
	return true;
}

template <typename T, typename Op, bool P, bool PARTS, typename A> GPU_FN void pair(const A &args)
{
	struct lines l = lines_init<T>(args);

	if constexpr (is_same<Op, op_copy>::value) {
		l.bytes = args.part;
		l.units = units_of(l.bytes);
	}
	const uint64_t step = (uint64_t)l.nchannels * PAIR_UNITS;
	struct pair_round now, ahead;
	bool sent = false; /* a round of which the peer's has not been taken yet */

	if (l.channel >= l.units)
		return;
	uint64_t epoch = l.ctrl->epoch[l.channel]; /* taken last */

	if (P && l.units <= step) { /* one round is all: what takes the shortest way, where each instruction counts */
		pair_send<T, Op, P, PARTS>(l, args, l.channel, ++epoch, &now);
		if (!pair_take<T, Op, P>(l, args, epoch, now))
			return;
	} else {
		for (uint64_t first = l.channel; sent || first < l.units; first += step) {
			bool more = first < l.units;

			if (more)
				pair_send<T, Op, P, PARTS>(l, args, first, epoch + sent + 1, &ahead);
			if (sent && !pair_take<T, Op, P>(l, args, ++epoch, now))
				return;
			now = ahead;
			sent = more;
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		l.ctrl->epoch[l.channel] = epoch;
}

/* The kernels of a file that has defined PAIR_PARTS. */
#define PAIR_INSTANCE(packs, shape, op, type, args) \
	LINES_KERNEL(shape, op, type, args, pair<type, op_##op, packs, PAIR_PARTS>)
#define INSTANCE2(shape, op, opn, type, typen) PAIR_INSTANCE(false, shape, op, type, shunt_kargs)
#define PACKS2(shape, op, opn, type, typen) PAIR_INSTANCE(true, shape, op, type, shunt_kargs)
#define FEW2(shape, op, opn, type, typen) PAIR_INSTANCE(false, shape, op, type, shunt_kargs_few)
#endif
