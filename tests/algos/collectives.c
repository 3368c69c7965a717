/* SPDX-License-Identifier: MIT */
/*
 * The exchange kernels, and the one-shot reduce-scatter, on the sim device against plain loops: every collective that
 * they make, element sizes and operators, odd counts and addresses, any root, in place and out, back to back with
 * random delays, several in flight. KERNELS_QUICK=1 thins the cases out.
 */
#include <sched.h>
#include "base/io.h"
#include "device/sim/hooks.h"
#include "tests/algos/job.h"
#include "tests/support/test.h"
#include "kernels/set.h"

static bool quick;

static void run_algo(struct world *w, const struct job *cases, uint64_t seed, const char *algo)
{
	struct job j = *cases;

	job_prepare(w, &j, seed);
	for (int r = 0; r < w->n; r++)
		world_launch(w, r, &j.call[r], algo);
	for (int r = 0; r < w->n; r++)
		world_wait(w, r, shunt_kind_name(j.kind));
	job_check(w, &j);
	job_drop(w, &j);
}

static void run_algos(struct world *w, const struct job *cases, uint64_t seed)
{
	run_algo(w, cases, seed, "ll128");
	run_algo(w, cases, seed, "simple");
	if (shunt_dtype_is_format(cases->dtype)) /* selection gives them to these two */
		return;
	if (w->n == 2)
		run_algo(w, cases, seed, "tma");
	if (cases->kind == SHUNT_REDUCESCATTER)
		run_algo(w, cases, seed, "oneshot");
	if (cases->kind == SHUNT_ALLGATHER || cases->kind == SHUNT_ALLTOALL)
		run_algo(w, cases, seed, "pairwise");
	if (cases->kind == SHUNT_BROADCAST)
		run_algo(w, cases, seed, "pipelined");
	if (cases->kind == SHUNT_REDUCE)
		run_algo(w, cases, seed, "twoshot");
}

static const enum shunt_kind kinds[] = { SHUNT_ALLGATHER, SHUNT_REDUCESCATTER, SHUNT_ALLTOALL, SHUNT_BROADCAST,
	SHUNT_REDUCE, SHUNT_GATHER, SHUNT_SCATTER };
#define NKINDS (sizeof(kinds) / sizeof(kinds[0]))

TEST(test_collectives_every_type_and_op_matches_reference)
{
	/* ThreadSanitizer takes a while to make the threads of 8 ranks, and has a limit for them. */
	const int ranks[] = { 2, 3, quick ? 4 : 8 };

	for (size_t i = 0; i < 3; i++) {
		struct world w;

		world_start(&w, ranks[i]);
		for (size_t k = 0; k < NKINDS; k++)
			for (int t = 0; t < (shunt_kind_reduces(kinds[k]) ? SHUNT_NFORMATS : SHUNT_NDTYPES); t++)
				for (int op = 0; op < SHUNT_NREDOPS; op++) {
					bool reduces = shunt_kind_reduces(kinds[k]);
					struct job j = { kinds[k], t, op, 333, (t + op) % ranks[i], t & 1,
						(t & 2) && kinds[k] != SHUNT_ALLTOALL };

					int pair = t * 7 + op + (int)k;
					if ((!reduces && op) || (quick && (pair % 11 || pair / 11 % 3 != (int)i)))
						continue;
					run_algos(&w, &j, 77 * k + 13 * t + op);
				}
		world_stop(&w);
	}
}

TEST(test_collectives_every_count_root_and_alignment_matches_reference)
{
	/* Around a pack, a unit (480 bytes), a full ring of all channels; up and down again. */
	static const size_t counts[] = { 1, 3, 120, 121, 2400, 30011, 7, 100000, 5 };

	for (int n = 2; n <= 8; n++) {
		struct world w;

		if (quick && n != 2 && n != 3)
			continue;
		world_start(&w, n);
		for (size_t k = 0; k < NKINDS; k++)
			for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
				struct job j = { kinds[k], SHUNT_F32, SHUNT_SUM, counts[c], (int)(c + k) % n,
					(int)c % 3, c & 1 && kinds[k] != SHUNT_ALLTOALL };

				/* Full rings of 5 to 7 ranks are as those of 4 and 8. */
				if (counts[c] > (size_t)(quick || (n > 4 && n < 8) ? 3000 : 200000 / n))
					continue;
				if (quick && (c + k) % 2 != (size_t)(n == 3)) /* each with 2 ranks or with 3 */
					continue;
				run_algos(&w, &j, counts[c] + k);
			}
		world_stop(&w);
	}
}

