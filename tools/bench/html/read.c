/* SPDX-License-Identifier: MIT */
/* Reads the files of a report: assigns rows to panels and lines, and names these. */
#include "tools/common/libc.h"
#include "base/json.h"
#include "tools/bench/html/html.h"

const char *html_string(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

double html_number(json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

/* Appends as much as fits: texts and numbers of a file have any length. */
__attribute__((format(printf, 2, 3))) static void key_add(char key[256], const char *format, ...)
{
	size_t n = strlen(key);
	va_list args;

	va_start(args, format);
	vsnprintf(key + n, 256 - n, format, args);
	va_end(args);
}

/* mode: "", or with its comma */
static void panel_key(json_t *run, json_t *row, const char *mode, char key[256])
{
	const struct bench_coll *c = bench_coll_find(html_string(run, "collective"));

	*key = 0;
	key_add(key, "%s %s", html_string(run, "collective"), html_string(row, "dtype"));
	if (c && c->reduces)
		key_add(key, " %s", html_string(row, "op"));
	key_add(key, ", %.0f ranks%.20s, %s", html_number(run, "ranks"), mode,
	    !strcmp(html_string(row, "place"), "in") ? "in place" : "out of place");
	if (html_number(run, "group") > 1)
		key_add(key, ", groups of %.0f", html_number(run, "group"));
	if (html_number(run, "skew_us") > 0)
		key_add(key, ", skew to %.0f us", html_number(run, "skew_us"));
	if (html_number(run, "rotate_bytes") > 0)
		key_add(key, ", rotating through %.0f MB", html_number(run, "rotate_bytes") / (1 << 20));
	if (json_is_true(json_object_get(run, "host")))
		key_add(key, ", host");
	key_add(key, " (%.60s)", html_string(run, "device_name"));
}

static struct html_panel *panel_find(struct html_report *r, json_t *run, json_t *row)
{
	struct html_panel *panels, *p;
	char key[256], mode[32];

	snprintf(mode, sizeof(mode), ", %.16s", html_string(row, "mode"));
	panel_key(run, row, mode, key);
	for (int i = 0; i < r->npanels; i++)
		if (!strcmp(r->panels[i].key, key))
			return &r->panels[i];
	panels = realloc(r->panels, (size_t)(r->npanels + 1) * sizeof(*panels));
	if (!panels)
		return NULL;
	r->panels = panels;
	p = &panels[r->npanels++];
	memset(p, 0, sizeof(*p));
	memcpy(p->key, key, sizeof(key));
	panel_key(run, row, "", p->both);
	p->nranks = (int)html_number(run, "ranks");
	p->host = json_is_true(json_object_get(run, "host"));
	p->coll = bench_coll_find(html_string(run, "collective"));
	return p;
}

static struct html_series *series_find(struct html_panel *p, int file, size_t lib, bool gemm)
{
	for (int i = 0; i < p->nseries; i++)
		if (p->series[i].file == file && p->series[i].lib == lib && p->series[i].gemm == gemm)
			return &p->series[i];
	if (p->nseries == HTML_MAX_SERIES)
		return NULL;
	p->series[p->nseries].file = file;
	p->series[p->nseries].lib = lib;
	p->series[p->nseries].gemm = gemm;
	return &p->series[p->nseries++];
}

static const char *series_label(const struct html_report *r, const struct html_series *s)
{
	return html_string(json_array_get(json_object_get(r->files[s->file], "libraries"), s->lib), "label");
}

const char *html_day(const struct html_report *r, int file, char day[11])
{
	snprintf(day, 11, "%s", html_string(json_object_get(r->files[file], "where"), "time"));
	return day;
}

/* Lines of one chart with the same label get the file's name, with its day where days differ, or the library's letter.
 */
static void series_name(const struct html_report *r, struct html_panel *p)
{
	for (int i = 0; i < p->nseries; i++) {
		struct html_series *s = &p->series[i];
		const char *slash = strrchr(r->names[s->file], '/');
		bool other_file = false, other_place = false, other_day = false;
		char file[64], day[11], day_k[11];
		int n;

		html_day(r, s->file, day);

		for (int k = 0; k < p->nseries; k++)
			if (k != i && p->series[k].gemm == s->gemm &&
			    !strcmp(series_label(r, s), series_label(r, &p->series[k]))) {
				*(p->series[k].file == s->file ? &other_place : &other_file) = true;
				other_day |= strcmp(html_day(r, p->series[k].file, day_k), day) != 0;
			}
		snprintf(file, sizeof(file), other_day && *day ? "%.40s, %s" : "%.40s",
		    slash ? slash + 1 : r->names[s->file], day);
		n = snprintf(s->name, sizeof(s->name), other_file ? "%.30s (%s)" : "%.30s", series_label(r, s), file);
		if (other_place)
			n += snprintf(s->name + n, sizeof(s->name) - (size_t)n, " %c", (char)('A' + s->lib));
		if (s->gemm)
			n += snprintf(s->name + n, sizeof(s->name) - (size_t)n, " beside a GEMM");
		/* The part cut off may have held the difference. */
		for (int k = 0; k < i; k++)
			if (!strcmp(s->name, p->series[k].name)) {
				snprintf(s->name + n, sizeof(s->name) - (size_t)n, " #%d", s->file + 1);
				break;
			}
	}
}

double html_time_at(const struct html_series *s, double bytes)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->us[i].x == bytes)
			return s->us[i].y;
	return 0;
}

