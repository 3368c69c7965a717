/* SPDX-License-Identifier: MIT */
#include "base/json.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* A plan needs 11 levels. Unknown keys are ignored and may be deeper. */
#define MAX_DEPTH 64
/*
 * An object or array costs the parser about 300 bytes, so a text with too many brackets is refused. Plans have one
 * bracket per 12 bytes.
 */
#define BYTES_PER_BRACKET 6

/*
 * jansson has no unsigned 64-bit integers. Integers from 2^63 on are passed to it as strings that begin with this
 * character. The text's own strings must not contain it, plain or escaped.
 */
#define BIG_MARK '\x7f'

int shunt_json_fail(struct shunt_json_log *log, int err, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	if (log->err)
		return -log->err;
	log->err = err;
	if (!log->bytes)
		return -err;
	snprintf(log->reason, log->bytes, "%s: ", log->source);
	if (log->where)
		log->where(log, log->reason, log->bytes);
	n = strlen(log->reason);
	va_start(ap, fmt);
	vsnprintf(log->reason + n, log->bytes - n, fmt, ap);
	va_end(ap);
	return -err;
}

struct shunt_json_quoted shunt_json_quote(const char *text)
{
	struct shunt_json_quoted q;
	size_t n = 0;

	q.text[n++] = '"';
	for (; *text && n < sizeof(q.text) - 6; text++)
		q.text[n++] = *text >= ' ' && *text < 0x7f && *text != '"' ? *text : '?';
	snprintf(q.text + n, sizeof(q.text) - n, "%s\"", *text ? "..." : "");
	return q;
}

static bool is_big_integer(const char *digits, size_t n)
{
	return *digits != '0' && (n > 19 || (n == 19 && memcmp(digits, "9223372036854775807", 19) > 0));
}

/* A copy of the text with big integers marked, or NULL. The caller frees it. */
static char *mark_big_integers(struct shunt_json_log *log, const char *text, size_t bytes, size_t *out_p)
{
	size_t n = 0, brackets = 0, depth = 0,
	       capacity = bytes + bytes / 6 + 64; /* a mark adds 3 bytes to at least 19 digits */
	bool string = false;
	char *out = malloc(capacity);

	if (!out) {
		shunt_json_fail(log, ENOMEM, "no memory for %zu bytes of text", bytes);
		return NULL;
	}
	if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* byte order mark */
		text += 3;
		bytes -= 3;
	}
	for (size_t i = 0; i < bytes; i++) {
		char c = text[i];
		size_t digits = 0;

		if (string) {
			if (c == BIG_MARK || (bytes - i >= 6 && !strncasecmp(text + i, "\\u007f", 6))) {
				shunt_json_fail(log, EINVAL, "a string contains a DEL character");
				goto err_free;
			}
			out[n++] = c;
			if (c == '\\' && i + 1 < bytes)
				out[n++] = text[++i];
			else if (c == '"')
				string = false;
			continue;
		}
		if (isdigit((unsigned char)c))
			while (i + digits < bytes && isdigit((unsigned char)text[i + digits]))
				digits++;
		/* jansson parses fractions, exponents and negative numbers itself. */
		if (digits && is_big_integer(text + i, digits) && (!i || !strchr("-+.eE", text[i - 1])) &&
		    (i + digits == bytes || !strchr(".eE", text[i + digits]))) {
			out[n++] = '"';
			out[n++] = BIG_MARK;
			memcpy(out + n, text + i, digits);
			n += digits;
			out[n++] = '"';
			i += digits - 1;
			continue;
		}
		if (digits) {
			memcpy(out + n, text + i, digits);
			n += digits;
			i += digits - 1;
			continue;
		}
		out[n++] = c;
		string = c == '"';
		if (c == '{' || c == '[') {
			brackets++;
			depth++;
		} else if ((c == '}' || c == ']') && depth) {
			depth--;
		}
		if (depth > MAX_DEPTH) {
			shunt_json_fail(log, EINVAL, "nested more than %d deep", MAX_DEPTH);
			goto err_free;
		}
	}
	if (brackets > 64 + bytes / BYTES_PER_BRACKET) {
		shunt_json_fail(log, EINVAL, "%zu objects and arrays in %zu bytes are too many", brackets, bytes);
		goto err_free;
	}
	*out_p = n;
	return out;
