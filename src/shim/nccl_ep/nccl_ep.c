/* SPDX-License-Identifier: MIT */
/*
 * libnccl_ep.so.0: the interface of NCCL's expert parallel library as calls of shunt/ep.h, for programs that run
 * without a real NCCL, whose device interface NVIDIA's library needs. It has no part in libshunt.so, whose functions it
 * finds by src/shim/api/loader.c.
 *
 *   low latency, expert-major   dispatch: shunt_ep_ll_dispatch     combine: shunt_ep_ll_combine
 *   high throughput, flat       update: shunt_ep_layout, _notify   dispatch, combine: shunt_ep_dispatch, _combine
 *
 * What those cannot do is refused, with one line that names it. Their own errors have lines of their own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "shim/nccl_ep/ep_args.h"
#include "shunt/device.h"
#include "shunt/ep.h"
#include "shunt/shunt.h"

#define NORMAL_BLOCKS 24 /* for which a group has memory, if max_num_sms does not say */
#define MOST_BLOCKS 64
#define HALVES (ARG_TYPE(ncclFloat16) | ARG_TYPE(ncclBfloat16))
#define ROWS (HALVES | ARG_TYPE(ncclFloat32))
#define FORWARDED (ROWS | ARG_TYPE(ncclFloat8e4m3) | ARG_TYPE(ncclFloat8e5m2))

struct ncclEpGroup {
	struct shunt_ep *ep;
	ncclEpGroupConfig_t config;
	bool ll;
	int32_t blocks;        /* of a launch; 0: Shunt decides */
	size_t ranks, tokens;  /* tokens: of a rank */
	size_t experts, slots; /* of this rank; slots: the most rows that come to it, or to an expert */
};

/* What a handle's memory has: the same for all handles of a group with as many experts to a token. */
enum part { TOPK_IDX, PER_RANK, PER_EXPERT, IN_RANK, RANK_PREFIX, SEND_ROW, RECEIVED, SRC_IDX, RANGES, ROUTING, PARTS };

struct ncclEpHandle {
	struct ncclEpGroup *group;
	ncclEpAllocConfig_t alloc;
	size_t topk, tokens;     /* tokens: UNKNOWN until routing or rows tell */
	const int64_t *topk_idx; /* of low latency: the caller's */
	void *owned, *part[PARTS];
	enum { NOTHING, DISPATCH, COMBINE } staged;
	struct shunt_ep_ll_dispatch dispatch; /* ... which ncclEpComplete receives */
	struct shunt_ep_ll_combine combine;
};
#define UNKNOWN SIZE_MAX

ncclResult_t ncclEpGetVersion(int *version)
{
	struct arg_check c = { "ncclEpGetVersion", ncclSuccess };

	arg_need(&c, "version", version);
	if (!c.result)
		*version = NCCL_EP_VERSION_CODE;
	return c.result;
}

ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor_p, unsigned int ndim, ncclDataType_t datatype,
    const size_t *sizes, const ncclEpTensorAllocConfig_t *config)
{
	struct arg_check c = { "ncclEpTensorAlloc", ncclSuccess };
	ncclEpTensorAllocConfig_t none;
	ncclEpTensor_t *t;

	ARG_TAKE_OR_NONE(&c, ncclEpTensorAllocConfig_t, config, &none);
	arg_need(&c, "tensor", tensor_p);
	arg_need(&c, "sizes", sizes);
	arg_range(&c, "ndim", ndim, 1, 64);
	if (c.result)
		return c.result;
	t = malloc(sizeof(*t) + ndim * sizeof(*sizes));
	if (!t)
		return ncclSystemError;
	*t = (ncclEpTensor_t){ sizeof(*t), ARG_OWN_TENSOR, ndim, datatype, .sizes = (size_t *)(t + 1) };
	memcpy(t->sizes, sizes, ndim * sizeof(*sizes));
	*tensor_p = t;
	return ncclSuccess;
}

ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *t)
{
	struct arg_check c = { "ncclEpTensorDestroy", ncclSuccess };

	if (t)
		arg_header(&c, "tensor", t, size_1_of_ncclEpTensor_t, ARG_OWN_TENSOR);
	if (!c.result)
		free(t);
	return c.result;
}

/* ---- groups */