/* The values of a cell, or those during multiplications. */
static json_t *cell_values(json_t *cell, bool gemm)
{
	return gemm ? json_object_get(cell, "gemm") : cell;
}

static int point_add(struct html_series *s, double bytes, json_t *cell)
{
	json_t *values = cell_values(cell, s->gemm);
	size_t n = s->n + 1, at = s->n;
	struct chart_point *us = realloc(s->us, n * sizeof(*us)), *bw;
	json_t **cells;
	double *p99;

	if (!us)
		return -ENOMEM;
	s->us = us;
	p99 = realloc(s->p99, n * sizeof(*p99));
	if (!p99)
		return -ENOMEM;
	s->p99 = p99;
	bw = realloc(s->busbw, n * sizeof(*bw));
	if (!bw)
		return -ENOMEM;
	s->busbw = bw;
	cells = realloc(s->cells, n * sizeof(*cells));
	if (!cells)
		return -ENOMEM;
	s->cells = cells;
	/* Sorted by size. Of runs of the same size and name the last one counts. */
	while (at && us[at - 1].x > bytes)
		at--;
	if (at && us[at - 1].x == bytes) {
		at--;
	} else {
		memmove(us + at + 1, us + at, (s->n - at) * sizeof(*us));
		memmove(bw + at + 1, bw + at, (s->n - at) * sizeof(*bw));
		memmove(p99 + at + 1, p99 + at, (s->n - at) * sizeof(*p99));
		memmove(cells + at + 1, cells + at, (s->n - at) * sizeof(json_t *));
		s->n = n;
	}
	us[at] = (struct chart_point){ bytes, html_number(values, "time_us") };
	bw[at] = (struct chart_point){ bytes, html_number(values, "busbw") };
	p99[at] = html_number(values, "p99_us");
	cells[at] = cell;
	return 0;
}

static int row_add(struct html_report *r, int file, json_t *row)
{
	struct html_panel *p = panel_find(r, r->files[file], row);
	json_t *cell;
	size_t i;

	if (!p)
		return -ENOMEM;
	json_array_foreach(json_object_get(row, "libraries"), i, cell) for (int gemm = 0; gemm < 2; gemm++)
	{
		struct html_series *s;
		int err = 0;

		/* A logarithmic axis cannot show 0. */
		if (html_number(row, "bytes") <= 0 || html_number(cell_values(cell, gemm), "time_us") <= 0)
			continue;
		s = series_find(p, file, i, gemm);
		if (!s)
			tool_error("%s: more than %d lines in one chart (%s)", r->names[file], HTML_MAX_SERIES, p->key);
		err = s ? point_add(s, html_number(row, "bytes"), cell) : -ENOSPC;
		if (err)
			return err;
	}
	return 0;
}

