/* SPDX-License-Identifier: MIT */
/* What of an inference engine stands before NCCL. Of its package files are read; nothing of it runs. */
#include <glob.h>
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"

enum { FILE_MAX_BYTES = 16 << 20, TEXT = 1536 };
enum engine_id {
#define ENGINE(id, ...) ENGINE_##id,
#include "tools/doctor/engines.def"
};
enum path_state { ON, OFF, WINDOW };

struct engine {
	const char *name, *title, *package;
	unsigned oldest, newest;
	const char *communicators, *start;
};
static const struct engine engines[] = {
#define ENGINE(id, ...) { #id, __VA_ARGS__ },
#include "tools/doctor/engines.def"
};

struct engine_path {
	enum engine_id engine;
	unsigned since, until;
	const char *name, *file, *marker, *attribute;
	enum path_state state;
	const char *variable, *option, *sizes;
};
static const struct engine_path paths[] = {
#define ENGINE_PATH(engine, ...) { ENGINE_##engine, __VA_ARGS__ },
#include "tools/doctor/engines.def"
};

static const struct {
	enum engine_id engine;
	const char *file, *marker, *text, *advice;
} notes[] = {
#define ENGINE_NOTE(engine, ...) { ENGINE_##engine, __VA_ARGS__ },
#include "tools/doctor/engines.def"
};

static const struct {
	enum engine_id engine;
	const char *attribute;
} known[] = {
#define ENGINE_KNOWN(engine, attribute) { ENGINE_##engine, attribute },
#include "tools/doctor/engines.def"
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct search {
	const struct engine *engine;
	char dir[PATH_MAX];      /* the folder of packages that has it; "" until then */
	char metadata[PATH_MAX]; /* its file METADATA; "": none */
	char torch[PATH_MAX];    /* PyTorch's */
};

/* A text that the caller frees; NULL with errno. */
static char *text_read(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text = NULL;
	struct stat st;
	ssize_t n = -1;

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX_BYTES))
		errno = EINVAL;
	else if ((text = malloc((size_t)st.st_size + 1)))
		n = read(fd, text, (size_t)st.st_size);
	close(fd);
	if (n < 0) {
		free(text);
		return NULL;
	}
	text[n] = 0;
	return text;
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* True if the text has the marker, and not as a part of a longer name. */
static bool has_marker(const char *text, const char *marker)
{
	for (const char *at = text; (at = strstr(at, marker)); at++)
		if ((at == text || !is_word(at[-1])) && !is_word(at[strlen(marker)]))
			return true;
	return false;
}

static bool file_has(const struct search *s, const char *file, const char *marker)
{
	char path[PATH_MAX + 256], *text;
	bool found;

	snprintf(path, sizeof(path), "%s/%s/%s", s->dir, s->engine->package, file);
	text = text_read(path);
	found = text && has_marker(text, marker);
	free(text);
	return found;
}

static void metadata_find(const char *dir, const char *package, char path[PATH_MAX])
{
	char pattern[PATH_MAX + 64];
	glob_t g = { 0 };

	snprintf(pattern, sizeof(pattern), "%s/%s-*.dist-info/METADATA", dir, package);
	if (!glob(pattern, 0, NULL, &g) && !*path)
		snprintf(path, PATH_MAX, "%s", g.gl_pathv[g.gl_pathc - 1]);
	globfree(&g);
}

static void search_dir(const char *dir, void *arg)
{
	struct search *s = arg;
	char path[PATH_MAX + 64];

	metadata_find(dir, "torch", s->torch);
	snprintf(path, sizeof(path), "%s/%s/__init__.py", dir, s->engine->package);
	if (*s->dir || access(path, R_OK))
		return;
	snprintf(s->dir, sizeof(s->dir), "%s", dir);
	metadata_find(dir, s->engine->package, s->metadata);
}

/* The version that METADATA tells in its head, "" if it tells none. 10000 for 1.0.0; 0: none, or not to be understood.
 */
