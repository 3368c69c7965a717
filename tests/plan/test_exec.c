/* SPDX-License-Identifier: MIT */
/*
 * The executor of plans on the sim, with plans made for it: every type and operator, odd counts and addresses, in place
 * and not, graphs between eager launches, growing memory, plans that leave all meeting of ranks to the executor,
 * deadlines. EXEC_QUICK=1 thins out.
 */
#include "tests/plan/exec_ranks.h"
#include "tests/plan/exec_plans.h"
#include "tests/support/test.h"
#include "device/sim/hooks.h"
#include "kernels/plan/args.h"
#include "tools/common/reference.h"
#include "kernels/set.h"

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;
static bool quick;

static struct shunt_plan *load(char *text)
{
	struct shunt_plan *plan = exec_load_text("test", text, NULL, NULL);

	free(text);
	return plan;
}

static struct exec_ranks f; /* of the test that runs */

static void open_ranks(struct exec_ranks *f, char *text, const struct exec_options *options)
{
	struct shunt_plan *plan = load(text);

	exec_ranks_start(f, (int)plan->nranks);
	exec_ranks_create(f, plan, options);
	shunt_plan_unref(plan); /* the execs hold it */
}

static void close_ranks(struct exec_ranks *f)
{
	exec_ranks_destroy(f);
	exec_ranks_stop(f);
	shunt_sim_set_jitter(0, 0);
}

static const char *plan_redop_name(enum shunt_redop op)
{
	return op == SHUNT_PREMUL || op == SHUNT_AVG ? "sum" : shunt_redop_name(op);
}

TEST(test_exec_every_type_and_op_matches_reference)
{
	static const struct {
		int ranks;
		struct exec_options options;
	} runs[] = { { 2, { .ll_format = SHUNT_PLAN_LL_FORMAT_LL128 } },
		{ 2, { .ll_format = SHUNT_PLAN_LL_FORMAT_LL16 } }, { 8, { .ll_format = SHUNT_PLAN_LL_FORMAT_LL128 } },
		{ 8, { .ll_format = SHUNT_PLAN_LL_FORMAT_LL16 } } };

	for (int i = 0; i < (quick ? 2 : 4); i++)
		for (int op = 0; op < SHUNT_NREDOPS; op++) {
			open_ranks(&f, plan_twoshot(runs[i].ranks, 2, plan_redop_name(op)), &runs[i].options);
			for (int t = 0; t < SHUNT_NFORMATS; t++) {
				uint64_t whole = (uint64_t)runs[i].ranks * 2 * 48 / shunt_dtype_bytes[t];
				struct exec_job even = { t, op, whole, t & 1, 0, 2, false },
				                odd = { t, op, whole + 7, !(t & 1), 1, 2, false };

				/* A plan adds in its own order, which narrow accumulators show; not of two operands. */
				if (runs[i].ranks > 2 && shunt_dtype_is_format(t) &&
				    shunt_dtype_rows[t].accumulator != SHUNT_F32)
					continue;
				if (quick && (t + i) % SHUNT_NREDOPS != op) /* each type with two operators */
					continue;
				/* AVG of small floats is exact for powers of two only. */
				exec_ranks_check(&f, &even, 100 * op + t);
				if (!quick)
					exec_ranks_check(&f, &odd, 200 * op + t);
			}
			close_ranks(&f);
		}
}

TEST(test_exec_every_count_and_alignment_matches_reference)
{
	char *(*const plans[])(int) = { plan_get, plan_acks, plan_switch, plan_scatter };
	static const uint64_t counts[] = { 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, 100, 511, 1024, 4097 };

	for (size_t p = 0; p < 4 + 3; p++) {
		open_ranks(&f, p < 4 ? plans[p](3) : p < 6 ? plan_port(3, p == 5) : plan_twoshot(3, 2, "sum"), NULL);
		for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
			for (int skew = 0; skew < (quick ? 1 : 4); skew++) {
				struct exec_job j = { SHUNT_F16, SHUNT_SUM, counts[c], (c + skew) & 1,
					skew == 2 ? 8 : skew, 2, false };

				if (quick ? c % 4 == p % 4 : skew < 2 || counts[c] < 40)
					exec_ranks_check(&f, &j, counts[c] * 8 + skew);
			}
		close_ranks(&f);
	}
}

