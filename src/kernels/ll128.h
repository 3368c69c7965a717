/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Shared by the LL128 kernels.
 *
 * A warp is a channel. A kernel is made for up to N = 2, 4 or 8 ranks. In one round (epoch) a channel handles 8 / N
 * slots of each rank. Slot k * N + r is slot k of rank r, so that every index into registers is a constant.
 *
 * A slot is 480 bytes of the message on 512 bytes of the wire. In each of its four lines, lanes 0-6 hold 16 bytes of
 * data, lane 7 holds 8 bytes and the flag. Packs stay aligned: the 28 full packs of the slot come first, then the 4
 * halves.
 */
#include "kernels/elements.h"
#include "kernels/progress.h"
#include "kernels/spin.h"

#ifndef SHUNT_OVER_SHARED /* staged.h has other values */
#define LINE_LANES 8u
#define LINE_COUNT UINT64_MAX /* the bits of a flag that count */
/* True: what a rank sends to all lies once, in its own inbox, where the others read it. */
#define STORED_ONCE false
#endif
/* Full packs of a slot, in bytes; the halves are behind them. */
#define LINE_PACKS ((32 - 32 / LINE_LANES) * 16)

/*
 * Slots in the scratch for one message slot of a round: one for each rank, of which this rank's stays empty. Between
 * two ranks: the peer's only.
 */
#define SLOT_SOURCES(N) ((N) == 2 ? 1u : (uint32_t)(N))

/*
 * Loops over the slots (of FOR_SLOTS_DEPTH: D slots of N ranks), for the statement that follows. k and r are
 * constants, r is below the real number of ranks and k is in use in this round.
 */
#define FOR_SLOTS_DEPTH(D, k, r, nslots, a) \
	GPU_UNROLL for (uint32_t k = 0; k < (D); k++) GPU_UNROLL \
		for (uint32_t r = 0; r < N; r++) \
			if (k < (nslots) && (N <= 2 || r < (a).nranks))
#define FOR_SLOTS(k, r, nslots, a) FOR_SLOTS_DEPTH(SHUNT_LL128_SLOTS / N, k, r, nslots, a)

struct ll128 {
	struct shunt_ctrl *ctrl;
	char *inbox; /* this rank's scratch */
	uint32_t channel, nchannels;
	uint32_t width;  /* bytes of the message that this lane holds in a slot: 16 or 8 */
	uint32_t at;     /* their offset in the slot's 480 bytes */
	uint32_t pack;   /* offset of the aligned pack that contains them: lanes with a half load a whole pack */
	uint64_t bytes;  /* of the message */
	uint64_t nslots; /* of the message */
	bool aligned;
};

GPU_FN uint64_t ll128_slots(uint64_t bytes) { return (bytes + SHUNT_LL128_SLOT_DATA - 1) / SHUNT_LL128_SLOT_DATA; }

/*
 * Offset of the aligned pack that a lane loads of an aligned slot. Lane 7 of a line loads the pack that contains its
 * half. ll128_unpack_half() selects the half, after the loads of other slots have been issued.
 */
GPU_FN uint32_t ll128_pack_at(void)
{
	uint32_t line = gpu_lane() / LINE_LANES;

	return GPU_LL128_FLAG_LANE ? LINE_PACKS + line / 2 * 16 :
	                             (line * (LINE_LANES - 1) + gpu_lane() % LINE_LANES) * 16;
}

GPU_FN void ll128_unpack_half(struct gpu_v16 *v)
{
	if (GPU_LL128_FLAG_LANE && gpu_lane() / LINE_LANES % 2)
		v->lo = v->hi;
}

/* Loads D whole, aligned slots of user memory. All loads are under way before the first value is used. */
template <int D> GPU_FN void ll128_load_slots(const char *const p[D], struct gpu_v16 v[D])
{
	GPU_UNROLL for (uint32_t k = 0; k < D; k++)
		v[k] = gpu_ld16_stream(p[k] + ll128_pack_at());
	GPU_UNROLL for (uint32_t k = 0; k < D; k++)
		ll128_unpack_half(&v[k]);
}