static void check_config(struct arg_check *c, const ncclEpGroupConfig_t *g, uint64_t nranks)
{
	const bool ht = g->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT, eager = !g->max_recv_tokens_per_rank;
	const uint64_t most = INT32_MAX, least = g->max_dispatch_tokens_per_rank;
	const struct {
		const char *name;
		uint64_t value, from, to;
	} ranges[] = {
		{ "algorithm", (unsigned)g->algorithm, 0, NCCL_EP_ALGO_HIGH_THROUGHPUT },
		{ "num_experts", g->num_experts, nranks, SHUNT_EP_MAX_EXPERTS },
		{ "max_dispatch_tokens_per_rank", least, 1, most / nranks },
		{ "max_recv_tokens_per_rank", !ht || eager ? least : g->max_recv_tokens_per_rank, least, most },
		{ "max_token_bytes", g->max_token_bytes, 1, most },
		{ "overflow_policy", (unsigned)g->overflow_policy, 0, NCCL_EP_OVERFLOW_DROP },
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		arg_range(c, ranges[i].name, ranges[i].value, ranges[i].from, ranges[i].to);
	if (g->num_experts % nranks)
		arg_refuse(c, ncclInvalidArgument, "num_experts is %u, which is no multiple of %d ranks",
		    g->num_experts, (int)nranks);
	arg_forbid(c, g->zero_copy == NCCL_EP_ZERO_COPY_ON, "zero_copy is ON, and Shunt's kernels copy");
	arg_forbid(c, g->enable_mask, "enable_mask is set, and Shunt has masks in shunt/ep.h alone");
	arg_forbid(c, !g->alloc.alloc_fn != !g->alloc.free_fn, "one function of alloc is NULL");
	arg_forbid(c, ht && eager && g->overflow_policy == NCCL_EP_OVERFLOW_DROP,
	    "overflow_policy is DROP, which needs max_recv_tokens_per_rank");
}

static int make_group(struct ncclEpGroup *g, const void *comm, int hosts)
{
	const int32_t n = (int32_t)g->ranks, bytes = (int32_t)g->config.max_token_bytes;
	struct shunt_ep_shape shape = { .size = sizeof(shape),
		.nranks = (n + hosts - 1) / hosts * hosts,
		.hosts = hosts,
		.topk = (int32_t)g->config.num_topk,
		.hidden = bytes / 2 + bytes % 2,
		.element_bytes = 2,
		.ll_tokens = g->ll ? (int32_t)g->tokens : 0,
		.blocks = g->ll ? 0 :
		    g->blocks   ? g->blocks :
		                  NORMAL_BLOCKS };
	struct shunt_ep_config config = { .size = sizeof(config),
		.comm = comm,
		.flags = !g->ll && g->config.overflow_policy == NCCL_EP_OVERFLOW_DROP ? SHUNT_EP_DROP : 0,
		.topk = shape.topk,
		.timeout_ns = g->config.timeout_ns };
	int err = shunt_ep_bytes(&shape, &config.normal_bytes, &config.ll_bytes);

	return err ? err : shunt_ep_create(&config, &g->ep);
}

ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *group, ncclComm_t comm, const ncclEpGroupConfig_t *config)
{
	struct arg_check c = { "ncclEpCreateGroup", ncclSuccess };
	struct shunt_comm_info info = { .size = sizeof(info), .nranks = -1 };
	ncclEpGroupConfig_t taken;
	struct ncclEpGroup *g;

	arg_need(&c, "ep_group", group);
	ARG_TAKE(&c, ncclEpGroupConfig_t, config, &taken);
	if (!c.result && (shunt_comm_describe(comm, &info) || info.nranks < 1))
		arg_refuse(&c, ncclInvalidArgument, "comm is %p, which is no communicator of Shunt's that is ready",
		    (void *)comm);
	if (!c.result)
		check_config(&c, &taken, (uint64_t)info.nranks);
	if (c.result)
		return c.result;
	g = calloc(1, sizeof(*g));
	if (!g)
		return ncclSystemError;
	g->config = taken;
	g->ll = taken.algorithm == NCCL_EP_ALGO_LOW_LATENCY;
	g->blocks = taken.max_num_sms < MOST_BLOCKS ? (int32_t)taken.max_num_sms : MOST_BLOCKS;
	g->ranks = (size_t)info.nranks;
	g->experts = taken.num_experts / g->ranks;
	g->tokens = taken.max_dispatch_tokens_per_rank;
	g->slots = g->ranks * g->tokens;
	ARG_CALL(&c, shunt_device_set(info.device)); /* as NCCL's does */
	ARG_CALL(&c, make_group(g, comm, info.hosts > 1 ? info.hosts : 1));
	if (c.result)
		free(g);
	else
		*group = g;
	return c.result;
}

ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t g)
{
	struct arg_check c = { "ncclEpGroupDestroy", ncclSuccess };

	arg_need(&c, "ep_group", g);
	ARG_CALL(&c, shunt_ep_destroy(g->ep, 0));
	free(g);
	return c.result;
}

