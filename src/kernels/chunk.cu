/* SPDX-License-Identifier: MIT */
/*
 * Chunk-pipelined two-shot all-reduce through scratch, for large messages: plain 16-byte stores, one flag per piece. A block is a
 * channel. In step i it handles one chunk of n pieces, in three moves: scatter (piece r of the input to rank r), reduce (our
 * piece, the result to everybody), collect (the others' results to the output). The moves of three neighbouring steps
 * overlap: scatter i, reduce i-1, collect i-2.
 *
 * Three stages need no credits. Scatter i overwrites what scatter i-3 wrote, and collect i-3 is done: the peer's result of
 * step i-3 was here, which it made from those pieces. Reduce i overwrites results of step i-3, and the peer's pieces of step i are here,
 * which it sent after its collect i-3. Steps count on over launches.
 */
#include "kernels/elements.h"
#include "kernels/progress.h"
#include "kernels/spin.h"

struct chunk {
	struct shunt_ctrl *ctrl;
	uint32_t channel, nchannels;
	uint64_t bytes, steps;
	uint32_t piece;         /* bytes, a multiple of 16 */
	uint64_t step0;         /* steps of earlier launches */
	uint32_t *dead;         /* shared by the block */
	bool aligned, scaled;
};

GPU_FN uint64_t chunk_slot(const struct chunk &c, const struct shunt_kargs &a, uint32_t phase, uint64_t step, uint32_t source)
{
	uint64_t stage = ((uint64_t)c.channel * 2 + phase) * SHUNT_CHUNK_STAGES + (c.step0 + step) % SHUNT_CHUNK_STAGES;

	return SHUNT_CHUNK_AT + stage * SHUNT_CHUNK_STAGE + source * SHUNT_CHUNK_PIECE(a.nranks);
}

/* Byte offset in the message of rank r's piece of a step. */
GPU_FN uint64_t chunk_piece(const struct chunk &c, const struct shunt_kargs &a, uint64_t step, uint32_t r)
{
	return ((step * c.nchannels + c.channel) * a.nranks + r) * c.piece;
}

/* All of a step's chunk is inside the message and aligned: the loops over ranks may be unrolled with plain 16-byte accesses. */
GPU_FN bool chunk_is_whole(const struct chunk &c, const struct shunt_kargs &a, uint64_t step)
{
	return c.aligned && chunk_piece(c, a, step, a.nranks) <= c.bytes;
}

GPU_FN void chunk_signal(const struct chunk &c, const struct shunt_kargs &a, uint32_t phase, uint64_t step)
{
	gpu_sync();
	if (gpu_tid() < a.nranks && gpu_tid() != a.rank) {
		struct shunt_ctrl *theirs = (struct shunt_ctrl *)a.peer[gpu_tid()];

		gpu_st_release(&theirs->chunk_flag[phase][c.channel][a.rank].v, c.step0 + step + 1);
	}
}

GPU_FN bool chunk_wait(const struct chunk &c, const struct shunt_kargs &a, uint32_t phase, uint64_t step)
{
	uint32_t peer = gpu_tid();
	uint64_t want = c.step0 + step + 1;

	if (peer < a.nranks && peer != a.rank) {
		const uint64_t *flag = &c.ctrl->chunk_flag[phase][c.channel][peer].v;
		struct spin spin;
		uint64_t seen;

		spin_init(&spin, c.ctrl);
		while ((seen = gpu_ld_acquire(flag)) < want) {
			uint32_t expired = spin_expired(&spin);

			if (expired) {
				spin_report(c.ctrl, expired, a.rank, peer, c.channel, want, seen);
				gpu_claim32(c.dead); /* more than one thread may */
				break;
			}
		}
	}
	gpu_sync();
	return !*c.dead;
}

template <typename T> GPU_FN struct gpu_v16 chunk_read(const struct chunk &c, const struct shunt_kargs &a, uint64_t at, T factor)
{
	struct gpu_v16 v = load_user<T>(a.send, at, 16, c.bytes, c.aligned);

	return c.scaled ? scale_cold(v, factor) : v;
}

template <typename T> GPU_FN void chunk_scatter(const struct chunk &c, const struct shunt_kargs &a, uint64_t step, T factor)
{
	uint64_t slot = chunk_slot(c, a, 0, step, a.rank);
	bool whole = chunk_is_whole(c, a, step);

	GPU_ROLL
	for (uint32_t x = gpu_tid() * 16; x < c.piece; x += gpu_ntid() * 16) {
		if (!whole || c.scaled) {
			GPU_ROLL
			for (uint32_t r = 0; r < a.nranks; r++)
				if (r != a.rank)
					gpu_st16(a.peer[r] + slot + x, chunk_read<T>(c, a, chunk_piece(c, a, step, r) + x, factor));
			continue;
		}
		const char *from = (const char *)a.send + chunk_piece(c, a, step, 0) + x;
		struct gpu_v16 v[SHUNT_KARGS_MAX_RANKS];

		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
			if (r < a.nranks && r != a.rank)
				v[r] = gpu_ld16_stream(from + r * c.piece);
		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
			if (r < a.nranks && r != a.rank)
				gpu_st16(a.peer[r] + slot + x, v[r]);
	}
}

