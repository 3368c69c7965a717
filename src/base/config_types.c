/* SPDX-License-Identifier: MIT */
#include "base/config_types.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/config.h"
#include "base/link.h"

struct unit {
	const char *name;
	uint64_t factor;
};

/* Parses a non-negative decimal number with an optional unit. Only spaces may surround the two. */
static int parse_scaled(const char *text, const struct unit *units, uint64_t limit, uint64_t *value_p)
{
	char *end;
	uint64_t n, factor = 0;
	size_t len;

	while (isspace((unsigned char)*text))
		text++;
	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	while (isspace((unsigned char)*end))
		end++;
	for (len = strlen(end); len && isspace((unsigned char)end[len - 1]);)
		len--;
	for (; units->name && !factor; units++)
		if (strlen(units->name) == len && !strncasecmp(units->name, end, len))
			factor = units->factor;
	if (!factor || n > limit / factor)
		return -EINVAL;
	*value_p = n * factor;
	return 0;
}

static int parse_name(const char *const *names, const char *text)
{
	for (int i = 0; names[i]; i++)
		if (!strcasecmp(names[i], text))
			return i;
	return -EINVAL;
}

static int parse_bool(const char *text, void *value)
{
	static const char *const names[] = { "0", "1", "no", "yes", "off", "on", "false", "true", "n", "y", NULL };
	int i = parse_name(names, text);

	if (i < 0)
		return i;
	*(bool *)value = i & 1;
	return 0;
}

static void show_bool(const void *value, char *text, size_t bytes)
{
	snprintf(text, bytes, "%d", *(const bool *)value);
}

static int parse_uint(const char *text, void *value)
{
	static const struct unit plain[] = { { "", 1 }, { NULL, 0 } };
	uint64_t n;
	int err = parse_scaled(text, plain, UINT_MAX, &n);

	if (!err)
		*(unsigned *)value = (unsigned)n;
	return err;
}

static void show_uint(const void *value, char *text, size_t bytes)
{
	snprintf(text, bytes, "%u", *(const unsigned *)value);
}

/* Parses an integer as NCCL does: signed, decimal, octal or hexadecimal; text after the digits is ignored. */
static int parse_int(const char *text, void *value)
{
	char *end;
	long long n;

	errno = 0;
	n = strtoll(text, &end, 0);
	if (errno || end == text || n < INT_MIN || n > INT_MAX)
		return -EINVAL;
	*(int *)value = (int)n;
	return 0;
}

static void show_int(const void *value, char *text, size_t bytes)
{
	snprintf(text, bytes, "%d", *(const int *)value);
}

static int parse_size(const char *text, void *value)
{
	static const struct unit units[] = { { "", 1 }, { "b", 1 }, { "k", UINT64_C(1) << 10 },
		{ "m", UINT64_C(1) << 20 }, { "g", UINT64_C(1) << 30 }, { "t", UINT64_C(1) << 40 },
		{ "kb", UINT64_C(1) << 10 }, { "mb", UINT64_C(1) << 20 }, { "gb", UINT64_C(1) << 30 },
		{ "tb", UINT64_C(1) << 40 }, { "kib", UINT64_C(1) << 10 }, { "mib", UINT64_C(1) << 20 },
		{ "gib", UINT64_C(1) << 30 }, { "tib", UINT64_C(1) << 40 }, { NULL, 0 } };

	return parse_scaled(text, units, UINT64_MAX, value);
}

static void show_size(const void *value, char *text, size_t bytes)
{
	static const char suffix[] = "\0kmgt";
	uint64_t n = *(const uint64_t *)value;
	int i = 0;

	for (; n && n % 1024 == 0 && i < 4; i++)
		n /= 1024;
	snprintf(text, bytes, "%" PRIu64 "%.1s", n, &suffix[i]);
}

static int parse_ms(const char *text, void *value)
{
	static const struct unit units[] = { { "", 1000 }, { "ms", 1 }, { "s", 1000 }, { "m", 60 * 1000 },
		{ "min", 60 * 1000 }, { "h", 3600 * 1000 }, { NULL, 0 } };
	uint64_t n;
	int err = parse_scaled(text, units, INT64_MAX, &n);

	if (!err)
		*(int64_t *)value = (int64_t)n;
	return err;
}

static void show_ms(const void *value, char *text, size_t bytes)
{
	int64_t n = *(const int64_t *)value;

	if (n == 0 || n % 1000)
		snprintf(text, bytes, "%" PRId64 "%s", n, n ? "ms" : "");
	else if (n % 60000)
		snprintf(text, bytes, "%" PRId64 "s", n / 1000);
	else if (n % 3600000)
		snprintf(text, bytes, "%" PRId64 "m", n / 60000);
	else
		snprintf(text, bytes, "%" PRId64 "h", n / 3600000);
}

/* The settings own the copy. */
static int parse_str(const char *text, void *value)
{
	char *copy = strdup(text);

	if (!copy)
		return -ENOMEM;
	*(const char **)value = copy;
	return 0;
}

