/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What dispatch and combine must give (shunt/ep.h): all ranks' inputs in, one rank's outputs out. Slow and plain on
 * purpose; tests compare kernels with it, bit by bit, except that any NaN stands for every NaN.
 *
 * bfloat16 and float16 are uint16_t, float8_e4m3fn is uint8_t; dtype is NCCL's number. Arrays lie as those of
 * shunt/ep.h do, and are the caller's; what a function does not set stays as it is.
 */
#include <stdbool.h>
#include <stdint.h>

/* All ranks' inputs. */
struct ep_inputs {
	int nranks, experts, topk, hidden;
	const int *tokens;              /* of each rank */
	const int64_t *const *topk_idx; /* of each rank: [tokens][topk] */
	const float *const *topk_weights;
	const uint16_t *const *x; /* of each rank: [tokens][hidden] */
	uint64_t masked;          /* ranks whose tokens and rows are left out, as bits */
	bool rank_sums;           /* low latency combine as with SHUNT_EP_SUM=rank */
};

/*
 * A row of bfloat16, a multiple of 128 elements, in a form of shunt/ep.h: elements, and scales as words, of which
 * UE8M0 has one for 512 elements.
 */
void ep_cast_row(const uint16_t *x, int hidden, int form, uint8_t *out, uint32_t *scales);

/* per_rank [nranks], per_expert [experts], in_rank [tokens][nranks]; set to zero first. */
void ep_layout(const struct ep_inputs *in, int rank, int32_t *per_rank, int32_t *per_expert, uint8_t *in_rank);

/* Low latency. x: uint16_t of AS_IS, else uint8_t. src_idx of an empty slot stays as it is. */
struct ep_ll_outputs {
	void *x;
	uint32_t *scales;
	int32_t *count, *src_idx;
	int64_t *ranges;
	int16_t *routing;
};
void ep_ll_dispatch(const struct ep_inputs *in, int rank, int max_tokens, int form, const struct ep_ll_outputs *out);
/*
 * rows, src_idx, ranges: of each rank, as its dispatch gave them, with rows of dtype [local experts][nranks *
 * max_tokens][hidden].
 */
void ep_ll_combine(const struct ep_inputs *in, int rank, int max_tokens, int dtype, const uint16_t *const *rows,
    const int32_t *const *src_idx, const int64_t *const *ranges, uint16_t *out);

/* Normal mode. The number of rows that a rank receives, and each one's source and token there. */
int ep_rows(const struct ep_inputs *in, int rank, int32_t *src_rank, int32_t *src_idx);
/* Of a row: its local experts, else -1, and their weights, else 0. */
void ep_row_experts(const struct ep_inputs *in, int rank, int source, int token, int64_t *idx, float *weights);
/*
 * The sums of a rank's tokens, in.hidden elements each. rows: of each rank, in the order of ep_rows(). bias: of `rank`,
 * or NULL. weights: of each rank's rows [rows][topk], or NULL, as is out_weights.
 */
void ep_combine(const struct ep_inputs *in, int rank, int dtype, const void *const *rows, const void *const bias[2],
    const float *const *weights, void *out, float *out_weights);
