/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Operations on packets that travel as LL128 (kernels/plan/args.h). A warp handles a slot at a time: slot u of a range
 * is warp u's, modulo the number of warps. A warp may read data that it wrote in an earlier such operation. Where
 * operations on LL128 and other operations follow each other, the program has barriers.
 */
#include "kernels/plan/acc.h"

/* Size of the block's part of the operation's slices, and the addresses of these parts. */
GPU_FN struct shunt_prog_share plan_ll128_share(const struct shunt_prog_op *op)
{
	return *(const struct shunt_prog_share *)(op + 1);
}

GPU_FN const struct shunt_prog_addr *plan_ll128_addrs(const struct shunt_prog_op *op)
{
	return (const struct shunt_prog_addr *)(op + 1) + 1;
}

/* This lane's part of a slot. */
struct ll128_part {
	uint32_t at;    /* bytes from the slot's start */
	uint32_t bytes; /* 16, 8 or 0 */
	uint32_t lines; /* of the slot */
};

GPU_FN struct ll128_part ll128_part(uint32_t u, struct shunt_prog_share share)
{
	uint32_t lane = gpu_lane(), line = lane / 8,
	         pieces = u + 1 == share.nslots ? share.last : SHUNT_LL128_SLOT_DATA / 16;
	struct ll128_part p;

	p.lines = SHUNT_PLAN_LL128_LINES(pieces);
	p.at = GPU_LL128_FLAG_LANE ? p.lines * 112 + line * 8 : (line * 7 + lane % 8) * 16;
	p.bytes = line >= p.lines || p.at >= pieces * 16 ? 0 : GPU_LL128_FLAG_LANE ? 8 : 16;
	return p;
}

/*
 * One aligned load, without a branch: a lane without a part loads the slot's start. The last lane of a line uses half
 * of its load.
 */
GPU_FN struct gpu_v16 ll128_part_load(const char *slot, struct ll128_part p)
{
	struct gpu_v16 v = gpu_ld16_stream(slot + (p.bytes ? p.at & ~15u : 0));

	v.lo = p.at & 8 ? v.hi : v.lo;
	return v;
}

GPU_FN void ll128_part_store(char *slot, struct ll128_part p, struct gpu_v16 v)
{
	if (p.bytes == 16)
		gpu_st16_stream(slot + p.at, v);
	else if (p.bytes)
		*(uint64_t *)(slot + p.at) = v.lo;
}

/* Address of slot u of a range, as LL128 and in plain memory. */
GPU_FN char *ll128_slot_at(const struct plan_now &now, const struct shunt_prog_addr &p, uint32_t u)
{
	return plan_scratch_addr(p, now.half) + (uint64_t)u * SHUNT_LL128_SLOT_WIRE;
}

GPU_FN char *ll128_data_at(const struct plan_now &now, const struct shunt_prog_addr &p, uint32_t u)
{
	return plan_scratch_addr(p, now.half) + (uint64_t)u * SHUNT_LL128_SLOT_DATA;
}

/*
 * Order of a warp's slots in `npairs` ranges of equal size: one slot of all ranges, then its next slot of all ranges.
 */
struct ll128_walk {
	uint32_t u, q, npairs;
};

GPU_FN struct ll128_walk ll128_walk(uint32_t npairs)
{
	struct ll128_walk w = { gpu_tid() / 32, 0, npairs };

	return w;
}

GPU_FN void ll128_walk_next(struct ll128_walk *w)
{
	if (++w->q == w->npairs) {
		w->q = 0;
		w->u += gpu_ntid() / 32;
	}
}

/* Called by a lane that misses a line. */
GPU_NOINLINE void plan_ll128_give_up(struct plan_run *r, uint64_t launch, const char *slot)
{
	const uint64_t *flag = (const uint64_t *)(slot + gpu_lane() / 8 * 128 + 120);

	plan_give_up(r, spin_reason(r->ctrl), SHUNT_FAULT_ANY_PEER, launch, gpu_ld_relaxed(flag));
}

