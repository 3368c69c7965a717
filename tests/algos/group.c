/* SPDX-License-Identifier: MIT */
/*
 * Groups on the sim device: point-to-point of any pattern, calls that share launches, and both ends of a pair grouping
 * differently. KERNELS_QUICK=1 thins the cases out.
 */
#include "device/sim/hooks.h"
#include "tests/algos/job.h"
#include "tests/support/test.h"
#include "kernels/set.h"

static bool quick;

/* A message between two ranks. */
struct msg {
	int from, to, skew;
	size_t bytes;
	char *out, *in;
};

static void message_prepare(struct msg *m, uint64_t *seed)
{
	m->out = world_alloc(m->from, m->bytes + 2 * WORLD_GUARD);
	m->in = world_alloc(m->to, m->bytes + 2 * WORLD_GUARD);
	ref_fill(m->out, m->bytes + 2 * WORLD_GUARD, SHUNT_U8, seed);
	memset(m->in, 0xa5, m->bytes + 2 * WORLD_GUARD);
}

static struct shunt_coll message_call(const struct msg *m, bool sends)
{
	return (struct shunt_coll){ .kind = sends ? SHUNT_SEND : SHUNT_RECV,
		.dtype = SHUNT_U8,
		.root = sends ? m->to : m->from,
		.send = sends ? m->out + m->skew : NULL,
		.recv = sends ? NULL : m->in + m->skew,
		.count = m->bytes };
}

static void message_check(const struct msg *m, size_t i)
{
	if (memcmp(m->in + m->skew, m->out + m->skew, m->bytes))
		fail_msg("message %zu of %zu bytes from %d to %d: wrong", i, m->bytes, m->from, m->to);
	for (size_t k = 0; k < WORLD_GUARD; k++)
		if ((unsigned char)m->in[m->skew + m->bytes + k] != 0xa5)
			fail_msg("message %zu of %zu bytes from %d to %d: wrote behind its end", i, m->bytes, m->from,
			    m->to);
	shunt_gpu_sim_ops.mem_free(m->out);
	shunt_gpu_sim_ops.mem_free(m->in);
}

static size_t random_below(uint64_t *seed, size_t n)
{
	return ref_random(seed) % n;
}

struct item {
	struct shunt_coll call;
	bool p2p;
	size_t msg;
};

/*
 * What one rank issues: the collectives in their order, messages anywhere between, in any order but that of their pair
 * and direction.
 */
static size_t interleave(int rank, const struct job *jobs, size_t njobs, const struct msg *msgs, size_t nmsgs,
    struct item *items, uint64_t *seed)
{
	size_t n = 0;

	for (size_t i = 0; i < nmsgs; i++)
		for (int sends = 0; sends < 2; sends++)
			if ((sends ? msgs[i].from : msgs[i].to) == rank)
				items[n++] = (struct item){ message_call(&msgs[i], sends), true, i };
	for (size_t i = n; i > 1; i--) { /* shuffle */
		size_t k = random_below(seed, i);
		struct item t = items[i - 1];

		items[i - 1] = items[k];
		items[k] = t;
	}
	for (size_t i = 0; i < n; i++)
		for (size_t k = i + 1; k < n; k++)
			if (items[i].call.kind == items[k].call.kind && items[i].call.root == items[k].call.root &&
			    items[i].msg > items[k].msg) {
				struct item t = items[i];

				items[i] = items[k];
				items[k] = t;
			}
	for (size_t i = 0, at = 0; i < njobs; i++, at++, n++) {
		at += random_below(seed, n - at + 1);
		memmove(&items[at + 1], &items[at], (n - at) * sizeof(*items));
		items[at] = (struct item){ jobs[i].call[rank], false, 0 };
	}
	return n;
}

