/* SPDX-License-Identifier: MIT */
/*
 * The interpreter of execution plans: block b runs image b of the rank's program (plan_args.h), operation by operation. Nothing meets
 * at the end of an operation but where the program says so. All operations hand out a slice in the same way, 16 bytes to a thread in
 * turn: what a thread wrote in one operation it may read in the next.
 *
 * A packet is 4 bytes of data and 4 of flag, twice in 16 bytes; 16 bytes of data are 32 bytes of packets at twice the offset. Whoever
 * sees the launch's flag has the data, so that packets need no barrier, and stale ones carry the flags of earlier launches.
 *
 * Where the plan allows it, packets travel as lines (plan_args.h): a warp at a time, unit u of a range by warp u modulo the warps. What a
 * warp wrote in one such operation it may read in the next; the program lets threads meet where operations of the two kinds follow
 * each other.
 *
 * What all threads of the block look up stands in shared memory. A thread that gives up marks the block as dead and returns; the
 * others stop at the next meeting, or when they find the abort word.
 */
#include "kernels/elements.h"
#include "kernels/plan_args.h"
#include "kernels/progress.h"
#include "kernels/spin.h"

struct plan_run {
	const char *image;
	const struct shunt_prog_head *head;
	char *const *arena;         /* of each rank */
	char *base[2];              /* our input and output */
	struct shunt_ctrl *ctrl;
	uint64_t launch;
	uint64_t chunk;             /* units */
	uint64_t scratch_at;        /* in any arena, in this launch */
	uint32_t flag;
	uint32_t flags;             /* of the launch */
	uint32_t unit, unit16;      /* bytes; 16-byte pieces */
	uint32_t rank;
	uint32_t line_shift;        /* of 16-byte pieces of scratch to their lines */
	bool resized;
	uint32_t dead;
};

struct plan_shared {
	struct plan_run run;
	struct gpu_v16 image[SHUNT_PLAN_IMAGE / 16];
};

GPU_FN struct plan_shared *plan_shared(void)
{
	GPU_SHARED(struct plan_shared, shared, 1);
	return shared;
}

/* The window of the loop that we are in, in units; length 0: none. */
struct window {
	uint64_t at, length;
};

/* ---- waiting */

GPU_NOINLINE void plan_give_up(struct plan_run *r, uint32_t reason, uint32_t peer, uint64_t expected, uint64_t seen)
{
	spin_report(r->ctrl, reason, r->rank, peer, gpu_bid(), expected, seen);
	gpu_claim32(&r->dead);
}

/* By one thread: until *counter, which `peer` advances, is at least `want`. */
GPU_NOINLINE bool plan_await(struct plan_run *r, const uint64_t *counter, uint64_t want, uint32_t peer)
{
	struct spin spin;
	uint64_t seen;

	spin_init(&spin, r->ctrl);
	while ((seen = gpu_ld_acquire(counter)) < want) {
		uint32_t reason = spin_expired(&spin);

		if (reason) {
			plan_give_up(r, reason, peer, want, seen);
			return false;
		}
	}
	return true;
}

GPU_FN bool plan_sync(struct plan_run *r)
{
	gpu_sync();
	return !gpu_ld_block32(&r->dead);
}

/* `blocks` blocks of this rank meet, as often as they like, at a counter of arrivals. Arrive: thread 0's return says when all are there. */
GPU_FN uint64_t plan_arrive(uint64_t *counter, uint32_t blocks)
{
	uint64_t before = 0;

	gpu_sync();
	if (gpu_tid() == 0)
		before = gpu_meet(counter, 1);
	return (before / blocks + 1) * blocks;
}

GPU_FN bool plan_await_blocks(struct plan_run *r, const uint64_t *counter, uint64_t all)
{
	struct spin spin;
	uint64_t seen;

	spin_init(&spin, r->ctrl);
	while ((seen = gpu_ld_acquire_near(counter)) < all) {
		uint32_t reason = spin_expired(&spin);

		if (reason) {
			plan_give_up(r, reason, r->rank, all, seen);
			return false;
		}
	}
	return true;
}

GPU_FN bool plan_barrier(struct plan_run *r, uint64_t *counter, uint32_t blocks)
{
	uint64_t all = plan_arrive(counter, blocks);

	if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
		return false;
	return plan_sync(r);
}

/* ---- counters of channels and semaphores: operand j is thread j's */