/* Waits for up to P slots, p[k] for bit k of `want`, and loads them. By the whole warp; false: gave up. */
template <int P>
GPU_FN bool plan_ll128_load(struct plan_run *r, uint64_t flag, const char *const p[P], const uint32_t lines[P],
    uint32_t want, struct gpu_v16 v[P])
{
	struct spin spin;

	spin_init(&spin, r->ctrl);
	plan_clear<P>(v);
	for (;;) {
		const char *at = 0;

		GPU_UNROLL for (uint32_t k = 0; k < P; k++)
			if (want >> k & 1)
				gpu_ll128_ld(p[k], &v[k], flag, lines[k]);
		GPU_UNROLL for (uint32_t k = 0; k < P; k++)
			if ((want >> k & 1) && !gpu_ll128_ready(v[k], flag, lines[k]))
				at = p[k];
		if (gpu_warp_all(!at))
			return true;
		if (!gpu_warp_all(gpu_lane() != 7 || !spin_expired(&spin))) {
			if (at)
				plan_ll128_give_up(r, flag, at);
			return false;
		}
	}
}

/*
 * PACK_PACKETS, UNPACK_PACKETS, FORWARD_PACKETS, PACK_PAIRS and UNPACK_PAIRS. FROM, TO: source, destination is LL128,
 * else plain memory. P slots at a time. ALL: there are P ranges, and this warp has one slot of each.
 */
template <bool FROM, bool TO, int P, bool ALL>
GPU_FN bool plan_ll128_copy(struct plan_run *r, const struct plan_now &now, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *o = plan_ll128_addrs(op);
	bool pairs = op->code == SHUNT_PROG_PACK_PAIRS || op->code == SHUNT_PROG_UNPACK_PAIRS;
	struct shunt_prog_share share = plan_ll128_share(op);
	uint32_t ndst = pairs ? 1 : op->ndst;
	struct ll128_walk w = ll128_walk(ALL ? P : pairs ? op->nsrc : 1);

	GPU_ROLL while (w.u < share.nslots) {
		/* An absent slot is replaced by the first one, so that no load waits behind a branch. */
		struct ll128_walk at[P];
		char *p[P];
		uint32_t lines[P], want = 0;
		struct gpu_v16 v[P];

		GPU_UNROLL for (uint32_t k = 0; k < P; k++) {
			bool here = ALL || w.u < share.nslots;

			want |= (uint32_t)here << k;
			at[k].u = here ? w.u : at[0].u;
			at[k].q = here ? w.q : at[0].q;
			lines[k] = ll128_part(at[k].u, share).lines;
			ll128_walk_next(&w);
		}
		GPU_UNROLL for (uint32_t k = 0; k < P; k++)
			p[k] = FROM ? ll128_slot_at(now, o[2 * at[k].q], at[k].u) :
			              ll128_data_at(now, o[2 * at[k].q], at[k].u);
		if (FROM && !plan_ll128_load<P>(r, now.launch, p, lines, want, v))
			return false;
		GPU_UNROLL for (uint32_t k = 0; k < P; k++)
			if (!FROM)
				v[k] = ll128_part_load(p[k], ll128_part(at[k].u, share));
		GPU_ROLL for (uint32_t d = 1; d <= ndst; d++) {
			GPU_UNROLL for (uint32_t k = 0; k < P; k++)
				p[k] = TO ? ll128_slot_at(now, o[2 * at[k].q + d], at[k].u) :
				            ll128_data_at(now, o[2 * at[k].q + d], at[k].u);
			gpu_warp_sync(); /* a line is stored by one instruction */
			GPU_UNROLL for (uint32_t k = 0; k < P; k++)
				if (want >> k & 1) {
					if (TO)
						gpu_ll128_st(p[k], v[k], now.launch, lines[k]);
					else
						ll128_part_store(p[k], ll128_part(at[k].u, share), v[k]);
				}
		}
	}
	return true;
}

/*
 * Small operations, of which a warp has one slot at most, wait for each instruction. They have code of their own
 * between 2 and among 4 ranks.
 */
template <bool FROM, bool TO>
GPU_FN bool plan_ll128_copy_any(struct plan_run *r, const struct plan_now &now, const struct shunt_prog_op *op)
{
	uint32_t nslots = plan_ll128_share(op).nslots, warps = gpu_ntid() / 32;
	uint32_t ranges = op->code == SHUNT_PROG_PACK_PAIRS || op->code == SHUNT_PROG_UNPACK_PAIRS ? op->nsrc : 1;

	if (nslots <= warps && gpu_tid() / 32 >= nslots)
		return true;
	if (nslots <= warps && ranges == 1)
		return plan_ll128_copy<FROM, TO, 1, true>(r, now, op);
	if (nslots <= warps && ranges == 3 && FROM != TO)
		return plan_ll128_copy<FROM, TO, 3, true>(r, now, op);
	return plan_ll128_copy<FROM, TO, PIECES, false>(r, now, op);
}

