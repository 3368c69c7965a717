/* SPDX-License-Identifier: MIT */
#include "tests/kernels/planted_ep.h"
#include "algos/ep/low_latency.h"
#include "algos/ep/normal.h"
#include "device/sim/hooks.h"
#include "kernels/ep.h"
#include "tests/algos/sel.h"
#include "tests/support/pause.h"
#include "tests/support/test.h"
#include "tools/common/ep_reference.h"
#include "tools/common/reference.h"

enum { RANKS = 3, LOCAL = 2, TOPK = 2, HIDDEN = 512, MOST = 5, SLOTS = RANKS * MOST };
enum { LL_BYTES = 1 << 20 };

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;

/* One call of all ranks. */
struct call {
	int tokens[RANKS];
	int64_t topk_idx[RANKS][MOST * TOPK];
	float weights[RANKS][MOST * TOPK];
	uint16_t x[RANKS][MOST * HIDDEN];
	struct {
		uint16_t recv_x[LOCAL * SLOTS * HIDDEN], rows[LOCAL * SLOTS * HIDDEN], out[MOST * HIDDEN];
		uint32_t scales[LOCAL * SLOTS * HIDDEN / 128];
		int32_t count[LOCAL], src_idx[LOCAL * SLOTS];
		int64_t ranges[LOCAL * RANKS], wait_ns[RANKS];
		int16_t routing[SLOTS * TOPK];
	} of[RANKS], expected[RANKS];
};

/*
 * Tokens of even calls stay on their rank, except for one of rank 0: so combines hear nothing from a rank that is
 * behind.
 */
static void fill(struct call *c, int number, int form, uint32_t masked, bool rank_sums)
{
	const int64_t *topk_idx[RANKS];
	const float *weights[RANKS];
	const uint16_t *x[RANKS], *rows[RANKS];
	const int32_t *src_idx[RANKS];
	const int64_t *ranges[RANKS];
	struct ep_inputs in = { RANKS, RANKS * LOCAL, TOPK, HIDDEN, c->tokens, topk_idx, weights, x, masked,
		rank_sums };
	uint64_t seed = (uint64_t)number + 1;

	memset(c, 0, sizeof(*c));
	for (int s = 0; s < RANKS; s++) {
		c->tokens[s] = 1 + (number + s) % MOST;
		for (int i = 0; i < MOST * TOPK; i++)
			c->topk_idx[s][i] = number % 2 || (s == 0 && i == 0) ?
			    (int64_t)(ref_random(&seed) % (RANKS * LOCAL + 1)) - 1 :
			    s * LOCAL + i % LOCAL;
		ref_fill(c->weights[s], MOST * TOPK, SHUNT_F32, &seed);
		ref_fill(c->x[s], MOST * HIDDEN, SHUNT_BF16, &seed);
		topk_idx[s] = c->topk_idx[s];
		weights[s] = c->weights[s];
		x[s] = c->x[s];
	}
	for (int r = 0; r < RANKS; r++) {
		struct ep_ll_outputs out = { c->expected[r].recv_x, c->expected[r].scales, c->expected[r].count,
			c->expected[r].src_idx, c->expected[r].ranges, c->expected[r].routing };

		ep_ll_dispatch(&in, r, MOST, form, &out);
		ref_fill(c->of[r].rows, LOCAL * SLOTS * HIDDEN, SHUNT_BF16, &seed);
		rows[r] = c->of[r].rows;
		src_idx[r] = c->expected[r].src_idx;
		ranges[r] = c->expected[r].ranges;
	}
	for (int r = 0; r < RANKS; r++)
		if (!(masked >> r & 1))
			ep_ll_combine(&in, r, MOST, SHUNT_BF16, rows, src_idx, ranges, c->expected[r].out);
}

static void launch(struct world *w, int rank, struct shunt_work *work)
{
	struct shunt_gpu_launch l = { .kernel = work->kernel,
		.blocks = work->blocks,
		.threads = work->threads,
		.args = &work->args,
		.stream = w->stream[rank] };

	work->args.k.rank = (uint16_t)rank;
	work->args.k.nranks = RANKS;
	for (int p = 0; p < RANKS; p++)
		work->args.k.peer[p] = w->mem[p].ptr;
	assert_int_equal(gpu->launch(rank, &l), 0);
}

