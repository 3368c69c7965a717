/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_COLL_H
#define SHUNT_BASE_COLL_H
/* A collective call as a value: what the entry point saw, after validation. */
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

/* Ranks of a communicator that Shunt takes. */
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

/* The first five have ncclRedOp_t's values; PREMUL stands for every operator that the user made. */
enum shunt_redop { SHUNT_SUM, SHUNT_PROD, SHUNT_MAX, SHUNT_MIN, SHUNT_AVG, SHUNT_PREMUL, SHUNT_NREDOPS };

struct shunt_coll {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	int root; /* of SEND and RECV: the peer */
	const void *send;
	void *recv;
	size_t count;    /* elements, as NCCL counts them for this kind */
	uint64_t scalar; /* PREMUL: the value's bits in dtype, or the device address that holds it */
	bool scalar_on_device;
	int min_ctas, max_ctas; /* of this call; 0: no limit */
	void *stream;
};

/* Groups of no more calls than this need no memory of their own on their way: an all-to-all of 8 ranks. */
#define SHUNT_INLINE_CALLS 16

/* Why a call went to the real NCCL. Order is free; names in coll.c. */
enum shunt_reason {
	SHUNT_REASON_NONE,      /* it did not */
	SHUNT_REASON_KIND,      /* no kernel for this collective */
	SHUNT_REASON_SIZE,      /* NCCL is the faster one at this size */
	SHUNT_REASON_FORCED,    /* SHUNT_FORCE_NCCL */
	SHUNT_REASON_NCCL_ENV,  /* the user chose NCCL's algorithm or forbade peer access */
	SHUNT_REASON_CONFIG,    /* the call's own configuration asks for what we do not do */
	SHUNT_REASON_SELECTOR,  /* the program's selector of plans says so */
	SHUNT_REASON_COMM,      /* the communicator is forward-only */
	SHUNT_REASON_ONE_RANK,  /* a communicator of one rank */
	SHUNT_REASON_UNALIGNED, /* large parts that do not all begin at a multiple of 16 bytes */
	SHUNT_NREASONS,
};

/* A message: of two ranks, root is the other one. */
static inline bool shunt_kind_is_p2p(enum shunt_kind kind)
{
	return kind == SHUNT_SEND || kind == SHUNT_RECV;
}

/* Else the operator means nothing. */
static inline bool shunt_kind_reduces(enum shunt_kind kind)
{
	return kind == SHUNT_ALLREDUCE || kind == SHUNT_REDUCE || kind == SHUNT_REDUCESCATTER;
}

extern const uint8_t shunt_dtype_bytes[SHUNT_NDTYPES];
/* What NCCL's count stands for: of the message, or of one rank's part of it. */
static inline uint64_t shunt_coll_bytes(const struct shunt_coll *coll)
{
	return (uint64_t)coll->count * shunt_dtype_bytes[coll->dtype];
}

/* Do so many bytes from a place on, and from another, share any? */
static inline bool shunt_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

const char *shunt_kind_name(enum shunt_kind kind); /* "allreduce" */
/* Are they one name? Case, space and underscores do not count: all_reduce and AllReduce are allreduce. */
bool shunt_names_equal(const char *text, size_t bytes, const char *name);
int shunt_kind_find(const char *text, size_t bytes); /* -1: there is none of this name */
bool shunt_kind_has_root(enum shunt_kind kind);
/* Does one side of it have a part for each rank, one behind the other? */
bool shunt_kind_has_parts(enum shunt_kind kind);
const char *shunt_dtype_name(enum shunt_dtype dtype); /* "float16" */
/* 1 / n, rounded to nearest even, as the bits of a floating-point type. */
uint64_t shunt_dtype_reciprocal(enum shunt_dtype dtype, int n);
const char *shunt_redop_name(enum shunt_redop redop); /* "sum" */
const char *shunt_reason_name(enum shunt_reason reason);
#endif
