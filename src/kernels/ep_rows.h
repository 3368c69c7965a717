/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_EP_ROWS_H
#define SHUNT_KERNELS_EP_ROWS_H
/*
 * Rows as lines. A warp moves up to four lines at a time, a slot: in each line lanes 0-6 have 16 bytes, lane 7 has 8
 * bytes and the flag. So that packs of 16 bytes stay aligned, the packs of all lines of a slot come first in the row,
 * then the halves.
 */
#include "kernels/elements.h"
#include "kernels/ep_wait.h"

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

/* A slot that is waited for: where it begins in this rank's memory, how many lines it has (0: none), whose they are. */
struct ep_slot {
	const char *at;
	uint32_t lines, rank;
};

/*
 * Waits until the lines of D slots have come, whose loads are under way together. False: those of some rank do not
 * come, see ep_try_again(). Collective over the warp.
 */
template <int D>
GPU_FN bool ep_wait_slots(const struct shunt_kargs &a, const struct ep_slot slot[D], uint64_t flag, struct gpu_v16 v[D])
{
	struct spin spin;

	spin_init(&spin, progress_ctrl(a));
	for (;;) {
		const char *missing = 0;
		uint32_t rank = 0;
		bool on = true;

		GPU_UNROLL for (int k = 0; k < D; k++)
			if (slot[k].lines)
				gpu_ll128_ld(slot[k].at, &v[k], flag, slot[k].lines);
		GPU_UNROLL for (int k = 0; k < D; k++)
			if (slot[k].lines && !gpu_ll128_ready(v[k], flag, slot[k].lines)) {
				missing = slot[k].at;
				rank = slot[k].rank;
			}
		if (gpu_warp_all(!missing))
			return true;
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
#endif
