/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_JSON_H
#define SHUNT_PLAN_JSON_H
/*
 * Values of a plan's JSON text, read strictly: a value has the asked type and lies in the asked range, or there is an
 * error text that says where, what, and what was expected. The first error is kept.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "plan/plan.h"

/* See json.c; only for the linker. */
extern void *const shunt_plan_no_stdin;

/* Where in a plan we are, for error texts; NIL: not inside one. */
struct shunt_plan_at {
	uint32_t rank, block, op, inner;
	const char *code; /* the operation's name, or NULL */
};

struct shunt_plan_log {
	const char *source;
	struct shunt_plan_at at;
	int err; /* 0, or the first error */
	char *why;
	size_t bytes;
};

/* -err, after "source: rank 0, block 1, operation 2.3 (put): text". Text of the file goes through shunt_plan_quote. */
int shunt_plan_fail(struct shunt_plan_log *log, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Text of the file, short and printable, in quotes. */
struct shunt_plan_quoted {
	char text[48];
};
struct shunt_plan_quoted shunt_plan_quote(const char *text);

/* Nesting and density of the text are limited first, so that neither stack nor memory run out. Syntax error: false. */
json_t *shunt_plan_json_parse(struct shunt_plan_log *log, const char *text, size_t bytes);

/*
 * Member `key` of an object; where names the object ("src_buff[1]", "" at the top) in the text. A missing key is an
 * error unless there is a default: def for numbers and truth values with need false; NULL for the rest.
 */
bool shunt_plan_json_uint(struct shunt_plan_log *log, const json_t *object, const char *where, const char *key,
    uint64_t low, uint64_t high, bool need, uint64_t def, uint64_t *value_p);
bool shunt_plan_json_int(struct shunt_plan_log *log, const json_t *object, const char *where, const char *key,
    int64_t low, int64_t high, bool need, int64_t def, int64_t *value_p);
bool shunt_plan_json_bool(struct shunt_plan_log *log, const json_t *object, const char *where, const char *key,
    bool need, bool def, bool *value_p);
/* Index of the string in names (NULL-terminated), of which `what` is one ("a collective"). */
bool shunt_plan_json_word(struct shunt_plan_log *log, const json_t *object, const char *where, const char *key,
    const char *const *names, bool need, unsigned def, unsigned *value_p);
bool shunt_plan_json_string(
    struct shunt_plan_log *log, const json_t *object, const char *where, const char *key, const char **value_p);
bool shunt_plan_json_array(struct shunt_plan_log *log, const json_t *object, const char *where, const char *key,
    bool need, const json_t **array_p, uint32_t *n_p);
bool shunt_plan_json_object(struct shunt_plan_log *log, const json_t *object, const char *where, const char *key,
    bool need, const json_t **object_p);
/* Element i of an array (in range) as an object, or as a number in range. where names the array. */
bool shunt_plan_json_object_at(
    struct shunt_plan_log *log, const json_t *array, const char *where, uint32_t i, const json_t **object_p);
bool shunt_plan_json_uint_at(struct shunt_plan_log *log, const json_t *array, const char *where, uint32_t i,
    uint64_t low, uint64_t high, uint64_t *value_p);
#endif