TEST(test_exec_graphs_between_eager_launches_match_reference)
{
	char *(*const plans[])(int) = { plan_get, plan_acks, plan_switch };

	for (int p = 0; p < 4; p++) {
		open_ranks(&f, p < 3 ? plans[p](3) : plan_twoshot(3, 2, "sum"), NULL);
		for (int i = 0; i < (quick ? 3 : 12); i++) {
			struct exec_job j = { SHUNT_F32, SHUNT_SUM, (uint64_t)(1 + i * 37 % 11 * 24), i & 1, 0,
				1 + i % 4, i % 3 != 1 };

			shunt_sim_set_jitter((unsigned)i, i % 2 ? 300 : 0);
			exec_ranks_check(&f, &j, (uint64_t)i);
		}
		close_ranks(&f);
	}
}

/* One launch of one rank on buffers that hold `value`, of count floats; plans of all-reduce only. */
static void launch_constant(const struct exec_rank *r, float *send, float *recv, uint64_t count)
{
	struct shunt_plan_call call = { .send = send,
		.recv = recv,
		.send_bytes = count * 4,
		.recv_bytes = count * 4,
		.dtype = SHUNT_F32,
		.redop = SHUNT_SUM,
		.stream = r->stream };

	assert_int_equal(exec_rank_launch(r, &call), 0);
}

/* The same of count words, in place. */
static void launch_words(const struct exec_rank *r, void *buf, uint64_t count)
{
	struct shunt_plan_call call = { .send = buf,
		.recv = buf,
		.send_bytes = count * 4,
		.recv_bytes = count * 4,
		.dtype = SHUNT_U32,
		.redop = SHUNT_SUM,
		.stream = r->stream };

	assert_int_equal(exec_rank_launch(r, &call), 0);
}

TEST(test_exec_graph_outlives_the_memory_it_was_captured_with)
{
	float *buf[3];
	void *graph[3];
	const uint64_t count = 96;

	open_ranks(&f, plan_twoshot(3, 2, "sum"), NULL);
	assert_int_equal(exec_ranks_prepare(&f, count * 4), 0);
	for (int r = 0; r < 3; r++) {
		void *p;

		assert_int_equal(gpu->mem_alloc(r, count * 4, &p), 0);
		buf[r] = p;
		assert_int_equal(gpu->capture_begin(r, f.rank[r].stream), 0);
		launch_constant(&f.rank[r], buf[r], buf[r], count);
		assert_int_equal(gpu->capture_end(r, f.rank[r].stream, &graph[r]), 0);
	}
	for (int round = 0; round < 6; round++) {
		if (round % 2) {
			/* Each time larger than anything before. */
			struct exec_job j = { SHUNT_F32, SHUNT_SUM, 30000ull << round, true, 0, 2, false };
			void *before = shunt_plan_exec_resources(f.rank[0].exec);

			if (quick && round > 1)
				break;
			exec_ranks_check(&f, &j, (uint64_t)round);
			assert_ptr_not_equal(shunt_plan_exec_resources(f.rank[0].exec), before);
		}
		for (int r = 0; r < 3; r++)
			for (uint64_t i = 0; i < count; i++)
				buf[r][i] = (float)(r + round);
		for (int r = 0; r < 3; r++)
			assert_int_equal(gpu->graph_launch(r, graph[r], f.rank[r].stream), 0);
		exec_ranks_wait(&f, "graph");
		for (int r = 0; r < 3; r++)
			for (uint64_t i = 0; i < count; i++)
				assert_true(buf[r][i] == (float)(3 + 3 * round));
	}
	for (int r = 0; r < 3; r++) {
		gpu->graph_destroy(r, graph[r]);
		gpu->mem_free(buf[r]);
	}
	close_ranks(&f);
}

/* Nobody signals in this plan: what a launch reads must be there, and stay until all have read it. */
TEST(test_exec_plan_without_signals_sees_every_launchs_data)
{
	open_ranks(&f, plan_get(4), NULL);
	for (unsigned seed = 1; seed <= (quick ? 2u : 10u); seed++) {
		struct exec_job j = { SHUNT_U8, SHUNT_SUM, 4096, false, 0, 6, false };

		shunt_sim_set_jitter(seed, 1500);
		exec_ranks_check(&f, &j, seed);
	}
	close_ranks(&f);
}

