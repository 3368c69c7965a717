/* SPDX-License-Identifier: MIT */
/*
 * libnccl_ep.so.0: groups, handles, dispatches and combines of both modes against the reference, and calls that are
 * refused. Ranks as threads, on the sim.
 */
#include "shim/nccl_ep/ep_abi.h"
#include "tests/e2e/ep_normal_job.h"
#include "tests/support/own.h"
#include "tests/support/stderr.h"
#include "tests/support/test.h"

static const struct ep_normal_job normal = { .job = { .experts = 12,
	                                         .topk = 3,
	                                         .hidden = 136,
	                                         .max_tokens = 9,
	                                         .dtype = ncclBfloat16,
	                                         .tokens = { 9, 9, 0 },
	                                         .seed = 7 },
	.row_bytes = 272,
	.topk = 3,
	.room = 2,
	.worst = true };

/* TENSOR(name, data, type, extents...): a description on the stack. */
#define TENSOR(name, memory, type, ...) \
	size_t name##_sizes[] = { __VA_ARGS__ }; \
	ncclEpTensor_t name = { sizeof(name), NCCL_EP_TENSOR_MAGIC, sizeof(name##_sizes) / sizeof(size_t), type, \
		.data = (void *)(memory), .sizes = name##_sizes }
#define STRUCT(type, name, ...) type name = { sizeof(name), NCCL_EP_MAGIC, __VA_ARGS__ }

/* context: the rank's number of allocations. */
static int take_memory(void **ptr, size_t bytes, void *context)
{
	++*(int *)context;
	return shunt_malloc(ptr, bytes);
}

static int give_memory(void *ptr, void *context)
{
	--*(int *)context;
	return shunt_free(ptr);
}

static ncclEpGroupConfig_t group_config(int algorithm, const struct ep_job *j, size_t token_bytes, int *allocated)
{
	STRUCT(ncclEpGroupConfig_t, c, .version = 2, .algorithm = algorithm, .num_experts = (unsigned)j->experts,
	    .max_dispatch_tokens_per_rank = (unsigned)j->max_tokens, .max_token_bytes = (unsigned)token_bytes,
	    .alloc = { take_memory, give_memory, allocated });
	return c;
}

/* ---- low latency */

RANKS_TEST(test_low_latency, ranks_run(RANKS_THREADS, 2, 0, body) + ranks_run(RANKS_THREADS, 3, 0, body))
{
	struct ep_job job = normal.job;
	struct ep_run run;
	size_t n = (size_t)job.tokens[r->rank], k = (size_t)job.topk, h = (size_t)job.hidden;
	size_t slots = (size_t)(r->nranks * job.max_tokens), local = (size_t)(job.experts / r->nranks);
	int allocated = 0;
	ncclEpGroupConfig_t config = group_config(NCCL_EP_ALGO_LOW_LATENCY, &job, 2 * h, &allocated);
	ncclEpGroup_t group;
	ncclEpHandle_t handle;

	job.nranks = r->nranks;
	/* A caller of version 1: what lies behind its struct does not count. */
	config.size = 96;
	config.zero_copy = NCCL_EP_ZERO_COPY_ON;
	NCCL(ncclEpCreateGroup(&group, r->comm, &config));
	for (unsigned send_only = 0; send_only < 2; send_only++, job.seed++) {
		ep_run_prepare(&run, &job, r);
		TENSOR(idx, run.dispatch.topk_idx, ncclInt64, n, k);
		TENSOR(x, run.dispatch.x, ncclBfloat16, n, h);
		TENSOR(recv, run.dispatch.recv_x, ncclBfloat16, local, slots, h);
		TENSOR(count, run.dispatch.count, ncclInt32, local);
		TENSOR(y, run.combine.x, ncclBfloat16, local, slots, h);
		TENSOR(out, run.combine.out, ncclBfloat16, n, h);
		TENSOR(weights, run.combine.topk_weights, ncclFloat32, n, k);
		STRUCT(ncclEpDispatchInputs_t, in, .tokens = &x);
		STRUCT(ncclEpDispatchOutputs_t, to, .tokens = &recv);
		STRUCT(ncclEpLayoutInfo_t, info, .expert_counters = &count);
		STRUCT(ncclEpDispatchConfig_t, how, .send_only = send_only);
		STRUCT(ncclEpCombineInputs_t, rows, .tokens = &y);
		STRUCT(ncclEpCombineOutputs_t, sums, .tokens = &out, .topk_weights = &weights);
		STRUCT(ncclEpCombineConfig_t, combine_how, .send_only = send_only);

		NCCL(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &idx, NULL, NULL, r->stream));
		NCCL(ncclEpDispatch(handle, &in, &to, &info, &how, r->stream));
		NCCL(ncclEpComplete(handle, NULL, r->stream));
		CHECK(ep_run_fill_rows(&run, r) == 0);
		NCCL(ncclEpCombine(handle, &rows, &sums, &combine_how, r->stream));
		NCCL(ncclEpComplete(handle, NULL, r->stream));
		CHECK(shunt_stream_synchronize(r->stream) == 0);
		run.dispatch.src_idx = NULL; /* is the handle's, as are the next two */
		run.dispatch.ranges = NULL;
		run.dispatch.routing = NULL;
		CHECK(ep_run_check_dispatch(&run, r) == 0 && ep_run_check_combine(&run, r) == 0);
		NCCL(ncclEpHandleDestroy(handle));
		ep_run_finish(&run);
	}
	NCCL(ncclEpGroupDestroy(group));
	CHECK(allocated == 0);
	return 0;
}

/* ---- high throughput */

struct ht {
	struct ep_normal_run n;
	ncclEpHandle_t handle;
	ncclEpTensor_t *memory; /* the handle's */
	void *counters;         /* int32 [local experts], int64 */
};

/* The routing alone; in a capture no count is asked for. */
static int update(struct ht *t, const struct rank *r, bool counts)
{
	const struct ep_job *j = &t->n.run.job;
	size_t local = (size_t)(j->experts / j->nranks), places = (size_t)(j->tokens[r->rank] * j->topk);
	void *topk_idx = (void *)t->n.layout.topk_idx;

	TENSOR(idx, topk_idx, ncclInt64, (size_t)j->tokens[r->rank], (size_t)j->topk);
	TENSOR(experts, t->counters, ncclInt32, local);
	TENSOR(total, (char *)t->counters + 8 * local, ncclInt64, 1);
	STRUCT(ncclEpLayoutInfo_t, info, .expert_counters = counts ? &experts : NULL, .recv_total_counter = &total);
	NCCL(ncclEpUpdateHandle(t->handle, &idx, &info, r->stream));
	/* The handle has a copy. */
	CHECK(shunt_memset_async(topk_idx, 0x55, places * sizeof(int64_t), r->stream) == 0);
	return 0;
}

static int check_counters(struct ht *t, const struct rank *r)
{
	const struct ep_job *j = &t->n.run.job;
	int local = j->experts / j->nranks;
	int32_t experts[12] = { 0 }, got[12];
	int64_t total;

	for (int s = 0; s < j->nranks; s++)
		for (int i = 0; i < j->tokens[s] * j->topk; i++)
			if (t->n.run.topk_idx[s][i] >= 0 && t->n.run.topk_idx[s][i] / local == r->rank)
				experts[t->n.run.topk_idx[s][i] % local]++;
	CHECK(shunt_memcpy(got, t->counters, sizeof(*got) * (size_t)local) == 0);
	CHECK(memcmp(got, experts, sizeof(*got) * (size_t)local) == 0);
	CHECK(shunt_memcpy(&total, (char *)t->counters + 8 * (size_t)local, sizeof(total)) == 0 && total == t->n.rows);
	return 0;
}

/* A dispatch and a combine of a pass, on the handle. */
static int pass(struct ht *t, const struct rank *r, bool backward)
{
	struct shunt_ep_dispatch *d = &t->n.dispatch;
	struct shunt_ep_combine *m = &t->n.combine;
	size_t tokens = (size_t)d->tokens, rows = (size_t)d->capacity, k = (size_t)t->n.run.job.topk;
	int type = d->nscales ? ncclFloat8e4m3 : ncclBfloat16;
	size_t row = (size_t)d->row_bytes / (d->nscales ? 1 : 2), h = (size_t)m->hidden;

	TENSOR(x, d->x, type, tokens, row);
	TENSOR(scales, d->scales, ncclUint8, tokens, 4 * (size_t)d->nscales);
	TENSOR(weights, d->topk_weights, ncclFloat32, tokens, k);
	TENSOR(recv, d->recv_x, type, rows, row);
	TENSOR(recv_scales, d->recv_scales, ncclUint8, rows, 4 * (size_t)d->nscales);
	TENSOR(recv_weights, d->recv_topk_weights, ncclFloat32, rows, k);
	TENSOR(recv_idx, d->recv_topk_idx, ncclInt64, rows, k);
	TENSOR(y, m->x, ncclBfloat16, rows, h);
	TENSOR(y_weights, m->topk_weights, ncclFloat32, rows, k);
	TENSOR(out, m->out, ncclBfloat16, tokens, h);
	TENSOR(out_weights, m->out_weights, ncclFloat32, tokens, k);
	STRUCT(ncclEpDispatchInputs_t, in, &x, backward ? NULL : &weights, d->nscales ? &scales : NULL);
	STRUCT(ncclEpDispatchOutputs_t, to, &recv, backward ? NULL : &recv_weights, d->nscales ? &recv_scales : NULL,
	    backward ? NULL : &recv_idx);
	STRUCT(ncclEpDispatchConfig_t, how, .pass_direction = backward,
	    .quant_recipe = d->nscales ? NCCL_EP_DISP_QUANT_FWD : NCCL_EP_DISP_QUANT_NONE);
	STRUCT(ncclEpCombineInputs_t, gives, &y, backward ? &y_weights : NULL);
	STRUCT(ncclEpCombineOutputs_t, sums, &out, backward ? &out_weights : NULL);
	STRUCT(ncclEpCombineConfig_t, combine_how, .pass_direction = backward);
	NCCL(ncclEpDispatch(t->handle, &in, &to, NULL, &how, r->stream));
	NCCL(ncclEpCombine(t->handle, &gives, &sums, &combine_how, r->stream));
	return 0;
}

/* What the call has, and no more: the rest is the handle's, or another pass's. */
static int check_pass(struct ht *t, const struct rank *r, bool backward)
{
	t->n.layout.per_rank = NULL;
	t->n.layout.per_expert = NULL;
	t->n.layout.in_rank = NULL;
	t->n.notify.rank_prefix = NULL;
	t->n.notify.send_row = NULL;
	t->n.notify.received = NULL;
	t->n.dispatch.src_idx = NULL;
	if (backward) {
		t->n.dispatch.recv_topk_idx = NULL;
		t->n.dispatch.recv_topk_weights = NULL;
	} else {
		t->n.combine.out_weights = NULL;
	}
	CHECK(ep_normal_check(&t->n, r) == 0);
	return 0;
}

static int body_ht_of(struct rank *r, struct ep_normal_job job, bool captured)
{
	size_t widest = (size_t)job.row_bytes + 4 * (size_t)job.nscales, bytes;
	int allocated = 0;
	ncclEpGroupConfig_t config =
	    group_config(NCCL_EP_ALGO_HIGH_THROUGHPUT, &job.job, widest > 272 ? widest : 272, &allocated);
	struct ht t = { .handle = NULL };
	ncclEpGroup_t group;
	void *graph;

	job.job.nranks = r->nranks;
	ep_normal_prepare(&t.n, &job, r);
	if (job.room < 0) {
		config.max_recv_tokens_per_rank = (unsigned)t.n.dispatch.capacity;
		config.overflow_policy = NCCL_EP_OVERFLOW_DROP;
	}
	config.num_topk = (unsigned)job.topk;
	config.max_num_sms = 2;
	NCCL(ncclEpCreateGroup(&group, r->comm, &config));
	NCCL(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_FLAT, NULL, &bytes, job.topk));
	NCCL(ncclEpTensorAlloc(&t.memory, 1, ncclUint8, &bytes, NULL));
	t.memory->data = ep_run_memory(&t.n.run, NULL, bytes, false);
	t.counters = ep_run_memory(&t.n.run, NULL, 8 * 12 + 8, false);
	NCCL(ncclEpInitHandle(&t.handle, group, NCCL_EP_LAYOUT_FLAT, NULL, job.topk, captured ? NULL : t.memory));
	CHECK(allocated == captured);
	if (captured) {
		CHECK(shunt_capture_begin(r->stream) == 0);
		CHECK(update(&t, r, false) == 0 && pass(&t, r, false) == 0);
		CHECK(shunt_capture_end(r->stream, &graph) == 0 && shunt_graph_launch(graph, r->stream) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && shunt_graph_destroy(graph) == 0);
	} else {
		CHECK(update(&t, r, true) == 0 && pass(&t, r, false) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && check_counters(&t, r) == 0);
	}
	CHECK(check_pass(&t, r, false) == 0);
	NCCL(ncclEpHandleDestroy(t.handle));
	if (!captured) { /* backward, by a second handle on the memory of the first */
		void *memory = t.memory->data;
		struct ht back = { .memory = t.memory };

		ep_normal_prepare(&back.n, &job, r);
		NCCL(ncclEpInitHandle(&back.handle, group, NCCL_EP_LAYOUT_FLAT, NULL, job.topk, back.memory));
		CHECK(back.memory->data == memory && pass(&back, r, true) == 0);
		CHECK(shunt_stream_synchronize(r->stream) == 0 && check_pass(&back, r, true) == 0);
		NCCL(ncclEpHandleDestroy(back.handle));
		ep_normal_finish(&back.n);
	}
	NCCL(ncclEpTensorDestroy(t.memory));
	ep_normal_finish(&t.n);
	NCCL(ncclEpGroupDestroy(group));
	CHECK(allocated == 0);
	return 0;
}

