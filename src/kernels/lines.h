/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_LINES_H
#define SHUNT_KERNELS_LINES_H
/*
 * What the line kernels share. A warp is a channel. A kernel is made for up to N = 2, 4 or 8 ranks; in one round
 * (epoch) a channel handles D = 8 / N units of each rank, slot k * N + r being unit k of rank r, so that every index
 * into registers is a constant. A unit is 480 bytes of the message on 512 bytes of the wire. Lanes 0-6 of each line
 * hold 16 bytes of data, lane 7 holds 8 and the flag, so that packs stay aligned: first the 28 full packs of the unit,
 * then the 4 halves.
 */
#include "kernels/elements.h"
#include "kernels/progress.h"
#include "kernels/spin.h"

/* Slots of a unit in a round: one for each rank, of which our own stays empty; between two ranks the peer's alone. */
#define SLOTS_OF_UNIT(N) ((N) == 2 ? 1u : (uint32_t)(N))

/*
 * Before a block, for all slots, or those of D units of N ranks: k and r as constants, r below the real number of ranks
 * and k in use in this round.
 */
#define FOR_SLOTS_OF(D, k, r, units, a) \
	GPU_UNROLL \
	for (uint32_t k = 0; k < (D); k++) \
		GPU_UNROLL \
	for (uint32_t r = 0; r < N; r++) \
		if (k < (units) && (N <= 2 || r < (a).nranks))
#define FOR_SLOTS(k, r, units, a) FOR_SLOTS_OF (SHUNT_LINE_SLOTS / N, k, r, units, a)

struct lines {
	struct shunt_ctrl *ctrl;
	char *inbox; /* our own scratch */
	uint32_t channel, nchannels;
	uint32_t width; /* bytes of the message that this lane holds of a unit: 16 or 8 */
	uint32_t at;    /* where in the unit's 480 bytes */
	uint32_t pack;  /* where the aligned pack is that holds it: the halves' lanes load a whole one */
	uint64_t bytes; /* of the message */
	uint64_t units; /* of the message */
	bool aligned;
};

