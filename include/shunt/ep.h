/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_EP_H
#define SHUNT_EP_H
/*
 * Expert parallel: dispatch sends each token to the ranks that have its experts, combine brings the results back and
 * adds them. docs/ep.md has an example.
 *
 * A group is made by all its ranks, on one device each, of one host or several: at most 8 of a host, and 64 in all.
 * Expert e is on rank e / (experts / nranks). All ranks make the same calls on a group in the same order, with the
 * values alike that are marked (=).
 *
 * Threads   Any thread may call at any time. Calls on one group take turns, and their order on the device is that in
 *           which they took them, on whichever streams.
 * Streams   Calls are enqueued on `stream`, which is a cudaStream_t, do not wait for peers, and may be captured into a
 *           graph; where a function waits on the host, its comment says so.
 * Memory    Pointers are addresses of the device unless named `host`, and stay the caller's; what they point to must
 *           last until the call has run. Arrays are contiguous, row by row. Addresses may have any alignment of their
 *           element; multiples of 16 bytes are faster. Nothing is allocated after create.
 * Structs   `size` is that of the struct, set by the caller; later versions may add fields at its end, which are 0 for
 *           callers that do not know them.
 * Units     Bytes and nanoseconds where the name says so, else elements, rows or tokens.
 *
 * Functions return 0 or a negative errno. Where they refuse, the log has one line with the name and the value.
 *
 *   -EINVAL       a value is out of its range, or the group is none. Nothing was enqueued
 *   -ENOSPC       the group has less memory than the call needs; the line has both numbers. Nothing was enqueued
 *   -EBUSY        the stream's capture was spoiled, or it captures and the call cannot be captured; at create: the
 *                 thread is inside ncclGroupStart
 *   -EDEADLK      a third low latency call of its kind, before the first was received; or a ninth notify, before the
 *                 counts of the first were asked for. Nothing was enqueued
 *   -EOPNOTSUPP   at create: the ranks of a host are not joined by NVLink, or there are more than 8 of a host or 64
 *   -ENODEV, -ENOMEM, -EIO
 *   -EOWNERDEAD, -ETIMEDOUT, -ECANCELED, -EOVERFLOW, -EPROTO, -EINVAL, -EDEADLK
 *                 the group is broken, as shunt_ep_error() says: a rank died or did not come in time, the group was
 *                 aborted, more rows came than a rank has room for, the ranks' calls differ, a token names what is no
 *                 expert, or a graph made a third call. All later calls say so
 */
#include <stddef.h>
#include <stdint.h>

#ifndef SHUNT_API
#define SHUNT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct shunt_ep; /* a group. Its pointer is a name, and never that of an earlier group */

#define SHUNT_EP_MAX_TOPK 16
#define SHUNT_EP_MAX_EXPERTS 32767
#define SHUNT_EP_ID_BYTES 128

/* Flags of a group. */
enum {
	/* Low latency calls and barriers go on without ranks that are masked, die or do not come in time. */
	SHUNT_EP_MASKS = 1,
	/* Rows of normal mode for which there is no room are left out: combine adds nothing for them. */
	SHUNT_EP_DROP = 2,
};

/* ---- groups */

/* What the memory of a group must suffice for. */
struct shunt_ep_shape {
	size_t size;
	int32_t nranks;
	int32_t topk;          /* most experts of a token; 0: SHUNT_EP_MAX_TOPK */
	int32_t hidden;        /* elements of a row */
	int32_t element_bytes; /* of its widest form; low latency calls need 2 */
	int32_t ll_tokens;     /* most tokens of a rank in a low latency call; 0: none */
	int32_t blocks;        /* of calls of normal mode, up to 64; 0: none */
	int32_t hosts;         /* 0 or 1: the ranks are on one host; else on how many, with as many ranks each */
	uint64_t flags;        /* of the group: with SHUNT_EP_MASKS low latency calls over hosts need more */
};
/*
 * Bytes for struct shunt_ep_config. Either pointer may be NULL. Hosts with unequal numbers of ranks: nranks as if each
 * had the most.
 */
SHUNT_API int shunt_ep_bytes(const struct shunt_ep_shape *shape, uint64_t *normal_p, uint64_t *ll_p);

