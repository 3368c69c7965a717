/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_PLAN_LINES_H
#define SHUNT_KERNELS_PLAN_LINES_H
/*
 * Operations on packets that travel as lines (plan_args.h): a warp at a time, unit u of a range by warp u modulo the warps. What a
 * warp wrote in one such operation it may read in the next; the program lets threads meet where operations on lines and others
 * follow each other.
 */
#include "kernels/plan_acc.h"

/* What this lane has of unit u of a range of n pieces. */
struct line_part {
	uint64_t at;        /* bytes from the range's start */
	uint32_t bytes;     /* 16, 8 or 0 */
	uint32_t lines;     /* of the unit */
};

GPU_FN struct line_part line_part(uint64_t u, uint64_t n)
{
	uint32_t lane = gpu_lane(), line = lane / 8, pieces = SHUNT_UNIT_DATA / 16, at;
	struct line_part p;

	if (n - u * pieces < pieces)
		pieces = (uint32_t)(n - u * pieces);
	p.lines = SHUNT_PLAN_LINES(pieces);
	at = GPU_LINE_LAST ? p.lines * 112 + line * 8 : (line * 7 + lane % 8) * 16;
	p.bytes = line >= p.lines || at >= pieces * 16 ? 0 : GPU_LINE_LAST ? 8 : 16;
	p.at = u * SHUNT_UNIT_DATA + at;
	return p;
}

/*
 * One aligned load, without a branch: what is in no lane's part is in the range, too. The last lane of a line takes half of what it
 * loads.
 */
GPU_FN struct gpu_v16 line_part_load(const char *range, uint64_t u, struct line_part p)
{
	struct gpu_v16 v = gpu_ld16_stream(range + (p.bytes ? p.at & ~(uint64_t)15 : u * SHUNT_UNIT_DATA));

	v.lo = p.at & 8 ? v.hi : v.lo;
	return v;
}

GPU_FN void line_part_store(char *range, struct line_part p, struct gpu_v16 v)
{
	if (p.bytes == 16)
		gpu_st16_stream(range + p.at, v);
	else if (p.bytes)
		*(uint64_t *)(range + p.at) = v.lo;
}

/* What places of lines follow from, in registers: stores would have it loaded again. */
struct line_view {
	char *const *arena;
	uint64_t scratch_at, chunk, units, flag;
	uint32_t unit16, shift;
};

GPU_FN struct line_view line_view(const struct plan_run *r, uint64_t units)
{
	struct line_view v = { r->arena, r->scratch_at, r->chunk, units, r->launch, r->unit16, r->line_shift };

	return v;
}

/* Unit u of a range of scratch. */
GPU_FN char *line_place(const struct line_view &v, const struct shunt_prog_operand &o, uint64_t u)
{
	uint64_t piece = (o.index * v.chunk + v.units) * v.unit16;

	return v.arena[o.rank] + v.scratch_at + (piece >> v.shift) * 128 + u * SHUNT_UNIT_WIRE;
}

/* A warp's way through the units of `npairs` ranges of equal size: all ranges' of one unit, then those of its next. */
struct line_walk {
	uint64_t u;
	uint32_t q, npairs;
};

GPU_FN struct line_walk line_walk(uint32_t npairs)
{
	struct line_walk w = { gpu_tid() / 32, 0, npairs };

	return w;
}

GPU_FN void line_walk_on(struct line_walk *w)
{
	if (++w->q == w->npairs) {
		w->q = 0;
		w->u += gpu_ntid() / 32;
	}
}

GPU_FN bool line_walk_ends(const struct line_walk &w, uint64_t n)
{
	return w.u * (SHUNT_UNIT_DATA / 16) >= n;
}

/* By a lane that misses a line. */
GPU_NOINLINE void lines_give_up(struct plan_run *r, const char *unit)
{
	const uint64_t *flag = (const uint64_t *)(unit + gpu_lane() / 8 * 128 + 120);

	plan_give_up(r, spin_reason(r->ctrl), ~0u, r->launch, gpu_ld_relaxed(flag));
}

/* Up to PIECES units, bit k of `want` for p[k], when all are there. By the whole warp; false: gave up. */
GPU_FN bool lines_load(struct plan_run *r, uint64_t flag, const char *const p[PIECES], const uint32_t lines[PIECES], uint32_t want,
    struct gpu_v16 v[PIECES])
{
	struct spin spin;

	spin_init(&spin, r->ctrl);
	for (;;) {
		const char *at = 0;

		GPU_UNROLL
		for (uint32_t k = 0; k < PIECES; k++)
			if ((want >> k & 1) && !gpu_line_ld(p[k], &v[k], flag, lines[k]))
				at = p[k];
		if (gpu_warp_all(!at))
			return true;
		if (!gpu_warp_all(gpu_lane() != 7 || !spin_expired(&spin))) {
			if (at)
				lines_give_up(r, at);
			return false;
		}
	}
}

