/* SPDX-License-Identifier: MIT */
/*
 * Every plan of a folder that its INDEX.md calls right (OK, OK*) gives right values on all ranks of the sim: small and
 * odd sizes, in place and not, launches back to back with random delays. The folder is the environment's TEST_PLANS,
 * the status in the table_column "sim". An argument: only plans whose name contains it. EXEC_QUICK=1: only what a
 * sanitizer can bear.
 */
#include "tests/plan/exec_ranks.h"
#include "tests/support/test.h"
#include "device/sim/hooks.h"
#include "kernels/set.h"

static bool quick;
static const char *only, *folder;

static double now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The text of a field of a row of the table. */
static void table_column(const char *row, int i, char *out, size_t room)
{
	const char *p = row, *end;

	for (int k = 0; k <= i && p; k++)
		p = strchr(p + (k > 0), '|');
	*out = 0;
	if (!p || !(end = strchr(p + 1, '|')))
		return;
	for (p++; *p == ' ';)
		p++;
	while (end > p && end[-1] == ' ')
		end--;
	snprintf(out, room, "%.*s", (int)(end - p), p);
}

/* Windows of a few bytes instead of a megabyte, so that pipelines run more than one. */
static struct shunt_plan *load_small(const char *path)
{
	static const char *const sizes[] = { "1048576", "524288" };
	char *text = exec_read(path);
	struct shunt_plan *plan = NULL;

	for (int i = 0; i < 2; i++)
		if (strstr(text, "pipeline\"") && strstr(text, sizes[i]))
			plan = exec_load_text(path, text, sizes[i], "96");
	free(text);
	return plan;
}

static void check_windows(struct exec_ranks *f, const char *path, uint64_t seed)
{
	struct shunt_plan *plan = load_small(path);

	if (!plan)
		return;
	exec_ranks_create(f, plan, NULL);
	for (uint64_t i = 0; i < 5; i++) {
		struct exec_job j = { SHUNT_I32, SHUNT_SUM, plan->part_chunks * 4 * (1 + 7 * i) + i % 2, plan->inplace,
			0, 3, false };

		exec_ranks_check(f, &j, seed + i);
	}
	exec_ranks_destroy(f);
	shunt_plan_unref(plan);
}

static void run_plan(const char *file, uint64_t seed)
{
	static const struct {
		enum shunt_dtype dtype;
		bool reduces;
	} types[] = { { SHUNT_F32, true }, { SHUNT_F16, true }, { SHUNT_I32, true }, { SHUNT_BF16, true },
		{ SHUNT_U8, true } };
	struct exec_ranks f;
	struct shunt_plan *plan;
	char path[512];
	int n;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	plan = exec_load(path, &n);
	if (quick && (n > 4 || plan->max_blocks > 8)) {
		shunt_plan_unref(plan);
		return;
	}
	shunt_sim_set_jitter((unsigned)seed, seed % 2 ? 200 : 700);
	exec_ranks_start(&f, n);
	exec_ranks_create(&f, plan, NULL);
	enum shunt_dtype dtype = types[seed % 5].dtype;
	uint64_t esz = shunt_dtype_bytes[dtype], chunks = plan->part_chunks, whole = chunks * 16 / esz;
	struct exec_job jobs[] = {
		{ dtype, SHUNT_SUM, whole * 7, plan->inplace, 0, 3, false }, /* fills all chunks; more than one unit */
		{ dtype, SHUNT_SUM, whole * 3 + 5, !plan->inplace, 0, 3, false }, /* does not */
		{ dtype, SHUNT_SUM, whole * 40, plan->inplace, 1, 3, false },     /* unaligned; every thread has work */
		{ dtype, SHUNT_SUM, 1, plan->inplace, 0, 3, false },
		{ dtype, SHUNT_SUM, whole * 300, plan->inplace, 0, 3, false }, /* more than once */
		{ dtype, SHUNT_SUM, whole, !plan->inplace, 0, 3, false },
		{ dtype, SHUNT_SUM, whole * 7, plan->inplace, 0, 3, false, .direct = true },
		{ dtype, SHUNT_SUM, whole * 5, !plan->inplace, 0, 2, false, .direct = true },
		{ dtype, SHUNT_SUM, whole * 3 + 5, plan->inplace, 0, 2, false,
		    .direct = true }, /* staged all the same */
		{ dtype, SHUNT_SUM, whole * 2, plan->inplace, 0, 4, true, .direct = true },
	};
	bool can_direct = n <= (int)SHUNT_KARGS_MAX_RANKS && plan->collective < SHUNT_PLAN_SENDRECV;
	for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++)
		if (jobs[i].direct ? can_direct && (!quick || i == 6) : !quick || i < 2)
			exec_ranks_check(&f, &jobs[i], seed * 16 + i);
	exec_ranks_destroy(&f);
	check_windows(&f, path, seed);
	shunt_sim_set_jitter(0, 0);
	exec_ranks_stop(&f);
	shunt_plan_unref(plan);
}

