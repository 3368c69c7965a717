/* SPDX-License-Identifier: MIT */
#pragma once
/* Parsers and formatters of the types of values. Internal to config.c. */
#include <stddef.h>

struct shunt_config_type {
	const char *name;
	const char *accepts;                         /* completes "... is not" */
	int (*parse)(const char *text, void *value); /* 0; -EINVAL (str: -ENOMEM): value is unchanged */
	void (*show)(const void *value, char *text, size_t bytes);
	const char *const *names; /* of an enum, in place of the two functions; NULL-terminated */
	int first;                /* ... and from which one on the variable may have them */
};

int shunt_type_parse(const struct shunt_config_type *type, const char *text, void *value);
void shunt_type_show(const struct shunt_config_type *type, const void *value, char *text, size_t bytes);

extern const struct shunt_config_type shunt_type_bool, shunt_type_uint, shunt_type_int, shunt_type_size, shunt_type_ms,
    shunt_type_str, shunt_type_device, shunt_type_loglevel, shunt_type_net, shunt_type_ibvmode, shunt_type_epsum,
    shunt_type_selftest, shunt_type_accumulate, shunt_type_ctapolicy, shunt_type_links, shunt_type_distance;
