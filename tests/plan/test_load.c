/* SPDX-License-Identifier: MIT */
/* Description: JSON to model: what is read, what is refused, and what the refusal says. */
#include "tests/plan/edit.h"
#include "tests/plan/model.h"
#include "plan/load.h"

static char reason[1200];

static void assert_says(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* Loads an edited plan that must be right. */
static struct shunt_plan *load_ok(json_t *root)
{
	struct shunt_plan *plan = NULL;
	int err = edit_load(root, &plan, reason, sizeof(reason));

	if (err)
		fail_msg("%d: %s", err, reason);
	if (plan_model_wrong(plan))
		fail_msg("%s", plan_model_wrong(plan));
	return plan;
}

static void refuse_text(const char *text, size_t bytes, int err, const char *part)
{
	struct shunt_plan *plan = NULL;

	assert_int_equal(shunt_plan_load_buffer("plan", text, bytes, &plan, reason, sizeof(reason)), err);
	assert_null(plan);
	assert_says(reason, part);
}

TEST(test_load_packets_resolves_everything)
{
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *p = load_ok(root);

	assert_string_equal(p->name, "allreduce_oneshot_2");
	assert_string_equal(p->source, "plan");
	assert_int_equal(p->collective, SHUNT_PLAN_ALLREDUCE);
	assert_true(p->ll && p->inplace && p->double_scratch && !p->reuse_resources && p->automatic);
	assert_int_equal(p->alignment, 16);
	assert_int_equal(p->threads, 256);
	assert_int_equal(p->nranks, 2);
	assert_int_equal(p->part_chunks, 1);
	assert_int_equal(p->scratch_chunks, 1);
	assert_int_equal(p->max_blocks, 1);
	assert_int_equal(p->redops, 1u << SHUNT_SUM);
	assert_int_equal(p->dtypes, (1u << SHUNT_NFORMATS) - 1);
	for (uint32_t r = 0; r < 2; r++) {
		const struct shunt_plan_gpu *gpu = &p->gpus[r];
		const struct shunt_plan_op *op = gpu->blocks[0].ops;

		assert_int_equal(gpu->nchannels[SHUNT_PLAN_MEMORY], 1);
		assert_int_equal(gpu->channels[SHUNT_PLAN_MEMORY][0].peer, 1 - r);
		assert_int_equal(gpu->channels[SHUNT_PLAN_MEMORY][0].pair, 0);
		assert_int_equal(gpu->nchannels[SHUNT_PLAN_PORT], 0);
		assert_int_equal(gpu->peers_write, 1u << SHUNT_PLAN_SCRATCH);
		assert_int_equal(gpu->peers_read, 0);
		assert_int_equal(gpu->read, 1u << SHUNT_PLAN_SCRATCH | 1u << SHUNT_PLAN_INPUT);
		assert_int_equal(gpu->written, 1u << SHUNT_PLAN_SCRATCH | 1u << SHUNT_PLAN_INPUT);
		assert_int_equal(gpu->blocks[0].nops, 2);
		assert_int_equal(op[0].code, SHUNT_PLAN_PPKT);
		assert_int_equal(op[0].type, SHUNT_PLAN_MEMORY);
		assert_int_equal(op[0].nids, 0);
		assert_int_equal(op[0].parts, 1);
		assert_int_equal(op[0].src[0].place, SHUNT_PLAN_LOCAL);
		assert_int_equal(op[0].src[0].target, r);
		assert_false(op[0].src[0].packet);
		assert_int_equal(op[0].dst[0].place, SHUNT_PLAN_REMOTE);
		assert_int_equal(op[0].dst[0].target, 1 - r);
		assert_int_equal(op[0].dst[0].buffer, SHUNT_PLAN_SCRATCH);
		assert_true(op[0].dst[0].packet);
		assert_int_equal(op[1].code, SHUNT_PLAN_REPKT);
		assert_int_equal(op[1].nsrc, 2);
		assert_false(op[1].src[0].packet);
		assert_true(op[1].src[1].packet);
		assert_int_equal(op[1].redop, SHUNT_SUM);
		assert_int_equal(op[1].at, 1);
	}
	shunt_plan_unref(p);
	json_decref(root);
}

TEST(test_load_block_tables_lead_to_numbers_of_the_rank)
{
	json_t *root = edit_open("alltoall_port_3");
	struct shunt_plan *p;

	/* The second channel and buffer of rank 0 by another number of its block. */
	edit_text(root, "gpus/0/threadblocks/0/channels/0/channel_ids", "[0,1,0]");
	edit_text(root, "gpus/0/threadblocks/0/channels/1", "{\"channel_type\":\"port\",\"channel_ids\":[1]}");
	edit_text(root, "gpus/0/threadblocks/0/remote_buffer_refs/0/remote_buffer_ids", "[1,0,1]");
	edit_text(root, "gpus/0/threadblocks/0/ops/4/channel_ids", "[2]");
	edit_text(root, "gpus/0/threadblocks/0/ops/4/dst_buff/0/buffer_id", "1");
	edit_text(root, "gpus/0/threadblocks/0/ops/5/channel_ids", "[3]");
	edit_text(root, "gpus/0/threadblocks/0/ops/5/dst_buff/0/buffer_id", "2");
	edit_text(root, "gpus/0/threadblocks/0/ops/9/dst_buff/0/buffer_id", "1");
	edit_text(root, "gpus/0/threadblocks/0/ops/9/dst_buff/1/buffer_id", "0");
	p = load_ok(root);
	assert_int_equal(p->gpus[0].blocks[0].ops[4].ids[0], 0);
	assert_int_equal(p->gpus[0].blocks[0].ops[4].dst[0].target, 1);
	assert_int_equal(p->gpus[0].blocks[0].ops[5].ids[0], 1);
	assert_int_equal(p->gpus[0].blocks[0].ops[5].dst[0].target, 2);
	assert_int_equal(p->gpus[0].channels[SHUNT_PLAN_PORT][1].peer, 2);
	assert_int_equal(p->gpus[0].channels[SHUNT_PLAN_PORT][1].pair, 0);
	assert_int_equal(p->gpus[2].channels[SHUNT_PLAN_PORT][0].pair, 1);
	shunt_plan_unref(p);
	json_decref(root);
}

TEST(test_load_pipeline_is_flat)
{
	json_t *root = edit_open("sendrecv_pipeline_2");
	struct shunt_plan *p = load_ok(root);
	const struct shunt_plan_block *block = &p->gpus[0].blocks[0];

	assert_int_equal(block->nops, 9);
	assert_int_equal(block->ops[2].code, SHUNT_PLAN_PIPELINE);
	assert_int_equal(block->ops[2].nbody, 6);
	assert_int_equal(block->ops[2].inner, SHUNT_PLAN_NIL);
	assert_int_equal(block->ops[7].code, SHUNT_PLAN_SEM_RELEASE);
	assert_int_equal(block->ops[7].inner, 4);
	assert_int_equal(block->ops[7].at, 2);
	assert_int_equal(p->gpus[1].semaphores[1], 1);
	/* 2 chunks in windows of 4 KiB: c units of 16 bytes. */
	assert_int_equal(shunt_plan_windows(p, &block->ops[2], 1), 1);
	assert_int_equal(shunt_plan_windows(p, &block->ops[2], 128), 1);
	assert_int_equal(shunt_plan_windows(p, &block->ops[2], 129), 2);
	assert_int_equal(shunt_plan_windows(p, &block->ops[2], UINT64_MAX), UINT64_MAX);
	shunt_plan_unref(p);
	json_decref(root);
}

TEST(test_load_group_and_barrier_are_numbered)
{
	json_t *root = edit_open("allgather_put_2");
	struct shunt_plan *p = load_ok(root);

	assert_int_equal(p->parts[SHUNT_PLAN_INPUT], 1);
	assert_int_equal(p->parts[SHUNT_PLAN_OUTPUT], 2);
	assert_int_equal(p->gpus[1].blocks[1].ops[3].part, 1);
	assert_int_equal(p->gpus[1].blocks[1].ops[3].parts, 2);
	assert_int_equal(p->gpus[0].nbarriers, 1);
	assert_int_equal(p->gpus[0].blocks[1].ops[5].barrier, 0); /* 7 in the file */
	assert_int_equal(p->gpus[0].blocks[1].ops[5].nblocks, 2);
	assert_int_equal(p->gpus[0].channels[0][1].pair, 1);
	shunt_plan_unref(p);
	json_decref(root);
}

TEST(test_load_glre_has_its_own_form)
{
	json_t *root = edit_open("switch_all_2");
	struct shunt_plan *p = load_ok(root);
	const struct shunt_plan_op *op = &p->gpus[1].blocks[0].ops[2];

	assert_int_equal(op->code, SHUNT_PLAN_GLRE);
	assert_int_equal(op->redop, SHUNT_MAX);
	assert_int_equal(op->src[0].place, SHUNT_PLAN_MULTICAST);
	assert_int_equal(op->src[0].target, 0);
	assert_int_equal(op->src[0].buffer, SHUNT_PLAN_INPUT);
	assert_int_equal(op->src[0].index, 1);
	assert_int_equal(op->dst[0].buffer, SHUNT_PLAN_OUTPUT);
	assert_int_equal(p->gpus[0].peers_read, 1u << SHUNT_PLAN_INPUT);
	assert_int_equal(p->gpus[0].peers_write, 1u << SHUNT_PLAN_INPUT | 1u << SHUNT_PLAN_SCRATCH);
	assert_int_equal(p->gpus[0].switches[1].buffer, SHUNT_PLAN_SCRATCH);
	assert_int_equal(p->gpus[0].switches[1].nranks, 2);
	shunt_plan_unref(p);
	json_decref(root);
}

TEST(test_load_extras_are_read)
{
	json_t *root = edit_open("custom_reductions_2");
	struct shunt_plan *p = load_ok(root);

	assert_int_equal(p->ranks_per_node, 2);
	assert_int_equal(p->dtypes, 1u << SHUNT_F32 | 1u << SHUNT_I64);
	assert_int_equal(p->priority, -3);
	assert_false(p->automatic);
	assert_int_equal(p->redops, 1u << SHUNT_SUM | 1u << SHUNT_MIN | 1u << SHUNT_PROD);
	shunt_plan_unref(p);
	/* A type with its accumulator is that alone. */
	edit_text(root, "dtypes", "[\"float8e4m3/own\",\"float16/own\"]");
	p = load_ok(root);
	assert_int_equal(p->dtypes, 1u << SHUNT_F8E4M3_OWN | 1u << SHUNT_F16_OWN);
	shunt_plan_unref(p);
	json_decref(root);
}

TEST(test_load_defaults_are_the_formats)
{
	static const char *const optional[] = { "reuse_resources", "use_double_scratch_buffer", "buffer_alignment",
		"num_threads_per_block", "min_message_size", "max_message_size", "gpus/0/semaphores",
		"gpus/1/semaphores" };
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *p;

	for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++)
		edit_set(root, optional[i], NULL);
	p = load_ok(root);
	assert_false(p->double_scratch);
	assert_false(p->reuse_resources);
	assert_int_equal(p->alignment, 16);
	assert_int_equal(p->threads, 1024);
	assert_int_equal(p->min_bytes, 0);
	assert_true(p->max_bytes == UINT64_MAX);
	shunt_plan_unref(p);
	json_decref(root);
}

