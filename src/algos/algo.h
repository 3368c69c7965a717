/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_ALGOS_ALGO_H
#define SHUNT_ALGOS_ALGO_H
/*
 * Algorithms as rows, and their selection. Selection is a pure function of values that are equal on all ranks: the scope below (agreed
 * when a communicator is set up), the kind of collective, type, operator and size. Never of pointers, alignment or stream.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/coll.h"
#include "kernels/kargs.h"
#include "kernels/kernel_list.h"

/* What selection may look at beside the call. Equal on all ranks. */
struct shunt_scope {
	int nranks;
	int max_ctas;    /* 0: no limit */
	bool sim;
	bool standalone; /* nothing to forward to: no size is declined */
};

/* How to launch a call. */
struct shunt_pick {
	const struct shunt_algo *algo;
	unsigned kernel; /* index of kernel_list.h */
	unsigned blocks, threads;
	unsigned channels; /* of a pair of ranks, where the algorithm has such */
	uint32_t flags;  /* SHUNT_K_* that follow from type and operator */
	uint64_t scalar; /* the factor, if it follows from type and operator */
};

struct shunt_algo {
	const char *name;
	const char *doc;
	enum shunt_kind kind;
	enum shunt_shape shapes[3]; /* for 2, up to 4 and up to 8 ranks */
	/* Blocks, threads and channels for a message of this size, within SHUNT_MAX_THREADS and the channels of the shape. */
	void (*geometry)(const struct shunt_scope *scope, uint64_t bytes, struct shunt_pick *pick);
	/* The rest of the arguments, and blocks and threads where ranks have different parts; NULL: nothing to add. */
	void (*fill)(const struct shunt_scope *scope, const struct shunt_coll *coll, int rank, struct shunt_pick *pick, struct shunt_kargs *args);
};

/* The kernel of an algorithm; dtype may be a signed integer. */
unsigned shunt_algo_kernel(const struct shunt_algo *algo, int nranks, enum shunt_redop redop, enum shunt_dtype dtype);
/* Does this kind of collective reduce? Else its operator means nothing. */
bool shunt_kind_reduces(enum shunt_kind kind);

/* Row i of all, or NULL. */
const struct shunt_algo *shunt_algo_row(size_t i);

/* True and *pick_p, or false and *why_p. bytes: of the message as NCCL's count x type gives it. */
bool shunt_select(const struct shunt_scope *scope, const struct shunt_coll *coll, struct shunt_pick *pick_p, enum shunt_why *why_p);

/* For tools: the name of the path ("oneshot", ..., "nccl"). */
const char *shunt_select_name(const struct shunt_scope *scope, enum shunt_kind kind, enum shunt_dtype dtype, enum shunt_redop redop,
    uint64_t bytes, enum shunt_why *why_p);

/* Checks SHUNT_ALGO once and warns about what it cannot read. */
void shunt_select_check(void);
#endif