GPU_FN struct shunt_plan_slot *plan_slot(const struct plan_run *r, const struct shunt_prog_operand &o, uint32_t rank)
{
	return (struct shunt_plan_slot *)(r->arena[rank] + r->head->slots_at) + o.index;
}

GPU_FN uint64_t *plan_semaphore(const struct plan_run *r, const struct shunt_prog_operand &o)
{
	return (uint64_t *)(r->arena[r->rank] + r->head->semaphores_at + o.index * 64);
}

GPU_FN void plan_signal(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid())
		gpu_add_release(&plan_slot(r, o[j], o[j].rank)->signals, 1);
}

GPU_FN bool plan_wait(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid()) {
		struct shunt_plan_slot *slot = plan_slot(r, o[j], r->rank);

		if (!plan_await(r, &slot->signals, gpu_count(&slot->waits, 1) + 1, o[j].rank))
			return false;
	}
	return true;
}

GPU_FN bool plan_take(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid()) {
		uint64_t *value = plan_semaphore(r, o[j]);
		struct spin spin;

		spin_init(&spin, r->ctrl);
		while (!gpu_take(value)) {
			uint32_t reason = spin_expired(&spin);

			if (reason) {
				plan_give_up(r, reason, r->rank, 1, 0);
				return false;
			}
		}
	}
	return true;
}

GPU_FN void plan_give(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid())
		gpu_give(plan_semaphore(r, o[j]));
}

/* ---- slices */

/* Address of the byte that is `units` behind the slice's start; of packets, the packets' of that byte. */
GPU_FN char *plan_place(const struct plan_run *r, const struct shunt_prog_operand &o, uint64_t units, bool packets)
{
	uint64_t bytes = (o.index * r->chunk + units) * r->unit;

	if (o.buffer == 2)
		return r->arena[o.rank] + r->scratch_at + (packets ? 2 * bytes : bytes);
	if (o.rank == r->rank)
		return r->base[o.buffer] + bytes;
	return r->arena[o.rank] + r->head->shadow_at[o.buffer] + bytes;
}

/* What of the operation's slices is ours now: the 16-byte pieces, and how many units behind the slices' starts they are. */
GPU_FN uint64_t plan_share(const struct plan_run *r, const struct shunt_prog_op *op, const struct window &w, uint64_t *units_p)
{
	uint64_t units = op->size * r->chunk, first = 0;

	if (w.length && !(op->flags & SHUNT_PROG_WHOLE)) {
		first = w.at < units ? w.at : units;
		units = units - first < w.length ? units - first : w.length;
	}
	if (op->parts > 1) {
		uint64_t each = units >> 32 ? units / op->parts : (uint32_t)units / op->parts;
		uint64_t more = units - each * op->parts;

		first += op->part * each + (op->part < more ? op->part : more);
		units = each + (op->part < more);
	}
	*units_p = first;
	return units * r->unit16;
}

/* ---- plain data */

#define PIECES 4u /* that a thread has under way */

/* Before a block, for the pieces of a batch that begins at piece `first`: k as a constant and i as the piece. */
#define FOR_PIECES(k, i, first, n) \
	GPU_UNROLL \
	for (uint32_t k = 0; k < PIECES; k++) \
		if (uint64_t i = (first) + (uint64_t)k * gpu_ntid(); i < (n))

GPU_FN void plan_load(const char *from, uint64_t first, uint64_t n, struct gpu_v16 v[PIECES])
{
	FOR_PIECES (k, i, first, n)
		v[k] = gpu_ld16_stream(from + i * 16);
}

GPU_FN void plan_store(char *to, uint64_t first, uint64_t n, const struct gpu_v16 v[PIECES])
{
	FOR_PIECES (k, i, first, n)
		gpu_st16_stream(to + i * 16, v[k]);
}

GPU_FN void plan_copy(const struct plan_run *r, const struct shunt_prog_op *op, const struct window &w)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);
	uint64_t units, n = plan_share(r, op, w, &units);
	const char *from = plan_place(r, o[0], units, false);
	char *to = plan_place(r, o[1], units, false);

	GPU_ROLL
	for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		plan_load(from, first, n, v);
		plan_store(to, first, n, v);
	}
}

/*
 * The running result of a piece. Sums of the types of training are made in line (HOT). Other operators and types are out of line, and
 * keep a pack where the accumulator is the type itself.
 */
#define REDOP_SUM 0u /* enum shunt_redop */
#define REDOP_PROD 1u
#define REDOP_MAX 2u
#define REDOP_MIN 3u

