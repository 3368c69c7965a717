/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_COLL_H
#define SHUNT_BASE_COLL_H
/* A collective call after validation, and the names of its kinds, types, operators and reasons. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shunt_kind {
	SHUNT_ALLREDUCE,
	SHUNT_REDUCE,
	SHUNT_BROADCAST,
	SHUNT_ALLGATHER,
	SHUNT_REDUCESCATTER,
	SHUNT_ALLTOALL,
	SHUNT_GATHER,
	SHUNT_SCATTER,
	SHUNT_SEND,
	SHUNT_RECV,
	SHUNT_NKINDS,
};

/* Most ranks of a communicator that Shunt serves. */
#define SHUNT_MAX_RANKS 8

/* Data types have ncclDataType_t's values. */
enum shunt_dtype {
	SHUNT_I8,
	SHUNT_U8,
	SHUNT_I32,
	SHUNT_U32,
	SHUNT_I64,
	SHUNT_U64,
	SHUNT_F16,
	SHUNT_F32,
	SHUNT_F64,
	SHUNT_BF16,
	SHUNT_F8E4M3,
	SHUNT_F8E5M2,
	SHUNT_NDTYPES,
};

/* The first five have ncclRedOp_t's values; PREMUL stands for every user-defined operator. */
enum shunt_redop { SHUNT_SUM, SHUNT_PROD, SHUNT_MAX, SHUNT_MIN, SHUNT_AVG, SHUNT_PREMUL, SHUNT_NREDOPS };

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
	int min_ctas, max_ctas; /* of this call; 0: no limit */
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
	SHUNT_REASON_CONFIG,    /* the call's configuration asks for NCCL */
	SHUNT_REASON_SELECTOR,  /* the program's plan selector asks for NCCL */
	SHUNT_REASON_COMM,      /* the communicator is forward-only */
	SHUNT_REASON_ONE_RANK,  /* the communicator has one rank */
	SHUNT_REASON_UNALIGNED, /* the parts are large, and not all begin at a multiple of 16 bytes */
	SHUNT_NREASONS,
};

/* True for a message between two ranks; root is the peer. */
static inline bool shunt_kind_is_p2p(enum shunt_kind kind)
{
	return kind == SHUNT_SEND || kind == SHUNT_RECV;
}

/* True if the kind reduces. For other kinds the operator has no meaning. */
static inline bool shunt_kind_reduces(enum shunt_kind kind)
{
	return kind == SHUNT_ALLREDUCE || kind == SHUNT_REDUCE || kind == SHUNT_REDUCESCATTER;
}

extern const uint8_t shunt_dtype_bytes[SHUNT_NDTYPES];
/* Bytes of `count` elements: of the message, or of one rank's part of it, as NCCL counts for the kind. */
static inline uint64_t shunt_coll_bytes(const struct shunt_coll *coll)
{
	return (uint64_t)coll->count * shunt_dtype_bytes[coll->dtype];
}

/* True if [a, a + a_bytes) and [b, b + b_bytes) overlap. */
static inline bool shunt_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

const char *shunt_kind_name(enum shunt_kind kind); /* "allreduce" */
/* Compares names without regard to case, spaces and underscores: all_reduce and AllReduce equal allreduce. */
bool shunt_names_equal(const char *text, size_t bytes, const char *name);
int shunt_kind_find(const char *text, size_t bytes); /* -1: no such kind */
bool shunt_kind_has_root(enum shunt_kind kind);
/* True if the send or the receive buffer consists of one part per rank, one after the other. */
bool shunt_kind_has_parts(enum shunt_kind kind);
const char *shunt_dtype_name(enum shunt_dtype dtype); /* "float16" */
/* 1 / n, rounded to nearest even, as the bits of a floating-point type. */
uint64_t shunt_dtype_reciprocal(enum shunt_dtype dtype, int n);
const char *shunt_redop_name(enum shunt_redop redop); /* "sum" */
const char *shunt_reason_name(enum shunt_reason reason);
#endif