static void random_group(struct world *w, size_t njobs, size_t nmsgs, uint64_t seed)
{
	static const enum shunt_kind kinds[] = { SHUNT_ALLREDUCE, SHUNT_ALLREDUCE, SHUNT_ALLGATHER, SHUNT_REDUCESCATTER,
		SHUNT_ALLTOALL, SHUNT_BROADCAST, SHUNT_REDUCE, SHUNT_GATHER, SHUNT_SCATTER };
	static const enum shunt_dtype types[] = { SHUNT_F32, SHUNT_F16, SHUNT_BF16, SHUNT_I32, SHUNT_F8E4M3 };
	static const enum shunt_redop ops[] = { SHUNT_SUM, SHUNT_SUM, SHUNT_AVG, SHUNT_MAX, SHUNT_PREMUL };
	struct job *jobs = calloc(njobs + 1, sizeof(*jobs));
	struct msg *msgs = calloc(nmsgs + 1, sizeof(*msgs));
	struct item *items = calloc(njobs + 2 * nmsgs + 1, sizeof(*items));
	const char *algo = seed & 1 ? "pipelined" : seed & 2 ? "twoshot" : NULL;
	const struct shunt_coll **calls = calloc(njobs + 2 * nmsgs + 1, sizeof(*calls));

	for (size_t i = 0; i < njobs; i++) {
		jobs[i] = (struct job){ .kind = kinds[random_below(&seed, 9)],
			.dtype = types[random_below(&seed, 5)],
			.op = ops[random_below(&seed, 5)],
			.count = 1 + random_below(&seed, random_below(&seed, 4) ? 300 : 6000),
			.root = (int)random_below(&seed, w->n),
			.skew = (int)random_below(&seed, 3) };
		jobs[i].in_place = jobs[i].kind != SHUNT_ALLTOALL && random_below(&seed, 2);
		job_prepare(w, &jobs[i], seed + i);
	}
	for (size_t i = 0; i < nmsgs; i++) {
		msgs[i] = (struct msg){ .from = (int)random_below(&seed, w->n),
			.to = (int)random_below(&seed, w->n),
			.skew = (int)random_below(&seed, 20),
			.bytes = random_below(&seed, 5) ?
			    1 + random_below(&seed, random_below(&seed, 4) ? 3000 : 40000) :
			    0 };
		message_prepare(&msgs[i], &seed);
	}
	for (int r = 0; r < w->n; r++) {
		size_t n = interleave(r, jobs, njobs, msgs, nmsgs, items, &seed);

		for (size_t i = 0; i < n; i++)
			calls[i] = &items[i].call;
		assert_int_equal(world_launch_group(w, r, calls, n, algo), 0);
	}
	for (int r = 0; r < w->n; r++)
		world_wait(w, r, "a random group");
	for (size_t i = 0; i < njobs; i++) {
		job_check(w, &jobs[i]);
		job_drop(w, &jobs[i]);
	}
	for (size_t i = 0; i < nmsgs; i++)
		message_check(&msgs[i], i);
	free(jobs);
	free(msgs);
	free(items);
	free(calls);
}

TEST(test_group_of_anything_in_any_order_matches_reference)
{
	for (int n = 1; n <= 8; n++) {
		struct world w;

		if (quick && n != 2 && n != 3)
			continue;
		world_start(&w, n);
		for (int i = 0; i < (quick ? 4 : 20); i++) {
			shunt_sim_set_jitter(n * 100 + i, i % 3 ? 0 : 100);
			w.tma = i % 5 != 3;
			random_group(&w, i % 4 == 1 ? 0 : 1 + i % 7, i % 4 == 2 ? 0 : i * n, 1000 * n + i);
		}
		shunt_sim_set_jitter(0, 0);
		world_stop(&w);
	}
}

/* More messages than one launch holds, all between two ranks or spread. */
TEST(test_group_of_thousands_of_messages_matches_reference)
{
	struct world w;

	world_start(&w, 2);
	random_group(&w, 0, quick ? 100 : 3000, 5);
	world_stop(&w);
	world_start(&w, 3);
	random_group(&w, quick ? 10 : 60, quick ? 60 : 1500, 6);
	world_stop(&w);
}

