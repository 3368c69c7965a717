/* SPDX-License-Identifier: MIT */
/* Collectives and point-to-point: Shunt's if the communicator has a kernel for the call, else the real NCCL's. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "base/config.h"
#include "base/log.h"
#include "shim/mode.h"
#include "shim/calls/nvtx.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/real_group.h"
#include "shim/overlay/overlay.h"
#include "shim/overlay/pending_child.h"
#include "shim/real/real.h"
#include "shim/nccl/result.h"
#include "shim/standalone/standalone.h"

#define SAME_TYPE(id, number, name, alias, nccl, ...) \
	_Static_assert((int)nccl == (int)SHUNT_##id, "dtypes.def has NCCL's numbers");
#define SAME_OP(id, number, name, nccl, ...) _Static_assert((int)nccl == (int)SHUNT_##id, "ops.def has NCCL's numbers");
SHUNT_DTYPE_LIST(SAME_TYPE, )
SHUNT_REDOP_LIST(SAME_OP)
#undef SAME_TYPE
#undef SAME_OP

/*
 * Fills in type, operator and scalar. False: NCCL or the communicator does not know the type, operator or root. op of a
 * collective that does not reduce is ncclSum.
 */
static inline bool resolve_types(struct shunt_entry *e, struct shunt_coll_call *call)
{
	struct shunt_coll *c = &call->coll;
	struct shunt_user_op user;

	if ((unsigned)call->dtype >= SHUNT_NDTYPES || (int)call->op < 0)
		return false;
	if (c->root < 0 || c->root >= shunt_comm_nranks(e->comm))
		return false;
	c->dtype = (enum shunt_dtype)call->dtype;
	c->redop = (enum shunt_redop)call->op;
	if (call->op < ncclNumOps)
		return true;
	if (!shunt_entry_op_find(e, call->op, &user) || user.dtype != call->dtype)
		return false;
	c->redop = SHUNT_PREMUL;
	c->scalar = user.scalar;
	c->scalar_on_device = user.on_device;
	return true;
}

/*
 * No memory has room for 2^50 elements. Below that, the bytes of all parts of all ranks are below 2^56: sums of bytes
 * and addresses of 64 bits do not wrap.
 */
#define MAX_COUNT_BITS 50

/* The reason why the buffers or the count cannot be, or NULL. NCCL accepts NULL for a buffer that only the root uses.
 */
static inline const char *bad_buffers(struct shunt_entry *e, const struct shunt_coll *c)
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
static bool is_empty(const struct shunt_coll *c)
{
	return !c->count && !shunt_kind_is_p2p(c->kind);
}

/* The first of the names in a list, separated by commas, that is one of our algorithms; NULL: none is. */
static const struct shunt_algo *named_algo(enum shunt_kind kind, const char *list)
{
	const struct shunt_algo *algo = NULL;

	while (*list && !algo) {
		size_t n = strcspn(list, ",");
		char name[24];

		snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : 0, list);
		algo = shunt_algo_find(kind, name);
		list += n + (list[n] != 0);
	}
	return algo;
}

/*
 * Applies the algorithms that a call asks for. NCCL's names are none of ours: such a call is NCCL's. Without one a
 * selection that is not forced is a wish that nobody can grant, as NCCL itself then chooses freely.
 */
static bool apply_selection(struct shunt_coll_call *call, bool has_nccl)
{
	const ncclCollConfig_t *config = &call->config;
	static atomic_bool logged;

	if (config->forceAlgSelection != 0 && config->forceAlgSelection != 1)
		return false;
	if (!config->algSelection || !*config->algSelection)
		return true;
	call->coll.algo = named_algo(call->coll.kind, config->algSelection);
	call->coll.only_algo = config->forceAlgSelection;
	if (!call->coll.algo && !has_nccl && !config->forceAlgSelection && !atomic_exchange(&logged, true))
		shunt_info(SHUNT_LOG_COLL,
		    "%s: none of the algorithms \"%s\" is Shunt's (`shunt info -a` lists those); it "
		    "chooses by itself",
		    shunt_kind_name(call->coll.kind), config->algSelection);
	return call->coll.algo || (!has_nccl && !config->forceAlgSelection);
}

