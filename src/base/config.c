/* SPDX-License-Identifier: MIT */
#include "base/config.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include "base/config_types.h"
#include "base/env.h"
#include "base/link.h"
#include "base/hash.h"
#include "base/nearest.h"
#include "base/os.h"
#include "base/renamed.h"

struct row {
	const char *name;
	const struct shunt_config_type *type;
	const char *def;
	size_t offset; /* in struct shunt_settings */
	const char *aliases;
	const char *doc;
};

static const struct row rows[] = {
#define CFG(name, type, def, field, aliases, doc) \
	{ "SHUNT_" #name, &shunt_type_##type, def, offsetof(struct shunt_settings, config.field), aliases, doc },
#include "base/config.def"
#undef CFG
#define CFG(name, type, def, field, aliases, doc) \
	{ "NCCL_" #name, &shunt_type_##type, def, offsetof(struct shunt_settings, nccl.field), aliases, doc },
#include "base/nccl_env.def"
#undef CFG
};
#define NROWS (sizeof(rows) / sizeof(rows[0]))
_Static_assert(NROWS <= SHUNT_CONFIG_MAX_ROWS, "raise SHUNT_CONFIG_MAX_ROWS");

static const struct {
	const char *name;
	unsigned low, high;
} bounds[] = {
	{ "SHUNT_SIM_DEVICES", 1, 8 },
	{ "SHUNT_IB_RAILS", 1, 4 },
	{ "SHUNT_NCCL_VERSION", 21800, 23299 }, /* functions of later ones are not in symbols.def */
};
#define NBOUNDS (sizeof(bounds) / sizeof(bounds[0]))

/* Valid SHUNT_ names that only the shunt command reads. */
static const char *const other_names[] = { "SHUNT_LIB" };

/* Collectives for which NCCL chooses among algorithms and protocols; the rest are made of sends and receives. */
static uint32_t claimable(void)
{
	uint32_t mask = 0;

	for (int kind = 0; kind < SHUNT_NKINDS; kind++)
		mask |= (uint32_t)shunt_kind_rows[kind].tuned << kind;
	return mask;
}

static bool is_text(const struct row *row)
{
	return row->type == &shunt_type_str || row->type == &shunt_type_links || row->type == &shunt_type_distance;
}

/* Parses the value of one variable. False: not set or malformed (logged), and the field keeps the default. */
static bool take_value(struct shunt_settings *s, const struct row *row, const char *name, const char *text)
{
	void *value = (char *)s + row->offset;
	size_t b = 0;
	int err;

	if (!text || !*text)
		return false;
	err = shunt_type_parse(row->type, text, value);
	if (err == -ENOMEM)
		return false;
	while (b < NBOUNDS && strcmp(bounds[b].name, row->name))
		b++;
	if (b < NBOUNDS && (err || *(unsigned *)value < bounds[b].low || *(unsigned *)value > bounds[b].high)) {
		shunt_warn("%s=%s is not a number from %u to %u; using the default %s", name, text, bounds[b].low,
		    bounds[b].high, row->def);
		shunt_type_parse(row->type, row->def, value);
		return false;
	}
	if (err)
		shunt_warn("%s=%s is not %s; using the default %s", name, text, row->type->accepts, row->def);
	return !err;
}

static void parse_row(struct shunt_settings *s, size_t i, const char *(*get)(void *arg, const char *name), void *arg)
{
	const struct row *row = &rows[i];
	const char *alias = row->aliases, *text = get(arg, row->name);
	char name[64];

	snprintf(s->source[i], sizeof(s->source[i]), "default");
	if (is_text(row))
		*(const char **)((char *)s + row->offset) = row->def;
	else
		shunt_type_parse(row->type, row->def, (char *)s + row->offset);
	snprintf(name, sizeof(name), "%s", row->name);
	while ((!text || !*text) && *alias) {
		size_t n = strcspn(alias, " ");

		snprintf(name, sizeof(name), "%.*s", (int)n, alias);
		text = get(arg, name);
		alias += n + (alias[n] == ' ');
	}
	if (take_value(s, row, name, text))
		snprintf(s->source[i], sizeof(s->source[i]), "%s", name);
}

bool shunt_config_knows(const char *name, const char **nearest_p)
{
	struct shunt_nearest nearest = { .text = name };

	for (size_t i = 0; i < sizeof(other_names) / sizeof(other_names[0]); i++)
		if (!strcmp(name, other_names[i]))
			return true;
	for (size_t i = 0; i < NROWS; i++) {
		if (strncmp(rows[i].name, "SHUNT_", 6))
			continue;
		if (!strcmp(name, rows[i].name))
			return true;
		shunt_nearest_try(&nearest, rows[i].name);
	}
	*nearest_p = shunt_nearest_name(&nearest, strlen("SHUNT_"));
	return false;
}

static void check_name(const char *name)
{
	const char *nearest, *now = shunt_renamed(SHUNT_RENAMED_VARIABLE, name);

	if (shunt_config_knows(name, &nearest))
		return;
	if (now)
		shunt_warn("unknown variable %s: %s", name, now);
	else if (nearest)
		shunt_warn("unknown variable %s (maybe %s?)", name, nearest);
	else
		shunt_warn("unknown variable %s (shunt info lists those that exist)", name);
}

static void check_names(char *const *names)
{
	for (; *names; names++) {
		char name[128];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*names, "="), *names);
		if (!strncmp(name, "SHUNT_", 6)) {
			check_name(name);
		} else if (!strncmp(name, "MSCCLPP_", 8)) {
			const char *now = shunt_renamed(SHUNT_RENAMED_FOREIGN, name);

			if (now && *now)
				shunt_warn("%s does nothing here: %s", name, now);
		}
	}
}