RANKS_TEST(test_high_throughput, ranks_run(RANKS_THREADS, 2, 0, body) + ranks_run(RANKS_THREADS, 3, 0, body))
{
	struct ep_normal_job job = normal;

	CHECK(body_ht_of(r, job, false) == 0);
	CHECK(body_ht_of(r, job, true) == 0);
	job.room = -2; /* rows that are left out */
	CHECK(body_ht_of(r, job, false) == 0);
	job.room = 2;
	job.job.routing = EP_TO_RANK_0;
	CHECK(body_ht_of(r, job, false) == 0);
	job.row_bytes = 144;
	job.nscales = 8;
	CHECK(body_ht_of(r, job, false) == 0);
	return 0;
}

/* ---- over hosts, which are names here */

static void enter_host(int rank)
{
	setenv("SHUNT_HOSTID", rank % 2 ? "host1" : "host0", 1);
	setenv("SHUNT_NET", "tcp", 1);
}

RANKS_TEST(test_hosts, ranks_run_as(&(struct ranks){ RANKS_PROCESSES, 3, 0, body, enter_host }))
{
	return test_low_latency_body(r) || test_high_throughput_body(r);
}

/* ---- what is refused: at once, with one line, and the group goes on */

/* REFUSED(call, result, words) */
static struct stderr_kept kept;

