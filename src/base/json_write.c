/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "base/json.h"

/* Bytes of the text's first character. 0: no UTF-8 (cut off, overlong, or no character). */
static size_t character_bytes(const char *text)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *b = (const unsigned char *)text;
	size_t n = *b < 0x80 ? 1 : *b < 0xc0 ? 0 : *b < 0xe0 ? 2 : *b < 0xf0 ? 3 : *b < 0xf8 ? 4 : 0;
	uint32_t c = n > 1 ? *b & (0x7fu >> n) : *b;

	for (size_t i = 1; i < n; i++) {
		if ((b[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (b[i] & 0x3f);
	}
	return n > 1 && (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) ? 0 : n;
}

static void string_put(FILE *out, const char *text)
{
	putc('"', out);
	while (*text) {
		size_t n = character_bytes(text);

		if (*text == 0x7f) /* the reader takes none */
			putc('?', out);
		else if (!n || (unsigned char)*text < ' ')
			fprintf(out, "\\u%04x", (unsigned char)*text);
		else
			fprintf(out, *text == '"' || *text == '\\' ? "\\%.*s" : "%.*s", (int)n, text);
		text += n ? n : 1;
	}
	putc('"', out);
}

/* Writes the text before a value: a comma after another value, a new line near the top, and the key. */
static void value_begin(struct shunt_json_writer *w, const char *key)
{
	bool line = w->depth && w->depth <= w->lines;

	if (w->any)
		fputs(line ? "," : ", ", w->out);
	if (line)
		fprintf(w->out, "\n%*s", (int)w->depth, "");
	if (key) {
		string_put(w->out, key);
		fputs(": ", w->out);
	}
	w->any = true;
}

static void nest_begin(struct shunt_json_writer *w, const char *key, char bracket)
{
	value_begin(w, key);
	putc(bracket, w->out);
	w->depth++;
	w->any = false;
}

static void nest_end(struct shunt_json_writer *w, char bracket)
{
	w->depth--;
	if (w->any && w->depth < w->lines)
		fprintf(w->out, "\n%*s", (int)w->depth, "");
	putc(bracket, w->out);
	w->any = true;
	if (!w->depth)
		putc('\n', w->out);
}

void shunt_json_write_object(struct shunt_json_writer *w, const char *key)
{
	nest_begin(w, key, '{');
}

void shunt_json_write_object_end(struct shunt_json_writer *w)
{
	nest_end(w, '}');
}

void shunt_json_write_array(struct shunt_json_writer *w, const char *key)
{
	nest_begin(w, key, '[');
}

void shunt_json_write_array_end(struct shunt_json_writer *w)
{
	nest_end(w, ']');
}

void shunt_json_write_uint(struct shunt_json_writer *w, const char *key, uint64_t value)
{
	value_begin(w, key);
	fprintf(w->out, "%" PRIu64, value);
}

void shunt_json_write_int(struct shunt_json_writer *w, const char *key, int64_t value)
{
	value_begin(w, key);
	fprintf(w->out, "%" PRId64, value);
}

void shunt_json_write_bool(struct shunt_json_writer *w, const char *key, bool value)
{
	value_begin(w, key);
	fputs(value ? "true" : "false", w->out);
}

void shunt_json_write_real(struct shunt_json_writer *w, const char *key, double value)
{
	value_begin(w, key);
	if (isfinite(value))
		fprintf(w->out, "%.6g", value);
	else
		fputs("null", w->out);
}

void shunt_json_write_text(struct shunt_json_writer *w, const char *key, const char *text)
{
	value_begin(w, key);
	string_put(w->out, text);
}

void shunt_json_write_null(struct shunt_json_writer *w, const char *key)
{
	value_begin(w, key);
	fputs("null", w->out);
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as its caller has built it */
void shunt_json_write_value(struct shunt_json_writer *w, const char *key, const json_t *value)
{
	const char *name;
	json_t *member;
	size_t i;

	switch (json_typeof(value)) {
	case JSON_OBJECT:
		shunt_json_write_object(w, key);
		json_object_foreach((json_t *)(uintptr_t)value, name, member) shunt_json_write_value(w, name, member);
		shunt_json_write_object_end(w);
		break;
	case JSON_ARRAY:
		shunt_json_write_array(w, key);
		json_array_foreach(value, i, member) shunt_json_write_value(w, NULL, member);
		shunt_json_write_array_end(w);
		break;
	case JSON_STRING: /* jansson has numbers from 2^63 on as such */
		if (shunt_json_uint_of(value))
			shunt_json_write_uint(w, key, shunt_json_uint_of(value));
		else
			shunt_json_write_text(w, key, json_string_value(value));
		break;
	case JSON_INTEGER:
		shunt_json_write_int(w, key, json_integer_value(value));
		break;
	case JSON_REAL:
		shunt_json_write_real(w, key, json_real_value(value));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		shunt_json_write_bool(w, key, json_is_true(value));
		break;
	case JSON_NULL:
		shunt_json_write_null(w, key);
		break;
	}
}

char *shunt_json_line(const json_t *json)
{
	struct shunt_json_writer w = { 0 };
	char *text = NULL;
	size_t bytes;

	w.out = open_memstream(&text, &bytes);
	if (!w.out)
		return NULL;
	shunt_json_write_value(&w, NULL, json);
	if (fclose(w.out)) {
		free(text);
		return NULL;
	}
	return text;
}