GPU_FN uint64_t units_of(uint64_t bytes) { return (bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA; }

/*
 * A lane of a unit that is aligned reads one aligned pack, the last of a line the one that its half is in;
 * unit_loaded() picks the half, after the loads of other units have been issued.
 */
GPU_FN uint32_t unit_pack(void)
{
	uint32_t line = gpu_lane() / 8;

	return GPU_LINE_LAST ? 448 + line / 2 * 16 : (line * 7 + gpu_lane() % 8) * 16;
}

GPU_FN void unit_loaded(struct gpu_v16 *v)
{
	if (GPU_LINE_LAST && gpu_lane() / 8 % 2)
		v->lo = v->hi;
}

/* D units of user memory that are whole and aligned. All loads are under way before the first one's value is used. */
template <int D> GPU_FN void units_load(const char *const p[D], struct gpu_v16 v[D])
{
	GPU_UNROLL
	for (uint32_t k = 0; k < D; k++)
		v[k] = gpu_ld16_stream(p[k] + unit_pack());
	GPU_UNROLL
	for (uint32_t k = 0; k < D; k++)
		unit_loaded(&v[k]);
}

GPU_FN void unit_store(char *p, struct gpu_v16 v)
{
	uint32_t line = gpu_lane() / 8;

	if (GPU_LINE_LAST)
		*(uint64_t *)(p + 448 + line * 8) = v.lo;
	else
		gpu_st16_stream(p + (line * 7 + gpu_lane() % 8) * 16, v);
}

/* A kernel works on one message, or on a few: then the units of all are numbered through, and none belongs to two. */
GPU_FN const struct shunt_kargs &common(const struct shunt_kargs &a) { return a; }
GPU_FN const struct shunt_kargs &common(const struct shunt_kargs_few &a) { return a.k; }

template <typename T> GPU_FN void lines_measure(struct lines *l, const struct shunt_kargs &a)
{
	l->bytes = a.count * sizeof(T);
	l->units = units_of(l->bytes);
	l->aligned = a.flags & SHUNT_K_ALIGNED;
}

template <typename T> GPU_FN void lines_measure(struct lines *l, const struct shunt_kargs_few &a)
{
	l->units = a.unit[SHUNT_FEW_MESSAGES];
}

template <typename T, typename A> GPU_FN struct lines lines_init(const A &args)
{
	const struct shunt_kargs &a = common(args);
	struct lines l;
	uint32_t lane = gpu_lane(), line = lane / 8;

	l.inbox = a.peer[a.rank];
	l.ctrl = (struct shunt_ctrl *)l.inbox;
	l.channel = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32;
	l.nchannels = check_others(a) * gpu_ntid() / 32;
	l.width = GPU_LINE_LAST ? 8 : 16;
	l.at = GPU_LINE_LAST ? 448 + line * 8 : (line * 7 + lane % 8) * 16;
	l.pack = unit_pack();
	lines_measure<T>(&l, args);
	return l;
}

/* The message that a unit belongs to; the unit's number becomes the one within it. */
GPU_FN struct shunt_message lines_message(const struct shunt_kargs_few &a, uint64_t *unit)
{
	uint32_t i = 0;

	GPU_UNROLL
	for (uint32_t half = SHUNT_FEW_MESSAGES / 2; half; half /= 2)
		if (*unit >= a.unit[i + half])
			i += half;
	*unit -= a.unit[i];
	return a.message[i];
}

/* How many units of this channel are left from `first` on, at most one round's. */
template <int N> GPU_FN uint32_t lines_round(const struct lines &l, uint64_t first, uint64_t end)
{
	const uint32_t depth = SHUNT_LINE_SLOTS / N;
	uint32_t units = 1;

	while (units < depth && first + (uint64_t)units * l.nchannels < end)
		units++;
	return units;
}

/* What this lane holds of a unit of part r of what is sent: the parts are as long as what is received. */
template <typename T>
GPU_FN struct gpu_v16 lines_read(const struct lines &l, const struct shunt_kargs &a, uint32_t r, uint64_t unit)
{
	return load_user<T>(
	    (const char *)a.send + r * l.bytes, unit * SHUNT_UNIT_DATA + l.at, l.width, l.bytes, l.aligned);
}

template <typename T>
GPU_FN struct gpu_v16 lines_read(const struct lines &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t unit)
{
	struct shunt_message m = lines_message(a, &unit);
	bool aligned = !(((uintptr_t)m.from | (r ? m.bytes : 0)) & 15);

	return load_user<T>(
	    (const char *)m.from + r * m.bytes, unit * SHUNT_UNIT_DATA + l.at, l.width, m.bytes, aligned);
}

/*
 * P here and below: the message is known to consist of whole, aligned packs. Its kernels have no code for anything
 * else: small messages wait for instructions.
 */
template <typename T, bool P>
GPU_FN void lines_write(
    const struct lines &l, const struct shunt_kargs &a, uint64_t unit, struct gpu_v16 v, uint32_t r = 0)
{
	uint64_t at = unit * SHUNT_UNIT_DATA + l.at;
	char *part = (char *)a.recv + r * l.bytes;

	if constexpr (P)
		store_user<v16>(part, at, l.width, l.bytes, true, v);
	else
		store_user<T>(part, at, l.width, l.bytes, l.aligned, v);
}

template <typename T, bool P>
GPU_FN void lines_write(const struct lines &l, const struct shunt_kargs_few &a, uint64_t unit, struct gpu_v16 v)
{
	struct shunt_message m = lines_message(a, &unit);

	store_user<T>(m.to, unit * SHUNT_UNIT_DATA + l.at, l.width, m.bytes, !((uintptr_t)m.to & 15), v);
}

/*
 * Where this lane's pack of a unit of part r lies. Where the part does not reach so far, the beginning of unit `own`,
 * which no other warp overwrites.
 */
GPU_FN const char *lines_pack(
    const struct lines &l, const struct shunt_kargs &a, uint32_t r, uint64_t unit, uint64_t own)
{
	uint64_t at = unit * SHUNT_UNIT_DATA + l.pack;

	return (const char *)a.send + r * l.bytes + (at < l.bytes ? at : own * SHUNT_UNIT_DATA);
}

GPU_FN const char *lines_pack(
    const struct lines &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t unit, uint64_t own)
{
	struct shunt_message m = lines_message(a, &unit);
	uint64_t at = unit * SHUNT_UNIT_DATA + l.pack;

	if (at >= m.bytes) {
		m = lines_message(a, &own);
		at = own * SHUNT_UNIT_DATA;
	}
	return (const char *)m.from + r * m.bytes + at;
}

/* Can the channel's units from `first` on be read so? No pack may be cut by the message's end. */
GPU_FN bool lines_packed(const struct lines &l, const struct shunt_kargs &a, uint32_t r, uint64_t first, uint32_t units)
{
	return l.aligned &&
	    (!(l.bytes & 15) || (first + (units - 1) * (uint64_t)l.nchannels + 1) * SHUNT_UNIT_DATA <= l.bytes);
}

GPU_FN bool lines_packed(
    const struct lines &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t first, uint32_t units)
{
	bool packed = true;

	for (uint32_t k = 0; k < units; k++) {
		uint64_t unit = first + k * (uint64_t)l.nchannels;
		struct shunt_message m = lines_message(a, &unit);

		packed = packed && !(((uintptr_t)m.from | (r ? m.bytes : 0)) & 15) &&
		    (!(m.bytes & 15) || (unit + 1) * SHUNT_UNIT_DATA <= m.bytes);
	}
	return packed;
}

/*
 * The channel's units from `first` on, of each of N parts up to D: slot k * N + r is unit k of part r. Part r begins at
 * unit r * stride; or, if that is 0, it has units of its own, and slot k * N + r is unit k of part r + turn. No load
 * waits for another one: for units that are not there, what is there is read once more. But where a pack is cut or not
 * aligned, the loads come one after the other.
 */
template <typename T, int N, int D, bool P, typename A>
GPU_FN void lines_load(const struct lines &l, const A &args, uint64_t stride, uint32_t turn, uint64_t first,
    uint32_t units, struct gpu_v16 v[N * D])
{
	const struct shunt_kargs &a = common(args);
	bool packed = true;

	GPU_UNROLL
	for (uint32_t r = 0; r < N; r++)
		if (!P && (N <= 2 || r < a.nranks))
			packed =
			    packed && lines_packed(l, args, stride ? 0 : (r + turn) % N, r * stride + first, units);
	if (P || packed) {
		GPU_UNROLL
		for (uint32_t r = 0; r < N; r++)
			GPU_UNROLL
		for (uint32_t k = 0; k < D; k++)
			if (N <= 2 || r < a.nranks)
				v[k * N + r] = gpu_ld16_stream(lines_pack(l, args, stride ? 0 : (r + turn) % N,
				    r * stride + first + (uint64_t)(k < units ? k : 0) * l.nchannels, first));
		GPU_UNROLL
		for (uint32_t i = 0; i < N * D; i++)
			unit_loaded(&v[i]);
		return;
	}
	if constexpr (!P)
		FOR_SLOTS_OF (D, k, r, units, a)
			v[k * N + r] = lines_read<T>(
			    l, args, stride ? 0 : (r + turn) % N, r * stride + first + (uint64_t)k * l.nchannels);
}

template <typename T, typename Op, int D> GPU_FN void lines_multiply(struct gpu_v16 v[D], T factor)
{
	GPU_UNROLL
	for (uint32_t k = 0; k < D; k++)
		v[k] = premultiply<T, Op>(v[k], factor);
}

/* By the launch's factor, if it has one. */
template <typename T, typename Op, int D> GPU_FN void lines_scale(const struct shunt_kargs &a, struct gpu_v16 v[D])
{
	if constexpr (is_same<Op, op_sum>::value)
		if (a.flags & SHUNT_K_PREMUL)
			lines_multiply<T, Op, D>(v, load_scalar<T>(a));
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

/*
 * Offset of slot 0 of this channel's epoch, in every rank's scratch. A channel has two sets of slots; four of half the
 * size between two ranks (pair.h).
 */
template <int N> GPU_FN uint64_t lines_slots(const struct lines &l, const struct shunt_kargs &a, uint64_t epoch)
{
	uint64_t slots =
	    N == 2 || (N == 8 && a.nranks == 2) ? (epoch & 3) * (SHUNT_LINE_SLOTS / 2) : (epoch & 1) * SHUNT_LINE_SLOTS;

	return SHUNT_HOP1_AT + ((uint64_t)l.channel * 2 * SHUNT_LINE_SLOTS + slots) * SHUNT_UNIT_WIRE;
}

/*
 * By a lane that misses a flag: names the first rank that it misses. `slots`: in our inbox, each rank's so far behind
 * the one before.
 */
GPU_NOINLINE void lines_give_up(struct shunt_ctrl *ctrl, const char *slots, uint32_t apart, uint32_t rank,
    uint32_t channel, uint64_t epoch, uint32_t missing)
{
	uint32_t peer = 0, line = gpu_lane() / 8;
	uint32_t reason = spin_reason(ctrl);

	while (!(missing >> peer & 1))
		peer++;
	spin_report(ctrl, reason, rank, peer, channel, epoch,
	    gpu_ld_relaxed((const uint64_t *)(slots + peer * apart + line * 128 + 120)));
}

/*
 * Waits until the slots of the round that other ranks fill have arrived; v of our own slot, if there is one, stays as
 * it is. `units`: how many k of this round are in use. False: gave up. Collective over the warp.
 */
template <int N>
GPU_FN bool lines_wait(const struct lines &l, const struct shunt_kargs &a, uint64_t slots, uint32_t units,
    uint64_t epoch, struct gpu_v16 v[SHUNT_LINE_SLOTS / N * SLOTS_OF_UNIT(N)])
{
	const uint32_t S = SLOTS_OF_UNIT(N);
	struct spin spin;

	spin_init(&spin, l.ctrl);
	for (;;) {
		uint32_t missing = 0;

		FOR_SLOTS (k, r, units, a) {
			if (r < S && (S == 1 || r != a.rank))
				gpu_line_ld(l.inbox + slots + (k * S + r) * SHUNT_UNIT_WIRE, &v[k * S + r], epoch);
		}
		FOR_SLOTS (k, r, units, a) {
			if (r < S && (S == 1 || r != a.rank) && !gpu_line_here(v[k * S + r], epoch))
				missing |= 1u << (S == 1 ? 1 - a.rank : r);
		}
		if (gpu_warp_all(!missing))
			return true;
		if (!gpu_warp_all(gpu_lane() != 7 || !spin_expired(&spin))) {
			if (missing)
				lines_give_up(l.ctrl, l.inbox + slots, S == 1 ? 0 : SHUNT_UNIT_WIRE, a.rank, l.channel,
				    epoch, missing);
			return false;
		}
	}
}

/* Result of one unit: the packs of all ranks in their order. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 lines_fold(const struct shunt_kargs &a, const struct gpu_v16 *v)
{
	struct acc<T, Op> acc;

	acc.start(v[0]);
	GPU_UNROLL
	for (uint32_t r = 1; r < N; r++)
		if (N == 2 || r < a.nranks)
			acc.add(v[r], a.flags);
	return acc_finish(acc, a);
}

/* The same where our own pack is not among them; v has slots of a unit. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 lines_reduce(const struct shunt_kargs &a, const struct gpu_v16 *v, struct gpu_v16 own)
{
	struct acc<T, Op> acc;

	GPU_UNROLL
	for (uint32_t r = 0; r < N; r++) {
		const struct gpu_v16 &other = v[r % SLOTS_OF_UNIT(N)];
		struct gpu_v16 x = { r == a.rank ? own.lo : other.lo, r == a.rank ? own.hi : other.hi };

		if (r == 0)
			acc.start(x);
		else if (N == 2 || r < a.nranks)
			acc.add(x, a.flags);
	}
	return acc_finish(acc, a);
}

#define LINES_KERNEL(shape, op, type, args, ...) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct args) a) \
	    PROGRESS(a, __VA_ARGS__(a))

/*
 * The kernels of a file that has defined LINES_BODY, a template like oneshot() in oneshot.cu: for the lists of
 * kernel_list.h. Those for two ranks: pair.h.
 */
#define LINES_INSTANCE(n, packs, shape, op, type, args) \
	LINES_KERNEL(shape, op, type, args, LINES_BODY<type, op_##op, n, packs>)
#define INSTANCE4(shape, op, opn, type, typen) LINES_INSTANCE(4, false, shape, op, type, shunt_kargs)
#define INSTANCE8(shape, op, opn, type, typen) LINES_INSTANCE(8, false, shape, op, type, shunt_kargs)
#define PACKS4(shape, op, opn, type, typen) LINES_INSTANCE(4, true, shape, op, type, shunt_kargs)
#define FEW4(shape, op, opn, type, typen) LINES_INSTANCE(4, false, shape, op, type, shunt_kargs_few)
#define FEW8(shape, op, opn, type, typen) LINES_INSTANCE(8, false, shape, op, type, shunt_kargs_few)
#endif