static void launch_call(struct world *w, int rank, struct call *c, int form, uint32_t phases, bool combines,
    const struct shunt_ep_room *room)
{
	struct shunt_ep_ll_dispatch dispatch = { .phases = phases,
		.form = form,
		.x = c->x[rank],
		.topk_idx = c->topk_idx[rank],
		.tokens = c->tokens[rank],
		.max_tokens = MOST,
		.hidden = HIDDEN,
		.topk = TOPK,
		.experts = RANKS * LOCAL,
		.recv_x = c->of[rank].recv_x,
		.recv_scales = c->of[rank].scales,
		.count = c->of[rank].count,
		.src_idx = c->of[rank].src_idx,
		.ranges = c->of[rank].ranges,
		.routing = c->of[rank].routing,
		.wait_ns = c->of[rank].wait_ns };
	struct shunt_ep_ll_combine combine = { .phases = phases,
		.dtype = SHUNT_BF16,
		.tokens = c->tokens[rank],
		.max_tokens = MOST,
		.hidden = HIDDEN,
		.topk = TOPK,
		.experts = RANKS * LOCAL,
		.x = c->of[rank].rows,
		.src_idx = c->of[rank].src_idx,
		.ranges = c->of[rank].ranges,
		.routing = c->of[rank].routing,
		.topk_idx = c->topk_idx[rank],
		.topk_weights = c->weights[rank],
		.out = c->of[rank].out,
		.wait_ns = c->of[rank].wait_ns };
	struct shunt_work work;
	struct shunt_ep_why why;

	assert_int_equal(combines ? shunt_ep_ll_combine_work(room, &combine, &work, &why) :
	                            shunt_ep_ll_dispatch_work(room, &dispatch, &work, &why),
	    0);
	launch(w, rank, &work);
}

/* Both kinds of a pair of calls, the second's sends before the first's receives. */
static void launch_pair(struct world *w, int rank, struct call *c, int form, const struct shunt_ep_room *room)
{
	for (int combines = 0; combines < 2; combines++)
		for (int i = 0; i < 4; i++) {
			static const int which[] = { 0, 1, 1, 0 };

			launch_call(
			    w, rank, &c[which[i]], form, i < 2 ? SHUNT_EP_SEND : SHUNT_EP_RECEIVE, combines, room);
		}
}

static void check(const struct call *c, int rank)
{
	size_t first;

	assert_memory_equal(c->of[rank].count, c->expected[rank].count, sizeof(c->of[rank].count));
	assert_memory_equal(c->of[rank].src_idx, c->expected[rank].src_idx, sizeof(c->of[rank].src_idx));
	assert_memory_equal(c->of[rank].ranges, c->expected[rank].ranges, sizeof(c->of[rank].ranges));
	assert_memory_equal(c->of[rank].routing, c->expected[rank].routing, sizeof(c->of[rank].routing));
	assert_memory_equal(c->of[rank].recv_x, c->expected[rank].recv_x, sizeof(c->of[rank].recv_x));
	assert_memory_equal(c->of[rank].scales, c->expected[rank].scales, sizeof(c->of[rank].scales));
	assert_int_equal(
	    ref_compare(c->of[rank].out, c->expected[rank].out, (size_t)(c->tokens[rank] * HIDDEN), SHUNT_BF16, &first),
	    0);
}

void planted_ep(struct world *w, int times, int form, bool phases, bool masks, int late, bool rank_sums)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct call *calls = calloc((size_t)times, sizeof(*calls));
	uint32_t gate = 0, masked = masks ? 1u << (RANKS - 1) : 0;

	for (int i = 0; i < times; i++)
		fill(&calls[i], i, form, masked, rank_sums);
	if (late >= 0)
		assert_int_equal(shunt_sim_gate(late, w->stream[late], &gate), 0);
	for (int r = 0; r < RANKS; r++) {
		struct shunt_ep_room room = { .nranks = RANKS,
			.rank = r,
			.most_topk = TOPK,
			.local = RANKS,
			.flags = masks ? SHUNT_EP_MASKS : 0,
			.ll_bytes = LL_BYTES,
			.key = &key,
			.rank_sums = rank_sums };
		struct shunt_ep_ctrl *ctrl = (struct shunt_ep_ctrl *)((char *)w->mem[r].ptr + SHUNT_EP_CTRL_AT);

		if (masks)
			ctrl->mask[RANKS - 1] = 1;
		for (int i = 0; i < times && !(masked >> r & 1); i++)
			if (phases && i % 2 == 0)
				launch_pair(w, r, &calls[i], form, &room);
			else
				for (int combines = 0; combines < 2 && !phases; combines++)
					launch_call(
					    w, r, &calls[i], form, SHUNT_EP_SEND | SHUNT_EP_RECEIVE, combines, &room);
	}
	for (int i = 0; i < 2 * RANKS && late >= 0; i++)
		if (i % RANKS != late)
			shunt_sim_wait_stuck(i % RANKS, w->stream[i % RANKS]);
	shunt_sim_gate_open(&gate);
	for (int r = 0; r < RANKS; r++)
		world_wait(w, r, "expert parallel");
	for (int i = 0; i < times; i++)
		for (int r = 0; r < RANKS; r++)
			if (!(masked >> r & 1))
				check(&calls[i], r);
	free(calls);
}

