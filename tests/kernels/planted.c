/* SPDX-License-Identifier: MIT */
/*
 * What planted.py runs with one place of the kernels weakened (src/device/sim/site.h): small workloads that together
 * reach every place that orders memory. Each must notice by a wrong value what ThreadSanitizer cannot see. An argument
 * names the one workload to run, a second one the kernels' deadline in ms; --list names all. planted.py has a process
 * of it serve all runs (--serve).
 */
#include <inttypes.h>
#include <poll.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "device/sim/hooks.h"
#include "kernels/kernel_list.h"
#include "kernels/set.h"
#include "tests/algos/job.h"
#include "tests/kernels/planted.h"
#include "tests/plan/exec_plans.h"
#include "tests/plan/exec_ranks.h"
#include "tests/support/clock.h"
#include "tests/support/test.h"

enum { IN_A_ROW_MOST = 24 };
enum { FIBERS = 768 }; /* more than these only test_simple needs */

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;
static uint64_t deadline_ms = 60000; /* of kernels */

static void limit(struct world *w, int n)
{
	for (int r = 0; r < n; r++) {
		struct shunt_ctrl *ctrl = w->mem[r].ptr;
		char *peer[SHUNT_KARGS_MAX_RANKS] = { NULL };

		w->host_ctrl[r]->limit_ns = deadline_ms * 1000000ull;
		for (int p = 0; p < n; p++)
			peer[p] = w->mem[p].ptr;
		gpu->copy(r, ctrl->check.peer, peer, sizeof(peer));
	}
}

void planted_start(struct world *w, int n)
{
	world_start(w, n);
	limit(w, n);
}

/*
 * Every rank's launches of `times` such calls, one behind the other. late: a rank that begins when the others can go no
 * further; -1: none.
 */
static void in_a_row(struct world *w, const struct job *call, const char *algo, int times, int late)
{
	struct job jobs[IN_A_ROW_MOST];
	uint32_t gate = 0;

	assert_true(times <= IN_A_ROW_MOST);
	for (int i = 0; i < times; i++) {
		jobs[i] = *call;
		job_prepare(w, &jobs[i], (uint64_t)i + 1);
	}
	shunt_sim_set_jitter(3, JITTER_US);
	if (late >= 0)
		assert_int_equal(shunt_sim_gate(late, w->stream[late], &gate), 0);
	for (int r = 0; r < w->n; r++)
		for (int i = 0; i < times; i++)
			world_launch(w, r, &jobs[i].call[r], algo);
	/* Twice: a rank that waits for another one's launch looks as if it were stuck before that one is. */
	for (int i = 0; i < 2 * w->n && late >= 0; i++)
		if (i % w->n != late)
			shunt_sim_wait_stuck(i % w->n, w->stream[i % w->n]);
	shunt_sim_gate_open(&gate);
	for (int r = 0; r < w->n; r++)
		world_wait(w, r, algo);
	for (int i = 0; i < times; i++) {
		job_check(w, &jobs[i]);
		job_drop(w, &jobs[i]);
	}
}

static void collective(int n, struct job call, const char *algo, int times)
{
	struct world w;

	planted_start(&w, n);
	in_a_row(&w, &call, algo, times, -1);
	world_stop(&w);
}

TEST_CALL(
    test_oneshot_of_two, collective(2, (struct job){ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 400 }, "oneshot", IN_A_ROW))
TEST_CALL(test_oneshot_of_three,
    collective(3, (struct job){ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 400 }, "oneshot", IN_A_ROW))
TEST_CALL(test_twoshot, collective(3, (struct job){ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 700 }, "twoshot", IN_A_ROW))
TEST_CALL(test_twoshot_to_root,
    collective(3, (struct job){ SHUNT_REDUCE, SHUNT_F32, SHUNT_SUM, 700, 1 }, "twoshot", IN_A_ROW))
TEST_CALL(test_reduce_scatter,
    collective(3, (struct job){ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, 400 }, "oneshot", IN_A_ROW))

/*
 * All-gathers and reduce-scatters of two parts among three ranks. The rank without a part is late, or another one: a
 * rank must not run ahead of one that has nothing to send.
 */