GPU_FN void ll128_store_slot(char *p, struct gpu_v16 v)
{
	uint32_t line = gpu_lane() / LINE_LANES;

	if (GPU_LL128_FLAG_LANE)
		*(uint64_t *)(p + LINE_PACKS + line * 8) = v.lo;
	else
		gpu_st16_stream(p + (line * (LINE_LANES - 1) + gpu_lane() % LINE_LANES) * 16, v);
}

/*
 * A kernel works on one message or on a few. The slots of a few messages are numbered consecutively, and no slot
 * belongs to two messages.
 */
GPU_FN const struct shunt_kargs &kargs_of(const struct shunt_kargs &a) { return a; }
GPU_FN const struct shunt_kargs &kargs_of(const struct shunt_kargs_few &a) { return a.k; }

template <typename T> GPU_FN void ll128_measure(struct ll128 *l, const struct shunt_kargs &a)
{
	l->bytes = a.count * sizeof(T);
	l->nslots = ll128_slots(l->bytes);
	l->aligned = a.flags & SHUNT_K_ALIGNED;
}

template <typename T> GPU_FN void ll128_measure(struct ll128 *l, const struct shunt_kargs_few &a)
{
	l->nslots = a.first_slot[SHUNT_FEW_MESSAGES];
}

template <typename T, typename A> GPU_FN struct ll128 ll128_init(const A &args)
{
	const struct shunt_kargs &a = kargs_of(args);
	struct ll128 l;
	uint32_t lane = gpu_lane(), line = lane / LINE_LANES;

	l.ctrl = (struct shunt_ctrl *)a.peer[a.rank];
	l.inbox = (char *)spin_inbox(l.ctrl);
	l.channel = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32;
	l.nchannels = check_kernel_blocks(a) * gpu_ntid() / 32;
	l.width = GPU_LL128_FLAG_LANE ? 8 : 16;
	l.at = GPU_LL128_FLAG_LANE ? LINE_PACKS + line * 8 : (line * (LINE_LANES - 1) + lane % LINE_LANES) * 16;
	l.pack = ll128_pack_at();
	ll128_measure<T>(&l, args);
	return l;
}

/* The message that a slot belongs to. *slot becomes the number within that message. */
GPU_FN struct shunt_message ll128_message(const struct shunt_kargs_few &a, uint64_t *slot)
{
	uint32_t i = 0;

	GPU_UNROLL for (uint32_t half = SHUNT_FEW_MESSAGES / 2; half; half /= 2)
		if (*slot >= a.first_slot[i + half])
			i += half;
	*slot -= a.first_slot[i];
	return a.message[i];
}

/* Number of this channel's slots from `first` on, at most those of one round. */
template <int N> GPU_FN uint32_t ll128_round(const struct ll128 &l, uint64_t first, uint64_t end)
{
	const uint32_t depth = SHUNT_LL128_SLOTS / N;
	uint32_t nslots = 1;

	while (nslots < depth && first + (uint64_t)nslots * l.nchannels < end)
		nslots++;
	return nslots;
}

/* Reads this lane's bytes of a slot of part r of the input. Each part is as long as the output. */
template <typename T>
GPU_FN struct gpu_v16 ll128_read(const struct ll128 &l, const struct shunt_kargs &a, uint32_t r, uint64_t slot)
{
	return load_user<T>(
	    (const char *)a.send + r * l.bytes, slot * SHUNT_LL128_SLOT_DATA + l.at, l.width, l.bytes, l.aligned);
}

template <typename T>
GPU_FN struct gpu_v16 ll128_read(const struct ll128 &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t slot)
{
	struct shunt_message m = ll128_message(a, &slot);
	bool aligned = !(((uintptr_t)m.from | (r ? m.bytes : 0)) & 15);

	return load_user<T>(
	    (const char *)m.from + r * m.bytes, slot * SHUNT_LL128_SLOT_DATA + l.at, l.width, m.bytes, aligned);
}

/*
 * P, here and below: the message consists of whole, aligned packs. Such kernels have no code for other messages, as
 * small messages wait for instructions.
 */
