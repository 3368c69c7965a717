/* SPDX-License-Identifier: MIT */
/* Description: where plans come from, which of them a call gets, and what ranks compare. */
#include <semaphore.h>
#include "base/config.h"
#include "base/files.h"
#include "tests/plan/edit.h"
#include "plan/plan_registry.h"
#include "plan/plan_registry_priv.h"
#include "tests/support/own.h"
#include "tests/support/until.h"

static char root_dir[64], defaults_dir[96];

/* A directory of its own for each test, with a and b in it. */
static int setup(void **state)
{
	char path[96];

	snprintf(root_dir, sizeof(root_dir), "/tmp/shunt-registry-XXXXXX");
	if (!mkdtemp(root_dir))
		return -1;
	snprintf(path, sizeof(path), "%s/a", root_dir);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/b", root_dir);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/b/default", root_dir);
	mkdir(path, 0700);
	shunt_plan_registry_reset("", "/dev/null/cache", false);
	return 0;
}

static int teardown(void **state)
{
	char command[256];

	shunt_plan_registry_reset("", "/dev/null/cache", false);
	snprintf(command, sizeof(command), "rm -rf %s %s", root_dir, defaults_dir);
	return system(command);
}

/* A plan of the corpus under another name, with up to two edits, as text that the caller frees. */
static char *plan_text(
    const char *plan, const char *name, const char *path1, const char *value1, const char *path2, const char *value2)
{
	json_t *root = edit_open(plan);
	char *text;

	edit_set(root, "name", json_string(name));
	if (path1)
		edit_text(root, path1, value1);
	if (path2)
		edit_text(root, path2, value2);
	text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

static void write_plan(const char *file, const char *plan, const char *name, const char *path, const char *value)
{
	char *text = plan_text(plan, name, path, value, NULL, NULL);

	unit_write_file(root_dir, file, text);
	free(text);
}

static void register_plan(
    const char *plan, const char *name, const char *path1, const char *value1, const char *path2, const char *value2)
{
	char *text = plan_text(plan, name, path1, value1, path2, value2), reason[512];

	if (shunt_plan_register("test", text, strlen(text), reason, sizeof(reason)))
		fail_msg("%s", reason);
	free(text);
}

/* "a b c": the names in a set's order. */
static const char *names_of(const struct shunt_plan_set *set)
{
	static char text[1024];

	*text = '\0';
	for (size_t i = 0; i < shunt_plan_set_count(set); i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", *text ? " " : "",
		    shunt_plan_set_at(set, i)->name);
	assert_null(shunt_plan_set_at(set, shunt_plan_set_count(set)));
	return text;
}

static const char *names_now(int nranks)
{
	struct shunt_plan_set *set = shunt_plan_set_get(nranks, nranks);
	const char *text = names_of(set);

	shunt_plan_set_free(set);
	return text;
}

static void reset_to(const char *list, const char *cache)
{
	char dirs[512] = "", cache_dir[128] = "/dev/null/cache";

	for (; *list; list++)
		snprintf(dirs + strlen(dirs), sizeof(dirs) - strlen(dirs),
		    *list == 'A'     ? "%s/a" :
		        *list == 'B' ? "%s/b" :
		                       "%.0s%c",
		    root_dir, *list);
	if (cache)
		snprintf(cache_dir, sizeof(cache_dir), "%s/%s", root_dir, cache);
	shunt_plan_registry_reset(dirs, cache_dir, false);
}

TEST(test_registry_directories_come_in_order)
{
	write_plan("a/2.json", "allreduce_oneshot_2", "second", NULL, NULL);
	write_plan("a/10.json", "allreduce_oneshot_2", "first", NULL, NULL);
	write_plan("a/Z.json", "allreduce_twoshot_2", "third", NULL, NULL);
	write_plan("a/a.json", "allgather_put_2", "fourth", NULL, NULL);
	write_plan("a/.hidden.json", "allgather_put_2", "hidden", NULL, NULL);
	write_plan("a/note.txt", "allgather_put_2", "text", NULL, NULL);
	write_plan("b/1.json", "allreduce_oneshot_2", "fifth", NULL, NULL);
	write_plan("b/default/1.json", "allreduce_oneshot_2", "sixth", NULL, NULL);
	write_plan("b/2.json", "alltoall_port_3", "three", NULL, NULL);
	reset_to("A:B", "b");
	assert_string_equal(names_now(2), "first second third fourth fifth sixth");
	assert_string_equal(names_now(3), "three");
	assert_string_equal(names_now(4), "");
	reset_to("::B:A:", NULL);
	assert_string_equal(names_now(2), "fifth first second third fourth");
	register_plan("allreduce_oneshot_2", "program", NULL, NULL, NULL, NULL);
	register_plan("allreduce_oneshot_2", "program2", NULL, NULL, NULL, NULL);
	assert_string_equal(names_now(2), "program program2 fifth first second third fourth");
}

TEST(test_registry_one_file_may_be_named)
{
	char path[128];

	write_plan("a/x", "allreduce_oneshot_2", "single", NULL, NULL);
	snprintf(path, sizeof(path), "%s/a/x", root_dir);
	shunt_plan_registry_reset(path, "/dev/null/cache", false);
	assert_string_equal(names_now(2), "single");
}

/* Files that others may have written: only where the program itself names one. */
TEST(test_registry_files_that_others_may_write_are_left_out)
{
	char path[128], reason[512];

	write_plan("a/1.json", "allreduce_oneshot_2", "open", NULL, NULL);
	write_plan("a/2.json", "allreduce_twoshot_2", "closed", NULL, NULL);
	snprintf(path, sizeof(path), "%s/a/1.json", root_dir);
	assert_int_equal(chmod(path, 0666), 0);
	reset_to("A", NULL);
	assert_string_equal(names_now(2), "closed");
	assert_int_equal(shunt_plan_register_file(path, reason, sizeof(reason)), 0);
	assert_string_equal(names_now(2), "open closed");
	snprintf(path, sizeof(path), "%s/a", root_dir);
	assert_int_equal(chmod(path, 0777), 0);
	reset_to("A", NULL);
	assert_string_equal(names_now(2), "");
}

/* Makes the file another user's: as root for the system, else for the code under test only. */
static uid_t pretended;

uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void)
{
	return pretended ? pretended : __real_geteuid();
}

