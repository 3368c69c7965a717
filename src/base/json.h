/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_JSON_H
#define SHUNT_BASE_JSON_H
/*
 * Values of a JSON text, read strictly: a value has the asked type and lies in the asked range, or there is an
 * error text that says where, what, and what was expected. The first error is kept.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* See json.c; only for the linker. */
extern void *const shunt_json_no_stdin;

struct shunt_json_log {
	const char *source; /* the file, or what else the text is called */
	int err;            /* 0, or the first error */
	char *reason;       /* gets the first error's text, of at most `bytes` */
	size_t bytes;
	/* Appends to a text where in the document the reader is ("rank 0: "); NULL: error texts name the source only.
	 */
	void (*where)(const struct shunt_json_log *log, char *text, size_t bytes);
};

/* -err, after "source: rank 0, block 1: text". Text of the file goes through shunt_json_quote. */
int shunt_json_fail(struct shunt_json_log *log, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Text of the file, short and printable, in quotes. */
struct shunt_json_quoted {
	char text[48];
};
struct shunt_json_quoted shunt_json_quote(const char *text);

/* Nesting and density of the text are limited first, so that neither stack nor memory run out. Syntax error: false. */
json_t *shunt_json_parse(struct shunt_json_log *log, const char *text, size_t bytes);

/*
 * Member `key` of an object; where names the object ("src_buff[1]", "" at the top) in the text. A missing key is an
 * error unless there is a default: def for numbers and truth values with need false; NULL for the rest.
 */
bool shunt_json_uint(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, uint64_t low,
    uint64_t high, bool need, uint64_t def, uint64_t *value_p);
bool shunt_json_int(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, int64_t low,
    int64_t high, bool need, int64_t def, int64_t *value_p);
bool shunt_json_bool(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, bool need,
    bool def, bool *value_p);
/* Index of the string in names (NULL-terminated), of which `what` is one ("a collective"). */
bool shunt_json_word(struct shunt_json_log *log, const json_t *object, const char *where, const char *key,
    const char *const *names, bool need, unsigned def, unsigned *value_p);
bool shunt_json_string(
    struct shunt_json_log *log, const json_t *object, const char *where, const char *key, const char **value_p);
bool shunt_json_array(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, bool need,
    const json_t **array_p, uint32_t *n_p);
bool shunt_json_object(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, bool need,
    const json_t **object_p);
/* Element i of an array (in range) as an object, or as a number in range. where names the array. */
bool shunt_json_object_at(
    struct shunt_json_log *log, const json_t *array, const char *where, uint32_t i, const json_t **object_p);
bool shunt_json_uint_at(struct shunt_json_log *log, const json_t *array, const char *where, uint32_t i, uint64_t low,
    uint64_t high, uint64_t *value_p);
#endif