/* As with NCCL in groups without enable_mask, which here are all. */
#define MASKS(name, ...) \
	ncclResult_t name(__VA_ARGS__) \
	{ \
		struct arg_check c = { #name, ncclSuccess }; \
\
		arg_forbid(&c, true, "the group was made without enable_mask"); \
		return c.result; \
	}
MASKS(ncclEpMaskQuery, ncclEpGroup_t, int *, cudaStream_t)
MASKS(ncclEpMaskUpdate, ncclEpGroup_t, const int *, cudaStream_t)
MASKS(ncclEpMaskClean, ncclEpGroup_t, cudaStream_t)
MASKS(ncclEpGetAsyncError, ncclEpGroup_t, int *)
MASKS(ncclEpErrorClear, ncclEpGroup_t)

/* ---- handles */

static size_t part_bytes(const struct ncclEpGroup *g, size_t part, size_t topk)
{
	const size_t ll[PARTS] = { [SRC_IDX] = g->experts * g->slots * 4,
		[RANGES] = g->experts * g->ranks * 8,
		[ROUTING] = g->slots * topk * 2 };
	const size_t ht[PARTS] = { [TOPK_IDX] = g->tokens * topk * 8,
		[PER_RANK] = g->ranks * 4,
		[PER_EXPERT] = g->experts * g->ranks * 4,
		[IN_RANK] = g->tokens * g->ranks,
		[RANK_PREFIX] = g->ranks * g->ranks * 4,
		[SEND_ROW] = g->tokens * g->ranks * 4,
		[RECEIVED] = 4,
		[SRC_IDX] = g->slots * 4 };

	return ((g->ll ? ll : ht)[part] + 255) / 256 * 256;
}

static size_t handle_bytes(const struct ncclEpGroup *g, size_t topk)
{
	size_t bytes = 0;

	for (size_t p = 0; p < PARTS; p++)
		bytes += part_bytes(g, p, topk);
	return bytes;
}

static void check_handle(
    struct arg_check *c, const struct ncclEpGroup *g, int layout, const ncclEpHandleConfig_t *config, int topk)
{
	ncclEpHandleConfig_t taken;

	arg_need(c, "ep_group", g);
	ARG_TAKE_OR_NONE(c, ncclEpHandleConfig_t, config, &taken);
	arg_range(c, "layout", (unsigned)layout, NCCL_EP_LAYOUT_EXPERT_MAJOR, NCCL_EP_LAYOUT_FLAT);
	if (c->result)
		return;
	if (layout != (g->ll ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT))
		arg_refuse(c, ncclInvalidUsage, "layout is %d, and Shunt has %s groups with %d alone", layout,
		    g->ll ? "low latency" : "high throughput",
		    g->ll ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT);
	arg_range(c, "num_topk", (unsigned)topk, 1, g->config.num_topk ? g->config.num_topk : SHUNT_EP_MAX_TOPK);
}

ncclResult_t ncclEpHandleMemSize(
    ncclEpGroup_t g, int layout, const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk)
{
	struct arg_check c = { "ncclEpHandleMemSize", ncclSuccess };

	arg_need(&c, "size_out", size_out);
	check_handle(&c, g, layout, config, num_topk);
	if (!c.result)
		*size_out = handle_bytes(g, (size_t)num_topk);
	return c.result;
}

static void *allocate(struct arg_check *c, const ncclEpAllocConfig_t *a, size_t bytes)
{
	void *memory = NULL;

	if (!a->alloc_fn)
		ARG_CALL(c, shunt_malloc(&memory, bytes));
	else if (a->alloc_fn(&memory, bytes, a->context) || !memory)
		arg_refuse(c, ncclSystemError, "alloc_fn has no %zu bytes", bytes);
	return memory;
}

ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t g, int layout, const ncclEpHandleConfig_t *config,
    int num_topk, const ncclEpTensor_t *handle_mem)
{
	struct arg_check c = { "ncclEpInitHandle", ncclSuccess };
	struct ncclEpHandle *h;
	char *memory = NULL;
	size_t bytes;

	arg_need(&c, "handle", handle);
	check_handle(&c, g, layout, config, num_topk);
	if (c.result)
		return c.result;
	h = calloc(1, sizeof(*h));
	if (!h)
		return ncclSystemError;
	*h = (struct ncclEpHandle){ .group = g, .alloc = g->config.alloc, .topk = (size_t)num_topk, .tokens = UNKNOWN };
	bytes = handle_bytes(g, h->topk);
	if (handle_mem)
		memory = arg_tensor(&c, "handle_mem", handle_mem, ARG_TYPE(ncclUint8), ARG_SHAPE(bytes));
	else
		memory = h->owned = allocate(&c, &h->alloc, bytes);
	for (size_t p = 0; p < PARTS && !c.result; memory += part_bytes(g, p++, h->topk))
		h->part[p] = memory;
	if (c.result)
		free(h);
	else
		*handle = h;
	return c.result;
}

