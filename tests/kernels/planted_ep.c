/* SPDX-License-Identifier: MIT */
/* Workloads of planted.c: calls of an expert parallel group. */
#include "algos/ep/low_latency.h"
#include "algos/ep/normal.h"
#include "device/sim/hooks.h"
#include "kernels/ep.h"
#include "tests/algos/sel.h"
#include "tests/e2e/ep_normal_job.h"
#include "tests/kernels/planted.h"
#include "tests/support/pause.h"
#include "tests/support/stub.h"
#include "tests/support/test.h"
#include "tools/common/reference.h"

enum { RANKS = 3, LOCAL = 2, TOPK = 2 };

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;
static const struct rank ranks[RANKS] = { { 0, RANKS }, { 1, RANKS }, { 2, RANKS } };

/* The memory of ep_job.h: the sim's kernels take the host's. */
STUB(int, shunt_malloc, (void **ptr_p, size_t bytes), (*ptr_p = malloc(bytes)) ? 0 : -ENOMEM)
STUB(int, shunt_free, (void *ptr), (free(ptr), 0))
STUB(int, shunt_memcpy, (void *dst, const void *src, size_t bytes), (memcpy(dst, src, bytes), 0))

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

/* A rank that is late begins when the others can go no further. */
static void let_begin(struct world *w, int late, uint32_t *gate)
{
	for (int i = 0; i < 2 * RANKS && late >= 0; i++)
		if (i % RANKS != late)
			shunt_sim_wait_stuck(i % RANKS, w->stream[i % RANKS]);
	shunt_sim_gate_open(gate);
}

/* ---- low latency */

/*
 * Tokens of even calls stay on their rank, except for one of rank 0: so combines hear nothing from a rank that is
 * behind.
 */
static void prepare(struct ep_run *run, int rank, int number, int form, uint32_t masked, bool rank_sums)
{
	struct ep_job job = { .nranks = RANKS,
		.experts = RANKS * LOCAL,
		.topk = TOPK,
		.hidden = 512,
		.max_tokens = 5,
		.form = form,
		.dtype = SHUNT_BF16,
		.routing = number % 2 ? EP_ANYWHERE : EP_STAY,
		.seed = (uint64_t)number + 1,
		.odd = number & 2,
		.masked = masked };

	for (int s = 0; s < RANKS; s++)
		job.tokens[s] = 1 + (number + s) % job.max_tokens;
	ep_run_prepare(run, &job, &ranks[rank]);
	run->in.rank_sums = rank_sums;
	run->dispatch.wait_ns = run->combine.wait_ns = ep_run_memory(run, NULL, RANKS * sizeof(int64_t), false);
	assert_int_equal(ep_run_fill_rows(run, &ranks[rank]), 0);
}

static void launch_call(
    struct world *w, struct ep_run *run, uint32_t phases, bool combines, const struct shunt_ep_room *room)
{
	struct shunt_work work;
	struct shunt_ep_why why;

	run->dispatch.phases = run->combine.phases = phases;
	assert_int_equal(combines ? shunt_ep_ll_combine_work(room, &run->combine, &work, &why) :
	                            shunt_ep_ll_dispatch_work(room, &run->dispatch, &work, &why),
	    0);
	launch(w, run->rank, &work);
}

/* Both kinds of a pair of calls, the second's sends before the first's receives. */
static void launch_pair(struct world *w, struct ep_run *first, struct ep_run *second, const struct shunt_ep_room *room)
{
	for (int combines = 0; combines < 2; combines++)
		for (int i = 0; i < 4; i++)
			launch_call(
			    w, i % 3 ? second : first, i < 2 ? SHUNT_EP_SEND : SHUNT_EP_RECEIVE, combines, room);
}

/*
 * Three ranks make `times` dispatches and combines in a row, in the given form of rows, and all that they get is
 * compared with the reference. phases: a launch for each phase, and two calls under way. masks: as of a group that has
 * them; a rank is masked. late: a rank that begins when the others can go no further; -1: none. rank_sums: as with
 * SHUNT_EP_SUM=rank.
 */