template <typename T> GPU_NOINLINE void plan_add_wide(struct wide<T> &acc, struct gpu_v16 v, uint32_t redop)
{
	if (redop == REDOP_PROD)
		wide_add<T, op_prod>(acc, v, 0);
	else if (redop == REDOP_MAX || redop == REDOP_MIN)
		wide_add<T, op_ext>(acc, v, redop == REDOP_MIN ? SHUNT_K_MIN : 0);
	else
		wide_add<T, op_sum>(acc, v, 0);
}

template <typename T> GPU_NOINLINE struct gpu_v16 plan_add_pack(struct gpu_v16 a, struct gpu_v16 v, uint32_t redop)
{
	struct wide<T> acc;

	wide_start(acc, a);
	if (redop == REDOP_PROD)
		wide_add<T, op_prod>(acc, v, 0);
	else if (redop == REDOP_MAX || redop == REDOP_MIN)
		wide_add<T, op_ext>(acc, v, redop == REDOP_MIN ? SHUNT_K_MIN : 0);
	else
		wide_add<T, op_sum>(acc, v, 0);
	return wide_finish(acc);
}

template <typename T, bool HOT, bool PACK = !HOT && is_same<typename acc_of<T>::type, T>::value> struct plan_acc;

template <typename T> struct plan_acc<T, true, false> {
	struct wide<T> w;
	GPU_METHOD void start(struct gpu_v16 x) { wide_start(w, x); }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t) { wide_add<T, op_sum>(w, x, 0); }
	GPU_METHOD struct gpu_v16 result() { return wide_finish(w); }
};

template <typename T> struct plan_acc<T, false, false> {
	struct wide<T> w;
	GPU_METHOD void start(struct gpu_v16 x) { wide_start(w, x); }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t redop) { plan_add_wide<T>(w, x, redop); }
	GPU_METHOD struct gpu_v16 result() { return wide_finish(w); }
};

template <typename T> struct plan_acc<T, false, true> {
	struct gpu_v16 v;
	GPU_METHOD void start(struct gpu_v16 x) { v = x; }
	GPU_METHOD void add(struct gpu_v16 x, uint32_t redop) { v = plan_add_pack<T>(v, x, redop); }
	GPU_METHOD struct gpu_v16 result() { return v; }
};

/* Sources are loaded four at a time, and one of a thread's pieces after the other. */
template <typename T, bool HOT> GPU_FN void plan_reduce(const struct plan_run *r, const struct shunt_prog_op *op, const struct window &w)
{
	const struct shunt_prog_operand *s = (const struct shunt_prog_operand *)(op + 1), *d = s + op->nsrc;
	uint64_t units, n = plan_share(r, op, w, &units);
	uint32_t nsrc = op->nsrc, ndst = op->ndst, redop = op->redop;

	GPU_ROLL
	for (uint64_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		struct plan_acc<T, HOT> acc;
		struct gpu_v16 v[4];

		GPU_ROLL
		for (uint32_t first = 0; first < nsrc; first += 4) {
			GPU_UNROLL
			for (uint32_t k = 0; k < 4; k++)
				if (first + k < nsrc)
					v[k] = gpu_ld16(plan_place(r, s[first + k], units, false) + i * 16);
			if (nsrc == 1)
				break;
			GPU_UNROLL
			for (uint32_t k = 0; k < 4; k++)
				if (first + k == 0)
					acc.start(v[0]);
				else if (first + k < nsrc)
					acc.add(v[k], redop);
		}
		if (nsrc > 1)
			v[0] = acc.result();
		GPU_ROLL
		for (uint32_t k = 0; k < ndst; k++)
			gpu_st16(plan_place(r, d[k], units, false) + i * 16, v[0]);
	}
}

/* ---- packets */

GPU_FN uint64_t packet(uint64_t data, uint32_t flag)
{
	return (data & 0xffffffffu) | (uint64_t)flag << 32;
}

GPU_FN void packets_store_piece(char *p, struct gpu_v16 v, uint32_t flag, bool ll8)
{
	struct gpu_v16 a = { packet(v.lo, flag), packet(v.lo >> 32, flag) }, b = { packet(v.hi, flag), packet(v.hi >> 32, flag) };

	if (ll8) {
		gpu_st_packet((uint64_t *)p, a.lo);
		gpu_st_packet((uint64_t *)p + 1, a.hi);
		gpu_st_packet((uint64_t *)p + 2, b.lo);
		gpu_st_packet((uint64_t *)p + 3, b.hi);
	} else {
		gpu_st_packets(p, a);
		gpu_st_packets(p + 16, b);
	}
}