/* A rank that is ahead with large chunks writes where others' small ones may not have been read. */
TEST(test_exec_alternating_sizes_do_not_overtake)
{
	const uint64_t small = 16, large = 4096;
	char *in[3][24], *out[3][24];

	open_ranks(&f, plan_acks(3), NULL);
	assert_int_equal(exec_ranks_prepare(&f, 3 * large), 0);
	for (unsigned seed = 1; seed <= (quick ? 2u : 10u); seed++) {
		shunt_sim_set_jitter(seed, 1500);
		for (int r = 0; r < 3; r++)
			for (int i = 0; i < 24; i++) {
				uint64_t bytes = i % 2 ? large : small;
				void *p;

				assert_int_equal(gpu->mem_alloc(r, 4 * large, &p), 0);
				in[r][i] = p;
				out[r][i] = in[r][i] + large;
				memset(in[r][i], (int)(seed + 3 * i + r), bytes);
			}
		for (int i = 0; i < 24; i++)
			for (int r = 0; r < 3; r++) {
				uint64_t bytes = i % 2 ? large : small;
				struct shunt_plan_call call = { .send = in[r][i],
					.recv = out[r][i],
					.send_bytes = bytes,
					.recv_bytes = 3 * bytes,
					.dtype = SHUNT_U8,
					.stream = f.rank[r].stream };

				assert_int_equal(exec_rank_launch(&f.rank[r], &call), 0);
			}
		exec_ranks_wait(&f, "alternating sizes");
		for (int i = 0; i < 24; i++)
			for (int r = 0; r < 3; r++) {
				uint64_t bytes = i % 2 ? large : small;

				for (uint64_t k = 0; k < 3 * bytes; k++)
					if ((unsigned char)out[r][i][k] != (unsigned char)(seed + 3 * i + k / bytes))
						fail_msg("seed %u launch %d rank %d byte %llu", seed, i, r,
						    (unsigned long long)k);
			}
		for (int r = 0; r < 3; r++)
			for (int i = 0; i < 24; i++)
				gpu->mem_free(in[r][i]);
	}
	close_ranks(&f);
}

TEST(test_exec_windows_and_semaphores_cover_all_sizes)
{
	static const uint64_t counts[] = { 1, 15, 16, 17, 48, 63, 64, 65, 500, 8000 };

	for (int window = 16; window <= 48; window += 32) {
		open_ranks(&f, plan_windows(window), NULL);
		for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
			struct exec_job j = { SHUNT_I32, SHUNT_SUM, counts[c], c & 1, 0, 3, false };

			shunt_sim_set_jitter((unsigned)c, 100);
			if (!quick || counts[c] < 100)
				exec_ranks_check(&f, &j, c);
		}
		close_ranks(&f);
	}
}

/* Longer than the part of shared memory that bytecode is kept in. */
TEST(test_exec_long_program_runs_from_device_memory)
{
	struct exec_job j = { SHUNT_I64, SHUNT_SUM, 400 * 4 + 3, false, 0, 3, false };
	open_ranks(&f, plan_long(200), NULL);
	exec_ranks_check(&f, &j, 1);
	close_ranks(&f);
}

TEST(test_exec_mixed_operators_follow_the_plan)
{
	float *in, *out;
	void *p;

	open_ranks(&f, plan_mixed(), NULL);
	assert_int_equal(gpu->mem_alloc(0, 5 * 64 * 4, &p), 0);
	in = p;
	out = in + 3 * 64;
	for (int i = 0; i < 64; i++) {
		in[i] = (float)i;
		in[64 + i] = (float)(32 - i);
		in[128 + i] = -2;
		out[i] = out[64 + i] = 0;
	}
	struct shunt_plan_call call = { .send = in,
		.recv = out,
		.send_bytes = 3 * 64 * 4,
		.recv_bytes = 2 * 64 * 4,
		.dtype = SHUNT_F32,
		.stream = f.rank[0].stream };
	assert_int_equal(exec_rank_launch(&f.rank[0], &call), 0);
	exec_ranks_wait(&f, "mixed");
	for (int i = 0; i < 64; i++) {
		assert_true(out[i] == (float)(i > 32 - i ? i : 32 - i));
		assert_true(out[64 + i] == (float)(i * (32 - i) * -2));
	}
	gpu->mem_free(p);
	close_ranks(&f);
}

/*
 * What an all-gather in place sends is a part of what it receives, also if the plan gives that no chunks; a
 * reduce-scatter the other way round.
 */