template <typename T, bool P>
GPU_FN void ll128_write(
    const struct ll128 &l, const struct shunt_kargs &a, uint64_t slot, struct gpu_v16 v, uint32_t r = 0)
{
	uint64_t at = slot * SHUNT_LL128_SLOT_DATA + l.at;
	char *part = (char *)a.recv + r * l.bytes;

	if constexpr (P)
		store_user<v16>(part, at, l.width, l.bytes, true, v);
	else
		store_user<T>(part, at, l.width, l.bytes, l.aligned, v);
}

template <typename T, bool P>
GPU_FN void ll128_write(const struct ll128 &l, const struct shunt_kargs_few &a, uint64_t slot, struct gpu_v16 v)
{
	struct shunt_message m = ll128_message(a, &slot);

	store_user<T>(m.to, slot * SHUNT_LL128_SLOT_DATA + l.at, l.width, m.bytes, !((uintptr_t)m.to & 15), v);
}

/*
 * Address of this lane's pack of a slot of part r. Beyond the part's end: the beginning of slot `own`, which no other
 * warp overwrites.
 */
GPU_FN const char *ll128_pack(
    const struct ll128 &l, const struct shunt_kargs &a, uint32_t r, uint64_t slot, uint64_t own)
{
	uint64_t at = slot * SHUNT_LL128_SLOT_DATA + l.pack;

	return (const char *)a.send + r * l.bytes + (at < l.bytes ? at : own * SHUNT_LL128_SLOT_DATA);
}

GPU_FN const char *ll128_pack(
    const struct ll128 &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t slot, uint64_t own)
{
	struct shunt_message m = ll128_message(a, &slot);
	uint64_t at = slot * SHUNT_LL128_SLOT_DATA + l.pack;

	if (at >= m.bytes) {
		m = ll128_message(a, &own);
		at = own * SHUNT_LL128_SLOT_DATA;
	}
	return (const char *)m.from + r * m.bytes + at;
}

/* Can the channel's slots from `first` on be read as packs? The message's end must not cut a pack. */
GPU_FN bool ll128_packed(
    const struct ll128 &l, const struct shunt_kargs &a, uint32_t r, uint64_t first, uint32_t nslots)
{
	return l.aligned &&
	    (!(l.bytes & 15) || (first + (nslots - 1) * (uint64_t)l.nchannels + 1) * SHUNT_LL128_SLOT_DATA <= l.bytes);
}

GPU_FN bool ll128_packed(
    const struct ll128 &l, const struct shunt_kargs_few &a, uint32_t r, uint64_t first, uint32_t nslots)
{
	bool packed = true;

	for (uint32_t k = 0; k < nslots; k++) {
		uint64_t slot = first + k * (uint64_t)l.nchannels;
		struct shunt_message m = ll128_message(a, &slot);

		packed = packed && !(((uintptr_t)m.from | (r ? m.bytes : 0)) & 15) &&
		    (!(m.bytes & 15) || (slot + 1) * SHUNT_LL128_SLOT_DATA <= m.bytes);
	}
	return packed;
}

/*
 * Loads the channel's slots from `first` on, of each of N parts up to D slots. v[k * N + r] is slot k
 *
 *   stride  of
 *   > 0     part r, which begins at slot r * stride of the message
 *   0       part (r + turn) % N, which has slots of its own
 *
 * No load waits for another one: in place of an absent slot, a present one is read again. Only where a pack is cut or
 * not aligned, the loads come one after the other.
 */