static unsigned version_read(const char *metadata, char version[32])
{
	char *text = *metadata ? text_read(metadata) : NULL;
	unsigned part[3] = { 0 };

	*version = 0;
	for (char *line = text, *end; line && *line && *line != '\n' && *line != '\r'; line = end) {
		end = line + strcspn(line, "\n");
		end += *end == '\n';
		if (!strncasecmp(line, "Version:", 8)) {
			line += 8;
			line += strspn(line, " \t");
			snprintf(version, 32, "%.*s", (int)strcspn(line, " \t\r\n"), line);
			break;
		}
	}
	free(text);
	if (!isdigit((unsigned char)*version) || sscanf(version, "%3u.%3u.%3u", &part[0], &part[1], &part[2]) < 2)
		return 0;
	for (int i = 1; i < 3; i++)
		part[i] = part[i] < 99 ? part[i] : 99;
	return part[0] * 10000 + part[1] * 100 + part[2];
}

/* "0.29" or, of a newest one whose patch is any, "0.33". */
static const char *version_name(unsigned version, char buf[16])
{
	snprintf(buf, 16, "%u.%u", version / 10000, version / 100 % 100);
	return buf;
}

static void version_report(struct findings *f, const struct search *s, const char *text, unsigned version)
{
	const struct engine *e = s->engine;
	char oldest[16], newest[16], torch[32], other[64] = "", place[PATH_MAX + 64];

	snprintf(place, sizeof(place), "%s/%s", s->dir, e->package);
	version_name(e->oldest, oldest);
	version_name(e->newest, newest);
	if (strcmp(e->package, "torch") && version_read(s->torch, torch))
		snprintf(other, sizeof(other), ", PyTorch %s", torch);
	if (!version)
		finding_add(f, FINDING_WARN, "engine",
		    "what follows is what its files have, with defaults of the newest", "%s in %s: %s%s%s", e->title,
		    place, *s->metadata ? "its METADATA tells no version that can be understood" : "it has no METADATA",
		    *text ? ": " : "", text);
	else if (version < e->oldest || version > e->newest)
		finding_add(f, FINDING_WARN, "engine",
		    "what follows is what its files have; look into its release notes for other ways around NCCL",
		    "%s %s is outside of what this table was compared with, %s to %s: %s%s", e->title, text, oldest,
		    newest, place, other);
	else
		finding_add(f, FINDING_OK, "engine", "", "%s %s (table: %s to %s)%s: %s", e->title, text, oldest,
		    newest, other, place);
}

static void list_add(char list[TEXT], const char *separator, const char *text)
{
	size_t n = strlen(list);

	snprintf(list + n, TEXT - n, "%s%s", n ? separator : "", text);
}

/* What the user's variable says, else what the engine does by itself. */
static enum path_state path_state(const struct engine_path *p)
{
	const char *set = *p->variable ? getenv(p->variable) : NULL;

	if (!set || !*set || p->state == WINDOW)
		return p->state;
	return atoi(set) ? ON : OFF;
}

static void paths_report(struct findings *f, const struct search *s, unsigned version)
{
	char on[TEXT] = "", off[TEXT] = "", windows[TEXT] = "", variables[TEXT] = "", options[TEXT] = "", row[512];
	char advice[3 * TEXT];

	for (const struct engine_path *p = paths; p < paths + COUNT(paths); p++) {
		const char *ask = *p->variable ? p->variable : p->option;
		enum path_state state = path_state(p);

		if (&engines[p->engine] != s->engine || (version ? version < p->since : p->until) ||
		    (p->until && version > p->until) || !file_has(s, p->file, p->marker))
			continue;
		snprintf(row, sizeof(row), "%s (%s%s%s)", p->name, state == ON ? "on" : ask, *p->sizes ? ", " : "",
		    p->sizes);
		list_add(state == ON ? on : state == OFF ? off : windows, ", ", row);
		if (state != ON)
			continue;
		if (*p->variable) {
			list_add(variables, " ", p->variable);
			list_add(variables, "", "=0");
		} else {
			list_add(options, " ", p->option);
		}
	}
	snprintf(advice, sizeof(advice), "to give them to Shunt: %s%sshunt run -- %s%s%s", variables,
	    *variables ? " " : "", s->engine->start, *options ? " " : "", options);
	if (*on)
		finding_add(f, FINDING_INFO, "engine", advice,
		    "stand before NCCL in the all-reduces of tensor parallelism, in this order: %s", on);
	else if (*s->engine->start)
		finding_add(
		    f, FINDING_OK, "engine", "", "nothing that is known stands before NCCL unless it is asked for");
	if (*off)
		finding_add(f, FINDING_INFO, "engine", "", "off, and would stand before NCCL: %s", off);
	if (*windows)
		finding_add(f, FINDING_INFO, "engine", "", "in NCCL's windows, so through Shunt: %s", windows);
}