/* Mask of the collectives in a list. bad: gets the first unknown name, cut to fit. */
static uint32_t parse_forced(const char *list, const char *variable, char *bad, size_t bytes)
{
	uint32_t mask = 0;

	while (*list) {
		size_t n = strcspn(list, ",;");
		int kind = shunt_kind_find(list, n);

		if (kind >= 0)
			mask |= 1u << kind;
		else if (shunt_names_equal(list, n, "all"))
			mask |= (1u << SHUNT_NKINDS) - 1;
		else if (!shunt_names_equal(list, n, "") && !shunt_names_equal(list, n, "none")) {
			if (!*bad)
				snprintf(bad, bytes, "%.*s", (int)n, list);
#define NAME(id, name, ...) ", " name
			shunt_error("%s: there is no collective \"%.*s\"; known are all" SHUNT_COLLECTIVE_LIST(NAME),
			    variable, (int)n, list);
#undef NAME
		}
		list += n + (list[n] != '\0');
	}
	return mask;
}

/*
 * Mask of the collectives for which NCCL_ALGO or NCCL_PROTO chooses. Semicolons separate sections. A section with
 * "function:" in front is for that function, a section without it for all.
 */
static uint32_t parse_claims(const char *text)
{
	uint32_t mask = 0;

	while (*text) {
		size_t n = strcspn(text, ";"), head = strcspn(text, ":;");
		int kind;

		if (shunt_names_equal(text, n, "")) {
			;
		} else if (head < n) {
			kind = shunt_kind_find(text, head);
			if (kind >= 0 && !shunt_names_equal(text + head + 1, n - head - 1, ""))
				mask |= (1u << kind) & claimable();
		} else {
			mask |= claimable();
		}
		text += n + (text[n] != '\0');
	}
	return mask;
}

static unsigned limit_min(int a, int b)
{
	if (a <= 0 || b <= 0)
		return (unsigned)(a > 0 ? a : b > 0 ? b : 0);
	return (unsigned)(a < b ? a : b);
}

static void take_nccl_choices(struct shunt_settings *s)
{
	uint32_t claimed = parse_claims(s->nccl.algo) | parse_claims(s->nccl.proto);

	if (s->config.deterministic) {
		s->max_ctas = limit_min(s->nccl.max_ctas, 0);
		s->overruled = claimed || s->nccl.max_nchannels > 0;
	} else {
		s->claimed = claimed;
		s->max_ctas = limit_min(s->nccl.max_ctas, s->nccl.max_nchannels);
	}
}

static uint64_t fingerprint(const struct shunt_settings *s)
{
	const uint32_t values[] = { s->forced, s->claimed, (uint32_t)s->config.device, s->config.check,
		s->config.deterministic, s->max_ctas, (uint32_t)s->config.accumulate };

	const char *const texts[] = { s->config.algo, s->config.links, s->config.sim_links };
	uint64_t hash = shunt_fnv1a(0, values, sizeof(values));

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		hash = shunt_fnv1a(hash, texts[i], strlen(texts[i]) + (i > 0));
	return hash;
}

static size_t row_index(const char *name)
{
	size_t i = 0;

	while (strcmp(rows[i].name, name))
		i++;
	return i;
}

void shunt_settings_parse(
    struct shunt_settings *s, const char *(*get)(void *arg, const char *name), void *arg, char *const *names)
{
	*s = (struct shunt_settings){ 0 };
	for (size_t i = 0; i < NROWS; i++)
		parse_row(s, i, get, arg);
	s->forced = parse_forced(
	    s->config.force_nccl, s->source[row_index("SHUNT_FORCE_NCCL")], s->forced_bad, sizeof(s->forced_bad));
	take_nccl_choices(s);
	s->fingerprint = fingerprint(s);
	if (!names)
		return;
	check_names(names);
	if (s->config.deterministic && s->forced & SHUNT_KINDS_REDUCE)
		shunt_warn(
		    "SHUNT_FORCE_NCCL=%s wins over SHUNT_DETERMINISTIC, because it names collectives: a real NCCL "
		    "adds in an order of its own",
		    s->config.force_nccl);
}

