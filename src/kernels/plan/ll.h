/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Operations on packets as LL, in the plan format's layout: 4 bytes of data and 4 of flag, twice in 16 bytes. 16
 * bytes of data are 32 bytes of packets at twice the offset. A reader that sees the launch's flag has the data, so
 * packets need no barrier. Stale packets carry the flags of earlier launches.
 */
#include "kernels/plan/acc.h"

GPU_FN uint64_t ll_word(uint64_t data, uint32_t flag) { return (data & 0xffffffffu) | (uint64_t)flag << 32; }

GPU_FN void plan_ll_store_piece(char *p, struct gpu_v16 v, uint32_t flag, bool ll8)
{
	struct gpu_v16 a = { ll_word(v.lo, flag), ll_word(v.lo >> 32, flag) },
	               b = { ll_word(v.hi, flag), ll_word(v.hi >> 32, flag) };

	if (ll8) {
		gpu_ll8_st((uint64_t *)p, a.lo);
		gpu_ll8_st((uint64_t *)p + 1, a.hi);
		gpu_ll8_st((uint64_t *)p + 2, b.lo);
		gpu_ll8_st((uint64_t *)p + 3, b.hi);
	} else {
		gpu_ll16_st(p, a);
		gpu_ll16_st(p + 16, b);
	}
}

GPU_FN void plan_ll_store(char *to, uint64_t first, uint64_t n, const struct gpu_v16 v[PIECES], uint32_t flag, bool ll8)
{
	FOR_PIECES(k, i, first, n)
	plan_ll_store_piece(to + i * 32, v[k], flag, ll8);
}

/* Stores a batch to packet destinations first_dst ... ndst - 1 of an operation. */
GPU_FN void plan_ll_store_all(const struct plan_run *r, const struct shunt_prog_addr *d, uint32_t first_dst,
    uint32_t ndst, uint64_t units, uint64_t first, uint64_t n, const struct gpu_v16 v[PIECES])
{
	bool ll8 = r->flags & SHUNT_PLAN_LL8;

	GPU_ROLL for (uint32_t k = first_dst; k < ndst; k++)
		plan_ll_store(plan_addr(r, d[k], units, true), first, n, v, r->flag, ll8);
}

/* The thread gives up; reports what it saw in one of the missing packets. */
GPU_NOINLINE void plan_ll_give_up(struct plan_run *r, uint32_t reason, const char *at)
{
	plan_give_up(r, reason, SHUNT_FAULT_ANY_PEER, r->flag, gpu_ld_relaxed((const uint64_t *)at) >> 32);
}

/*
 * Waits for the packets at p[k], 32 bytes each, for each bit k of `want`, and loads their data. False: the thread
 * gave up.
 */
GPU_FN bool plan_ll_load(struct plan_run *r, const char *const p[PIECES], uint32_t want, struct gpu_v16 v[PIECES])
{
	uint32_t flag = r->flag;
	struct spin spin;

	spin_init(&spin, r->ctrl);
	plan_clear<PIECES>(v);
	for (;;) {
		struct gpu_v16 a[PIECES], b[PIECES];
		uint32_t missing = 0;

		plan_clear<PIECES>(a);
		plan_clear<PIECES>(b);

		GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++)
			if (want >> k & 1) {
				a[k] = gpu_ll16_ld(p[k]);
				b[k] = gpu_ll16_ld(p[k] + 16);
			}
		GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++)
			if (want >> k & 1) {
				bool here = gpu_ll32_ready(a[k], b[k], flag);

				v[k].lo = (a[k].lo & 0xffffffffu) | a[k].hi << 32;
				v[k].hi = (b[k].lo & 0xffffffffu) | b[k].hi << 32;
				missing |= (uint32_t)!here << k;
			}
		if (!missing)
			return true;
		uint32_t reason = spin_expired(&spin);
		if (reason) {
			const char *at = p[0];

			GPU_UNROLL for (uint32_t k = 1; k < PIECES; k++)
				if (missing >> k & 1)
					at = p[k];
			plan_ll_give_up(r, reason, at);
			return false;
		}
	}
}

/* Waits for and loads a thread's pieces of one source. */
GPU_FN bool plan_ll_load_batch(
    struct plan_run *r, const char *from, uint64_t first, uint64_t n, struct gpu_v16 v[PIECES])
{
	const char *p[PIECES];
	uint32_t want = 0;

	GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++) {
		uint64_t i = first + (uint64_t)k * gpu_ntid();

		p[k] = from + i * 32;
		want |= (uint32_t)(i < n) << k;
	}
	return plan_ll_load(r, p, want, v);
}

GPU_FN void plan_ll_pack(const struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *o = (const struct shunt_prog_addr *)(op + 1);
	uint64_t units, n = plan_block_share_whole(r, op, &units);
	const char *from = plan_addr(r, o[0], units, false);

	GPU_ROLL for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		plan_load(from, first, n, v);
		plan_ll_store_all(r, o + 1, 0, op->ndst, units, first, n, v);
	}
}

/* UNPACK_PACKETS and FORWARD_PACKETS: one packet source, to plain memory or to packets. */
GPU_FN bool plan_ll_copy(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *o = (const struct shunt_prog_addr *)(op + 1);
	uint64_t units, n = plan_block_share_whole(r, op, &units);
	const char *from = plan_addr(r, o[0], units, true);
	bool forward = op->code == SHUNT_PROG_FORWARD_PACKETS;

	GPU_ROLL for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		if (!plan_ll_load_batch(r, from, first, n, v))
			return false;
		if (forward)
			plan_ll_store_all(r, o + 1, 0, op->ndst, units, first, n, v);
		else
			plan_store(plan_addr(r, o[1], units, false), first, n, v);
	}
	return true;
}