/* Numbers beyond jansson's own. */
TEST(test_load_64_bits_are_kept)
{
	static const struct {
		const char *value;
		uint64_t expected;
		const char *error;
	} cases[] = {
		{ "18446744073709551615", UINT64_MAX, NULL },
		{ "18446744073709551614", UINT64_MAX - 1, NULL },
		{ "9223372036854775808", (uint64_t)INT64_MAX + 1, NULL },
		{ "9223372036854775807", INT64_MAX, NULL },
		{ "9007199254740993", UINT64_C(9007199254740993), NULL },
		{ "18446744073709551616", 0,
		    "max_message_size is more than 64 bits, expected 0 to 18446744073709551615" },
		{ "99999999999999999999999999", 0, "max_message_size is more than 64 bits" },
		{ "-1", 0, "max_message_size is -1, expected 0 to 18446744073709551615" },
		{ "-9223372036854775808", 0, "max_message_size is -9223372036854775808, expected" },
		{ "-9223372036854775809", 0, "no JSON" },
		{ "00000000000000000001", 0, "no JSON" },
		{ "1e3", 0, "max_message_size is a fraction, expected a whole number" },
		{ "18446744073709551615.0", 0, "max_message_size is a fraction" },
		{ "18446744073709551615e0", 0, "max_message_size is a fraction" },
		{ "\"18446744073709551615\"", 0, "max_message_size is a string, expected a whole number" },
		{ "\"\\u007f18446744073709551615\"", 0, "DEL" },
		{ "\"\x7f"
		  "18446744073709551615\"",
		    0, "DEL" },
		{ "true", 0, "max_message_size is true, expected a whole number" },
		{ "null", 0, "max_message_size is null" },
	};
	static char text[8192];
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *p;
	char *rest;

	edit_set(root, "max_message_size", NULL);
	rest = json_dumps(root, JSON_COMPACT);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int n = snprintf(text, sizeof(text), "{\"max_message_size\":%s,%s", cases[i].value, rest + 1);

		if (cases[i].error) {
			refuse_text(text, (size_t)n, -EINVAL, cases[i].error);
			continue;
		}
		p = NULL;
		if (shunt_plan_load_buffer("plan", text, (size_t)n, &p, reason, sizeof(reason)))
			fail_msg("%s: %s", cases[i].value, reason);
		assert_true(p->max_bytes == cases[i].expected);
		shunt_plan_unref(p);
	}
	free(rest);
	json_decref(root);
}