static int refused(const struct rank *r, ncclResult_t got, ncclResult_t expected, const char *words)
{
	bool right = got == expected && stderr_count(&kept, "\n") == 1 && stderr_count(&kept, words) == 1 &&
	    stderr_count(&kept, "shunt: ncclEp") == 1;

	stderr_give_back(&kept, !right);
	if (!right)
		fprintf(stderr, "rank %d: %d, not %d with one line that has \"%s\"\n", r->rank, (int)got, (int)expected,
		    words);
	return !right;
}

#define REFUSED(call, expected, words) \
	do { \
		CHECK(stderr_keep(&kept)); \
		ncclResult_t got = (call); \
		CHECK(refused(r, got, expected, words) == 0); \
	} while (0)
#define A ncclInvalidArgument
#define U ncclInvalidUsage

/* As processes: each has its own stderr. */
RANKS_TEST(test_groups_that_are_refused, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	int allocated = 0;
	const ncclEpGroupConfig_t good = group_config(NCCL_EP_ALGO_HIGH_THROUGHPUT, &normal.job, 272, &allocated);
	ncclEpTensor_t *t, still = { sizeof(still), NCCL_EP_TENSOR_MAGIC };
	ncclEpGroup_t group;
	size_t size = 4;
	int version;

	NCCL(ncclEpGetVersion(&version));
	CHECK(version == 100);
	REFUSED(ncclEpGetVersion(NULL), A, "version is NULL");
	REFUSED(ncclEpTensorAlloc(&t, 0, ncclInt8, &size, NULL), A, "ndim is 0");
	REFUSED(ncclEpTensorAlloc(&t, 1, ncclInt8, NULL, NULL), A, "sizes is NULL");
	NCCL(ncclEpTensorAlloc(&t, 1, ncclInt8, &size, NULL));
	CHECK(t->ndim == 1 && t->sizes != &size && t->sizes[0] == 4 && !t->data);
	NCCL(ncclEpTensorDestroy(t));
	NCCL(ncclEpTensorDestroy(NULL));
	REFUSED(ncclEpTensorDestroy(&still), A, "tensor has size 48");
#define BAD(change, expected, words) \
	do { \
		ncclEpGroupConfig_t bad = good; \
		change; \
		REFUSED(ncclEpCreateGroup(&group, r->comm, &bad), expected, words); \
	} while (0)
	BAD(bad.size = 95, A, "config has size 95");
	BAD(bad.magic = 0, A, "magic number 0x0");
	BAD(bad.algorithm = 2, A, "algorithm is 2");
	BAD(bad.num_experts = 13, A, "num_experts is 13");
	BAD(bad.num_experts = 0, A, "num_experts is 0");
	BAD(bad.max_dispatch_tokens_per_rank = 0, A, "max_dispatch_tokens_per_rank is 0");
	BAD(bad.max_recv_tokens_per_rank = 5, A, "max_recv_tokens_per_rank is 5");
	BAD(bad.max_token_bytes = 0, A, "max_token_bytes is 0");
	BAD(bad.overflow_policy = 3, A, "overflow_policy is 3");
	BAD(bad.overflow_policy = NCCL_EP_OVERFLOW_DROP, U, "overflow_policy is DROP");
	BAD(bad.zero_copy = NCCL_EP_ZERO_COPY_ON, U, "zero_copy is ON");
	BAD(bad.enable_mask = 1, U, "enable_mask is set");
	BAD(bad.alloc.free_fn = NULL, U, "one function of alloc");
	REFUSED(ncclEpCreateGroup(&group, NULL, &good), A, "comm is (nil)");
	REFUSED(ncclEpCreateGroup(NULL, r->comm, &good), A, "ep_group is NULL");
	REFUSED(ncclEpGroupDestroy(NULL), A, "ep_group is NULL");
	REFUSED(ncclEpMaskQuery(NULL, NULL, NULL), U, "without enable_mask");
	REFUSED(ncclEpErrorClear(NULL), U, "without enable_mask");
	return 0;
}
#undef BAD