/* True: two series of two files measured the same thing, and have no size in common. */
static bool series_continues(const struct html_report *r, const struct html_series *a, const struct html_series *b)
{
	json_t *x = json_array_get(json_object_get(r->files[a->file], "libraries"), a->lib);
	json_t *y = json_array_get(json_object_get(r->files[b->file], "libraries"), b->lib);

	if (a->file == b->file || a->lib != b->lib || a->gemm != b->gemm || !json_equal(x, y))
		return false;
	for (size_t i = 0; i < b->n; i++)
		if (html_time_at(a, b->us[i].x) > 0)
			return false;
	return true;
}

static void series_free(struct html_series *s)
{
	free(s->us);
	free(s->busbw);
	free(s->p99);
	free(s->cells);
}

/* Small and large sizes are often measured in two runs, with more calls for the small ones. */
static int series_join(const struct html_report *r, struct html_panel *p)
{
	for (int i = 0; i < p->nseries; i++)
		for (int k = i + 1; k < p->nseries; k++) {
			struct html_series *a = &p->series[i], *b = &p->series[k];
			int err = 0;

			if (!series_continues(r, a, b))
				continue;
			for (size_t j = 0; j < b->n && !err; j++)
				err = point_add(a, b->us[j].x, b->cells[j]);
			if (err)
				return err;
			series_free(b);
			memmove(b, b + 1, (size_t)(--p->nseries - k) * sizeof(*b));
			k--;
		}
	return 0;
}

static int file_read(struct html_report *r, int file)
{
	char reason[512];
	struct shunt_json_log log = { .source = r->names[file], .reason = reason, .bytes = sizeof(reason) };
	json_t *rows;

	r->files[file] = shunt_json_parse_file(&log, r->names[file], HTML_MAX_FILE);
	if (!r->files[file]) {
		tool_error("%s", reason);
		return -log.err;
	}
	rows = json_object_get(r->files[file], "results");
	if (!json_is_array(rows) || !*html_string(r->files[file], "collective")) {
		tool_error("%s is not what shunt bench --json writes", r->names[file]);
		return -EINVAL;
	}
	return 0;
}

int html_read(struct html_report *r)
{
	size_t shown = 0; /* lines and steps */
	int err = 0;

	r->files = calloc((size_t)r->nfiles, sizeof(*r->files));
	if (!r->files)
		return -ENOMEM;
	for (int i = 0; !err && i < r->nfiles; i++)
		err = file_read(r, i);
	/* After all files are read, so that names can tell the series apart. */
	for (int i = 0; !err && i < r->nfiles; i++) {
		json_t *row;
		size_t k;

		json_array_foreach(json_object_get(r->files[i], "results"), k, row) if (!err) err = row_add(r, i, row);
	}
	for (int i = 0; !err && i < r->npanels; i++) {
		err = series_join(r, &r->panels[i]);
		series_name(r, &r->panels[i]);
		shown += (size_t)r->panels[i].nseries;
	}
	for (int i = 0; !err && i < r->nfiles; i++)
		shown += json_array_size(json_object_get(r->files[i], "init"));
	if (!err && !shown) {
		tool_error("there is nothing to show: no results in %s%s", r->names[0],
		    r->nfiles > 1 ? " and the other files" : "");
		err = -ENODATA;
	}
	return err;
}

void html_free(struct html_report *r)
{
	for (int i = 0; i < r->npanels; i++)
		for (int k = 0; k < r->panels[i].nseries; k++)
			series_free(&r->panels[i].series[k]);
	free(r->panels);
	for (int i = 0; r->files && i < r->nfiles; i++)
		json_decref(r->files[i]);
	free(r->files);
}