TEST(test_load_unknown_keys_are_ignored)
{
	static const char *const places[] = { "new", "gpus/0/new", "gpus/0/threadblocks/0/new",
		"gpus/0/threadblocks/0/ops/0/new", "gpus/0/threadblocks/0/ops/0/src_buff/0/new",
		"gpus/0/threadblocks/0/ops/0/ops", "gpus/0/channels/0/new", "gpus/0/remote_buffers/0/new",
		"gpus/0/threadblocks/0/ops/1/channel_ids", "gpus/0/threadblocks/0/ops/1/channel_type",
		"gpus/0/threadblocks/0/channels/0/new" };
	static const char *const values[] = { "1", "[[1,{\"a\":18446744073709551615}],null,\"x\"]", "{\"ops\":[[]]}" };
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *plain = load_ok(root), *p;

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
			edit_text(root, places[i], strstr(values[v], "18446") ? "[[1],null]" : values[v]);
			p = load_ok(root);
			assert_true(p->hash == plain->hash);
			shunt_plan_unref(p);
			edit_set(root, places[i], NULL);
		}
	shunt_plan_unref(plain);
	json_decref(root);
}

/* Each value of each plan, one after the other. */
struct walk {
	json_t *root;
	void (*visit)(struct walk *w, const char *path, json_t *value);
	unsigned n, refused;
};

