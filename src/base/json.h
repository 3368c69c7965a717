/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The reader and the writer of JSON.
 *
 * The reader is strict. A value of another type or out of range is an error, whose text names the place, the
 * value and the expectation. The first error is kept. The whole document is in memory.
 *
 * The writer streams: it takes no memory and no lock of its own and keeps nothing but the struct, so it also works in a
 * process that is about to end, from any thread. It is not for a signal's handler: the stream is stdio's. Errors stay
 * in the stream.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct shunt_json_log {
	const char *source; /* file name or label of the text */
	int err;            /* 0, or the first error */
	char *reason;       /* gets the text of the first error, of at most `bytes` */
	size_t bytes;
	/* Appends the reader's place in the document ("rank 0: ") to a text. NULL: error texts name the source only. */
	void (*where)(const struct shunt_json_log *log, char *text, size_t bytes);
};

/*
 * Records an error with the text "source: rank 0, block 1: ..." and returns -err. After an earlier error it returns the
 * earlier error. Text of the file must be passed through shunt_json_quote.
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
 * Reads a regular file of at most `most` bytes, and ends the text with a 0; the caller frees *text_p. 0 or -errno, in
 * log. A pipe, or anything else that is no file, is refused at once.
 */
int shunt_json_file(struct shunt_json_log *log, const char *path, size_t most, char **text_p, size_t *bytes_p);
/* Both together. */
json_t *shunt_json_parse_file(struct shunt_json_log *log, const char *path, size_t most);

/* An object or an array to read, with its name in error texts ("src_buff[1]", "" at the top). */
struct shunt_json_at {
	struct shunt_json_log *log;
	const json_t *json;
	const char *where;
};
static inline struct shunt_json_at shunt_json_at(struct shunt_json_log *log, const json_t *json, const char *where)
{
	return (struct shunt_json_at){ log, json, where };
}

/*
 * Reads member `key` of an object. A missing key is an error. With _or it gives def instead, and arrays and objects
 * that are not needed give NULL. False: an error.
 */
bool shunt_json_uint(struct shunt_json_at at, const char *key, uint64_t low, uint64_t high, uint64_t *value_p);
bool shunt_json_uint_or(
    struct shunt_json_at at, const char *key, uint64_t low, uint64_t high, uint64_t def, uint64_t *value_p);
bool shunt_json_int(struct shunt_json_at at, const char *key, int64_t low, int64_t high, int64_t *value_p);
bool shunt_json_int_or(
    struct shunt_json_at at, const char *key, int64_t low, int64_t high, int64_t def, int64_t *value_p);
bool shunt_json_bool(struct shunt_json_at at, const char *key, bool *value_p);
bool shunt_json_bool_or(struct shunt_json_at at, const char *key, bool def, bool *value_p);
/* The value is the string's index in names (NULL-terminated). */
bool shunt_json_word(struct shunt_json_at at, const char *key, const char *const *names, unsigned *value_p);
bool shunt_json_string(struct shunt_json_at at, const char *key, const char **value_p);
bool shunt_json_array(struct shunt_json_at at, const char *key, bool need, const json_t **array_p, uint32_t *n_p);
bool shunt_json_object(struct shunt_json_at at, const char *key, bool need, const json_t **object_p);
/* Reads element i (in range) of an array: an object, or a number from low to high. */
bool shunt_json_object_at(struct shunt_json_at array, uint32_t i, const json_t **object_p);
bool shunt_json_uint_at(struct shunt_json_at array, uint32_t i, uint64_t low, uint64_t high, uint64_t *value_p);
/* The value of a number in a document of shunt_json_parse(); 0 if it is not from 0 to 2^64 - 1. */
uint64_t shunt_json_uint_of(const json_t *value);

/* ---- the writer */

/*
 * { .out = a stream, .lines = n }. Values of up to n levels below the top have lines of their own, deeper ones share a
 * line. n: 0 to 31.
 */
struct shunt_json_writer {
	FILE *out;
	unsigned lines, depth;
	bool any; /* the object or array that is open has a value */
};

/* key: NULL in an array and at the top. Each begin has its end. */
void shunt_json_write_object(struct shunt_json_writer *w, const char *key);
void shunt_json_write_object_end(struct shunt_json_writer *w);
void shunt_json_write_array(struct shunt_json_writer *w, const char *key);
void shunt_json_write_array_end(struct shunt_json_writer *w);
void shunt_json_write_uint(struct shunt_json_writer *w, const char *key, uint64_t value);
void shunt_json_write_int(struct shunt_json_writer *w, const char *key, int64_t value);
void shunt_json_write_bool(struct shunt_json_writer *w, const char *key, bool value);
/* Six digits. NaN and infinity become null. */
void shunt_json_write_real(struct shunt_json_writer *w, const char *key, double value);
/* Text need not be UTF-8: of other text one byte becomes one character. DEL, which the reader refuses, becomes '?'. */
void shunt_json_write_text(struct shunt_json_writer *w, const char *key, const char *text);
void shunt_json_write_null(struct shunt_json_writer *w, const char *key);
/* A value, recursively: a parsed one, or with any bytes as texts, which json_string_nocheck() takes and json_pack()'s
 * "s" not. */
void shunt_json_write_value(struct shunt_json_writer *w, const char *key, const json_t *value);
/* A value as a line, with its newline; the caller frees it. NULL: no memory. */
char *shunt_json_line(const json_t *value);