struct shunt_ep_config {
	size_t size;
	const void *comm; /* the program's ncclComm_t, whose ranks and device are the group's; NULL: the next four */
	const void *id;   /* host; SHUNT_EP_ID_BYTES that one rank has from shunt_ep_id() and brought to all */
	int32_t nranks, rank;
	int32_t device;        /* -1: the current one */
	uint32_t flags;        /* (=) SHUNT_EP_* */
	uint64_t normal_bytes; /* (=) memory on each rank for calls of normal mode; 0: no such calls */
	uint64_t ll_bytes;     /* (=) the same for low latency calls; over hosts, page-locked memory is part of it */
	int32_t topk;          /* (=) as in the shape of which shunt_ep_bytes() gave ll_bytes */
	uint64_t timeout_ns;   /* longest wait for a peer; 0: SHUNT_EP_TIMEOUT */
};
/* An id for one group, to be brought to its ranks. host: SHUNT_EP_ID_BYTES. */
SHUNT_API int shunt_ep_id(void *host);
/*
 * Waits for all ranks, each of which must call. With a communicator, which is only asked for its ranks and may be used
 * and ended as before, all ranks create their groups in the same order. If some rank cannot, all ranks get an error. A
 * rank whose communicator is not ready is refused at once, and may call again; the others wait, up to SHUNT_TIMEOUT.
 */
SHUNT_API int shunt_ep_create(const struct shunt_ep_config *config, struct shunt_ep **group_p);
/*
 * abort 0: waits until the calls of this rank have run, which may wait for peers; not for peers to come here. 1: ends
 * running kernels, and waits for no peer. No thread may be using the group except for calls that wait, which abort
 * ends. NULL is allowed. Graphs with calls of the group must not run any more.
 */
SHUNT_API int shunt_ep_destroy(struct shunt_ep *group, int abort);
/* On how many hosts the ranks are; -EINVAL: the group is none. */
SHUNT_API int shunt_ep_hosts(struct shunt_ep *group);
/* 0, or the error that broke the group, with one line of text (at most bytes, terminated; NULL: none). Does not wait.
 */
SHUNT_API int shunt_ep_error(struct shunt_ep *group, char *text, size_t bytes);

/* ---- masks, of groups with SHUNT_EP_MASKS. Each rank has its own */

/*
 * From here on in the stream, this rank goes on without that one (masked 1), or with it again (0). For that both ranks
 * must have made the same number of calls, and take each other back before the same one. Over hosts a rank whose
 * connection has ended is masked again by the next wait.
 */
SHUNT_API int shunt_ep_mask(struct shunt_ep *group, int rank, int masked, void *stream);
/* masks: [nranks], 1: masked. */
SHUNT_API int shunt_ep_masks(struct shunt_ep *group, int32_t *masks, void *stream);
SHUNT_API int shunt_ep_masks_clear(struct shunt_ep *group, void *stream);
/* On the device, waits for all ranks; with SHUNT_EP_MASKS it masks those that do not come in time. */
SHUNT_API int shunt_ep_barrier(struct shunt_ep *group, void *stream);

/* ---- normal mode: any number of tokens, rows without gaps */

/* Counts which rank and expert gets what. Of this rank alone: waits for no peer. */
struct shunt_ep_layout {
	size_t size;
	void *stream;
	const int64_t *topk_idx;       /* [tokens][topk]; -1: no expert. Another value breaks the group: -EINVAL */
	int32_t tokens, topk, experts; /* up to 16,777,214 tokens */
	int32_t *per_rank;             /* [nranks]: tokens; one that has two experts there counts once */
	int32_t *per_host;             /* [hosts]: as per_rank; NULL: not wanted, or the ranks are on one host */
	int32_t *per_expert;           /* [experts]: places; a token that names an expert twice counts twice */
	uint8_t *in_rank;              /* [tokens][nranks]: 1 where the token goes, else 0 */
};
SHUNT_API int shunt_ep_layout(struct shunt_ep *group, const struct shunt_ep_layout *call);

/*
 * Tells the ranks what will come. The results are the routing by which dispatch and combine go, any number of times.
 * ticket_p: for shunt_ep_counts(); may be NULL where counts is 0.
 */
