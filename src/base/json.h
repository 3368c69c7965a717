/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_JSON_H
#define SHUNT_BASE_JSON_H
/*
 * Strict reader of JSON values. A value of another type or out of range is an error, whose text names the place, the
 * value and the expectation. The first error is kept.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Only for the linker; see json.c. */
extern void *const shunt_json_no_stdin;

struct shunt_json_log {
	const char *source; /* file name or label of the text */
	int err;            /* 0, or the first error */
	char *reason;       /* gets the text of the first error, of at most `bytes` */
	size_t bytes;
	/* Appends the reader's place in the document ("rank 0: ") to a text. NULL: error texts name the source only. */
	void (*where)(const struct shunt_json_log *log, char *text, size_t bytes);
};

/*
 * Records an error with the text "source: rank 0, block 1: ..." and returns -err. After an earlier error it returns
 * that one. Text of the file must be passed through shunt_json_quote.
 */
int shunt_json_fail(struct shunt_json_log *log, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Text of the file, cut, made printable, in quotes. */
struct shunt_json_quoted {
	char text[48];
};
struct shunt_json_quoted shunt_json_quote(const char *text);

/*
 * Parses a text; the caller owns the result. The depth and density of brackets are limited, so that neither stack nor
 * memory runs out. NULL: an error.
 */
json_t *shunt_json_parse(struct shunt_json_log *log, const char *text, size_t bytes);

/*
 * Reads member `key` of an object. where: the object's name in error texts ("src_buff[1]", "" at the top). A missing
 * key is an error if need is true. Else the value is def; NULL for arrays and objects. False: an error.
 */
bool shunt_json_uint(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, uint64_t low,
    uint64_t high, bool need, uint64_t def, uint64_t *value_p);
bool shunt_json_int(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, int64_t low,
    int64_t high, bool need, int64_t def, int64_t *value_p);
bool shunt_json_bool(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, bool need,
    bool def, bool *value_p);
/* The value is the string's index in names (NULL-terminated). */
bool shunt_json_word(struct shunt_json_log *log, const json_t *object, const char *where, const char *key,
    const char *const *names, bool need, unsigned def, unsigned *value_p);
bool shunt_json_string(
    struct shunt_json_log *log, const json_t *object, const char *where, const char *key, const char **value_p);
bool shunt_json_array(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, bool need,
    const json_t **array_p, uint32_t *n_p);
bool shunt_json_object(struct shunt_json_log *log, const json_t *object, const char *where, const char *key, bool need,
    const json_t **object_p);
/*
 * Reads element i (in range) of an array: an object, or a number from low to high. where: the array's name in error
 * texts.
 */
bool shunt_json_object_at(
    struct shunt_json_log *log, const json_t *array, const char *where, uint32_t i, const json_t **object_p);
bool shunt_json_uint_at(struct shunt_json_log *log, const json_t *array, const char *where, uint32_t i, uint64_t low,
    uint64_t high, uint64_t *value_p);
#endif