TEST(test_exec_buffer_without_chunks_has_room_for_all_parts)
{
	enum { BYTES = 4000 };

	for (int scatter = 0; scatter < 2; scatter++) {
		char *whole[2];
		void *p;

		open_ranks(&f, plan_parts(scatter), NULL);
		assert_int_equal(exec_ranks_prepare(&f, 2 * BYTES), 0);
		for (int r = 0; r < 2; r++) {
			char *part;
			struct shunt_plan_call call = { .dtype = SHUNT_U8, .stream = f.rank[r].stream };

			assert_int_equal(gpu->mem_alloc(r, 2 * BYTES, &p), 0);
			whole[r] = p;
			memset(p, 7 + r, 2 * BYTES);
			part = whole[r] + r * BYTES;
			call.send = scatter ? whole[r] : part;
			call.recv = scatter ? part : whole[r];
			call.send_bytes = scatter ? 2 * BYTES : BYTES;
			call.recv_bytes = scatter ? BYTES : 2 * BYTES;
			assert_int_equal(exec_rank_launch(&f.rank[r], &call), 0);
		}
		exec_ranks_wait(&f, "parts");
		for (int r = 0; r < 2; r++) {
			for (int i = 0; i < BYTES; i++)
				assert_int_equal(whole[r][r * BYTES + i], 7 + !r);
			gpu->mem_free(whole[r]);
		}
		close_ranks(&f);
	}
}

/* Memory mapped as between processes, and packets in halves. */
TEST(test_exec_mapped_memory_and_ll8_match_reference)
{
	struct exec_options options = { .mapped = true, .ll_format = SHUNT_PLAN_LL_FORMAT_LL8 };
	char *(*const plans[])(int) = { plan_get, plan_acks, plan_switch };

	for (int p = 0; p < 4; p++) {
		struct exec_job small = { SHUNT_BF16, SHUNT_SUM, 777, p & 1, 0, 3, false },
		                large = { SHUNT_BF16, SHUNT_SUM, 40000, p & 1, 0, 3, false };
		open_ranks(&f, p < 3 ? plans[p](4) : plan_twoshot(4, 2, "sum"), &options);
		exec_ranks_check(&f, &small, (uint64_t)p);
		if (!quick)
			exec_ranks_check(&f, &large, (uint64_t)p);
		close_ranks(&f);
	}
}

/*
 * Chunks of many sizes, in which LL128 ranges lie apart or closely, one after the other; and data that is the number of
 * a launch to come: if any of it lay where a flag is looked for, that launch would take it for one.
 */
TEST(test_exec_stale_data_is_no_flag)
{
	static const uint64_t units[] = { 1, 40, 3, 100, 2, 7, 64, 4, 5, 31, 33, 90, 6 };
	enum { BLOCKS = 2, LAUNCHES = 52 };
	uint64_t *buf[2][LAUNCHES];

	for (int ll_format = SHUNT_PLAN_LL_FORMAT_LL128; ll_format <= SHUNT_PLAN_LL_FORMAT_LL16; ll_format++) {
		struct exec_options options = { .ll_format = (enum shunt_plan_ll_format)ll_format };

		open_ranks(&f, plan_twoshot(2, BLOCKS, "max"), &options);
		assert_int_equal(exec_ranks_prepare(&f, 100 * 16 * 2 * BLOCKS), 0);
		shunt_sim_set_jitter(11, 300);
		for (int i = 0; i < LAUNCHES; i++) {
			uint64_t count = units[i % 13] * 2 * 2 * BLOCKS;

			for (int r = 0; r < 2; r++) {
				void *p;

				assert_int_equal(gpu->mem_alloc(r, count * 8, &p), 0);
				buf[r][i] = p;
				for (uint64_t k = 0; k < count; k++)
					buf[r][i][k] = (uint64_t)i + 3 +
					    2 * (k % 3); /* launches i + 1 + 2, + 4, + 6 use this half again */
			}
			for (int r = 0; r < 2; r++) {
				struct shunt_plan_call call = { .send = buf[r][i],
					.recv = buf[r][i],
					.send_bytes = count * 8,
					.recv_bytes = count * 8,
					.dtype = SHUNT_U64,
					.redop = SHUNT_MAX,
					.stream = f.rank[r].stream };

				assert_int_equal(exec_rank_launch(&f.rank[r], &call), 0);
			}
		}
		exec_ranks_wait(&f, "stale data");
		for (int i = 0; i < LAUNCHES; i++)
			for (int r = 0; r < 2; r++) {
				for (uint64_t k = 0; k < units[i % 13] * 2 * 2 * BLOCKS; k++)
					assert_int_equal(buf[r][i][k], (uint64_t)i + 3 + 2 * (k % 3));
				gpu->mem_free(buf[r][i]);
			}
		close_ranks(&f);
	}
}