/* ---- normal mode */

/* Aligned rows of three slots, so that one of them is plain (kernels/ep_rings.h). */
enum { TOKENS = 9, WIDTH = 496, ROWS = RANKS * TOKENS };

struct normal {
	int tokens[RANKS];
	int64_t topk_idx[RANKS][TOKENS * TOPK];
	float weights[RANKS][TOKENS * TOPK];
	_Alignas(16) uint16_t x[RANKS][TOKENS * WIDTH];
	uint32_t scales[RANKS][TOKENS];
	struct {
		int32_t per_rank[RANKS], per_expert[RANKS * LOCAL], prefix[RANKS * RANKS], send_row[TOKENS * RANKS],
		    received;
		uint8_t in_rank[TOKENS * RANKS];
		_Alignas(16) uint16_t recv_x[ROWS * WIDTH], rows[ROWS * WIDTH], out[TOKENS * WIDTH];
		uint32_t scales[ROWS];
		int64_t topk_idx[ROWS * TOPK];
		float weights[ROWS * TOPK], out_weights[TOKENS * TOPK];
		int32_t src_idx[ROWS];
	} of[RANKS], expected[RANKS];
};

static void expect_rows(struct normal *c, const struct ep_inputs *in, int r)
{
	int32_t source[ROWS], token[ROWS];
	int n = ep_rows(in, r, source, token);

	for (int i = 0; i < n; i++) {
		c->expected[r].src_idx[i] = token[i];
		c->expected[r].scales[i] = c->scales[source[i]][token[i]];
		memcpy(&c->expected[r].recv_x[i * WIDTH], &c->x[source[i]][token[i] * WIDTH], WIDTH * 2);
		ep_row_experts(
		    in, r, source[i], token[i], &c->expected[r].topk_idx[i * TOPK], &c->expected[r].weights[i * TOPK]);
	}
	for (int i = n * TOPK; i < ROWS * TOPK; i++)
		c->expected[r].topk_idx[i] = -1;
	c->expected[r].received = n;
}

static void fill_normal(struct normal *c, int number)
{
	const int64_t *topk_idx[RANKS];
	const float *weights[RANKS], *of_rows[RANKS];
	const uint16_t *x[RANKS];
	const void *rows[RANKS], *bias[2] = { NULL, NULL };
	struct ep_inputs in = { .nranks = RANKS,
		.experts = RANKS * LOCAL,
		.topk = TOPK,
		.hidden = WIDTH,
		.tokens = c->tokens,
		.topk_idx = topk_idx,
		.topk_weights = weights,
		.x = x };
	uint64_t seed = (uint64_t)number + 77;

	memset(c, 0, sizeof(*c));
	for (int s = 0; s < RANKS; s++) {
		c->tokens[s] = TOKENS - (number + s) % 2;
		for (int i = 0; i < TOKENS * TOPK; i++)
			c->topk_idx[s][i] = (int64_t)(ref_random(&seed) % (RANKS * LOCAL + 1)) - 1;
		for (int i = 0; i < TOKENS; i++)
			c->scales[s][i] = (uint32_t)ref_random(&seed);
		ref_fill(c->weights[s], TOKENS * TOPK, SHUNT_F32, &seed);
		ref_fill(c->x[s], TOKENS * WIDTH, SHUNT_BF16, &seed);
		topk_idx[s] = c->topk_idx[s];
		weights[s] = c->weights[s];
		x[s] = c->x[s];
	}
	for (int r = 0; r < RANKS; r++) {
		ep_layout(&in, r, c->expected[r].per_rank, c->expected[r].per_expert, c->expected[r].in_rank);
		for (int q = 0; q < RANKS; q++)
			c->expected[0].prefix[r * RANKS + q] =
			    c->expected[r].per_rank[q] + (r ? c->expected[0].prefix[(r - 1) * RANKS + q] : 0);
		for (int q = 0; q < RANKS; q++)
			for (int t = 0, row = 0; t < c->tokens[r]; t++)
				c->expected[r].send_row[t * RANKS + q] =
				    c->expected[r].in_rank[t * RANKS + q] ? row++ : -1;
		expect_rows(c, &in, r);
		ref_fill(c->of[r].rows, ROWS * WIDTH, SHUNT_BF16, &seed);
		rows[r] = c->of[r].rows;
		of_rows[r] = c->expected[r].weights;
	}
	for (int r = 0; r < RANKS; r++) {
		memcpy(c->expected[r].prefix, c->expected[0].prefix, sizeof(c->expected[0].prefix));
		ep_combine(&in, r, SHUNT_BF16, rows, bias, of_rows, c->expected[r].out, c->expected[r].out_weights);
	}
}