TEST(test_uneven)
{
	for (int late = 1; late < 3; late++) {
		struct job parts[IN_A_ROW][2];
		uint32_t gate = 0;
		struct world w;

		planted_start(&w, 3);
		for (int t = 0; t < IN_A_ROW; t++)
			for (int p = 0; p < 2; p++) {
				parts[t][p] = (struct job){ t % 2 ? SHUNT_REDUCE : SHUNT_BROADCAST, SHUNT_F32,
					SHUNT_SUM, 400 + 300 * (size_t)p, p };
				job_prepare(&w, &parts[t][p], (uint64_t)(t * 2 + p + 1));
			}
		shunt_sim_set_jitter(3, JITTER_US);
		assert_int_equal(shunt_sim_gate(late, w.stream[late], &gate), 0);
		for (int r = 0; r < w.n; r++)
			for (int t = 0; t < IN_A_ROW; t++) {
				const struct shunt_coll *calls[] = { &parts[t][0].call[r], &parts[t][1].call[r] };

				assert_int_equal(world_launch_group(&w, r, calls, 2, NULL), 0);
			}
		for (int i = 0; i < 2 * w.n; i++)
			if (i % w.n != late)
				shunt_sim_wait_stuck(i % w.n, w.stream[i % w.n]);
		shunt_sim_gate_open(&gate);
		for (int r = 0; r < w.n; r++)
			world_wait(&w, r, "uneven parts");
		for (int t = 0; t < IN_A_ROW; t++)
			for (int p = 0; p < 2; p++) {
				job_check(&w, &parts[t][p]);
				job_drop(&w, &parts[t][p]);
			}
		world_stop(&w);
	}
}

/* Through the host's memory, posted (main()). */
static void staged(int n, struct job call, const char *algo)
{
	struct world w;

	world_start_over(&w, n, SHUNT_LINK_SHARED);
	limit(&w, n);
	in_a_row(&w, &call, algo, IN_A_ROW, -1);
	world_stop(&w);
}

TEST_CALL(test_staged_oneshot, staged(3, (struct job){ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 400 }, "oneshot"))

/* What all ranks need is stored once, and loaded by each of the others. */
TEST(test_staged_exchange)
{
	enum { BYTES = 1600, WIRE = (BYTES / SHUNT_SECTOR_SLOT_DATA + 1) * SHUNT_LL128_SLOT_WIRE };
	struct shunt_sim_link_count before[3][3];

	for (int i = 0; i < 9; i++)
		before[i / 3][i % 3] = shunt_sim_link_counts(i / 3, i % 3);
	staged(3, (struct job){ SHUNT_ALLGATHER, SHUNT_U8, 0, BYTES }, "oneshot");
	for (int r = 0; r < 3; r++)
		for (int p = 0; p < 3; p++) {
			struct shunt_sim_link_count n = shunt_sim_link_counts(r, p);

			assert_int_equal(n.stored - before[r][p].stored, r == p ? IN_A_ROW * WIRE : 0);
			assert_true(r == p || n.loaded - before[r][p].loaded >= IN_A_ROW * WIRE);
		}
	staged(3, (struct job){ SHUNT_ALLTOALL, SHUNT_U8, 0, BYTES }, "oneshot");
}

TEST_CALL(test_staged_p2p, staged(2, (struct job){ SHUNT_ALLGATHER, SHUNT_U8, 0, 9000 }, "ll128"))
TEST_CALL(test_staged_p2p_reduce, staged(3, (struct job){ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, 2000 }, "ll128"))
TEST_CALL(test_p2p, collective(2, (struct job){ SHUNT_ALLGATHER, SHUNT_U8, 0, 30011 }, "ll128", IN_A_ROW))
TEST_CALL(
    test_p2p_reduce, collective(3, (struct job){ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, 4001 }, "ll128", IN_A_ROW))
TEST_CALL(test_pipelined, collective(3, (struct job){ SHUNT_BROADCAST, SHUNT_F32, 0, 9000, 1 }, "pipelined", IN_A_ROW))

/* A slot in each launch, all by one relay, whose ring to the other rank fills up while that one has not begun. */
TEST(test_pipelined_ahead)
{
	const struct job call = { SHUNT_BROADCAST, SHUNT_F32, 0, 32, 1 };
	struct world w;

	for (int late = 0; late < 3; late += 2) {
		planted_start(&w, 3);
		in_a_row(&w, &call, "pipelined", IN_A_ROW_MOST, late);
		world_stop(&w);
	}
}

