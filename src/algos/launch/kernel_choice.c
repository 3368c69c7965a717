/* SPDX-License-Identifier: MIT */
/* The kernel of an algorithm for a type and an operator, and what the launch tells it about them. */
#include "algos/algos.h"
#include "kernels/formats.h"

/* Each unsigned type is behind the signed one. */
static enum shunt_dtype unsigned_of(enum shunt_dtype dtype)
{
	return dtype + shunt_dtype_is_signed(dtype);
}

#define ROW(id, number, name, nccl, kernel, ...) [SHUNT_##id] = SHUNT_KOP_##kernel,
static const enum shunt_kop kops[SHUNT_NREDOPS] = { SHUNT_REDOP_LIST(ROW) };
#undef ROW

#define HOT_BIT(shape, op, opn, type, typen) | 1u << typen
/* Types whose sums have kernels for few ranks. */
static const unsigned hot_sums = 0 SHUNT_HOT_ROWS(HOT_BIT, any);
#undef HOT_BIT

bool shunt_algo_hot(enum shunt_redop redop, enum shunt_dtype dtype)
{
	return kops[redop] == SHUNT_KOP_SUM && (hot_sums >> dtype & 1);
}

unsigned shunt_algo_kernel(
    const struct shunt_algo *algo, enum shunt_kind kind, int nranks, enum shunt_redop redop, enum shunt_dtype dtype)
{
	/* Kernels that copy have one row per element size, under the number of a type of that size. */
	static const enum shunt_dtype copy_of[9] = {
		[1] = SHUNT_U8, [2] = SHUNT_F16, [4] = SHUNT_U32, [8] = SHUNT_U64
	};
	if (!shunt_kind_reduces(kind))
		return SHUNT_KERNEL(algo->shapes[2], SHUNT_KOP_COPY, copy_of[shunt_dtype_bytes[dtype]]);

	enum shunt_kop op = kops[redop];

	if (shunt_algo_hot(redop, dtype)) /* floats of NCCL's */
		return SHUNT_KERNEL(algo->shapes[(nranks > 2) + (nranks > 4)], SHUNT_KOP_SUM, dtype);
	if (shunt_dtype_is_format(dtype))
		return SHUNT_KERNEL(algo->shapes[2], 0, shunt_kernel_type(dtype));
	return SHUNT_KERNEL(algo->shapes[2], op, op == SHUNT_KOP_EXT ? dtype : unsigned_of(dtype));
}

unsigned shunt_algo_staged(unsigned kernel)
{
#define TWIN(shape) [SHUNT_SHAPE_##shape] = SHUNT_SHAPE_staged_##shape
#define ALONE(shape) [SHUNT_SHAPE_staged_##shape] = SHUNT_SHAPE_staged_##shape
#define PACKS(shape) [SHUNT_SHAPE_##shape##_packs] = SHUNT_SHAPE_staged_##shape
	static const uint8_t twins[SHUNT_NSHAPES] = { TWIN(oneshot2), PACKS(oneshot2), TWIN(oneshot4), PACKS(oneshot4),
		TWIN(oneshot8), TWIN(twoshot4), PACKS(twoshot4), TWIN(twoshot8), TWIN(oneshot2_few), TWIN(oneshot4_few),
		TWIN(oneshot8_few), TWIN(twoshot4_few), TWIN(twoshot8_few), TWIN(reduce_scatter2),
		PACKS(reduce_scatter2), TWIN(reduce_scatter4), PACKS(reduce_scatter4), TWIN(reduce_scatter8),
		TWIN(reduce_scatter2_few), TWIN(reduce_scatter4_few), TWIN(reduce_scatter8_few), TWIN(pairwise),
		TWIN(pairwise_parts), TWIN(ll128_2), TWIN(ll128_4), TWIN(ll128_8), TWIN(ll128_one), TWIN(ll128_many),
		TWIN(barrier), TWIN(simple2), TWIN(simple4), TWIN(simple8), TWIN(simple_many), ALONE(exchange4),
		ALONE(exchange8), ALONE(exchange4_parts), ALONE(exchange8_parts) };
#undef ALONE
#undef TWIN
#undef PACKS
	unsigned shape = SHUNT_SHAPE_OF(kernel);

	return kernel - SHUNT_KERNEL(shape, 0, 0) + SHUNT_KERNEL(twins[shape], 0, 0);
}

void shunt_algo_set_kernel(struct shunt_decision *decision, const struct shunt_coll *coll, int nranks)
{
	decision->kernel = shunt_algo_kernel(decision->algo, coll->kind, nranks, coll->redop, coll->dtype);
	decision->flags = 0;
	if (!shunt_kind_reduces(coll->kind))
		return;
	switch (coll->redop) {
	case SHUNT_MIN:
		decision->flags = SHUNT_K_MIN;
		break;
	case SHUNT_PREMUL:
		decision->flags = SHUNT_K_PREMUL;
		break;
	case SHUNT_AVG:
		decision->flags = shunt_dtype_is_float(coll->dtype) ? SHUNT_K_PREMUL :
		    shunt_dtype_is_signed(coll->dtype)              ? SHUNT_K_DIVIDE | SHUNT_K_SIGNED :
		                                                      SHUNT_K_DIVIDE;
		break;
	default:
		break;
	}
	if (shunt_dtype_is_format(coll->dtype))
		decision->flags |= shunt_format_flags(coll->dtype) | kops[coll->redop] * SHUNT_K_OPERATOR;
}

void shunt_algo_set_factor(struct shunt_kargs *k, const struct shunt_decision *decision, const struct shunt_coll *coll)
{
	if (coll->redop == SHUNT_PREMUL) {
		k->flags = decision->flags | (coll->scalar_on_device ? SHUNT_K_SCALAR_ON_DEVICE : 0);
		k->scalar = coll->scalar;
	} else {
		k->scalar = shunt_dtype_reciprocal(coll->dtype, k->nranks);
	}
}

enum shunt_dtype shunt_copy_type(uint64_t align)
{
	return align & 1 ? SHUNT_U8 :
	    align & 2    ? SHUNT_F16 :
	    align & 4    ? SHUNT_U32 :
	    align & 8    ? SHUNT_U64 :
	                   SHUNT_I64 /* 16 bytes */;
}