static void launch_normal(
    struct world *w, int rank, struct normal *c, uint64_t ticket, const struct shunt_ep_room *room)
{
	struct shunt_ep_layout layout = { .topk_idx = c->topk_idx[rank],
		.tokens = c->tokens[rank],
		.topk = TOPK,
		.experts = RANKS * LOCAL,
		.per_rank = c->of[rank].per_rank,
		.per_expert = c->of[rank].per_expert,
		.in_rank = c->of[rank].in_rank };
	struct shunt_ep_notify notify = { .per_rank = c->of[rank].per_rank,
		.per_expert = c->of[rank].per_expert,
		.in_rank = c->of[rank].in_rank,
		.tokens = c->tokens[rank],
		.experts = RANKS * LOCAL,
		.alignment = 1,
		.rank_prefix = c->of[rank].prefix,
		.send_row = c->of[rank].send_row,
		.received = &c->of[rank].received };
	struct shunt_ep_dispatch dispatch = { .rank_prefix = c->of[rank].prefix,
		.send_row = c->of[rank].send_row,
		.received = &c->of[rank].received,
		.x = c->x[rank],
		.row_bytes = WIDTH * 2,
		.scales = c->scales[rank],
		.nscales = 1,
		.scale_token_stride = 1,
		.topk_idx = c->topk_idx[rank],
		.topk_weights = c->weights[rank],
		.tokens = c->tokens[rank],
		.topk = TOPK,
		.experts = RANKS * LOCAL,
		.blocks = 2,
		.capacity = ROWS,
		.pad = 1,
		.recv_x = c->of[rank].recv_x,
		.recv_scales = c->of[rank].scales,
		.recv_topk_idx = c->of[rank].topk_idx,
		.recv_topk_weights = c->of[rank].weights,
		.src_idx = c->of[rank].src_idx };
	struct shunt_ep_combine combine = { .rank_prefix = c->of[rank].prefix,
		.send_row = c->of[rank].send_row,
		.src_idx = c->of[rank].src_idx,
		.x = c->of[rank].rows,
		.dtype = SHUNT_BF16,
		.rows = ROWS,
		.hidden = WIDTH,
		.tokens = c->tokens[rank],
		.topk = TOPK,
		.blocks = 2,
		.topk_weights = c->of[rank].weights,
		.out = c->of[rank].out,
		.out_weights = c->of[rank].out_weights };
	struct shunt_work work;
	struct shunt_ep_why why;

	assert_int_equal(shunt_ep_layout_work(room, &layout, &work, &why), 0);
	launch(w, rank, &work);
	assert_int_equal(shunt_ep_notify_work(room, &notify, &work, &why), 0);
	work.args.ep.ticket = ticket;
	work.args.ep.counts_at = sizeof(struct shunt_host_ctrl);
	launch(w, rank, &work);
	assert_int_equal(shunt_ep_dispatch_work(room, &dispatch, &work, &why), 0);
	launch(w, rank, &work);
	assert_int_equal(shunt_ep_combine_work(room, &combine, &work, &why), 0);
	launch(w, rank, &work);
}

static void check_normal(const struct normal *c, int rank)
{
	size_t first;

#define SAME(field) assert_memory_equal(&c->of[rank].field, &c->expected[rank].field, sizeof(c->of[rank].field))
	SAME(per_rank);
	SAME(per_expert);
	SAME(in_rank);
	SAME(prefix);
	SAME(send_row);
	SAME(received);
	SAME(recv_x);
	SAME(scales);
	SAME(topk_idx);
	SAME(weights);
	SAME(src_idx);
#undef SAME
	assert_int_equal(
	    ref_compare(c->of[rank].out, c->expected[rank].out, (size_t)(c->tokens[rank] * WIDTH), SHUNT_BF16, &first),
	    0);
	assert_int_equal(ref_compare(c->of[rank].out_weights, c->expected[rank].out_weights,
	                     (size_t)(c->tokens[rank] * TOPK), SHUNT_F32, &first),
	    0);
}