/* The counters are filled in stream order, but for those of experts, for which the host waits. */
static void count(
    struct arg_check *c, struct ncclEpHandle *h, const ncclEpLayoutInfo_t *info, uint64_t ticket, cudaStream_t stream)
{
	size_t bytes = h->group->experts * sizeof(int32_t);
	const ncclEpTensor_t *total = info->recv_total_counter;
	int32_t *host;

	if (total && total->datatype == ncclInt64) /* of which the count is the lower half */
		ARG_CALL(c, shunt_memset_async(total->data, 0, sizeof(int64_t), stream));
	if (total)
		ARG_CALL(c, shunt_memcpy_async(total->data, h->part[RECEIVED], sizeof(int32_t), stream));
	if (c->result || !info->expert_counters)
		return;
	host = malloc(bytes);
	ARG_CALL(c, host ? shunt_ep_counts(h->group->ep, ticket, NULL, host) : -ENOMEM);
	ARG_CALL(c, shunt_memcpy(info->expert_counters->data, host, bytes));
	free(host);
}

static void route(struct arg_check *c, struct ncclEpHandle *h, const ncclEpLayoutInfo_t *info, cudaStream_t stream)
{
	const struct ncclEpGroup *g = h->group;
	struct shunt_ep_layout layout = { .size = sizeof(layout),
		.stream = stream,
		.topk_idx = h->topk_idx,
		.tokens = (int32_t)h->tokens,
		.topk = (int32_t)h->topk,
		.experts = (int32_t)g->config.num_experts,
		.per_rank = h->part[PER_RANK],
		.per_expert = h->part[PER_EXPERT],
		.in_rank = h->part[IN_RANK] };
	struct shunt_ep_notify notify = { .size = sizeof(notify),
		.stream = stream,
		.per_rank = layout.per_rank,
		.per_expert = layout.per_expert,
		.in_rank = layout.in_rank,
		.tokens = layout.tokens,
		.experts = layout.experts,
		.alignment = 1,
		.rank_prefix = h->part[RANK_PREFIX],
		.send_row = h->part[SEND_ROW],
		.received = h->part[RECEIVED],
		.counts = info->expert_counters != NULL };
	uint64_t ticket = 0;

	/* The caller's may change: the handle has them for its dispatches. */
	ARG_CALL(c, shunt_memcpy_async(h->part[TOPK_IDX], h->topk_idx, h->tokens * h->topk * sizeof(int64_t), stream));
	ARG_CALL(c, shunt_ep_layout(g->ep, &layout));
	ARG_CALL(c, shunt_ep_notify(g->ep, &notify, &ticket));
	count(c, h, info, ticket, stream);
}