/*
 * Whose result nobody defines, but which come to an end; and stay in their buffers, which is for AddressSanitizer to
 * say.
 */
static void finish_plan(const char *file)
{
	struct shunt_plan *plan;
	struct exec_ranks f;
	void *scrap[EXEC_RANKS_MAX][3];
	char path[512];
	int n;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	plan = exec_load(path, &n);
	exec_ranks_start(&f, n);
	exec_ranks_create(&f, plan, NULL);
	uint64_t send = plan->gpus[0].chunks[SHUNT_PLAN_INPUT] * 48,
	         recv = plan->gpus[0].chunks[SHUNT_PLAN_OUTPUT] * 48;
	assert_int_equal(exec_ranks_prepare(&f, send ? send : recv), 0);
	for (int t = 0; t < 3; t++)
		for (int r = 0; r < n; r++) {
			struct shunt_plan_call call = {
				.send_bytes = send, .recv_bytes = recv, .dtype = SHUNT_F32, .stream = f.rank[r].stream
			};
			void *p = NULL;

			assert_int_equal(shunt_gpu_sim_ops.mem_alloc(r, send + recv + 16, &p), 0);
			call.send = scrap[r][t] = p;
			call.recv = plan->inplace ? p : (char *)p + send;
			assert_int_equal(exec_rank_launch(&f.rank[r], &call), 0);
		}
	exec_ranks_wait(&f, file);
	for (int r = 0; r < n; r++)
		for (int t = 0; t < 3; t++)
			shunt_gpu_sim_ops.mem_free(scrap[r][t]);
	exec_ranks_destroy(&f);
	exec_ranks_stop(&f);
	shunt_plan_unref(plan);
}

/* Calls fn for every plan whose status in the table is one of two; how many. */
static int for_plans(const char *one, const char *other, void (*fn)(const char *file, uint64_t seed))
{
	char path[512], *index, file[128], status[32] = "";
	int ran = 0, where = 0;
	uint64_t seed = 1;

	folder = getenv("TEST_PLANS");
	assert_non_null(folder);
	snprintf(path, sizeof(path), "%s/INDEX.md", folder);
	index = exec_read(path);
	assert_non_null(index);
	for (char *line = strtok(index, "\n"); line; line = strtok(NULL, "\n")) {
		table_column(line, 0, file, sizeof(file));
		if (!strcmp(file, "file"))
			while (where < 64 && strcmp(status, "sim"))
				table_column(line, ++where, status, sizeof(status));
		table_column(line, where, status, sizeof(status));
		if (*line != '|' || !strstr(file, ".json") || (strcmp(status, one) && strcmp(status, other)))
			continue;
		seed++;
		if (only && !strstr(file, only))
			continue;
		double t = now_seconds();
		fn(file, seed);
		if (getenv("EXEC_TIMES"))
			print_message("%6.2f s  %s\n", now_seconds() - t, file);
		ran++;
	}
	free(index);
	return ran;
}

static void check_plan(const char *file, uint64_t seed)
{
	for (uint64_t i = 0; i < (quick ? 1 : 2); i++)
		run_plan(file, seed + 101 * i);
}

TEST_CALL(test_exec_plans_called_right_give_right_values, assert_true(for_plans("OK", "OK*", check_plan) > 0))

static void end_plan(const char *file, uint64_t seed)
{
	finish_plan(file);
}

TEST_CALL(test_exec_plans_without_defined_result_run_to_their_end,
    assert_true(for_plans("runs", "runs*", end_plan) > (only ? -1 : 0)))

int main(int argc, char **argv)
{
	quick = getenv("EXEC_QUICK") != NULL;
	only = argc > 1 ? argv[1] : NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	if (shunt_gpu_sim_ops.open(&shunt_kernels))
		return 1;
	return tests_run(NULL, NULL);
}
