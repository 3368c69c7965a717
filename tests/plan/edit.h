/* SPDX-License-Identifier: MIT */
#pragma once
/* Plans of tests/plan/corpus, and changes to them. */
#include <jansson.h>
#include "plan/format/plan.h"
#include "tests/support/unit.h"
#include "plan/load.h"

static inline json_t *edit_open(const char *name)
{
	static char text[1 << 16];
	char path[1024], *big;
	json_t *root;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s.json", getenv("SHUNT_TEST_PLANS"), name);
	file = fopen(path, "rb");
	assert_non_null(file);
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	/* jansson refuses numbers of 64 bits. */
	while ((big = strstr(text, "18446744073709551615")))
		memcpy(big, " 9223372036854775807", 20);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	return root;
}

/* The value at a path such as "gpus/0/threadblocks/1/ops/2/name". */
static inline json_t *edit_at(json_t *root, const char *path)
{
	char step[64];

	while (root && *path) {
		size_t n = strcspn(path, "/");

		snprintf(step, sizeof(step), "%.*s", (int)n, path);
		root = json_is_array(root) ? json_array_get(root, (size_t)atoi(step)) : json_object_get(root, step);
		path += n + (path[n] == '/');
	}
	return root;
}

/* Puts a value (taken over) at a path, NULL: removes it. In an array a place at its end appends. */
static inline void edit_set(json_t *root, const char *path, json_t *value)
{
	const char *last = strrchr(path, '/');
	char parent[256] = "", *end;
	json_t *at;

	if (last)
		snprintf(parent, sizeof(parent), "%.*s", (int)(last - path), path);
	last = last ? last + 1 : path;
	at = edit_at(root, parent);
	assert_non_null(at);
	if (json_is_array(at)) {
		size_t i = strtoul(last, &end, 10);

		assert_true(i <= json_array_size(at) && !*end);
		if (!value)
			assert_int_equal(json_array_remove(at, i), 0);
		else if (i == json_array_size(at))
			assert_int_equal(json_array_append_new(at, value), 0);
		else
			assert_int_equal(json_array_set_new(at, i, value), 0);
	} else if (value) {
		assert_int_equal(json_object_set_new(at, last, value), 0);
	} else {
		assert_int_equal(json_object_del(at, last), 0);
	}
}

/* value is JSON text, "" removes. */
static inline void edit_text(json_t *root, const char *path, const char *value)
{
	json_t *v = *value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;

	assert_true(v || !*value);
	edit_set(root, path, v);
}

static inline int edit_load(json_t *root, struct shunt_plan **plan_p, char *reason, size_t bytes)
{
	char *text = json_dumps(root, JSON_COMPACT);
	int err = shunt_plan_load_buffer("plan", text, strlen(text), plan_p, reason, bytes);

	free(text);
	return err;
}