/* The patterns that programs really make take one launch on each rank. */
TEST(test_group_of_calls_that_fuse_is_one_launch)
{
	static const struct {
		enum shunt_kind kind;
		const char *what;
		bool every_root;
		const char *algo;
	} patterns[] = {
		{ SHUNT_BROADCAST, "all-gather of uneven parts", true, NULL },
		{ SHUNT_REDUCE, "reduce-scatter of uneven parts", true, NULL },
		{ SHUNT_BROADCAST, "all-gather of parts for relays", true, "pipelined" },
		{ SHUNT_REDUCE, "reduce-scatter of parts for two shots", true, "twoshot" },
		{ SHUNT_ALLREDUCE, "buckets", false, NULL },
		{ SHUNT_ALLGATHER, "all-gathers", false, NULL },
		{ SHUNT_REDUCESCATTER, "reduce-scatters", false, NULL },
	};

	for (int n = 2; n <= (quick ? 3 : 8); n += quick ? 1 : 2)
		for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
			/* Of 8 ranks one reduce-scatter has 8 messages, of 16 that a launch holds. */
			size_t calls = patterns[i].every_root ? n : patterns[i].kind == SHUNT_ALLREDUCE ? 7 : 2;
			struct job jobs[8] = { 0 };
			struct world w;

			/* Each pattern once; relays and two shots are of more than two ranks. */
			if (quick && n != (i % 2 || patterns[i].algo ? 3 : 2))
				continue;
			world_start(&w, n);
			for (size_t k = 0; k < calls; k++) {
				jobs[k] = (struct job){ .kind = patterns[i].kind,
					.dtype = SHUNT_BF16,
					.op = SHUNT_AVG,
					.count = 17 + 401 * k,
					.root = patterns[i].every_root ? (int)k : 0,
					.skew = (int)k & 1 };
				job_prepare(&w, &jobs[k], i * 10 + k);
			}
			for (int r = 0; r < n; r++) {
				const struct shunt_coll *list[8];

				for (size_t k = 0; k < calls; k++)
					list[k] = &jobs[k].call[r];
				assert_int_equal(world_launch_group(&w, r, list, calls, patterns[i].algo), 0);
				if (w.launches[r] != 1)
					fail_msg("%s of %d ranks: %u launches", patterns[i].what, n, w.launches[r]);
			}
			for (int r = 0; r < n; r++)
				world_wait(&w, r, patterns[i].what);
			for (size_t k = 0; k < calls; k++) {
				job_check(&w, &jobs[k]);
				job_drop(&w, &jobs[k]);
			}
			world_stop(&w);
		}
}

/*
 * Groups of a broadcast or a reduce for each root, in any order: one behind the other, with parts of nothing, of one
 * slot and of many rounds, so that a rank without data in a round meets one with much. A root that comes again begins a
 * second launch.
 */
TEST(test_group_of_uneven_parts_matches_reference)
{
	enum { GROUPS = 4, MOST = 9 };
	static const size_t counts[] = { 0, 1, 239, 241, 1500, 9001 };
	static const enum shunt_dtype types[] = { SHUNT_BF16, SHUNT_F32, SHUNT_F16 };
	uint64_t seed = 77;

	for (int n = 2; n <= 8; n++) {
		struct job jobs[GROUPS][MOST] = { 0 };
		unsigned launches = 0;
		struct world w;

		if (quick && n != 3)
			continue;
		world_start(&w, n);
		shunt_sim_set_jitter(n, 60);
		for (int g = 0; g < GROUPS; g++) {
			int calls = g == 3 ? n + 1 : n, turn = (int)random_below(&seed, (size_t)n);

			for (int k = 0; k < calls; k++) {
				jobs[g][k] = (struct job){ .kind = g & 1 ? SHUNT_REDUCE : SHUNT_BROADCAST,
					.dtype = types[(g & 1 ? g : g + k) % 3],
					.op = SHUNT_SUM,
					.count = counts[random_below(&seed, k == 1 ? 6 : 4)] + (k == 0 || k == n),
					.root = (turn + k) % n,
					.skew = g == 2 && k % 2,
					.in_place = g > 1 };
				job_prepare(&w, &jobs[g][k], seed + (uint64_t)k);
			}
			launches += g == 3 ? 2 : 1;
		}
		for (int r = 0; r < n; r++)
			for (int g = 0; g < GROUPS; g++) {
				const struct shunt_coll *list[MOST];
				size_t calls = 0;

				/* A call without elements is no part of a group. */
				for (int k = 0; k < (g == 3 ? n + 1 : n); k++)
					if (jobs[g][k].count)
						list[calls++] = &jobs[g][k].call[r];
				assert_int_equal(world_launch_group(&w, r, list, calls, NULL), 0);
			}
		for (int r = 0; r < n; r++) {
			world_wait(&w, r, "uneven parts");
			assert_int_equal(w.launches[r], launches);
		}
		for (int g = 0; g < GROUPS; g++)
			for (int k = 0; k < (g == 3 ? n + 1 : n); k++) {
				job_check(&w, &jobs[g][k]);
				job_drop(&w, &jobs[g][k]);
			}
		shunt_sim_set_jitter(0, 0);
		world_stop(&w);
	}
}

