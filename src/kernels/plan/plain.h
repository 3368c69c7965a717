/* SPDX-License-Identifier: MIT */
#pragma once
/* Operations on plain data: copies and reductions. */
#include "kernels/plan/acc.h"

GPU_FN void plan_copy(const struct plan_run *r, const struct shunt_prog_op *op, const struct loop_iter &w)
{
	const struct shunt_prog_addr *o = (const struct shunt_prog_addr *)(op + 1);
	uint64_t units, n = plan_block_share(r, op, w, &units);
	const char *from = plan_addr(r, o[0], units, false);
	char *to = plan_addr(r, o[1], units, false);

	GPU_ROLL for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		plan_load(from, first, n, v);
		plan_store(to, first, n, v);
	}
}

/* Loads four sources at a time, for one of the thread's pieces after the other. */
template <typename T, bool HOT>
GPU_FN void plan_reduce_as(const struct plan_run *r, const struct shunt_prog_op *op, const struct loop_iter &w)
{
	const struct shunt_prog_addr *s = (const struct shunt_prog_addr *)(op + 1), *d = s + op->nsrc;
	uint64_t units, n = plan_block_share(r, op, w, &units);
	uint32_t nsrc = op->nsrc, ndst = op->ndst, redop = op->redop;

	PLAN_OPERATOR(redop, r);

	GPU_ROLL for (uint64_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		struct plan_acc<T, HOT> acc = {
		};
		struct gpu_v16 v[4];

		plan_clear<4>(v);
		GPU_ROLL for (uint32_t first = 0; first < nsrc; first += 4) {
			GPU_UNROLL for (uint32_t k = 0; k < 4; k++)
				if (first + k < nsrc)
					v[k] = gpu_ld16(plan_addr(r, s[first + k], units, false) + i * 16);
			if (nsrc == 1)
				break;
			GPU_UNROLL for (uint32_t k = 0; k < 4; k++)
				if (first + k == 0)
					acc.start(v[0], redop);
				else if (first + k < nsrc)
					acc.add(v[k], redop);
		}
		if (nsrc > 1)
			v[0] = acc.result(redop);
		GPU_ROLL for (uint32_t k = 0; k < ndst; k++)
			gpu_st16(plan_addr(r, d[k], units, false) + i * 16, v[0]);
	}
}

template <typename T>
GPU_FN void plan_reduce(const struct plan_run *r, const struct shunt_prog_op *op, const struct loop_iter &w)
{
	const bool can = is_hot<T, op_sum>::value;

	if (can && op->redop == REDOP_SUM)
		plan_reduce_as<T, can>(r, op, w);
	else
		plan_reduce_as<T, false>(r, op, w);
}