/* As the host reads the counts, while the ranks go on: of the last call. */
static void check_counts(struct world *w, const struct normal *c, uint64_t ticket)
{
	for (int r = 0; r < RANKS; r++) {
		const struct shunt_ep_counts *counts = (const void *)(w->host_ctrl[r] + 1);

		while (__atomic_load_n(&counts->ticket, __ATOMIC_ACQUIRE) != ticket &&
		    !__atomic_load_n(&w->host_ctrl[r]->fault.set, __ATOMIC_ACQUIRE))
			pause_us(PAUSE_POLL, 50);
		assert_int_equal(counts->rows, c->expected[r].received);
		for (int e = 0; e < LOCAL; e++) {
			int n = 0;

			for (int s = 0; s < RANKS; s++)
				n += c->expected[s].per_expert[r * LOCAL + e];
			assert_int_equal(counts->experts[e], n);
		}
	}
}

void planted_ep_normal(struct world *w, int times, bool narrow, int late)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct normal *calls = calloc((size_t)times, sizeof(*calls));
	uint64_t slot = shunt_ep_wire(shunt_ep_front(TOPK, 1) + WIDTH * 2);
	uint32_t gate = 0;

	for (int i = 0; i < times; i++)
		fill_normal(&calls[i], i);
	if (late >= 0)
		assert_int_equal(shunt_sim_gate(late, w->stream[late], &gate), 0);
	for (int r = 0; r < RANKS; r++) {
		/* Two channels, each with rings of two rows. */
		struct shunt_ep_room room = { .nranks = RANKS,
			.rank = r,
			.most_topk = TOPK,
			.local = RANKS,
			.normal_bytes = narrow ? 2 * (3 * SHUNT_EP_LINE + 2 * 2 * (uint32_t)slot) : 1 << 17,
			.key = &key };

		for (int i = 0; i < times; i++)
			launch_normal(w, r, &calls[i], i + 1 == times ? (uint64_t)times : UINT64_MAX, &room);
	}
	for (int i = 0; i < 2 * RANKS && late >= 0; i++)
		if (i % RANKS != late)
			shunt_sim_wait_stuck(i % RANKS, w->stream[i % RANKS]);
	shunt_sim_gate_open(&gate);
	check_counts(w, &calls[times - 1], (uint64_t)times);
	for (int r = 0; r < RANKS; r++)
		world_wait(w, r, "expert parallel");
	for (int i = 0; i < times; i++)
		for (int r = 0; r < RANKS; r++)
			check_normal(&calls[i], r);
	free(calls);
}

/* ---- notify alone */

enum { MANY = 150 };

struct notified {
	int32_t per_rank[RANKS], prefix[RANKS * RANKS], send_row[MANY * RANKS], received;
	uint8_t in_rank[MANY * RANKS];
};

static void launch_notify(struct world *w, int rank, struct notified *of, const struct shunt_ep_room *room)
{
	struct shunt_ep_notify notify = { .per_rank = of->per_rank,
		.in_rank = of->in_rank,
		.tokens = MANY,
		.experts = RANKS * LOCAL,
		.alignment = 1,
		.rank_prefix = of->prefix,
		.send_row = of->send_row,
		.received = &of->received };
	struct shunt_work work;
	struct shunt_ep_why why;

	assert_int_equal(shunt_ep_notify_work(room, &notify, &work, &why), 0);
	launch(w, rank, &work);
}

static void check_notified(const struct notified *all, int rank)
{
	int32_t row[RANKS] = { 0 }, received = 0;

	for (int i = 0; i < MANY * RANKS; i++)
		assert_int_equal(all[rank].send_row[i], all[rank].in_rank[i] ? row[i % RANKS]++ : -1);
	for (int s = 0; s < RANKS; s++)
		received += all[s].per_rank[rank];
	assert_int_equal(all[rank].received, received);
}

void planted_ep_notify(struct world *w, bool alone)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct notified *all = calloc(RANKS, sizeof(*all));
	uint64_t seed = 5;

	for (int r = 0; r < (alone ? 1 : RANKS); r++) {
		struct shunt_ep_room room = {
			.nranks = RANKS, .rank = r, .local = RANKS, .normal_bytes = 1 << 17, .key = &key
		};

		for (int i = 0; i < MANY * RANKS; i++)
			all[r].per_rank[i % RANKS] += all[r].in_rank[i] = ref_random(&seed) % 3 != 0;
		launch_notify(w, r, &all[r], &room);
	}
	if (alone) {
		assert_int_equal(gpu->stream_sync(0, w->stream[0]), 0);
		assert_int_equal(w->host_ctrl[0]->fault.set, SHUNT_FAULT_TIMEOUT);
	}
	for (int r = 0; r < RANKS && !alone; r++) {
		world_wait(w, r, "notify");
		check_notified(all, r);
	}
	free(all);
}