ncclResult_t ncclEpUpdateHandle(
    ncclEpHandle_t h, const ncclEpTensor_t *topk_idx, const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream)
{
	struct arg_check c = { "ncclEpUpdateHandle", ncclSuccess };
	ncclEpLayoutInfo_t info;
	const int64_t *idx;

	arg_need(&c, "handle", h);
	ARG_TAKE_OR_NONE(&c, ncclEpLayoutInfo_t, layout_info, &info);
	if (c.result)
		return c.result;
	arg_forbid(&c, layout_info && h->group->ll, "layout_info of a low latency group goes with the dispatch");
	arg_forbid(
	    &c, info.expert_offsets, "expert_offsets are for layout EXPERT_MAJOR, which Shunt does not have here");
	idx = arg_tensor(
	    &c, "topk_idx", topk_idx, ARG_TYPE(ncclInt32) | ARG_TYPE(ncclInt64), ARG_SHAPE(ARG_ANY, h->topk));
	if (!c.result)
		arg_forbid(&c, topk_idx->datatype == ncclInt32, "topk_idx is of type int32, and Shunt has int64 alone");
	if (!c.result)
		arg_range(&c, "number of tokens of topk_idx", topk_idx->sizes[0], 0, h->group->tokens);
	if (info.expert_counters)
		arg_tensor(
		    &c, "expert_counters", info.expert_counters, ARG_TYPE(ncclInt32), ARG_SHAPE(h->group->experts));
	if (info.recv_total_counter)
		arg_tensor(&c, "recv_total_counter", info.recv_total_counter, ARG_TYPE(ncclInt32) | ARG_TYPE(ncclInt64),
		    ARG_SHAPE(1));
	if (c.result)
		return c.result;
	h->tokens = topk_idx->sizes[0];
	h->topk_idx = idx;
	if (!h->group->ll)
		route(&c, h, &info, stream);
	return c.result;
}

ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t g, int layout, const ncclEpTensor_t *topk_idx,
    const ncclEpLayoutInfo_t *layout_info, const ncclEpHandleConfig_t *config, cudaStream_t stream)
{
	struct arg_check c = { "ncclEpCreateHandle", ncclSuccess };

	arg_tensor(&c, "topk_idx", topk_idx, ARG_TYPE(ncclInt32) | ARG_TYPE(ncclInt64), ARG_SHAPE(ARG_ANY, ARG_ANY));
	if (!c.result)
		c.result = ncclEpInitHandle(handle, g, layout, config, (int)topk_idx->sizes[1], NULL);
	if (c.result)
		return c.result;
	c.result = ncclEpUpdateHandle(*handle, topk_idx, layout_info, stream);
	if (c.result)
		ncclEpHandleDestroy(*handle);
	return c.result;
}

ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t h)
{
	if (h && h->owned && h->alloc.free_fn)
		h->alloc.free_fn(h->owned, h->alloc.context);
	else if (h)
		shunt_free(h->owned);
	free(h);
	return ncclSuccess;
}

/* ---- dispatch and combine */

/* The tokens of a tensor that goes in or comes out. A handle on memory that another one filled learns them here. */
static int32_t tokens_of(struct arg_check *c, struct ncclEpHandle *h, const char *name, const ncclEpTensor_t *t)
{
	if (c->result)
		return 0;
	arg_forbid(c, h->tokens == UNKNOWN && h->group->ll, "ncclEpUpdateHandle was not called on this handle");
	arg_range(c, name, t->sizes[0], h->tokens == UNKNOWN ? 0 : h->tokens,
	    h->tokens == UNKNOWN ? h->group->tokens : h->tokens);
	arg_range(c, "max_token_bytes", h->group->config.max_token_bytes, arg_row_bytes(t), INT32_MAX);
	if (!c->result)
		h->tokens = t->sizes[0];
	return (int32_t)t->sizes[0];
}

/* Of a dispatch's or combine's configuration, what both have. */
static void check_phase(struct arg_check *c, const struct ncclEpHandle *h, unsigned send_only, unsigned pass_direction)
{
	arg_forbid(c, send_only && !h->group->ll, "send_only is set, and calls of high throughput have one phase");
	arg_forbid(
	    c, send_only && h->staged, "send_only is set, and ncclEpComplete was not called after the last such call");
	arg_range(c, "pass_direction", pass_direction, 0, h->group->ll ? 0 : NCCL_EP_BWD_PASS);
}

