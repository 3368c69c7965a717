/* SPDX-License-Identifier: MIT */
/*
 * The self-test of links: all pairs of a host and both directions at once, one launch for each rank, a block for each
 * peer. Half of a block's warps send, the others receive. In each round a lane, a warp, sends
 *
 *   packet   512 bytes with the round's number in each 8, which the reader looks at as kernels do
 *   chunk    4096 bytes of plain stores, then their count with release, which the reader acquires
 *   answer   the reader's count, for which the sender waits before it writes again
 *
 * Data follows from sender, receiver, lane, round and place alone, so data of another one of these is wrong. Odd rounds
 * have nearly the complements of even ones, so each bit changes.
 */
#include "device/gpu.h"
#include "kernels/kernel_list.h"

struct watch {
	const struct shunt_kargs_selftest *a;
	uint64_t began, since, limit;
	uint32_t tries;
};

GPU_FN void watch_wait(struct watch *w, uint64_t limit)
{
	w->since = gpu_clock_ns();
	w->limit = limit;
	w->tries = 0;
}

GPU_FN bool watch_over(struct watch *w)
{
	gpu_relax();
	if (++w->tries % GPU_SPIN_CHECK)
		return false;
	uint64_t now = gpu_clock_ns();
	return now - w->since > w->limit || now - w->began > w->a->all_ns;
}

GPU_FN uint64_t selftest_value(uint32_t from, uint32_t to, uint32_t lane, uint32_t round, uint32_t word)
{
	uint64_t x = ((uint64_t)(from * 8 + to + 1) << 40 | (uint64_t)lane << 36 | word) ^ (uint64_t)(round >> 1) << 12;

	x *= 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	return round & 1 ? ~x : x;
}

/* A packet's word: half a value, and the round. */
GPU_FN uint64_t selftest_packet(uint32_t from, uint32_t to, uint32_t lane, uint32_t round, uint32_t word)
{
	return (uint32_t)selftest_value(from, to, lane, round, word) | (uint64_t)round << 32;
}

GPU_FN void selftest_mistake(
    struct shunt_selftest_status *v, uint32_t kind, uint32_t round, uint32_t word, uint64_t expected, uint64_t seen)
{
	if (v->kind || expected == seen)
		return;
	v->kind = kind;
	v->round = round;
	v->word = word;
	v->expected = expected;
	v->seen = seen;
}

GPU_FN struct shunt_selftest_lane *selftest_lane(char *area, uint32_t peer, uint32_t lane)
{
	return (struct shunt_selftest_lane *)area + peer * SHUNT_SELFTEST_LANES + lane;
}

GPU_FN bool selftest_await(struct watch *w, const uint64_t *count, uint64_t round, uint64_t limit)
{
	watch_wait(w, limit);
	while (gpu_ld_acquire(count) < round)
		if (watch_over(w))
			return false;
	return true;
}

GPU_FN void selftest_send(const struct shunt_kargs_selftest &a, uint32_t peer, uint32_t lane)
{
	struct shunt_selftest_lane *out = selftest_lane(a.area[peer], a.rank, lane);
	const uint64_t *answer = &selftest_lane(a.area[a.rank], peer, lane)->head;
	struct watch w = { &a, gpu_clock_ns() };

	for (uint32_t r = 1; r <= a.rounds; r++) {
		uint32_t at = 2 * gpu_lane();

		gpu_ll16_st(&out->packet[at],
		    { selftest_packet(a.rank, peer, lane, r, at), selftest_packet(a.rank, peer, lane, r, at + 1) });
		for (at += 64; at < 64 + 512; at += 64)
			gpu_st16(&out->chunk[at - 64],
			    { selftest_value(a.rank, peer, lane, r, at),
			        selftest_value(a.rank, peer, lane, r, at + 1) });
		gpu_warp_sync();
		if (gpu_lane() == 0)
			gpu_st_release(&out->tail, r);
		if (!gpu_warp_all(selftest_await(&w, answer, r, r > 1 ? a.wait_ns : a.first_ns)))
			return; /* the reader says why */
	}
}

GPU_FN void selftest_receive(
    const struct shunt_kargs_selftest &a, uint32_t peer, uint32_t lane, struct shunt_selftest_status *v)
{
	const struct shunt_selftest_lane *in = selftest_lane(a.area[a.rank], peer, lane);
	uint64_t *answer = &selftest_lane(a.area[peer], a.rank, lane)->head;
	struct watch w = { &a, gpu_clock_ns() };

	for (uint32_t r = 1; r <= a.rounds; r++) {
		uint64_t limit = r > 1 ? a.wait_ns : a.first_ns;
		uint32_t at = 2 * gpu_lane();
		struct gpu_v16 p;
		bool here;

		watch_wait(&w, limit);
		do
			p = gpu_ll16_ld(&in->packet[at]);
		while (!(here = gpu_ll16_ready(p, r)) && !watch_over(&w));
		here = here && selftest_await(&w, &in->tail, r, limit);
		if (!gpu_warp_all(here)) {
			if (!here)
				selftest_mistake(v, SHUNT_SELFTEST_SILENT, r, at, r, p.lo >> 32 == r ? 0 : p.lo >> 32);
			return;
		}
		selftest_mistake(v, SHUNT_SELFTEST_PACKET, r, at, selftest_packet(peer, a.rank, lane, r, at), p.lo);
		selftest_mistake(
		    v, SHUNT_SELFTEST_PACKET, r, at + 1, selftest_packet(peer, a.rank, lane, r, at + 1), p.hi);
		for (at += 64; at < 64 + 512; at += 64) {
			p = gpu_ld16(&in->chunk[at - 64]);
			selftest_mistake(
			    v, SHUNT_SELFTEST_CHUNK, r, at - 64, selftest_value(peer, a.rank, lane, r, at), p.lo);
			selftest_mistake(
			    v, SHUNT_SELFTEST_CHUNK, r, at - 63, selftest_value(peer, a.rank, lane, r, at + 1), p.hi);
		}
		gpu_warp_sync();
		if (gpu_lane() == 0)
			gpu_st_release(answer, r);
	}
}

GPU_FN void selftest(const struct shunt_kargs_selftest &a)
{
	uint32_t peer = gpu_bid(), lanes = gpu_ntid() / 64, lane = gpu_tid() / 32;
	struct shunt_selftest_status v = {};

	gpu_grid_dependency_wait();
	if (!(a.peers >> peer & 1))
		return;
	if (lane < lanes)
		selftest_send(a, peer, lane);
	else
		selftest_receive(a, peer, lane - lanes, &v);

	uint32_t wrong = gpu_ballot(v.kind != SHUNT_SELFTEST_RIGHT);
	struct shunt_selftest_status *out = &a.status[peer * SHUNT_SELFTEST_LANES + lane % lanes];

	/* The lowest lane that saw a mistake writes its own. */
	if (v.kind && !(wrong & ((1u << gpu_lane()) - 1))) {
		out->kind = v.kind;
		out->round = v.round;
		out->word = v.word;
		out->expected = v.expected;
		out->seen = v.seen;
	}
	gpu_sync();
	if (lane >= lanes && gpu_lane() == 0)
		gpu_st_release(&out->done, 1);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_selftest) a) \
	{ \
		selftest(a); \
	}
SHUNT_BARRIER_ROW(INSTANCE, selftest)
