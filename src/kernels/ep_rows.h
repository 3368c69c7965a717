/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Rows as lines. A warp moves up to four lines at a time, a slot: in each line lanes 0-6 have 16 bytes, lane 7 has 8
 * bytes and the flag. So that packs of 16 bytes stay aligned, the packs of all lines of a slot come first in the row,
 * then the halves. A slot of four lines whose bytes are the caller's, aligned, is one as in kernels/ll128.h.
 */
#include "kernels/elements.h"
#include "kernels/ep_wait.h"
#include "kernels/ll128.h"

#define EP_SLOT_DATA (4 * SHUNT_EP_LINE_DATA)
#define EP_SLOT_WIRE (4 * SHUNT_EP_LINE)
#define EP_DEPTH 4 /* slots whose loads a warp has under way together */

GPU_FN uint32_t ep_lines(uint32_t bytes) { return (bytes + SHUNT_EP_LINE_DATA - 1) / SHUNT_EP_LINE_DATA; }
GPU_FN uint32_t ep_slots(uint32_t lines) { return (lines + 3) / 4; }
/* Lines of slot i of a row. */
GPU_FN uint32_t ep_slot_lines(uint32_t lines, uint32_t i) { return lines - 4 * i < 4 ? lines - 4 * i : 4; }

/* Where this lane's bytes of slot i are in the row, and how many they are; lanes behind `lines` have none. */
GPU_FN uint32_t ep_at(uint32_t lines, uint32_t i)
{
	uint32_t line = gpu_lane() / 8;

	return i * EP_SLOT_DATA + (GPU_LL128_FLAG_LANE ? lines * 112 + line * 8 : (line * 7 + gpu_lane() % 8) * 16);
}

GPU_FN uint32_t ep_width(uint32_t lines) { return gpu_lane() / 8 >= lines ? 0 : GPU_LL128_FLAG_LANE ? 8 : 16; }

/*
 * load_user() and store_user() for accesses that are aligned nearly always. The other ones are out of line: a launch
 * fetches its code anew, and waits for each line of it.
 */
template <typename T> GPU_NOINLINE struct gpu_v16 ep_load_elements(const void *base, u64 at, u32 width, u64 bytes)
{
	return load_user<T>(base, at, width, bytes, false);
}

template <typename T> GPU_NOINLINE void ep_store_elements(void *base, u64 at, u32 width, u64 bytes, struct gpu_v16 v)
{
	store_user<T>(base, at, width, bytes, false, v);
}

template <typename T> GPU_FN struct gpu_v16 ep_load(const void *base, u64 at, u32 width, u64 bytes, bool aligned)
{
	struct gpu_v16 v = { 0, 0 };

	if (!aligned || at + width > bytes)
		return ep_load_elements<T>(base, at, width, bytes);
	if (width == 16)
		return gpu_ld16_stream((const char *)base + at);
	v.lo = *(const u64 *)((const char *)base + at);
	return v;
}

template <typename T> GPU_FN void ep_store(void *base, u64 at, u32 width, u64 bytes, bool aligned, struct gpu_v16 v)
{
	if (!aligned || at + width > bytes)
		ep_store_elements<T>(base, at, width, bytes, v);
	else if (width == 16)
		gpu_st16_stream((char *)base + at, v);
	else
		*(u64 *)((char *)base + at) = v.lo;
}

/* A slot that is waited for: where it begins in this rank's memory, how many lines it has (0: none), whose they are. */
struct ep_slot {
	const char *at;
	uint32_t lines, rank;
};

/*
 * Waits until the lines of D slots have come, whose loads are under way together. False: those of some rank do not
 * come, see ep_try_again(). Collective over the warp. Every look is at whole lines: of a line whose flag alone was
 * looked at meanwhile, a later load may bring the flag and old data (docs/kernels/tried.json).
 */
template <int D>
GPU_FN bool ep_wait_slots(const struct shunt_kargs &a, const struct ep_slot slot[D], uint64_t flag, struct gpu_v16 v[D])
{
	struct spin spin;

	spin_init(&spin, progress_ctrl(a));
	for (;;) {
		const char *missing = 0;
		bool ready = true, on = true;
		uint32_t rank = 0;

		GPU_UNROLL for (int k = 0; k < D; k++)
			gpu_ll128_ld(slot[k].lines ? slot[k].at : a.peer[a.rank], &v[k], flag, slot[k].lines);
		GPU_UNROLL for (int k = 0; k < D; k++)
			ready = ready && (!slot[k].lines || gpu_ll128_ready(v[k], flag, slot[k].lines));
		if (gpu_warp_all(ready))
			return true;
		GPU_UNROLL for (int k = 0; k < D && !ready; k++)
			if (slot[k].lines && !gpu_ll128_ready(v[k], flag, slot[k].lines)) {
				missing = slot[k].at;
				rank = slot[k].rank;
			}
		/* A lane that misses a line asks; the others agree. */
		if (missing)
			on = ep_try_again(&spin, a, rank, SHUNT_CHECK_CHANNEL, flag,
			    (const uint64_t *)(missing + gpu_lane() / 8 * SHUNT_EP_LINE + SHUNT_EP_LINE_DATA));
		if (!gpu_warp_all(on))
			return false;
	}
}

GPU_FN bool ep_wait_slot(
    const struct shunt_kargs &a, const char *at, uint32_t lines, uint64_t flag, uint32_t rank, struct gpu_v16 *v)
{
	struct ep_slot slot = { at, lines, rank };

	return ep_wait_slots<1>(a, &slot, flag, v);
}