static void give_away(const char *path)
{
	if (__real_geteuid())
		pretended = __real_geteuid() + 1;
	else
		assert_int_equal(chown(path, 4242, (gid_t)-1), 0);
}

static enum shunt_files_cache cache_of(const char *name)
{
	char path[PATH_MAX];

	return shunt_files_cache("", name, path, sizeof(path));
}

/* A job that changes its user often keeps HOME: that is as if there were none, in silence, for reading and writing. */
TEST(test_registry_home_of_another_user_is_as_none)
{
	static const char *const parts[] = { "", "/.cache", "/.cache/shunt", "/.cache/shunt/default" };
	char home[128], path[192];
	struct unit_capture c;

	snprintf(home, sizeof(home), "%s/home", root_dir);
	setenv("HOME", home, 1);
	assert_int_equal(cache_of("default"), SHUNT_FILES_CACHE); /* nothing is there, which the user meets elsewhere */
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", home, parts[i]);
		assert_int_equal(mkdir(path, 0700), 0);
		assert_int_equal(cache_of("default"), SHUNT_FILES_CACHE);
	}
	write_plan("home/.cache/shunt/default/1.json", "allreduce_oneshot_2", "home", NULL, NULL);
	shunt_plan_registry_reset("", "", false);
	assert_string_equal(names_now(2), "home");
	give_away(path);
	shunt_plan_registry_reset("", "", false);
	unit_capture_begin(&c);
	assert_string_equal(names_now(2), "");
	assert_string_equal(unit_capture_end(&c), "");
	assert_int_equal(cache_of("default"), SHUNT_FILES_FOREIGN_CACHE);
	/* One that the user named is refused with a line. */
	snprintf(path, sizeof(path), "%s/.cache/shunt", home);
	shunt_plan_registry_reset("", path, false);
	unit_capture_begin(&c);
	assert_string_equal(names_now(2), "");
	assert_int_equal(unit_count(unit_capture_end(&c), "it is neither this user's nor root's"), 1);
	/* Nothing is to be made in a directory of somebody else, either. */
	give_away(path);
	assert_int_equal(cache_of("proofs"), SHUNT_FILES_FOREIGN_CACHE);
	pretended = 0;
	setenv("HOME", "relative", 1);
	assert_int_equal(cache_of("default"), SHUNT_FILES_NO_CACHE);
	setenv("HOME", "/dev/null/home", 1);
}

TEST(test_registry_priority_goes_before_order)
{
	register_plan("allreduce_oneshot_2", "low", "tags", "{\"priority\":-1}", NULL, NULL);
	register_plan("allreduce_oneshot_2", "plain", NULL, NULL, NULL, NULL);
	register_plan("allreduce_oneshot_2", "high", "tags", "{\"priority\":7}", NULL, NULL);
	register_plan("allreduce_oneshot_2", "plain2", NULL, NULL, NULL, NULL);
	assert_string_equal(names_now(2), "high plain plain2 low");
}

TEST(test_registry_broken_plan_is_refused_alone)
{
	struct unit_capture c;
	const char *text;

	write_plan("a/1.json", "allreduce_oneshot_2", "good", NULL, NULL);
	write_plan("a/2.json", "allreduce_oneshot_2", "bad", "gpus/0/threadblocks/0/ops/0/src_buff/0/index", "9");
	unit_write_file(root_dir, "a/3.json", "{");
	write_plan("a/4.json", "allgather_put_2", "fine", NULL, NULL);
	mkdir(strcat(strcpy((char[128]){ 0 }, root_dir), "/a/5.json"), 0700);
	reset_to("A:/no-such-place/plans", NULL);
	unit_capture_begin(&c);
	assert_string_equal(names_now(2), "good fine");
	assert_string_equal(names_now(2), "good fine");
	text = unit_capture_end(&c);
	assert_int_equal(unit_count(text, "\n"), 4);
	assert_int_equal(unit_count(text, "plan refused: "), 3);
	assert_non_null(strstr(text, "a/2.json: rank 0, block 0, operation 0 (ppkt): src_buff[0].index 9"));
	assert_non_null(strstr(text, "a/3.json: line 1: no JSON"));
	assert_non_null(strstr(text, "a/5.json: not a regular file"));
	assert_non_null(strstr(text, "no plans from /no-such-place/plans: No such file"));
}