/*
 * Plain scratch of a launch with small chunks lies where one with larger chunks has packets, if both are laid out from
 * one place. So it may hold what looks like packets of that launch, for which rank 0 comes early. The large launch, or
 * the small ones, may be a graph's.
 */
static void run_with_stale_scratch(bool graph_large, bool graph_small)
{
	enum { SMALL = 64, LARGE = 128, LAUNCHES = 3 };
	void *graph[2][2] = { 0 };
	uint32_t *buf[2][2];
	void *p;

	open_ranks(&f, plan_staged(), NULL);
	assert_int_equal(exec_ranks_prepare(&f, LARGE * 4), 0);
	for (int r = 0; r < 2; r++)
		for (int large = 0; large < 2; large++) {
			assert_int_equal(gpu->mem_alloc(r, LARGE * 4, &p), 0);
			buf[r][large] = p;
			if (!(large ? graph_large : graph_small))
				continue;
			assert_int_equal(gpu->capture_begin(r, f.rank[r].stream), 0);
			launch_words(&f.rank[r], p, large ? LARGE : SMALL);
			assert_int_equal(gpu->capture_end(r, f.rank[r].stream, &graph[r][large]), 0);
		}
	for (int i = 1; i <= LAUNCHES; i++) {
		bool large = i == LAUNCHES;

		for (int r = 0; r < 2; r++)
			for (int k = 0; k < LARGE; k++)
				buf[r][large][k] = large ? (uint32_t)(100 + r) : LAUNCHES;
		for (int r = 0; r < 2; r++) {
			if (r)
				assert_true(shunt_sim_wait_stuck(f.rank[0].device, f.rank[0].stream));
			if (graph[r][large])
				assert_int_equal(gpu->graph_launch(r, graph[r][large], f.rank[r].stream), 0);
			else
				launch_words(&f.rank[r], buf[r][large], large ? LARGE : SMALL);
		}
		exec_ranks_wait(&f, "stale words");
		for (int r = 0; r < 2; r++)
			for (int k = 0; k < (large ? LARGE : SMALL); k++)
				assert_int_equal(buf[r][large][k], large ? 201 : 2 * LAUNCHES);
	}
	for (int r = 0; r < 2; r++)
		for (int large = 0; large < 2; large++) {
			if (graph[r][large])
				gpu->graph_destroy(r, graph[r][large]);
			gpu->mem_free(buf[r][large]);
		}
	close_ranks(&f);
}

TEST(test_exec_plain_scratch_of_another_size_is_no_packet)
{
	for (int i = 0; i < 4; i++)
		run_with_stale_scratch(i & 1, i & 2);
}

/*
 * Operations on packets and on bytes share out a slice in different ways, so without a nop between them the executor
 * must let threads meet.
 */
TEST(test_exec_packets_and_bytes_without_nop_follow_each_other)
{
	const uint64_t count = 3000;
	uint32_t *in, *out;
	void *p;

	open_ranks(&f, plan_packed(), NULL);
	assert_int_equal(gpu->mem_alloc(0, 4 * count * 4, &p), 0);
	in = p;
	out = in + count;
	for (uint64_t i = 0; i < count; i++)
		in[i] = (uint32_t)(i * 2654435761u);
	struct shunt_plan_call call = { .send = in,
		.recv = out,
		.send_bytes = count * 4,
		.recv_bytes = 3 * count * 4,
		.dtype = SHUNT_U32,
		.stream = f.rank[0].stream };
	assert_int_equal(exec_rank_launch(&f.rank[0], &call), 0);
	exec_ranks_wait(&f, "packed");
	for (uint64_t i = 0; i < 3 * count; i++)
		assert_int_equal(out[i], in[i % count]);
	gpu->mem_free(p);
	close_ranks(&f);
}