TEST(test_collectives_in_two_hops_every_share_matches_reference)
{
	/*
	 * A relay's shares are whole lines of 32 elements: fewer than there are relays, one each, a short last one,
	 * none of the last relays', several rings full. A two-shot reduce's are units of 120.
	 */
	static const size_t counts[] = { 1, 32, 33, 64, 7 * 32, 7 * 32 + 1, 121, 961, 4 * 7 * 120 + 5, 50021 };
	static const struct {
		enum shunt_kind kind;
		const char *algo;
	} two_hops[] = { { SHUNT_BROADCAST, "pipelined" }, { SHUNT_REDUCE, "twoshot" } };

	for (int n = 2; n <= 8; n++) {
		struct world w;

		if (quick && n != 3 && n != 4)
			continue;
		world_start(&w, n);
		for (size_t k = 0; k < 2; k++)
			for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
				for (int root = 0; root < n; root++) {
					struct job j = { two_hops[k].kind, SHUNT_F32, SHUNT_AVG, counts[c], root,
						(int)(c + (size_t)root) % 3, root & 1 };

					if (quick && (root != (int)c % n || counts[c] > 3000))
						continue;
					if (counts[c] > 3000 &&
					    root != (int)c % n) /* rings are full whoever is the root */
						continue;
					shunt_sim_set_jitter(counts[c] + (uint64_t)root, root % 3 ? 0 : 100);
					run_algo(&w, &j, counts[c] * 8 + (uint64_t)root, two_hops[k].algo);
				}
		shunt_sim_set_jitter(0, 0);
		world_stop(&w);
	}
}

/* Prepared calls, each rank's one launch behind the other; then checked and dropped. algos: one for each call. */
static void run_in_a_row(
    struct world *w, struct job *jobs, const char *const *algos, int n, unsigned seed, unsigned jitter_us)
{
	shunt_sim_set_jitter(seed, jitter_us);
	for (int r = 0; r < w->n; r++)
		for (int i = 0; i < n; i++)
			world_launch(w, r, &jobs[i].call[r], algos[i]);
	for (int r = 0; r < w->n; r++)
		world_wait(w, r, "calls in a row");
	shunt_sim_set_jitter(0, 0);
	for (int i = 0; i < n; i++) {
		job_check(w, &jobs[i]);
		job_drop(w, &jobs[i]);
	}
}

/* On the same slots, in rounds of every kernel that two ranks have for them. */
TEST(test_collectives_between_two_in_a_row_match_reference)
{
	static const enum shunt_kind pairwise_kinds[] = { SHUNT_ALLREDUCE, SHUNT_REDUCESCATTER, SHUNT_ALLGATHER,
		SHUNT_ALLTOALL };
	static const enum shunt_dtype types[] = { SHUNT_F16, SHUNT_F32, SHUNT_I8, SHUNT_F64 };
	enum { CALLS = 24 };

	for (uint64_t round = 0; round < (quick ? 2 : 12); round++) {
		struct job jobs[CALLS] = { 0 };
		const char *algos[CALLS];
		struct world w;
		uint64_t seed = round;

		world_start(&w, 2);
		for (int i = 0; i < CALLS; i++) {
			/* Of the fast kernels one that loops, one that does not, and those for odd messages. */
			size_t count = ref_random(&seed) % 3 ? 8 * (1 + ref_random(&seed) % (quick ? 300 : 3000)) :
			                                       1 + ref_random(&seed) % 2000;

			jobs[i] = (struct job){ .kind = pairwise_kinds[ref_random(&seed) % 4],
				.dtype = types[ref_random(&seed) % 4],
				.op = i % 5 ? SHUNT_SUM : SHUNT_PREMUL,
				.count = count,
				.skew = i % 4 ? 0 : i % 3 };
			jobs[i].in_place = jobs[i].kind != SHUNT_ALLTOALL && i % 3 == 1;
			algos[i] = shunt_kind_reduces(jobs[i].kind) ? "oneshot" : "pairwise";
			job_prepare(&w, &jobs[i], seed + (uint64_t)i);
		}
		run_in_a_row(&w, jobs, algos, CALLS, (unsigned)round + 1, round % 3 ? 200 : 0);
		world_stop(&w);
	}
}

/* On the same rings, one launch behind the other, and the ranks at different ones. */
TEST(test_collectives_algorithms_in_a_row_match_reference)
{
	static const char *const algos_in_turn[] = { "pipelined", "ll128", "twoshot",
		"simple" }; /* where a kind has none such, the built-in one */
	static const enum shunt_dtype types[] = { SHUNT_F16, SHUNT_F32, SHUNT_I8, SHUNT_F64 };
	enum { CALLS = 24 };

	for (int n = 3; n <= 8; n++) {
		struct job jobs[CALLS] = { 0 };
		const char *algos[CALLS];
		struct world w;
		uint64_t seed = (uint64_t)n;

		if (quick && n != 3)
			continue;
		world_start(&w, n);
		for (int i = 0; i < CALLS; i++) {
			jobs[i] = (struct job){ .kind = ref_random(&seed) % 3 ? i & 1 ? SHUNT_REDUCE : SHUNT_BROADCAST :
				                                                kinds[ref_random(&seed) % NKINDS],
				.dtype = types[ref_random(&seed) % 4],
				.op = i % 5 ? SHUNT_SUM : SHUNT_PREMUL,
				.count = 1 + ref_random(&seed) % (quick ? 800 : 9000),
				.root = (int)(ref_random(&seed) % (uint64_t)n),
				.skew = i % 3 };
			algos[i] = algos_in_turn[i / 2 % 4];
			job_prepare(&w, &jobs[i], seed + (uint64_t)i);
		}
		run_in_a_row(&w, jobs, algos, CALLS, (unsigned)n, 200);
		world_stop(&w);
	}
}

