/* SPDX-License-Identifier: MIT */
/* Parses and prints values of the subcommands. */
#include "tools/common/libc.h"
#include "base/coll.h"
#include "base/nearest.h"
#include "tools/common/tool.h"

/* The last value that was refused, and the reason. */
static _Thread_local struct {
	char text[64], reason[400];
} refused;

int tool_refuse(int err, const char *text, const char *fmt, ...)
{
	va_list args;

	snprintf(refused.text, sizeof(refused.text), "%s", text);
	va_start(args, fmt);
	vsnprintf(refused.reason, sizeof(refused.reason), fmt, args);
	va_end(args);
	return err;
}

const char *tool_refused(const char *text)
{
	/* In a list one word was refused. */
	return *refused.reason && strstr(text, refused.text) ? refused.reason : NULL;
}

/* Without bounds. */
static int size_parse(const char *text, uint64_t *bytes_p)
{
	static const struct {
		char letter;
		unsigned shift;
	} units[] = { { 'k', 10 }, { 'm', 20 }, { 'g', 30 }, { 't', 40 } };
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

int tool_parse_size(const char *text, uint64_t lo, uint64_t hi, uint64_t *bytes_p)
{
	uint64_t value = 0;
	int err = size_parse(text, &value);
	char from[24], to[24];

	if (err == -EINVAL)
		return tool_refuse(err, text, "\"%.64s\" is no whole number such as 8, 64K or 1M", text);
	if (err || value > hi)
		return tool_refuse(-ERANGE, text, "%.64s is more than %s", text, tool_format_size(hi, to));
	if (value < lo)
		return tool_refuse(-ERANGE, text, "%.64s is less than %s", text, tool_format_size(lo, from));
	*bytes_p = value;
	return 0;
}

int tool_parse_minutes(const char *text, double *minutes_p)
{
	char *end;
	double value = strtod(text, &end);

	if (!*text || *end || !(value > 0) || !(value < 1e6))
		return tool_refuse(-EINVAL, text, "\"%.64s\" is no number of minutes above 0 and below 1000000", text);
	*minutes_p = value;
	return 0;
}

static int find_below(const char *name, int n)
{
	const char *names[SHUNT_NFORMATS], *aliases[SHUNT_NFORMATS];
	int alias;

	for (int i = 0; i < n; i++) {
		names[i] = shunt_dtype_rows[i].name;
		aliases[i] = *shunt_dtype_rows[i].alias ? shunt_dtype_rows[i].alias : NULL;
	}
	alias = tool_lookup(name, aliases, n);
	return alias >= 0 ? alias : tool_lookup(name, names, n);
}

void tool_printable(char *text, const char *kept)
{
	for (; *text; text++)
		if (((unsigned char)*text < ' ' || *text == 0x7f) && !strchr(kept, *text))
			*text = '?';
}

const char *tool_dtype_at(int i)
{
	return i < SHUNT_NDTYPES ? shunt_dtype_rows[i].name : NULL;
}

int tool_dtype_find(const char *name)
{
	return find_below(name, SHUNT_NDTYPES);
}

const char *tool_format_at(int i)
{
	return i < SHUNT_NFORMATS ? shunt_dtype_rows[i].name : NULL;
}

int tool_format_find(const char *name)
{
	return find_below(name, SHUNT_NFORMATS);
}

int tool_parse_uint(const char *text, unsigned lo, unsigned hi, unsigned *value_p)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end)
		return tool_refuse(-EINVAL, text, "\"%.64s\" is no number from %u to %u", text, lo, hi);
	if (errno || value < lo || value > hi)
		return tool_refuse(-ERANGE, text, "%.64s is not from %u to %u", text, lo, hi);
	*value_p = (unsigned)value;
	return 0;
}

const char *tool_nccl_lib(void)
{
	const char *lib = getenv("SHUNT_NCCL_LIB"), *alias = getenv("MSCCLPP_NCCL_LIB_PATH");

	return lib && *lib ? lib : alias && *alias ? alias : NULL;
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

const char *tool_maybe(const struct shunt_nearest *nearest, char *buf)
{
	const char *name = shunt_nearest_name(nearest, 0);

	snprintf(buf, 64, name ? " (maybe %s?)" : "", name);
	return buf;
}

int tool_lookup(const char *name, const char *const *names, int n)
{
	struct shunt_nearest nearest = { .text = name };
	char list[256] = "", maybe[64];

	for (int i = 0; i < n; i++)
		if (names[i] && shunt_names_equal(name, strlen(name), names[i]))
			return i;
	for (int i = 0; i < n; i++) {
		if (!names[i])
			continue;
		shunt_nearest_try(&nearest, names[i]);
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", *list ? ", " : "", names[i]);
	}
	return tool_refuse(-1, name, "there is no \"%.64s\"%s; it takes %s", name, tool_maybe(&nearest, maybe), list);
}

void tool_escape(const char *text, FILE *out)
{
	static const char *const names[256] = { ['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;" };

	for (; *text; text++) {
		const char *name = names[(unsigned char)*text];

		if (name)
			fputs(name, out);
		else
			putc(*text, out);
	}
}
