/* SPDX-License-Identifier: MIT */
#include "kernels/set.h"

#include "kernels/fatbin.h"

#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)

/* Source, and so fatbin, of a shape. */
enum {
#define SOURCE(name, source, args, ...) \
	FATBIN_OF_##name = SHUNT_SOURCE_##source, ARG_BYTES_OF_##name = sizeof(struct args),
	SHUNT_SHAPE_LIST(SOURCE, )
#undef SOURCE
};

static const struct shunt_kernel_desc descs[SHUNT_NKERNELS] = {
#define DESC(shape, op, opn, type, typen) \
	[SHUNT_KERNEL(SHUNT_SHAPE_##shape, opn, typen)] = { \
		.name = TEXT_OF(SHUNT_KERNEL_NAME(shape, op, type)), \
		.arg_bytes = ARG_BYTES_OF_##shape, \
		.fatbin = FATBIN_OF_##shape, \
		.dynamic_shared = (unsigned)FATBIN_OF_##shape == SHUNT_SOURCE_tma, \
	},
	SHUNT_KERNEL_LIST(DESC)
#undef DESC
};

const struct shunt_kernel_set shunt_kernels = {
	.n = SHUNT_NKERNELS,
	.kernel = descs,
	.sim = shunt_sim_kernels,
	.fatbin = shunt_fatbins,
	.nfatbins = SHUNT_NSOURCES,
	.built_by = shunt_fatbins_made,
	.max_blocks = SHUNT_MAX_BLOCKS,
	.max_threads = SHUNT_MAX_THREADS,
	.cluster_blocks = SHUNT_CLUSTER_BLOCKS,
	.cluster_kernel = SHUNT_KERNEL(SHUNT_SHAPE_tma2, SHUNT_KOP_SUM, 6), /* float16 */
	.shared_bytes = SHUNT_TMA_MAX_BYTES,
};