static bool attribute_known(enum engine_id engine, const char *name)
{
	for (size_t i = 0; i < COUNT(paths); i++)
		if (paths[i].engine == engine && !strcmp(paths[i].attribute, name))
			return true;
	for (size_t i = 0; i < COUNT(known); i++)
		if (known[i].engine == engine && !strcmp(known[i].attribute, name))
			return true;
	return false;
}

/* Reports each self.NAME_comm that the table does not have, once. */
static void communicators_report(struct findings *f, const struct search *s)
{
	char path[PATH_MAX + 256], *text, unknown[TEXT] = " ", name[64], spaced[72];

	snprintf(path, sizeof(path), "%s/%s/%s", s->dir, s->engine->package, s->engine->communicators);
	text = text_read(path);
	if (!text) {
		finding_add(f, FINDING_WARN, "engine", "its code has moved: what stands before NCCL may be incomplete",
		    "%s cannot be read: %s", path, strerror(errno));
		return;
	}
	for (const char *at = text; (at = strstr(at, "self."));) {
		size_t n = 0;

		for (at += 5; is_word(at[n]);)
			n++;
		if (n < 6 || n >= sizeof(name) || strncmp(at + n - 5, "_comm", 5))
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)n, at);
		snprintf(spaced, sizeof(spaced), " %s ", name);
		if (!attribute_known((enum engine_id)(s->engine - engines), name) && !strstr(unknown, spaced))
			snprintf(unknown + strlen(unknown), sizeof(unknown) - strlen(unknown), "%s ", name);
	}
	free(text);
	if (unknown[1])
		finding_add(f, FINDING_WARN, "engine",
		    "look there whether they stand before NCCL; a newer Shunt may know them",
		    "%s communicates by what this table does not know:%.*s", path, (int)strlen(unknown) - 1, unknown);
}

static const struct engine *engine_of(const char *name)
{
	for (size_t i = 0; i < COUNT(engines); i++)
		if (!strcmp(engines[i].name, name))
			return &engines[i];
	return NULL;
}

bool doctor_is_engine(const char *name)
{
	return engine_of(name);
}

void doctor_engine(struct findings *f, const char *name)
{
	struct search *s = calloc(1, sizeof(*s));
	const struct engine *e = engine_of(name);
	char version_text[32];
	unsigned version;

	if (!s || !e) {
		f->failed = true;
		free(s);
		return;
	}
	s->engine = e;
	doctor_packages_each(search_dir, s);
	if (!*s->dir) {
		finding_add(f, FINDING_ERROR, "engine", "activate its environment, or put its python3 first in PATH",
		    "there is no %s beside the Python on the PATH", e->title);
		free(s);
		return;
	}
	version = version_read(s->metadata, version_text);
	version_report(f, s, version_text, version);
	paths_report(f, s, version);
	if (*e->communicators)
		communicators_report(f, s);
	for (size_t i = 0; i < COUNT(notes); i++)
		if (&engines[notes[i].engine] == e && file_has(s, notes[i].file, notes[i].marker))
			finding_add(f, FINDING_INFO, "engine", notes[i].advice, "%s", notes[i].text);
	if (*e->start)
		finding_add(f, FINDING_INFO, "engine",
		    "shunt bench allreduce -b 8K -e 64M --graph, then the engine's own benchmark with and without the "
		    "switches",
		    "which of them is faster was not measured on this machine");
	free(s);
}
