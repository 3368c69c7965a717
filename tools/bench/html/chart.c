/* SPDX-License-Identifier: MIT */
/* Layout of a chart, as SVG. Units are those of CHART_WIDTH and CHART_HEIGHT; y grows downwards. */
#include <math.h>
#include <string.h>
#include "tools/bench/html/chart.h"
#include "tools/common/tool.h"

enum {
	LEFT = 64,
	RIGHT = 24,
	TOP = 34,
	BOTTOM = 46,
	LEGEND = 16,
	TITLE = 64 /* letters of a full line */,
	HALF = 32 /* letters in half of the legend */
};

/* One for each line. The first eight differ in greyscale and for the colour-blind, too. */
static const char *chart_color(int i)
{
	static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
		"var(--ink)", "#8c564b", "#9467bd", "#8a9a00", "#ff9896" };

	_Static_assert(
	    sizeof(colors) / sizeof(colors[0]) >= CHART_MAX_LINES - 1, "a colour for each line but the limit");

	return colors[(unsigned)i % (sizeof(colors) / sizeof(colors[0]))];
}

/* ---- SVG's elements ---- */

/* width: negative for dashes */
static void svg_line(FILE *out, struct chart_point from, struct chart_point to, const char *color, double width)
{
	fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\"%s/>\n",
	    from.x, from.y, to.x, to.y, color, fabs(width), width < 0 ? " stroke-dasharray=\"6 4\"" : "");
}

/* text: shown under the mouse pointer */
static void svg_dot(FILE *out, struct chart_point at, const char *color, const char *text)
{
	fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>", at.x, at.y, color);
	tool_escape(text, out);
	fputs("</title></circle>\n", out);
}

struct font {
	enum { START, MIDDLE, END } anchor;
	double size;
	const char *color;
};

/* at: of the base line */
static void svg_text(FILE *out, struct chart_point at, struct font font, const char *text)
{
	static const char *const anchors[] = { "start", "middle", "end" };

	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%.0f\" fill=\"%s\">", at.x, at.y,
	    anchors[font.anchor], font.size, font.color);
	tool_escape(text, out);
	fputs("</text>\n", out);
}

/* Clips what follows to this rectangle, up to </svg>: a nested <svg> element clips to its own. */
static void svg_clip(FILE *out, double x, double y, double width, double height)
{
	fprintf(out, "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" viewBox=\"%.1f %.1f %.1f %.1f\">\n", x,
	    y, width, height, x, y, width, height);
}

/* ---- axes ---- */

struct axis {
	double low, high; /* logarithms, base 10 or 2; or values */
	double from, to;  /* position in the chart */
	double base;      /* 0: linear */
	double step;      /* of a linear axis, between its lines */
};

static double axis_place(const struct axis *a, double value)
{
	double at = a->base > 0 ? log(value) / log(a->base) : value;

	return a->from + (at - a->low) / (a->high - a->low) * (a->to - a->from);
}

static struct axis axis_fit(double low, double high, double base, double from, double to)
{
	/* cppcheck-suppress invalidFunctionArg; a chart has points, and they are above 0 */
	struct axis a = { floor(log(low) / log(base) + 1e-9), ceil(log(high) / log(base) - 1e-9), from, to, base };

	/* A single value is in the middle. */
	if (a.high <= a.low) {
		a.low--;
		a.high++;
	}
	return a;
}

/* Eight lines at most, at round values. */
static struct axis axis_fit_linear(double low, double high, double from, double to)
{
	struct axis a = { .from = from, .to = to, .step = 0.01 };

	for (int i = 0; (high - low) / a.step > 7; i++)
		a.step *= i % 3 == 1 ? 2.5 : 2;
	a.low = floor(low / a.step + 1e-9) * a.step;
	a.high = ceil(high / a.step - 1e-9) * a.step;
	if (a.high <= a.low) {
		a.low -= a.step;
		a.high += a.step;
	}
	return a;
}