TEST(test_registry_nothing_there_is_silent_and_hashes_to_0)
{
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 1024, SHUNT_PLAN_INPLACE_ANY };
	const struct shunt_plan *plan = NULL;
	struct shunt_plan_set *set;
	struct unit_capture c;

	unit_capture_begin(&c);
	set = shunt_plan_set_get(2, 2);
	assert_true(shunt_plan_set_hash(set) == 0);
	assert_int_equal(shunt_plan_set_choose(set, &call, &plan), SHUNT_PLAN_CHOICE_NONE);
	assert_null(plan);
	assert_string_equal(unit_capture_end(&c), "");
	shunt_plan_set_free(set);
	shunt_plan_set_free(NULL);
}

TEST(test_registry_same_plan_twice_is_reported)
{
	char *text = plan_text("allreduce_oneshot_2", "one", NULL, NULL, NULL, NULL), reason[512], path[128];

	assert_int_equal(shunt_plan_register("x", text, strlen(text), reason, sizeof(reason)), 0);
	assert_int_equal(shunt_plan_register("y", text, strlen(text), reason, sizeof(reason)), -EEXIST);
	assert_string_equal(reason, "y: plan one: the same is there already");
	assert_int_equal(shunt_plan_register("y", text, strlen(text), NULL, 0), -EEXIST);
	assert_int_equal(shunt_plan_register("y", text, strlen(text) - 1, reason, sizeof(reason)), -EINVAL);
	assert_int_equal(shunt_plan_unregister("one"), 0);
	assert_int_equal(shunt_plan_unregister("one"), -ENOENT);
	unit_write_file(root_dir, "a/one.json", text);
	snprintf(path, sizeof(path), "%s/a/one.json", root_dir);
	assert_int_equal(shunt_plan_register_file(path, reason, sizeof(reason)), 0);
	assert_string_equal(names_now(2), "one");
	assert_int_equal(shunt_plan_register_file("/no-such-place", reason, sizeof(reason)), -ENOENT);
	free(text);
}

TEST(test_registry_unregister_takes_all_of_a_name)
{
	write_plan("a/1.json", "allreduce_oneshot_2", "x", NULL, NULL);
	write_plan("a/2.json", "allreduce_twoshot_2", "y", NULL, NULL);
	reset_to("A", NULL);
	register_plan("allgather_put_2", "x", NULL, NULL, NULL, NULL);
	register_plan("allgather_put_2", "z", NULL, NULL, NULL, NULL);
	assert_string_equal(names_now(2), "x z x y");
	assert_int_equal(shunt_plan_unregister("x"), 0);
	assert_string_equal(names_now(2), "z y");
	register_plan("alltoall_port_3", "w", NULL, NULL, NULL, NULL);
	register_plan("allgather_put_2", "v", NULL, NULL, NULL, NULL);
	assert_string_equal(names_now(2), "z v y");
}

