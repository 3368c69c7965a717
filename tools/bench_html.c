/* SPDX-License-Identifier: MIT */
/*
 * shunt bench report: what runs wrote with --json, as one HTML file that needs no other: for each collective, type, operator and
 * way a chart of times and one of bandwidths, every library a line, and the numbers below. Runs of one kind share a chart, and a line if they measured
 * one library at different sizes.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "chart.h"

enum { MAX_LIMITS = 16, MAX_SERIES = CHART_MAX_LINES - 1 };

static const char html_help[] =
	"usage: shunt bench report FILE.json... -o FILE.html [options]\n\n"
	"Makes one HTML file of what shunt bench has written with --json: charts of times and bandwidths over sizes, both\n"
	"logarithmic, every library a line, and the numbers. It refers to nothing outside of itself.\n\n"
	"  -o, --output FILE    the HTML file\n"
	"  --limit [COLL:]GB/S  what the fabric gives, as a line; of one collective or of all that have none of their own\n"
	"  --png DIR            every chart as a PNG file too (needs libcairo.so.2)\n"
	"  --title TEXT         title of the page\n\n"
	"Exit status: 0; 1 after an error; 2 for a wrong option.\n";

struct series {
	char name[96];
	int file;
	size_t lib;                  /* in the file's list */
	bool gemm;                   /* its times beside multiplications */
	struct chart_point *us, *busbw;
	json_t **cells;              /* borrowed */
	size_t n;
};

/* What shares a chart. */
struct panel {
	char key[256];               /* its title, and what makes it one */
	const struct bench_coll *coll; /* NULL: none that is known */
	int nranks;
	bool host;
	struct series series[MAX_SERIES];
	int nseries;
};

struct limit {
	char coll[32];               /* "": all */
	double gbps;
};

struct report {
	const char *output, *png, *title;
	struct limit limits[MAX_LIMITS];
	int nlimits;
	json_t **files;
	const char *const *names;
	int nfiles;
	struct panel *panels;
	int npanels;
};

/* ---- reading ---- */

static const char *string_of(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static double number_of(json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

static void key_make(json_t *run, json_t *row, char key[256])
{
	int n = snprintf(key, 256, "%s %s", string_of(run, "collective"), string_of(row, "dtype"));
	const struct bench_coll *c = bench_coll_find(string_of(run, "collective"));

	if (c && c->reduces)
		n += snprintf(key + n, 256 - (size_t)n, " %s", string_of(row, "op"));
	n += snprintf(key + n, 256 - (size_t)n, ", %.0f ranks, %s, %s", number_of(run, "ranks"), string_of(row, "mode"),
		!strcmp(string_of(row, "place"), "in") ? "in place" : "out of place");
	if (number_of(run, "group") > 1)
		n += snprintf(key + n, 256 - (size_t)n, ", groups of %.0f", number_of(run, "group"));
	if (number_of(run, "skew_us") > 0)
		n += snprintf(key + n, 256 - (size_t)n, ", skew to %.0f us", number_of(run, "skew_us"));
	if (number_of(run, "rotate_bytes") > 0)
		n += snprintf(key + n, 256 - (size_t)n, ", rotating through %.0f MB", number_of(run, "rotate_bytes") / (1 << 20));
	if (json_is_true(json_object_get(run, "host")))
		n += snprintf(key + n, 256 - (size_t)n, ", host");
	snprintf(key + n, 256 - (size_t)n, " (%.60s)", string_of(run, "device_name"));
}

static struct panel *panel_find(struct report *r, json_t *run, json_t *row)
{
	struct panel *panels, *p;
	char key[256];

	key_make(run, row, key);
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
	p->nranks = (int)number_of(run, "ranks");
	p->host = json_is_true(json_object_get(run, "host"));
	p->coll = bench_coll_find(string_of(run, "collective"));
	return p;
}

static struct series *series_find(struct panel *p, int file, size_t lib, bool gemm)
{
	for (int i = 0; i < p->nseries; i++)
		if (p->series[i].file == file && p->series[i].lib == lib && p->series[i].gemm == gemm)
			return &p->series[i];
	if (p->nseries == MAX_SERIES)
		return NULL;
	p->series[p->nseries].file = file;
	p->series[p->nseries].lib = lib;
	p->series[p->nseries].gemm = gemm;
	return &p->series[p->nseries++];
}

static const char *label_of(const struct report *r, const struct series *s)
{
	return string_of(json_array_get(json_object_get(r->files[s->file], "libraries"), s->lib), "label");
}

/* Lines of one chart that have one label get the file's name or the place in it beside that. */
static void series_name(const struct report *r, struct panel *p)
{
	for (int i = 0; i < p->nseries; i++) {
		struct series *s = &p->series[i];
		const char *slash = strrchr(r->names[s->file], '/');
		bool other_file = false, other_place = false;
		int n;

		for (int k = 0; k < p->nseries; k++)
			if (k != i && p->series[k].gemm == s->gemm && !strcmp(label_of(r, s), label_of(r, &p->series[k])))
				*(p->series[k].file == s->file ? &other_place : &other_file) = true;
		n = snprintf(s->name, sizeof(s->name), other_file ? "%.30s (%.40s)" : "%.30s", label_of(r, s),
			slash ? slash + 1 : r->names[s->file]);
		if (other_place)
			n += snprintf(s->name + n, sizeof(s->name) - (size_t)n, " %c", (char)('A' + s->lib));
		if (s->gemm)
			snprintf(s->name + n, sizeof(s->name) - (size_t)n, " beside a GEMM");
	}
}

/* The time of a series at a size; 0: it has none. */
static double time_at(const struct series *s, double bytes)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->us[i].x == bytes)
			return s->us[i].y;
	return 0;
}