struct shunt_ep_notify {
	size_t size;
	void *stream;
	const int32_t *per_rank;   /* of shunt_ep_layout(), as are the next two */
	const int32_t *per_expert; /* NULL: the counts of local experts are 0 */
	const uint8_t *in_rank;
	int32_t tokens;
	int32_t experts;      /* (=) */
	int32_t alignment;    /* to a multiple of which each expert's count is rounded up, from 1 on */
	int32_t *rank_prefix; /* [nranks][nranks]: [i][j] are the rows that rank j gets of ranks 0 ... i */
	int32_t *send_row;    /* [tokens][nranks]: the token's place among this rank's rows there; -1: not sent */
	int32_t *received;    /* [1]: rows that come to this rank */
	int32_t counts;       /* 1: shunt_ep_counts() will be asked; not in a capture, where -EBUSY says so */
};
SHUNT_API int shunt_ep_notify(struct shunt_ep *group, const struct shunt_ep_notify *call, uint64_t *ticket_p);
/*
 * Waits on the host until the notify has run; once for each ticket. rows_p: what `received` has. experts: host, [local
 * experts], the rounded counts; NULL: not wanted. -EINVAL: there is no such ticket.
 */
SHUNT_API int shunt_ep_counts(struct shunt_ep *group, uint64_t ticket, int32_t *rows_p, int32_t *experts);

/*
 * Rows come to the outputs by source rank, then source token. If a rank gets more rows than its capacity, none is
 * written behind it, and the group is broken on all ranks with -EOVERFLOW, or the rows are left out (SHUNT_EP_DROP).
 */
struct shunt_ep_dispatch {
	size_t size;
	void *stream;
	const int32_t *rank_prefix; /* of shunt_ep_notify(), as are the next two */
	const int32_t *send_row;
	const int32_t *received;
	const void *x;      /* [tokens] rows */
	int64_t row_bytes;  /* (=) any number from 1 on */
	const void *scales; /* [tokens][nscales] of 4 bytes, any type, with strides in elements */
	int32_t nscales;    /* (=) 0: none */
	int64_t scale_token_stride, scale_stride;
	const int64_t *topk_idx;   /* [tokens][topk] */
	const float *topk_weights; /* [tokens][topk]; NULL: zeros */
	int32_t tokens;
	int32_t topk;             /* (=) 0: topk_idx and weights do not travel */
	int32_t experts;          /* (=) */
	int32_t blocks;           /* (=) 0: Shunt decides. Results do not depend on it */
	int32_t capacity;         /* rows of the outputs */
	int32_t pad;              /* 1: recv_topk_idx is -1 from the last row to the capacity */
	void *recv_x;             /* [capacity] rows */
	void *recv_scales;        /* [capacity][nscales] */
	int64_t *recv_topk_idx;   /* [capacity][topk]: local experts; -1 where the expert is another rank's */
	float *recv_topk_weights; /* [capacity][topk]: 0 where the expert is another rank's; NULL: not wanted */
	int32_t *src_idx;         /* [capacity]: the token on its source rank, for combine; NULL: not wanted */
};
SHUNT_API int shunt_ep_dispatch(struct shunt_ep *group, const struct shunt_ep_dispatch *call);

/*
 * out: (bias[0] + bias[1]) + row of rank 0 + row of rank 1 ... in float32, rounded once. A token that went nowhere gets
 * the biases, or zeros. out_weights: the weights of its rows, added in the same order.
 */
struct shunt_ep_combine {
	size_t size;
	void *stream;
	const int32_t *rank_prefix, *send_row; /* as at dispatch */
	const int32_t *src_idx;                /* of dispatch */
	const void *x;                         /* [rows][hidden], in the order of the dispatched rows */
	int32_t dtype;                         /* (=) NCCL's number: 6 float16, 7 float32, 9 bfloat16 */
	int32_t rows;                          /* of x; those that are more than came are not looked at */
	int32_t hidden;                        /* (=) */
	int32_t tokens;                        /* as at dispatch */
	int32_t topk;                          /* (=) 0: no weights */
	int32_t blocks;                        /* (=) 0: Shunt decides. Results do not depend on it */
	const float *topk_weights;             /* [rows][topk] */
	const void *bias[2];                   /* [tokens][hidden], or NULL */
	void *out;                             /* [tokens][hidden] */
	float *out_weights;                    /* [tokens][topk] */
};
SHUNT_API int shunt_ep_combine(struct shunt_ep *group, const struct shunt_ep_combine *call);