GPU_FN void packets_store(char *to, uint64_t first, uint64_t n, const struct gpu_v16 v[PIECES], uint32_t flag, bool ll8)
{
	FOR_PIECES (k, i, first, n)
		packets_store_piece(to + i * 32, v[k], flag, ll8);
}

/* A batch to packet destinations `first_dst` .. ndst of an operation. */
GPU_FN void packets_store_all(const struct plan_run *r, const struct shunt_prog_operand *d, uint32_t first_dst, uint32_t ndst, uint64_t units,
    uint64_t first, uint64_t n, const struct gpu_v16 v[PIECES])
{
	bool ll8 = r->flags & SHUNT_PLAN_LL8;

	GPU_ROLL
	for (uint32_t k = first_dst; k < ndst; k++)
		packets_store(plan_place(r, d[k], units, true), first, n, v, r->flag, ll8);
}

/* The thread gives up: what it saw in one of the packets that did not come. */
GPU_NOINLINE void packets_give_up(struct plan_run *r, uint32_t reason, const char *at)
{
	plan_give_up(r, reason, ~0u, r->flag, gpu_ld_relaxed((const uint64_t *)at) >> 32);
}

/* The data of up to PIECES times 32 bytes of packets, bit k of `want` for p[k], when all are there; by each thread for itself. False: gave up. */
GPU_FN bool packets_load(struct plan_run *r, const char *const p[PIECES], uint32_t want, struct gpu_v16 v[PIECES])
{
	uint32_t flag = r->flag;
	struct spin spin;

	spin_init(&spin, r->ctrl);
	for (;;) {
		struct gpu_v16 a[PIECES], b[PIECES];
		uint32_t missing = 0;

		GPU_UNROLL
		for (uint32_t k = 0; k < PIECES; k++)
			if (want >> k & 1) {
				a[k] = gpu_ld_packets(p[k]);
				b[k] = gpu_ld_packets(p[k] + 16);
			}
		GPU_UNROLL
		for (uint32_t k = 0; k < PIECES; k++)
			if (want >> k & 1) {
				bool here = (uint32_t)(a[k].lo >> 32) == flag && (uint32_t)(a[k].hi >> 32) == flag && (uint32_t)(b[k].lo >> 32) == flag &&
				    (uint32_t)(b[k].hi >> 32) == flag;

				v[k].lo = (a[k].lo & 0xffffffffu) | a[k].hi << 32;
				v[k].hi = (b[k].lo & 0xffffffffu) | b[k].hi << 32;
				missing |= (uint32_t)!here << k;
			}
		if (!missing)
			return true;
		uint32_t reason = spin_expired(&spin);
		if (reason) {
			const char *at = p[0];

			GPU_UNROLL
			for (uint32_t k = 1; k < PIECES; k++)
				if (missing >> k & 1)
					at = p[k];
			packets_give_up(r, reason, at);
			return false;
		}
	}
}

/* A thread's pieces of one source. */
GPU_FN bool packets_load_batch(struct plan_run *r, const char *from, uint64_t first, uint64_t n, struct gpu_v16 v[PIECES])
{
	const char *p[PIECES];
	uint32_t want = 0;

	GPU_UNROLL
	for (uint32_t k = 0; k < PIECES; k++) {
		uint64_t i = first + (uint64_t)k * gpu_ntid();

		p[k] = from + i * 32;
		want |= (uint32_t)(i < n) << k;
	}
	return packets_load(r, p, want, v);
}

GPU_FN void plan_pack(const struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);
	struct window none = { 0, 0 };
	uint64_t units, n = plan_share(r, op, none, &units);
	const char *from = plan_place(r, o[0], units, false);

	GPU_ROLL
	for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		plan_load(from, first, n, v);
		packets_store_all(r, o + 1, 0, op->ndst, units, first, n, v);
	}
}

/* UNPACK and RELAY: one packet source; to plain memory, or on to packets. */
GPU_FN bool plan_pass(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);
	struct window none = { 0, 0 };
	uint64_t units, n = plan_share(r, op, none, &units);
	const char *from = plan_place(r, o[0], units, true);
	bool relay = op->code == SHUNT_PROG_RELAY;

	GPU_ROLL
	for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		if (!packets_load_batch(r, from, first, n, v))
			return false;
		if (relay)
			packets_store_all(r, o + 1, 0, op->ndst, units, first, n, v);
		else
			plan_store(plan_place(r, o[1], units, false), first, n, v);
	}
	return true;
}