TEST(test_registry_null_is_refused)
{
	char reason[64] = "";

	assert_int_equal(shunt_plan_register_file(NULL, reason, sizeof(reason)), -EINVAL);
	assert_string_equal(reason, "path is NULL");
	assert_int_equal(shunt_plan_register(NULL, "{}", 2, reason, sizeof(reason)), -EINVAL);
	assert_string_equal(reason, "label is NULL");
	assert_int_equal(shunt_plan_register("x", NULL, 7, reason, sizeof(reason)), -EINVAL);
	assert_string_equal(reason, "json is NULL");
	assert_int_equal(shunt_plan_register("x", NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(shunt_plan_unregister(NULL), -EINVAL);
}

TEST(test_registry_set_is_a_snapshot)
{
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 1024, SHUNT_PLAN_INPLACE_ANY };
	const struct shunt_plan *plan;
	struct shunt_plan_set *before, *after;

	register_plan("allreduce_oneshot_2", "old", NULL, NULL, NULL, NULL);
	before = shunt_plan_set_get(2, 2);
	shunt_plan_unregister("old");
	register_plan("allreduce_twoshot_2", "new", NULL, NULL, NULL, NULL);
	after = shunt_plan_set_get(2, 2);
	assert_string_equal(names_of(before), "old");
	assert_string_equal(names_of(after), "new");
	assert_int_equal(shunt_plan_set_choose(before, &call, &plan), SHUNT_PLAN_CHOICE_PLAN);
	assert_string_equal(plan->name, "old");
	shunt_plan_registry_reset("", "/dev/null/cache", false);
	assert_string_equal(names_of(before), "old");
	shunt_plan_set_free(before);
	shunt_plan_set_free(after);
}

struct match_case {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop;
	uint64_t count;
	const char *names; /* that match, in order */
};

static const char *matches(const struct shunt_plan_set *set, const struct shunt_plan_query *call)
{
	static char text[256];
	const struct shunt_plan *plan;

	*text = '\0';
	for (size_t i = 0; (plan = shunt_plan_set_match(set, call, i)); i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "", plan->name);
	return text;
}

TEST(test_match_looks_at_kind_size_type_and_operator)
{
	/* two: 1024 to 1048576 bytes; gather: 100 to 200 received bytes; max: float32 and up to 4096 bytes */
	static const struct match_case cases[] = {
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 255, "one" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 256, "one two" },
		{ SHUNT_ALLREDUCE, SHUNT_F16, SHUNT_SUM, 511, "one" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 262144, "one two" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 262145, "one" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, UINT64_MAX, "" }, /* overflows */
		{ SHUNT_ALLREDUCE, SHUNT_U8, SHUNT_SUM, UINT64_MAX >> 1, "one" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_MAX, 1024, "max" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_MAX, 1025, "" },
		{ SHUNT_ALLREDUCE, SHUNT_BF16, SHUNT_MAX, 1024, "" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_MIN, 1024, "" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_AVG, 1024, "" },
		{ SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_PREMUL, 1024, "" },
		{ SHUNT_ALLGATHER, SHUNT_I8, SHUNT_SUM, 49, "" },
		{ SHUNT_ALLGATHER, SHUNT_I8, SHUNT_SUM, 50, "gather" },
		{ SHUNT_ALLGATHER, SHUNT_I8, SHUNT_PREMUL, 100, "gather" }, /* no operator there */
		{ SHUNT_ALLGATHER, SHUNT_I8, SHUNT_SUM, 101, "" },
		{ SHUNT_REDUCESCATTER, SHUNT_F32, SHUNT_SUM, 1024, "" },
		{ SHUNT_BROADCAST, SHUNT_F32, SHUNT_SUM, 1024, "" },
		{ SHUNT_SEND, SHUNT_F32, SHUNT_SUM, 1024, "" }, /* sendrecv is no call of NCCL's */
		{ SHUNT_ALLREDUCE, (enum shunt_dtype)99, SHUNT_SUM, 1024, "" },
	};
	struct shunt_plan_set *set;

	register_plan("allreduce_oneshot_2", "one", NULL, NULL, NULL, NULL);
	register_plan("allreduce_twoshot_2", "two", NULL, NULL, NULL, NULL);
	register_plan("allgather_put_2", "gather", "min_message_size", "100", "max_message_size", "200");
	register_plan("sendrecv_pipeline_2", "pairs", NULL, NULL, NULL, NULL);
	register_plan("allreduce_oneshot_2", "byname", "tags", "{\"auto\":0}", NULL, NULL);
	{
		json_t *root = edit_open("allreduce_oneshot_2");
		char *text, reason[512] = "";

		edit_text(root, "name", "\"max\"");
		edit_text(root, "gpus/0/threadblocks/0/ops/1/reduce_op", "\"max\"");
		edit_text(root, "gpus/1/threadblocks/0/ops/1/reduce_op", "\"max\"");
		edit_text(root, "max_message_size", "4096");
		edit_text(root, "dtypes", "[\"float32\"]");
		text = json_dumps(root, 0);
		assert_int_equal(shunt_plan_register("t", text, strlen(text), reason, sizeof(reason)), 0);
		free(text);
		json_decref(root);
	}
	{
		/* Means no one operator. */
		char *text = plan_text(
		    "allreduce_oneshot_2", "mixed", "gpus/0/threadblocks/0/ops/1/reduce_op", "\"min\"", NULL, NULL);
		char reason[512] = "";

		assert_int_equal(shunt_plan_register("t", text, strlen(text), reason, sizeof(reason)), -EINVAL);
		assert_non_null(strstr(reason, "the result is wrong"));
		free(text);
	}
	set = shunt_plan_set_get(2, 2);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct match_case *m = &cases[i];
		struct shunt_plan_query call = { m->kind, m->dtype, m->redop, m->count, SHUNT_PLAN_INPLACE_ANY };

		if (strcmp(matches(set, &call), m->names))
			fail_msg("case %zu: \"%s\", expected \"%s\"", i, matches(set, &call), m->names);
	}
	shunt_plan_set_free(set);
}

TEST(test_match_ranks_per_node_are_the_plans_wish)
{
	struct shunt_plan_set *set;

	register_plan("allreduce_oneshot_2", "any", NULL, NULL, NULL, NULL);
	register_plan("allreduce_oneshot_2", "each", "nranks_per_node", "1", NULL, NULL);
	register_plan("allreduce_oneshot_2", "pair", "nranks_per_node", "2", NULL, NULL);
	assert_string_equal(names_now(2), "any pair");
	set = shunt_plan_set_get(2, 1);
	assert_string_equal(names_of(set), "any each");
	shunt_plan_set_free(set);
	set = shunt_plan_set_get(2, 0);
	assert_string_equal(names_of(set), "any");
	shunt_plan_set_free(set);
}

/* One for two hosts of one rank, which runs by name only, and one for other hosts. */
static void write_default(const char *file, const char *name)
{
	char *text = plan_text("allreduce_oneshot_2", name, "nranks_per_node", "1", "tags", "{\"auto\": 0}");

	unit_write_file(defaults_dir, file, text);
	free(text);
}

TEST(test_defaults_are_read_when_they_are_wanted_and_run_by_name)
{
	struct shunt_plan_query call = {
		.kind = SHUNT_ALLREDUCE, .dtype = SHUNT_F32, .redop = SHUNT_SUM, .count = 1024
	};
	struct shunt_plan_set *set;

	assert_int_equal(mkdir(defaults_dir, 0700), 0);
	write_default("x_2x1.json", "small");
	write_default("x_2x2.json", "other");
	write_default("y_2x1.json", "large");
	write_default("2x1.json", "stranger");
	set = shunt_plan_set_get(2, 1);
	assert_string_equal(names_of(set), "");
	assert_null(shunt_plan_set_any(set, &call));
	shunt_plan_set_free(set);
	for (int again = 0; again < 2; again++) {
		shunt_plan_defaults_load(2, 1);
		shunt_plan_defaults_load(65, 1);
		shunt_plan_defaults_load(2, 9);
	}
	assert_string_equal(names_now(2), ""); /* on one host */
	set = shunt_plan_set_get(2, 1);
	assert_string_equal(names_of(set), "small large");
	assert_null(shunt_plan_set_match(set, &call, 0));
	assert_string_equal(shunt_plan_set_any(set, &call)->name, "small");
	call.redop = SHUNT_MAX;
	assert_null(shunt_plan_set_any(set, &call));
	call.redop = SHUNT_SUM;
	shunt_plan_set_free(set);
	/* What fits by itself is any plan, too. */
	register_plan("allreduce_oneshot_2", "mine", NULL, NULL, NULL, NULL);
	set = shunt_plan_set_get(2, 1);
	assert_string_equal(shunt_plan_set_any(set, &call)->name, "mine");
	shunt_plan_set_free(set);
}