static void walk(struct walk *w, const char *path, json_t *at)
{
	char below[256];

	if (*path)
		w->visit(w, path, at);
	if (json_is_array(at)) {
		for (size_t i = 0; i < json_array_size(at); i++) {
			snprintf(below, sizeof(below), "%s%s%zu", path, *path ? "/" : "", i);
			walk(w, below, json_array_get(at, i));
		}
	} else if (json_is_object(at)) {
		/* The keys first: visiting changes the object. */
		char keys[24][32];
		size_t n = 0;
		const char *key;
		json_t *value;

		json_object_foreach(at, key, value)
		{
			assert_true(n < 24);
			snprintf(keys[n++], sizeof(keys[0]), "%s", key);
		}
		for (size_t i = 0; i < n; i++) {
			snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", keys[i]);
			walk(w, below, json_object_get(at, keys[i]));
		}
	}
}

static void walk_all(void (*visit)(struct walk *w, const char *path, json_t *value), unsigned *n_p, unsigned *refused_p)
{
	DIR *dir = opendir(getenv("SHUNT_TEST_PLANS"));
	struct dirent *entry;

	assert_non_null(dir);
	*n_p = *refused_p = 0;
	while ((entry = readdir(dir))) {
		struct walk w = { .visit = visit };
		char name[256];

		if (!strstr(entry->d_name, ".json"))
			continue;
		snprintf(
		    name, sizeof(name), "%.*s", (int)(strstr(entry->d_name, ".json") - entry->d_name), entry->d_name);
		w.root = edit_open(name);
		walk(&w, "", w.root);
		json_decref(w.root);
		*n_p += w.n;
		*refused_p += w.refused;
	}
	closedir(dir);
}

static void try_value(struct walk *w, const char *path, json_t *value)
{
	json_t *old = json_incref(edit_at(w->root, path));
	char *text;

	edit_set(w->root, path, value);
	text = json_dumps(w->root, JSON_COMPACT);
	w->n++;
	w->refused += plan_model_try(text, strlen(text)) != 0;
	free(text);
	edit_set(w->root, path, old);
}