/* PACKS and UNPACKS: one piece at a time of up to PIECES pairs, so that their loads overlap. */
GPU_FN bool plan_pairs(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);
	struct window none = { 0, 0 };
	uint64_t units, n = plan_share(r, op, none, &units);
	bool unpack = op->code == SHUNT_PROG_UNPACKS, ll8 = r->flags & SHUNT_PLAN_LL8;

	GPU_ROLL
	for (uint64_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		GPU_ROLL
		for (uint32_t q = 0; q < op->nsrc; q += PIECES) {
			const char *p[PIECES];
			struct gpu_v16 v[PIECES];
			uint32_t want = 0;

			GPU_UNROLL
			for (uint32_t k = 0; k < PIECES; k++)
				if (q + k < op->nsrc) {
					p[k] = plan_place(r, o[2 * (q + k)], units, unpack) + i * (unpack ? 32 : 16);
					want |= 1u << k;
				}
			if (unpack) {
				if (!packets_load(r, p, want, v))
					return false;
			} else {
				GPU_UNROLL
				for (uint32_t k = 0; k < PIECES; k++)
					if (want >> k & 1)
						v[k] = gpu_ld16_stream(p[k]);
			}
			GPU_UNROLL
			for (uint32_t k = 0; k < PIECES; k++)
				if (want >> k & 1) {
					char *to = plan_place(r, o[2 * (q + k) + 1], units, !unpack) + i * (unpack ? 16 : 32);

					if (unpack)
						gpu_st16_stream(to, v[k]);
					else
						packets_store_piece(to, v[k], r->flag, ll8);
				}
		}
	}
	return true;
}

/* One packet source: all pieces that a thread has under way at once. */
template <typename T, bool HOT> GPU_FN bool plan_fold_one(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *s = (const struct shunt_prog_operand *)(op + 1), *d = s + op->nsrc;
	struct window none = { 0, 0 };
	uint64_t units, n = plan_share(r, op, none, &units);
	uint32_t redop = op->redop;

	GPU_ROLL
	for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 mine[PIECES], v[PIECES];

		plan_load(plan_place(r, s[0], units, false), first, n, mine);
		if (!packets_load_batch(r, plan_place(r, s[1], units, true), first, n, v))
			return false;
		FOR_PIECES (k, i, first, n) {
			struct plan_acc<T, HOT> acc;

			acc.start(v[k]);
			acc.add(mine[k], redop);
			v[k] = acc.result();
		}
		plan_store(plan_place(r, d[0], units, false), first, n, v);
		packets_store_all(r, d, 1, op->ndst, units, first, n, v);
	}
	return true;
}

/* To the running result: those of the sources from q on that are wanted. The first of all, source 1, starts it. */
template <typename T, bool HOT> GPU_FN void plan_fold_packs(struct plan_acc<T, HOT> *acc, uint32_t q, uint32_t want, const struct gpu_v16 v[PIECES],
    uint32_t redop)
{
	GPU_UNROLL
	for (uint32_t k = 0; k < PIECES; k++)
		if (q + k == 1)
			acc->start(v[k]);
		else if (want >> k & 1)
			acc->add(v[k], redop);
}

/* Several: one piece at a time, all sources at once. */
template <typename T, bool HOT> GPU_FN bool plan_fold_many(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *s = (const struct shunt_prog_operand *)(op + 1), *d = s + op->nsrc;
	struct window none = { 0, 0 };
	uint64_t units, n = plan_share(r, op, none, &units);
	uint32_t nsrc = op->nsrc, redop = op->redop;

	GPU_ROLL
	for (uint64_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		struct gpu_v16 mine = gpu_ld16_stream(plan_place(r, s[0], units, false) + i * 16), v[PIECES];
		struct plan_acc<T, HOT> acc;

		GPU_ROLL
		for (uint32_t q = 1; q < nsrc; q += PIECES) {
			const char *p[PIECES];
			uint32_t want = 0;

			GPU_UNROLL
			for (uint32_t k = 0; k < PIECES; k++) {
				p[k] = q + k < nsrc ? plan_place(r, s[q + k], units, true) + i * 32 : 0;
				want |= (uint32_t)(q + k < nsrc) << k;
			}
			if (!packets_load(r, p, want, v))
				return false;
			plan_fold_packs(&acc, q, want, v, redop);
		}
		acc.add(mine, redop);
		v[0] = acc.result();
		gpu_st16_stream(plan_place(r, d[0], units, false) + i * 16, v[0]);
		packets_store_all(r, d, 1, op->ndst, units, i, i + 1, v);
	}
	return true;
}