/* PACK_PAIRS and UNPACK_PAIRS: one piece at a time of up to PIECES pairs, so that their loads overlap. */
GPU_FN bool plan_ll_pairs(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *o = (const struct shunt_prog_addr *)(op + 1);
	uint64_t units, n = plan_block_share_whole(r, op, &units);
	bool unpack = op->code == SHUNT_PROG_UNPACK_PAIRS, ll8 = r->flags & SHUNT_PLAN_LL8;

	GPU_ROLL for (uint64_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		GPU_ROLL for (uint32_t q = 0; q < op->nsrc; q += PIECES) {
			const char *p[PIECES];
			struct gpu_v16 v[PIECES];
			uint32_t want = 0;

			GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++) {
				bool here = q + k < op->nsrc;

				p[k] = plan_addr(r, o[2 * (here ? q + k : q)], units, unpack) + i * (unpack ? 32 : 16);
				want |= (uint32_t)here << k;
			}
			if (unpack) {
				if (!plan_ll_load(r, p, want, v))
					return false;
			} else {
				plan_clear<PIECES>(v);
				GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++)
					if (want >> k & 1)
						v[k] = gpu_ld16_stream(p[k]);
			}
			GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++)
				if (want >> k & 1) {
					char *to =
					    plan_addr(r, o[2 * (q + k) + 1], units, !unpack) + i * (unpack ? 16 : 32);

					if (unpack)
						gpu_st16_stream(to, v[k]);
					else
						plan_ll_store_piece(to, v[k], r->flag, ll8);
				}
		}
	}
	return true;
}

/* Reduces one packet source: all pieces of a thread at once. */
template <typename T, bool HOT> GPU_FN bool plan_ll_reduce_one(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *s = (const struct shunt_prog_addr *)(op + 1), *d = s + op->nsrc;
	uint64_t units, n = plan_block_share_whole(r, op, &units);
	uint32_t redop = op->redop;

	PLAN_OPERATOR(redop, r);

	GPU_ROLL for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 mine[PIECES], v[PIECES];

		plan_load(plan_addr(r, s[0], units, false), first, n, mine);
		if (!plan_ll_load_batch(r, plan_addr(r, s[1], units, true), first, n, v))
			return false;
		FOR_PIECES(k, i, first, n)
		{
			struct plan_acc<T, HOT> acc;

			acc.start(v[k], redop);
			acc.add(mine[k], redop);
			v[k] = acc.result(redop);
		}
		plan_store(plan_addr(r, d[0], units, false), first, n, v);
		plan_ll_store_all(r, d, 1, op->ndst, units, first, n, v);
	}
	return true;
}

/* Reduces several packet sources: one piece at a time, PIECES sources at once. */
template <typename T, bool HOT> GPU_FN bool plan_ll_reduce_many(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_addr *s = (const struct shunt_prog_addr *)(op + 1), *d = s + op->nsrc;
	uint64_t units, n = plan_block_share_whole(r, op, &units);
	uint32_t nsrc = op->nsrc, redop = op->redop;

	PLAN_OPERATOR(redop, r);

	GPU_ROLL for (uint64_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		struct gpu_v16 mine = gpu_ld16_stream(plan_addr(r, s[0], units, false) + i * 16), v[PIECES];
		struct plan_acc<T, HOT> acc = {
		};

		GPU_ROLL for (uint32_t q = 1; q < nsrc; q += PIECES) {
			const char *p[PIECES];
			uint32_t want = 0;

			GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++) {
				p[k] = q + k < nsrc ? plan_addr(r, s[q + k], units, true) + i * 32 : 0;
				want |= (uint32_t)(q + k < nsrc) << k;
			}
			if (!plan_ll_load(r, p, want, v))
				return false;
			plan_reduce_packs<PIECES>(&acc, q, want, v, redop);
		}
		acc.add(mine, redop);
		v[0] = acc.result(redop);
		gpu_st16_stream(plan_addr(r, d[0], units, false) + i * 16, v[0]);
		plan_ll_store_all(r, d, 1, op->ndst, units, i, i + 1, v);
	}
	return true;
}

template <typename T, bool HOT> GPU_FN bool plan_ll_reduce_as(struct plan_run *r, const struct shunt_prog_op *op)
{
	return op->nsrc == 2 ? plan_ll_reduce_one<T, HOT>(r, op) : plan_ll_reduce_many<T, HOT>(r, op);
}

template <typename T> GPU_FN bool plan_ll_reduce(struct plan_run *r, const struct shunt_prog_op *op)
{
	const bool can = is_hot<T, op_sum>::value;

	return can && op->redop == REDOP_SUM ? plan_ll_reduce_as<T, can>(r, op) : plan_ll_reduce_as<T, false>(r, op);
}

/* False: gave up. */
template <typename T> GPU_FN bool plan_ll_step(struct plan_run *r, const struct shunt_prog_op *op)
{
	switch (op->code) {
	case SHUNT_PROG_PACK_PACKETS:
		plan_ll_pack(r, op);
		return true;
	case SHUNT_PROG_UNPACK_PACKETS:
	case SHUNT_PROG_FORWARD_PACKETS:
		return plan_ll_copy(r, op);
	case SHUNT_PROG_PACK_PAIRS:
	case SHUNT_PROG_UNPACK_PAIRS:
		return plan_ll_pairs(r, op);
	case SHUNT_PROG_REDUCE_PACKETS:
		return plan_ll_reduce<T>(r, op);
	default:
		return true;
	}
}