void shunt_settings_finish(struct shunt_settings *s)
{
	/* Defaults are string literals. */
	for (size_t i = 0; i < NROWS; i++)
		if (is_text(&rows[i]) && strcmp(s->source[i], "default"))
			free(*(char **)((char *)s + rows[i].offset));
}

bool shunt_settings_row(const struct shunt_settings *s, size_t i, struct shunt_config_row *row)
{
	if (i >= NROWS)
		return false;
	*row = (struct shunt_config_row){ rows[i].name, rows[i].type->name, rows[i].def, rows[i].aliases,
		rows[i].type->accepts, rows[i].doc, s->source[i], "" };
	shunt_type_show(rows[i].type, (const char *)s + rows[i].offset, row->value, sizeof(row->value));
	return true;
}

/* The settings of this process. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct shunt_settings process;

static const char *get_env(void *arg, const char *name)
{
	return shunt_env(name);
}

static bool any_of_ours(char *const *names)
{
	while (*names && strncmp(*names, "SHUNT_", 6))
		names++;
	return *names;
}

static void parse_process(void)
{
	/*
	 * Use the program's environ. In a library opened with RTLD_DEEPBIND, as our own tools do, environ is libc's
	 * copy, which stays empty.
	 */
	void *program = dlopen(NULL, RTLD_LAZY);
	char ***names = program ? dlsym(program, "environ") : NULL;

	shunt_process_reserve_stdio();
	shunt_settings_parse(&process, get_env, NULL, getauxval(AT_SECURE) ? NULL : names ? *names : environ);
	if (getauxval(AT_SECURE) && any_of_ours(names ? *names : environ))
		shunt_warn("this program has other rights than who started it (setuid): no variable is read");
	if (program)
		dlclose(program);
	for (size_t i = 0; i < NROWS; i++)
		if (strcmp(process.source[i], "default") && shunt_env_from_file(rows[i].name))
			snprintf(process.source[i], sizeof(process.source[i]), "%s in NCCL's configuration file",
			    rows[i].name);
	if (process.overruled)
		shunt_info(SHUNT_LOG_ENV,
		    "SHUNT_DETERMINISTIC wins over NCCL_ALGO, NCCL_PROTO and NCCL_MAX_NCHANNELS: "
		    "Shunt's sums have one order without them");
}

static const struct shunt_settings *settings(void)
{
	pthread_once(&once, parse_process);
	return &process;
}

const struct shunt_config *shunt_config(void)
{
	return &settings()->config;
}

const struct shunt_nccl_env *shunt_nccl_env(void)
{
	return &settings()->nccl;
}

enum shunt_reason shunt_config_nccl_reason(enum shunt_kind kind)
{
	const struct shunt_settings *s = settings();

	return s->forced >> kind & 1 ? SHUNT_REASON_FORCED :
	    s->claimed >> kind & 1   ? SHUNT_REASON_NCCL_ENV :
	                               SHUNT_REASON_NONE;
}

bool shunt_nccl_env_forbids_p2p(void)
{
	return shunt_nccl_forbids_p2p(&settings()->nccl);
}

int shunt_nccl_p2p_level(const struct shunt_nccl_env *nccl)
{
	static const int8_t old[] = { SHUNT_DISTANCE_LOC, SHUNT_DISTANCE_PIX, SHUNT_DISTANCE_PXB, SHUNT_DISTANCE_PHB,
		SHUNT_DISTANCE_SYS };
	const char *text = nccl->p2p_level;

	if (nccl->p2p_disable == 1)
		return SHUNT_DISTANCE_LOC;
	for (int i = 0; shunt_distance_names[i]; i++)
		if (!strcmp(text, shunt_distance_names[i]))
			return i;
	if (*text < '0' || *text > '9')
		return -1;

	long n = strtol(text, NULL, 0);

	return n >= 0 && n < (long)sizeof(old) ? old[n] : SHUNT_DISTANCE_SYS;
}

bool shunt_nccl_forbids_p2p(const struct shunt_nccl_env *nccl)
{
	return shunt_nccl_p2p_level(nccl) == SHUNT_DISTANCE_LOC;
}

unsigned shunt_nccl_env_max_ctas(void)
{
	return settings()->max_ctas;
}

uint64_t shunt_config_fingerprint(void)
{
	return settings()->fingerprint;
}

size_t shunt_config_nrows(void)
{
	return NROWS;
}

bool shunt_config_row(size_t i, struct shunt_config_row *row)
{
	return shunt_settings_row(settings(), i, row);
}