static void dispatch_ll(struct arg_check *c, struct ncclEpHandle *h, const ncclEpDispatchInputs_t *in,
    const ncclEpDispatchOutputs_t *out, const ncclEpLayoutInfo_t *info, bool send_only, cudaStream_t stream)
{
	const struct ncclEpGroup *g = h->group;
	struct shunt_ep_ll_dispatch d = { .size = sizeof(d),
		.stream = stream,
		.phases = SHUNT_EP_SEND | (send_only ? 0 : SHUNT_EP_RECEIVE),
		.form = SHUNT_EP_AS_IS,
		.topk_idx = h->topk_idx,
		.max_tokens = (int32_t)g->tokens,
		.topk = (int32_t)h->topk,
		.experts = (int32_t)g->config.num_experts,
		.src_idx = h->part[SRC_IDX],
		.ranges = h->part[RANGES],
		.routing = h->part[ROUTING],
		.blocks = g->blocks };

	arg_forbid(c, in->topk_weights || out->topk_weights || out->topk_idx,
	    "topk_weights and topk_idx do not go with a low latency dispatch of layout EXPERT_MAJOR");
	d.x = arg_tensor(c, "inputs->tokens", in->tokens, HALVES, ARG_SHAPE(ARG_ANY, ARG_ANY));
	d.tokens = tokens_of(c, h, "number of tokens of inputs->tokens", in->tokens);
	if (c->result)
		return;
	d.hidden = (int32_t)in->tokens->sizes[1];
	d.recv_x = arg_tensor(c, "outputs->tokens", out->tokens, ARG_TYPE(in->tokens->datatype),
	    ARG_SHAPE(g->experts, g->slots, in->tokens->sizes[1]));
	d.count = arg_tensor(
	    c, "layout_info->expert_counters", info->expert_counters, ARG_TYPE(ncclInt32), ARG_SHAPE(g->experts));
	ARG_CALL(c, shunt_ep_ll_dispatch(g->ep, &d));
	if (c->result || !send_only)
		return;
	h->dispatch = d;
	h->staged = DISPATCH;
}

/* Rows of bytes, which travel as words. */
static void take_scales(
    struct arg_check *c, const ncclEpTensor_t *in, const ncclEpTensor_t *out, size_t limit, struct shunt_ep_dispatch *d)
{
	d->scales =
	    arg_tensor(c, "inputs->scales", in, FORWARDED | ARG_TYPE(ncclUint8), ARG_SHAPE((size_t)d->tokens, ARG_ANY));
	if (c->result)
		return;
	d->recv_scales =
	    arg_tensor(c, "outputs->scales", out, ARG_TYPE(in->datatype), ARG_SHAPE((size_t)d->capacity, in->sizes[1]));
	if (arg_row_bytes(in) % 16 || d->row_bytes % 16)
		arg_refuse(c, ncclInvalidArgument,
		    "rows have %lld bytes and their scales %zu, and both should be multiples of 16",
		    (long long)d->row_bytes, arg_row_bytes(in));
	arg_range(c, "max_token_bytes", limit, (size_t)d->row_bytes + arg_row_bytes(in), INT32_MAX);
	d->nscales = (int32_t)(arg_row_bytes(in) / 4);
	d->scale_token_stride = d->nscales;
	d->scale_stride = 1;
}

static void dispatch_ht(struct arg_check *c, struct ncclEpHandle *h, const ncclEpDispatchInputs_t *in,
    const ncclEpDispatchOutputs_t *out, bool backward, bool scales, cudaStream_t stream)
{
	const struct ncclEpGroup *g = h->group;
	struct shunt_ep_dispatch d = { .size = sizeof(d),
		.stream = stream,
		.rank_prefix = h->part[RANK_PREFIX],
		.send_row = h->part[SEND_ROW],
		.received = h->part[RECEIVED],
		.topk_idx = h->part[TOPK_IDX],
		.topk = backward ? 0 : (int32_t)h->topk,
		.experts = (int32_t)g->config.num_experts,
		.blocks = g->blocks,
		.pad = 1,
		.src_idx = h->part[SRC_IDX] };
	size_t rows;

	d.x = arg_tensor(c, "inputs->tokens", in->tokens, scales ? FORWARDED | ARG_TYPE(NCCL_EP_FLOAT4X2) : ROWS,
	    ARG_SHAPE(ARG_ANY, ARG_ANY));
	d.tokens = tokens_of(c, h, "number of tokens of inputs->tokens", in->tokens);
	if (c->result)
		return;
	d.row_bytes = (int64_t)arg_row_bytes(in->tokens);
	d.recv_x = arg_tensor(c, "outputs->tokens", out->tokens, ARG_TYPE(in->tokens->datatype),
	    ARG_SHAPE(g->config.max_recv_tokens_per_rank, in->tokens->sizes[1]));
	if (c->result)
		return;
	rows = out->tokens->sizes[0];
	arg_range(c, "number of rows of outputs->tokens", rows, 0, INT32_MAX);
	d.capacity = (int32_t)rows;
	if (scales)
		take_scales(c, in->scales, out->scales, g->config.max_token_bytes, &d);
	if (backward && (in->topk_weights || out->topk_weights || out->topk_idx))
		arg_refuse(
		    c, ncclInvalidArgument, "topk_weights or topk_idx is given, and a backward dispatch has none");
	if (!backward) {
		d.topk_weights = arg_tensor(c, "inputs->topk_weights", in->topk_weights, ARG_TYPE(ncclFloat32),
		    ARG_SHAPE((size_t)d.tokens, h->topk));
		d.recv_topk_weights = arg_tensor(
		    c, "outputs->topk_weights", out->topk_weights, ARG_TYPE(ncclFloat32), ARG_SHAPE(rows, h->topk));
		d.recv_topk_idx =
		    arg_tensor(c, "outputs->topk_idx", out->topk_idx, ARG_TYPE(ncclInt64), ARG_SHAPE(rows, h->topk));
	}
	ARG_CALL(c, shunt_ep_dispatch(g->ep, &d));
}