/* What a line draws of a cell: its values, or those beside multiplications. */
static json_t *values_of(json_t *cell, bool gemm)
{
	return gemm ? json_object_get(cell, "gemm") : cell;
}

static int point_add(struct series *s, double bytes, json_t *cell)
{
	json_t *values = values_of(cell, s->gemm);
	size_t n = s->n + 1, at = s->n;
	struct chart_point *us = realloc(s->us, n * sizeof(*us)), *bw;
	json_t **cells;

	if (!us)
		return -ENOMEM;
	s->us = us;
	bw = realloc(s->busbw, n * sizeof(*bw));
	if (!bw)
		return -ENOMEM;
	s->busbw = bw;
	cells = realloc(s->cells, n * sizeof(*cells));
	if (!cells)
		return -ENOMEM;
	s->cells = cells;
	/* By size; of runs of the same size and name the last one counts. */
	while (at && us[at - 1].x > bytes)
		at--;
	if (at && us[at - 1].x == bytes) {
		at--;
	} else {
		memmove(us + at + 1, us + at, (s->n - at) * sizeof(*us));
		memmove(bw + at + 1, bw + at, (s->n - at) * sizeof(*bw));
		memmove(cells + at + 1, cells + at, (s->n - at) * sizeof(json_t *));
		s->n = n;
	}
	us[at] = (struct chart_point){ bytes, number_of(values, "time_us") };
	bw[at] = (struct chart_point){ bytes, number_of(values, "busbw") };
	cells[at] = cell;
	return 0;
}

static int row_add(struct report *r, int file, json_t *row)
{
	struct panel *p = panel_find(r, r->files[file], row);
	json_t *cell;
	size_t i;

	if (!p)
		return -ENOMEM;
	json_array_foreach(json_object_get(row, "libraries"), i, cell)
		for (int gemm = 0; gemm < 2; gemm++) {
			struct series *s;
			int err = 0;

			/* A logarithm has no place for nothing. */
			if (number_of(row, "bytes") <= 0 || number_of(values_of(cell, gemm), "time_us") <= 0)
				continue;
			s = series_find(p, file, i, gemm);
			if (!s)
				tool_error("%s: more than %d lines in one chart (%s)", r->names[file], MAX_SERIES, p->key);
			err = s ? point_add(s, number_of(row, "bytes"), cell) : -ENOSPC;
			if (err)
				return err;
		}
	return 0;
}

/* Of series in two files: did they measure the same thing, at no size both? */
static bool continues(const struct report *r, const struct series *a, const struct series *b)
{
	json_t *x = json_array_get(json_object_get(r->files[a->file], "libraries"), a->lib);
	json_t *y = json_array_get(json_object_get(r->files[b->file], "libraries"), b->lib);

	if (a->file == b->file || a->lib != b->lib || a->gemm != b->gemm || !json_equal(x, y))
		return false;
	for (size_t i = 0; i < b->n; i++)
		if (time_at(a, b->us[i].x) > 0)
			return false;
	return true;
}

static void series_free(struct series *s)
{
	free(s->us);
	free(s->busbw);
	free(s->cells);
}