template <typename T, typename Op> GPU_FN void chunk_reduce(const struct chunk &c, const struct shunt_kargs &a, uint64_t step, T factor)
{
	uint64_t in = chunk_slot(c, a, 0, step, 0), out = chunk_slot(c, a, 1, step, a.rank);
	uint64_t mine = chunk_piece(c, a, step, a.rank);
	const char *inbox = a.peer[a.rank];

	GPU_ROLL
	for (uint32_t x = gpu_tid() * 16; x < c.piece; x += gpu_ntid() * 16) {
		struct gpu_v16 v[SHUNT_KARGS_MAX_RANKS];
		struct acc<T, Op> acc = {};

		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
			if (r < a.nranks && r != a.rank)
				v[r] = gpu_ld16(inbox + in + r * SHUNT_CHUNK_PIECE(a.nranks) + x);
		struct gpu_v16 own = chunk_read<T>(c, a, mine + x, factor);
		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++) {
			struct gpu_v16 y = { r == a.rank ? own.lo : v[r].lo, r == a.rank ? own.hi : v[r].hi };

			if (r == 0)
				acc.start(y);
			else if (r < a.nranks)
				acc.add(y, a.flags);
		}
		struct gpu_v16 sum = acc_finish(acc, a);
		GPU_ROLL
		for (uint32_t i = 1, p = a.rank; i < a.nranks; i++) {
			p = p + 1 == a.nranks ? 0 : p + 1;
			gpu_st16(a.peer[p] + out + x, sum);
		}
		store_user<T>(a.recv, mine + x, 16, c.bytes, c.aligned, sum);
	}
}

template <typename T> GPU_FN void chunk_collect(const struct chunk &c, const struct shunt_kargs &a, uint64_t step)
{
	const char *in = a.peer[a.rank] + chunk_slot(c, a, 1, step, 0);
	bool whole = chunk_is_whole(c, a, step);

	GPU_ROLL
	for (uint32_t x = gpu_tid() * 16; x < c.piece; x += gpu_ntid() * 16) {
		if (!whole) {
			GPU_ROLL
			for (uint32_t r = 0; r < a.nranks; r++)
				if (r != a.rank)
					store_user<T>(a.recv, chunk_piece(c, a, step, r) + x, 16, c.bytes, c.aligned,
					    gpu_ld16(in + r * SHUNT_CHUNK_PIECE(a.nranks) + x));
			continue;
		}
		char *to = (char *)a.recv + chunk_piece(c, a, step, 0) + x;
		struct gpu_v16 v[SHUNT_KARGS_MAX_RANKS];

		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
			if (r < a.nranks && r != a.rank)
				v[r] = gpu_ld16(in + r * SHUNT_CHUNK_PIECE(a.nranks) + x);
		GPU_UNROLL
		for (uint32_t r = 0; r < SHUNT_KARGS_MAX_RANKS; r++)
			if (r < a.nranks && r != a.rank)
				gpu_st16_stream(to + r * c.piece, v[r]);
	}
}

template <typename T, typename Op> GPU_FN void chunk(const struct shunt_kargs &a)
{
	GPU_SHARED(uint32_t, dead, 1);
	struct chunk c;
	uint64_t row; /* bytes of one step of all channels at full pieces */

	c.ctrl = (struct shunt_ctrl *)a.peer[a.rank];
	c.channel = gpu_bid();
	c.nchannels = check_others(a);
	c.bytes = a.count * sizeof(T);
	row = (uint64_t)c.nchannels * a.nranks * SHUNT_CHUNK_PIECE(a.nranks);
	c.steps = (c.bytes + row - 1) / row;
	row = c.steps * c.nchannels * a.nranks;
	c.piece = (uint32_t)((c.bytes + row - 1) / row + 15) / 16 * 16;
	c.step0 = c.ctrl->chunk_step[c.channel];
	c.dead = dead;
	c.aligned = a.flags & SHUNT_K_ALIGNED;
	c.scaled = a.flags & SHUNT_K_PREMUL;
	T factor = load_scalar<T>(a);

	if (gpu_tid() == 0)
		*dead = 0;
	gpu_sync();
	for (uint64_t i = 0; i < c.steps + 2; i++) {
		if (i < c.steps) {
			chunk_scatter<T>(c, a, i, factor);
			chunk_signal(c, a, 0, i);
		}
		if (i >= 1 && i - 1 < c.steps) {
			if (!chunk_wait(c, a, 0, i - 1))
				return;
			chunk_reduce<T, Op>(c, a, i - 1, factor);
			chunk_signal(c, a, 1, i - 1);
		}
		if (i >= 2) {
			if (!chunk_wait(c, a, 1, i - 2))
				return;
			chunk_collect<T>(c, a, i - 2);
		}
	}
	if (gpu_tid() == 0)
		c.ctrl->chunk_step[c.channel] = c.step0 + c.steps;
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void shunt_##shape##_##op##_##type(GPU_ARG(struct shunt_kargs) a) PROGRESS(a, chunk<type, op_##op>(a))
SHUNT_KERNEL_ROWS(INSTANCE, chunk)
