/* SPDX-License-Identifier: MIT */
/*
 * Plans that shunt plan new writes give right values on the sim: every shape for several numbers of ranks (those for
 * several hosts on one, where ports are stores; plan_new_hosts.sh has more), in place and not, with pipelines of many
 * windows, launches back to back with random delays, and in graphs; the shipped ones, which are in the environment's
 * PLANS; and the example in its DOC. An argument: only plans whose name contains it. EXEC_QUICK=1: only what a
 * sanitizer can bear.
 */
#include "device/sim/hooks.h"
#include "tools/common/reference.h"
#include "tools/plan/plan.h"
#include "tests/plan/exec_ranks.h"
#include "tests/support/test.h"
#include "kernels/set.h"

static const struct shunt_gpu_ops *gpu = &shunt_gpu_sim_ops;
static const char *only;
static bool quick;

static struct plan_recipe recipe_of(const struct plan_shape *s, unsigned nranks)
{
	return (struct plan_recipe){ .shape = s,
		.name = "new",
		.nranks = nranks,
		.nhosts = !s->over_hosts ? 0 :
		    nranks % 2           ? nranks :
		                           2,
		.blocks = s->roles ? 2 * s->roles : 3,
		.instances = s->roles ? 2 : 1,
		.threads = 64,
		.inplace = s->inplace,
		.redop = "sum",
		.unit = 512,
		.max_bytes = UINT64_MAX };
}

static struct shunt_plan *make(const struct plan_recipe *r)
{
	char *text = plan_recipe_text(r);
	struct shunt_plan *plan;

	assert_non_null(text);
	plan = exec_load_text(r->shape->name, text, NULL, NULL);
	free(text);
	return plan;
}

static void check_plan(struct shunt_plan *plan, uint64_t seed)
{
	static const enum shunt_dtype types[] = { SHUNT_F32, SHUNT_F16, SHUNT_I32, SHUNT_BF16, SHUNT_U8 };
	enum shunt_dtype dtype = types[seed % 5];
	enum shunt_redop op = plan->redops ? __builtin_ctz(plan->redops) : SHUNT_SUM;
	uint64_t whole = plan->part_chunks * 16 / shunt_dtype_bytes[dtype];
	const struct exec_job jobs[] = {
		{ dtype, op, whole * 7, plan->inplace, 0, 3, false },      /* fills all chunks */
		{ dtype, op, whole * 3 + 5, !plan->inplace, 0, 3, false }, /* does not */
		{ dtype, op, whole * 100, plan->inplace, 1, 3, false },    /* unaligned; 100 units are 4 windows */
		{ dtype, op, whole * 7, plan->inplace, 0, 3, true },
		{ dtype, op, 1, plan->inplace, 0, 3, false },
	};
	struct exec_ranks f;

	shunt_sim_set_jitter((unsigned)seed, seed % 2 ? 200 : 2000);
	exec_ranks_start(&f, (int)plan->nranks);
	exec_ranks_create(&f, plan, NULL);
	for (size_t i = 0; i < (quick ? 2 : sizeof(jobs) / sizeof(jobs[0])); i++)
		exec_ranks_check(&f, &jobs[i], seed * 16 + i);
	shunt_sim_set_jitter(0, 0);
	exec_ranks_destroy(&f);
	exec_ranks_stop(&f);
}

TEST(test_new_every_shape_gives_right_values)
{
	static const unsigned ranks[] = { 2, 3, 4, 8 };
	uint64_t seed = 1;

	for (const struct plan_shape *s = plan_shapes; s->name; s++)
		for (size_t i = 0; i < (quick ? 2 : 4); i++)
			for (int place = 0; place < (s->can_inplace ? 2 : 1); place++) {
				struct plan_recipe r = recipe_of(s, ranks[i]);
				struct shunt_plan *plan;
				char name[128];

				seed++;
				snprintf(name, sizeof(name), "%s_%s_%u", s->collective, s->name, ranks[i]);
				if (only && !strstr(name, only))
					continue;
				r.inplace = place;
				r.name = name;
				if (s->over_hosts && ranks[i] == 8 && place)
					r.nhosts = 4;
				plan = make(&r);
				check_plan(plan, seed);
				shunt_plan_unref(plan);
			}
}

TEST(test_new_every_op_gives_right_values)
{
	static const char *const ops[] = { "prod", "max", "min" };

	for (const struct plan_shape *s = plan_shapes; s->name; s++)
		for (int i = 0; i < 3 && s->reduces && !quick; i++) {
			struct plan_recipe r = recipe_of(s, 3);
			struct shunt_plan *plan;

			r.redop = ops[i];
			plan = make(&r);
			check_plan(plan, 2);
			shunt_plan_unref(plan);
		}
}

