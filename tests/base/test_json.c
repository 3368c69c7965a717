/* SPDX-License-Identifier: MIT */
/* What the writer of JSON writes, the reader reads. */
#include "tests/support/unit.h"
#include "base/json.h"

static char *text;
static size_t bytes;

static struct shunt_json_writer begin(unsigned lines)
{
	text = NULL;
	return (struct shunt_json_writer){ .out = open_memstream(&text, &bytes), .lines = lines };
}

TEST(test_lines_are_of_the_upper_levels)
{
	struct shunt_json_writer w = begin(1);

	shunt_json_write_object(&w, NULL);
	shunt_json_write_uint(&w, "a", UINT64_MAX);
	shunt_json_write_array(&w, "b");
	shunt_json_write_int(&w, NULL, -5);
	shunt_json_write_bool(&w, NULL, true);
	shunt_json_write_null(&w, NULL);
	shunt_json_write_object(&w, NULL);
	shunt_json_write_object_end(&w);
	shunt_json_write_array_end(&w);
	shunt_json_write_real(&w, "c", 1.5);
	shunt_json_write_real(&w, "d", 0.0 / 0.0);
	shunt_json_write_object_end(&w);
	fclose(w.out);
	assert_string_equal(
	    text, "{\n \"a\": 18446744073709551615,\n \"b\": [-5, true, null, {}],\n \"c\": 1.5,\n \"d\": null\n}\n");
	free(text);
}

TEST(test_texts_come_back)
{
	static const struct {
		const char *in, *out; /* out: NULL if the same */
	} rows[] = { { "", NULL }, { "a \"b\" \\ /\n\t\x01", NULL }, { "\xc3\xa4 \xf0\x9f\x98\x80", NULL },
		{ "\xff", "\xc3\xbf" }, { "\xc3", "\xc3\x83" }, { "a\x7f", "a?" } };
	char reason[128];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct shunt_json_log log = { .source = "t", .reason = reason, .bytes = sizeof(reason) };
		struct shunt_json_writer w = begin(0);
		const char *got;
		json_t *root;

		shunt_json_write_object(&w, NULL);
		shunt_json_write_text(&w, rows[i].in, rows[i].in);
		shunt_json_write_object_end(&w);
		fclose(w.out);
		root = shunt_json_parse(&log, text, bytes);
		assert_non_null(root);
		assert_true(
		    shunt_json_string(shunt_json_at(&log, root, ""), rows[i].out ? rows[i].out : rows[i].in, &got));
		assert_string_equal(got, rows[i].out ? rows[i].out : rows[i].in);
		json_decref(root);
		free(text);
	}
}

TEST(test_numbers_of_64_bits_come_back)
{
	struct shunt_json_log log = { .source = "t", .reason = NULL };
	struct shunt_json_writer w = begin(0);
	json_t *root;

	shunt_json_write_array(&w, NULL);
	shunt_json_write_uint(&w, NULL, UINT64_MAX);
	shunt_json_write_uint(&w, NULL, 7);
	shunt_json_write_int(&w, NULL, INT64_MIN);
	shunt_json_write_array_end(&w);
	fclose(w.out);
	root = shunt_json_parse(&log, text, bytes);
	assert_int_equal(shunt_json_uint_of(json_array_get(root, 0)), UINT64_MAX);
	assert_int_equal(shunt_json_uint_of(json_array_get(root, 1)), 7);
	assert_int_equal(shunt_json_uint_of(json_array_get(root, 2)), 0);
	assert_int_equal(json_integer_value(json_array_get(root, 2)), INT64_MIN);
	assert_int_equal(shunt_json_uint_of(NULL), 0);
	json_decref(root);
	free(text);
}

TEST(test_value_comes_back_with_all_that_is_in_it)
{
	static const char document[] = "{\"a\": [1, -2, 18446744073709551615, 1.5, true, false, null, \"x \\\" \\n\"], "
	                               "\"b\": {\"c\": {}, \"d\": []}}";
	struct shunt_json_log log = { .source = "t", .reason = NULL };
	struct shunt_json_writer w = begin(3);
	json_t *before = shunt_json_parse(&log, document, strlen(document)), *after;

	assert_non_null(before);
	shunt_json_write_value(&w, NULL, before);
	fclose(w.out);
	after = shunt_json_parse(&log, text, bytes);
	assert_true(json_equal(before, after));
	json_decref(before);
	json_decref(after);
	free(text);
}

TEST(test_what_is_no_file_is_refused)
{
	char reason[128];
	struct shunt_json_log log = { .source = "t", .reason = reason, .bytes = sizeof(reason) };

	assert_null(shunt_json_parse_file(&log, "/dev/null", 100));
	assert_string_equal(reason, "t: not a regular file");
	log.err = 0;
	assert_null(shunt_json_parse_file(&log, "/nonexistent", 100));
	assert_string_equal(reason, "t: cannot be opened: No such file or directory");
	log.err = 0;
	assert_null(shunt_json_parse_file(&log, "/proc/self/exe", 100));
	assert_non_null(strstr(reason, "bytes, expected at most 100"));
}