/* Ranks may disagree about the place, so it must make no difference unless the user promises that they do not. */
/* The one-shot all-reduce with its result in the output. */
static void register_out_of_place(const char *name)
{
	json_t *root = edit_open("allreduce_oneshot_2");
	char *text, reason[512] = "";

	edit_set(root, "name", json_string(name));
	edit_text(root, "inplace", "false");
	edit_text(root, "gpus/0/threadblocks/0/ops/1/dst_buff/0/type", "\"o\"");
	edit_text(root, "gpus/1/threadblocks/0/ops/1/dst_buff/0/type", "\"o\"");
	text = json_dumps(root, 0);
	json_decref(root);
	if (shunt_plan_register("test", text, strlen(text), reason, sizeof(reason)))
		fail_msg("%s", reason);
	free(text);
}

TEST(test_match_place_counts_only_with_the_promise)
{
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 1024, SHUNT_PLAN_INPLACE_ANY };
	uint64_t hashes[2];

	for (int promise = 0; promise < 2; promise++) {
		struct shunt_plan_set *set;

		shunt_plan_registry_reset("", "/dev/null/cache", promise);
		register_plan("allreduce_oneshot_2", "in", NULL, NULL, NULL, NULL);
		register_out_of_place("out");
		set = shunt_plan_set_get(2, 2);
		hashes[promise] = shunt_plan_set_hash(set);
		call.place = SHUNT_PLAN_INPLACE_ANY;
		assert_string_equal(matches(set, &call), "in out");
		call.place = SHUNT_PLAN_INPLACE_YES;
		assert_string_equal(matches(set, &call), "in out");
		call.place = SHUNT_PLAN_INPLACE_NO;
		assert_string_equal(matches(set, &call), promise ? "out in" : "in out");
		shunt_plan_set_free(set);
	}
	assert_true(hashes[0] != hashes[1]);
}

static enum shunt_plan_inplace place_of(
    enum shunt_kind kind, enum shunt_dtype dtype, const char *send, char *recv, int rank)
{
	struct shunt_coll coll = { .kind = kind, .dtype = dtype, .send = send, .recv = recv, .count = 4 };

	return shunt_plan_call_inplace(&coll, rank);
}

TEST(test_place_is_as_nccl_defines_it)
{
	static char buffer[256];

	assert_int_equal(place_of(SHUNT_ALLREDUCE, SHUNT_F32, buffer, buffer, 1), SHUNT_PLAN_INPLACE_YES);
	assert_int_equal(place_of(SHUNT_ALLREDUCE, SHUNT_F32, buffer, buffer + 16, 1), SHUNT_PLAN_INPLACE_NO);
	assert_int_equal(place_of(SHUNT_ALLGATHER, SHUNT_F32, buffer + 16, buffer, 1), SHUNT_PLAN_INPLACE_YES);
	assert_int_equal(place_of(SHUNT_ALLGATHER, SHUNT_F32, buffer, buffer, 1), SHUNT_PLAN_INPLACE_NO);
	assert_int_equal(place_of(SHUNT_REDUCESCATTER, SHUNT_F16, buffer, buffer + 24, 3), SHUNT_PLAN_INPLACE_YES);
	assert_int_equal(place_of(SHUNT_REDUCESCATTER, SHUNT_F16, buffer, buffer, 0), SHUNT_PLAN_INPLACE_YES);
}

struct script {
	const char *answer;
	int ncalls;
	struct shunt_plan_request request;
	char names[256];
};

static const char *selector(void *arg, const struct shunt_plan_request *request)
{
	struct script *s = arg;

	s->ncalls++;
	s->request = *request;
	*s->names = '\0';
	for (size_t i = 0; i < request->nplans; i++)
		snprintf(s->names + strlen(s->names), sizeof(s->names) - strlen(s->names), "%s%s", i ? " " : "",
		    request->plans[i]);
	return s->answer;
}

/* What the set's selector answers: the plan's name, "native", "nccl", "other: " and the text, or "". */
static const char *ask(const struct shunt_plan_set *set, const struct shunt_plan_query *call)
{
	static char text[160];
	struct shunt_plan_answer answer;

	assert_true(shunt_plan_set_ask(set, call, &answer));
	switch (answer.choice) {
	case SHUNT_PLAN_CHOICE_PLAN:
		return shunt_plan_set_at(set, answer.plan)->name;
	case SHUNT_PLAN_CHOICE_NATIVE:
		return "native";
	case SHUNT_PLAN_CHOICE_NCCL:
		return "nccl";
	case SHUNT_PLAN_CHOICE_OTHER:
		snprintf(text, sizeof(text), "other: %s", answer.other);
		return text;
	default:
		return "";
	}
}