err_free:
	free(out);
	return NULL;
}

json_t *shunt_json_parse(struct shunt_json_log *log, const char *text, size_t bytes)
{
	json_error_t error;
	json_t *root;
	size_t n;
	char *ready = mark_big_integers(log, text, bytes, &n);

	if (!ready)
		return NULL;
	root = json_loadb(ready, n, JSON_REJECT_DUPLICATES, &error);
	free(ready);
	if (!root) {
		bool memory = json_error_code(&error) == json_error_out_of_memory;

		/* The message quotes the text: make it printable. */
		for (char *p = error.text; *p; p++)
			if (*p < ' ' || *p > '~')
				*p = '?';
		shunt_json_fail(log, memory ? ENOMEM : EINVAL, "line %d: no JSON: %s", error.line, error.text);
	}
	return root;
}

int shunt_json_file(struct shunt_json_log *log, const char *path, size_t most, char **text_p, size_t *bytes_p)
{
	/* O_NONBLOCK: opening a pipe must not wait for a writer. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err = 0;
	struct stat st;
	size_t n = 0;
	char *text = NULL;

	if (fd < 0)
		return shunt_json_fail(log, errno, "cannot be opened: %s", strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		err = shunt_json_fail(log, EINVAL, "not a regular file");
	else if ((uint64_t)st.st_size > most)
		err = shunt_json_fail(log, EFBIG, "%lld bytes, expected at most %zu", (long long)st.st_size, most);
	else
		text = malloc((size_t)st.st_size + 1);
	if (!err && !text) {
		shunt_json_fail(log, ENOMEM, "no memory for %lld bytes of text", (long long)st.st_size);
		err = -ENOMEM;
	}
	while (!err && n < (size_t)st.st_size) {
		ssize_t got = read(fd, text + n, (size_t)st.st_size - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			err = shunt_json_fail(log, errno, "cannot be read: %s", strerror(errno));
		if (got <= 0)
			break; /* the file has become shorter: its reader sees what is left */
		n += (size_t)got;
	}
	close(fd);
	if (err) {
		free(text);
		return err;
	}
	text[n] = '\0';
	*text_p = text;
	*bytes_p = n;
	return 0;
}

json_t *shunt_json_parse_file(struct shunt_json_log *log, const char *path, size_t most)
{
	size_t bytes;
	json_t *root;
	char *text;

	if (shunt_json_file(log, path, most, &text, &bytes))
		return NULL;
	root = shunt_json_parse(log, text, bytes);
	free(text);
	return root;
}

static const char *type_name(const json_t *v)
{
	static const char *const names[] = { [JSON_OBJECT] = "an object",
		[JSON_ARRAY] = "an array",
		[JSON_STRING] = "a string",
		[JSON_INTEGER] = "a number",
		[JSON_REAL] = "a fraction",
		[JSON_TRUE] = "true",
		[JSON_FALSE] = "false",
		[JSON_NULL] = "null" };

	return json_is_string(v) && *json_string_value(v) == BIG_MARK ? "a number" : names[json_typeof(v)];
}

/* A member of an object; NULL: missing, which is an error if need is true. */
static const json_t *get_member(struct shunt_json_at at, const char *key, bool need)
{
	const json_t *v = json_object_get(at.json, key);

	if (!v && need)
		shunt_json_fail(at.log, EINVAL, "%s%s%s is missing", at.where, *at.where ? "." : "", key);
	return v;
}