template <typename T, bool HOT> GPU_FN bool plan_fold(struct plan_run *r, const struct shunt_prog_op *op)
{
	return op->nsrc == 2 ? plan_fold_one<T, HOT>(r, op) : plan_fold_many<T, HOT>(r, op);
}

/* ---- packets as lines */

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

/* One aligned load, without a branch: what is in no lane's part is in the range, too. The last lane of a line takes half of what it loads. */
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

	plan_give_up(r, gpu_ld_relaxed32(&r->ctrl->abort) ? SHUNT_FAULT_ABORT : SHUNT_FAULT_TIMEOUT, ~0u, r->launch, gpu_ld_relaxed(flag));
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
	struct window none = { 0, 0 };
	bool pairs = op->code == SHUNT_PROG_PACKS || op->code == SHUNT_PROG_UNPACKS;
	uint64_t units, n = plan_share(r, op, none, &units);
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

template <typename T, bool HOT> GPU_FN bool lines_fold(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *s = (const struct shunt_prog_operand *)(op + 1), *d = s + op->nsrc;
	struct window none = { 0, 0 };
	uint64_t units, n = plan_share(r, op, none, &units);
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

/* ---- between the caller's memory and ours */

/* Averages of signed integers are made by the unsigned type's function. */
template <typename T> struct average_as { typedef T type; };
template <> struct average_as<i8> { typedef u8 type; };
template <> struct average_as<i32> { typedef u32 type; };
template <> struct average_as<i64> { typedef u64 type; };

/*
 * Chunks of the caller's memory have no gaps between parts, and the last ones of a part may be short; ours are all of one size. Blocks
 * share each chunk; where nothing is short, all chunks are one.
 */
template <typename T> GPU_NOINLINE void plan_stage(const struct plan_run *r, const struct shunt_kargs_plan &a, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);
	bool load = op->code == SHUNT_PROG_LOAD;
	const struct shunt_prog_operand user = load ? o[0] : o[1], ours = load ? o[1] : o[0];
	uint64_t chunk = r->chunk * r->unit, part = a.part_bytes[user.buffer], per_part = r->head->chunks[user.buffer];
	bool whole = part == per_part * chunk;
	uint64_t count = whole ? 1 : op->size, piece = whole ? op->size * chunk : chunk;
	bool scaled = load && (a.k.flags & SHUNT_K_PREMUL), divided = !load && (a.k.flags & SHUNT_K_DIVIDE);
	char *const theirs = user.buffer ? (char *)a.k.recv : (char *)(uintptr_t)a.k.send;
	uint32_t threads = gpu_ntid() * r->head->nblocks;

	for (uint64_t j = 0; j < count; j++) {
		uint64_t k = user.index + j, at = whole ? k * chunk : k % per_part * chunk, bytes = piece;
		char *theirs_at = theirs + (whole ? at : k / per_part * part + at), *ours_at = plan_place(r, ours, j * r->chunk, false);
		bool aligned = !((uintptr_t)theirs_at & 15);

		if (!whole)
			bytes = at >= part ? 0 : part - at < chunk ? part - at : chunk;
		GPU_ROLL
		for (uint64_t i = (uint64_t)gpu_bid() * gpu_ntid() + gpu_tid(); i * 16 < bytes; i += threads) {
			if (load) {
				struct gpu_v16 v = load_user<T>(theirs_at, i * 16, 16, bytes, aligned);

				if (scaled)
					v = scale_cold<T>(v, load_scalar<T>(a.k));
				gpu_st16(ours_at + i * 16, v);
			} else {
				struct gpu_v16 v = gpu_ld16(ours_at + i * 16);

				if (divided)
					v = divide<typename average_as<T>::type>(v, r->head->nranks, a.k.flags & SHUNT_K_SIGNED);
				store_user<T>(theirs_at, i * 16, 16, bytes, aligned, v);
			}
		}
	}
}

/* ---- entering and leaving */

GPU_FN struct shunt_plan_peer *plan_peers(const struct plan_run *r, uint32_t rank)
{
	return (struct shunt_plan_peer *)(r->arena[rank] + r->head->peers_at);
}

GPU_FN struct shunt_plan_grid *plan_grid(const struct plan_run *r)
{
	return (struct shunt_plan_grid *)(r->arena[r->rank] + r->head->grid_at);
}