/* PACK, UNPACK and RELAY, and the first two of pairs: FROM lines or plain memory, TO lines or plain memory. */
template <bool FROM, bool TO> GPU_FN bool lines_pass(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);
	bool pairs = op->code == SHUNT_PROG_PACKS || op->code == SHUNT_PROG_UNPACKS;
	uint64_t units, n = plan_share_whole(r, op, &units);
	uint32_t ndst = pairs ? 1 : op->ndst;
	struct line_view view = line_view(r, units);
	struct line_walk w = line_walk(pairs ? op->nsrc : 1);

	GPU_ROLL
	while (!line_walk_ends(w, n)) {
		struct line_walk first = w;
		char *p[PIECES];
		uint32_t lines[PIECES], want = 0;
		struct gpu_v16 v[PIECES];

		GPU_UNROLL
		for (uint32_t k = 0; k < PIECES; k++)
			if (!line_walk_ends(w, n)) {
				struct line_part part = line_part(w.u, n);

				want |= 1u << k;
				lines[k] = part.lines;
				if (FROM)
					p[k] = line_place(view, o[2 * w.q], w.u);
				else
					v[k] = line_part_load(plan_place(r, o[2 * w.q], units, false), w.u, part);
				line_walk_on(&w);
			}
		if (FROM && !lines_load(r, view.flag, p, lines, want, v))
			return false;
		GPU_ROLL
		for (uint32_t d = 1; d <= ndst; d++) {
			struct line_walk again = first;

			GPU_UNROLL
			for (uint32_t k = 0; k < PIECES; k++)
				if (want >> k & 1) {
					const struct shunt_prog_operand &to = o[2 * again.q + d];

					if (TO)
						p[k] = line_place(view, to, again.u);
					else
						line_part_store(plan_place(r, to, units, false), line_part(again.u, n), v[k]);
					line_walk_on(&again);
				}
			if (!TO)
				continue;
			gpu_warp_sync(); /* a line is stored by one instruction */
			GPU_UNROLL
			for (uint32_t k = 0; k < PIECES; k++)
				if (want >> k & 1)
					gpu_line_st(p[k], v[k], view.flag, lines[k]);
		}
	}
	return true;
}

template <typename T, bool HOT> GPU_FN bool lines_fold_as(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *s = (const struct shunt_prog_operand *)(op + 1), *d = s + op->nsrc;
	uint64_t units, n = plan_share_whole(r, op, &units);
	uint32_t nsrc = op->nsrc, ndst = op->ndst, redop = op->redop;
	struct line_view view = line_view(r, units);

	GPU_ROLL
	for (struct line_walk w = line_walk(1); !line_walk_ends(w, n); line_walk_on(&w)) {
		struct line_part part = line_part(w.u, n);
		struct gpu_v16 mine = line_part_load(plan_place(r, s[0], units, false), w.u, part), v[PIECES];
		const uint32_t lines[PIECES] = { part.lines, part.lines, part.lines, part.lines };
		struct plan_acc<T, HOT> acc;
		char *p[PIECES];

		GPU_ROLL
		for (uint32_t q = 1; q < nsrc; q += PIECES) {
			uint32_t want = 0;

			GPU_UNROLL
			for (uint32_t k = 0; k < PIECES; k++)
				if (q + k < nsrc) {
					p[k] = line_place(view, s[q + k], w.u);
					want |= 1u << k;
				}
			if (!lines_load(r, view.flag, p, lines, want, v))
				return false;
			plan_fold_packs(&acc, q, want, v, redop);
		}
		acc.add(mine, redop);
		v[0] = acc.result();
		GPU_ROLL
		for (uint32_t k = 1; k < ndst; k += PIECES) {
			GPU_UNROLL
			for (uint32_t j = 0; j < PIECES; j++)
				if (k + j < ndst)
					p[j] = line_place(view, d[k + j], w.u);
			gpu_warp_sync(); /* a line is stored by one instruction */
			GPU_UNROLL
			for (uint32_t j = 0; j < PIECES; j++)
				if (k + j < ndst)
					gpu_line_st(p[j], v[0], view.flag, part.lines);
		}
		line_part_store(plan_place(r, d[0], units, false), part, v[0]);
	}
	return true;
}

template <typename T> GPU_FN bool lines_fold(struct plan_run *r, const struct shunt_prog_op *op)
{
	const bool can = is_hot<T, op_sum>::value;

	return can && op->redop == REDOP_SUM ? lines_fold_as<T, can>(r, op) : lines_fold_as<T, false>(r, op);
}

/* False: gave up. */
template <typename T> GPU_FN bool lines_step(struct plan_run *r, const struct shunt_prog_op *op)
{
	switch (op->code) {
	case SHUNT_PROG_PACK:
	case SHUNT_PROG_PACKS:
		return lines_pass<false, true>(r, op);
	case SHUNT_PROG_UNPACK:
	case SHUNT_PROG_UNPACKS:
		return lines_pass<true, false>(r, op);
	case SHUNT_PROG_RELAY:
		return lines_pass<true, true>(r, op);
	case SHUNT_PROG_FOLD:
		return lines_fold<T>(r, op);
	default:
		return true;
	}
}
#endif