template <typename T, int N, int D, bool P, typename A>
GPU_FN void ll128_load(const struct ll128 &l, const A &args, uint64_t stride, uint32_t turn, uint64_t first,
    uint32_t nslots, struct gpu_v16 v[N * D])
{
	const struct shunt_kargs &a = kargs_of(args);
	bool packed = true;

	GPU_UNROLL for (uint32_t r = 0; r < N; r++)
		if (!P && (N <= 2 || r < a.nranks))
			packed =
			    packed && ll128_packed(l, args, stride ? 0 : (r + turn) % N, r * stride + first, nslots);
	if (P || packed) {
		GPU_UNROLL for (uint32_t r = 0; r < N; r++) GPU_UNROLL
			for (uint32_t k = 0; k < D; k++)
				if (N <= 2 || r < a.nranks)
					v[k * N + r] = gpu_ld16_stream(ll128_pack(l, args, stride ? 0 : (r + turn) % N,
					    r * stride + first + (uint64_t)(k < nslots ? k : 0) * l.nchannels, first));
		GPU_UNROLL for (uint32_t i = 0; i < N * D; i++)
			ll128_unpack_half(&v[i]);
		return;
	}
	if constexpr (!P)
		FOR_SLOTS_DEPTH(D, k, r, nslots, a)
	v[k * N + r] =
	    ll128_read<T>(l, args, stride ? 0 : (r + turn) % N, r * stride + first + (uint64_t)k * l.nchannels);
}

template <typename T, typename Op, int D>
GPU_FN void ll128_multiply(struct gpu_v16 v[D], typename factor_of<T>::type factor)
{
	GPU_UNROLL for (uint32_t k = 0; k < D; k++)
		v[k] = premultiply<T, Op>(v[k], factor);
}

/* Multiplies by the launch's factor, if it has one. */
template <typename T, typename Op, int D> GPU_FN void ll128_scale(const struct shunt_kargs &a, struct gpu_v16 v[D])
{
	if constexpr (is_same<Op, op_sum>::value)
		if (a.flags & SHUNT_K_PREMUL)
			ll128_multiply<T, Op, D>(v, load_scalar<T>(a));
}

/*
 * Stores to the same slot of every peer, beginning with the next rank, so that ranks do not all store to one peer at
 * once.
 */
GPU_FN void ll128_send_all(
    const struct ll128 &l, const struct shunt_kargs &a, uint64_t at, struct gpu_v16 v, uint64_t epoch)
{
	GPU_ROLL for (uint32_t i = 1, p = a.rank; i < (STORED_ONCE ? 2 : a.nranks); i++) {
		p = p + 1 == a.nranks ? 0 : p + 1;
		gpu_ll128_st((STORED_ONCE ? l.inbox : a.peer[p]) + at, v, epoch);
	}
}

/*
 * Offset of slot 0 of this channel's epoch, in every rank's scratch. A channel has two sets of slots; between two
 * ranks four sets of half the size (pairwise.h).
 */
template <int N> GPU_FN uint64_t ll128_slots_at(const struct ll128 &l, const struct shunt_kargs &a, uint64_t epoch)
{
	uint64_t slots = N == 2 || (N == 8 && a.nranks == 2) ? (epoch & 3) * (SHUNT_LL128_SLOTS / 2) :
	                                                       (epoch & 1) * SHUNT_LL128_SLOTS;

	return SHUNT_HOP1_AT + ((uint64_t)l.channel * 2 * SHUNT_LL128_SLOTS + slots) * SHUNT_LL128_SLOT_WIRE;
}

/*
 * Called by a lane that misses a flag; reports the first rank whose flag is missing. slots: in this rank's scratch,
 * `apart` bytes for each rank.
 */
GPU_NOINLINE void ll128_give_up(struct shunt_ctrl *ctrl, const char *slots, uint32_t apart, uint32_t rank,
    uint32_t channel, uint64_t epoch, uint32_t missing)
{
	uint32_t peer = 0, line = gpu_lane() / LINE_LANES;
	uint32_t reason = spin_reason(ctrl);

	while (!(missing >> peer & 1))
		peer++;
	spin_report(ctrl, reason, rank, peer, channel, epoch,
	    gpu_ld_relaxed((const uint64_t *)(slots + peer * apart + (line + 1) * LINE_LANES * 16 - 8)) & LINE_COUNT);
}

/*
 * Waits until the slots of the round that other ranks fill have arrived. v of this rank's own slot, if any, stays
 * unchanged. nslots: number of k in use in this round. once: they lie in the inboxes of those ranks. False: gave up.
 * ACCOUNT: the time is added to the account of the ranks that are waited for (spin_expired_for()). Collective over the
 * warp.
 */