static int is_plan(const struct dirent *entry)
{
	return strstr(entry->d_name, ".json") != NULL;
}

TEST(test_new_shipped_plans_give_right_values)
{
	const char *folder = getenv("PLANS");
	struct dirent **entries;
	int n;

	assert_non_null(folder);
	n = scandir(folder, &entries, is_plan, alphasort);
	assert_true(n >= 30);
	for (int i = 0; i < n; i++) {
		char path[1024];
		int nranks;

		snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
		free(entries[i]);
		struct shunt_plan *plan = exec_load(path, &nranks);

		if ((!only || strstr(plan->name, only)) && !(quick && nranks > 2))
			check_plan(plan, (uint64_t)i);
		shunt_plan_unref(plan);
	}
	free(entries);
}

/* The first JSON text of the environment's DOC. */
TEST(test_new_documented_example_gives_right_values)
{
	char *doc = exec_read(getenv("DOC")), *begin, *end;
	struct shunt_plan *plan;

	assert_non_null(doc);
	begin = strstr(doc, "```json\n");
	assert_non_null(begin);
	begin += strlen("```json\n");
	end = strstr(begin, "```");
	assert_non_null(end);
	*end = 0;
	plan = exec_load_text("example", begin, NULL, NULL);
	assert_string_equal(plan->name, "gather2");
	check_plan(plan, 3);
	shunt_plan_unref(plan);
	free(doc);
}

/*
 * Numbers whose sum depends on the order of adding, in one shot: yet all ranks have the same bits, those of the order
 * of ranks.
 */
TEST(test_new_oneshot_allreduce_adds_in_order_of_ranks)
{
	enum { N = 5, COUNT = 999, BYTES = COUNT * 4 };
	struct plan_recipe r = recipe_of(&plan_shapes[0], N);
	struct shunt_plan *plan;
	static float in[N][COUNT], want[COUNT], got[COUNT];
	const void *ins[N];
	void *memory[N];
	struct exec_ranks f;
	uint64_t seed = 1;
	size_t first;

	for (r.inplace = false;; r.inplace = true) {
		plan = make(&r);
		exec_ranks_start(&f, N);
		exec_ranks_create(&f, plan, NULL);
		assert_int_equal(exec_ranks_prepare(&f, BYTES), 0);
		for (int k = 0; k < N; k++) {
			ref_fill(in[k], COUNT, SHUNT_F32, &seed);
			ins[k] = in[k];
			assert_int_equal(gpu->mem_alloc(f.rank[k].device, 2 * BYTES, &memory[k]), 0);
			memcpy(memory[k], in[k], BYTES);
		}
		ref_allreduce(want, ins, N, COUNT, SHUNT_F32, SHUNT_SUM, NULL);
		for (int k = 0; k < N; k++) {
			struct shunt_plan_call call = { .send = memory[k],
				.recv = (char *)memory[k] + (r.inplace ? 0 : BYTES),
				.send_bytes = BYTES,
				.recv_bytes = BYTES,
				.dtype = SHUNT_F32,
				.stream = f.rank[k].stream };

			assert_int_equal(exec_rank_launch(&f.rank[k], &call), 0);
		}
		exec_ranks_wait(&f, "oneshot");
		for (int k = 0; k < N; k++) {
			memcpy(got, (char *)memory[k] + (r.inplace ? 0 : BYTES), BYTES);
			assert_int_equal(ref_compare(got, want, COUNT, SHUNT_F32, &first), 0);
			gpu->mem_free(memory[k]);
		}
		exec_ranks_destroy(&f);
		exec_ranks_stop(&f);
		shunt_plan_unref(plan);
		if (r.inplace)
			break;
	}
}

TEST(test_new_same_recipe_gives_same_text)
{
	for (const struct plan_shape *s = plan_shapes; s->name; s++) {
		struct plan_recipe r = recipe_of(s, 4);
		char *a = plan_recipe_text(&r), *b = plan_recipe_text(&r);

		assert_string_equal(a, b);
		free(b);
		r.threads++;
		b = plan_recipe_text(&r);
		assert_string_not_equal(a, b);
		free(a);
		free(b);
	}
}

int main(int argc, char **argv)
{
	quick = getenv("EXEC_QUICK") != NULL;
	only = argc > 1 ? argv[1] : NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	if (shunt_gpu_sim_ops.open(&shunt_kernels))
		return 1;
	return tests_run(NULL, NULL);
}