/* P packet sources and destinations at a time. ALL: there are P packet sources. */
template <typename T, bool HOT, int P, bool ALL>
GPU_FN bool plan_ll128_reduce_as(struct plan_run *r, const struct plan_now &now, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *s = plan_ll128_addrs(op), *d = s + op->nsrc;
	struct shunt_prog_share share = plan_ll128_share(op);
	uint32_t nsrc = ALL ? P + 1 : op->nsrc, ndst = op->ndst, redop = op->redop;

	PLAN_OPERATOR(redop, r);

	GPU_ROLL for (uint32_t u = gpu_tid() / 32; u < share.nslots; u += gpu_ntid() / 32) {
		struct ll128_part part = ll128_part(u, share);
		struct gpu_v16 mine = ll128_part_load(ll128_data_at(now, s[0], u), part), v[P];
		uint32_t lines[P];
		struct plan_acc<T, HOT> acc = {
		};
		char *p[P];

		GPU_UNROLL for (uint32_t k = 0; k < P; k++)
			lines[k] = part.lines;

		GPU_ROLL for (uint32_t q = 1; q < nsrc; q += P) {
			uint32_t want = 0;

			GPU_UNROLL for (uint32_t k = 0; k < P; k++) {
				bool here = q + k < nsrc;

				p[k] = ll128_slot_at(now, s[here ? q + k : q], u);
				want |= (uint32_t)here << k;
			}
			if (!plan_ll128_load<P>(r, now.launch, p, lines, want, v))
				return false;
			plan_reduce_packs<P>(&acc, q, want, v, redop);
		}
		acc.add(mine, redop);
		v[0] = acc.result(redop);
		GPU_ROLL for (uint32_t k = 1; k < ndst; k += P) {
			GPU_UNROLL for (uint32_t j = 0; j < P; j++)
				p[j] = ll128_slot_at(now, d[k + j < ndst ? k + j : k], u);
			gpu_warp_sync(); /* a line is stored by one instruction */
			GPU_UNROLL for (uint32_t j = 0; j < P; j++)
				if (k + j < ndst)
					gpu_ll128_st(p[j], v[0], now.launch, part.lines);
		}
		ll128_part_store(ll128_data_at(now, d[0], u), part, v[0]);
	}
	return true;
}

template <typename T>
GPU_FN bool plan_ll128_reduce(struct plan_run *r, const struct plan_now &now, const struct shunt_prog_op *op)
{
	const bool can = is_hot<T, op_sum>::value;

	if (!can || op->redop != REDOP_SUM)
		return plan_ll128_reduce_as<T, false, PIECES, false>(r, now, op);
	if (op->nsrc == 2)
		return plan_ll128_reduce_as<T, can, 1, true>(r, now, op);
	if (op->nsrc == 4)
		return plan_ll128_reduce_as<T, can, 3, true>(r, now, op);
	return plan_ll128_reduce_as<T, can, PIECES, false>(r, now, op);
}

GPU_FN bool is_ll128_op(const struct shunt_prog_op *op)
{
	return op->code >= SHUNT_PROG_PACK_PACKETS && op->code <= SHUNT_PROG_REDUCE_PACKETS;
}

/* False: gave up. */
template <typename T>
GPU_FN bool plan_ll128_step(struct plan_run *r, const struct plan_now &now, const struct shunt_prog_op *op)
{
	switch (op->code) {
	case SHUNT_PROG_PACK_PACKETS:
	case SHUNT_PROG_PACK_PAIRS:
		return plan_ll128_copy_any<false, true>(r, now, op);
	case SHUNT_PROG_UNPACK_PACKETS:
	case SHUNT_PROG_UNPACK_PAIRS:
		return plan_ll128_copy_any<true, false>(r, now, op);
	case SHUNT_PROG_FORWARD_PACKETS:
		return plan_ll128_copy_any<true, true>(r, now, op);
	case SHUNT_PROG_REDUCE_PACKETS:
		return plan_ll128_reduce<T>(r, now, op);
	default:
		return true;
	}
}