TEST_CALL(test_simple, collective(3, (struct job){ SHUNT_ALLGATHER, SHUNT_U8, 0, 150001 }, "simple", 3))
TEST_CALL(
    test_simple_reduce, collective(3, (struct job){ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, 40000 }, "simple", 3))
TEST_CALL(test_simple_in_place_of_two,
    collective(2, (struct job){ .kind = SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 60001, .in_place = true }, "simple", 4))
TEST_CALL(test_tma, collective(2, (struct job){ SHUNT_ALLGATHER, SHUNT_U8, 0, 100001 }, "bulk", 3))
TEST_CALL(test_tma_reduce, collective(2, (struct job){ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_PREMUL, 40001 }, "bulk", 3))

/*
 * Small messages in one batch each, more of them than a ring has slots. The receiver begins when the sender can go no
 * further.
 */
static void send_ahead(bool checks)
{
	enum { BYTES = 480, TIMES = 40 }; /* a slot each */
	char *in[TIMES], *out[TIMES];
	uint32_t gate = 0;
	struct world w;

	planted_start(&w, 2);
	w.checks = checks;
	assert_int_equal(shunt_sim_gate(1, w.stream[1], &gate), 0);
	for (int i = 0; i < TIMES; i++) {
		in[i] = world_alloc(0, BYTES);
		out[i] = world_alloc(1, BYTES);
		memset(in[i], i + 1, BYTES);
		memset(out[i], 0xa5, BYTES);
	}
	for (int i = 0; i < TIMES; i++) {
		struct shunt_coll send = {
			.kind = SHUNT_SEND, .dtype = SHUNT_U8, .root = 1, .count = BYTES, .send = in[i]
		};
		struct shunt_coll recv = {
			.kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 0, .count = BYTES, .recv = out[i]
		};

		world_launch(&w, 0, &send, NULL);
		world_launch(&w, 1, &recv, NULL);
	}
	shunt_sim_wait_stuck(0, w.stream[0]);
	shunt_sim_gate_open(&gate);
	for (int r = 0; r < 2; r++)
		world_wait(&w, r, "messages");
	for (int i = 0; i < TIMES; i++) {
		assert_memory_equal(in[i], out[i], BYTES);
		gpu->mem_free(in[i]);
		gpu->mem_free(out[i]);
	}
	world_stop(&w);
}

TEST_CALL(test_messages, send_ahead(false))
TEST_CALL(test_messages_with_check, send_ahead(true))

/* The sender compares in one launch more messages than the ring of their sizes has room for. */
TEST(test_check_of_many_messages)
{
	enum { BYTES = 16, TIMES = 3 * SHUNT_CHECK_RING };
	struct shunt_coll sends[TIMES], recvs[TIMES];
	const struct shunt_coll *calls[2][TIMES];
	char *in = NULL, *out = NULL;
	uint32_t gate = 0;
	struct world w;

	planted_start(&w, 2);
	w.checks = true;
	in = world_alloc(0, TIMES * BYTES);
	out = world_alloc(1, TIMES * BYTES);
	for (int i = 0; i < TIMES; i++) {
		memset(in + i * BYTES, i + 1, BYTES);
		sends[i] = (struct shunt_coll){
			.kind = SHUNT_SEND, .dtype = SHUNT_U8, .root = 1, .count = BYTES, .send = in + i * BYTES
		};
		recvs[i] = (struct shunt_coll){
			.kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 0, .count = BYTES, .recv = out + i * BYTES
		};
		calls[0][i] = &sends[i];
		calls[1][i] = &recvs[i];
	}
	assert_int_equal(shunt_sim_gate(1, w.stream[1], &gate), 0);
	for (int r = 0; r < 2; r++)
		assert_int_equal(world_launch_group(&w, r, calls[r], TIMES, NULL), 0);
	shunt_sim_wait_stuck(0, w.stream[0]);
	shunt_sim_gate_open(&gate);
	for (int r = 0; r < 2; r++)
		world_wait(&w, r, "many messages");
	assert_memory_equal(in, out, TIMES * BYTES);
	gpu->mem_free(in);
	gpu->mem_free(out);
	world_stop(&w);
}