/* Small and large sizes are often measured in two runs, with more calls for the small ones. */
static int series_join(const struct report *r, struct panel *p)
{
	for (int i = 0; i < p->nseries; i++)
		for (int k = i + 1; k < p->nseries; k++) {
			struct series *a = &p->series[i], *b = &p->series[k];
			int err = 0;

			if (!continues(r, a, b))
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

static int file_read(struct report *r, int file)
{
	json_error_t error;
	json_t *rows;

	r->files[file] = json_load_file(r->names[file], 0, &error);
	if (!r->files[file]) {
		tool_error("%s, line %d: %s", r->names[file], error.line, error.text);
		return -EINVAL;
	}
	rows = json_object_get(r->files[file], "results");
	if (!json_is_array(rows) || !*string_of(r->files[file], "collective")) {
		tool_error("%s is not what shunt bench --json writes", r->names[file]);
		return -EINVAL;
	}
	return 0;
}

/* ---- writing ---- */

static double limit_of(const struct report *r, const struct panel *p)
{
	double all = 0;

	for (int i = 0; i < r->nlimits; i++) {
		if (!*r->limits[i].coll)
			all = r->limits[i].gbps;
		else if (p->coll && !strcmp(r->limits[i].coll, p->coll->name))
			return r->limits[i].gbps;
	}
	return all;
}

/* Of what a panel has, its times or its bandwidths. limit: room for the two ends of that line. */
static void chart_make(const struct report *r, const struct panel *p, bool times, struct chart *c, struct chart_point limit[2])
{
	double gbps = p->host ? 0 : limit_of(r, p), factor = p->coll ? bench_coll_bus_factor(p->coll, p->nranks) : 1, ends[2] = {INFINITY, 0};

	*c = (struct chart){.title = times ? p->host ? "host time of a call" : "time of a call" : "bus bandwidth",
		.x_name = "bytes",
		.y_name = times ? "us" : "GB/s",
		.legend_below = !times,
		.x_bytes = true};
	for (int i = 0; i < p->nseries; i++) {
		const struct series *s = &p->series[i];

		if (!s->n)
			continue;
		c->lines[c->nlines++] = (struct chart_line){.name = s->name, .points = times ? s->us : s->busbw, .n = s->n};
		ends[0] = fmin(ends[0], s->us[0].x);
		ends[1] = fmax(ends[1], s->us[s->n - 1].x);
	}
	if (gbps <= 0 || factor <= 0 || !c->nlines)
		return;
	for (int i = 0; i < 2; i++)
		limit[i] = (struct chart_point){ends[i], times ? ends[i] * factor / gbps / 1e3 : gbps};
	c->lines[c->nlines++] = (struct chart_line){.name = "limit of the fabric", .limit = true, .points = limit, .n = 2};
}

/*
 * Geometric mean over sizes of the time of series k over that of the first one; k < 0: of the fastest of the others at each size.
 * *n_p: of how many sizes. What ran beside multiplications is not set against what ran alone.
 */
static double mean_of(const struct panel *p, int k, int *n_p)
{
	const struct series *a = &p->series[0];
	double sum = 0;

	*n_p = 0;
	for (size_t i = 0; i < a->n; i++) {
		double best = INFINITY;

		for (int j = 1; j < p->nseries; j++) {
			double us = time_at(&p->series[j], a->us[i].x);

			if ((k < 0 || j == k) && us > 0 && p->series[j].gemm == a->gemm)
				best = fmin(best, us);
		}
		if (isinf(best))
			continue;
		sum += log(best / a->us[i].y);
		++*n_p;
	}
	return *n_p ? exp(sum / *n_p) : 0;
}

static void mean_write(const struct panel *p, FILE *out)
{
	int others = 0;

	for (int k = 1; k <= p->nseries; k++) {
		bool best = k == p->nseries;
		int n;
		double mean = mean_of(p, best ? -1 : k, &n);

		if (!n || (best && others < 2))
			continue;
		others++;
		fputs("<p>Time of ", out);
		chart_escape(best ? "the fastest of the others" : p->series[k].name, out);
		fputs(" over that of ", out);
		chart_escape(p->series[0].name, out);
		fprintf(out, ", geometric mean of %d sizes: <b>%.3f</b></p>\n", n, mean);
	}
}

/* All means at a glance, where there is more than one library. */
static void summary_write(const struct report *r, FILE *out)
{
	bool any = false;

	for (int i = 0; i < r->npanels; i++) {
		const struct panel *p = &r->panels[i];
		int n;
		double best = mean_of(p, -1, &n);

		if (!n)
			continue;
		if (!any)
			fputs("<h2>How much longer the others take</h2>\n<table><tr><th>measured</th><th>first library</th><th>the others, geometric "
			      "means over sizes</th><th>the fastest of them at each size</th></tr>\n", out);
		any = true;
		fputs("<tr><td>", out);
		chart_escape(p->key, out);
		fputs("</td><td>", out);
		chart_escape(p->series[0].name, out);
		fputs("</td><td>", out);
		for (int k = 1, some = 0; k < p->nseries; k++) {
			int sizes;
			double mean = mean_of(p, k, &sizes);

			if (!sizes)
				continue;
			fputs(some++ ? ", " : "", out);
			chart_escape(p->series[k].name, out);
			fprintf(out, " %.3f", mean);
		}
		fprintf(out, "</td><td><b>%.3f</b></td></tr>\n", best);
	}
	if (any)
		fputs("</table>\n", out);
}

static void path_write(const struct series *s, json_t *cell, FILE *out)
{
	json_t *gemm = json_object_get(cell, "gemm");

	if (s->gemm)
		fprintf(out, "GEMM at %.0f of %.0f TFLOP/s", number_of(gemm, "with_tflops"), number_of(gemm, "alone_tflops"));
	else
		chart_escape(string_of(cell, "path"), out);
}

static void table_write(const struct panel *p, FILE *out)
{
	fputs("<details><summary>numbers</summary><table><tr><th>bytes</th>", out);
	for (int i = 0; i < p->nseries; i++) {
		fputs("<th>", out);
		chart_escape(p->series[i].name, out);
		fputs(p->host ? "<br>us</th><th>p99</th><th>path</th>" : "<br>us</th><th>p99</th><th>GB/s</th><th>path</th>", out);
	}
	fputs("</tr>\n", out);
	/* The sizes of all of them, in order. */
	for (double last = 0;;) {
		double next = INFINITY;
		char size[24];

		for (int i = 0; i < p->nseries; i++)
			for (size_t k = 0; k < p->series[i].n; k++)
				if (p->series[i].us[k].x > last)
					next = fmin(next, p->series[i].us[k].x);
		if (isinf(next))
			break;
		fprintf(out, "<tr><td>%s</td>", tool_format_size((uint64_t)next, size));
		for (int i = 0; i < p->nseries; i++) {
			const struct series *s = &p->series[i];
			size_t k = 0;

			while (k < s->n && s->us[k].x != next)
				k++;
			if (k == s->n) {
				fputs(p->host ? "<td></td><td></td><td></td>" : "<td></td><td></td><td></td><td></td>", out);
				continue;
			}
			fprintf(out, "<td>%.4g</td>", s->us[k].y);
			fprintf(out, s->gemm ? "<td></td>" : "<td>%.4g</td>", number_of(s->cells[k], "p99_us"));
			if (!p->host)
				fprintf(out, "<td>%.4g</td>", s->busbw[k].y);
			fputs("<td>", out);
			path_write(s, s->cells[k], out);
			fputs("</td>", out);
		}
		fputs("</tr>\n", out);
		last = next;
	}
	fputs("</table></details>\n", out);
}

static int png_write(const struct report *r, int panel, bool times, const struct chart *c)
{
	char path[PATH_MAX], name[256];
	struct chart titled = *c;
	int err;

	snprintf(name, sizeof(name), "%.200s: %s", r->panels[panel].key, c->title);
	titled.title = name;
	snprintf(path, sizeof(path), "%s/%02d-%s.png", r->png, panel + 1, times ? "time" : "bandwidth");
	err = chart_png(&titled, path);
	if (err == -ENOSYS)
		tool_error("--png: there is no libcairo.so.2, which draws PNG files: install it, or leave --png out");
	else if (err)
		tool_error("cannot write %s: %s", path, strerror(-err));
	return err;
}

static int panel_write(const struct report *r, int panel, FILE *out)
{
	const struct panel *p = &r->panels[panel];
	struct chart_point limit[2];
	int err = 0;

	fputs("<section><h2>", out);
	chart_escape(p->key, out);
	fputs("</h2>\n<div class=\"charts\">\n", out);
	for (int times = 1; times >= (p->host ? 1 : 0) && !err; times--) {
		struct chart c;

		chart_make(r, p, times, &c, limit);
		if (!c.nlines)
			continue;
		chart_svg(&c, out);
		if (r->png)
			err = png_write(r, panel, times, &c);
	}
	fputs("</div>\n", out);
	mean_write(p, out);
	table_write(p, out);
	fputs("</section>\n", out);
	return err;
}

static void runs_write(const struct report *r, FILE *out)
{
	fputs("<details open><summary>runs</summary><ul>\n", out);
	for (int i = 0; i < r->nfiles; i++) {
		json_t *run = r->files[i], *lib;
		size_t k;

		fputs("<li>", out);
		chart_escape(r->names[i], out);
		fprintf(out, ": %.0f ranks, ", number_of(run, "ranks"));
		chart_escape(string_of(run, "device_name"), out);
		fprintf(out, ", %.0f rounds of %.0f calls, every result %s", number_of(run, "rounds"), number_of(run, "iters"),
			!json_is_true(json_object_get(run, "checked"))   ? "unchecked"
			: json_integer_value(json_object_get(run, "wrong")) ? "checked, some of them <b>wrong</b>"
									: "checked and right");
		json_array_foreach(json_object_get(run, "libraries"), k, lib) {
			fputs("; ", out);
			chart_escape(string_of(lib, "label"), out);
			fputs(" = ", out);
			chart_escape(string_of(lib, "path"), out);
			if (!strcmp(string_of(lib, "buffers"), bench_memory_names[BENCH_REGISTERED]))
				fputs(", with registered buffers", out);
		}
		if (!strcmp(string_of(run, "device"), "sim"))
			fputs("; <b>on the sim, whose times say nothing about GPUs</b>", out);
		fputs("</li>\n", out);
	}
	fputs("</ul></details>\n", out);
}

/* What --init has measured. */
static void init_write(const struct report *r, int file, FILE *out)
{
	json_t *run = r->files[file], *steps = json_object_get(run, "init"), *step;
	bool memory = strcmp(string_of(run, "device"), "sim");
	size_t i;

	if (!json_array_size(steps))
		return;
	fputs("<section><h2>communicators of ", out);
	fprintf(out, "%.0f ranks (", number_of(run, "ranks"));
	chart_escape(string_of(run, "device_name"), out);
	fprintf(out, "), first call: %.0f bytes of ", number_of(run, "first_call_bytes"));
	chart_escape(string_of(run, "collective"), out);
	fprintf(out, ", %.0f splits</h2>\n<table><tr><th>library</th><th>step</th><th>ms</th><th>in the first round</th><th>MiB</th>"
		"<th>in the first round</th></tr>\n", number_of(run, "comms"));
	json_array_foreach(steps, i, step) {
		fputs("<tr><td>", out);
		chart_escape(string_of(step, "library"), out);
		fputs("</td><td>", out);
		chart_escape(string_of(step, "step"), out);
		fprintf(out, "</td><td>%.3f</td><td>%.3f</td>", number_of(step, "time_us") / 1e3,
			json_number_value(json_array_get(json_object_get(step, "rounds_us"), 0)) / 1e3);
		fprintf(out, memory ? "<td>%.1f</td><td>%.1f</td></tr>\n" : "<td></td><td></td></tr>\n",
		    number_of(step, "memory_bytes") / (1 << 20),
		    json_number_value(json_array_get(json_object_get(step, "rounds_bytes"), 0)) / (1 << 20));
	}
	fputs("</table></section>\n", out);
}

static int html_write(const struct report *r)
{
	static const char style[] =
	    "body{font-family:sans-serif;margin:2em;max-width:1320px;color:#222;background:#fff}"
	    ".charts{display:flex;flex-wrap:wrap;gap:24px}svg{max-width:100%;height:auto}h2{font-size:1.1em;margin-top:2em}"
	    "table{border-collapse:collapse;margin-top:.5em}td,th{padding:2px 8px;text-align:right;border-bottom:1px solid #ddd;"
	    "font-size:.85em}summary{cursor:pointer}li{margin:.3em 0}";
	char tmp[PATH_MAX];
	FILE *out;
	int err = 0;

	/* Not in place: a reader never sees half a file. */
	snprintf(tmp, sizeof(tmp), "%s.tmp", r->output);
	out = fopen(tmp, "we");
	if (!out) {
		err = -errno;
		tool_error("cannot write %s: %s", r->output, strerror(-err));
		return err;
	}
	fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
	      "content=\"width=device-width\"><title>",
	    out);
	chart_escape(r->title, out);
	fprintf(out, "</title><style>%s</style></head><body>\n<h1>", style);
	chart_escape(r->title, out);
	fputs("</h1>\n<p>Medians over rounds of the slowest rank. Both axes are logarithmic; point at a dot for its value.</p>\n",
	    out);
	runs_write(r, out);
	summary_write(r, out);
	for (int i = 0; i < r->nfiles; i++)
		init_write(r, i, out);
	for (int i = 0; i < r->npanels && !err; i++)
		err = panel_write(r, i, out);
	fputs("</body></html>\n", out);
	if ((ferror(out) | fclose(out)) && !err) {
		err = -EIO;
		tool_error("cannot write %s: %s", r->output, strerror(errno));
	}
	if (!err && rename(tmp, r->output)) {
		err = -errno;
		tool_error("cannot write %s: %s", r->output, strerror(-err));
	}
	if (err)
		remove(tmp);
	return err;
}

/* ---- options ---- */

static int limit_parse(struct report *r, const char *text)
{
	const char *colon = strchr(text, ':');
	struct limit *l = &r->limits[r->nlimits];
	char *end;

	if (r->nlimits == MAX_LIMITS || (colon && (size_t)(colon - text) >= sizeof(l->coll)))
		return -EINVAL;
	snprintf(l->coll, sizeof(l->coll), "%.*s", colon ? (int)(colon - text) : 0, text);
	l->gbps = strtod(colon ? colon + 1 : text, &end);
	if ((colon && !bench_coll_find(l->coll)) || *end || !(l->gbps > 0) || isinf(l->gbps))
		return -EINVAL;
	r->nlimits++;
	return 0;
}

static void report_finish(struct report *r)
{
	for (int i = 0; i < r->npanels; i++)
		for (int k = 0; k < r->panels[i].nseries; k++)
			series_free(&r->panels[i].series[k]);
	free(r->panels);
	for (int i = 0; i < r->nfiles; i++)
		json_decref(r->files[i]);
	free(r->files);
}

static int report_make(struct report *r)
{
	int err = 0;

	r->files = calloc((size_t)r->nfiles, sizeof(*r->files));
	if (!r->files)
		return -ENOMEM;
	for (int i = 0; !err && i < r->nfiles; i++)
		err = file_read(r, i);
	/* When all are known, so that names can tell them apart. */
	for (int i = 0; !err && i < r->nfiles; i++) {
		json_t *row;
		size_t k;

		json_array_foreach(json_object_get(r->files[i], "results"), k, row)
			if (!err)
				err = row_add(r, i, row);
	}
	for (int i = 0; !err && i < r->npanels; i++) {
		err = series_join(r, &r->panels[i]);
		series_name(r, &r->panels[i]);
	}
	return err ? err : html_write(r);
}

int bench_html_main(int argc, char **argv)
{
	enum { OPT_LIMIT = 256, OPT_PNG, OPT_TITLE };
	static const struct option options[] = {
		{ "output", required_argument, NULL, 'o' },
		{ "limit", required_argument, NULL, OPT_LIMIT },
		{ "png", required_argument, NULL, OPT_PNG },
		{ "title", required_argument, NULL, OPT_TITLE },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct report r = { .title = "shunt bench" };
	int opt, err;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":o:h", options, NULL)) != -1) {
		switch (opt) {
		case 'h':
			fputs(html_help, stdout);
			return TOOL_OK;
		case 'o':
			r.output = optarg;
			break;
		case OPT_LIMIT:
			if (limit_parse(&r, optarg))
				return tool_usage_error("--limit: \"%s\" is not GB/S or COLLECTIVE:GB/S", optarg);
			break;
		case OPT_PNG:
			r.png = optarg;
			break;
		case OPT_TITLE:
			r.title = optarg;
			break;
		default:
			return tool_option_error(opt, argv[optind - 1]);
		}
	}
	if (optind == argc)
		return tool_usage_error("which files? They are those of shunt bench --json");
	if (!r.output)
		return tool_usage_error("--output is missing");
	r.names = (const char *const *)argv + optind;
	r.nfiles = argc - optind;
	err = report_make(&r);
	if (err == -ENOMEM)
		tool_error("out of memory");
	report_finish(&r);
	return err ? TOOL_FAIL : TOOL_OK;
}
