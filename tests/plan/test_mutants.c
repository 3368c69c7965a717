/* SPDX-License-Identifier: MIT */
/*
 * The proof against the sim: plans that are right, each changed in one place. No plan that the proof calls right may
 * give a wrong value or stop, whatever the delays. What it refuses runs as well, and if no delays break it, it counts
 * as harmless: the share of these is printed. Arguments: plans. MUTANTS: how many of all there are at most (0: all),
 * evenly chosen. SEEDS: runs of what is called right. ONLY_RIGHT: do not run the others, of which a sanitizer would say
 * what the proof has said.
 */
#include <jansson.h>
#include "device/sim/hooks.h"
#include "kernels/set.h"
#include "plan/format/plan.h"
#include "tests/plan/exec_ranks.h"
#include "tests/support/test.h"
#include "plan/load.h"

enum { MAX_SITES = 4096, REFUSED_SEEDS = 2 };
/* A plan that was called right has all the time that a busy machine may need; one that was refused may stop. */
static const uint64_t right_limit_ns = 20000000000ull, refused_limit_ns = 300000000ull;

struct site {
	json_t *ops; /* the list that the operation is in */
	size_t at;
};

struct sites {
	struct site row[MAX_SITES];
	unsigned n;
};

struct totals {
	unsigned mutants, malformed, refused, harmless, undecided, broken_undecided, right;
};

static char **files;
static int nfiles;
static unsigned seeds = 4;
static bool only_right;

static const char *text_of(const json_t *op, const char *key)
{
	const char *text = json_string_value(json_object_get(op, key));

	return text ? text : "";
}

/* ---- changes: each returns false if the operation has nothing of the kind */

static bool remove_op(json_t *ops, size_t i)
{
	return !json_array_remove(ops, i);
}

static bool move_op(json_t *ops, size_t from, size_t to)
{
	json_t *op = json_array_get(ops, from);

	if (from == to || to >= json_array_size(ops) || json_equal(op, json_array_get(ops, to)))
		return false;
	json_incref(op);
	json_array_remove(ops, from);
	return !json_array_insert_new(ops, to, op);
}

static bool move_later(json_t *ops, size_t i)
{
	return move_op(ops, i, i + 1);
}

static bool move_to_front(json_t *ops, size_t i)
{
	return i > 1 && move_op(ops, i, 0);
}

static bool move_to_end(json_t *ops, size_t i)
{
	return i + 2 < json_array_size(ops) && move_op(ops, i, json_array_size(ops) - 1);
}

/* As MSCCL++ names it without a promise about data, which is right here (docs/plans.md); for a list of channels or
 * semaphores, all but the last. */
static bool weaken(json_t *ops, size_t i)
{
	json_t *op = json_array_get(ops, i), *ids = json_object_get(op, "channel_ids");
	const char *name = text_of(op, "name");

	ids = ids ? ids : json_object_get(op, "semaphore_ids");
	if (json_array_size(ids) > 1)
		return !json_array_remove(ids, json_array_size(ids) - 1);
	if (!strcmp(name, "signal"))
		return !json_object_set_new(op, "name", json_string("rlxsignal"));
	if (!strcmp(name, "wait"))
		return !json_object_set_new(op, "name", json_string("rlxwait"));
	if (!strcmp(name, "barrier")) { /* of this block's threads only */
		json_object_clear(op);
		return !json_object_set_new(op, "name", json_string("nop"));
	}
	return false;
}

/* The last slice of a list, by which a reduction has its last operand. */
static json_t *last_slice(const json_t *op, const char *list)
{
	json_t *slices = json_object_get(op, list);

	return json_array_get(slices, json_array_size(slices) - 1);
}

static bool add_to(json_t *slice, const char *key, json_int_t by)
{
	json_t *value = json_object_get(slice, key);

	return json_is_integer(value) && json_integer_value(value) + by >= 0 &&
	    !json_integer_set(value, json_integer_value(value) + by);
}

static bool source_after(json_t *ops, size_t i)
{
	return add_to(last_slice(json_array_get(ops, i), "src_buff"), "index", 1);
}

static bool source_before(json_t *ops, size_t i)
{
	return add_to(last_slice(json_array_get(ops, i), "src_buff"), "index", -1);
}

static bool target_after(json_t *ops, size_t i)
{
	return add_to(last_slice(json_array_get(ops, i), "dst_buff"), "index", 1);
}

static bool target_before(json_t *ops, size_t i)
{
	return add_to(last_slice(json_array_get(ops, i), "dst_buff"), "index", -1);
}