/*
 * Barriers around reductions where the inputs lie: each step sums all ranks' buffers into the other buffers of all
 * ranks. A rank's part of the data is another one in each step, so it reads what others wrote in the last one.
 */
enum { BARRIER_RANKS = 3, BARRIER_PART = 80, BARRIER_COUNT = BARRIER_RANKS * BARRIER_PART, BARRIER_STEPS = 6 };

static void barrier_step(struct world *w, int r, int t, unsigned kernel, float *const buf[2][BARRIER_RANKS])
{
	struct shunt_kargs_barrier barrier = { .k = { .rank = (uint16_t)r, .nranks = BARRIER_RANKS }, .own_place = 7 };
	struct shunt_kargs_direct direct = { .k = barrier.k, .bytes = BARRIER_PART * sizeof(float) };
	struct shunt_gpu_launch l = { .threads = 32, .blocks = 1, .stream = w->stream[r] };
	int part = (r + t) % BARRIER_RANKS;

	direct.k.flags = SHUNT_K_ALIGNED;
	for (int p = 0; p < BARRIER_RANKS; p++) {
		barrier.k.peer[p] = direct.k.peer[p] = w->mem[p].ptr;
		barrier.peer_places[p] = p == r ? 0 : 7;
		direct.from[p] = buf[t & 1][p] + part * BARRIER_PART;
		direct.to[p] = buf[(t + 1) & 1][p] + part * BARRIER_PART;
	}
	l.kernel = SHUNT_KERNEL(SHUNT_SHAPE_direct4, SHUNT_KOP_SUM, SHUNT_F32);
	l.args = &direct;
	assert_int_equal(gpu->launch(r, &l), 0);
	l.kernel = kernel;
	l.args = &barrier;
	assert_int_equal(gpu->launch(r, &l), 0);
}

static void barriers(unsigned kernel)
{
	float *buf[2][BARRIER_RANKS], factor = 1;
	struct world w;

	planted_start(&w, BARRIER_RANKS);
	shunt_sim_set_jitter(9, JITTER_US);
	for (int r = 0; r < BARRIER_RANKS; r++)
		for (int b = 0; b < 2; b++) {
			buf[b][r] = (float *)world_alloc(r, BARRIER_COUNT * sizeof(float));
			for (int i = 0; i < BARRIER_COUNT; i++)
				buf[b][r][i] = (float)(r + i % 7);
		}
	for (int t = 0; t < BARRIER_STEPS; t++)
		for (int r = 0; r < BARRIER_RANKS; r++)
			barrier_step(&w, r, t, kernel, buf);
	for (int r = 0; r < BARRIER_RANKS; r++)
		world_wait(&w, r, "barriers");
	for (int t = 1; t < BARRIER_STEPS; t++)
		factor *= BARRIER_RANKS;
	for (int r = 0; r < BARRIER_RANKS; r++)
		for (int i = 0; i < BARRIER_COUNT; i++)
			assert_true(buf[BARRIER_STEPS & 1][r][i] == factor * (float)(3 + 3 * (i % 7)));
	for (int r = 0; r < BARRIER_RANKS; r++)
		for (int b = 0; b < 2; b++)
			gpu->mem_free(buf[b][r]);
	world_stop(&w);
}

TEST_CALL(test_barrier, barriers(SHUNT_KERNEL(SHUNT_SHAPE_barrier, 0, SHUNT_U8)))
TEST_CALL(test_ep_barrier, barriers(SHUNT_KERNEL(SHUNT_SHAPE_ep_barrier, 0, SHUNT_U8)))

/* SHUNT_CHECK of collectives: the ranks agree, several times. Then one has another count, and both sides say so. */
static void launch_checked(struct world *w, int r, uint64_t count)
{
	struct shunt_kargs_barrier barrier = { .k = { .rank = (uint16_t)r,
		                                   .nranks = (uint16_t)w->n,
		                                   .count = count,
		                                   .check = { .what = SHUNT_CHECK_CALLS, .kind = 3, .calls = 1 } } };
	struct shunt_gpu_launch l = { .kernel = SHUNT_KERNEL(SHUNT_SHAPE_barrier, 0, SHUNT_U8),
		.threads = 32,
		.blocks = 1,
		.args = &barrier,
		.stream = w->stream[r] };

	for (int p = 0; p < w->n; p++)
		barrier.k.peer[p] = w->mem[p].ptr;
	assert_int_equal(gpu->launch(r, &l), 0);
}

