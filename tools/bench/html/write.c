/* SPDX-License-Identifier: MIT */
/* The page of a report: its runs, and for each panel charts and a table. */
#include <math.h>
#include "tools/common/libc.h"
#include "tools/bench/html/html.h"
#include "tools/common/where.h"

static double panel_limit(const struct html_report *r, const struct html_panel *p)
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

/* A logarithmic axis cannot show a bandwidth of 0, such as that of one rank. */
static bool points_drawable(const struct chart_point *points, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(points[i].y > 0))
			return false;
	return n > 0;
}

/* A chart of a panel's times or bandwidths. limit: memory for the two ends of the limit's line. */
static void chart_make(
    const struct html_report *r, const struct html_panel *p, bool times, struct chart *c, struct chart_point limit[2])
{
	double gbps = p->host ? 0 : panel_limit(r, p), factor = p->coll ? bench_coll_bus_factor(p->coll, p->nranks) : 1,
	       ends[2] = { INFINITY, 0 };

	*c = (struct chart){ .title = times ? p->host ? "host time of a call" : "time of a call" : "bus bandwidth",
		.x_name = "bytes",
		.y_name = times ? "us" : "GB/s",
		.x_bytes = true };
	for (int i = 0; i < p->nseries; i++) {
		const struct html_series *s = &p->series[i];
		const struct chart_point *points = times ? s->us : s->busbw;

		if (!points_drawable(points, s->n))
			continue;
		c->lines[c->nlines++] =
		    (struct chart_line){ .name = s->name, .points = points, .high = times ? s->p99 : NULL, .n = s->n };
		ends[0] = fmin(ends[0], s->us[0].x);
		ends[1] = fmax(ends[1], s->us[s->n - 1].x);
	}
	if (gbps <= 0 || factor <= 0 || !c->nlines)
		return;
	for (int i = 0; i < 2; i++)
		limit[i] = (struct chart_point){ ends[i], times ? ends[i] * factor / gbps / 1e3 : gbps };
	c->lines[c->nlines++] =
	    (struct chart_line){ .name = "limit of the fabric", .limit = true, .points = limit, .n = 2 };
}

/* Times of the other libraries over those of the first one at the same size. */
static int ratios_write(const struct html_panel *p, FILE *out)
{
	struct chart c = { .title = "time over that of the first",
		.x_name = "bytes",
		.y_name = "ratio",
		.x_bytes = true,
		.ratios = true };
	struct chart_point *points[HTML_MAX_SERIES] = { 0 };
	bool any = false;
	int err = 0;

	/* An empty line keeps each library's colour. */
	for (int i = 0; i < p->nseries; i++) {
		const struct html_series *s = &p->series[i];
		struct chart_line *l = &c.lines[c.nlines++];

		points[i] = calloc(s->n + 1, sizeof(**points));
		if (!points[i])
			err = -ENOMEM;
		*l = (struct chart_line){ .name = s->name, .points = points[i] };
		for (size_t k = 0; points[i] && k < s->n; k++) {
			double first = html_time_at(&p->series[0], s->us[k].x);

			if (first <= 0 || (i && s->gemm != p->series[0].gemm))
				continue;
			points[i][l->n++] = (struct chart_point){ s->us[k].x, s->us[k].y / first };
			any |= i > 0;
		}
	}
	if (!err && any)
		chart_svg(&c, out);
	for (int i = 0; i < p->nseries; i++)
		free(points[i]);
	return err;
}

static void path_write(const struct html_series *s, json_t *cell, FILE *out)
{
	json_t *gemm = json_object_get(cell, "gemm");

	if (s->gemm)
		fprintf(out, "GEMM at %.0f of %.0f TFLOP/s", html_number(gemm, "with_tflops"),
		    html_number(gemm, "alone_tflops"));
	else
		tool_escape(html_string(cell, "path"), out);
}