/* ---- low latency mode: a fixed capacity, without counts on the host */

enum { SHUNT_EP_SEND = 1, SHUNT_EP_RECEIVE = 2 }; /* phases of a call */
/*
 * Form of the received rows. FP8: bfloat16 is cast to e4m3, with a float32 scale for 128 elements; FP8_ROUND: scales
 * are powers of two; FP8_UE8M0: these as their exponents, four to a word, the first in its lowest byte. hidden is a
 * multiple of 128 then, with UE8M0 of 512.
 */
enum { SHUNT_EP_AS_IS, SHUNT_EP_FP8, SHUNT_EP_FP8_ROUND, SHUNT_EP_FP8_UE8M0 };

/*
 * The slots of a local expert are filled by source rank, then source token; a token that names an expert twice has one
 * slot there, so [nranks * max_tokens] slots always suffice. What is behind the last slot stays as it is.
 *
 * A call that only sends is completed by the same call with RECEIVE alone, on any stream; which call that is, recv_x
 * tells (of combine: out). Two calls of a kind may be under way, in any order. x may be changed after the send phase.
 */
struct shunt_ep_ll_dispatch {
	size_t size;
	void *stream;
	uint32_t phases;         /* SHUNT_EP_SEND, SHUNT_EP_RECEIVE, or both */
	int32_t form;            /* (=) SHUNT_EP_AS_IS ... */
	const void *x;           /* [tokens][hidden] of 2 bytes; cast: bfloat16 */
	const int64_t *topk_idx; /* [tokens][topk]; -1: no expert. Another value breaks the group: -EINVAL */
	int32_t tokens;          /* of this rank, up to max_tokens */
	int32_t max_tokens;      /* (=) up to 1024 */
	int32_t hidden;          /* (=) a multiple of 8, up to 16384 */
	int32_t topk;            /* (=) */
	int32_t experts;         /* (=) a multiple of the number of ranks */
	void *recv_x;            /* [local experts][nranks * max_tokens][hidden], 2 bytes or, cast, 1 */
	void *recv_scales;       /* [local experts][hidden / 128, UE8M0: 512][nranks * max_tokens] of 4 bytes */
	int32_t *count;          /* [local experts] */
	int32_t *src_idx;        /* [local experts][nranks * max_tokens]: token on its source rank */
	int64_t *ranges;         /* [local experts][nranks]: slots of a source, begin << 32 | count */
	int16_t *routing;        /* [nranks][max_tokens][topk]: all ranks' topk_idx, for combine */
	int32_t *stats;          /* [local experts]: count is added; or NULL */
	int64_t *wait_ns;        /* [nranks]: time until the rank's first data came is added; or NULL */
	int32_t blocks;          /* of the launch, at most; 0: Shunt decides */
};
SHUNT_API int shunt_ep_ll_dispatch(struct shunt_ep *group, const struct shunt_ep_ll_dispatch *call);

/*
 * out: the sum over k, in order, of weight times row in float32, each product rounded before it is added; rounded once.
 * Places with -1 are left out, and rows of masked ranks.
 */
struct shunt_ep_ll_combine {
	size_t size;
	void *stream;
	uint32_t phases;
	int32_t dtype;                             /* (=) NCCL's number: 6 float16, 9 bfloat16 */
	int32_t tokens;                            /* as at dispatch */
	int32_t max_tokens, hidden, topk, experts; /* (=) as at dispatch */
	const void *x;                             /* [local experts][nranks * max_tokens][hidden] */
	const int32_t *src_idx;                    /* of dispatch, as are the next two */
	const int64_t *ranges;
	const int16_t *routing;
	const int64_t *topk_idx;   /* [tokens][topk], as at dispatch */
	const float *topk_weights; /* [tokens][topk] */
	void *out;                 /* [tokens][hidden] */
	int64_t *wait_ns;          /* [nranks]: time until the rank's last row came is added; or NULL */
	int32_t blocks;            /* of the launch, at most; 0: Shunt decides */
};
SHUNT_API int shunt_ep_ll_combine(struct shunt_ep *group, const struct shunt_ep_ll_combine *call);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