static void low_latency(int times, int form, bool phases, bool masks, int late, bool rank_sums)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct ep_run(*calls)[RANKS] = calloc((size_t)times, sizeof(*calls));
	uint32_t gate = 0, masked = masks ? 1u << (RANKS - 1) : 0;
	struct world w;

	planted_start(&w, RANKS);
	shunt_sim_set_jitter(13, JITTER_US);
	for (int i = 0; i < times * RANKS; i++)
		prepare(&calls[i / RANKS][i % RANKS], i % RANKS, i / RANKS, form, masked, rank_sums);
	if (late >= 0)
		assert_int_equal(shunt_sim_gate(late, w.stream[late], &gate), 0);
	for (int r = 0; r < RANKS; r++) {
		struct shunt_ep_room room = { .nranks = RANKS,
			.rank = r,
			.most_topk = TOPK,
			.local = RANKS,
			.flags = masks ? SHUNT_EP_MASKS : 0,
			.ll_bytes = 1 << 20,
			.key = &key,
			.rank_sums = rank_sums };
		struct shunt_ep_ctrl *ctrl = (struct shunt_ep_ctrl *)((char *)w.mem[r].ptr + SHUNT_EP_CTRL_AT);

		if (masks)
			ctrl->mask[RANKS - 1] = 1;
		for (int i = 0; i < times && !(masked >> r & 1); i++)
			if (phases && i % 2 == 0)
				launch_pair(&w, &calls[i][r], &calls[i + 1][r], &room);
			else
				for (int combines = 0; combines < 2 && !phases; combines++)
					launch_call(
					    &w, &calls[i][r], SHUNT_EP_SEND | SHUNT_EP_RECEIVE, combines, &room);
	}
	let_begin(&w, late, &gate);
	for (int r = 0; r < RANKS; r++)
		world_wait(&w, r, "expert parallel");
	for (int i = 0; i < times; i++)
		for (int r = 0; r < RANKS; r++) {
			struct ep_run *run = &calls[i][r];

			assert_int_equal(masked >> r & 1 ? 0 : ep_run_check_dispatch(run, &ranks[r]), 0);
			assert_int_equal(masked >> r & 1 ? 0 : ep_run_check_combine(run, &ranks[r]), 0);
			ep_run_finish(run);
		}
	free(calls);
	world_stop(&w);
}

TEST_CALL(test_ep_calls, low_latency(IN_A_ROW, SHUNT_EP_AS_IS, false, false, -1, false))

/* The others run ahead of a rank from which they hear nothing but credits. */
TEST(test_ep_ahead)
{
	for (int late = 0; late < 3; late += 2)
		low_latency(IN_A_ROW, SHUNT_EP_AS_IS, false, false, late, false);
}

TEST_CALL(test_ep_cast, low_latency(4, SHUNT_EP_FP8_ROUND, false, false, -1, false))
TEST_CALL(test_ep_phases, low_latency(IN_A_ROW, SHUNT_EP_AS_IS, true, false, -1, false))
TEST_CALL(test_ep_masks, low_latency(4, SHUNT_EP_AS_IS, false, true, -1, false))

TEST(test_ep_rank_sums)
{
	low_latency(IN_A_ROW, SHUNT_EP_AS_IS, true, false, -1, true);
	low_latency(4, SHUNT_EP_AS_IS, false, true, -1, true);
}

/* ---- normal mode */

/* Aligned rows of three slots, so that one of them is plain (kernels/ep_rings.h). */
static void prepare_normal(struct ep_normal_run *n, int rank, int number)
{
	struct ep_normal_job job = { .job = { .nranks = RANKS,
		                         .experts = RANKS * LOCAL,
		                         .topk = TOPK,
		                         .hidden = 496,
		                         .dtype = SHUNT_BF16,
		                         .seed = (uint64_t)number + 77 },
		.row_bytes = 2 * 496,
		.nscales = 1,
		.topk = TOPK,
		.dispatch_blocks = 2,
		.combine_blocks = 2,
		.room = 4,
		.worst = true };

	for (int s = 0; s < RANKS; s++)
		job.job.tokens[s] = 9 - (number + s) % 2;
	ep_normal_prepare(n, &job, &ranks[rank]);
}