static void table_write(const struct html_panel *p, FILE *out)
{
	fputs("<details><summary>numbers</summary><table><tr><th>bytes</th>", out);
	for (int i = 0; i < p->nseries; i++) {
		fputs("<th>", out);
		tool_escape(p->series[i].name, out);
		fputs(p->host ? "<br>us</th><th>p99</th><th>path</th>" :
		                "<br>us</th><th>p99</th><th>GB/s</th><th>path</th>",
		    out);
	}
	fputs("</tr>\n", out);
	/* All sizes of all series, in order. */
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
			const struct html_series *s = &p->series[i];
			size_t k = 0;

			while (k < s->n && s->us[k].x != next)
				k++;
			if (k == s->n) {
				fputs(p->host ? "<td></td><td></td><td></td>" : "<td></td><td></td><td></td><td></td>",
				    out);
				continue;
			}
			fprintf(out, "<td>%.4g</td>", s->us[k].y);
			fprintf(out, s->gemm ? "<td></td>" : "<td>%.4g</td>", html_number(s->cells[k], "p99_us"));
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

static int panel_write(const struct html_report *r, int panel, FILE *out)
{
	const struct html_panel *p = &r->panels[panel];
	struct chart_point limit[2];
	int err;

	fputs("<section><h2>", out);
	tool_escape(p->key, out);
	fputs("</h2>\n<div class=\"charts\">\n", out);
	for (int times = 1; times >= (p->host ? 1 : 0); times--) {
		struct chart c;

		chart_make(r, p, times, &c, limit);
		if (!c.nlines)
			continue;
		chart_svg(&c, out);
	}
	err = ratios_write(p, out);
	fputs("<div>", out); /* beside the last chart, where there is room */
	html_means_write(p, out);
	fputs("</div></div>\n", out);
	table_write(p, out);
	fputs("</section>\n", out);
	return err;
}

/* Eager and graph side by side. */
static int pairs_write(const struct html_report *r, FILE *out)
{
	int err = 0;

	for (int i = 0; i < r->npanels && !err; i++) {
		bool written = false;

		for (int k = 0; k < i; k++)
			written |= !strcmp(r->panels[k].both, r->panels[i].both);
		if (written)
			continue;
		fputs("<div class=\"pair\">\n", out);
		for (int k = i; k < r->npanels && !err; k++)
			if (!strcmp(r->panels[k].both, r->panels[i].both))
				err = panel_write(r, k, out);
		fputs("</div>\n", out);
	}
	return err;
}

/* Where and when, under the title: a line for each file that says another thing than the one before. */
static void where_write(const struct html_report *r, FILE *out)
{
	char last[500] = "", where[500], day[11], day_0[11];
	bool days = false;

	for (int i = 0; i < r->nfiles; i++) {
		tool_where_show(json_object_get(r->files[i], "where"), where, sizeof(where));
		days |= strcmp(html_day(r, i, day), html_day(r, 0, day_0)) != 0;
		if (!*where || !strcmp(where, last))
			continue;
		memcpy(last, where, sizeof(last));
		fputs("<p class=\"where\">", out);
		tool_escape(where, out);
		fputs("</p>\n", out);
	}
	if (days)
		fputs("<p>The files are of different days: between them, a difference of some hundredths may be the "
		      "machine's.</p>\n",
		    out);
}

static void runs_write(const struct html_report *r, FILE *out)
{
	fputs("<details open><summary>runs</summary><ul>\n", out);
	for (int i = 0; i < r->nfiles; i++) {
		json_t *run = r->files[i], *lib;
		char where[500];
		size_t k;

		fputs("<li>", out);
		tool_escape(r->names[i], out);
		fprintf(out, ": %.0f ranks, ", html_number(run, "ranks"));
		tool_escape(html_string(run, "device_name"), out);
		tool_where_show(json_object_get(run, "where"), where, sizeof(where));
		fputs(*where ? ", " : "", out);
		tool_escape(where, out);
		fprintf(out, ", %.0f rounds of %.0f calls, every result %s", html_number(run, "rounds"),
		    html_number(run, "iters"),
		    !json_is_true(json_object_get(run, "checked"))        ? "unchecked" :
		        json_integer_value(json_object_get(run, "wrong")) ? "checked, some of them <b>wrong</b>" :
		                                                            "checked and right");
		json_array_foreach(json_object_get(run, "libraries"), k, lib)
		{
			fputs("; ", out);
			tool_escape(html_string(lib, "label"), out);
			fputs(" = ", out);
			tool_escape(html_string(lib, "path"), out);
			if (!strcmp(html_string(lib, "buffers"), bench_memory_names[BENCH_REGISTERED]))
				fputs(", with registered buffers", out);
		}
		if (!strcmp(html_string(run, "device"), "sim"))
			fputs("; <b>on the sim, whose times say nothing about GPUs</b>", out);
		fputs("</li>\n", out);
	}
	fputs("</ul></details>\n", out);
}

/* Results of --init. */
static void init_write(const struct html_report *r, int file, FILE *out)
{
	json_t *run = r->files[file], *steps = json_object_get(run, "init"), *step;
	bool memory = strcmp(html_string(run, "device"), "sim");
	size_t i;

	if (!json_array_size(steps))
		return;
	fputs("<section><h2>communicators of ", out);
	fprintf(out, "%.0f ranks (", html_number(run, "ranks"));
	tool_escape(html_string(run, "device_name"), out);
	fprintf(out, "), first call: %.0f bytes of ", html_number(run, "first_call_bytes"));
	tool_escape(html_string(run, "collective"), out);
	fprintf(out,
	    ", %.0f splits</h2>\n<table><tr><th>library</th><th>step</th><th>ms</th><th>in the first "
	    "round</th><th>MiB</th>"
	    "<th>in the first round</th></tr>\n",
	    html_number(run, "comms"));
	json_array_foreach(steps, i, step)
	{
		fputs("<tr><td>", out);
		tool_escape(html_string(step, "library"), out);
		fputs("</td><td>", out);
		tool_escape(html_string(step, "step"), out);
		fprintf(out, "</td><td>%.3f</td><td>%.3f</td>", html_number(step, "time_us") / 1e3,
		    json_number_value(json_array_get(json_object_get(step, "rounds_us"), 0)) / 1e3);
		fprintf(out, memory ? "<td>%.1f</td><td>%.1f</td></tr>\n" : "<td></td><td></td></tr>\n",
		    html_number(step, "memory_bytes") / (1 << 20),
		    json_number_value(json_array_get(json_object_get(step, "rounds_bytes"), 0)) / (1 << 20));
	}
	fputs("</table></section>\n", out);
}

int html_write(const struct html_report *r)
{
	static const char style[] =
	    ":root{color-scheme:light "
	    "dark;--ink:#222;--dim:#444;--axis:#d0d0d0;--grid:#e3e3e3;--faint:#f0f0f0;--paper:#fff}"
	    "@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--dim:#b4b4b4;--axis:#505050;--grid:#3c3c3c;"
	    "--faint:#303030;--paper:#1c1c1e}}"
	    "body{font-family:sans-serif;margin:2em;color:var(--ink);background:var(--paper)}"
	    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:0 24px}"
	    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));gap:12px}"
	    ".charts>svg{width:100%;height:auto;max-width:720px}.charts>div:empty{display:none}section{min-width:0}"
	    "details{overflow-x:auto}"
	    "h2{font-size:1.1em;margin-top:2em}.where{color:var(--dim);margin:.2em 0}"
	    "table{border-collapse:collapse;margin-top:.5em}td,th{padding:2px 8px;text-align:right;border-bottom:1px "
	    "solid "
	    "var(--axis);font-size:.85em}td:first-child,th:first-child{text-align:left}summary{cursor:pointer}li{"
	    "margin:.3em 0}";
	struct tool_file f;
	FILE *out;
	int err = tool_file_begin(&f, r->output);

	if (err)
		return err;
	out = f.out;
	fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
	      "content=\"width=device-width\"><title>",
	    out);
	tool_escape(r->title, out);
	fprintf(out, "</title><style>%s</style></head><body>\n<h1>", style);
	tool_escape(r->title, out);
	fputs("</h1>\n", out);
	where_write(r, out);
	fputs(
	    "<p>Medians over rounds of the slowest rank; the line above a time ends at its p99. The axes of times and "
	    "bandwidths are logarithmic; point at a dot for its value.</p>\n",
	    out);
	runs_write(r, out);
	html_summary_write(r, out);
	for (int i = 0; i < r->nfiles; i++)
		init_write(r, i, out);
	err = pairs_write(r, out);
	fputs("</body></html>\n", out);
	return tool_file_end(&f, err);
}