static void value_text(double v, bool bytes, char *text, size_t size)
{
	char number[24];

	if (bytes && v >= 1)
		snprintf(text, size, "%s", tool_format_size((uint64_t)v, number));
	else
		snprintf(text, size, v < 1000 ? "%.3g" : "%.0f", v);
}

/* Lines at powers of the base, as many as fit; for base 10 fainter ones at 2 and 5 between them. */
static void grid_draw(const struct chart *c, FILE *out, const struct axis *x, const struct axis *y)
{
	int step = (int)ceil((x->high - x->low) * 44 / (x->to - x->from));
	const struct chart_point corner = { x->from, y->from };
	size_t title = strlen(c->title);
	char text[32];

	for (int i = (int)x->low; i <= (int)x->high; i += step ? step : 1) {
		double v = pow(x->base, i), at = axis_place(x, v);

		svg_line(out, (struct chart_point){ at, y->from }, (struct chart_point){ at, y->to }, "var(--grid)", 1);
		value_text(v, c->x_bytes, text, sizeof(text));
		svg_text(
		    out, (struct chart_point){ at, y->from + 16 }, (struct font){ MIDDLE, 11, "var(--dim)" }, text);
	}
	for (int i = 0; y->base == 0 && y->low + i * y->step < y->high + y->step / 2; i++) {
		double v = y->low + i * y->step, at = axis_place(y, v);

		svg_line(out, (struct chart_point){ x->from, at }, (struct chart_point){ x->to, at }, "var(--axis)", 1);
		value_text(v, false, text, sizeof(text));
		svg_text(
		    out, (struct chart_point){ x->from - 6, at + 4 }, (struct font){ END, 11, "var(--dim)" }, text);
	}
	for (int i = (int)y->low; y->base > 0 && i <= (int)y->high; i++)
		for (int part = 1; part <= 5; part += part == 1 ? 1 : 3) {
			double v = part * pow(y->base, i), at = axis_place(y, v);

			if (at < y->to - 0.5)
				break;
			svg_line(out, (struct chart_point){ x->from, at }, (struct chart_point){ x->to, at },
			    part == 1 ? "var(--axis)" : "var(--faint)", 1);
			if (part > 1 && y->high - y->low > 3)
				continue;
			value_text(v, false, text, sizeof(text));
			svg_text(out, (struct chart_point){ x->from - 6, at + 4 },
			    (struct font){ END, 11, "var(--dim)" }, text);
		}
	svg_line(out, corner, (struct chart_point){ x->to, y->from }, "var(--dim)", 1);
	svg_line(out, corner, (struct chart_point){ x->from, y->to }, "var(--dim)", 1);
	svg_text(out, (struct chart_point){ (x->from + x->to) / 2, CHART_HEIGHT - 8 },
	    (struct font){ MIDDLE, 12, "var(--ink)" }, c->x_name);
	svg_text(out, (struct chart_point){ 4, 18 },
	    (struct font){ START, title > TITLE ? 13.0 * TITLE / (double)title : 13, "var(--ink)" }, c->title);
	svg_text(
	    out, (struct chart_point){ CHART_WIDTH - RIGHT, 18 }, (struct font){ END, 12, "var(--ink)" }, c->y_name);
}

static void line_draw(const struct chart *c, int i, FILE *out, const struct axis *x, const struct axis *y)
{
	const struct chart_line *l = &c->lines[i];
	const char *color = l->limit ? "#888888" : chart_color(i);
	struct chart_point was = { 0 };

	for (size_t k = 0; k < l->n; k++) {
		struct chart_point at = { axis_place(x, l->points[k].x), axis_place(y, l->points[k].y) };

		if (k)
			svg_line(out, was, at, color, l->limit ? -1.5 : 2);
		was = at;
		if (l->high && l->high[k] > l->points[k].y)
			svg_line(out, at, (struct chart_point){ at.x, axis_place(y, l->high[k]) }, color, 1);
	}
	for (size_t k = 0; k < l->n && !l->limit; k++) {
		char size[32], value[32], text[160];

		value_text(l->points[k].x, c->x_bytes, size, sizeof(size));
		value_text(l->points[k].y, false, value, sizeof(value));
		snprintf(text, sizeof(text), "%.60s: %s at %s", l->name, value, size);
		svg_dot(out, (struct chart_point){ axis_place(x, l->points[k].x), axis_place(y, l->points[k].y) },
		    color, text);
	}
}