/* Under AddressSanitizer each value at a third of the places: all run plainly. */
#ifdef __SANITIZE_ADDRESS__
enum { STEP = 3 };
#else
enum { STEP = 1 };
#endif

static void visit_wrong(struct walk *w, const char *path, json_t *value)
{
	static const char *const values[] = { "null", "true", "\"x\"", "[]", "{}", "0", "-1", "1.5", "2", "4294967295",
		"4294967296", "9223372036854775807", "[0,0]", "[{}]" };

	/* Ranks after the first have the same fields. */
	if (!strncmp(path, "gpus/", 5) && path[5] != '0')
		return;
	for (size_t i = w->n % STEP; i < sizeof(values) / sizeof(values[0]); i += STEP)
		try_value(w, path, json_loads(values[i], JSON_DECODE_ANY, NULL));
	if (json_is_integer(value)) {
		if (json_integer_value(value) != INT64_MAX)
			try_value(w, path, json_integer(json_integer_value(value) + 1));
		try_value(w, path, json_integer(json_integer_value(value) - 1));
	}
}

TEST(test_load_any_value_wrong_is_refused_or_right)
{
	unsigned n, refused;

	walk_all(visit_wrong, &n, &refused);
	print_message("%u plans with one wrong value, %u of them refused\n", n, refused);
	assert_true(n > 10000 / STEP);
	assert_true(refused > n / 2);
}

/* Of the keys that the format demands, none may be missing; others may. The text names it. */
static void visit_missing(struct walk *w, const char *path, json_t *value)
{
	static const char *const may[] = { "reuse_resources", "use_double_scratch_buffer", "buffer_alignment",
		"num_threads_per_block", "min_message_size", "max_message_size", "semaphores", "nranks_per_node",
		"dtypes", "tags", "priority", "auto", "other", "tbg_info", "channels", "remote_buffer_refs", "rank",
		"size" };
	const char *key = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	struct shunt_plan *plan = NULL;
	json_t *old = json_incref(edit_at(w->root, path));
	bool optional = false;
	int err;

	if (*key >= '0' && *key <= '9') {
		json_decref(old);
		return;
	}
	for (size_t i = 0; i < sizeof(may) / sizeof(may[0]); i++)
		optional |= !strcmp(key, may[i]);
	edit_set(w->root, path, NULL);
	err = edit_load(w->root, &plan, reason, sizeof(reason));
	w->n++;
	w->refused += err != 0;
	if (!err && !optional && strcmp(key, "channel_ids"))
		fail_msg("loaded without %s", path);
	if (err && !optional) {
		assert_says(reason, key);
		assert_says(reason, "is missing");
	}
	shunt_plan_unref(plan);
	edit_set(w->root, path, old);
}

TEST(test_load_missing_key_is_named)
{
	unsigned n, refused;

	walk_all(visit_missing, &n, &refused);
	print_message("%u plans with a key missing, %u of them refused\n", n, refused);
	assert_true(n > 500 && refused > n / 2);
}

TEST(test_load_truncated_is_refused)
{
	json_t *root = edit_open("sendrecv_pipeline_2");
	char *text = json_dumps(root, JSON_COMPACT);
	size_t bytes = strlen(text);

	for (size_t n = 0; n < bytes; n++)
		refuse_text(text, n, -EINVAL, n ? "no JSON" : "plan: ");
	assert_int_equal(plan_model_try(text, bytes), 0);
	free(text);
	json_decref(root);
}

/* Editors of some systems put it there. */
TEST(test_load_behind_a_mark_of_utf8_is_taken)
{
	json_t *root = edit_open("sendrecv_pipeline_2");
	char *text = json_dumps(root, JSON_COMPACT), *marked = malloc(strlen(text) + 4);

	sprintf(marked, "\xef\xbb\xbf%s", text);
	assert_int_equal(plan_model_try(marked, strlen(marked)), 0);
	refuse_text(marked, 2, -EINVAL, "no JSON");
	free(marked);
	free(text);
	json_decref(root);
}

TEST_CALL(
    test_load_twice_the_same_key_is_refused, refuse_text("{\"name\":\"a\",\"name\":\"b\"}", 23, -EINVAL, "no JSON"))