/* The flag of packets is 32 bits and never 0, which fresh scratch is full of; launches are counted in 64. */
TEST(test_exec_packet_flags_wrap)
{
	static const uint64_t starts[] = { 0xfffffffeull - 4, 0xffffffffull };

	assert_int_equal(SHUNT_PLAN_FLAG(1ull), 1);
	assert_int_equal(SHUNT_PLAN_FLAG(0xfffffffeull), 0xfffffffe);
	assert_int_equal(SHUNT_PLAN_FLAG(0xffffffffull), 1);
	for (int i = 0; i < 4; i++) {
		struct exec_options options = { .ll_format =
			                            i / 2 ? SHUNT_PLAN_LL_FORMAT_LL16 : SHUNT_PLAN_LL_FORMAT_LL128 };
		struct exec_job j = { SHUNT_F32, SHUNT_SUM, 200, true, 0, 9, false };
		open_ranks(&f, plan_twoshot(2, 2, "sum"), &options);
		assert_int_equal(exec_ranks_prepare(&f, 800), 0);
		for (int r = 0; r < 2; r++)
			for (int b = 0; b < 2; b++) {
				struct shunt_plan_state *counts =
				    (struct shunt_plan_state *)shunt_plan_exec_resources(f.rank[r].exec) + b;

				assert_int_equal(gpu->copy(r, &counts->launches, &starts[i % 2], sizeof(starts[0])), 0);
			}
		shunt_sim_set_jitter(3, 1000);
		exec_ranks_check(&f, &j, 1);
		close_ranks(&f);
	}
}

TEST(test_exec_two_communicators_run_at_once)
{
	struct exec_ranks a, b;
	float *x[2][2];
	const uint64_t count = 320;

	open_ranks(&a, plan_twoshot(2, 2, "sum"), NULL);
	open_ranks(&b, plan_twoshot(2, 2, "sum"), NULL);
	assert_int_equal(exec_ranks_prepare(&a, count * 4), 0);
	assert_int_equal(exec_ranks_prepare(&b, count * 4), 0);
	for (int r = 0; r < 2; r++)
		for (int c = 0; c < 2; c++) {
			void *p;

			assert_int_equal(gpu->mem_alloc(r, count * 4, &p), 0);
			x[r][c] = p;
			for (uint64_t i = 0; i < count; i++)
				x[r][c][i] = (float)(c + 1);
		}
	shunt_sim_set_jitter(5, 500);
	/*
	 * Rank 1 issues to the communicators the other way round: if they shared anything the ranks would wait for each
	 * other.
	 */
	for (int i = 0; i < 10; i++)
		for (int k = 0; k < 2; k++)
			for (int r = 0; r < 2; r++) {
				int c = k ^ r;

				launch_constant(c ? &b.rank[r] : &a.rank[r], x[r][c], x[r][c], count);
			}
	exec_ranks_wait(&a, "first communicator");
	exec_ranks_wait(&b, "second communicator");
	for (int r = 0; r < 2; r++)
		for (int c = 0; c < 2; c++) {
			for (uint64_t i = 0; i < count; i++)
				assert_true(x[r][c][i] == (float)((c + 1) << 10));
			gpu->mem_free(x[r][c]);
		}
	close_ranks(&a);
	close_ranks(&b);
}

TEST(test_exec_missing_peer_gives_up_at_the_deadline)
{
	char *(*const plans[])(int) = { plan_get, plan_acks };
	uint64_t timeout = 300 * 1000000;

	for (int p = 0; p < 4; p++) {
		struct exec_options options = { .ll_format =
			                            p == 3 ? SHUNT_PLAN_LL_FORMAT_LL16 : SHUNT_PLAN_LL_FORMAT_LL128 };
		void *buf[2];

		open_ranks(&f, p < 2 ? plans[p](2) : plan_twoshot(2, 1, "sum"), &options);
		assert_int_equal(exec_ranks_prepare(&f, 4096), 0);
		for (int i = 0; i < 2; i++) {
			struct shunt_plan_call call = { .send_bytes = 2048,
				.recv_bytes = p < 2 ? 4096 : 2048,
				.dtype = SHUNT_F32,
				.stream = f.rank[0].stream };

			assert_int_equal(gpu->mem_alloc(0, 8192, &buf[i]), 0);
			call.send = buf[i];
			call.recv = (char *)buf[i] + 4096;
			__atomic_store_n(&f.rank[0].words->limit_ns, timeout, __ATOMIC_RELAXED);
			assert_int_equal(
			    exec_rank_launch(&f.rank[0], &call), 0); /* the second one finds the abort word */
		}
		assert_int_equal(gpu->stream_sync(0, f.rank[0].stream), 0);
		assert_int_equal(f.rank[0].words->fault.set, SHUNT_FAULT_TIMEOUT);
		assert_int_equal(f.rank[0].words->fault.rank, 0);
		assert_int_equal(f.rank[0].words->fault.peer, p < 2 ? 1 : SHUNT_FAULT_ANY_PEER);
		assert_int_equal(f.rank[0].words->fault.expected, 1);
		assert_int_equal(f.rank[0].words->fault.seen, 0);
		gpu->mem_free(buf[0]);
		gpu->mem_free(buf[1]);
		close_ranks(&f);
	}
}