/* Two columns if the names fit. */
static int legend_columns(const struct chart *c)
{
	for (int i = 0; i < c->nlines; i++)
		if (strlen(c->lines[i].name) > HALF)
			return 1;
	return 2;
}

/* Between the title and the lines; it never hides a line. */
static void legend_draw(const struct chart *c, FILE *out)
{
	int columns = legend_columns(c);

	for (int i = 0; i < c->nlines; i++) {
		bool limit = c->lines[i].limit;
		const char *color = limit ? "#888888" : chart_color(i);
		int x = LEFT + (CHART_WIDTH - LEFT) / columns * (i % columns), y = TOP + 4 + i / columns * LEGEND;

		svg_line(out, (struct chart_point){ x, y - 4 }, (struct chart_point){ x + 20, y - 4 }, color,
		    limit ? -1.5 : 2);
		svg_text(
		    out, (struct chart_point){ x + 26, y }, (struct font){ START, 12, "var(--ink)" }, c->lines[i].name);
	}
}

static void chart_draw(const struct chart *given, FILE *out)
{
	double low_x = INFINITY, high_x = 0, low_y = INFINITY, high_y = 0;
	struct chart c = *given;
	int columns, top;
	struct axis x, y;

	for (int i = 0; i < c.nlines; i++)
		for (size_t k = 0; k < c.lines[i].n; k++) {
			const struct chart_point *p = &c.lines[i].points[k];

			low_x = fmin(low_x, p->x);
			high_x = fmax(high_x, p->x);
			/* Limits do not extend the chart downwards. */
			low_y = c.lines[i].limit ? low_y : fmin(low_y, p->y);
			high_y = fmax(high_y, c.lines[i].high ? fmax(p->y, c.lines[i].high[k]) : p->y);
		}
	/* A limit that is below the chart is not named either. It comes last. */
	if (c.lines[c.nlines - 1].limit && !c.ratios &&
	    fmax(c.lines[c.nlines - 1].points[0].y, c.lines[c.nlines - 1].points[1].y) < pow(10, floor(log10(low_y))))
		c.nlines--;
	columns = legend_columns(&c);
	top = TOP + (c.nlines + columns - 1) / columns * LEGEND;
	x = axis_fit(low_x, high_x, c.x_bytes ? 2 : 10, LEFT, CHART_WIDTH - RIGHT);
	if (c.ratios && high_y < 8 * low_y)
		y = axis_fit_linear(fmin(low_y, 1), fmax(high_y, 1), CHART_HEIGHT - BOTTOM, top);
	else
		y = axis_fit(low_y, high_y, 10, CHART_HEIGHT - BOTTOM, top);
	grid_draw(&c, out, &x, &y);
	svg_clip(out, LEFT - 3, top - 3, CHART_WIDTH - LEFT - RIGHT + 6, CHART_HEIGHT - top - BOTTOM + 6);
	for (int i = 0; i < c.nlines; i++)
		line_draw(&c, i, out, &x, &y);
	fputs("</svg>\n", out);
	legend_draw(&c, out);
}

void chart_svg(const struct chart *c, FILE *out)
{
	fprintf(out, "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"", CHART_WIDTH,
	    CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT);
	tool_escape(c->title, out);
	fputs("\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>\n", out);
	chart_draw(c, out);
	fputs("</svg>\n", out);
}