static bool fail_type(struct shunt_json_at at, const char *key, const json_t *v, const char *expected)
{
	shunt_json_fail(at.log, EINVAL, "%s%s%s is %s, expected %s", at.where, *at.where && *key ? "." : "", key,
	    type_name(v), expected);
	return false;
}

static bool fail_range(struct shunt_json_at at, const char *key, const char *value, const char *low, const char *high)
{
	bool one = !strcmp(low, high);

	shunt_json_fail(at.log, EINVAL, "%s%s%s is %s, expected %s%s%s", at.where, *at.where && *key ? "." : "", key,
	    value, low, one ? "" : " to ", one ? "" : high);
	return false;
}

/* Reads an integer: *negative_p and, unless *huge_p (more than 64 bits), its magnitude. False: not an integer. */
static bool parse_integer(const json_t *v, bool *negative_p, uint64_t *value_p, bool *huge_p)
{
	*negative_p = *huge_p = false;
	if (json_is_integer(v)) {
		json_int_t i = json_integer_value(v);

		*negative_p = i < 0;
		*value_p = i < 0 ? -(uint64_t)i : (uint64_t)i;
		return true;
	}
	if (json_is_string(v) && *json_string_value(v) == BIG_MARK) {
		errno = 0;
		*value_p = strtoull(json_string_value(v) + 1, NULL, 10);
		*huge_p = errno != 0;
		return true;
	}
	return false;
}

static bool read_uint(
    struct shunt_json_at at, const char *key, const json_t *v, uint64_t low, uint64_t high, uint64_t *value_p)
{
	char text[32], from[24], to[24];
	bool negative, huge;
	uint64_t value = 0;

	if (!parse_integer(v, &negative, &value, &huge))
		return fail_type(at, key, v, "a whole number");
	if (negative || huge || value < low || value > high) {
		if (huge)
			snprintf(text, sizeof(text), "more than 64 bits");
		else
			snprintf(text, sizeof(text), "%s%" PRIu64, negative ? "-" : "", value);
		snprintf(from, sizeof(from), "%" PRIu64, low);
		snprintf(to, sizeof(to), "%" PRIu64, high);
		return fail_range(at, key, text, from, to);
	}
	*value_p = value;
	return true;
}

uint64_t shunt_json_uint_of(const json_t *v)
{
	bool negative, huge;
	uint64_t value;

	return v && parse_integer(v, &negative, &value, &huge) && !negative && !huge ? value : 0;
}

bool shunt_json_uint(struct shunt_json_at at, const char *key, uint64_t low, uint64_t high, uint64_t *value_p)
{
	const json_t *v = get_member(at, key, true);

	*value_p = 0;
	return v && read_uint(at, key, v, low, high, value_p);
}

bool shunt_json_uint_or(
    struct shunt_json_at at, const char *key, uint64_t low, uint64_t high, uint64_t def, uint64_t *value_p)
{
	const json_t *v = get_member(at, key, false);

	*value_p = def;
	return !v || read_uint(at, key, v, low, high, value_p);
}

bool shunt_json_uint_at(struct shunt_json_at array, uint32_t i, uint64_t low, uint64_t high, uint64_t *value_p)
{
	char place[64];

	snprintf(place, sizeof(place), "%s[%u]", array.where, i);
	*value_p = 0;
	return read_uint(shunt_json_at(array.log, NULL, place), "", json_array_get(array.json, i), low, high, value_p);
}

static bool read_int(
    struct shunt_json_at at, const char *key, const json_t *v, int64_t low, int64_t high, int64_t *value_p)
{
	char text[32], from[24], to[24];
	bool negative, huge;
	uint64_t value;

	if (!parse_integer(v, &negative, &value, &huge))
		return fail_type(at, key, v, "a whole number");
	if (huge || !json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high) {
		snprintf(text, sizeof(text), "%s%" PRIu64, negative ? "-" : huge ? "more than " : "", value);
		snprintf(from, sizeof(from), "%" PRId64, low);
		snprintf(to, sizeof(to), "%" PRId64, high);
		return fail_range(at, key, text, from, to);
	}
	*value_p = json_integer_value(v);
	return true;
}

