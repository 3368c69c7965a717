/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_BENCH_HTML_CHART_CANVAS_H
#define SHUNT_TOOLS_BENCH_HTML_CHART_CANVAS_H
/* Drawing functions for a chart. Units are those of CHART_WIDTH and CHART_HEIGHT; y grows downwards. */
#include "tools/bench/html/chart.h"

enum chart_anchor { CHART_START, CHART_MIDDLE, CHART_END };

struct chart_canvas;
struct chart_canvas_ops {
	/* width: negative for dashes */
	void (*line)(
	    struct chart_canvas *canvas, double x1, double y1, double x2, double y2, const char *color, double width);
	/* text: shown under the mouse pointer, where the format can do that */
	void (*dot)(struct chart_canvas *canvas, double x, double y, const char *color, const char *text);
	/* y: of the base line */
	void (*text)(struct chart_canvas *canvas, double x, double y, enum chart_anchor anchor, double size,
	    const char *color, const char *text);
	/* Clips later drawing to this rectangle; width 0 ends it. Not nested. */
	void (*clip)(struct chart_canvas *canvas, double x, double y, double width, double height);
};

/* The first member of each kind of canvas. */
struct chart_canvas {
	const struct chart_canvas_ops *ops;
};

void chart_draw(const struct chart *c, struct chart_canvas *canvas);
#endif
