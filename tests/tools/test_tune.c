/* SPDX-License-Identifier: MIT */
/* What shunt tune makes of its numbers. */
#include "tests/algos/sel.h"
#include "tests/support/plugin_table.h"
#include "tests/support/unit.h"
#include "algos/algos.h"
#include "algos/plugins.h"
#include "tools/tune/tune.h"

static const struct shunt_algo *algo(enum shunt_kind kind, const char *name)
{
	const struct shunt_algo *a = shunt_algo_find(kind, name);

	assert_non_null(a);
	return a;
}

static struct tune_opts gpu_opts(void)
{
	return (struct tune_opts){ .blocks = { { 8, 16, 32, 64 }, 4 }, .threads = { { 128, 256, 512 }, 3 } };
}

/* ---- candidates ---- */

static int count(const struct tune_candidate *list, int n, const char *name)
{
	int found = 0;

	for (int i = 0; i < n; i++)
		found += list[i].algo && !strcmp(list[i].algo->name, name);
	return found;
}

TEST(test_candidates_large_call_has_every_geometry)
{
	struct tune_opts o = gpu_opts();
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	int n = tune_candidates(&o, BENCH_COLL_ALLREDUCE, 64 << 20, 4, false, true, list);

	assert_true(!list[0].algo && !list[0].nccl && list[1].nccl);
	/* The algorithm's own is 64 blocks of 512 threads. */
	assert_int_equal(count(list, n, "oneshot"), 12);
	assert_int_equal(count(list, n, "twoshot"), 12);
	n = tune_candidates(&o, BENCH_COLL_ALLREDUCE, 64 << 20, 2, false, true, list);
	assert_int_equal(count(list, n, "oneshot"), 12);
	assert_int_equal(count(list, n, "twoshot"), 0);
	n = tune_candidates(&o, BENCH_COLL_ALLGATHER, 64 << 20, 8, false, false, list);
	assert_int_equal(count(list, n, "ll128"), 13);
	assert_false(list[1].nccl);
	n = tune_candidates(&o, BENCH_COLL_BROADCAST, 64 << 20, 3, false, false, list);
	assert_int_equal(count(list, n, "pipelined"), 13);
	n = tune_candidates(&o, BENCH_COLL_BROADCAST, 64 << 20, 2, false, false, list);
	assert_int_equal(count(list, n, "pipelined"), 0);
	n = tune_candidates(&o, BENCH_COLL_ALLGATHER, 64 << 20, 2, false, false, list);
	assert_int_equal(count(list, n, "pairwise"), 12);
	n = tune_candidates(&o, BENCH_COLL_ALLGATHER, 64 << 20, 4, false, false, list);
	assert_int_equal(count(list, n, "pairwise"), 0);
}

TEST(test_candidates_same_launch_is_measured_once)
{
	struct tune_opts o = gpu_opts();
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	int n = tune_candidates(&o, BENCH_COLL_ALLREDUCE, 256, 4, false, true, list);

	assert_int_equal(count(list, n, "oneshot"), 1); /* one warp, whatever the limits */
}

TEST(test_candidates_messages_have_one_geometry)
{
	struct tune_opts o = gpu_opts();
	struct tune_candidate list[TUNE_MAX_CANDIDATES];

	int n = tune_candidates(&o, BENCH_COLL_SENDRECV, 1 << 20, 4, false, true, list);

	assert_int_equal(count(list, n, "ll128"), 1);
	for (int i = 0; i < n; i++)
		assert_int_equal(list[i].geometry.blocks, 0);
}

TEST(test_candidates_fit_the_list)
{
	struct tune_opts o = { .blocks.n = OPTION_MAX_LIST, .threads.n = OPTION_MAX_LIST };
	struct tune_candidate list[TUNE_MAX_CANDIDATES];

	for (int i = 0; i < OPTION_MAX_LIST; i++) {
		o.blocks.at[i] = (unsigned)i + 57;
		o.threads.at[i] = (unsigned)(i + 1) * 32;
	}
	assert_int_equal(tune_candidates(&o, BENCH_COLL_ALLREDUCE, 1 << 30, 4, false, true, list), TUNE_MAX_CANDIDATES);
}

static int enqueue_nothing(void *arg, const struct shunt_plugin_call *call, void *stream)
{
	return 0;
}

