/* SPDX-License-Identifier: MIT */
#pragma once
/* The meaning of a call's arguments, and their validity. The same in both modes; each says what follows. */
#include "shim/calls/coll_call.h"

/*
 * The rest of shunt_call_resolve, for operators that the program created, and for communicators whose reductions have
 * numbers of their own. A call that NCCL must not get has a type for NCCL that NCCL refuses.
 */
__attribute__((cold)) bool shunt_call_resolve_numbers(struct shunt_entry *e, struct shunt_coll_call *call);
/*
 * Fills in type, operator and scalar. False: NCCL or the communicator does not know the type, operator or root. op of a
 * collective that does not reduce is ncclSum.
 */
static inline bool shunt_call_resolve(struct shunt_entry *e, struct shunt_coll_call *call)
{
	struct shunt_coll *c = &call->coll;

	if ((unsigned)call->dtype >= SHUNT_NDTYPES || (int)call->op < 0)
		return false;
	if (c->root < 0 || c->root >= shunt_comm_nranks(e->comm))
		return false;
	c->dtype = (enum shunt_dtype)call->dtype;
	c->redop = (enum shunt_redop)call->op;
	return (int)call->op < e->plain_ops || shunt_call_resolve_numbers(e, call);
}

/*
 * No memory has room for 2^50 elements. Below that, the bytes of all parts of all ranks are below 2^56: sums of bytes
 * and addresses of 64 bits do not wrap.
 */
#define MAX_COUNT_BITS 50

/* The reason why the buffers or the count cannot be, or NULL. NCCL accepts NULL for a buffer that only the root uses.
 */
static inline const char *shunt_call_bad_buffers(struct shunt_entry *e, const struct shunt_coll *c)
{
	bool root;

	if (c->count >> MAX_COUNT_BITS)
		return "the count is larger than any memory";
	if (!c->count || (c->send && c->recv))
		return NULL;
	root = c->root == shunt_comm_rank(e->comm);
	if ((!c->send && shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, root)) ||
	    (!c->recv && shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, root)))
		return "a buffer is NULL";
	return NULL;
}

/* True: the call is dropped with success. A message without bytes is not: NCCL needs both ends if it carries it. */
static inline bool shunt_call_is_empty(const struct shunt_coll *c)
{
	return !c->count && !shunt_kind_is_p2p(c->kind);
}

enum shunt_config_outcome {
	SHUNT_CONFIG_APPLIED,
	SHUNT_CONFIG_WISHED,  /* applied, but it names only algorithms that are not Shunt's, without force */
	SHUNT_CONFIG_UNKNOWN, /* it asks for what Shunt cannot do, or is of a later version */
};

/*
 * Applies the call's configuration, if there is one. It is equal on all ranks, as NCCL demands. A profiler's tag,
 * vendor options and launch shapes that our kernels do not have (NVLS, clusters) are ignored.
 */
enum shunt_config_outcome shunt_call_apply_config(struct shunt_coll_call *call);

/* The functions below log the reason, and return the call's result. */

/* Refuses a wrong call; the open group fails, too. */
ncclResult_t shunt_call_refuse(const struct shunt_coll_call *call, const char *reason);
/* The same for a call that shunt_call_resolve() does not know. */
ncclResult_t shunt_call_refuse_types(struct shunt_entry *entry, const struct shunt_coll_call *call);
/* For a call that the real NCCL refused: says so if it had to, because of its numbers. Returns the result. */
__attribute__((cold)) ncclResult_t shunt_call_forward_failed(const struct shunt_coll *coll, ncclResult_t result);
/* For a call that our kernels declined, where there is no real NCCL. */
ncclResult_t shunt_call_declined(struct shunt_entry *entry, const struct shunt_coll *coll, enum shunt_reason reason);
