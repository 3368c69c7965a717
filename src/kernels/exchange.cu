/* SPDX-License-Identifier: MIT */
/*
 * Everything that is not an all-reduce: each rank sends a part to some ranks and hears from some. What comes in is stored (all-gather,
 * all-to-all, broadcast, gather, scatter) or folded in rank order (reduce-scatter, reduce).
 *
 * A warp has one role: it sends to one peer on one channel, or takes what one peer sends on one channel, or folds what all send on one
 * channel, or copies our own part. Units of a pair travel round robin over the pair's channels, each a ring of slots in the receiver's
 * scratch with a flag per line that counts on over all launches. Not every rank hears from every other here, so a sender must
 * not run ahead of the receiver: it waits until the receiver has taken what stands in the slot, which the receiver tells it by a counter
 * in the sender's own scratch.
 */
#include "kernels/lines.h"

#define XCHG_BATCH 4u /* units that a warp moves at a time; divides the ring */

struct xchg {
	struct lines l;
	uint32_t channel, nchannels; /* of the pair */
	uint32_t per_peer;
};

GPU_FN uint32_t xchg_index(const struct xchg &x, uint32_t peer)
{
	return peer * x.per_peer + x.channel;
}

/* Offset of a unit's slot in the scratch of the rank that receives it from `source`. */
GPU_FN uint64_t xchg_slot(const struct xchg &x, uint32_t source, uint64_t unit)
{
	return SHUNT_XCHG_AT + ((uint64_t)xchg_index(x, source) * SHUNT_XCHG_RING + unit % SHUNT_XCHG_RING) * SHUNT_UNIT_WIRE;
}

/* How many units of this channel are in the batch that starts at unit `first` of the part. */
GPU_FN uint32_t xchg_batch(const struct xchg &x, uint64_t first)
{
	uint32_t n = 1;

	while (n < XCHG_BATCH && first + (uint64_t)n * x.nchannels < x.l.units)
		n++;
	return n;
}

template <typename T> GPU_FN struct gpu_v16 xchg_load(const struct xchg &x, const char *part, bool aligned, uint64_t unit)
{
	return load_user<T>(part, unit * SHUNT_UNIT_DATA + x.l.at, x.l.width, x.l.bytes, aligned);
}

template <typename T> GPU_FN void xchg_store(const struct xchg &x, char *part, bool aligned, uint64_t unit, struct gpu_v16 v)
{
	store_user<T>(part, unit * SHUNT_UNIT_DATA + x.l.at, x.l.width, x.l.bytes, aligned, v);
}

/* The n units of a batch that starts at unit `first`. */
template <typename T> GPU_FN void xchg_load_batch(const struct xchg &x, const char *part, bool aligned, uint64_t first, uint32_t n,
    struct gpu_v16 v[XCHG_BATCH])
{
	GPU_UNROLL
	for (uint32_t k = 0; k < XCHG_BATCH; k++)
		if (k < n)
			v[k] = xchg_load<T>(x, part, aligned, first + (uint64_t)k * x.nchannels);
}

template <typename T> GPU_FN void xchg_store_batch(const struct xchg &x, char *part, bool aligned, uint64_t first, uint32_t n,
    const struct gpu_v16 v[XCHG_BATCH])
{
	GPU_UNROLL
	for (uint32_t k = 0; k < XCHG_BATCH; k++)
		if (k < n)
			xchg_store<T>(x, part, aligned, first + (uint64_t)k * x.nchannels, v[k]);
}

GPU_FN bool xchg_aligned(const void *p)
{
	return !((uintptr_t)p & 15);
}

/* Collective over the warp; false: gave up. One condition for all spins of this kernel: `here` of every lane. */
GPU_FN bool xchg_spin(const struct xchg &x, struct spin *s)
{
	return gpu_warp_all(gpu_lane() != 7 || !spin_expired(s));
}

GPU_NOINLINE void xchg_give_up(struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, uint32_t channel, uint64_t expected, uint64_t seen)
{
	uint32_t reason = gpu_ld_relaxed32(&ctrl->abort) ? SHUNT_FAULT_ABORT : SHUNT_FAULT_TIMEOUT;

	if (gpu_lane() == 7)
		spin_report(ctrl, reason, rank, peer, channel, expected, seen);
}

/* ---- sending */