/* NCCL_CTA_POLICY counts more than the call's own policy. Of both policies zero counts. */
static bool apply_policy(struct shunt_coll *c, int policy)
{
	if (policy == NCCL_CONFIG_UNDEF_INT)
		return true;
	if (policy < 0 || policy > (NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO))
		return false;
	if (shunt_nccl_env()->cta_policy < 0)
		c->cta_policy = SHUNT_CTAS_OWN |
		    (policy & NCCL_CTA_POLICY_ZERO ? SHUNT_CTAS_ZERO :
		            policy                 ? SHUNT_CTAS_FEW :
		                                     0);
	return true;
}

/*
 * Applies a call's own configuration, which is equal on all ranks, as NCCL demands. False: Shunt cannot do it, or does
 * not know it, because it is of a later version. A profiler's tag, vendor options and launch shapes that our kernels do
 * not have (NVLS, clusters) are ignored.
 */
static bool apply_config(struct shunt_coll_call *call, bool has_nccl)
{
	const size_t least = offsetof(ncclCollConfig_t, launchCompletionEvent); /* 2.31's, the first */
	const ncclCollConfig_t *config = &call->config;

	if (call->config_kind == SHUNT_CONFIG_NONE)
		return true;
	if (config->magic != SHUNT_NCCL_CONFIG_MAGIC || config->size < least || config->size > sizeof(*config))
		return false;
	if (!apply_selection(call, has_nccl) || !apply_policy(&call->coll, config->CTAPolicy))
		return false;
	if ((config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs < 1) ||
	    (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1))
		return false;
	call->coll.min_ctas = config->minCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->minCTAs;
	call->coll.max_ctas = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
	if (call->coll.max_ctas && call->coll.min_ctas > call->coll.max_ctas)
		return false;
	call->coll.launched = config->launchCompletionEvent;
	if (!call->coll.launched && !call->coll.algo)
		call->config_kind = SHUNT_CONFIG_HINTS;
	return true;
}

/* Refuses a wrong call, in both modes. */
static ncclResult_t refuse_call(const struct shunt_coll_call *call, const char *reason)
{
	shunt_warn("%s: %s", shunt_kind_name(call->coll.kind), reason);
	return shunt_group_result(shunt_to_nccl(-EINVAL));
}

/* Refuses a call for which resolve_types() returned false. */
__attribute__((cold, noinline)) static ncclResult_t refuse_types(
    struct shunt_entry *e, const struct shunt_coll_call *call)
{
	struct shunt_user_op user;
	char reason[96];

	if ((unsigned)call->dtype >= SHUNT_NDTYPES)
		snprintf(reason, sizeof(reason), "there is no data type %d", (int)call->dtype);
	else if (call->coll.root < 0 || call->coll.root >= shunt_comm_nranks(e->comm))
		snprintf(reason, sizeof(reason), "there is no rank %d among %d", call->coll.root,
		    shunt_comm_nranks(e->comm));
	else if ((int)call->op < 0 || !shunt_entry_op_find(e, call->op, &user))
		snprintf(reason, sizeof(reason), "operator %d is none of this communicator's", (int)call->op);
	else
		snprintf(reason, sizeof(reason), "operator %d was made for another data type", (int)call->op);
	return refuse_call(call, reason);
}

__attribute__((cold, noinline)) static int run_with_nvtx_range(struct shunt_comm *comm, struct shunt_coll_call *call)
{
	int err;

	if (!shunt_comm_decide(comm, &call->coll, &call->decision))
		return shunt_comm_run(comm, &call->coll, &call->decision);
	shunt_nvtx_range_push(&call->coll);
	err = shunt_comm_run(comm, &call->coll, &call->decision);
	shunt_nvtx_range_pop();
	return err;
}

