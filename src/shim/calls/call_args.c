/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "algos/algos.h"
#include "base/config.h"
#include "base/log.h"
#include "shim/calls/call_args.h"
#include "shim/calls/thread.h"
#include "shim/nccl/result.h"

#define SAME_TYPE(id, number, name, alias, nccl, ...) \
	_Static_assert((int)nccl == (int)SHUNT_##id, "dtypes.def has NCCL's numbers");
#define SAME_OP(id, number, name, nccl, ...) _Static_assert((int)nccl == (int)SHUNT_##id, "ops.def has NCCL's numbers");
SHUNT_DTYPE_LIST(SAME_TYPE, )
SHUNT_REDOP_LIST(SAME_OP)
#undef SAME_TYPE
#undef SAME_OP

bool shunt_call_resolve_numbers(struct shunt_entry *e, struct shunt_coll_call *call)
{
	struct shunt_coll *c = &call->coll;
	struct shunt_user_op user = { .base = call->op, .redop = c->redop };
	bool e4m3b15 = e->e4m3b15;
	int accumulate = e->accumulate, format;

	if (!shunt_kind_reduces(c->kind))
		return true;
	if (call->op >= ncclNumOps) {
		if (!shunt_entry_op_find(e, call->op, &user) || user.dtype != call->dtype)
			return false;
		c->scalar = user.scalar;
		c->scalar_on_device = user.on_device;
	}
	if (user.own) {
		e4m3b15 = user.e4m3b15;
		accumulate = user.accumulate ? user.accumulate : accumulate;
	}
	c->redop = user.redop;
	call->op = user.base;
	/* One rank has nothing to accumulate: unless it scales, NCCL may copy. An extremum rounds nothing. */
	if (shunt_comm_nranks(e->comm) == 1 && c->redop != SHUNT_PREMUL)
		return true;
	if (c->redop == SHUNT_MAX || c->redop == SHUNT_MIN)
		accumulate = SHUNT_ACCUMULATE_FP32;
	format = shunt_format_of(c->dtype, e4m3b15, accumulate);
	if (format < 0) /* the communicator's accumulator is none of this type */
		format = shunt_format_of(c->dtype, e4m3b15, SHUNT_ACCUMULATE_FP32);
	c->dtype = (enum shunt_dtype)format;
	if (shunt_dtype_is_format(c->dtype))
		call->dtype = (ncclDataType_t)INT_MAX;
	return true;
}

ncclResult_t shunt_call_forward_failed(const struct shunt_coll *c, ncclResult_t result)
{
	if (shunt_dtype_is_format(c->dtype))
		shunt_warn(
		    "%s of %zu %s, %s: only Shunt's kernels do this, which do not run here (NCCL_DEBUG=INFO has the "
		    "reason), and NCCL has no such numbers; use what NCCL has, or shunt_comm_numerics",
		    shunt_kind_name(c->kind), c->count, shunt_dtype_name(c->dtype), shunt_redop_name(c->redop));
	return result;
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

/* Applies the algorithms that a call asks for. NCCL's names are not Shunt's. */
static enum shunt_config_outcome apply_selection(struct shunt_coll_call *call)
{
	const ncclCollConfig_t *config = &call->config;

	if (config->forceAlgSelection != 0 && config->forceAlgSelection != 1)
		return SHUNT_CONFIG_UNKNOWN;
	if (!config->algSelection || !*config->algSelection)
		return SHUNT_CONFIG_APPLIED;
	call->coll.algo = named_algo(call->coll.kind, config->algSelection);
	call->coll.only_algo = config->forceAlgSelection;
	if (call->coll.algo)
		return SHUNT_CONFIG_APPLIED;
	return config->forceAlgSelection ? SHUNT_CONFIG_UNKNOWN : SHUNT_CONFIG_WISHED;
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

enum shunt_config_outcome shunt_call_apply_config(struct shunt_coll_call *call)
{
	const size_t least = offsetof(ncclCollConfig_t, launchCompletionEvent); /* 2.31's, the first */
	const ncclCollConfig_t *config = &call->config;
	enum shunt_config_outcome outcome;

	if (config->magic != SHUNT_NCCL_CONFIG_MAGIC || config->size < least || config->size > sizeof(*config))
		return SHUNT_CONFIG_UNKNOWN;
	outcome = apply_selection(call);
	if (outcome == SHUNT_CONFIG_UNKNOWN || !apply_policy(&call->coll, config->CTAPolicy))
		return SHUNT_CONFIG_UNKNOWN;
	if ((config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs < 1) ||
	    (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1))
		return SHUNT_CONFIG_UNKNOWN;
	call->coll.min_ctas = config->minCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->minCTAs;
	call->coll.max_ctas = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
	if (call->coll.max_ctas && call->coll.min_ctas > call->coll.max_ctas)
		return SHUNT_CONFIG_UNKNOWN;
	call->coll.launched = config->launchCompletionEvent;
	if (outcome == SHUNT_CONFIG_APPLIED && !call->coll.launched && !call->coll.algo)
		call->config_kind = SHUNT_CONFIG_HINTS;
	return outcome;
}

ncclResult_t shunt_call_refuse(const struct shunt_coll_call *call, const char *reason)
{
	shunt_warn("%s: %s", shunt_kind_name(call->coll.kind), reason);
	return shunt_group_result(shunt_to_nccl(-EINVAL));
}

ncclResult_t shunt_call_refuse_types(struct shunt_entry *e, const struct shunt_coll_call *call)
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
	return shunt_call_refuse(call, reason);
}

ncclResult_t shunt_call_declined(struct shunt_entry *e, const struct shunt_coll *c, enum shunt_reason reason)
{
	shunt_warn("%s of %zu %s, %s: not possible without a real NCCL (%s)", shunt_kind_name(c->kind), c->count,
	    shunt_dtype_name(c->dtype), shunt_redop_name(c->redop), shunt_comm_reason(e->comm, reason));
	return shunt_to_nccl(-EOPNOTSUPP);
}
