/* SPDX-License-Identifier: MIT */
/*
 * Two small all-reduces across ranks (threads with a stream each, no order between them but the kernels' own): one with
 * lines, one with plain stores behind a flag. Their epochs live in the scratch, as those of the real kernels. Right,
 * they must give right sums and be silent under ThreadSanitizer.
 */
#include <pthread.h>
#include "tests/device/sim_test.h"

enum { MAX_RANKS = 4, BLOCKS = 2, THREADS = 64, CHANNELS = BLOCKS * THREADS / 32, ROUNDS = 10 };

struct scratch {
	uint64_t ll128_epoch[CHANNELS];
	uint64_t block_epoch[BLOCKS];
	alignas(128) uint64_t flag[BLOCKS][MAX_RANKS][16];
	alignas(512) char slot[CHANNELS][2][MAX_RANKS][512];
	alignas(512) struct gpu_v16 piece[BLOCKS][2][MAX_RANKS][THREADS];
};

/* One unit per warp: 62 values, lane 7, 15, 23 and 31 bring one. */
static void k_ll128(const struct shunt_kargs &a)
{
	struct scratch *mine = (struct scratch *)a.peer[a.rank];
	uint32_t c = (gpu_bid() * gpu_ntid() + gpu_tid()) / 32, at = gpu_bid() * gpu_ntid() + gpu_tid();
	uint64_t epoch = mine->ll128_epoch[c] + 1;
	struct gpu_v16 v = gpu_ld16((const struct gpu_v16 *)a.send + at), sum = { 0, 0 };

	for (uint32_t r = 0; r < a.nranks; r++)
		gpu_ll128_st(((struct scratch *)a.peer[r])->slot[c][epoch & 1][a.rank], v, epoch);
	for (uint32_t r = 0; r < a.nranks; r++) {
		for (;;) {
			gpu_ll128_ld(mine->slot[c][epoch & 1][r], &v, epoch);
			if (gpu_warp_all(gpu_ll128_ready(v, epoch)))
				break;
			gpu_relax();
		}
		sum.lo += v.lo;
		sum.hi += v.hi;
	}
	gpu_st16((struct gpu_v16 *)a.recv + at, sum);
	gpu_warp_sync();
	if (gpu_lane() == 0)
		mine->ll128_epoch[c] = epoch;
}

static void k_pieces(const struct shunt_kargs &a)
{
	struct scratch *mine = (struct scratch *)a.peer[a.rank];
	uint32_t b = gpu_bid(), t = gpu_tid(), at = b * gpu_ntid() + t;
	uint64_t epoch = mine->block_epoch[b] + 1;
	struct gpu_v16 v = gpu_ld16((const struct gpu_v16 *)a.send + at), sum = { 0, 0 };

	for (uint32_t r = 0; r < a.nranks; r++)
		gpu_st16(&((struct scratch *)a.peer[r])->piece[b][epoch & 1][a.rank][t], v);
	gpu_sync();
	if (t < a.nranks) {
		gpu_st_release(&((struct scratch *)a.peer[t])->flag[b][a.rank][0], epoch);
		while (gpu_ld_acquire(&mine->flag[b][t][0]) < epoch)
			gpu_relax();
	}
	gpu_sync();
	for (uint32_t r = 0; r < a.nranks; r++) {
		v = gpu_ld16(&mine->piece[b][epoch & 1][r][t]);
		sum.lo += v.lo;
		sum.hi += v.hi;
	}
	gpu_st16((struct gpu_v16 *)a.recv + at, sum);
	if (t == 0)
		mine->block_epoch[b] = epoch;
}

struct rank {
	int rank, nranks;
	void (*kernel)(const struct shunt_kargs &);
	struct shunt_gpu_mem *mem;
	alignas(16) struct gpu_v16 send[ROUNDS][BLOCKS * THREADS], recv[ROUNDS][BLOCKS * THREADS];
	bool graph;
};