TEST(test_candidates_of_plugins_are_those_of_the_kind)
{
	struct shunt_plugin plugin = plugin_table("mine");
	struct tune_opts o = gpu_opts();
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	char why[256];

	plugin.enqueue = enqueue_nothing;
	assert_int_equal(shunt_plugin_add(&plugin, 0, why, sizeof(why)), 0);
	assert_int_equal(count(list, tune_candidates(&o, BENCH_COLL_ALLREDUCE, 256, 4, false, true, list), "mine"), 1);
	assert_int_equal(count(list, tune_candidates(&o, BENCH_COLL_ALLGATHER, 256, 4, false, true, list), "mine"), 0);
	o.over_hosts = true;
	assert_int_equal(count(list, tune_candidates(&o, BENCH_COLL_ALLREDUCE, 256, 4, false, true, list), "mine"), 0);
	o.over_hosts = false;
	assert_int_equal(shunt_plugin_remove("mine"), 0);
	assert_int_equal(count(list, tune_candidates(&o, BENCH_COLL_ALLREDUCE, 256, 4, false, true, list), "mine"), 0);
}

TEST(test_candidates_of_windows_are_left_out)
{
	struct tune_opts o = gpu_opts();
	struct tune_candidate list[TUNE_MAX_CANDIDATES];
	int n = tune_candidates(&o, BENCH_COLL_ALLGATHER, 64 << 20, 4, false, true, list);

	for (int i = 0; i < n; i++)
		assert_true(!list[i].algo || list[i].algo->fuse != SHUNT_FUSE_SYMMEM);
}

/* ---- the plan ---- */

static struct tune_opts sized_opts(uint64_t first, uint64_t last, unsigned factor)
{
	struct tune_opts o = gpu_opts();

	o.base = (struct bench_opts){ .first = first, .last = last, .factor = factor, .rounds = 15, .check = true };
	o.dtype = SHUNT_F16;
	return o;
}

TEST(test_schedule_is_every_size_once)
{
	struct tune_opts o = sized_opts(1 << 10, 256 << 20, 2);
	static struct tune_task tasks[TUNE_MAX_POINTS];
	size_t n = tune_schedule(&o, 1u << BENCH_COLL_ALLREDUCE | 1u << BENCH_COLL_SENDRECV, 4, false, true, tasks);

	assert_int_equal(n, 2 * 19);
	for (size_t i = 0; i < n; i++) {
		assert_true(tasks[i].cost_us > 0);
		for (size_t k = 0; k < i; k++)
			assert_false(tasks[i].coll == tasks[k].coll && tasks[i].bytes == tasks[k].bytes);
	}
	/* Sizes that are rounded to one number of elements are one point. */
	o = sized_opts(8, 1 << 10, 2);
	n = tune_schedule(&o, 1u << BENCH_COLL_ALLGATHER, 3, false, true, tasks);
	for (size_t i = 1; i < n; i++)
		assert_true(tasks[i].count > 0);
	assert_int_equal(n, 5); /* 3 parts of at least 16 bytes: 64 to 1024 */
}

TEST(test_schedule_coarse_grid_comes_first)
{
	struct tune_opts o = sized_opts(1 << 10, 256 << 20, 2);
	static struct tune_task tasks[TUNE_MAX_POINTS];
	size_t n = tune_schedule(&o, 1u << BENCH_COLL_ALLREDUCE | 1u << BENCH_COLL_REDUCE, 4, false, true, tasks),
	       coarse = 0;
	const uint64_t grid[] = { 1 << 10, 4 << 10, 1 << 20, 256 << 20 };

	while (coarse < n && !tasks[coarse].level)
		coarse++;
	assert_int_equal(coarse, 2 * 4);
	for (int i = 0; i < 8; i++)
		assert_true(tasks[i].bytes == grid[i % 4] &&
		    tasks[i].coll == (i < 4 ? BENCH_COLL_ALLREDUCE : BENCH_COLL_REDUCE));
	for (size_t i = 1; i < n; i++)
		assert_true(tasks[i].level >= tasks[i - 1].level);
}