TEST(test_selector_is_asked_and_followed)
{
	static const struct {
		const char *said, *answer;
	} cases[] = {
		{ NULL, "" },
		{ "one", "one" },
		{ "two", "two" },
		{ "byname", "byname" },
		{ "native", "native" },
		{ "nccl", "nccl" },
		{ "gather", "other: gather" }, /* a plan that does not fit */
		{ "nonsense", "other: nonsense" },
		{ "", "other: " },
	};
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_BF16, SHUNT_SUM, 1024, SHUNT_PLAN_INPLACE_ANY };
	const struct shunt_plan *plan;
	struct script script = { 0 };
	struct shunt_plan_set *set, *without;

	register_plan("allreduce_oneshot_2", "one", NULL, NULL, NULL, NULL);
	register_plan("allreduce_twoshot_2", "two", NULL, NULL, NULL, NULL);
	register_plan("allgather_put_2", "gather", NULL, NULL, NULL, NULL);
	register_plan("allreduce_oneshot_2", "byname", "tags", "{\"auto\":0}", NULL, NULL);
	without = shunt_plan_set_get(2, 2);
	shunt_plan_set_selector(selector, &script);
	set = shunt_plan_set_get(2, 2);
	assert_true(shunt_plan_set_hash(set) != shunt_plan_set_hash(without));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		script.answer = cases[i].said;
		assert_string_equal(ask(set, &call), cases[i].answer);
	}
	assert_int_equal(script.ncalls, 9);
	assert_string_equal(script.names, "one two");
	assert_int_equal(script.request.size, sizeof(script.request));
	assert_string_equal(script.request.collective, "allreduce");
	assert_int_equal(script.request.nranks, 2);
	assert_int_equal(script.request.ranks_per_node, 2);
	assert_int_equal(script.request.bytes, 2048);
	assert_int_equal(script.request.dtype, SHUNT_BF16);
	assert_int_equal(script.request.redop, SHUNT_SUM);
	/* The set without it does not ask, nor do calls that only two ranks make. */
	assert_string_equal(ask(without, &call), "");
	assert_int_equal(shunt_plan_set_choose(without, &call, &plan), SHUNT_PLAN_CHOICE_PLAN);
	call.kind = SHUNT_SEND;
	assert_string_equal(ask(set, &call), "");
	assert_int_equal(script.ncalls, 9);
	/* Collectives that have no plans are offered as well. */
	call.kind = SHUNT_BROADCAST;
	script.answer = "nccl";
	assert_string_equal(ask(set, &call), "nccl");
	assert_string_equal(script.names, "");
	shunt_plan_set_free(set);
	shunt_plan_set_free(without);
}

TEST(test_selector_alone_makes_a_hash)
{
	struct script script = { .answer = "native" };
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 4, SHUNT_PLAN_INPLACE_ANY };
	struct shunt_plan_set *set;

	shunt_plan_set_selector(selector, &script);
	set = shunt_plan_set_get(2, 2);
	assert_true(shunt_plan_set_hash(set) != 0);
	assert_string_equal(ask(set, &call), "native");
	shunt_plan_set_free(set);
	shunt_plan_set_selector(NULL, NULL);
	set = shunt_plan_set_get(2, 2);
	assert_true(shunt_plan_set_hash(set) == 0);
	shunt_plan_set_free(set);
}

TEST(test_selector_that_was_ended_is_not_called)
{
	struct script script = { .answer = "native" }, other = { .answer = "nccl" };
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 4, SHUNT_PLAN_INPLACE_ANY };
	struct shunt_plan_answer answer;
	struct shunt_plan_set *set, *later;

	assert_int_equal(shunt_plan_end_selector(NULL, NULL), -EINVAL);
	assert_int_equal(shunt_plan_end_selector(selector, &script), -ENOENT);
	shunt_plan_set_selector(selector, &script);
	set = shunt_plan_set_get(2, 2);
	shunt_plan_set_selector(selector, &other);
	later = shunt_plan_set_get(2, 2);
	assert_string_equal(ask(set, &call), "native");
	assert_int_equal(shunt_plan_end_selector(selector, &script), 0);
	assert_false(shunt_plan_set_ask(set, &call, &answer)); /* said once */
	assert_int_equal(answer.choice, SHUNT_PLAN_CHOICE_NONE);
	assert_string_equal(ask(set, &call), "");
	assert_int_equal(script.ncalls, 1);
	assert_string_equal(ask(later, &call), "nccl");
	shunt_plan_set_free(set);
	assert_int_equal(shunt_plan_end_selector(selector, &script), -ENOENT); /* nobody has it any more */
	shunt_plan_set_free(later);
}

/* A thread is in the selector until the test lets it go. */
static struct gate {
	sem_t entered, open;
	atomic_int opened, calls;
	const struct shunt_plan_set *set;
} gate;

static const char *waiting_selector(void *arg, const struct shunt_plan_request *request)
{
	struct gate *g = arg;

	atomic_fetch_add(&g->calls, 1);
	sem_post(&g->entered);
	sem_wait(&g->open);
	return "nccl";
}

static const char *ending_selector(void *arg, const struct shunt_plan_request *request)
{
	atomic_fetch_add(&gate.calls, 1);
	/* It does not wait for itself. */
	return shunt_plan_end_selector(ending_selector, arg) ? "native" : "nccl";
}

static void *ask_through_gate(void *arg)
{
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 4, SHUNT_PLAN_INPLACE_ANY };
	struct shunt_plan_answer answer;

	shunt_plan_set_ask(gate.set, &call, &answer);
	return (void *)(uintptr_t)answer.choice;
}

/* Once both other threads wait: one in the selector, one for its end. */
static void *open_gate(void *arg)
{
	bool waits = until_all_threads_wait();

	atomic_store(&gate.opened, waits);
	sem_post(&gate.open);
	return NULL;
}