static void launch_normal(
    struct world *w, const struct ep_normal_run *n, uint64_t ticket, const struct shunt_ep_room *room)
{
	struct shunt_work work;
	struct shunt_ep_why why;

	assert_int_equal(shunt_ep_layout_work(room, &n->layout, &work, &why), 0);
	launch(w, n->run.rank, &work);
	assert_int_equal(shunt_ep_notify_work(room, &n->notify, &work, &why), 0);
	work.args.ep.ticket = ticket;
	work.args.ep.counts_at = sizeof(struct shunt_host_ctrl);
	launch(w, n->run.rank, &work);
	assert_int_equal(shunt_ep_dispatch_work(room, &n->dispatch, &work, &why), 0);
	launch(w, n->run.rank, &work);
	assert_int_equal(shunt_ep_combine_work(room, &n->combine, &work, &why), 0);
	launch(w, n->run.rank, &work);
}

/* As the host reads the counts, while the ranks go on: of the last call. */
static void check_counts(struct world *w, const struct ep_normal_run n[RANKS], uint64_t ticket)
{
	for (int r = 0; r < RANKS; r++) {
		const struct shunt_ep_counts *counts = (const void *)(w->host_ctrl[r] + 1);

		while (__atomic_load_n(&counts->ticket, __ATOMIC_ACQUIRE) != ticket &&
		    !__atomic_load_n(&w->host_ctrl[r]->fault.set, __ATOMIC_ACQUIRE))
			pause_us(PAUSE_POLL, 50);
		assert_int_equal(counts->rows, n[r].rows);
		for (int e = 0; e < LOCAL; e++)
			assert_int_equal(counts->experts[e], ep_normal_tokens(&n[r], r * LOCAL + e));
	}
}

/*
 * The same of normal mode: `times` layouts, notifies, dispatches and combines, each with a thread that waits for the
 * counts. narrow: rings have two slots.
 */
static void normal_mode(int times, bool narrow, int late)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct ep_normal_run(*calls)[RANKS] = calloc((size_t)times, sizeof(*calls));
	uint64_t slot = shunt_ep_wire(shunt_ep_front(TOPK, 1) + 2 * 496);
	uint32_t gate = 0;
	struct world w;

	planted_start(&w, RANKS);
	shunt_sim_set_jitter(17, JITTER_US);
	for (int i = 0; i < times * RANKS; i++)
		prepare_normal(&calls[i / RANKS][i % RANKS], i % RANKS, i / RANKS);
	if (late >= 0)
		assert_int_equal(shunt_sim_gate(late, w.stream[late], &gate), 0);
	for (int r = 0; r < RANKS; r++) {
		/* Two channels, each with rings of two rows. */
		struct shunt_ep_room room = { .nranks = RANKS,
			.rank = r,
			.most_topk = TOPK,
			.local = RANKS,
			.normal_bytes = narrow ? 2 * (3 * SHUNT_EP_LINE + 2 * 2 * (uint32_t)slot) : 1 << 17,
			.key = &key };

		for (int i = 0; i < times; i++)
			launch_normal(&w, &calls[i][r], i + 1 == times ? (uint64_t)times : UINT64_MAX, &room);
	}
	let_begin(&w, late, &gate);
	check_counts(&w, calls[times - 1], (uint64_t)times);
	for (int r = 0; r < RANKS; r++)
		world_wait(&w, r, "expert parallel");
	for (int i = 0; i < times; i++)
		for (int r = 0; r < RANKS; r++) {
			assert_int_equal(ep_normal_check(&calls[i][r], &ranks[r]), 0);
			ep_normal_finish(&calls[i][r]);
		}
	free(calls);
	world_stop(&w);
}

TEST_CALL(test_ep_normal, normal_mode(IN_A_ROW, true, -1))
TEST_CALL(test_ep_normal_ahead, normal_mode(4, false, 1))

/* ---- a call that breaks the group */

/* By the device's stores: how far a peer has come, as its end of a call says it. */
static void set_read(struct world *w, int rank, int peer, uint64_t number)
{
	struct shunt_ep_ctrl *ctrl = (struct shunt_ep_ctrl *)((char *)w->mem[rank].ptr + SHUNT_EP_CTRL_AT);

	__atomic_store_n(&ctrl->normal.read[peer], number, __ATOMIC_RELEASE);
}