/* -EOPNOTSUPP: the call is to be forwarded. */
static inline int run_coll(struct shunt_comm *comm, struct shunt_coll_call *call)
{
	return shunt_nvtx_enabled ? run_with_nvtx_range(comm, call) :
	                            shunt_comm_run(comm, &call->coll, &call->decision);
}

__attribute__((cold, noinline)) static ncclResult_t record_with_nvtx_range(
    struct shunt_group *group, const struct shunt_coll_call *call)
{
	ncclResult_t result;

	shunt_nvtx_range_push(&call->coll);
	result = shunt_group_record(group, call);
	shunt_nvtx_range_pop();
	return result;
}

static inline ncclResult_t record_call(struct shunt_group *group, const struct shunt_coll_call *call)
{
	return shunt_nvtx_enabled ? record_with_nvtx_range(group, call) : shunt_group_record(group, call);
}

static inline ncclResult_t forward_now(struct shunt_entry *e, const struct shunt_coll_call *call)
{
	ncclResult_t result;

	shunt_entry_put(e); /* not held in the real call, which may last until another thread aborts the communicator */
	result = shunt_forward(call);
	return result == ncclSuccess ? result : shunt_group_result(result);
}

/*
 * Gives a call to the real NCCL. group: NULL without one. NCCL gets a group's calls in the order of issue, on which all
 * ranks must agree, and it launches communicators in the order of their first calls. So a call waits behind one that
 * may turn out to be NCCL's: when that is known is a matter of timing, and another rank may know it already.
 */
static inline ncclResult_t forward_or_record(
    struct shunt_group *group, struct shunt_entry *e, struct shunt_coll_call *call)
{
	if (!group || !shunt_group_undecided(group)) {
		if (group && shunt_kind_is_p2p(call->coll.kind))
			shunt_group_forwarded_p2p(group, call->comm);
		return forward_now(e, call);
	}
	call->entry = e;
	shunt_call_queue(&call->state);
	return record_call(group, call);
}

ncclResult_t shunt_overlay_coll(struct shunt_thread *thread, struct shunt_coll_call *call)
{
	struct shunt_entry *e = shunt_entry_find(call->comm);
	struct shunt_group *group = shunt_group_of(thread);
	const char *reason;
	int err;

	/* The real NCCL judges calls that Shunt does not understand, with its own error codes. */
	if (!e)
		return call->comm ? forward_or_record(group, NULL, call) : shunt_forward(call);
	if (!shunt_attach_takes_calls(e, call->comm) || !resolve_types(e, call))
		return forward_or_record(group, e, call);
	if (is_empty(&call->coll)) {
		shunt_entry_put(e);
		return ncclSuccess;
	}
	reason = bad_buffers(e, &call->coll);
	if (reason) {
		shunt_entry_put(e);
		return refuse_call(call, reason);
	}
	if (!apply_config(call, true)) {
		shunt_comm_count_forward(e->comm, &call->coll, SHUNT_REASON_CONFIG);
		return forward_or_record(group, e, call);
	}
	if (group) {
		call->entry = e;
		/* Until all ranks know whether our kernels run here, every call is recorded. */
		if (shunt_comm_decide(e->comm, &call->coll, &call->decision) || !call->decision.settled)
			return record_call(group, call);
		shunt_comm_count_forward(e->comm, &call->coll, call->decision.reason);
		return forward_or_record(group, e, call);
	}
	err = run_coll(e->comm, call);
	if (err != -EOPNOTSUPP) {
		shunt_entry_put(e);
		return shunt_to_nccl(err);
	}
	return forward_now(e, call);
}