/* A relay has a launch of its own, and the others of its group share those before and after it. */
TEST(test_group_with_one_pipelined_call_matches_reference)
{
	enum { CALLS = 5 };
	const int ranks = quick ? 3 : 4;
	static const struct {
		enum shunt_kind kind, pipelined_kind;
	} patterns[] = { { SHUNT_ALLGATHER, SHUNT_BROADCAST }, { SHUNT_REDUCESCATTER, SHUNT_REDUCE } };

	for (size_t i = 0; i < 2; i++)
		for (int at = 0; at < CALLS; at++) {
			struct job jobs[CALLS] = { 0 };
			struct world w;

			if (quick && at != 2 * (int)i)
				continue;
			world_start(&w, ranks);
			for (int k = 0; k < CALLS; k++) {
				jobs[k] = (struct job){ .kind = k == at ? patterns[i].pipelined_kind : patterns[i].kind,
					.dtype = SHUNT_F32,
					.op = SHUNT_SUM,
					.count = 4200 + (size_t)k,
					.root = at % ranks };
				job_prepare(&w, &jobs[k], i * 10 + (size_t)k);
			}
			for (int r = 0; r < ranks; r++) {
				const struct shunt_coll *list[CALLS];

				for (int k = 0; k < CALLS; k++)
					list[k] = &jobs[k].call[r];
				assert_int_equal(world_launch_group(&w, r, list, CALLS, NULL), 0);
				assert_int_equal(w.launches[r], at % (CALLS - 1) ? 3 : 2);
			}
			for (int r = 0; r < ranks; r++)
				world_wait(&w, r, "a group with a relay");
			for (int k = 0; k < CALLS; k++) {
				job_check(&w, &jobs[k]);
				job_drop(&w, &jobs[k]);
			}
			world_stop(&w);
		}
}

/* A pair need not agree about where groups begin and end. */
TEST(test_group_ends_of_a_pair_may_group_differently)
{
	enum { N = 9 };
	struct msg msgs[N];
	struct shunt_coll sends[N], recvs[N];
	const struct shunt_coll *list[N];
	uint64_t seed = 3;
	struct world w;

	world_start(&w, 2);
	for (size_t i = 0; i < N; i++) {
		msgs[i] = (struct msg){ .from = 0, .to = 1, .skew = (int)i, .bytes = 7 + i * i * 700 };
		message_prepare(&msgs[i], &seed);
		sends[i] = message_call(&msgs[i], true);
		recvs[i] = message_call(&msgs[i], false);
	}
	for (size_t i = 0; i < N; i++)
		world_launch(&w, 0, &sends[i], NULL);
	for (size_t i = 0; i < N; i++)
		list[i] = &recvs[i];
	assert_int_equal(world_launch_group(&w, 1, list, 4, NULL), 0);
	assert_int_equal(world_launch_group(&w, 1, list + 4, N - 4, NULL), 0);
	for (int r = 0; r < 2; r++)
		world_wait(&w, r, "messages");
	for (size_t i = 0; i < N; i++)
		message_check(&msgs[i], i);
	world_stop(&w);
}