TEST(test_check_of_calls)
{
	enum { TIMES = 10 };
	struct world w;

	planted_start(&w, 2);
	shunt_sim_set_jitter(11, JITTER_US);
	for (int t = 0; t <= TIMES; t++)
		for (int r = 0; r < 2; r++)
			launch_checked(&w, r, (uint64_t)(t < TIMES ? 100 + t : 200 + r));
	for (int r = 0; r < 2; r++) {
		const struct shunt_fault *f = &w.host_ctrl[r]->fault;

		assert_int_equal(gpu->stream_sync(r, w.stream[r]), 0);
		assert_int_equal(f->set, SHUNT_FAULT_MISMATCH);
		assert_int_equal(f->mine_count, 200 + r);
		assert_int_equal(f->theirs_count, 200 + 1 - r);
	}
	world_stop(&w);
}

/* SHUNT_CHECK of messages: the receiver of a message expects another size, which its sender learns in its next launch.
 */
TEST(test_check_of_messages)
{
	enum { BYTES = 1600 };
	char *buf[2];
	struct world w;

	planted_start(&w, 2);
	w.checks = true;
	for (int r = 0; r < 2; r++)
		buf[r] = world_alloc(r, 2 * BYTES);
	for (int i = 0; i < 2; i++) {
		struct shunt_coll send = {
			.kind = SHUNT_SEND, .dtype = SHUNT_U8, .root = 1, .count = BYTES, .send = buf[0]
		};

		world_launch(&w, 0, &send, NULL);
		if (i == 0) {
			struct shunt_coll recv = {
				.kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 0, .count = BYTES + 1, .recv = buf[1]
			};

			world_launch(&w, 1, &recv, NULL);
			assert_int_equal(gpu->stream_sync(0, w.stream[0]), 0);
			assert_int_equal(gpu->stream_sync(1, w.stream[1]), 0);
		}
	}
	assert_int_equal(gpu->stream_sync(0, w.stream[0]), 0);
	for (int r = 0; r < 2; r++) {
		const struct shunt_fault *f = &w.host_ctrl[r]->fault;

		assert_int_equal(f->set, SHUNT_FAULT_MISMATCH);
		assert_int_equal(f->peer, 1 - r);
		assert_int_equal(f->mine_count, BYTES + r);
		assert_int_equal(f->theirs_count, BYTES + 1 - r);
		gpu->mem_free(buf[r]);
	}
	world_stop(&w);
}

/* The host reads the record of a kernel that gave up as soon as its last word is set. */
static void give_up(uint64_t limit_ns, uint64_t expected)
{
	struct shunt_fault *f;
	struct world w;
	char *buf;

	planted_start(&w, 2);
	buf = world_alloc(0, 1600);
	f = &w.host_ctrl[0]->fault;
	__atomic_store_n(&w.host_ctrl[0]->limit_ns, limit_ns, __ATOMIC_RELAXED);
	world_launch(&w, 0,
	    &(struct shunt_coll){ .kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 1, .count = 1600, .recv = buf }, NULL);
	for (double end = now() + (double)deadline_ms / 1e3;
	    !__atomic_load_n(&f->set, __ATOMIC_ACQUIRE) && now() < end;)
		;
	assert_int_equal(f->set, expected);
	assert_int_equal(f->rank, 0);
	assert_int_equal(f->peer, 1);
	assert_int_equal(gpu->stream_sync(0, w.stream[0]), 0);
	gpu->mem_free(buf);
	world_stop(&w);
}

TEST_CALL(test_give_up_at_a_deadline, give_up(20 * 1000000ull, SHUNT_FAULT_TIMEOUT))