static void launch_dispatch(
    struct world *w, int rank, const struct shunt_ep_dispatch *dispatch, const struct shunt_ep_room *room)
{
	struct shunt_work work;
	struct shunt_ep_why why;

	assert_int_equal(shunt_ep_dispatch_work(room, dispatch, &work, &why), 0);
	launch(w, rank, &work);
}

/*
 * In normal mode two ranks make calls that differ, before the third has ended its call before. It hears from both of
 * what is wrong.
 */
TEST(test_ep_refused)
{
	enum { LATE = RANKS - 1 };
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct ep_normal_run calls[RANKS];
	struct shunt_ep_room rooms[RANKS];
	struct world w;

	planted_start(&w, RANKS);
	for (int r = 0; r < RANKS; r++) {
		rooms[r] = (struct shunt_ep_room){ .nranks = RANKS,
			.rank = r,
			.most_topk = TOPK,
			.local = RANKS,
			.normal_bytes = 1 << 17,
			.key = &key };
		prepare_normal(&calls[r], r, 0);
		launch_normal(&w, &calls[r], 1, &rooms[r]);
	}
	for (int r = 0; r < RANKS; r++)
		world_wait(&w, r, "the calls before");
	for (int r = 0; r < LATE; r++) {
		struct shunt_ep_dispatch dispatch = calls[r].dispatch;

		dispatch.experts -= r == 1 ? RANKS : 0;
		set_read(&w, r, LATE, 2);
		launch_dispatch(&w, r, &dispatch, &rooms[r]);
	}
	/* Both know what differs, and wait for the late rank's end of its call before. */
	for (int r = 0; r < LATE; r++)
		assert_true(shunt_sim_wait_stuck(r, w.stream[r]));
	for (int r = 0; r < LATE; r++) {
		assert_int_equal(__atomic_load_n(&w.host_ctrl[r]->fault.set, __ATOMIC_ACQUIRE), SHUNT_FAULT_DIFFERS);
		set_read(&w, r, LATE, 3);
	}
	launch_dispatch(&w, LATE, &calls[LATE].dispatch, &rooms[LATE]);
	for (int r = 0; r < RANKS; r++) {
		assert_int_equal(gpu->stream_sync(r, w.stream[r]), 0);
		assert_int_equal(w.host_ctrl[r]->fault.set, SHUNT_FAULT_DIFFERS);
		ep_normal_finish(&calls[r]);
	}
	world_stop(&w);
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

/*
 * One notify of more tokens than a block has threads. alone: the other ranks never come, and rank 0 gives up by its
 * limit.
 */
static void notify(bool alone)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND, .nranks = RANKS, .sim = true, .takes_all = true };
	struct notified *all = calloc(RANKS, sizeof(*all));
	uint64_t seed = 5;
	struct world w;

	planted_start(&w, RANKS);
	if (alone)
		w.host_ctrl[0]->limit_ns = 20 * 1000000ull;
	for (int r = 0; r < (alone ? 1 : RANKS); r++) {
		struct shunt_ep_room room = {
			.nranks = RANKS, .rank = r, .local = RANKS, .normal_bytes = 1 << 17, .key = &key
		};

		for (int i = 0; i < MANY * RANKS; i++)
			all[r].per_rank[i % RANKS] += all[r].in_rank[i] = ref_random(&seed) % 3 != 0;
		launch_notify(&w, r, &all[r], &room);
	}
	if (alone) {
		assert_int_equal(gpu->stream_sync(0, w.stream[0]), 0);
		assert_int_equal(w.host_ctrl[0]->fault.set, SHUNT_FAULT_TIMEOUT);
	}
	for (int r = 0; r < RANKS && !alone; r++) {
		world_wait(&w, r, "notify");
		check_notified(all, r);
	}
	free(all);
	world_stop(&w);
}

TEST_CALL(test_ep_notify, notify(false))
TEST_CALL(test_give_up_of_ep_notify, notify(true))