TEST(test_exec_abort_word_ends_every_wait)
{
	for (int ll_format = SHUNT_PLAN_LL_FORMAT_LL128; ll_format <= SHUNT_PLAN_LL_FORMAT_LL16; ll_format++) {
		struct exec_options options = { .ll_format = (enum shunt_plan_ll_format)ll_format };
		uint32_t one = 1;
		void *buf;

		open_ranks(&f, plan_twoshot(2, 2, "sum"), &options);
		assert_int_equal(exec_ranks_prepare(&f, 2048), 0);
		assert_int_equal(gpu->mem_alloc(0, 2048, &buf), 0);
		launch_constant(&f.rank[0], buf, buf, 512);
		struct shunt_ctrl *ctrl = f.rank[0].ctrl;
		assert_int_equal(gpu->copy(0, &ctrl->abort, &one, sizeof(one)), 0);
		assert_int_equal(gpu->stream_sync(0, f.rank[0].stream), 0);
		assert_int_equal(f.rank[0].words->fault.set, SHUNT_FAULT_ABORT);
		gpu->mem_free(buf);
		close_ranks(&f);
	}
}

TEST(test_exec_failed_prepare_is_the_same_on_all_ranks)
{
	struct exec_options few = { .max_blocks = 1 };
	struct shunt_plan_call call = {
		.send = &few, .recv = &few, .send_bytes = 64, .recv_bytes = 64, .dtype = SHUNT_F32, .redop = SHUNT_SUM
	};
	open_ranks(&f, plan_twoshot(2, 2, "sum"), &few);
	assert_int_equal(exec_ranks_prepare(&f, 64), -EOPNOTSUPP);
	/* Known from now on: no round is needed, and none would come about here. */
	assert_int_equal(exec_rank_launch(&f.rank[0], &call), -EOPNOTSUPP);
	call.recv_bytes = 128;
	assert_int_equal(exec_rank_launch(&f.rank[0], &call), -EINVAL);
	close_ranks(&f);

	open_ranks(&f, plan_twoshot(2, 2, "sum"), NULL);
	assert_int_equal(exec_ranks_prepare(&f, (uint64_t)1 << 60), -EOPNOTSUPP);
	assert_int_equal(exec_ranks_prepare(&f, 64), 0);
	exec_ranks_break(&f);
	assert_int_equal(exec_ranks_prepare(&f, 64), 0); /* no round */
	assert_int_equal(exec_ranks_prepare(&f, (uint64_t)64 << 20), -EINVAL);
	close_ranks(&f);
}

static bool fail_alloc;

static int failing_mem_alloc(int device, size_t bytes, void **p)
{
	return fail_alloc ? -ENOMEM : gpu->mem_alloc(device, bytes, p);
}

/* A rank alone must not find at a launch that it lacks memory. */
TEST(test_exec_memory_is_had_by_all_ranks_or_by_none)
{
	struct exec_job odd = { SHUNT_F32, SHUNT_SUM, 1001, false, 1, 2, false };
	struct shunt_gpu_ops ops = *gpu;
	struct exec_options options = { .last = &ops };
	ops.mem_alloc = failing_mem_alloc;
	open_ranks(&f, plan_twoshot(3, 2, "sum"), &options);
	fail_alloc = true;
	assert_int_equal(exec_ranks_prepare(&f, odd.count * 4), -EOPNOTSUPP);
	close_ranks(&f);
	fail_alloc = false;
	open_ranks(&f, plan_twoshot(3, 2, "sum"), &options);
	assert_int_equal(exec_ranks_prepare(&f, odd.count * 4), 0);
	fail_alloc = true; /* an odd address and an odd count: in a private copy */
	exec_ranks_check(&f, &odd, 1);
	fail_alloc = false;
	close_ranks(&f);
}

static int failing_share_map(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem)
{
	return fail_alloc ? -EMFILE : gpu->share_map(device, fd, bytes, mem);
}

/* Smaller messages go on in the memory that there is, as it is laid out. */
TEST(test_exec_memory_that_cannot_be_mapped_leaves_the_old_one_as_it_was)
{
	struct exec_job job = { SHUNT_F32, SHUNT_SUM, 3 * 4 * 40, false, 0, 2, false };
	struct shunt_gpu_ops ops = *gpu;
	struct exec_options options = { .mapped = true, .last = &ops };
	ops.share_map = failing_share_map;
	open_ranks(&f, plan_switch(3), &options); /* peers use its input and its output */
	exec_ranks_check(&f, &job, 1);
	fail_alloc = true;
	assert_int_equal(exec_ranks_prepare(&f, (uint64_t)64 << 20), -EOPNOTSUPP);
	fail_alloc = false;
	exec_ranks_check(&f, &job, 2);
	close_ranks(&f);
}

