/* SPDX-License-Identifier: MIT */
#include "base/dump_schema.h"
#include <errno.h>
#include <limits.h>
#include <string.h>

enum { ALWAYS = true, SOMETIMES = false };

const struct shunt_dump_field shunt_dump_fields[] = {
#define DUMP_FIELD(object, name, type, presence, since, meaning) \
	{ SHUNT_DUMP_##object, #name, SHUNT_DUMP_##type, presence, since, meaning },
#include "base/dump.def"
	{ .name = NULL }
};

enum shunt_dump_object shunt_dump_object_of(const struct shunt_dump_field *field)
{
	static const struct {
		enum shunt_dump_object object;
		const char *name;
		enum shunt_dump_object of;
	} rows[] = {
#define DUMP_OBJECT(object, name, of) { SHUNT_DUMP_##object, #name, SHUNT_DUMP_##of },
#include "base/dump.def"
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].object == field->object && !strcmp(rows[i].name, field->name))
			return rows[i].of;
	return SHUNT_DUMP_NOBJECTS;
}

/* ---- the check */

static const struct shunt_dump_field *field_find(enum shunt_dump_object object, const char *name)
{
	for (const struct shunt_dump_field *f = shunt_dump_fields; f->name; f++)
		if (f->object == object && !strcmp(f->name, name))
			return f;
	return NULL;
}

static bool object_check(
    struct shunt_json_log *log, const json_t *o, enum shunt_dump_object object, unsigned format, const char *where);

static bool list_check(
    struct shunt_json_log *log, const json_t *o, const struct shunt_dump_field *f, unsigned format, const char *where)
{
	const json_t *list, *element;
	char place[64];
	uint64_t number;
	uint32_t n;

	if (!shunt_json_array(shunt_json_at(log, o, where), f->name, true, &list, &n))
		return false;
	snprintf(place, sizeof(place), "%.40s%s%s", where, *where ? "." : "", f->name);
	for (uint32_t i = 0; i < n; i++) {
		char each[80];

		if (f->type == SHUNT_DUMP_UINTS) {
			if (!shunt_json_uint_at(shunt_json_at(log, list, place), i, 0, UINT64_MAX, &number))
				return false;
			continue;
		}
		snprintf(each, sizeof(each), "%s[%u]", place, i);
		if (!shunt_json_object_at(shunt_json_at(log, list, place), i, &element) ||
		    !object_check(log, element, shunt_dump_object_of(f), format, each))
			return false;
	}
	return true;
}

/* The field is there. */
static bool field_check(
    struct shunt_json_log *log, const json_t *o, const struct shunt_dump_field *f, unsigned format, const char *where)
{
	const json_t *inner;
	const char *text;
	uint64_t number;
	int64_t integer;
	char place[64];
	bool flag;

	switch (f->type) {
	case SHUNT_DUMP_UINT:
		return shunt_json_uint(shunt_json_at(log, o, where), f->name, 0, UINT64_MAX, &number);
	case SHUNT_DUMP_INT:
		return shunt_json_int(shunt_json_at(log, o, where), f->name, -1, INT_MAX, &integer);
	case SHUNT_DUMP_BOOL:
		return shunt_json_bool(shunt_json_at(log, o, where), f->name, &flag);
	case SHUNT_DUMP_TEXT:
		return shunt_json_string(shunt_json_at(log, o, where), f->name, &text);
	case SHUNT_DUMP_UINTS:
	case SHUNT_DUMP_OBJECTS:
		return list_check(log, o, f, format, where);
	case SHUNT_DUMP_OBJECT:
		snprintf(place, sizeof(place), "%.40s%s%s", where, *where ? "." : "", f->name);
		return shunt_json_object(shunt_json_at(log, o, where), f->name, true, &inner) &&
		    object_check(log, inner, shunt_dump_object_of(f), format, place);
	}
	return false;
}

static bool object_check(
    struct shunt_json_log *log, const json_t *o, enum shunt_dump_object object, unsigned format, const char *where)
{
	const char *key;
	json_t *value;

	for (const struct shunt_dump_field *f = shunt_dump_fields; f->name; f++)
		if (f->object == object && ((f->always && f->since <= format) || json_object_get(o, f->name)) &&
		    !field_check(log, o, f, format, where))
			return false;
	json_object_foreach((json_t *)(uintptr_t)o, key, value) if (!field_find(object, key))
	{
		shunt_json_fail(log, EINVAL, "%s has a field %s, which is none of format %u", *where ? where : "it",
		    shunt_json_quote(key).text, format);
		return false;
	}
	return true;
}

bool shunt_dump_check(struct shunt_json_log *log, const json_t *root)
{
	uint64_t format;

	if (!json_is_object(root) || !json_object_get(root, "shunt_dump")) {
		shunt_json_fail(log, EINVAL, "it is not a dump of Shunt");
		return false;
	}
	if (!shunt_json_uint(shunt_json_at(log, root, ""), "shunt_dump", 0, UINT64_MAX, &format))
		return false;
	if (!format || format > SHUNT_DUMP_FORMAT) {
		shunt_json_fail(log, EINVAL,
		    "it is a dump of another version (%s) of Shunt; use that version's shunt doctor",
		    shunt_json_quote(shunt_dump_get_text(root, "version")).text);
		return false;
	}
	return object_check(log, root, SHUNT_DUMP_process, (unsigned)format, "");
}

/* ---- values */

uint64_t shunt_dump_get_uint(const json_t *object, const char *name)
{
	return shunt_json_uint_of(json_object_get(object, name));
}

int shunt_dump_get_int(const json_t *object, const char *name)
{
	const json_t *v = json_object_get(object, name);

	return json_is_integer(v) ? (int)json_integer_value(v) : -1;
}

bool shunt_dump_get_bool(const json_t *object, const char *name)
{
	return json_is_true(json_object_get(object, name));
}

const char *shunt_dump_get_text(const json_t *object, const char *name)
{
	const json_t *v = json_object_get(object, name);

	return json_is_string(v) ? json_string_value(v) : "";
}