template <int N, bool ACCOUNT = true>
GPU_FN bool ll128_wait(const struct ll128 &l, const struct shunt_kargs &a, uint64_t slots, uint32_t nslots,
    uint64_t epoch, struct gpu_v16 v[SHUNT_LL128_SLOTS / N * SLOT_SOURCES(N)], bool once = false)
{
	const uint32_t S = SLOT_SOURCES(N);
	struct spin spin;

	spin_init(&spin, l.ctrl);
	for (;;) {
		uint32_t missing = 0;

		FOR_SLOTS (k, r, nslots, a) {
			if (r < S && (S == 1 || r != a.rank))
				gpu_ll128_ld(
				    (once && S > 1 ? a.peer[r] : l.inbox) + slots + (k * S + r) * SHUNT_LL128_SLOT_WIRE,
				    &v[k * S + r], epoch);
		}
		FOR_SLOTS (k, r, nslots, a) {
			if (r < S && (S == 1 || r != a.rank) && !gpu_ll128_ready(v[k * S + r], epoch))
				missing |= 1u << (S == 1 ? 1 - a.rank : r);
		}
		if (gpu_warp_all(!missing))
			return true;
		if (!gpu_warp_all(
		        gpu_lane() != 7 || !(ACCOUNT ? spin_expired_for(&spin, missing) : spin_expired(&spin)))) {
			if (missing)
				ll128_give_up(l.ctrl, l.inbox + slots, S == 1 ? 0 : SHUNT_LL128_SLOT_WIRE, a.rank,
				    l.channel, epoch, missing);
			return false;
		}
	}
}

/* Result of one slot: reduces the packs of all ranks in rank order. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 ll128_reduce(const struct shunt_kargs &a, const struct gpu_v16 *v)
{
	struct acc<T, Op> acc;

	acc.start(v[0], a.flags);
	GPU_UNROLL for (uint32_t r = 1; r < N; r++)
		if (N == 2 || r < a.nranks)
			acc.add(v[r], a.flags);
	return acc_finish(acc, a);
}

/* The same where v lacks this rank's own pack; v has SLOT_SOURCES(N) packs. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 ll128_reduce_own(const struct shunt_kargs &a, const struct gpu_v16 *v, struct gpu_v16 own)
{
	struct acc<T, Op> acc;

	GPU_UNROLL for (uint32_t r = 0; r < N; r++) {
		const struct gpu_v16 &other = v[r % SLOT_SOURCES(N)];
		struct gpu_v16 x = { r == a.rank ? own.lo : other.lo, r == a.rank ? own.hi : other.hi };

		if (r == 0)
			acc.start(x, a.flags);
		else if (N == 2 || r < a.nranks)
			acc.add(x, a.flags);
	}
	return acc_finish(acc, a);
}

#define LL128_KERNEL(shape, op, type, args, ...) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct args) a) \
	    PROGRESS(a, __VA_ARGS__(a))

/*
 * The kernels of a file that defines LL128_BODY, a template like oneshot() in oneshot.cu, for the lists of
 * kernel_list.h. Those for two ranks: pairwise.h.
 */
#define LL128_INSTANCE(n, packs, shape, op, type, args) \
	LL128_KERNEL(shape, op, type, args, LL128_BODY<type, op_##op, n, packs>)
#define INSTANCE4(shape, op, opn, type, typen) LL128_INSTANCE(4, false, shape, op, type, shunt_kargs)
#define INSTANCE8(shape, op, opn, type, typen) LL128_INSTANCE(8, false, shape, op, type, shunt_kargs)
#ifndef SHUNT_OVER_SHARED
#define PACKS4(shape, op, opn, type, typen) LL128_INSTANCE(4, true, shape, op, type, shunt_kargs)
#else
#define PACKS4(...) /* the link costs more than the instructions */
#endif
#define FEW4(shape, op, opn, type, typen) LL128_INSTANCE(4, false, shape, op, type, shunt_kargs_few)
#define FEW8(shape, op, opn, type, typen) LL128_INSTANCE(8, false, shape, op, type, shunt_kargs_few)