/* The same elements alone, among others in a group, and at another place of a larger message: the same bits. */
TEST(test_group_reduces_to_the_same_bits_as_alone)
{
	enum { COUNT = 500, EXTRA = 3000, RANKS = 5 };
	struct world w;
	struct shunt_coll calls[RANKS][3];
	char *in[RANKS], *big_in[RANKS], *out[RANKS][3], *big_out[RANKS];
	uint64_t seed = 77;

	world_start(&w, RANKS);
	for (int r = 0; r < RANKS; r++) {
		in[r] = world_alloc(r, COUNT * 4);
		big_in[r] = world_alloc(r, (COUNT + EXTRA) * 4);
		big_out[r] = world_alloc(r, (COUNT + EXTRA) * 4);
		ref_fill(in[r], COUNT, SHUNT_F32, &seed);
		ref_fill(big_in[r], EXTRA, SHUNT_F32, &seed);
		memcpy(big_in[r] + EXTRA * 4, in[r], COUNT * 4);
		for (int i = 0; i < 3; i++)
			out[r][i] = world_alloc(r, COUNT * 4);
		struct shunt_coll alone = {
			.kind = SHUNT_ALLREDUCE, .dtype = SHUNT_F32, .redop = SHUNT_SUM, .count = COUNT, .send = in[r]
		};
		for (int i = 0; i < 2; i++) {
			calls[r][i] = alone;
			calls[r][i].recv = out[r][i];
		}
		calls[r][2] = (struct shunt_coll){ .kind = SHUNT_ALLREDUCE,
			.dtype = SHUNT_F32,
			.redop = SHUNT_SUM,
			.count = COUNT + EXTRA,
			.send = big_in[r],
			.recv = big_out[r] };
		memcpy(out[r][2], in[r], COUNT * 4);
	}
	for (int r = 0; r < RANKS; r++) {
		const struct shunt_coll *group[2] = { &calls[r][2], &calls[r][1] };
		struct shunt_coll in_place = calls[r][0];

		world_launch(&w, r, &calls[r][0], "oneshot");
		world_launch_group(&w, r, group, 2, "twoshot");
		in_place.send = in_place.recv = out[r][2];
		world_launch(&w, r, &in_place, "oneshot");
	}
	for (int r = 0; r < RANKS; r++) {
		world_wait(&w, r, "all-reduces");
		assert_memory_equal(out[r][0], out[0][0], COUNT * 4);
		assert_memory_equal(out[r][1], out[0][0], COUNT * 4);
		assert_memory_equal(out[r][2], out[0][0], COUNT * 4);
		assert_memory_equal(big_out[r] + EXTRA * 4, out[0][0], COUNT * 4);
	}
	for (int r = 0; r < RANKS; r++) {
		shunt_gpu_sim_ops.mem_free(in[r]);
		shunt_gpu_sim_ops.mem_free(big_in[r]);
		shunt_gpu_sim_ops.mem_free(big_out[r]);
		for (int i = 0; i < 3; i++)
			shunt_gpu_sim_ops.mem_free(out[r][i]);
	}
	world_stop(&w);
}

TEST(test_group_with_unpaired_message_to_itself_is_refused)
{
	char a[64], b[64];
	struct shunt_coll send = { .kind = SHUNT_SEND, .dtype = SHUNT_U8, .root = 1, .count = 64, .send = a };
	struct shunt_coll recv = { .kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 1, .count = 64, .recv = b };
	struct shunt_coll less = { .kind = SHUNT_RECV, .dtype = SHUNT_U8, .root = 1, .count = 63, .recv = b };
	const struct shunt_coll *lonely[] = { &send }, *twice[] = { &recv, &send, &recv }, *uneven[] = { &less, &send };
	struct world w;

	world_start(&w, 2);
	assert_int_equal(world_launch_group(&w, 1, lonely, 1, NULL), -EBADMSG);
	assert_int_equal(world_launch_group(&w, 1, twice, 3, NULL), -EBADMSG);
	assert_int_equal(w.launches[1], 0);
	/* Of two sizes the smaller one counts. */
	memset(a, 1, sizeof(a));
	memset(b, 2, sizeof(b));
	assert_int_equal(world_launch_group(&w, 1, uneven, 2, NULL), 0);
	world_wait(&w, 1, "a message to itself");
	assert_int_equal(b[62], 1);
	assert_int_equal(b[63], 2);
	world_stop(&w);
}

int main(void)
{
	quick = getenv("KERNELS_QUICK") != NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	return shunt_gpu_sim_ops.open(&shunt_kernels) ? 1 : tests_run(NULL, NULL);
}