TEST(test_selector_ends_when_nobody_is_in_it)
{
	pthread_t asker, opener;
	struct shunt_plan_set *set;
	void *choice;

	sem_init(&gate.entered, 0, 0);
	sem_init(&gate.open, 0, 0);
	shunt_plan_set_selector(waiting_selector, &gate);
	gate.set = set = shunt_plan_set_get(2, 2);
	assert_int_equal(pthread_create(&asker, NULL, ask_through_gate, NULL), 0);
	sem_wait(&gate.entered);
	assert_int_equal(pthread_create(&opener, NULL, open_gate, NULL), 0);
	assert_int_equal(shunt_plan_end_selector(waiting_selector, &gate), 0);
	assert_int_equal(gate.opened, 1); /* it waited for the asker */
	pthread_join(asker, &choice);
	pthread_join(opener, NULL);
	assert_int_equal((uintptr_t)choice, SHUNT_PLAN_CHOICE_NCCL);
	assert_int_equal((uintptr_t)ask_through_gate(NULL), SHUNT_PLAN_CHOICE_NONE);
	assert_int_equal(gate.calls, 1);
	shunt_plan_set_free(set);

	shunt_plan_set_selector(ending_selector, NULL);
	gate.set = set = shunt_plan_set_get(2, 2);
	assert_int_equal((uintptr_t)ask_through_gate(NULL), SHUNT_PLAN_CHOICE_NCCL);
	assert_int_equal((uintptr_t)ask_through_gate(NULL), SHUNT_PLAN_CHOICE_NONE);
	assert_int_equal(gate.calls, 2);
	shunt_plan_set_free(set);
}

TEST(test_plans_are_listed)
{
	struct shunt_plan_info info = { .size = sizeof(info) }, small = { .size = 8 };

	write_plan("a/1.json", "allgather_put_2", "file", "max_message_size", "200");
	reset_to("A", NULL);
	register_plan(
	    "allreduce_oneshot_2", "program", "tags", "{\"auto\":0,\"priority\":-3}", "dtypes", "[\"float32\"]");
	assert_int_equal(shunt_plan_at(0, &info), 0);
	assert_string_equal(info.name, "program");
	assert_string_equal(info.source, "test");
	assert_string_equal(info.collective, "allreduce");
	assert_int_equal(info.nranks, 2);
	assert_int_equal(info.priority, -3);
	assert_int_equal(info.automatic, 0);
	assert_int_equal(info.dtypes, 1u << SHUNT_F32);
	assert_int_equal(info.size, sizeof(info));
	assert_int_equal(shunt_plan_at(1, &info), 0);
	assert_string_equal(info.name, "file");
	assert_non_null(strstr(info.source, "/a/1.json"));
	assert_int_equal(info.max_bytes, 200);
	assert_int_equal(info.automatic, 1);
	assert_int_equal(shunt_plan_at(2, &info), -ENOENT);
	assert_int_equal(shunt_plan_at(0, &small), -EINVAL);
	assert_int_equal(shunt_plan_at(0, NULL), -EINVAL);
}

TEST(test_verifying_reports_and_registers_nothing)
{
	char *text = plan_text("allreduce_oneshot_2", "one", NULL, NULL, NULL, NULL), report[1024];
	size_t needed = 0;
	json_t *root;

	assert_int_equal(shunt_plan_verify("x", text, strlen(text), report, sizeof(report), &needed), 0);
	assert_int_equal(needed, strlen(report) + 1);
	root = json_loads(report, 0, NULL);
	assert_true(json_is_true(json_object_get(root, "ok")));
	assert_string_equal(json_string_value(json_object_get(root, "file")), "x");
	assert_string_equal(json_string_value(json_object_get(root, "name")), "one");
	json_decref(root);
	assert_string_equal(names_now(2), "");
	assert_int_equal(shunt_plan_verify("x", text, strlen(text), report, needed - 1, &needed), -ENOBUFS);
	assert_int_equal(shunt_plan_verify("x", text, strlen(text), NULL, 0, &needed), -ENOBUFS);
	assert_int_equal(shunt_plan_verify("x", text, strlen(text) - 1, report, sizeof(report), &needed), -EINVAL);
	root = json_loads(report, 0, NULL);
	assert_true(json_is_false(json_object_get(root, "ok")));
	assert_non_null(strstr(json_string_value(json_object_get(root, "error")), "x: line 1: no JSON"));
	json_decref(root);
	assert_int_equal(shunt_plan_verify("x", text, strlen(text), report, sizeof(report), NULL), -EINVAL);
	assert_int_equal(shunt_plan_verify(NULL, text, strlen(text), report, sizeof(report), &needed), -EINVAL);
	free(text);
}

/* The summary of what is registered now; the set's hash in *hash_p. */
static void summary_now(struct shunt_plan_summary *s, uint64_t *hash_p)
{
	struct shunt_plan_set *set = shunt_plan_set_get(2, 2);

	shunt_plan_set_summary(set, s);
	*hash_p = shunt_plan_set_hash(set);
	shunt_plan_set_free(set);
}

/* Rank 0's set is what base says, rank 1 has what is registered now. "": that is the same. */
static void assert_difference(const struct shunt_plan_summary *base, uint64_t hash, const char *text)
{
	static struct shunt_plan_summary all[2];
	uint64_t other;
	char reason[160];

	all[0] = *base;
	summary_now(&all[1], &other);
	assert_true((hash == other) == !*text);
	shunt_plan_summaries_differ(all, 2, reason, sizeof(reason));
	assert_string_equal(reason, text);
}