RANKS_TEST(test_calls_that_are_refused, ranks_run(RANKS_PROCESSES, 2, 0, body))
{
	enum { K = 3, H = 136, T = 9 };
	int allocated = 0;
	ncclEpGroupConfig_t config = group_config(NCCL_EP_ALGO_LOW_LATENCY, &normal.job, 2 * H, &allocated);
	char memory[16]; /* nothing of it is looked at */
	const size_t slots = (size_t)r->nranks * T, local = 12 / (size_t)r->nranks;
	ncclEpHandle_t ll, ht, fresh;
	ncclEpGroup_t low, high;
	size_t bytes;
	void *topk_idx;

	CHECK(shunt_malloc(&topk_idx, sizeof(int64_t[T][K])) == 0);
	CHECK(shunt_memset_async(topk_idx, 0, sizeof(int64_t[T][K]), r->stream) == 0);
	TENSOR(idx, topk_idx, ncclInt64, T, K);
	TENSOR(x, memory, ncclBfloat16, T, H);
	TENSOR(recv, memory, ncclBfloat16, local, slots, H);
	TENSOR(flat, memory, ncclBfloat16, slots, H);
	TENSOR(count, memory, ncclInt32, local);
	TENSOR(weights, memory, ncclFloat32, T, K);
	TENSOR(row_weights, memory, ncclFloat32, slots, K);
	TENSOR(row_idx, memory, ncclInt64, slots, K);
	STRUCT(ncclEpDispatchInputs_t, ll_in, &x);
	STRUCT(ncclEpDispatchOutputs_t, ll_to, &recv);
	STRUCT(ncclEpDispatchInputs_t, ht_in, &x, &weights);
	STRUCT(ncclEpDispatchOutputs_t, ht_to, &flat, &row_weights, NULL, &row_idx);
	STRUCT(ncclEpCombineInputs_t, ll_rows, &recv);
	STRUCT(ncclEpCombineInputs_t, ht_rows, &flat);
	STRUCT(ncclEpCombineOutputs_t, ll_sums, &x, &weights);
	STRUCT(ncclEpCombineOutputs_t, ht_sums, &x);
	STRUCT(ncclEpLayoutInfo_t, info, &count);
	STRUCT(ncclEpDispatchConfig_t, how, 0);
	STRUCT(ncclEpCombineConfig_t, combine_how, 0);

	NCCL(ncclEpCreateGroup(&low, r->comm, &config));
	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	NCCL(ncclEpCreateGroup(&high, r->comm, &config));
#define INIT(group, layout, topk, expected, words) \
	REFUSED(ncclEpInitHandle(&fresh, group, layout, NULL, topk, NULL), expected, words)
	INIT(low, NCCL_EP_LAYOUT_RANK_MAJOR, K, U, "layout is 2");
	INIT(low, NCCL_EP_LAYOUT_FLAT, K, U, "layout is 3");
	INIT(high, NCCL_EP_LAYOUT_EXPERT_MAJOR, K, U, "layout is 1");
	INIT(high, 0, K, A, "layout is 0");
	INIT(high, NCCL_EP_LAYOUT_FLAT, -1, A, "num_topk is");
	INIT(high, NCCL_EP_LAYOUT_FLAT, 17, A, "num_topk is 17");
	INIT(NULL, NCCL_EP_LAYOUT_FLAT, K, A, "ep_group is NULL");
	TENSOR(little, memory, ncclUint8, sizeof(memory));
	REFUSED(ncclEpInitHandle(&fresh, low, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, &little), A,
	    "handle_mem has 16 elements");
	REFUSED(ncclEpHandleMemSize(low, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, NULL, K), A, "size_out is NULL");
	NCCL(ncclEpHandleMemSize(low, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, K));
	NCCL(ncclEpInitHandle(&fresh, low, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, NULL));
	REFUSED(ncclEpDispatch(fresh, &ll_in, &ll_to, &info, NULL, NULL), U, "ncclEpUpdateHandle was not called");
	NCCL(ncclEpHandleDestroy(fresh));
	NCCL(ncclEpCreateHandle(&ll, low, NCCL_EP_LAYOUT_EXPERT_MAJOR, &idx, NULL, NULL, r->stream));
	NCCL(ncclEpCreateHandle(&ht, high, NCCL_EP_LAYOUT_FLAT, &idx, NULL, NULL, r->stream));
	REFUSED(ncclEpUpdateHandle(ll, &idx, &info, NULL), U, "layout_info of a low latency group");
	/* BAD(change, back, call, expected, words): of the structs and tensors above, one at a time. */
#define BAD(lvalue, value, call, expected, words) \
	do { \
		__typeof__(lvalue) before = lvalue; \
		lvalue = value; \
		REFUSED(call, expected, words); \
		lvalue = before; \
	} while (0)
#define UPDATE ncclEpUpdateHandle(ht, &idx, &info, NULL)
	BAD(idx.datatype, ncclInt32, UPDATE, U, "type int32");
	BAD(idx.datatype, ncclFloat32, UPDATE, A, "topk_idx is of type 7");
	BAD(idx_sizes[1], 2, UPDATE, A, "topk_idx has 2 elements in dimension 1");
	BAD(idx_sizes[0], T + 1, UPDATE, A, "number of tokens of topk_idx is 10");
	BAD(idx.magic, 1, UPDATE, A, "topk_idx has size 48 and magic number 0x1");
	BAD(info.expert_offsets, &count, UPDATE, U, "expert_offsets");
	BAD(count.datatype, ncclInt64, UPDATE, A, "expert_counters is of type 4");
#define LL_DISPATCH ncclEpDispatch(ll, &ll_in, &ll_to, &info, &how, NULL)
	BAD(ll_in.tokens, NULL, LL_DISPATCH, A, "inputs->tokens is NULL");
	BAD(ll_in.topk_weights, &weights, LL_DISPATCH, U, "topk_weights and topk_idx");
	BAD(info.expert_counters, NULL, LL_DISPATCH, A, "expert_counters is NULL");
	BAD(info.recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL, LL_DISPATCH, U, "recv_topk_idx_kind is GLOBAL");
	BAD(x.data, NULL, LL_DISPATCH, A, "inputs->tokens has no data");
	BAD(x.datatype, ncclFloat32, LL_DISPATCH, A, "inputs->tokens is of type 7");
	BAD(x_sizes[0], 4, LL_DISPATCH, A, "number of tokens of inputs->tokens is 4");
	BAD(recv.datatype, ncclFloat16, LL_DISPATCH, A, "outputs->tokens is of type 6");
	BAD(recv_sizes[1], 4, LL_DISPATCH, A, "outputs->tokens has 4 elements in dimension 1");
	BAD(recv.ndim, 2, LL_DISPATCH, A, "outputs->tokens has 2 dimensions");
	BAD(how.quant_recipe, NCCL_EP_DISP_QUANT_DS_FP8E3M4, LL_DISPATCH, U, "quant_recipe is DS_FP8E3M4");
	BAD(how.quant_recipe, NCCL_EP_DISP_QUANT_FWD, LL_DISPATCH, U, "quant_recipe is FWD");
	BAD(how.quant_recipe, 3, LL_DISPATCH, A, "quant_recipe is 3");
	BAD(how.pass_direction, NCCL_EP_BWD_PASS, LL_DISPATCH, A, "pass_direction is 1");
#define HT_DISPATCH ncclEpDispatch(ht, &ht_in, &ht_to, NULL, &how, NULL)
	BAD(how.send_only, 1, HT_DISPATCH, U, "send_only is set");
	BAD(how.pass_direction, NCCL_EP_BWD_PASS, HT_DISPATCH, A, "a backward dispatch has none");
	BAD(ht_in.topk_weights, NULL, HT_DISPATCH, A, "inputs->topk_weights is NULL");
	BAD(ht_to.topk_idx, NULL, HT_DISPATCH, A, "outputs->topk_idx is NULL");
	BAD(ht_in.scales, &weights, HT_DISPATCH, A, "scales are given");
	BAD(how.quant_recipe, NCCL_EP_DISP_QUANT_FWD, HT_DISPATCH, A, "inputs->scales is NULL");
	BAD(x_sizes[1], 2 * H, HT_DISPATCH, A, "max_token_bytes is 272");
	BAD(row_idx.datatype, ncclInt32, HT_DISPATCH, A, "outputs->topk_idx is of type 2");
	BAD(flat.data, NULL, HT_DISPATCH, A, "outputs->tokens has no data");
#define LL_COMBINE ncclEpCombine(ll, &ll_rows, &ll_sums, &combine_how, NULL)
	BAD(ll_sums.topk_weights, NULL, LL_COMBINE, A, "outputs->topk_weights is NULL");
	BAD(ll_rows.topk_weights, &weights, LL_COMBINE, U, "inputs->topk_weights is given");
	BAD(ll_rows.scales, &weights, LL_COMBINE, U, "quant_recipe or scales");
#define HT_COMBINE ncclEpCombine(ht, &ht_rows, &ht_sums, &combine_how, NULL)
	BAD(ht_sums.topk_weights, &weights, HT_COMBINE, A, "a forward combine has none");
	BAD(combine_how.pass_direction, NCCL_EP_BWD_PASS, HT_COMBINE, A, "inputs->topk_weights is NULL");
	BAD(combine_how.size, 15, HT_COMBINE, A, "config has size 15");
	NCCL(ncclEpComplete(ht, NULL, NULL));
	REFUSED(ncclEpComplete(NULL, NULL, NULL), A, "handle is NULL");
	CHECK(shunt_stream_synchronize(r->stream) == 0);
	NCCL(ncclEpHandleDestroy(ll));
	NCCL(ncclEpHandleDestroy(ht));
	NCCL(ncclEpHandleDestroy(NULL));
	NCCL(ncclEpGroupDestroy(low));
	NCCL(ncclEpGroupDestroy(high));
	CHECK(shunt_free(topk_idx) == 0);
	return 0;
}

TESTS_BEGIN
{
	own_environment();
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_DEVICE", "sim", 0);
}