template <typename T, typename Op> GPU_FN void xchg_send(const struct xchg &x, const struct shunt_kargs &a, uint32_t peer)
{
	uint32_t index = xchg_index(x, peer);
	const uint64_t *taken = &x.l.ctrl->xchg_taken[index];
	const char *part = (const char *)a.send + peer * a.send_stride;
	bool aligned = xchg_aligned(part);
	uint64_t sent = x.l.ctrl->xchg_sent[index], free_to = gpu_ld_taken(taken) + SHUNT_XCHG_RING;
	bool scaled = is_same<Op, op_sum>::value && (a.flags & SHUNT_K_PREMUL);

	GPU_ROLL
	for (uint64_t first = x.channel; first < x.l.units; first += (uint64_t)XCHG_BATCH * x.nchannels) {
		uint32_t n = xchg_batch(x, first);
		struct gpu_v16 v[XCHG_BATCH];

		xchg_load_batch<T>(x, part, aligned, first, n, v);
		if (scaled) {
			T factor = load_scalar<T>(a);

			GPU_UNROLL
			for (uint32_t k = 0; k < XCHG_BATCH; k++)
				v[k] = premultiply<T, Op>(v[k], factor);
		}
		if (!gpu_warp_all(sent + n <= free_to)) { /* lanes may have read different counts */
			struct spin spin;

			spin_init(&spin, x.l.ctrl);
			while (!gpu_warp_all(sent + n <= (free_to = gpu_ld_taken(taken) + SHUNT_XCHG_RING)))
				if (!xchg_spin(x, &spin)) {
					xchg_give_up(x.l.ctrl, a.rank, peer, x.channel, sent + n, free_to);
					return;
				}
		}
		GPU_UNROLL
		for (uint32_t k = 0; k < XCHG_BATCH; k++)
			if (k < n)
				gpu_line_st(a.peer[peer] + xchg_slot(x, a.rank, sent + k), v[k], sent + k + 1);
		sent += n;
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		x.l.ctrl->xchg_sent[index] = sent;
}

/* ---- taking */

/* Tells a sender that its units up to `received` are out of the ring. */
GPU_FN void xchg_give_back(const struct xchg &x, const struct shunt_kargs &a, uint32_t peer, uint64_t received)
{
	struct shunt_ctrl *theirs = (struct shunt_ctrl *)a.peer[peer];

	gpu_st_taken(&theirs->xchg_taken[xchg_index(x, a.rank)], received);
}

template <typename T> GPU_FN void xchg_take(const struct xchg &x, const struct shunt_kargs &a, uint32_t peer)
{
	uint32_t index = xchg_index(x, peer);
	char *part = (char *)a.recv + peer * a.recv_stride;
	bool aligned = xchg_aligned(part);
	uint64_t received = x.l.ctrl->xchg_received[index];

	GPU_ROLL
	for (uint64_t first = x.channel; first < x.l.units; first += (uint64_t)XCHG_BATCH * x.nchannels) {
		uint32_t n = xchg_batch(x, first);
		struct gpu_v16 v[XCHG_BATCH];
		struct spin spin;

		spin_init(&spin, x.l.ctrl);
		for (;;) {
			bool here = true;

			GPU_UNROLL
			for (uint32_t k = 0; k < XCHG_BATCH; k++)
				if (k < n && !gpu_line_ld(x.l.inbox + xchg_slot(x, peer, received + k), &v[k], received + k + 1))
					here = false;
			if (gpu_warp_all(here))
				break;
			if (!xchg_spin(x, &spin)) {
				xchg_give_up(x.l.ctrl, a.rank, peer, x.channel, received + n, received);
				return;
			}
		}
		xchg_store_batch<T>(x, part, aligned, first, n, v);
		received += n;
		gpu_warp_sync();
		if (gpu_lane() == 0)
			xchg_give_back(x, a, peer, received);
	}
	if (gpu_lane() == 0)
		x.l.ctrl->xchg_received[index] = received;
}

/* ---- folding: unit by unit, all sources at once; lane r keeps count of source r */

template <typename T, typename Op> GPU_FN void xchg_fold(const struct xchg &x, const struct shunt_kargs &a)
{
	const char *part = (const char *)a.send + a.rank * a.send_stride;
	bool in_aligned = xchg_aligned(part), out_aligned = xchg_aligned(a.recv);
	bool scaled = is_same<Op, op_sum>::value && (a.flags & SHUNT_K_PREMUL);
	uint64_t received[SHUNT_KARGS_MAX_RANKS];

	GPU_UNROLL
	for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
		received[r] = r < a.nranks ? x.l.ctrl->xchg_received[xchg_index(x, r)] : 0;
	GPU_ROLL
	for (uint64_t unit = x.channel; unit < x.l.units; unit += x.nchannels) {
		struct gpu_v16 own = xchg_load<T>(x, part, in_aligned, unit), v[SHUNT_KARGS_MAX_RANKS];
		struct spin spin;

		if (scaled)
			own = premultiply<T, Op>(own, load_scalar<T>(a));
		spin_init(&spin, x.l.ctrl);
		for (;;) {
			uint32_t missing = 0;

			GPU_UNROLL
			for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
				if (r < a.nranks && r != a.rank && !gpu_line_ld(x.l.inbox + xchg_slot(x, r, received[r]), &v[r], received[r] + 1))
					missing |= 1u << r;
			if (gpu_warp_all(!missing))
				break;
			if (!xchg_spin(x, &spin)) {
				uint32_t peer = 0;

				while (peer < a.nranks - 1u && !(missing >> peer & 1))
					peer++;
				xchg_give_up(x.l.ctrl, a.rank, peer, x.channel, unit / x.nchannels, 0);
				return;
			}
		}
		struct gpu_v16 result = lines_reduce<T, Op, SHUNT_KARGS_MAX_RANKS>(a, v, own);
		xchg_store<T>(x, (char *)a.recv, out_aligned, unit, result);
		gpu_warp_sync();
		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++) {
			received[r]++;
			if (r < a.nranks && r != a.rank && gpu_lane() == r)
				xchg_give_back(x, a, r, received[r]);
		}
	}
	GPU_UNROLL
	for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
		if (r < a.nranks && gpu_lane() == r)
			x.l.ctrl->xchg_received[xchg_index(x, r)] = received[r];
}

