/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Expert parallel groups: the memory of a rank, which all ranks map, and the arguments of the kernels. Shared by host
 * and kernels; plain C.
 *
 *   struct shunt_ctrl | struct shunt_net_ctrl | struct shunt_ep_ctrl | normal mode | low latency mode
 *
 * Low latency mode. A call has a number, which counts the calls of its kind (dispatch or combine) on this group from 1,
 * in device memory, so that graphs count on. Call i uses set i % 2 of its kind. A rank's memory has, in units of
 * shunt_kargs_ep_ll.unit bytes, which hold what one rank sends in a dispatch:
 *
 *   dispatch  [set][source]: a head, then a row for each token of the source
 *   combine   [set]: `most_topk` units of rows [token][place among the token's experts]; SHUNT_EP_SUM=rank: a row of
 *             a rank is at the first place with an expert of that rank
 *
 * SHUNT_EP_SUM=rank has more behind that, [set][source][token]: a line with the weights of a token of the source.
 *
 * All of it is lines of 128 bytes, 120 of data and then the number of the call, which is never used again. So calls of
 * other sizes may follow each other, and what an earlier call left is never taken for new.
 *
 * Normal mode. Its calls (notify, dispatch, combine) have numbers of their own. A channel is a warp that sends and a
 * warp that receives or adds, the same on all ranks. A rank's memory has, for each call anew:
 *
 *   heads  [channel][source]: a line
 *   notify [source]: the counts, as lines
 *   rings  [channel][source without this rank][slot]: a row, as lines
 *
 * A line's flag is the number of the call, and in a ring, in its lower bits, which row it is: in a dispatch the step of
 * the ring, in a combine the token, each plus 1. A rank sends to a peer when the peer has ended the call before, so
 * each call may divide the memory in its own way.
 *
 * A row on the wire is words of 8 bytes, then the row itself: {row, token}, nothing, {expert, weight} for each of the
 * token's places, the scales by two; up to a multiple of 16 bytes.
 *
 * Over hosts the ranks of a host do all this among themselves. Data for other hosts goes through page-locked memory
 * (kernels/net_rings.h), which has, in the same units, behind its words:
 *
 *   dispatch  [set][source, by its connection here]: a head, then the rows of the tokens that name this rank, in order
 *   combine   [set]: `most_topk` units of rows, in the order of their expert, then token; in a group with masks
 *             [set][source]: the same of one source, behind a head
 *   stages    SHUNT_EP_STAGE_UNITS units, from which this rank sends
 *
 * and of normal mode a part for each connection, of what comes, and as many of what this rank sends, in the same
 * places:
 *
 *   heads  [channel]
 *   notify the counts, or
 *   rings  [channel][slot]: a row
 *
 * There a row has no flags: a signal says that all of a call has come from a rank. Signals are counted for ever, so the
 * count for call i of a set is known, and graphs count on. In normal mode a rank counts the messages that it has taken.
 *
 * An ordinal is a rank as its kernels number it: the ranks of its host come first, by their index there, then those of
 * other hosts by connection. On one host it is the rank.
 */
#include <stddef.h>
#include <stdint.h>
#include "kernels/kargs.h"
#include "kernels/net_rings.h"
#ifndef __cplusplus
#include <assert.h>
#endif

#define SHUNT_EP_MAX_LL_TOKENS 1024u /* of a rank in a low latency call */
#define SHUNT_EP_MAX_LL_HIDDEN 16384u
#define SHUNT_EP_LL_BLOCKS (2 * SHUNT_MAX_BLOCKS) /* of a low latency launch, of half the threads */
#define SHUNT_EP_MAX_PLACES 16u                   /* among the experts of a token */
#define SHUNT_EP_LINE 128u
#define SHUNT_EP_LINE_DATA 120u
#define SHUNT_EP_WEIGHTS_BYTES(n) ((uint64_t)2 * (n) * SHUNT_EP_MAX_LL_TOKENS * SHUNT_EP_LINE)

enum { SHUNT_EP_DISPATCH, SHUNT_EP_COMBINE, SHUNT_EP_KINDS };
/* Kinds of calls of normal mode. */
enum { SHUNT_EP_NOTIFY, SHUNT_EP_NORMAL_DISPATCH, SHUNT_EP_NORMAL_COMBINE };
/* The form of received rows, as in shunt/ep.h. */
enum { SHUNT_EP_FORM_AS_IS, SHUNT_EP_FORM_FP8, SHUNT_EP_FORM_FP8_ROUND, SHUNT_EP_FORM_FP8_UE8M0 };

/* Of one kind of low latency calls. */
struct shunt_ep_calls {
	uint64_t sent;   /* the number of the last call */
	uint64_t blocks; /* of the running launch, that have ended */
	/* Of each set: the call that was sent and is not received yet. key 0: none. */
	struct {
		uint64_t key, number;
	} under_way[2];
	/*
	 * [set][peer]: the last call whose data there the peer has read. One for each set: programs may receive calls
	 * in another order than they sent them, and a single number would go back then.
	 */
	uint64_t read[2][SHUNT_KARGS_MAX_RANKS];
	/* Over hosts, by ordinal: twice the number of a call, and 1 if the rank's data did not come. For a launch's
	 * blocks. */
	uint64_t came[SHUNT_NET_MAX_RANKS];
};

#define SHUNT_EP_CHANNELS (SHUNT_MAX_BLOCKS * SHUNT_MAX_THREADS / 64) /* two warps each */

#define SHUNT_EP_FAR_CHANNELS 16u /* of a call of normal mode over hosts */

/* Of normal mode. */
struct shunt_ep_normal {
	uint64_t number;  /* of the last call */
	uint64_t blocks;  /* of the running launch, that have ended */
	uint64_t refused; /* the call in which this rank has found that calls differ, or that a rank has no room */
	/* Written by peers: the last call that the peer has ended; and flags of the rows that it has read. */
	uint64_t read[SHUNT_KARGS_MAX_RANKS];
	uint64_t taken[SHUNT_KARGS_MAX_RANKS][SHUNT_EP_CHANNELS];
};

/* Written by this rank alone, except for what peers have read. */
struct shunt_ep_ctrl {
	uint32_t mask[SHUNT_KARGS_MAX_RANKS]; /* 1: this rank goes on without that one */
	struct shunt_ep_calls calls[SHUNT_EP_KINDS];
	/* With masks: twice the number of a call, and 1 if the rank did not come to it. For the blocks of a launch. */
	uint64_t status[SHUNT_KARGS_MAX_RANKS];
	uint64_t waited[SHUNT_EP_LL_BLOCKS][SHUNT_KARGS_MAX_RANKS]; /* ns, by a block of a launch for a rank's data */
	struct shunt_ep_normal normal;
	uint64_t staged; /* over hosts: triggers before the end of the last launch that sent from the stages */
	/* Of normal mode over hosts, by channel and connection: messages that this rank has taken. */
	uint64_t far_taken[SHUNT_EP_FAR_CHANNELS][SHUNT_NET_MAX_RANKS];
	/*
	 * With masks over hosts, by ordinal: `mask` for the ranks of other hosts; and how often this rank has raised
	 * the signal of a set there, as a masked rank gets none.
	 */
	uint32_t far_mask[SHUNT_NET_MAX_RANKS];
	uint64_t far_sent[SHUNT_EP_KINDS][2][SHUNT_NET_MAX_RANKS];
};

/* Page-locked, behind the rank's host_ctrl. By ordinal: not 0: a kernel has masked that rank of another host. */
struct shunt_ep_words {
	uint64_t masked[SHUNT_NET_MAX_RANKS];
};

/* Byte offsets in each rank's memory. */
#define SHUNT_EP_CTRL_AT SHUNT_NET_LOCAL_AT
#define SHUNT_EP_CTRL_BYTES (64u << 10)
#define SHUNT_EP_NORMAL_AT ((uint64_t)SHUNT_EP_CTRL_AT + SHUNT_EP_CTRL_BYTES)

/* Of a flag of normal mode: bits below the number of the call. */
#define SHUNT_EP_STEP_BITS 24
#define SHUNT_EP_MAX_TOKENS ((1u << SHUNT_EP_STEP_BITS) - 2)

/* What every channel tells every peer first in a call of normal mode. */
#define SHUNT_EP_SAME 6u
struct shunt_ep_head {
	/*
	 * Must be alike on all ranks: kind, blocks, bytes of a row (combine: elements), topk, scales (combine: dtype),
	 * experts. 0 where a kind has none.
	 */
	uint32_t same[SHUNT_EP_SAME];
	uint32_t rows;   /* dispatch: that come on the channel */
	uint32_t tokens; /* of the rank */
	uint32_t room;   /* rows of the outputs of a dispatch, or of the input of a combine */
	uint32_t pad[3];
};

/* Bytes that a notify of n ranks may need. */
#define SHUNT_EP_NOTIFY_BYTES(n) \
	((uint64_t)(n) * (SHUNT_EP_LINE + shunt_ep_wire(4 * ((uint64_t)(n) + SHUNT_EP_ALL_EXPERTS / (uint64_t)(n)))))
#define SHUNT_EP_ALL_EXPERTS 32767u

/* Counts for the host, in page-locked memory behind the rank's struct shunt_ep_words: each ticket's, in turns. */
#define SHUNT_EP_TICKETS 8u
struct shunt_ep_counts {
	uint64_t ticket; /* written last */
	int32_t rows, pad;
	int32_t experts[];
};
#define SHUNT_EP_COUNTS_BYTES(n) (16 + 4 * (((uint64_t)SHUNT_EP_ALL_EXPERTS / (uint64_t)(n) + 3) / 4 * 4))

/*
 * The 16 bytes at the beginning of a head: the values that must be alike on all ranks, and the number of tokens. The
 * experts of max_tokens x topk places follow as int16_t, -1 for none.
 */
#define SHUNT_EP_HEAD_BYTES 16u
#define SHUNT_EP_VALUES(max_tokens, hidden, experts, topk, form) \
	((uint64_t)(max_tokens) | (uint64_t)(hidden) << 16 | (uint64_t)(experts) << 32 | (uint64_t)(topk) << 48 | \
	    (uint64_t)(form) << 56)

/* Whole lines for so many bytes, in bytes. */
static inline uint64_t shunt_ep_wire(uint64_t bytes)
{
	return (bytes + SHUNT_EP_LINE_DATA - 1) / SHUNT_EP_LINE_DATA * SHUNT_EP_LINE;
}

struct shunt_kargs_ep_ll {
	struct shunt_kargs k; /* send: x; recv: the rows, or the sums */
	uint64_t ll_at, unit; /* in each rank's memory: the low latency part, and see above */
	uint64_t weights_at;  /* SHUNT_EP_SUM=rank: the weights */
	uint64_t key;         /* not 0; by which a receive phase finds the call that a send phase began */
	const int64_t *topk_idx;
	const float *topk_weights;
	void *recv_scales;
	int32_t *count, *src_idx;
	int64_t *ranges;
	int16_t *routing;
	int32_t *stats;   /* or NULL */
	int64_t *wait_ns; /* or NULL */
	uint32_t tokens, max_tokens, hidden, experts;
	uint16_t topk;
	uint8_t most_topk; /* of any call of the group */
	uint8_t form;
	uint32_t row_bytes; /* of a row on the wire, without flags; combine: of an expert's row */
	uint32_t scales;    /* of 4 bytes, in a row; 0: none */
	/*
	 * Of a launch of both phases: so many blocks send, and the others receive meanwhile. 0: all blocks send, then
	 * receive.
	 */
	uint32_t senders;
	uint32_t pad;
};

/* Of normal mode. `send` is x, or what is cast of it; `recv` recv_x or out. */
struct shunt_kargs_ep {
	struct shunt_kargs k;
	uint64_t rings_at;            /* in each rank's memory */
	uint32_t slot_bytes, slots;   /* of a ring */
	uint32_t same[SHUNT_EP_SAME]; /* as in a head */
	uint32_t room, tokens;        /* the same */
	uint32_t front;               /* bytes in front of a row on the wire */
	uint32_t row_bytes;           /* of the program's rows */
	uint32_t topk, scales, experts;
	uint32_t alignment;
	const int32_t *rank_prefix_in, *send_row_in;
	int32_t *rank_prefix, *send_row, *received;
	const int64_t *topk_idx;
	const float *topk_weights;
	const void *scale;
	int64_t scale_token_stride, scale_stride;
	void *recv_scales;
	int64_t *recv_topk_idx;
	float *recv_topk_weights;
	int32_t *src_idx;
	const void *bias[2];
	int32_t *per_rank, *per_expert;
	uint8_t *in_rank;
	uint64_t counts_at; /* from the rank's host_ctrl on; 0: no counts */
	uint64_t ticket;
};

static_assert(sizeof(struct shunt_kargs_ep) <= 512, "a launch's arguments are few");
static_assert(sizeof(struct shunt_ep_head) == 48, "three packs of a line");

/*
 * Signals between hosts: channels of a connection. The first ones of a call's data, by kind and set; then of the
 * credits for them.
 */
#define SHUNT_EP_SIGNAL(kind, number) ((uint32_t)((kind) * 2 + ((number) & 1)))
#define SHUNT_EP_CREDIT(kind, number) (2 * SHUNT_EP_KINDS + SHUNT_EP_SIGNAL(kind, number))
#define SHUNT_EP_BARRIER_SIGNAL (4 * SHUNT_EP_KINDS)
/* Of normal mode: messages of a channel; rows of it that were taken; calls that have ended. */
#define SHUNT_EP_FAR_DATA(channel) (SHUNT_EP_BARRIER_SIGNAL + 1 + (channel))
#define SHUNT_EP_FAR_CREDIT(channel) (SHUNT_EP_FAR_DATA(SHUNT_EP_FAR_CHANNELS) + (channel))
#define SHUNT_EP_FAR_END SHUNT_EP_FAR_CREDIT(SHUNT_EP_FAR_CHANNELS)
/*
 * Units of a set of combines from other hosts. A rank that is masked may still put what it had begun, so with masks
 * each source has a place of its own.
 */
#define SHUNT_EP_FAR_PLACES(masks, sources, most_topk) \
	((masks) ? (uint64_t)(sources) * (most_topk) : (uint64_t)(most_topk))
/* Of how many calls a set has had, call `number` included. */
#define SHUNT_EP_SET_CALLS(number) (((number) + 1) / 2)

#define SHUNT_EP_STAGE_UNITS 16u
#define SHUNT_EP_STAGE_ROWS 16u /* of a stage, at most: that many rows are put at once */

struct shunt_ep_hosts {
	uint8_t ordinal_of[SHUNT_NET_MAX_RANKS]; /* by rank */
	uint8_t rank_of[SHUNT_NET_MAX_RANKS];    /* by ordinal */
	uint8_t host_of[SHUNT_NET_MAX_RANKS];    /* by rank */
	uint16_t rank, nranks;                   /* in the group */
	uint16_t sources;                        /* units of a set of dispatches */
	uint16_t nhosts;
};

struct shunt_kargs_ep_hosts {
	struct shunt_kargs_ep_ll ll; /* rank, nranks and peer are those of the host */
	struct shunt_ep_hosts hosts;
};

/* Of normal mode over hosts. Bytes of heads in a part. */
#define SHUNT_EP_FAR_HEADS ((uint64_t)SHUNT_EP_FAR_CHANNELS * sizeof(struct shunt_ep_head))
struct shunt_kargs_ep_far {
	struct shunt_kargs_ep ep; /* rank, nranks and peer are those of the host */
	struct shunt_ep_hosts hosts;
	uint64_t at, part;    /* in the page-locked memory: the parts of what comes, and their bytes */
	uint32_t slot, slots; /* of a ring: bytes, and how many */
};

static_assert(SHUNT_EP_FAR_END < SHUNT_NET_SIGNAL_CHANNELS, "a group has no rings, whose channels these are");
static_assert(sizeof(struct shunt_kargs_ep_far) <= 704, "a launch's arguments are few");
static_assert(sizeof(struct shunt_ctrl) <= SHUNT_CTRL_BYTES, "the control words of a group follow");
static_assert(sizeof(struct shunt_ep_ctrl) <= SHUNT_EP_CTRL_BYTES, "the rings follow");
static_assert(offsetof(struct shunt_ep_ctrl, calls) % 8 == 0, "words of 8 bytes");
static_assert(SHUNT_EP_NORMAL_AT % SHUNT_EP_LINE == 0, "lines are aligned");
static_assert(sizeof(struct shunt_kargs_ep_hosts) <= 512, "a launch's arguments are few");
static_assert(SHUNT_EP_MAX_LL_HIDDEN < 1 << 16 && SHUNT_EP_MAX_LL_TOKENS < 1 << 16, "they fit into SHUNT_EP_VALUES");