TEST(test_schedule_coarse_grid_covers)
{
	struct tune_opts o = sized_opts(1 << 10, 256 << 20, 2);
	static struct tune_task tasks[TUNE_MAX_POINTS];
	static struct tune_results r;
	size_t n = tune_schedule(&o, 1u << BENCH_COLL_ALLREDUCE, 4, false, true, tasks);

	for (r.n = 0; r.n < 4; r.n++) {
		assert_false(tune_coll_covered(&r, tasks, n, BENCH_COLL_ALLREDUCE));
		r.points[r.n] = (struct tune_point){ .coll = tasks[r.n].coll, .bytes = tasks[r.n].bytes };
	}
	assert_true(tune_coll_covered(&r, tasks, n, BENCH_COLL_ALLREDUCE));
}

TEST(test_schedule_larger_size_costs_more_for_one_call)
{
	double before = 0;

	for (uint64_t bytes = 128 << 20; bytes <= 4ull << 30; bytes *= 2) {
		struct tune_opts o = sized_opts(bytes, bytes, 2);
		static struct tune_task tasks[TUNE_MAX_POINTS];

		assert_int_equal(tune_schedule(&o, 1u << BENCH_COLL_ALLREDUCE, 2, false, true, tasks), 1);
		assert_true(tasks[0].cost_us > before);
		before = tasks[0].cost_us;
	}
}

TEST(test_burst_is_at_least_one_call)
{
	for (uint64_t bytes = 1; bytes && bytes < 1ull << 40; bytes *= 2) {
		assert_true(tune_burst(false, bytes).calls > 0 && tune_burst(false, bytes).launches > 0);
		assert_int_equal(tune_burst(true, bytes).calls, 1);
	}
}

/* ---- the best ---- */

TEST(test_best_noise_keeps_the_own_geometry)
{
	const struct shunt_algo *one = algo(SHUNT_ALLREDUCE, "oneshot"), *two = algo(SHUNT_ALLREDUCE, "twoshot");
	struct tune_candidate list[] = { { 0 }, { .nccl = true }, { .algo = one }, { .algo = two },
		{ one, { 8, 128, 0 }, false } };
	double nearly[] = { 5, 1, 5.05, 7, 5.0 }, clear[] = { 5, 1, 5.5, 7, 5.0 }, other[] = { 5, 1, 5.5, 4.9, 5.0 };

	assert_int_equal(tune_best(list, nearly, 5), 2);
	assert_int_equal(tune_best(list, clear, 5), 4);
	assert_int_equal(tune_best(list, other, 5), 3);
	assert_int_equal(tune_best(list, nearly, 2), -1);
}

TEST(test_forward_where_nccl_is_as_fast)
{
	assert_false(tune_forwards(9.8, 10, 11, 12, 0.01));
	assert_true(tune_forwards(9.95, 10, 11, 12, 0.01));
	assert_true(tune_forwards(10.5, 10, 11, 12, 0.01));
	assert_true(tune_forwards(5, 10, 12.1, 12, 0.01)); /* a win in graphs is no excuse */
	assert_false(tune_forwards(5, 0, 5, 0, 0.01));     /* there is no NCCL */
}

/* ---- rows ---- */

static struct tune_point point(enum bench_coll_id coll, uint64_t part, const char *name, unsigned blocks, bool forward)
{
	return (struct tune_point){ .coll = coll,
		.bytes = part * 4,
		.part = part,
		.algo = algo(tune_kind(coll), name),
		.geometry = { (uint16_t)blocks, 0, 0 },
		.forward = forward };
}

/* The table that the points make, for 4 ranks of an H200. */
static struct shunt_tuning *table(const struct tune_point *points, size_t n)
{
	struct shunt_tuning *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	t->machine = (struct shunt_machine){ .gpu = "NVIDIA H200", .cc = 90, .nranks = 4 };
	t->rows = calloc(2 * n + SHUNT_NKINDS, sizeof(*t->rows));
	assert_non_null(t->rows);
	t->nrows = tune_rows(points, n, t->rows);
	assert_int_equal(shunt_tuning_finalize(t), 0);
	return t;
}

static const char *path(const struct shunt_tuning *t, uint64_t bytes)
{
	struct shunt_sel_key s = { .topology = ONE_ISLAND, .nranks = 4, .cc = 90, .tuning = t };
	enum shunt_reason reason;

	return shunt_select_name(SEL(&s), SHUNT_ALLREDUCE, SHUNT_U8, SHUNT_SUM, bytes, &reason);
}