/* A root that runs ahead: nothing in a broadcast or scatter tells it how far the others are but the ring. */
TEST(test_collectives_fast_sender_does_not_overrun_a_slow_receiver)
{
	enum { N = 3, COUNT = 5000, TIMES = 12 };
	struct world w;
	int32_t *root_buf[TIMES], *out[N][TIMES];

	world_start(&w, N);
	shunt_sim_set_jitter(7, 300);
	for (int t = 0; t < TIMES; t++) {
		root_buf[t] = (int32_t *)world_alloc(0, COUNT * 4);
		for (int i = 0; i < COUNT; i++)
			root_buf[t][i] = i * 31 + t;
	}
	for (int r = 0; r < N; r++) /* the root's launches are all queued before anybody else's */
		for (int t = 0; t < TIMES; t++) {
			out[r][t] = (int32_t *)world_alloc(r, COUNT * 4);
			struct shunt_coll coll = { .kind = SHUNT_BROADCAST,
				.dtype = SHUNT_I32,
				.root = 0,
				.count = COUNT,
				.send = root_buf[t],
				.recv = out[r][t] };
			world_launch(&w, r, &coll, NULL);
		}
	for (int r = 0; r < N; r++) {
		world_wait(&w, r, "broadcast");
		for (int t = 0; t < TIMES; t++)
			assert_memory_equal(out[r][t], root_buf[t], COUNT * 4);
	}
	shunt_sim_set_jitter(0, 0);
	for (int t = 0; t < TIMES; t++) {
		shunt_gpu_sim_ops.mem_free(root_buf[t]);
		for (int r = 0; r < N; r++)
			shunt_gpu_sim_ops.mem_free(out[r][t]);
	}
	world_stop(&w);
}

TEST(test_collectives_missing_peer_gives_up_at_the_deadline)
{
	struct world w;
	uint64_t in[64] = { 0 }, out[3][64], timeout = 500 * 1000000ull;

again:
	world_start(&w, 3);
	for (int r = 0; r < 3; r++)
		w.host_ctrl[r]->limit_ns = timeout;
	for (int r = 0; r < 3; r += 2) { /* rank 1 does not call */
		struct shunt_coll coll = {
			.kind = SHUNT_ALLGATHER, .dtype = SHUNT_U64, .count = 16, .send = in, .recv = out[r]
		};
		world_launch(&w, r, &coll, NULL);
	}
	for (int r = 0; r < 3; r += 2)
		assert_int_equal(shunt_gpu_sim_ops.stream_sync(r, w.stream[r]), 0);
	if ((w.host_ctrl[0]->fault.peer == 2 || w.host_ctrl[2]->fault.peer == 0) && timeout < WORLD_LONGEST_NS) {
		timeout *= 2; /* the two that call did not meet within it: the machine is busy */
		world_stop(&w);
		goto again;
	}
	for (int r = 0; r < 3; r += 2) {
		assert_int_equal(w.host_ctrl[r]->fault.set, SHUNT_FAULT_TIMEOUT);
		assert_int_equal(w.host_ctrl[r]->fault.peer, 1);
	}
	world_stop(&w);
}

/* Rank 1 has taken the first lines from the root, and rank 2 neither passes its own on nor makes room. */
TEST(test_collectives_forward_without_credit_gives_up_at_the_deadline)
{
	enum { N = 3, COUNT = 100000 };
	uint64_t timeout = 500 * 1000000ull;
	struct world w;
	char *buf[N];

again:
	world_start(&w, N);
	for (int r = 0; r < N; r++) {
		w.host_ctrl[r]->limit_ns = timeout;
		buf[r] = world_alloc(r, COUNT);
	}
	for (int r = 0; r < 2; r++) {
		struct shunt_coll coll = { .kind = SHUNT_BROADCAST,
			.dtype = SHUNT_U8,
			.root = 0,
			.count = COUNT,
			.send = buf[r],
			.recv = buf[r] };
		world_launch(&w, r, &coll, "pipelined");
	}
	for (int r = 0; r < 2; r++) {
		assert_int_equal(shunt_gpu_sim_ops.stream_sync(r, w.stream[r]), 0);
		assert_int_equal(w.host_ctrl[r]->fault.set, SHUNT_FAULT_TIMEOUT);
	}
	for (int r = 0; r < N; r++)
		shunt_gpu_sim_ops.mem_free(buf[r]);
	if (w.host_ctrl[1]->fault.peer != 2 && timeout < WORLD_LONGEST_NS) {
		timeout *= 2; /* ranks 0 and 1 did not come so far within it: the machine is busy */
		world_stop(&w);
		goto again;
	}
	assert_int_equal(w.host_ctrl[1]->fault.peer, 2);
	world_stop(&w);
}