/* Nobody is at work in our shadows any more. */
GPU_FN bool plan_ready(struct plan_run *r)
{
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_await(r, &plan_peers(r, r->rank)[j].left, r->launch - 1, j))
			return false;
	return plan_sync(r);
}

GPU_FN bool plan_enter(struct plan_run *r)
{
	bool shadowed = r->head->flags & SHUNT_PROG_SHADOWED, ranks = shadowed || r->resized;
	bool blocks = shadowed || (r->flags & (SHUNT_PLAN_LOAD0 * 3));
	uint64_t *counter = &plan_grid(r)->enter, all = 0;

	if (blocks)
		all = plan_arrive(counter, r->head->nblocks);
	if (blocks && (gpu_bid() == 0 || !ranks)) {
		if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
			return false;
		if (!plan_sync(r))
			return false;
	}
	if (!ranks)
		return true;
	for (uint32_t j = gpu_tid(); j < r->head->nranks && gpu_bid() == 0; j += gpu_ntid())
		gpu_st_release(&plan_peers(r, j)[r->rank].entered, r->launch);
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_await(r, &plan_peers(r, r->rank)[j].entered, r->launch, j))
			return false;
	return plan_sync(r);
}

GPU_FN bool plan_leave(struct plan_run *r)
{
	bool shadowed = r->head->flags & SHUNT_PROG_SHADOWED, store = r->flags & (SHUNT_PLAN_STORE0 * 3);
	uint64_t *counter = &plan_grid(r)->leave, all;

	if (!shadowed && !store)
		return true;
	all = plan_arrive(counter, r->head->nblocks);
	if (gpu_bid() == 0 || store) {
		if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
			return false;
		if (!plan_sync(r))
			return false;
	}
	for (uint32_t j = gpu_tid(); j < r->head->nranks && shadowed && gpu_bid() == 0; j += gpu_ntid())
		gpu_st_release(&plan_peers(r, j)[r->rank].left, r->launch);
	return true;
}

/* ---- the interpreter */

/* The image to shared memory if it fits, and what follows from it. */
GPU_FN struct plan_run *plan_start(const struct shunt_kargs_plan &a)
{
	struct plan_shared *shared = plan_shared();
	const char *image = a.images + (uint64_t)gpu_bid() * a.image_bytes;
	struct plan_run *r = &shared->run;

	if (a.image_bytes <= SHUNT_PLAN_IMAGE)
		for (uint32_t i = gpu_tid(); i < a.image_bytes / 16; i += gpu_ntid())
			shared->image[i] = gpu_ld16(image + i * 16);
	if (gpu_tid() == 0) {
		const struct shunt_prog_head *head = (const struct shunt_prog_head *)image;
		const struct shunt_plan_state *state = (const struct shunt_plan_state *)a.arena + gpu_bid();

		r->launch = state->launches + 1;
		r->chunk = a.chunk;
		r->resized = (head->flags & SHUNT_PROG_RESYNC) && state->chunk && state->chunk != a.chunk;
		r->image = a.image_bytes <= SHUNT_PLAN_IMAGE ? (const char *)shared->image : image;
		r->head = (const struct shunt_prog_head *)r->image;
		r->arena = (char *const *)(r->head + 1);
		r->base[0] = a.buffer[0];
		r->base[1] = a.buffer[1];
		r->ctrl = a.ctrl;
		r->flag = SHUNT_PLAN_FLAG(r->launch);
		r->flags = a.k.flags;
		r->scratch_at = head->scratch_at + ((head->flags & SHUNT_PROG_DOUBLE) && !(r->flag & 1) ? head->half : 0);
		r->unit = head->unit;
		r->unit16 = head->unit / 16;
		r->rank = head->rank;
		r->line_shift = a.chunk >= head->dense ? 2 : 0;
		r->dead = 0;
	}
	gpu_sync();
	return r;
}

/* Operations on packets. The two ways that these travel are kernels of their own: one alone fits into registers. */
template <typename T> GPU_FN bool packets_step(struct plan_run *r, const struct shunt_prog_op *op)
{
	const bool can = is_hot<T, op_sum>::value;

	switch (op->code) {
	case SHUNT_PROG_PACK:
		plan_pack(r, op);
		return true;
	case SHUNT_PROG_UNPACK:
	case SHUNT_PROG_RELAY:
		return plan_pass(r, op);
	case SHUNT_PROG_PACKS:
	case SHUNT_PROG_UNPACKS:
		return plan_pairs(r, op);
	case SHUNT_PROG_FOLD:
		return can && op->redop == REDOP_SUM ? plan_fold<T, can>(r, op) : plan_fold<T, false>(r, op);
	default:
		return true;
	}
}