/* A sender that gives up has copies under way. */
TEST(test_give_up_of_tma)
{
	enum { BYTES = 200000 };
	struct world w;
	char *buf;

	planted_start(&w, 2);
	buf = world_alloc(0, BYTES);
	w.host_ctrl[0]->limit_ns = 20 * 1000000ull;
	world_launch(&w, 0,
	    &(struct shunt_coll){ .kind = SHUNT_SEND, .dtype = SHUNT_U8, .root = 1, .count = BYTES, .send = buf },
	    "bulk");
	assert_int_equal(gpu->stream_sync(0, w.stream[0]), 0);
	assert_int_equal(w.host_ctrl[0]->fault.set, SHUNT_FAULT_TIMEOUT);
	gpu->mem_free(buf);
	world_stop(&w);
}

TEST_CALL(test_give_up_by_an_abort, give_up(SHUNT_LIMIT_ABORT, SHUNT_FAULT_ABORT))

/* ---- plans */

static void run_plan(char *text, enum shunt_plan_ll_format format, struct exec_job job)
{
	struct shunt_plan *plan = exec_load_text("planted", text, NULL, NULL);
	struct exec_options options = { .ll_format = format };
	struct exec_ranks f;

	exec_ranks_start(&f, (int)plan->nranks);
	for (int r = 0; r < f.n; r++)
		f.rank[r].words->limit_ns = deadline_ms * 1000000ull;
	exec_ranks_create(&f, plan, &options);
	shunt_plan_unref(plan);
	shunt_sim_set_jitter(13, JITTER_US);
	exec_ranks_check(&f, &job, 5);
	exec_ranks_destroy(&f);
	exec_ranks_stop(&f);
	free(text);
}

TEST_CALL(test_plan_ll8,
    run_plan(plan_twoshot(3, 1, "sum"), SHUNT_PLAN_LL_FORMAT_LL8,
        (struct exec_job){ SHUNT_F32, SHUNT_SUM, 720, true, 0, 6, false }))
TEST_CALL(test_plan_ll16,
    run_plan(plan_twoshot(3, 1, "sum"), SHUNT_PLAN_LL_FORMAT_LL16,
        (struct exec_job){ SHUNT_F32, SHUNT_SUM, 720, true, 0, 6, false }))
TEST_CALL(test_plan_ll128,
    run_plan(plan_twoshot(3, 1, "sum"), SHUNT_PLAN_LL_FORMAT_LL128,
        (struct exec_job){ SHUNT_F32, SHUNT_SUM, 720, true, 0, 6, false }))

/* Buffers off their alignment: all blocks fill the memory that each of them then works in, and empty it. */
TEST_CALL(test_plan_blocks,
    run_plan(plan_twoshot(2, 3, "sum"), SHUNT_PLAN_LL_FORMAT_LL16,
        (struct exec_job){ SHUNT_F32, SHUNT_SUM, 2400, true, 1, 6, false }))

/* What a packet answers is overwritten by who gets the packet. */
TEST(test_plan_answers)
{
	for (enum shunt_plan_ll_format format = SHUNT_PLAN_LL_FORMAT_LL16; format <= SHUNT_PLAN_LL_FORMAT_LL8; format++)
		run_plan(plan_answers(), format, (struct exec_job){ SHUNT_F32, SHUNT_SUM, 480, true, 0, 4, false });
}

/* Scratch that its own operations fill first. */
TEST_CALL(test_plan_staged,
    run_plan(
        plan_staged(), SHUNT_PLAN_LL_FORMAT_LL128, (struct exec_job){ SHUNT_F32, SHUNT_SUM, 480, true, 0, 6, false }))
TEST_CALL(test_plan_signals,
    run_plan(
        plan_acks(3), SHUNT_PLAN_LL_FORMAT_LL128, (struct exec_job){ SHUNT_U8, SHUNT_SUM, 4096, false, 0, 6, false }))
TEST_CALL(test_plan_semaphores,
    run_plan(plan_windows(256), SHUNT_PLAN_LL_FORMAT_LL128,
        (struct exec_job){ SHUNT_U8, SHUNT_SUM, 8192, false, 0, 6, false }))
TEST_CALL(test_plan_without_signals,
    run_plan(
        plan_get(3), SHUNT_PLAN_LL_FORMAT_LL128, (struct exec_job){ SHUNT_U8, SHUNT_SUM, 4096, false, 0, 6, false }))