static struct gpu_v16 value(int rank, int round, int i)
{
	return { (uint64_t)rank * 1000000 + (uint64_t)round * 1000 + (uint64_t)i,
		(uint64_t)(rank + 1) * (uint64_t)(i + round) };
}

static void *rank_main(void *arg)
{
	struct rank *r = (struct rank *)arg;
	void *stream, *graph;

	assert_ok(ops->stream_create(r->rank, &stream));
	if (r->graph)
		assert_ok(ops->capture_begin(r->rank, stream));
	for (int round = 0; round < ROUNDS; round++) {
		struct shunt_kargs a = make_kargs(r->send[round], r->recv[round]);

		for (int p = 0; p < r->nranks; p++)
			a.peer[p] = (char *)r->mem[p].ptr;
		a.rank = (uint16_t)r->rank;
		a.nranks = (uint16_t)r->nranks;
		assert_ok(launch_fn(r->kernel, r->rank, BLOCKS, THREADS, &a, stream));
	}
	if (r->graph) {
		assert_ok(ops->capture_end(r->rank, stream, &graph));
		for (int i = 0; i < 3; i++)
			assert_ok(ops->graph_launch(r->rank, graph, stream));
		ops->graph_destroy(r->rank, graph);
	}
	assert_ok(ops->stream_sync(r->rank, stream));
	ops->stream_destroy(r->rank, stream);
	return NULL;
}

static void run_allreduce(void (*kernel)(const struct shunt_kargs &), int nranks, bool graph, bool ll128)
{
	struct rank *ranks = (struct rank *)calloc((size_t)nranks, sizeof(*ranks));
	struct shunt_gpu_mem mem[MAX_RANKS];
	pthread_t t[MAX_RANKS];

	for (int r = 0; r < nranks; r++) {
		assert_ok(ops->share_alloc(r, sizeof(struct scratch), &mem[r]));
		ranks[r].rank = r;
		ranks[r].nranks = nranks;
		ranks[r].kernel = kernel;
		ranks[r].mem = mem;
		ranks[r].graph = graph;
		for (int round = 0; round < ROUNDS; round++)
			for (int i = 0; i < BLOCKS * THREADS; i++)
				ranks[r].send[round][i] = value(r, round, i);
	}
	for (int r = 0; r < nranks; r++)
		assert_ok(pthread_create(&t[r], NULL, rank_main, &ranks[r]));
	for (int r = 0; r < nranks; r++)
		pthread_join(t[r], NULL);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < BLOCKS * THREADS; i++) {
			struct gpu_v16 want = { 0, 0 };

			for (int r = 0; r < nranks; r++) {
				want.lo += value(r, round, i).lo;
				want.hi += value(r, round, i).hi;
			}
			for (int r = 0; r < nranks; r++) {
				assert_int_equal(ranks[r].recv[round][i].lo, want.lo);
				if (!ll128 || i % 8 != 7) /* there the flag is */
					assert_int_equal(ranks[r].recv[round][i].hi, want.hi);
			}
		}
	for (int r = 0; r < nranks; r++)
		ops->share_free(&mem[r]);
	free(ranks);
}

TEST(test_allreduce_by_ll128)
{
	for (int n = 2; n <= MAX_RANKS; n++)
		run_allreduce(k_ll128, n, false, true);
}

TEST(test_allreduce_by_flagged_pieces)
{
	for (int n = 2; n <= MAX_RANKS; n++)
		run_allreduce(k_pieces, n, false, false);
}

TEST(test_allreduce_in_a_replayed_graph)
{
	run_allreduce(k_ll128, 2, true, true);
	run_allreduce(k_pieces, 3, true, false);
}

TEST(test_allreduce_with_jitter)
{
	for (unsigned seed = 1; seed <= 3; seed++) {
		shunt_sim_set_jitter(seed, 300);
		run_allreduce(k_ll128, 3, false, true);
		run_allreduce(k_pieces, 3, false, false);
	}
	shunt_sim_set_jitter(0, 0);
}
