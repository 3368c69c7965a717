/* SPDX-License-Identifier: MIT */
/* Layout of a chart. A canvas (chart_canvas.h) draws it as SVG or PNG. */
#include <math.h>
#include <string.h>
#include "tools/bench/html/chart_canvas.h"
#include "tools/common/tool.h"

enum {
	LEFT = 64,
	RIGHT = 24,
	TOP = 34,
	BOTTOM = 46,
	LEGEND = 16,
	TITLE = 76 /* letters of a full line */,
	HALF = 38 /* letters in half of the legend */
};

/* One for each line. The first eight differ in greyscale and for the colour-blind, too. */
const char *chart_color(int i)
{
	static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
		"#000000", "#8c564b", "#9467bd", "#8a9a00", "#ff9896" };

	_Static_assert(
	    sizeof(colors) / sizeof(colors[0]) >= CHART_MAX_LINES - 1, "a colour for each line but the limit");

	return colors[(unsigned)i % (sizeof(colors) / sizeof(colors[0]))];
}

struct axis {
	double low, high; /* logarithms, base 10 or 2 */
	double from, to;  /* position in the chart */
	double base;
};

static double axis_place(const struct axis *a, double value)
{
	double at = log(value) / log(a->base);

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

static void value_text(double v, bool bytes, char *text, size_t size)
{
	char number[24];

	if (bytes && v >= 1)
		snprintf(text, size, "%s", tool_format_size((uint64_t)v, number));
	else
		snprintf(text, size, v < 1000 ? "%.3g" : "%.0f", v);
}

/* Lines at powers of the base, as many as fit; for base 10 fainter ones at 2 and 5 between them. */
static void grid_draw(const struct chart *c, struct chart_canvas *canvas, const struct axis *x, const struct axis *y)
{
	int step = (int)ceil((x->high - x->low) * 44 / (x->to - x->from));
	size_t title = strlen(c->title);
	char text[32];

	for (int i = (int)x->low; i <= (int)x->high; i += step ? step : 1) {
		double v = pow(x->base, i), at = axis_place(x, v);

		canvas->ops->line(canvas, at, y->from, at, y->to, "#e3e3e3", 1);
		value_text(v, c->x_bytes, text, sizeof(text));
		canvas->ops->text(canvas, at, y->from + 16, CHART_MIDDLE, 11, "#444444", text);
	}
	for (int i = (int)y->low; i <= (int)y->high; i++)
		for (int part = 1; part <= 5; part += part == 1 ? 1 : 3) {
			double v = part * pow(y->base, i), at = axis_place(y, v);

			if (at < y->to - 0.5)
				break;
			canvas->ops->line(canvas, x->from, at, x->to, at, part == 1 ? "#d0d0d0" : "#f0f0f0", 1);
			if (part > 1 && y->high - y->low > 3)
				continue;
			value_text(v, false, text, sizeof(text));
			canvas->ops->text(canvas, x->from - 6, at + 4, CHART_END, 11, "#444444", text);
		}
	canvas->ops->line(canvas, x->from, y->from, x->to, y->from, "#444444", 1);
	canvas->ops->line(canvas, x->from, y->from, x->from, y->to, "#444444", 1);
	canvas->ops->text(canvas, (x->from + x->to) / 2, CHART_HEIGHT - 8, CHART_MIDDLE, 12, "#222222", c->x_name);
	canvas->ops->text(
	    canvas, 4, 18, CHART_START, title > TITLE ? 13.0 * TITLE / (double)title : 13, "#222222", c->title);
	canvas->ops->text(canvas, CHART_WIDTH - RIGHT, 18, CHART_END, 12, "#222222", c->y_name);
}

static void line_draw(
    const struct chart *c, int i, struct chart_canvas *canvas, const struct axis *x, const struct axis *y)
{
	const struct chart_line *l = &c->lines[i];
	const char *color = l->limit ? "#888888" : chart_color(i);
	double px = 0, py = 0;

	for (size_t k = 0; k < l->n; k++) {
		double at_x = axis_place(x, l->points[k].x), at_y = axis_place(y, l->points[k].y);

		if (k)
			canvas->ops->line(canvas, px, py, at_x, at_y, color, l->limit ? -1.5 : 2);
		px = at_x;
		py = at_y;
	}
	for (size_t k = 0; k < l->n && !l->limit; k++) {
		char size[32], value[32], text[160];

		value_text(l->points[k].x, c->x_bytes, size, sizeof(size));
		value_text(l->points[k].y, false, value, sizeof(value));
		snprintf(text, sizeof(text), "%.60s: %s at %s", l->name, value, size);
		canvas->ops->dot(canvas, axis_place(x, l->points[k].x), axis_place(y, l->points[k].y), color, text);
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
static void legend_draw(const struct chart *c, struct chart_canvas *canvas)
{
	int columns = legend_columns(c);

	for (int i = 0; i < c->nlines; i++) {
		bool limit = c->lines[i].limit;
		const char *color = limit ? "#888888" : chart_color(i);
		int x = LEFT + (CHART_WIDTH - LEFT) / columns * (i % columns), y = TOP + 4 + i / columns * LEGEND;

		canvas->ops->line(canvas, x, y - 4, x + 20, y - 4, color, limit ? -1.5 : 2);
		canvas->ops->text(canvas, x + 26, y, CHART_START, 12, "#222222", c->lines[i].name);
	}
}

void chart_draw(const struct chart *c, struct chart_canvas *canvas)
{
	double low_x = INFINITY, high_x = 0, low_y = INFINITY, high_y = 0;
	int columns = legend_columns(c), top = TOP + (c->nlines + columns - 1) / columns * LEGEND;
	struct axis x, y;

	for (int i = 0; i < c->nlines; i++)
		for (size_t k = 0; k < c->lines[i].n; k++) {
			const struct chart_point *p = &c->lines[i].points[k];

			low_x = fmin(low_x, p->x);
			high_x = fmax(high_x, p->x);
			/* Limits do not extend the chart downwards. */
			low_y = c->lines[i].limit ? low_y : fmin(low_y, p->y);
			high_y = fmax(high_y, p->y);
		}
	x = axis_fit(low_x, high_x, c->x_bytes ? 2 : 10, LEFT, CHART_WIDTH - RIGHT);
	y = axis_fit(low_y, high_y, 10, CHART_HEIGHT - BOTTOM, top);
	grid_draw(c, canvas, &x, &y);
	canvas->ops->clip(canvas, LEFT - 3, top - 3, CHART_WIDTH - LEFT - RIGHT + 6, CHART_HEIGHT - top - BOTTOM + 6);
	for (int i = 0; i < c->nlines; i++)
		line_draw(c, i, canvas, &x, &y);
	canvas->ops->clip(canvas, 0, 0, 0, 0);
	legend_draw(c, canvas);
}