/* More bytecode than fits into shared memory. */
TEST_CALL(test_plan_long,
    run_plan(
        plan_long(200), SHUNT_PLAN_LL_FORMAT_LL128, (struct exec_job){ SHUNT_U8, SHUNT_SUM, 3200, false, 0, 4, false }))
TEST_CALL(test_plan_direct,
    run_plan(plan_port(3, 0), SHUNT_PLAN_LL_FORMAT_LL128,
        (struct exec_job){ SHUNT_F32, SHUNT_SUM, 480, false, 0, 6, false, true }))

/*
 * --serve PREFIX, with which its workloads begin: each connection at the listening socket that is stdin names a run,
 * which gets a process of its own, whose output goes there; the line behind it is the process's status, or minus the
 * signal that ended it. These processes take over the server's fibers, which take longer to make than a workload takes.
 * After fork() ThreadSanitizer would see nothing, because the fibers are threads to it, and are lost there.
 */
static void run_served(int connection)
{
	char line[2048], workload[64], sites[1024], fault[256];
	unsigned limit_s;
	ssize_t got = read(connection, line, sizeof(line) - 1);

	line[got > 0 ? got : 0] = 0;
	if (sscanf(line, "%63s %" SCNu64 " %u %1023s %255s", workload, &deadline_ms, &limit_s, sites, fault) != 5)
		_exit(2);
	alarm(limit_s);
	dup2(connection, STDOUT_FILENO);
	dup2(connection, STDERR_FILENO);
	close(connection);
	if (strcmp(sites, "-") != 0)
		setenv("SIM_FAULT_SITES", sites, 1);
	if (strcmp(fault, "-") != 0)
		setenv("SIM_FAULT", fault, 1);
	shunt_sim_sites_init();
	cmocka_set_test_filter(strdup(workload));
}

/* Returns in the process of each run. No process but the server waits for it: each copy of all these fibers takes long.
 */
static void serve(void)
{
	static pid_t runs[64]; /* by connection */
	struct pollfd fd[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .events = POLLIN } };
	sigset_t ends, none;
	int status;

	sigemptyset(&none);
	sigemptyset(&ends);
	sigaddset(&ends, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	fd[1].fd = signalfd(-1, &ends, SFD_CLOEXEC);
	for (;;) {
		poll(fd, 2, -1);
		if (fd[1].revents)
			read(fd[1].fd, &(struct signalfd_siginfo){ 0 }, sizeof(struct signalfd_siginfo));
		for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
			for (int c = 0; c < (int)(sizeof(runs) / sizeof(runs[0])); c++)
				if (runs[c] == pid) {
					dprintf(
					    c, "\n%d", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
					shutdown(c, SHUT_WR); /* a later run has a copy of it */
					close(c);
					runs[c] = 0;
				}
		if (fd[0].revents) {
			int c = accept(STDIN_FILENO, NULL, NULL);

			if (c < 0 || c >= (int)(sizeof(runs) / sizeof(runs[0])))
				_exit(1);
			runs[c] = _Fork();
			if (!runs[c]) {
				sigprocmask(SIG_SETMASK, &none, NULL);
				close(STDIN_FILENO);
				run_served(c);
				return;
			}
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		tests_list();
		return 0;
	}
	const bool served = argc > 2 && !strcmp(argv[1], "--serve");
	const char *workload = argc > 1 ? argv[1 + served] : "test_staged";

	setenv("SHUNT_SIM_DEVICES", "8", 1);
	if (!strncmp(workload, "test_staged", strlen("test_staged")))
		setenv("SHUNT_SIM_LINKS", "*:none,stores=posted", 1);
	if (gpu->open(&shunt_kernels))
		return 1;
	if (argc > 1)
		cmocka_set_test_filter(workload);
	if (served) {
		char name[256];

		/* What runs need once: fibers, and the symbols of a report. */
		__sanitizer_symbolize_pc((void *)run_served, "%f", name, sizeof(name));
		shunt_sim_make_fibers(FIBERS);
		serve();
	} else if (argc > 2) {
		deadline_ms = strtoull(argv[2], NULL, 10);
	}
	return tests_run(NULL, NULL);
}