TEST(test_rows_between_two_points_ours_only_if_both_are)
{
	const struct tune_point points[] = {
		point(BENCH_COLL_ALLREDUCE, 8192, "twoshot", 0, false),
		point(BENCH_COLL_ALLREDUCE, 1024, "oneshot", 0, false),
		point(BENCH_COLL_ALLREDUCE, 2048, "oneshot", 0, false),
		point(BENCH_COLL_ALLREDUCE, 4096, "twoshot", 0, true),
		point(BENCH_COLL_ALLREDUCE, 16384, "twoshot", 0, false),
	};
	struct shunt_tuning *t = table(points, 5);

	assert_string_equal(path(t, 1), "oneshot");
	assert_string_equal(path(t, 2048), "oneshot");
	assert_string_equal(path(t, 2049), "nccl");
	assert_string_equal(path(t, 4096), "nccl");
	assert_string_equal(path(t, 4097), "nccl");
	assert_string_equal(path(t, 8191), "nccl");
	assert_string_equal(path(t, 8192), "twoshot");
	assert_string_equal(path(t, 16384), "twoshot");
	assert_string_equal(path(t, 16385), "nccl"); /* nobody measured it */
	shunt_tuning_free(t);
}

TEST(test_rows_same_answers_are_one_row)
{
	struct tune_point points[40];
	struct shunt_tuning_row rows[80 + SHUNT_NKINDS];

	for (int i = 0; i < 20; i++) {
		points[i] = point(BENCH_COLL_ALLREDUCE, 1024ull << i, "oneshot", i < 10 ? 8 : 16, false);
		points[20 + i] = point(BENCH_COLL_SENDRECV, 1024ull << i, "ll128", 0, i % 2);
	}
	assert_int_equal(tune_rows(points, 20, rows), 2);
	assert_true(rows[0].upto == 1024ull << 9 && rows[1].upto == 1024ull << 19);
	assert_int_equal(rows[0].geometry.blocks, 8);
	/* Each turn from NCCL to ours takes a row for what lies between; the worst case fits. */
	assert_true(tune_rows(points, 40, rows) <= 2 + 40);
}

TEST(test_rows_no_point_loses)
{
	uint64_t random = 1;

	for (int run = 0; run < 500; run++) {
		struct tune_point points[16];
		struct shunt_tuning *t;

		for (int i = 0; i < 16; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			points[i] = point(BENCH_COLL_ALLREDUCE, 100ull << i, random >> 40 & 1 ? "oneshot" : "twoshot",
			    random >> 45 & 1 ? 8 : 0, random >> 50 & 1);
		}
		t = table(points, 16);
		for (int i = 0; i < 16; i++) {
			assert_string_equal(path(t, points[i].part), points[i].forward ? "nccl" : points[i].algo->name);
			/* Between: ours only if both neighbours are. */
			if (i && (points[i].forward || points[i - 1].forward))
				assert_string_equal(path(t, points[i].part - 7), "nccl");
		}
		shunt_tuning_free(t);
	}
}

TEST(test_windows_begin_behind_our_largest)
{
	struct tune_point p[] = {
		{ .coll = BENCH_COLL_ALLREDUCE, .part = 4096, .windows_us = 1, .windows_forward = true },
		{ .coll = BENCH_COLL_ALLREDUCE, .part = 1024, .windows_us = 1, .windows_forward = true },
		{ .coll = BENCH_COLL_ALLREDUCE, .part = 2048, .windows_us = 1 },
		{ .coll = BENCH_COLL_ALLREDUCE, .part = 8192, .windows_us = 1, .windows_forward = true },
		{ .coll = BENCH_COLL_BROADCAST, .part = 4096, .windows_us = 1 },
		{ .coll = BENCH_COLL_REDUCE, .part = 4096 },
	};
	uint64_t from;

	assert_true(tune_windows_from(p, 6, BENCH_COLL_ALLREDUCE, &from));
	assert_int_equal(from, 4096);
	assert_true(tune_windows_from(p, 6, BENCH_COLL_BROADCAST, &from));
	assert_true(from == UINT64_MAX);
	assert_false(tune_windows_from(p, 6, BENCH_COLL_REDUCE, &from));
	p[2].windows_forward = true;
	assert_true(tune_windows_from(p, 6, BENCH_COLL_ALLREDUCE, &from));
	assert_int_equal(from, 1024);
}

TESTS_BEGIN
{
	setenv("SHUNT_TUNING_FILE", "none", 1);
	unsetenv("SHUNT_ALGO");
}