/* ---- our own part */

template <typename T> GPU_FN void xchg_copy(const struct xchg &x, const struct shunt_kargs &a)
{
	const char *from = (const char *)a.send + a.rank * a.send_stride;
	char *to = (char *)a.recv + a.rank * a.recv_stride;
	bool in_aligned = xchg_aligned(from), out_aligned = xchg_aligned(to);

	GPU_ROLL
	for (uint64_t first = x.channel; first < x.l.units; first += (uint64_t)XCHG_BATCH * x.nchannels) {
		uint32_t n = xchg_batch(x, first);
		struct gpu_v16 v[XCHG_BATCH];

		xchg_load_batch<T>(x, from, in_aligned, first, n, v);
		xchg_store_batch<T>(x, to, out_aligned, first, n, v);
	}
}

/* ---- who does what */

GPU_FN uint32_t bits_count(uint32_t v)
{
	uint32_t n = 0;

	for (; v; v &= v - 1)
		n++;
	return n;
}

/* The i-th set bit of ranks, counted from the rank after `rank` on: ranks do not all begin with the same peer. */
GPU_FN uint32_t bits_nth(uint32_t ranks, uint32_t i, uint32_t rank, uint32_t nranks)
{
	uint32_t p = rank;

	for (;;) {
		p = p + 1 >= nranks ? 0 : p + 1;
		if ((ranks >> p & 1) && i-- == 0)
			return p;
	}
}

struct xchg_roles {
	uint32_t sends, takes;  /* peers */
	uint32_t nsends, nroles;
	bool own;
};

template <bool FOLD> GPU_FN struct xchg_roles xchg_roles(const struct shunt_kargs &a)
{
	struct xchg_roles r;
	uint32_t self = 1u << a.rank;

	r.sends = a.send_to & ~self;
	r.takes = a.recv_from & ~self;
	r.own = !FOLD && (a.send_to & a.recv_from & self) &&
	    (const char *)a.send + a.rank * a.send_stride != (char *)a.recv + a.rank * a.recv_stride;
	r.nsends = bits_count(r.sends);
	r.nroles = r.nsends + (FOLD ? r.takes != 0 : bits_count(r.takes)) + r.own;
	return r;
}

template <typename T> GPU_FN struct xchg xchg_init(const struct shunt_kargs &a, uint32_t nroles, uint32_t *role_p)
{
	struct xchg x;

	x.l = lines_init<T>(a);
	x.per_peer = SHUNT_XCHG_PER_PEER(a.nranks);
	x.nchannels = a.channels;
	x.channel = nroles ? x.l.channel / nroles : x.nchannels;
	*role_p = nroles ? x.l.channel % nroles : 0;
	return x;
}

template <typename T> GPU_FN void exchange_copy(const struct shunt_kargs &a)
{
	struct xchg_roles roles = xchg_roles<false>(a);
	uint32_t role;
	struct xchg x = xchg_init<T>(a, roles.nroles, &role);

	if (x.channel >= x.nchannels)
		return;
	if (role < roles.nsends)
		xchg_send<T, struct op_copy>(x, a, bits_nth(roles.sends, role, a.rank, a.nranks));
	else if (roles.own && role == roles.nroles - 1)
		xchg_copy<T>(x, a);
	else
		xchg_take<T>(x, a, bits_nth(roles.takes, role - roles.nsends, a.rank, a.nranks));
}

template <typename T, typename Op> GPU_FN void exchange_fold(const struct shunt_kargs &a)
{
	struct xchg_roles roles = xchg_roles<true>(a);
	uint32_t role;
	struct xchg x = xchg_init<T>(a, roles.nroles, &role);

	if (x.channel >= x.nchannels)
		return;
	if (role < roles.nsends)
		xchg_send<T, Op>(x, a, bits_nth(roles.sends, role, a.rank, a.nranks));
	else
		xchg_fold<T, Op>(x, a);
}

#define COPY(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs) a) { exchange_copy<type>(a); }
#define FOLD(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs) a) { exchange_fold<type, op_##op>(a); }
SHUNT_COPY_ROWS(COPY, exchange)
SHUNT_KERNEL_ROWS(FOLD, exchange)
