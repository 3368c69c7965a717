/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The form of a dump (docs/doctor.md), from the rows of dump.def: functions that write each field, functions that read
 * each field of a dump that was checked, and the check.
 */
#include "base/json.h"

#define SHUNT_DUMP_FORMAT 3

enum shunt_dump_object {
	SHUNT_DUMP_process,
	SHUNT_DUMP_comm,
	SHUNT_DUMP_fault,
	SHUNT_DUMP_progress,
	SHUNT_DUMP_channels,
	SHUNT_DUMP_op,
	SHUNT_DUMP_thread,
	SHUNT_DUMP_nccl,
	SHUNT_DUMP_counter,
	SHUNT_DUMP_NOBJECTS
};
enum shunt_dump_type {
	SHUNT_DUMP_UINT,
	SHUNT_DUMP_INT,
	SHUNT_DUMP_BOOL,
	SHUNT_DUMP_TEXT,
	SHUNT_DUMP_UINTS,
	SHUNT_DUMP_OBJECT,
	SHUNT_DUMP_OBJECTS
};
struct shunt_dump_field {
	enum shunt_dump_object object;
	const char *name;
	enum shunt_dump_type type;
	bool always;
	unsigned since;
	const char *meaning;
};
/* Ends with a NULL name. An object's fields stand together. */
extern const struct shunt_dump_field shunt_dump_fields[];
/* The content of a field of type OBJECT or OBJECTS. */
enum shunt_dump_object shunt_dump_object_of(const struct shunt_dump_field *field);

/*
 * True if root is a dump of this format or an earlier one: each object has the fields of dump.def that are always there
 * in its format, no field that is not in dump.def, and values of their types. Else log has a line that names the field.
 */
bool shunt_dump_check(struct shunt_json_log *log, const json_t *root);

/*
 * shunt_dump_write_comm_rank(w, rank) and so on. For UINTS, OBJECT and OBJECTS there are _begin functions;
 * shunt_json_write_array_end() or _object_end() ends them.
 */
#define SHUNT_DUMP_WRITE_UINT(object, name) \
	static inline void shunt_dump_write_##object##_##name(struct shunt_json_writer *w, uint64_t value) \
	{ \
		shunt_json_write_uint(w, #name, value); \
	}
#define SHUNT_DUMP_WRITE_INT(object, name) \
	static inline void shunt_dump_write_##object##_##name(struct shunt_json_writer *w, int64_t value) \
	{ \
		shunt_json_write_int(w, #name, value); \
	}
#define SHUNT_DUMP_WRITE_BOOL(object, name) \
	static inline void shunt_dump_write_##object##_##name(struct shunt_json_writer *w, bool value) \
	{ \
		shunt_json_write_bool(w, #name, value); \
	}
#define SHUNT_DUMP_WRITE_TEXT(object, name) \
	static inline void shunt_dump_write_##object##_##name(struct shunt_json_writer *w, const char *value) \
	{ \
		shunt_json_write_text(w, #name, value); \
	}
#define SHUNT_DUMP_WRITE_UINTS(object, name) \
	static inline void shunt_dump_write_##object##_##name##_begin(struct shunt_json_writer *w) \
	{ \
		shunt_json_write_array(w, #name); \
	}
#define SHUNT_DUMP_WRITE_OBJECTS(object, name) SHUNT_DUMP_WRITE_UINTS(object, name)
#define SHUNT_DUMP_WRITE_OBJECT(object, name) \
	static inline void shunt_dump_write_##object##_##name##_begin(struct shunt_json_writer *w) \
	{ \
		shunt_json_write_object(w, #name); \
	}
#define DUMP_FIELD(object, name, type, presence, since, meaning) SHUNT_DUMP_WRITE_##type(object, name)
#include "base/dump.def"

/*
 * shunt_dump_read_comm_rank(object) and so on, of a dump that was checked. A field that is not there, and each one of a
 * NULL object, is 0, -1, false, "" or NULL.
 */
uint64_t shunt_dump_get_uint(const json_t *object, const char *name);
int shunt_dump_get_int(const json_t *object, const char *name);
bool shunt_dump_get_bool(const json_t *object, const char *name);
const char *shunt_dump_get_text(const json_t *object, const char *name);
#define SHUNT_DUMP_READ_UINT uint64_t, shunt_dump_get_uint
#define SHUNT_DUMP_READ_INT int, shunt_dump_get_int
#define SHUNT_DUMP_READ_BOOL bool, shunt_dump_get_bool
#define SHUNT_DUMP_READ_TEXT const char *, shunt_dump_get_text
#define SHUNT_DUMP_READ_UINTS const json_t *, json_object_get
#define SHUNT_DUMP_READ_OBJECT const json_t *, json_object_get
#define SHUNT_DUMP_READ_OBJECTS const json_t *, json_object_get
#define SHUNT_DUMP_READER(object, name, result_get) SHUNT_DUMP_READER_OF(object, name, result_get)
#define SHUNT_DUMP_READER_OF(object, name, result, get) \
	static inline result shunt_dump_read_##object##_##name(const json_t *from) \
	{ \
		return get(from, #name); \
	}
#define DUMP_FIELD(object, name, type, presence, since, meaning) SHUNT_DUMP_READER(object, name, SHUNT_DUMP_READ_##type)
#include "base/dump.def"