/* ---- buffers in windows */

static struct {
	unsigned launches, output, input, staged;
} last_launches;

static int count_launch(int device, const struct shunt_gpu_launch *l)
{
	const struct shunt_kargs_plan *a = l->args;

	last_launches.launches++;
	last_launches.input += (a->k.flags & SHUNT_PLAN_DIRECT0) != 0;
	last_launches.output += (a->k.flags & SHUNT_PLAN_DIRECT0 << 1) != 0;
	last_launches.staged += (a->k.flags & (SHUNT_PLAN_LOAD0 * 3 | SHUNT_PLAN_STORE0 * 3)) != 0;
	return gpu->launch(device, l);
}

static void check_direct(char *text, struct exec_job j, int inputs, int outputs, int staged)
{
	struct shunt_gpu_ops ops = *gpu;
	struct exec_options options = { .last = &ops };
	ops.launch = count_launch;
	memset(&last_launches, 0, sizeof(last_launches));
	open_ranks(&f, text, &options);
	j.direct = true;
	exec_ranks_check(&f, &j, 77);
	close_ranks(&f);
	assert_int_equal(last_launches.launches, 3);
	assert_int_equal(last_launches.input, inputs ? 3 : 0);
	assert_int_equal(last_launches.output, outputs ? 3 : 0);
	assert_int_equal(last_launches.staged, staged ? 3 : 0);
}

TEST(test_exec_buffers_in_windows_are_reached_where_they_are)
{
	struct exec_job j = { SHUNT_F32, SHUNT_SUM, 3 * 4 * 40, false, 0, 3, false }, in = j, odd = j, avg = j;

	in.in_place = true;
	odd.count += 1;
	avg.op = SHUNT_AVG;
	/* What is gathered goes straight into what the others receive; what they send is not known to lie alike. */
	check_direct(plan_port(3, 0), j, 0, 1, 0);
	check_direct(plan_port(3, 1), in, 0, 1, 0);
	check_direct(plan_port(3, 1), j, 0, 1, 1); /* our own part is not there yet */
	check_direct(plan_get(3), j, 0, 0, 1);
	/* Sums of what is sent, stored to all; an average is scaled before, and so staged. */
	check_direct(plan_switch(3), j, 1, 1, 0);
	check_direct(plan_switch(3), in, 0, 1, 1);
	check_direct(plan_switch(3), avg, 0, 1, 1);
	/* Chunks that are not full. */
	check_direct(plan_port(3, 0), odd, 0, 0, 1);
	check_direct(plan_scatter(3), in, 0, 0, 1);
}

/* A rank means another place: told, and nobody hangs. */
TEST(test_exec_windows_at_other_places_are_an_error)
{
	char *remote[2][3];
	void *p;

	open_ranks(&f, plan_port(3, 0), NULL);
	assert_int_equal(exec_ranks_prepare(&f, 3 * 640), 0);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(gpu->mem_alloc(r, 8192, &p), 0);
		remote[0][r] = p;
		remote[1][r] = (char *)p + 4096;
	}
	for (int r = 0; r < 3; r++) {
		struct shunt_plan_call call = { .send = remote[0][r],
			.recv = remote[1][r],
			.send_bytes = 640,
			.recv_bytes = 3 * 640,
			.dtype = SHUNT_F32,
			.stream = f.rank[r].stream,
			.remote = { remote[0], remote[1] },
			.place = { 16, 4096 + (r == 2 ? 16 : 0) } };

		assert_int_equal(exec_rank_launch(&f.rank[r], &call), 0);
	}
	for (int r = 0; r < 3; r++) {
		assert_int_equal(gpu->stream_sync(r, f.rank[r].stream), 0);
		assert_int_equal(f.rank[r].words->fault.set, SHUNT_FAULT_PLACE);
		assert_int_equal(f.rank[r].words->fault.peer == 2, r != 2);
		gpu->mem_free(remote[0][r]);
	}
	close_ranks(&f);
}

TESTS_BEGIN
{
	quick = getenv("EXEC_QUICK") != NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	if (gpu->open(&shunt_kernels))
		exit(1);
}