ncclResult_t shunt_standalone_coll(struct shunt_thread *thread, struct shunt_coll_call *call)
{
	struct shunt_coll *c = &call->coll;
	ncclResult_t result;
	struct shunt_entry *e = shunt_standalone_find(call->comm, shunt_kind_name(c->kind), &result);
	const char *reason;
	int err;

	if (!e)
		return shunt_group_result(result);
	if (!resolve_types(e, call)) {
		result = refuse_types(e, call);
	} else if (!shunt_life_takes_calls(&e->life)) {
		shunt_warn("%s: the communicator is %s", shunt_kind_name(c->kind),
		    shunt_life_use(&e->life) == SHUNT_LIFE_OPEN ? "suspended; resume it first" :
		                                                  "finalized or revoked");
		result = shunt_group_result(shunt_to_nccl(-EBUSY));
	} else if (is_empty(c)) {
		result = ncclSuccess;
	} else if ((reason = bad_buffers(e, c))) {
		result = refuse_call(call, reason);
	} else if (!apply_config(call, false)) {
		result = refuse_call(call,
		    "its configuration was not initialized, is of a later NCCL, has values that NCCL refuses, or "
		    "forces an "
		    "algorithm that only the real NCCL has");
	} else if (!shunt_comm_decide(e->comm, c, &call->decision)) {
		/* A known error does not wait for the group's end. */
		result = shunt_group_result(shunt_standalone_declined(e, c, call->decision.reason));
	} else if (shunt_group_of(thread)) {
		call->entry = e;
		return record_call(shunt_group_of(thread), call);
	} else {
		err = run_coll(e->comm, call);
		result =
		    err == -EOPNOTSUPP ? shunt_standalone_declined(e, c, call->decision.reason) : shunt_to_nccl(err);
	}
	shunt_entry_put(e);
	return result;
}

static ncclResult_t run_in_mode(struct shunt_coll_call *call)
{
	struct shunt_thread *thread = shunt_thread();

	return shunt_mode_ops_of(thread)->coll(thread, call);
}

/* config: NULL is allowed. */
static ncclResult_t run_with_config(struct shunt_coll_call *call, const ncclCollConfig_t *config)
{
	if (config) {
		call->config_kind = SHUNT_CONFIG_ANY;
		call->caller_config = config;
		memcpy(&call->config, config,
		    config->size < sizeof(call->config) ? config->size :
		                                          sizeof(call->config)); /* an earlier version's is shorter */
	}
	return run_in_mode(call);
}

#define CALL(...) CALL_OF(__VA_ARGS__)
#define CALL_OF(id, from, to, n, type, operator, peer) \
	(struct shunt_coll_call) \
	{ \
		.comm = comm, .dtype = type, .op = operator, .coll = { \
			.kind = SHUNT_##id, \
			.root = peer, \
			.send = from, \
			.recv = to, \
			.count = n, \
			.stream = stream \
		} \
	}

/* ncclX, and ncclXConfig, which is the same if config is NULL. */
#define ENTRY(id, name, long_name, function, ranks, sends, recvs, operator, ...) \
	ncclResult_t pnccl##function(SHUNT_COLL_PARAMS(ranks, operator)) \
	{ \
		return run_in_mode(&CALL(id, SHUNT_COLL_VALUES(ranks, operator))); \
	} \
	SHUNT_WEAK_ALIAS(function); \
	SHUNT_IF_CONFIG(ranks, ENTRY_CONFIG(id, function, ranks, operator))
#define ENTRY_CONFIG(id, function, ranks, operator) \
	ncclResult_t pnccl##function##Config(SHUNT_COLL_PARAMS(ranks, operator), const ncclCollConfig_t *config) \
	{ \
		return run_with_config(&CALL(id, SHUNT_COLL_VALUES(ranks, operator)), config); \
	} \
	SHUNT_WEAK_ALIAS(function##Config);

SHUNT_COLLECTIVE_LIST(ENTRY)

/* In place; PyTorch's broadcast uses it. */
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	return run_in_mode(&(struct shunt_coll_call){ .comm = comm,
	    .dtype = dtype,
	    .op = ncclSum,
	    .bcast = true,
	    .coll = { .kind = SHUNT_BROADCAST,
	        .root = root,
	        .send = buff,
	        .recv = buff,
	        .count = count,
	        .stream = stream } });
}
SHUNT_WEAK_ALIAS(Bcast);
