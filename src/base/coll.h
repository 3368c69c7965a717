/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A collective call after validation, and what is known of its kind, type and operator: rows of collectives.def,
 * dtypes.def and ops.def.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/collectives.def"
#include "base/dtypes.def"
#include "base/ops.def"

/* The columns of collectives.def. */
enum shunt_kind_ranks {
	SHUNT_RANKS_ALL,
	SHUNT_RANKS_FROM_ROOT,
	SHUNT_RANKS_TO_ROOT,
	SHUNT_RANKS_TO_PEER,
	SHUNT_RANKS_FROM_PEER
};
enum shunt_kind_parts { SHUNT_PARTS_NONE, SHUNT_PARTS_ONE, SHUNT_PARTS_EACH };
enum shunt_side { SHUNT_SIDE_SEND, SHUNT_SIDE_RECV };

#define SHUNT_ENUMERATOR(id, ...) SHUNT_##id,
enum shunt_kind { SHUNT_COLLECTIVE_LIST(SHUNT_ENUMERATOR) SHUNT_NKINDS };
/* Data types have ncclDataType_t's values. Formats follow, which only calls that reduce have. */
enum shunt_dtype {
	SHUNT_DTYPE_LIST(SHUNT_ENUMERATOR) SHUNT_NDTYPES,
	SHUNT_LAST_DTYPE = SHUNT_NDTYPES - 1,
	SHUNT_FORMAT_LIST(SHUNT_ENUMERATOR) SHUNT_NFORMATS
};
/* The operators before PREMUL have ncclRedOp_t's values; PREMUL stands for every user-defined operator. */
enum shunt_redop { SHUNT_REDOP_LIST(SHUNT_ENUMERATOR) SHUNT_NREDOPS };
#undef SHUNT_ENUMERATOR

/* Most ranks of a communicator that Shunt serves. */
#define SHUNT_MAX_RANKS 8

/* The CTA policy of one call; 0: the communicator's. */
enum shunt_cta_policy {
	SHUNT_CTAS_OWN = 1, /* the call has one of its own: the bits below, or neither of them for NCCL's default */
	SHUNT_CTAS_FEW = 2, /* NCCL_CTA_POLICY_EFFICIENCY */
	SHUNT_CTAS_ZERO = 4 /* NCCL_CTA_POLICY_ZERO */
};

struct shunt_algo;

struct shunt_coll {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	int root; /* SEND, RECV: the peer */
	const void *send;
	void *recv;
	size_t count;    /* elements, as NCCL counts them for this kind */
	uint64_t scalar; /* PREMUL: the value's bits in dtype, or the device address that holds it */
	bool scalar_on_device;
	int min_ctas, max_ctas;        /* of this call; 0: no limit */
	uint8_t cta_policy;            /* of this call: bits of enum shunt_cta_policy */
	bool only_algo;                /* no other algorithm than `algo` */
	const struct shunt_algo *algo; /* the algorithm that the call's configuration asks for; NULL: none */
	/* On all ranks or none: an event to record when all blocks of the call's first launch have begun; or NULL. */
	void *launched;
	void *stream;
};

/* A group of at most this many calls needs no allocation. 16: the sends and receives of an all-to-all among 8 ranks. */
#define SHUNT_INLINE_CALLS 16

/* Reason why a call is forwarded to the real NCCL. The order is free; coll.c has the names. */
enum shunt_reason {
	SHUNT_REASON_NONE,      /* not forwarded */
	SHUNT_REASON_KIND,      /* no kernel for this collective */
	SHUNT_REASON_SIZE,      /* NCCL is faster at this size */
	SHUNT_REASON_FORCED,    /* SHUNT_FORCE_NCCL or SHUNT_ALGO */
	SHUNT_REASON_NCCL_ENV,  /* NCCL_ALGO or NCCL_PROTO asks for NCCL's algorithm */
	SHUNT_REASON_CONFIG,    /* the call's configuration asks for NCCL, or for something that Shunt cannot do */
	SHUNT_REASON_SELECTOR,  /* the program's plan selector asks for NCCL */
	SHUNT_REASON_COMM,      /* the communicator is forward-only */
	SHUNT_REASON_ONE_RANK,  /* the communicator has one rank */
	SHUNT_REASON_LINK,      /* the algorithm is not right on what joins the ranks */
	SHUNT_REASON_HOSTS,     /* the communicator spans hosts, and NCCL does such calls there */
	SHUNT_REASON_UNALIGNED, /* the parts are large, and not all begin at a multiple of 16 bytes */
	SHUNT_REASON_WINDOWS,   /* NCCL is faster at this size where the buffers lie in windows */
	SHUNT_REASON_UNKNOWN,   /* Shunt does not know its type, operator or root, or NCCL may not take calls yet */
	SHUNT_NREASONS,
};

