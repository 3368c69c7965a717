/* SPDX-License-Identifier: MIT */
#include "device/sim/site.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/sim/hooks.h"
#include "device/sim/sync.h"

/* Written before main(). */
bool shunt_sim_sites_watched;

static const char *const kind_names[SIM_SITE_KINDS] = { "acquire", "release", "older", "fence", "barrier", "wait",
	"sum" };
static struct {
	const char *file;
	uint32_t first, last; /* lines */
	enum sim_site_kind kind;
} fault;

/* The sites that ran. A template's instances are one site. */
static const char *list_path;
static struct sim_lock list_lock;
static struct {
	struct sim_site site;
	enum sim_site_kind kind;
} list[512];
static uint32_t listed; /* grows only; entries below it do not change */

/* The part of a path below src/, as the compiler was given it. */
static const char *below_src(const char *file)
{
	const char *found = strstr(file, "src/");

	for (const char *next; found && (next = strstr(found + 1, "src/"));)
		found = next;
	return found ? found + 4 : file;
}

static bool is_listed(const struct sim_site *site, enum sim_site_kind kind, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (list[i].site.line == site->line && list[i].kind == kind && !strcmp(list[i].site.file, site->file))
			return true;
	return false;
}

static void list_add(const struct sim_site *site, enum sim_site_kind kind)
{
	uint32_t n = __atomic_load_n(&listed, __ATOMIC_ACQUIRE);

	if (is_listed(site, kind, 0, n))
		return;
	sim_lock(&list_lock);
	if (!is_listed(site, kind, n, listed)) {
		if (listed == sizeof(list) / sizeof(list[0])) {
			fprintf(stderr, "sim: more than %u sites; the list in %s has no room\n", listed, __FILE__);
			abort();
		}
		list[listed] = { *site, kind };
		__atomic_store_n(&listed, listed + 1, __ATOMIC_RELEASE);
	}
	sim_unlock(&list_lock);
}

extern "C" bool shunt_sim_site_weakened(const struct sim_site *site, enum sim_site_kind kind)
{
	if (list_path)
		list_add(site, kind);
	return fault.file && site->line >= fault.first && site->line <= fault.last && kind == fault.kind &&
	    !strcmp(below_src(site->file), fault.file);
}

static void list_write(void)
{
	FILE *f = fopen(list_path, "w");

	for (uint32_t i = 0; f && i < listed; i++)
		fprintf(f, "%s %u %s %s\n", below_src(list[i].site.file), list[i].site.line, list[i].site.function,
		    kind_names[list[i].kind]);
	if (!f || fclose(f)) {
		fprintf(stderr, "sim: cannot write %s (SIM_FAULT_SITES): %m\n", list_path);
		_exit(2);
	}
}

/* FILE:LINE[-LINE]:KIND; false: something else. */
static bool fault_parse(const char *text)
{
	static char file[256];
	char *line, *kind;

	snprintf(file, sizeof(file), "%s", text);
	line = strchr(file, ':');
	if (!line)
		return false;
	*line++ = 0;
	fault.first = fault.last = (uint32_t)strtoul(line, &kind, 10);
	if (*kind == '-')
		fault.last = (uint32_t)strtoul(kind + 1, &kind, 10);
	if (*kind != ':')
		return false;
	for (uint32_t i = 0; i < SIM_SITE_KINDS; i++)
		if (!strcmp(kind + 1, kind_names[i])) {
			fault.kind = (enum sim_site_kind)i;
			fault.file = file;
			return true;
		}
	return false;
}

extern "C" __attribute__((constructor)) void shunt_sim_sites_init(void)
{
	const char *text = getenv("SIM_FAULT");

	list_path = getenv("SIM_FAULT_SITES");
	if (text && !fault_parse(text)) {
		fprintf(
		    stderr, "sim: SIM_FAULT=%s is not FILE:LINE:KIND; a program that lists sites names them\n", text);
		_exit(2);
	}
	if (list_path)
		atexit(list_write);
	shunt_sim_sites_watched = text || list_path;
}