static bool change_buffer(json_t *slice)
{
	static const char *const next[][2] = { { "i", "o" }, { "o", "s" }, { "s", "i" } };
	const char *type = text_of(slice, "type");

	for (size_t k = 0; k < 3; k++)
		if (!strcmp(type, next[k][0]))
			return !json_object_set_new(slice, "type", json_string(next[k][1]));
	return add_to(slice, "buffer_id", 1) || add_to(slice, "buffer_id", -1);
}

static bool source_elsewhere(json_t *ops, size_t i)
{
	return change_buffer(last_slice(json_array_get(ops, i), "src_buff"));
}

static bool target_elsewhere(json_t *ops, size_t i)
{
	return change_buffer(last_slice(json_array_get(ops, i), "dst_buff"));
}

static bool resize(json_t *op, json_int_t by)
{
	static const char *const lists[] = { "src_buff", "dst_buff" };
	bool changed = false;

	for (int k = 0; k < 2; k++) {
		json_t *slice;
		size_t at;

		json_array_foreach(json_object_get(op, lists[k]), at, slice) changed |= add_to(slice, "size", by);
	}
	return changed;
}

static bool smaller(json_t *ops, size_t i)
{
	return resize(json_array_get(ops, i), -1);
}

static bool larger(json_t *ops, size_t i)
{
	return resize(json_array_get(ops, i), 1);
}

/* One operand less. */
static bool fewer_sources(json_t *ops, size_t i)
{
	json_t *slices = json_object_get(json_array_get(ops, i), "src_buff");

	return json_array_size(slices) > 1 && !json_array_remove(slices, json_array_size(slices) - 1);
}

static bool other_channel(json_t *ops, size_t i)
{
	json_t *ids = json_object_get(json_array_get(ops, i), "channel_ids"), *id;

	ids = ids ? ids : json_object_get(json_array_get(ops, i), "semaphore_ids");
	id = json_array_get(ids, 0);
	return id && !json_integer_set(id, json_integer_value(id) ? json_integer_value(id) - 1 : 1);
}

static const struct {
	const char *name;
	bool (*change)(json_t *ops, size_t i);
} kinds[] = { { "without", remove_op }, { "weaker", weaken }, { "later", move_later },
	{ "at the front", move_to_front }, { "at the end", move_to_end }, { "source + 1", source_after },
	{ "source - 1", source_before }, { "another source", source_elsewhere }, { "target + 1", target_after },
	{ "target - 1", target_before }, { "another target", target_elsewhere }, { "smaller", smaller },
	{ "larger", larger }, { "one source less", fewer_sources }, { "another channel", other_channel } };
enum { NKINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* ---- plans */

static void find_sites(json_t *ops, struct sites *sites)
{
	json_t *op;
	size_t i;

	json_array_foreach(ops, i, op)
	{
		if (sites->n < MAX_SITES)
			sites->row[sites->n++] = (struct site){ ops, i };
		find_sites(json_object_get(op, "ops"), sites);
	}
}

static void sites_of(json_t *plan, struct sites *sites)
{
	json_t *gpu, *block;
	size_t r, b;

	sites->n = 0;
	json_array_foreach(json_object_get(plan, "gpus"), r, gpu) json_array_foreach(
	    json_object_get(gpu, "threadblocks"), b, block) find_sites(json_object_get(block, "ops"), sites);
}

/* Windows of pipelines become small, so that they have several. */
static json_t *read_plan(const char *path)
{
	char *text = exec_read(path), *at;
	json_t *root;

	if (!text)
		fail_msg("cannot read %s", path);
	while ((at = strstr(text, "18446744073709551615"))) /* jansson refuses numbers of 64 bits */
		memcpy(at, " 9223372036854775807", 20);
	while ((at = strstr(text, "\"unit_size\": 65536")))
		memcpy(at, "\"unit_size\":    96", 18);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	free(text);
	return root;
}

/* NULL: it is not well formed, or stops. */
static struct shunt_plan *load(const json_t *root)
{
	char *text = json_dumps(root, JSON_COMPACT), reason[512];
	struct shunt_plan *plan = NULL;

