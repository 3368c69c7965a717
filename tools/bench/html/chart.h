/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_BENCH_HTML_CHART_H
#define SHUNT_TOOLS_BENCH_HTML_CHART_H
/* Charts of lines on two logarithmic axes, as SVG. */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CHART_MAX_LINES = 12, CHART_WIDTH = 620, CHART_HEIGHT = 400 };

struct chart_point {
	double x, y;
};

struct chart_line {
	const char *name;
	bool limit; /* dashed and grey, without dots: not a measurement */
	const struct chart_point *points;
	size_t n;
};

struct chart {
	const char *title, *x_name, *y_name;
	bool x_bytes; /* sizes: powers of two, "64K" */
	struct chart_line lines[CHART_MAX_LINES];
	int nlines; /* they have one point at least, all together */
};

/* Appends one <svg> element. */
void chart_svg(const struct chart *c, FILE *out);
#endif