/* A word that a kernel may be writing. */
static uint64_t read_word(int rank, const uint64_t *place)
{
	uint64_t word;

	shunt_gpu_sim_ops.copy(rank, &word, place, sizeof(word));
	return word;
}

/*
 * SHUNT_CHECK: the data is here, the message's size is not. Who goes by the account must not think that the launch has
 * ended.
 */
TEST(test_collectives_block_that_compares_sizes_counts_until_it_has)
{
	enum { BYTES = 1000 };
	const uint64_t size[2] = { BYTES | 1ull << 32, 1ull << 32 };
	char *peer[SHUNT_KARGS_MAX_RANKS] = { NULL }, *in, *out;
	uint64_t begun, ended;
	struct shunt_ctrl *ctrl;
	struct world w;

	world_start(&w, 2);
	ctrl = w.mem[0].ptr;
	in = world_alloc(1, BYTES);
	out = world_alloc(0, BYTES);
	peer[0] = w.mem[0].ptr;
	peer[1] = w.mem[1].ptr;
	shunt_gpu_sim_ops.copy(0, ctrl->check.peer, peer, sizeof(peer));
	world_launch(&w, 1,
	    &(struct shunt_coll){ .kind = SHUNT_SEND, .dtype = SHUNT_U8, .root = 0, .count = BYTES, .send = in }, NULL);
	w.op = 1;
	w.checks = true;
	world_launch(&w, 0,
	    &(struct shunt_coll){ .kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 1, .count = BYTES, .recv = out },
	    NULL);
	world_wait(&w, 1, "send");
	do {
		begun = read_word(0, &ctrl->progress.begun);
		ended = read_word(0, &ctrl->progress.ended);
	} while (!begun || ended + 1 < begun);
	assert_true(shunt_sim_wait_stuck(0, w.stream[0]));
	assert_int_equal(read_word(0, &ctrl->progress.ended) + 1, begun);
	for (int i = 0; i < 2; i++)
		shunt_gpu_sim_ops.copy(0, &ctrl->check.size[1][0].half[i], &size[i], sizeof(size[i]));
	world_wait(&w, 0, "recv");
	assert_int_equal(read_word(0, &ctrl->progress.ended), begun);
	shunt_gpu_sim_ops.mem_free(in);
	shunt_gpu_sim_ops.mem_free(out);
	world_stop(&w);
}

/* While rank 1 is late, another rank's kernel counts the time for it, under the number that it has elsewhere. */
TEST(test_collectives_waits_are_counted_for_the_late_rank)
{
	static const struct {
		enum shunt_kind kind;
		const char *algo;
		int n;
	} cases[] = { { SHUNT_ALLREDUCE, "oneshot", 3 }, { SHUNT_REDUCESCATTER, "oneshot", 3 },
		{ SHUNT_ALLGATHER, "pairwise", 2 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct job j = { cases[i].kind, SHUNT_F32, SHUNT_SUM, 300 };
		int64_t end = shunt_deadline_ms(60000);
		uint32_t gate = 0;
		uint64_t ns;
		struct world w;

		world_start(&w, cases[i].n);
		job_prepare(&w, &j, 4100 + i);
		assert_int_equal(shunt_sim_gate(1, w.stream[1], &gate), 0);
		for (int r = 0; r < w.n; r++)
			world_launch(&w, r, &j.call[r], cases[i].algo);
		while (!(ns = __atomic_load_n(&w.host_ctrl[0]->waits[11].ns, __ATOMIC_RELAXED)) && shunt_now_ms() < end)
			sched_yield();
		if (!ns)
			fail_msg("%s %s: nothing is counted", shunt_kind_name(j.kind), cases[i].algo);
		shunt_sim_gate_open(&gate);
		for (int r = 0; r < w.n; r++)
			world_wait(&w, r, cases[i].algo);
		job_check(&w, &j);
		job_drop(&w, &j);
		world_stop(&w);
	}
}

int main(void)
{
	quick = getenv("KERNELS_QUICK") != NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	return shunt_gpu_sim_ops.open(&shunt_kernels) ? 1 : tests_run(NULL, NULL);
}