static int parse_distance(const char *text, void *value)
{
	bool known = !*text || (*text >= '0' && *text <= '9');

	for (int i = 0; shunt_distance_names[i]; i++)
		known |= !strcmp(text, shunt_distance_names[i]);
	return known ? parse_str(text, value) : -EINVAL;
}

static int parse_links(const char *text, void *value)
{
	return shunt_link_rules_check(text) ? -EINVAL : parse_str(text, value);
}

static void show_str(const void *value, char *text, size_t bytes)
{
	snprintf(text, bytes, "%s", *(const char *const *)value);
}

static const char *const device_names[] = { "auto", "cuda", "sim", NULL };
const char *const shunt_net_names[] = { "auto", "verbs", "tcp", NULL };
static const char *const ibvmode_names[] = { "host-no-atomic", "host", NULL };
static const char *const epsum_names[] = { "exact", "rank", NULL };
static const char *const selftest_names[] = { "0", "1", "always", "long", NULL };
const char *const shunt_accumulate_names[] = { "default", "fp32", "fp16", "own", NULL };

/* As NCCL reads it: a number, or names joined by bars. -1: not set. */
static int parse_ctapolicy(const char *text, void *value)
{
	static const char *const names[] = { "DEFAULT", "EFFICIENCY", "ZERO", NULL };
	int policy = *text ? 0 : -1;

	if (text[0] >= '0' && text[0] <= '2' && !text[1]) {
		*(int *)value = text[0] - '0';
		return 0;
	}
	while (*text) {
		char name[16];
		size_t n = strcspn(text, "|");
		int i;

		snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : 0, text);
		i = parse_name(names, name);
		if (i < 0)
			return i;
		policy |= i;
		text += n + (text[n] != 0);
	}
	*(int *)value = policy;
	return 0;
}

static void show_ctapolicy(const void *value, char *text, size_t bytes)
{
	static const char *const names[] = { "", "DEFAULT", "EFFICIENCY", "ZERO", "EFFICIENCY|ZERO" };

	snprintf(text, bytes, "%s", names[*(const int *)value + 1]);
}

int shunt_type_parse(const struct shunt_config_type *type, const char *text, void *value)
{
	int i;

	if (type->parse)
		return type->parse(text, value);
	i = parse_name(type->names + type->first, text);
	if (i < 0)
		return i;
	*(int *)value = i + type->first;
	return 0;
}

void shunt_type_show(const struct shunt_config_type *type, const void *value, char *text, size_t bytes)
{
	if (type->show)
		type->show(value, text, bytes);
	else
		snprintf(text, bytes, "%s", type->names[*(const int *)value]);
}

const struct shunt_config_type shunt_type_bool = { "bool", "0 or 1 (no, yes, off, on, false, true)", parse_bool,
	show_bool };
const struct shunt_config_type shunt_type_uint = { "uint", "a number from 0", parse_uint, show_uint };
const struct shunt_config_type shunt_type_int = { "int", "a whole number", parse_int, show_int };
const struct shunt_config_type shunt_type_size = { "size", "a size (bytes, or a number with k, m, g or t)", parse_size,
	show_size };
const struct shunt_config_type shunt_type_ms = { "ms", "a time (seconds, or a number with ms, s, m or h)", parse_ms,
	show_ms };
const struct shunt_config_type shunt_type_str = { "str", "a text", parse_str, show_str };
const struct shunt_config_type shunt_type_distance = { "distance",
	"one of LOC, NVL, NVB, C2C, PIX, PXB, PHB, SYS, or a number from 0 to 4", parse_distance, show_str };
const struct shunt_config_type shunt_type_links = { "links",
	"a list of PAIRS:LINK joined by semicolons, such as *:shared;0-1:nvlink", parse_links, show_str };
const struct shunt_config_type shunt_type_device = { "device", "one of auto, cuda, sim", .names = device_names };
const struct shunt_config_type shunt_type_net = { "net", "one of auto, verbs, tcp", .names = shunt_net_names };
const struct shunt_config_type shunt_type_ibvmode = { "ibvmode", "host-no-atomic or host", .names = ibvmode_names };
const struct shunt_config_type shunt_type_epsum = { "epsum", "exact or rank", .names = epsum_names };
const struct shunt_config_type shunt_type_selftest = { "selftest", "one of 0, 1, always, long",
	.names = selftest_names };
const struct shunt_config_type shunt_type_accumulate = { "accumulate", "one of fp32, fp16, own",
	.names = shunt_accumulate_names, .first = 1 };
const struct shunt_config_type shunt_type_loglevel = { "loglevel", "one of auto, none, error, warn, info, trace",
	.names = shunt_loglevel_names };
const struct shunt_config_type shunt_type_ctapolicy = { "ctapolicy",
	"one of DEFAULT, EFFICIENCY, ZERO, or several with |", parse_ctapolicy, show_ctapolicy };
