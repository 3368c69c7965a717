/* SPDX-License-Identifier: MIT */
/* Parsing and printing of what the subcommands take and show. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/coll.h"
#include "tool.h"

/* The last value that was refused, and the line about it. */
static _Thread_local struct {
	char text[64], why[400];
} refused;

static int refuse(int err, const char *text, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int refuse(int err, const char *text, const char *fmt, ...)
{
	va_list args;

	snprintf(refused.text, sizeof(refused.text), "%s", text);
	va_start(args, fmt);
	vsnprintf(refused.why, sizeof(refused.why), fmt, args);
	va_end(args);
	return err;
}

const char *tool_refused(const char *text)
{
	/* Of a list it was one word. */
	return *refused.text && strstr(text, refused.text) ? refused.why : NULL;
}

int tool_parse_size(const char *text, uint64_t *bytes_p)
{
	static const struct { char letter; unsigned shift; } units[] = { { 'k', 10 }, { 'm', 20 }, { 'g', 30 }, { 't', 40 } };
	unsigned long long value;
	unsigned shift = 0;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (tolower((unsigned char)*end) == units[i].letter) {
			shift = units[i].shift;
			end++;
			if (*end == 'i')
				end++;
			break;
		}
	}
	if (toupper((unsigned char)*end) == 'B')
		end++;
	if (*end)
		return -EINVAL;
	if (shift && value > UINT64_MAX >> shift)
		return -ERANGE;
	*bytes_p = (uint64_t)value << shift;
	return 0;
}

int tool_parse_uint(const char *text, unsigned lo, unsigned hi, unsigned *value_p)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end)
		return refuse(-EINVAL, text, "\"%.64s\" is no number from %u to %u", text, lo, hi);
	if (errno || value < lo || value > hi)
		return refuse(-ERANGE, text, "%.64s is not from %u to %u", text, lo, hi);
	*value_p = (unsigned)value;
	return 0;
}

const char *tool_format_size(uint64_t bytes, char *buf)
{
	static const char units[] = { 0, 'K', 'M', 'G', 'T' };
	unsigned unit = 0;

	while (bytes && bytes % 1024 == 0 && unit + 1 < sizeof(units)) {
		bytes /= 1024;
		unit++;
	}
	if (unit)
		snprintf(buf, 24, "%" PRIu64 "%c", bytes, units[unit]);
	else
		snprintf(buf, 24, "%" PRIu64, bytes);
	return buf;
}

int tool_lookup(const char *name, const char *const *names, int n)
{
	char list[256] = "";

	for (int i = 0; i < n; i++)
		if (names[i] && shunt_same_name(name, strlen(name), names[i]))
			return i;
	for (int i = 0; i < n; i++)
		if (names[i])
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", *list ? ", " : "", names[i]);
	return refuse(-1, name, "there is no \"%.64s\"; it takes %s", name, list);
}