bool shunt_json_int(struct shunt_json_at at, const char *key, int64_t low, int64_t high, int64_t *value_p)
{
	const json_t *v = get_member(at, key, true);

	*value_p = 0;
	return v && read_int(at, key, v, low, high, value_p);
}

bool shunt_json_int_or(
    struct shunt_json_at at, const char *key, int64_t low, int64_t high, int64_t def, int64_t *value_p)
{
	const json_t *v = get_member(at, key, false);

	*value_p = def;
	return !v || read_int(at, key, v, low, high, value_p);
}

static bool read_bool(struct shunt_json_at at, const char *key, const json_t *v, bool *value_p)
{
	if (!json_is_boolean(v))
		return fail_type(at, key, v, "true or false");
	*value_p = json_is_true(v);
	return true;
}

bool shunt_json_bool(struct shunt_json_at at, const char *key, bool *value_p)
{
	const json_t *v = get_member(at, key, true);

	*value_p = false;
	return v && read_bool(at, key, v, value_p);
}

bool shunt_json_bool_or(struct shunt_json_at at, const char *key, bool def, bool *value_p)
{
	const json_t *v = get_member(at, key, false);

	*value_p = def;
	return !v || read_bool(at, key, v, value_p);
}

/* True for a string that is no marked integer. */
static bool is_text(const json_t *v)
{
	return json_is_string(v) && *json_string_value(v) != BIG_MARK;
}

bool shunt_json_word(struct shunt_json_at at, const char *key, const char *const *names, unsigned *value_p)
{
	const json_t *v = get_member(at, key, true);
	char list[256] = "";
	unsigned i = 0;

	*value_p = 0;
	if (!v)
		return false;
	if (!is_text(v))
		return fail_type(at, key, v, "a string");
	for (; names[i]; i++) {
		size_t n = strlen(list);

		if (!strcmp(names[i], json_string_value(v))) {
			*value_p = i;
			return true;
		}
		snprintf(list + n, sizeof(list) - n, "%s%s", n ? ", " : "", names[i]);
	}
	shunt_json_fail(at.log, EINVAL, "%s%s%s is %s, expected one of %s", at.where, *at.where ? "." : "", key,
	    shunt_json_quote(json_string_value(v)).text, list);
	return false;
}

bool shunt_json_string(struct shunt_json_at at, const char *key, const char **value_p)
{
	const json_t *v = get_member(at, key, true);

	*value_p = "";
	if (!v)
		return false;
	if (!is_text(v))
		return fail_type(at, key, v, "a string");
	*value_p = json_string_value(v);
	return true;
}

bool shunt_json_array(struct shunt_json_at at, const char *key, bool need, const json_t **array_p, uint32_t *n_p)
{
	const json_t *v = get_member(at, key, need);

	*array_p = NULL;
	*n_p = 0;
	if (!v)
		return !need;
	if (!json_is_array(v))
		return fail_type(at, key, v, "an array");
	*array_p = v;
	*n_p = (uint32_t)json_array_size(v); /* the text is shorter than 2^32 */
	return true;
}

bool shunt_json_object(struct shunt_json_at at, const char *key, bool need, const json_t **object_p)
{
	const json_t *v = get_member(at, key, need);

	*object_p = NULL;
	if (!v)
		return !need;
	if (!json_is_object(v))
		return fail_type(at, key, v, "an object");
	*object_p = v;
	return true;
}

bool shunt_json_object_at(struct shunt_json_at array, uint32_t i, const json_t **object_p)
{
	const json_t *v = json_array_get(array.json, i);
	char place[64];

	*object_p = v;
	if (json_is_object(v))
		return true;
	snprintf(place, sizeof(place), "%s[%u]", array.where, i);
	return fail_type(shunt_json_at(array.log, NULL, place), "", v, "an object");
}