ncclResult_t ncclEpDispatch(ncclEpHandle_t h, const ncclEpDispatchInputs_t *inputs,
    const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info, const ncclEpDispatchConfig_t *config,
    cudaStream_t stream)
{
	struct arg_check c = { "ncclEpDispatch", ncclSuccess };
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t how;

	arg_need(&c, "handle", h);
	ARG_TAKE(&c, ncclEpDispatchInputs_t, inputs, &in);
	ARG_TAKE(&c, ncclEpDispatchOutputs_t, outputs, &out);
	ARG_TAKE_OR_NONE(&c, ncclEpLayoutInfo_t, layout_info, &info);
	ARG_TAKE_OR_NONE(&c, ncclEpDispatchConfig_t, config, &how);
	if (c.result)
		return c.result;
	check_phase(&c, h, how.send_only, (unsigned)how.pass_direction);
	arg_range(&c, "quant_recipe", (unsigned)how.quant_recipe, 0, NCCL_EP_DISP_QUANT_DS_FP8E3M4);
	arg_forbid(&c, how.quant_recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4,
	    "quant_recipe is DS_FP8E3M4, whose scales lie by row, and those of Shunt's casts by column");
	arg_forbid(
	    &c, how.quant_recipe && h->group->ll, "quant_recipe is FWD, and Shunt's low latency calls carry no scales");
	arg_forbid(&c, info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL,
	    "recv_topk_idx_kind is GLOBAL, and Shunt gives local experts");
	if (!how.quant_recipe && (in.scales || out.scales))
		arg_refuse(&c, ncclInvalidArgument, "scales are given, and quant_recipe is NONE");
	if (!c.result && h->group->ll)
		dispatch_ll(&c, h, &in, &out, &info, how.send_only, stream);
	else if (!c.result)
		dispatch_ht(&c, h, &in, &out, how.pass_direction, how.quant_recipe, stream);
	return c.result;
}

static void combine_ll(struct arg_check *c, struct ncclEpHandle *h, const ncclEpCombineInputs_t *in,
    const ncclEpCombineOutputs_t *out, bool send_only, cudaStream_t stream)
{
	const struct ncclEpGroup *g = h->group;
	struct shunt_ep_ll_combine m = { .size = sizeof(m),
		.stream = stream,
		.phases = SHUNT_EP_SEND | (send_only ? 0 : SHUNT_EP_RECEIVE),
		.max_tokens = (int32_t)g->tokens,
		.topk = (int32_t)h->topk,
		.experts = (int32_t)g->config.num_experts,
		.src_idx = h->part[SRC_IDX],
		.ranges = h->part[RANGES],
		.routing = h->part[ROUTING],
		.topk_idx = h->topk_idx,
		.blocks = g->blocks };

	arg_forbid(
	    c, in->topk_weights, "inputs->topk_weights is given, and low latency weights are those of the outputs");
	m.x = arg_tensor(c, "inputs->tokens", in->tokens, HALVES, ARG_SHAPE(g->experts, g->slots, ARG_ANY));
	if (c->result)
		return;
	m.dtype = (int32_t)in->tokens->datatype;
	m.hidden = (int32_t)in->tokens->sizes[2];
	m.out =
	    arg_tensor(c, "outputs->tokens", out->tokens, ARG_TYPE(m.dtype), ARG_SHAPE(ARG_ANY, in->tokens->sizes[2]));
	m.tokens = tokens_of(c, h, "number of tokens of outputs->tokens", out->tokens);
	m.topk_weights = arg_tensor(
	    c, "outputs->topk_weights", out->topk_weights, ARG_TYPE(ncclFloat32), ARG_SHAPE((size_t)m.tokens, h->topk));
	ARG_CALL(c, shunt_ep_ll_combine(g->ep, &m));
	if (c->result || !send_only)
		return;
	h->combine = m;
	h->staged = COMBINE;
}

