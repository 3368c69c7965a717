/* SPDX-License-Identifier: MIT */
#pragma once
/* Recorders without communicators, a device of plain memory, and dumps of them as JSON. For tests of one thread each.
 */
#include "tests/support/unit.h"
#include <jansson.h>
#include "comm/observe/recorder.h"

extern const uint8_t id_a[16], id_b[16];

struct shunt_coll collective(enum shunt_kind kind, size_t count, int root);
/* In the registry, where dumps find it. Any thread. */
struct shunt_recorder *recorder_add(const uint8_t id[16]);
void recorder_remove(struct shunt_recorder *rec);

/* Device 3 is one of the sim. */
int fake_info(int device, struct shunt_gpu_info *info);
int fake_copy(int device, void *dst, const void *src, size_t bytes);
extern const struct shunt_gpu_ops fake_gpu;

/* A dump, which has the fields of the schema, and no other. */
json_t *dump_now(void);
/* The fields that the process's dumps had so far, as in shunt_dump_fields. */
extern bool field_seen[128];
/* A field of an object. */
json_int_t number(json_t *o, const char *name);
const char *string(json_t *o, const char *name);