/*
 * Sets of kinds and of types, a bit for each. Where a call is decided a bit is tested; elsewhere the rows below are
 * asked.
 */
#define SHUNT_KIND_BIT(id, name, long_name, function, ranks, send, recv, op, ...) \
	| (unsigned)(SHUNT_OPERATOR_##op) << SHUNT_##id
#define SHUNT_ROOT_BIT(id, name, long_name, function, ranks, ...) \
	| \
	    (unsigned)(SHUNT_RANKS_##ranks == SHUNT_RANKS_FROM_ROOT || SHUNT_RANKS_##ranks == SHUNT_RANKS_TO_ROOT) \
	        << SHUNT_##id
#define SHUNT_P2P_BIT(id, name, long_name, function, ranks, ...) \
	| (unsigned)(SHUNT_RANKS_##ranks >= SHUNT_RANKS_TO_PEER) << SHUNT_##id
#define SHUNT_FLOAT_BIT(id, number, name, alias, nccl, kernel, bytes, kind, exponent, ...) \
	| (exponent ? 1u << number : 0)
#define SHUNT_SIGNED_BIT(id, number, name, alias, nccl, kernel, bytes, kind, ...) \
	| (unsigned)(SHUNT_NUMBERS_##kind == SHUNT_NUMBERS_SIGNED) << number
enum { SHUNT_OPERATOR_MOVES, SHUNT_OPERATOR_REDUCES };
enum shunt_numbers { SHUNT_NUMBERS_SIGNED, SHUNT_NUMBERS_UNSIGNED, SHUNT_NUMBERS_FLOAT, SHUNT_NUMBERS_FINITE };
enum {
	SHUNT_KINDS_REDUCE = 0 SHUNT_COLLECTIVE_LIST(SHUNT_KIND_BIT),
	SHUNT_KINDS_ROOTED = 0 SHUNT_COLLECTIVE_LIST(SHUNT_ROOT_BIT),
	SHUNT_KINDS_P2P = 0 SHUNT_COLLECTIVE_LIST(SHUNT_P2P_BIT),
	SHUNT_DTYPES_FLOAT = ((1u << SHUNT_NFORMATS) - (1u << SHUNT_NDTYPES)) SHUNT_DTYPE_LIST(SHUNT_FLOAT_BIT),
	SHUNT_DTYPES_SIGNED = 0 SHUNT_DTYPE_LIST(SHUNT_SIGNED_BIT), /* integers */
};
#undef SHUNT_KIND_BIT
#undef SHUNT_ROOT_BIT
#undef SHUNT_P2P_BIT
#undef SHUNT_FLOAT_BIT
#undef SHUNT_SIGNED_BIT

/* True for a message between two ranks; root is the peer. */
static inline bool shunt_kind_is_p2p(enum shunt_kind kind)
{
	return SHUNT_KINDS_P2P >> kind & 1;
}

/* True if the kind reduces. For other kinds the operator has no meaning. */
static inline bool shunt_kind_reduces(enum shunt_kind kind)
{
	return SHUNT_KINDS_REDUCE >> kind & 1;
}

static inline bool shunt_kind_has_root(enum shunt_kind kind)
{
	return SHUNT_KINDS_ROOTED >> kind & 1;
}

static inline bool shunt_dtype_is_float(enum shunt_dtype dtype)
{
	return SHUNT_DTYPES_FLOAT >> dtype & 1;
}

/* True for an integer with a sign. */
static inline bool shunt_dtype_is_signed(enum shunt_dtype dtype)
{
	return SHUNT_DTYPES_SIGNED >> dtype & 1;
}

/* A row of collectives.def. */
struct shunt_kind_row {
	const char *name, *long_name, *function; /* "allreduce", "all_reduce", "ncclAllReduce" */
	enum shunt_kind_ranks ranks;
	enum shunt_kind_parts parts[2]; /* of each side's buffer */
	bool in_place, tuned, planned;
};
extern const struct shunt_kind_row shunt_kind_rows[SHUNT_NKINDS];

/* Parts of `count` elements in the buffer of a rank that has this side; 0: no rank has it. */
static inline uint64_t shunt_kind_parts(enum shunt_kind kind, enum shunt_side side, int nranks)
{
	enum shunt_kind_parts parts = shunt_kind_rows[kind].parts[side];

	return parts == SHUNT_PARTS_EACH ? (uint64_t)nranks : parts == SHUNT_PARTS_ONE;
}

/* The rank's part among those of a side's buffer. */
static inline uint64_t shunt_kind_part_of(enum shunt_kind kind, enum shunt_side side, int rank)
{
	return shunt_kind_rows[kind].parts[side] == SHUNT_PARTS_EACH ? (uint64_t)rank : 0;
}

/* True if the side's buffer has a part for each rank, one after the other. */
static inline bool shunt_kind_has_each(enum shunt_kind kind, enum shunt_side side)
{
	return shunt_kind_rows[kind].parts[side] == SHUNT_PARTS_EACH;
}

/* True if either buffer has a part for each rank. */
static inline bool shunt_kind_has_parts(enum shunt_kind kind)
{
	return shunt_kind_has_each(kind, SHUNT_SIDE_SEND) || shunt_kind_has_each(kind, SHUNT_SIDE_RECV);
}

/* True if a rank has the side's buffer: others may give anything for it. */
static inline bool shunt_kind_has_side(enum shunt_kind kind, enum shunt_side side, bool is_root)
{
	const struct shunt_kind_row *row = &shunt_kind_rows[kind];
	bool only_root = row->ranks == (side == SHUNT_SIDE_SEND ? SHUNT_RANKS_FROM_ROOT : SHUNT_RANKS_TO_ROOT);

	return row->parts[side] != SHUNT_PARTS_NONE && (is_root || !only_root);
}

/* True if the rank's part of the send buffer lies where its part of the receive buffer does. part: bytes of a part. */
static inline bool shunt_kind_in_place(
    enum shunt_kind kind, const void *send, const void *recv, uint64_t part, int rank)
{
	return (uintptr_t)send + shunt_kind_part_of(kind, SHUNT_SIDE_SEND, rank) * part ==
	    (uintptr_t)recv + shunt_kind_part_of(kind, SHUNT_SIDE_RECV, rank) * part;
}

/* A row of dtypes.def. */
struct shunt_dtype_row {
	const char *name, *alias;   /* "float16", "half"; alias "": none */
	uint8_t exponent, mantissa; /* bits; 0: an integer */
	bool has_infinity;
	int bias;
	enum shunt_dtype element, accumulator; /* of a float: the row of its numbers, and of those of sums */
};
extern const struct shunt_dtype_row shunt_dtype_rows[SHUNT_NFORMATS];
extern const uint8_t shunt_dtype_bytes[SHUNT_NFORMATS + 1]; /* 0 for a type that is not known */

/* True for formats: NCCL has no such type. */
static inline bool shunt_dtype_is_format(enum shunt_dtype dtype)
{
	return dtype >= SHUNT_NDTYPES;
}

/*
 * The type or format of a call: dtype is NCCL's; b15: unsigned bytes are float8 e4m3b15; accumulate: of enum
 * shunt_accumulate. -1: there is no such format.
 */
int shunt_format_of(enum shunt_dtype dtype, bool b15, int accumulate);
/* The types of a set, and the formats with their elements. */
uint32_t shunt_dtypes_with_formats(uint32_t dtypes);
/* The format of this element and accumulator, or NCCL's type; -1: there is none. */
int shunt_format_find(enum shunt_dtype element, enum shunt_dtype accumulator);

/* Bytes of `count` elements: of the message, or of one rank's part of it, as NCCL counts for the kind. */
static inline uint64_t shunt_coll_bytes(const struct shunt_coll *coll)
{
	return (uint64_t)coll->count * shunt_dtype_bytes[coll->dtype];
}

static inline bool shunt_coll_in_place(const struct shunt_coll *coll, int rank)
{
	return shunt_kind_in_place(coll->kind, coll->send, coll->recv, shunt_coll_bytes(coll), rank);
}

/* True if [a, a + a_bytes) and [b, b + b_bytes) overlap. */
static inline bool shunt_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

const char *shunt_kind_name(enum shunt_kind kind); /* "allreduce" */
/* Compares names without regard to case, spaces and underscores: all_reduce and AllReduce equal allreduce. */
bool shunt_names_equal(const char *text, size_t bytes, const char *name);
int shunt_kind_find(const char *text, size_t bytes);  /* -1: no such kind */
const char *shunt_dtype_name(enum shunt_dtype dtype); /* "float16" */
/* 1 / n, rounded to nearest even, as the bits of a floating-point type. */
uint64_t shunt_dtype_reciprocal(enum shunt_dtype dtype, int n);
const char *shunt_redop_name(enum shunt_redop redop); /* "sum" */
const char *shunt_reason_name(enum shunt_reason reason);