static void combine_ht(struct arg_check *c, struct ncclEpHandle *h, const ncclEpCombineInputs_t *in,
    const ncclEpCombineOutputs_t *out, bool backward, cudaStream_t stream)
{
	const struct ncclEpGroup *g = h->group;
	struct shunt_ep_combine m = { .size = sizeof(m),
		.stream = stream,
		.rank_prefix = h->part[RANK_PREFIX],
		.send_row = h->part[SEND_ROW],
		.src_idx = h->part[SRC_IDX],
		.topk = backward ? (int32_t)h->topk : 0,
		.blocks = g->blocks };

	m.x = arg_tensor(c, "inputs->tokens", in->tokens, ROWS, ARG_SHAPE(ARG_ANY, ARG_ANY));
	if (c->result)
		return;
	m.dtype = (int32_t)in->tokens->datatype;
	m.hidden = (int32_t)in->tokens->sizes[1];
	arg_range(c, "number of rows of inputs->tokens", in->tokens->sizes[0], 0, INT32_MAX);
	m.rows = (int32_t)in->tokens->sizes[0];
	m.out =
	    arg_tensor(c, "outputs->tokens", out->tokens, ARG_TYPE(m.dtype), ARG_SHAPE(ARG_ANY, in->tokens->sizes[1]));
	m.tokens = tokens_of(c, h, "number of tokens of outputs->tokens", out->tokens);
	if (!backward && (in->topk_weights || out->topk_weights))
		arg_refuse(c, ncclInvalidArgument, "topk_weights are given, and a forward combine has none");
	if (backward) {
		m.topk_weights = arg_tensor(c, "inputs->topk_weights", in->topk_weights, ARG_TYPE(ncclFloat32),
		    ARG_SHAPE((size_t)m.rows, h->topk));
		m.out_weights = arg_tensor(c, "outputs->topk_weights", out->topk_weights, ARG_TYPE(ncclFloat32),
		    ARG_SHAPE((size_t)m.tokens, h->topk));
	}
	ARG_CALL(c, shunt_ep_combine(g->ep, &m));
}

ncclResult_t ncclEpCombine(ncclEpHandle_t h, const ncclEpCombineInputs_t *inputs, const ncclEpCombineOutputs_t *outputs,
    const ncclEpCombineConfig_t *config, cudaStream_t stream)
{
	struct arg_check c = { "ncclEpCombine", ncclSuccess };
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t how;

	arg_need(&c, "handle", h);
	ARG_TAKE(&c, ncclEpCombineInputs_t, inputs, &in);
	ARG_TAKE(&c, ncclEpCombineOutputs_t, outputs, &out);
	ARG_TAKE_OR_NONE(&c, ncclEpCombineConfig_t, config, &how);
	if (c.result)
		return c.result;
	check_phase(&c, h, how.send_only, (unsigned)how.pass_direction);
	arg_forbid(&c, how.quant_recipe || in.scales, "quant_recipe or scales: Shunt's combine has none");
	if (!c.result && h->group->ll)
		combine_ll(&c, h, &in, &out, how.send_only, stream);
	else if (!c.result)
		combine_ht(&c, h, &in, &out, how.pass_direction, stream);
	return c.result;
}

/* Without a staged call, as in high throughput, there is nothing to do. */
ncclResult_t ncclEpComplete(ncclEpHandle_t h, const ncclEpCompleteConfig_t *config, cudaStream_t stream)
{
	struct arg_check c = { "ncclEpComplete", ncclSuccess };
	ncclEpCompleteConfig_t none;

	arg_need(&c, "handle", h);
	ARG_TAKE_OR_NONE(&c, ncclEpCompleteConfig_t, config, &none);
	if (c.result || !h->staged)
		return c.result;
	h->dispatch.phases = h->combine.phases = SHUNT_EP_RECEIVE;
	h->dispatch.stream = h->combine.stream = stream;
	if (h->staged == DISPATCH)
		ARG_CALL(&c, shunt_ep_ll_dispatch(h->group->ep, &h->dispatch));
	else
		ARG_CALL(&c, shunt_ep_ll_combine(h->group->ep, &h->combine));
	if (!c.result)
		h->staged = NOTHING;
	return c.result;
}