TEST(test_summaries_name_the_difference)
{
	static struct shunt_plan_summary base;
	uint64_t hash;

	register_plan("allreduce_oneshot_2", "one", NULL, NULL, NULL, NULL);
	register_plan("allreduce_twoshot_2", "two", NULL, NULL, NULL, NULL);
	summary_now(&base, &hash);
	assert_difference(&base, hash, "");

	register_plan("alltoall_port_3", "for others", NULL, NULL, NULL, NULL); /* not for two ranks */
	assert_difference(&base, hash, "");

	register_plan("allgather_put_2", "gather", NULL, NULL, NULL, NULL);
	assert_difference(&base, hash, "rank 1 has a plan gather, rank 0 has none");

	shunt_plan_unregister("gather");
	shunt_plan_unregister("one");
	assert_difference(&base, hash, "rank 1 has no plan one, rank 0 has");

	register_plan("allreduce_oneshot_2", "one", "num_threads_per_block", "128", NULL, NULL);
	assert_difference(&base, hash, "plan one of rank 1 differs from rank 0's");

	shunt_plan_unregister("one");
	register_plan("allreduce_oneshot_2", "one", NULL, NULL, NULL, NULL);
	assert_difference(&base, hash, "rank 1 has its plans in another order than rank 0");

	shunt_plan_unregister("two");
	register_plan("allreduce_twoshot_2", "two", NULL, NULL, NULL, NULL);
	shunt_plan_set_selector(selector, NULL);
	assert_difference(&base, hash, "rank 1 has a selector, rank 0 has none");
}

static void *register_and_match(void *arg)
{
	struct shunt_plan_query call = { SHUNT_ALLREDUCE, SHUNT_F32, SHUNT_SUM, 4096, SHUNT_PLAN_INPLACE_ANY };
	const char *text = arg;

	for (int i = 0; i < 50; i++) {
		struct shunt_plan_set *set = shunt_plan_set_get(2, 2);
		const struct shunt_plan *plan;
		int err;

		for (size_t k = 0; (plan = shunt_plan_set_match(set, &call, k)); k++)
			if (strcmp(plan->name, "shared"))
				return (void *)"another name";
		err = shunt_plan_register("t", text, strlen(text), NULL, 0);
		if (err && err != -EEXIST)
			return (void *)"not registered";
		shunt_plan_unregister("shared");
		shunt_plan_set_free(set);
	}
	return NULL;
}

TEST(test_registry_threads_do_not_disturb_each_other)
{
	char *text = plan_text("allreduce_oneshot_2", "shared", NULL, NULL, NULL, NULL);
	pthread_t threads[4];
	void *wrong;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, register_and_match, text), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	free(text);
}

/* The variables themselves, in a process of its own because they are read once. */
static int child(const char *expected)
{
	struct shunt_plan_set *set = shunt_plan_set_get(2, 2);
	int wrong = strcmp(names_of(set), expected) != 0;

	if (wrong)
		print_error("\"%s\", expected \"%s\"\n", names_of(set), expected);
	shunt_plan_set_free(set);
	return wrong;
}

static void run_child(const char *self, const char *dir, const char *cache_name, const char *cache, const char *home,
    const char *expected)
{
	char command[2048];

	snprintf(command, sizeof(command),
	    "env -u SHUNT_PLAN_DIR -u SHUNT_CACHE_DIR -u MSCCLPP_CACHE_DIR HOME=%s %s%s %s%s%s %s '%s'", home,
	    *dir ? "SHUNT_PLAN_DIR=" : "", dir, cache_name, *cache ? "=" : "", cache, self, expected);
	assert_int_equal(system(command), 0);
}

static char self[1024];

TEST(test_registry_reads_the_environment)
{
	char a[128], b[128], path[160];

	snprintf(a, sizeof(a), "%s/a", root_dir);
	snprintf(b, sizeof(b), "%s/b", root_dir);
	write_plan("a/1.json", "allreduce_oneshot_2", "listed", NULL, NULL);
	write_plan("b/default/1.json", "allreduce_oneshot_2", "cached", NULL, NULL);
	snprintf(path, sizeof(path), "%s/.cache", a);
	mkdir(path, 0700);
	strcat(path, "/shunt");
	mkdir(path, 0700);
	strcat(path, "/default");
	mkdir(path, 0700);
	write_plan("a/.cache/shunt/default/1.json", "allreduce_oneshot_2", "home", NULL, NULL);
	run_child(self, a, "SHUNT_CACHE_DIR", b, root_dir, "listed cached");
	run_child(self, "", "MSCCLPP_CACHE_DIR", b, root_dir, "cached");
	run_child(self, a, "", "", root_dir, "listed");
	run_child(self, "", "", "", a, "home");
	run_child(self, "", "", "", root_dir, "");
}

int main(int argc, char **argv)
{
	char folder[64];
	int failed;

	if (argc == 2)
		return child(argv[1]);
	snprintf(self, sizeof(self), "%s", argv[0]);
	if (!own_folder(folder))
		return 1;
	snprintf(defaults_dir, sizeof(defaults_dir), "%s/defaults", folder);
	setenv("SHUNT_DEFAULT_PLANS", defaults_dir, 1);
	tests_each(setup, teardown);
	failed = tests_run(NULL, NULL);
	own_folder_end(folder);
	return failed;
}