	if (shunt_plan_load_buffer("mutant", text, strlen(text), &plan, reason, sizeof(reason)))
		plan = NULL;
	free(text);
	return plan;
}

/* True if the sim gives a wrong value, or does not come to an end. */
static bool breaks(struct shunt_plan *plan, uint64_t seed, uint64_t limit_ns)
{
	bool wrong = false;
	struct exec_job job = { SHUNT_I32, SHUNT_SUM, plan->part_chunks * 4 * (1 + 12 * (seed % 3)) + seed % 2,
		plan->inplace, 0, 3, false, .wrong_p = &wrong };
	struct exec_ranks f;

	shunt_sim_set_jitter((unsigned)seed, seed % 2 ? 100 : 500);
	exec_ranks_start(&f, (int)plan->nranks);
	for (int r = 0; r < f.n; r++)
		f.rank[r].words->limit_ns = limit_ns;
	exec_ranks_create(&f, plan, NULL);
	exec_ranks_check(&f, &job, seed);
	exec_ranks_destroy(&f);
	exec_ranks_stop(&f);
	shunt_sim_set_jitter(0, 0);
	return wrong;
}

static bool breaks_with_any(struct shunt_plan *plan, unsigned n, uint64_t limit_ns)
{
	for (unsigned seed = 1; seed <= n; seed++)
		if (breaks(plan, seed, limit_ns))
			return true;
	return false;
}

static void judge(const json_t *root, const char *file, const char *what, unsigned site, struct totals *t)
{
	struct shunt_plan *plan = load(root);
	char reason[1024];

	t->mutants++;
	if (!plan) {
		t->malformed++;
		return;
	}
	if (shunt_plan_prove(plan, reason, sizeof(reason))) {
		t->refused++;
		if (!only_right && !breaks_with_any(plan, REFUSED_SEEDS, refused_limit_ns)) {
			t->harmless++;
			if (getenv("MUTANTS_VERBOSE"))
				print_message("harmless? %s, operation %u %s: %s\n", file, site, what, reason);
		}
	} else if (plan->status == SHUNT_PLAN_PROVED) {
		t->right++;
		if (breaks_with_any(plan, seeds, right_limit_ns))
			fail_msg("%s, operation %u %s: called right, and it breaks", file, site, what);
	} else {
		t->undecided++;
		t->broken_undecided += !only_right && breaks_with_any(plan, REFUSED_SEEDS, refused_limit_ns);
	}
	shunt_plan_unref(plan);
}

/* Every `step`-th of the changes; *count_p counts all. NULL: only counts. */
static void change_each(const char *path, unsigned step, unsigned *count_p, struct totals *t)
{
	static struct sites sites;
	json_t *root = read_plan(path);
	const char *file = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	unsigned n;

	sites_of(root, &sites);
	n = sites.n;
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < NKINDS; k++) {
			json_t *mutant = json_deep_copy(root);

			sites_of(mutant, &sites);
			if (kinds[k].change(sites.row[i].ops, sites.row[i].at) && (*count_p)++ % step == 0 && t)
				judge(mutant, file, kinds[k].name, i, t);
			json_decref(mutant);
		}
	json_decref(root);
}

TEST(test_mutants_called_right_are_right)
{
	const char *most = getenv("MUTANTS");
	unsigned all = 0, count = 0, wanted = most ? (unsigned)atoi(most) : 0, step;
	struct totals t = { 0 };

	for (int i = 0; i < nfiles; i++)
		change_each(files[i], 1, &all, NULL);
	step = wanted && all > wanted ? all / wanted : 1;
	for (int i = 0; i < nfiles; i++)
		change_each(files[i], step, &count, &t);
	print_message("%u of %u mutants of %d plans: %u malformed or stopping, %u refused, %u undecided, %u called "
	              "right; none of these "
	              "broke with %u seeds\n",
	    t.mutants, all, nfiles, t.malformed, t.refused, t.undecided, t.right, seeds);
	if (!only_right)
		print_message("%u of the refused (%.0f %%) and %u of the undecided did not break with %d seeds\n",
		    t.harmless, t.refused ? 100.0 * t.harmless / t.refused : 0, t.undecided - t.broken_undecided,
		    REFUSED_SEEDS);
	assert_true(t.mutants >= 300);
	/* Both happen, and most of what is refused is wrong indeed. */
	assert_true(t.right > 0 && t.refused > t.mutants / 8);
	assert_true(only_right || 2 * t.harmless < t.refused);
}

/* The plans from which all begins are right themselves. */
TEST(test_plans_without_change_are_right)
{
	for (int i = 0; i < nfiles; i++) {
		json_t *root = read_plan(files[i]);
		struct shunt_plan *plan = load(root);
		char reason[1024];

		if (!plan || shunt_plan_prove(plan, reason, sizeof(reason)) || plan->status != SHUNT_PLAN_PROVED)
			fail_msg("%s is not called right", files[i]);
		assert_false(breaks(plan, 1, right_limit_ns));
		shunt_plan_unref(plan);
		json_decref(root);
	}
}

int main(int argc, char **argv)
{
	files = argv + 1;
	nfiles = argc - 1;
	if (getenv("SEEDS"))
		seeds = (unsigned)atoi(getenv("SEEDS"));
	only_right = getenv("ONLY_RIGHT") != NULL;
	setenv("SHUNT_SIM_DEVICES", "8", 1);
	if (shunt_gpu_sim_ops.open(&shunt_kernels))
		return 1;
	return tests_run(NULL, NULL);
}
