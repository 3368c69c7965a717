/* SPDX-License-Identifier: MIT */
#include "tests/comm/recorder_fakes.h"
#include "base/dump_schema.h"
#include "comm/observe/dump.h"
#include "comm/parts/comm_registry.h"

const uint8_t id_a[16] = { 0xab, 0xcd, 1 }, id_b[16] = { 0xab, 0xcd, 2 };

struct shunt_coll collective(enum shunt_kind kind, size_t count, int root)
{
	return (struct shunt_coll){ .kind = kind,
		.dtype = SHUNT_F16,
		.redop = SHUNT_MAX,
		.count = count,
		.root = root,
		.stream = (void *)0x77 };
}

/* Recorders without communicators, in the registry. */
static struct {
	struct shunt_recorder *rec;
	struct shunt_registration registration;
} places[64];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

/* Finds the place of `from`, and gives it to `to`. */
static struct shunt_registration *place(const struct shunt_recorder *from, struct shunt_recorder *to)
{
	size_t i = 0;

	pthread_mutex_lock(&places_lock);
	while (places[i].rec != from)
		i++;
	places[i].rec = to;
	pthread_mutex_unlock(&places_lock);
	return &places[i].registration;
}

struct shunt_recorder *recorder_add(const uint8_t id[16])
{
	struct shunt_recorder *rec = shunt_recorder_create(id);

	shunt_dump_start();
	shunt_registry_add(place(NULL, rec), NULL, rec);
	return rec;
}

void recorder_remove(struct shunt_recorder *rec)
{
	struct shunt_registration *r = place(rec, rec);

	shunt_registry_remove(r);
	place(rec, NULL);
	shunt_recorder_destroy(rec);
}

int fake_info(int device, struct shunt_gpu_info *info)
{
	*info = (struct shunt_gpu_info){ .sim = device == 3 };
	return 0;
}

int fake_copy(int device, void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
	return 0;
}

const struct shunt_gpu_ops fake_gpu = { .device_info = fake_info, .copy = fake_copy };

bool field_seen[128];

static void fields_note(const json_t *o, enum shunt_dump_object object)
{
	for (size_t i = 0; shunt_dump_fields[i].name; i++) {
		const struct shunt_dump_field *f = &shunt_dump_fields[i];
		const json_t *v = f->object == object ? json_object_get(o, f->name) : NULL;

		field_seen[i] |= v != NULL;
		if (json_is_object(v))
			fields_note(v, shunt_dump_object_of(f));
		for (size_t k = 0; v && f->type == SHUNT_DUMP_OBJECTS && k < json_array_size(v); k++)
			fields_note(json_array_get(v, k), shunt_dump_object_of(f));
	}
}

/* Each dump has the fields of the schema, and no other. */
static void form_check(const char *text, size_t bytes)
{
	char reason[256] = "";
	struct shunt_json_log log = { .source = "dump", .reason = reason, .bytes = sizeof(reason) };
	json_t *dump = shunt_json_parse(&log, text, bytes);

	if (!dump || !shunt_dump_check(&log, dump))
		fail_msg("%s", reason);
	fields_note(dump, SHUNT_DUMP_process);
	json_decref(dump);
}

json_t *dump_now(void)
{
	size_t bytes = 0;
	char *text = NULL;
	FILE *f = open_memstream(&text, &bytes);
	json_error_t reason;
	json_t *dump;

	assert_non_null(f);
	assert_int_equal(shunt_dump_write(f, "asked"), 0);
	fclose(f);
	form_check(text, bytes);
	dump = json_loads(text, JSON_REJECT_DUPLICATES, &reason);
	if (!dump)
		fail_msg("line %d: %s in:\n%s", reason.line, reason.text, text);
	free(text);
	return dump;
}

json_int_t number(json_t *o, const char *name)
{
	assert_true(json_is_integer(json_object_get(o, name)));
	return json_integer_value(json_object_get(o, name));
}

const char *string(json_t *o, const char *name)
{
	assert_true(json_is_string(json_object_get(o, name)));
	return json_string_value(json_object_get(o, name));
}
