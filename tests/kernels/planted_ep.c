/* SPDX-License-Identifier: MIT */
#include "tests/kernels/planted_ep.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "algos/ep/low_latency.h"
#include "device/sim/hooks.h"
#include "kernels/ep.h"
#include "tests/algos/sel.h"
#include "tools/common/ep_reference.h"
#include "tools/common/reference.h"

enum { RANKS = 3, LOCAL = 2, TOPK = 2, HIDDEN = 512, MOST = 3, SLOTS = RANKS * MOST };
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
		struct shunt_ep_room room = { RANKS, r, TOPK, masks ? SHUNT_EP_MASKS : 0, 0, LL_BYTES, &key,
			rank_sums };
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