TEST(test_load_odd_texts_are_refused)
{
	static const struct {
		const char *text, *part;
	} cases[] = {
		{ "", "no JSON" },
		{ "[]", "no JSON object" },
		{ "1", "no JSON" },
		{ "{}", "name is missing" },
		{ "{\"name\":7}", "name is a number, expected a string" },
		{ "{\"name\":\"\"}", "name has 0 bytes, expected 1 to 255" },
		{ "{\"name\":\"native\"}", "name is \"native\", expected another one" },
		{ "{\"name\":\"nccl\"}", "name is \"nccl\", expected another one" },
		{ "{\"name\":\"a\\nb\"}", "control" },
		{ "{\"name\":\"a\",\"collective\":\"broadcast\"}",
		    "collective is \"broadcast\", expected one of allreduce, allgather," },
		{ "{\"name\":\"a\xff\"}", "no JSON" },
		{ "\xef\xbb\xbf{}", "name is missing" },
		{ "{}{}", "no JSON" },
		{ "{\"name\"", "line 1: no JSON" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		refuse_text(cases[i].text, strlen(cases[i].text), -EINVAL, cases[i].part);
	refuse_text("{\"a\":\0}", 7, -EINVAL, "no JSON");
}

TEST(test_load_hostile_shapes_cost_nothing)
{
	size_t n = (size_t)1 << 20;
	char *text = malloc(n);

	assert_non_null(text);
	memset(text, '[', n);
	refuse_text(text, n, -EINVAL, "nested more than");
	for (size_t i = 0; i < n; i++)
		text[i] = "[],"[i % 3];
	text[0] = '[';
	refuse_text(text, n, -EINVAL, "objects and arrays");
	memset(text, '"', n);
	refuse_text(text, n, -EINVAL, "no JSON");
	memset(text, '9', n);
	refuse_text(text, n, -EINVAL, "no JSON");
	refuse_text(text, SHUNT_PLAN_MAX_JSON + 1, -EFBIG, "expected at most"); /* judged before it is read */
	free(text);
}

TEST(test_load_names_of_the_file_are_made_printable)
{
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *p = NULL;

	edit_set(root, "gpus/0/threadblocks/0/ops/0/name",
	    json_string("\x1b[31mevil\n\"op\" that is far longer than anyone would like to see"));
	assert_int_equal(edit_load(root, &p, reason, sizeof(reason)), -EINVAL);
	assert_says(reason, "plan: rank 0, block 0, operation 0: name is \"?[31mevil??op? that");
	assert_null(strchr(reason, 0x1b));
	assert_null(strchr(reason, '\n'));
	json_decref(root);
}

TEST(test_load_small_buffers_for_the_error_are_kept)
{
	struct shunt_plan *p = NULL;
	char little[8];

	for (size_t n = 1; n <= sizeof(little); n++) {
		memset(little, 'x', sizeof(little));
		assert_int_equal(shunt_plan_load_buffer("some/where.json", "{}", 2, &p, little, n), -EINVAL);
		assert_true(strlen(little) == n - 1);
		assert_memory_equal(little, "some/where", n - 1);
	}
	assert_int_equal(shunt_plan_load_buffer("x", "{}", 2, &p, NULL, 0), -EINVAL);
}

TEST(test_load_file_errors_are_reported)
{
	struct shunt_plan *p = NULL;
	char dir[] = "/tmp/shunt-plan-XXXXXX", path[64];
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/none.json", dir);
	assert_int_equal(shunt_plan_load_file(path, &p, reason, sizeof(reason)), -ENOENT);
	assert_says(reason, path);
	assert_int_equal(shunt_plan_load_file(dir, &p, reason, sizeof(reason)), -EINVAL);
	assert_says(reason, "not a regular file");
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(
	    shunt_plan_load_file(path, &p, reason, sizeof(reason)), -EINVAL); /* does not wait for a writer */
	unlink(path);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	assert_int_equal(shunt_plan_load_file(path, &p, reason, sizeof(reason)), -EINVAL);
	assert_says(reason, "no JSON");
	assert_int_equal(ftruncate(fd, (off_t)SHUNT_PLAN_MAX_JSON + 1), 0);
	assert_int_equal(shunt_plan_load_file(path, &p, reason, sizeof(reason)), -EFBIG);
	close(fd);
	unlink(path);
	rmdir(dir);
}

static bool is_of_get(json_t *root, const char *path)
{
	const char *end = strstr(path, "/channel_ids");
	char name[256];

	snprintf(name, sizeof(name), "%.*s/name", end ? (int)(end - path) : 0, path);
	return end && json_is_string(edit_at(root, name)) && !strcmp(json_string_value(edit_at(root, name)), "get");
}

static void visit_hash(struct walk *w, const char *path, json_t *value)
{
	struct shunt_plan *plan = NULL, *plain = NULL;
	json_t *old, *next = NULL;
	const char *key = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;

	if (!strcmp(path, "name"))
		next = json_string("another");
	else if (json_is_boolean(value))
		next = json_boolean(!json_is_true(value));
	else if (!strcmp(key, "reduce_op"))
		next = json_string(strcmp(json_string_value(value), "max") ? "max" : "sum");
	else if (json_is_integer(value))
		next = json_integer(json_integer_value(value) +
		    (!strcmp(key, "buffer_alignment")         ? 16 :
		            !strcmp(path, "max_message_size") ? -1 :
		                                                1));
	else
		return;
	if (edit_load(w->root, &plain, reason, sizeof(reason)))
		fail_msg("%s: %s", path, reason);
	old = json_incref(edit_at(w->root, path));
	edit_set(w->root, path, next);
	if (!edit_load(w->root, &plan, reason, sizeof(reason))) {
		w->n++;
		/*
		 * barrier_id says only which are the same; other is nobody's tag; rank of a local slice is ignored; a
		 * block may list channels that it does not use, and get lists some.
		 */
		if (plan->hash == plain->hash && strcmp(key, "barrier_id") && strcmp(key, "other") &&
		    strcmp(key, "rank") && !(strstr(path, "threadblocks/") && strstr(path, "/channels/")) &&
		    !is_of_get(w->root, path))
			fail_msg("%s of %s makes no difference", path, plain->name);
	} else {
		w->refused++;
	}
	shunt_plan_unref(plan);
	shunt_plan_unref(plain);
	edit_set(w->root, path, old);
}

TEST(test_load_hash_is_of_the_content)
{
	json_t *root = edit_open("custom_reductions_2");
	struct shunt_plan *a = load_ok(root), *b = NULL;
	char *pretty = json_dumps(root, JSON_INDENT(4) | JSON_SORT_KEYS);
	unsigned n, refused;

	assert_int_equal(shunt_plan_load_buffer("elsewhere", pretty, strlen(pretty), &b, reason, sizeof(reason)), 0);
	assert_true(a->hash == b->hash);
	shunt_plan_unref(a);
	shunt_plan_unref(b);
	free(pretty);
	json_decref(root);
	walk_all(visit_hash, &n, &refused);
	print_message("%u other plans have other hashes\n", n);
	assert_true(n > 40);
}

TEST(test_load_plans_are_reference_counted)
{
	json_t *root = edit_open("allreduce_oneshot_2");
	struct shunt_plan *p = load_ok(root);

	assert_ptr_equal(shunt_plan_ref(p), p);
	shunt_plan_unref(p);
	assert_string_equal(p->name, "allreduce_oneshot_2");
	shunt_plan_unref(p);
	shunt_plan_unref(NULL);
	json_decref(root);
}

TEST(test_bytes_of_a_chunk_follow_the_parts)
{
	/* ceil(message / parts / (16 * part_chunks)), by hand */
	static const struct {
		const char *name;
		uint64_t message, units;
	} cases[] = {
		{ "allreduce_twoshot_2", 0, 0 },
		{ "allreduce_twoshot_2", 1, 1 },
		{ "allreduce_twoshot_2", 32, 1 },
		{ "allreduce_twoshot_2", 33, 2 },
		{ "allreduce_twoshot_2", 1 << 20, 1 << 15 },
		{ "allreduce_twoshot_2", UINT64_MAX, UINT64_C(1) << 59 },
		{ "allgather_put_2", 32, 1 },
		{ "allgather_put_2", 34, 2 },
		{ "alltoall_port_3", 48, 1 },
		{ "alltoall_port_3", 49, 2 },
		{ "reducescatter_packets_3", 3 * 1000, 63 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *root = edit_open(cases[i].name);
		struct shunt_plan *p = load_ok(root);

		assert_true(shunt_plan_chunk_units(p, cases[i].message) == cases[i].units);
		shunt_plan_unref(p);
		json_decref(root);
	}
}

TEST(test_bytes_of_a_groups_parts_make_the_whole)
{
	for (uint32_t parts = 1; parts < 9; parts++)
		for (uint64_t units = 0; units < 40; units++) {
			uint64_t at = 0, first, n;

			for (uint32_t part = 0; part < parts; part++) {
				shunt_plan_group_part(units, part, parts, &first, &n);
				assert_int_equal(first, at);
				assert_true(n == units / parts || n == units / parts + 1);
				at += n;
			}
			assert_int_equal(at, units);
		}
}

TEST(test_bytes_of_a_message_count_all_ranks)
{
	uint64_t bytes;

	assert_true(shunt_plan_message_bytes(SHUNT_PLAN_ALLREDUCE, 4, 10, SHUNT_F32, &bytes) && bytes == 40);
	assert_true(shunt_plan_message_bytes(SHUNT_PLAN_ALLGATHER, 4, 10, SHUNT_BF16, &bytes) && bytes == 80);
	assert_true(shunt_plan_message_bytes(SHUNT_PLAN_REDUCESCATTER, 4, 10, SHUNT_F64, &bytes) && bytes == 320);
	assert_true(shunt_plan_message_bytes(SHUNT_PLAN_ALLTOALL, 2, 10, SHUNT_U8, &bytes) && bytes == 20);
	assert_false(shunt_plan_message_bytes(SHUNT_PLAN_ALLREDUCE, 4, UINT64_MAX / 2, SHUNT_F32, &bytes));
	assert_false(shunt_plan_message_bytes(SHUNT_PLAN_ALLGATHER, 4, UINT64_MAX / 4, SHUNT_F16, &bytes));
	assert_false(shunt_plan_message_bytes(SHUNT_PLAN_ALLGATHER, 0, 1, SHUNT_F16, &bytes));
}

/* The field `column` of a row of a Markdown table. */
static bool table_field(const char *row, int column, char *text, size_t bytes)
{
	size_t n;

	for (; column >= 0; column--) {
		row = strchr(row, '|');
		if (!row)
			return false;
		row++;
	}
	while (*row == ' ')
		row++;
	n = strcspn(row, "|\n");
	while (n && row[n - 1] == ' ')
		n--;
	snprintf(text, bytes, "%.*s", (int)n, row);
	return true;
}

/* Plans of another generator, with a table of what they are. */
static void test_load_shared_plans_as_their_index_says(void **state)
{
	const char *dir = getenv("SHUNT_TEST_SHARED_PLANS");
	char path[1024], row[1024], file[256], mark[64];
	unsigned loaded = 0, refused = 0;
	FILE *index;

	snprintf(path, sizeof(path), "%s/INDEX.md", dir ? dir : "");
	index = fopen(path, "r");
	assert_non_null(index);
	while (fgets(row, sizeof(row), index)) {
		struct shunt_plan *plan = NULL;
		int err;

		if (!table_field(row, 0, file, sizeof(file)) || !strstr(file, ".json"))
			continue;
		assert_true(table_field(row, 17, mark, sizeof(mark)));
		snprintf(path, sizeof(path), "%s/%s", dir, file);
		err = shunt_plan_load_file(path, &plan, reason, sizeof(reason));
		if (!strcmp(mark, "no")) {
			/*
			 * A wait that nobody ends, packets that nobody writes, chunks without a size, a peer that does
			 * not take part.
			 */
			if (!err)
				fail_msg("%s is marked \"no\" and was loaded", file);
			print_message("refused as marked: %s\n", reason);
			refused++;
		} else {
			if (err)
				fail_msg("%s is marked \"%s\" and was refused: %s", file, mark, reason);
			if (strcmp(mark, "OK") && strcmp(mark, "OK*") && strcmp(mark, "runs") && strcmp(mark, "runs*"))
				fail_msg("%s is marked \"%s\": not known here", file, mark);
			if (plan_model_wrong(plan))
				fail_msg("%s: %s", file, plan_model_wrong(plan));
			loaded++;
		}
		shunt_plan_unref(plan);
	}
	fclose(index);
	print_message("%u plans loaded, %u refused\n", loaded, refused);
	assert_true(loaded >= 80 && refused >= 8);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest shared[] = {
		cmocka_unit_test(test_load_shared_plans_as_their_index_says),
	};

	if (argc == 2 && !strcmp(argv[1], "shared"))
		return cmocka_run_group_tests_name("shared", shared, NULL, NULL);
	return tests_run(NULL, NULL);
}