template <typename T> GPU_FN bool lines_step(struct plan_run *r, const struct shunt_prog_op *op)
{
	const bool can = is_hot<T, op_sum>::value;

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
		return can && op->redop == REDOP_SUM ? lines_fold<T, can>(r, op) : lines_fold<T, false>(r, op);
	default:
		return true;
	}
}

/* One operation; false: gave up. */
template <typename T, bool IN_LINES> GPU_FN bool plan_step(struct plan_run *r, const struct shunt_kargs_plan &a, const struct shunt_prog_op *op, const struct window &w)
{
	const bool can = is_hot<T, op_sum>::value;
	bool hot = can && op->redop == REDOP_SUM;

	switch (op->code) {
	case SHUNT_PROG_SYNC:
		return plan_sync(r);
	case SHUNT_PROG_BARRIER:
		return plan_barrier(r, (uint64_t *)(r->arena[r->rank] + r->head->barriers_at + op->size * 64), op->nsrc);
	case SHUNT_PROG_SIGNAL:
		plan_signal(r, op);
		return true;
	case SHUNT_PROG_WAIT:
		return plan_wait(r, op);
	case SHUNT_PROG_TAKE:
		return plan_take(r, op);
	case SHUNT_PROG_GIVE:
		plan_give(r, op);
		return true;
	case SHUNT_PROG_COPY:
		plan_copy(r, op, w);
		return true;
	case SHUNT_PROG_REDUCE:
		if (hot)
			plan_reduce<T, can>(r, op, w);
		else
			plan_reduce<T, false>(r, op, w);
		return true;
	case SHUNT_PROG_READY:
		return plan_ready(r);
	case SHUNT_PROG_LOAD:
		if (a.k.flags >> (((const struct shunt_prog_operand *)(op + 1))[1].buffer) & SHUNT_PLAN_LOAD0)
			plan_stage<T>(r, a, op);
		return true;
	case SHUNT_PROG_ENTER:
		return plan_enter(r);
	case SHUNT_PROG_LEAVE:
		return plan_leave(r);
	case SHUNT_PROG_STORE:
		if (a.k.flags >> (((const struct shunt_prog_operand *)(op + 1))[0].buffer) & SHUNT_PLAN_STORE0)
			plan_stage<T>(r, a, op);
		return true;
	default:
		return IN_LINES ? lines_step<T>(r, op) : packets_step<T>(r, op);
	}
}

template <typename T, bool IN_LINES> GPU_FN void plan(const struct shunt_kargs_plan &a)
{
	struct plan_run *r = plan_start(a);
	/* In most launches there is nothing to do before and after the plan's own operations. */
	bool bare = !(r->head->flags & SHUNT_PROG_SHADOWED) && !r->resized && !(r->flags & (SHUNT_PLAN_LOAD0 * 3 | SHUNT_PLAN_STORE0 * 3));
	uint32_t at = bare ? r->head->body : r->head->first, body = 0, end = 0;
	struct window w = { 0, 0 };
	uint64_t windows = 0;

	for (;;) {
		if (w.length && at == end) {
			w.at += w.length;
			if (--windows)
				at = body;
			else
				w.length = 0;
		}
		const struct shunt_prog_op *op = (const struct shunt_prog_op *)(r->image + at);

		if (op->code == SHUNT_PROG_END || (bare && op->code == SHUNT_PROG_LEAVE))
			break;
		if (op->code == SHUNT_PROG_LOOP) {
			const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

			w.at = 0;
			w.length = o->index;
			windows = (op->size * r->chunk + w.length - 1) / w.length;
			body = at + (uint32_t)(sizeof(*op) + sizeof(*o));
			end = op->next;
			at = body;
			continue;
		}
		if (!plan_step<T, IN_LINES>(r, a, op, w))
			return;
		at = op->next;
	}
	if (!plan_sync(r))
		return;
	if (gpu_tid() == 0) {
		struct shunt_plan_state *state = (struct shunt_plan_state *)a.arena + gpu_bid();

		state->launches = r->launch;
		state->chunk = a.chunk;
	}
}

#define PACKETS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs_plan) a) PROGRESS(a, plan<type, false>(a))
#define LINES(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs_plan) a) PROGRESS(a, plan<type, true>(a))
SHUNT_PLAN_ROWS(PACKETS, plan)
SHUNT_PLAN_ROWS(LINES, plan_lines)
