/* SPDX-License-Identifier: MIT */
#pragma once
/* Charts of lines as SVG. The colours of all but the lines are variables of the page: --ink, --dim, --axis, --grid,
 * --faint, --paper. */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CHART_MAX_LINES = 12, CHART_WIDTH = 540, CHART_HEIGHT = 380 };

struct chart_point {
	double x, y;
};

struct chart_line {
	const char *name;
	bool limit; /* dashed and grey, without dots: not a measurement */
	const struct chart_point *points;
	const double *high; /* the spread of each point, up to here; NULL: none */
	size_t n;
};

struct chart {
	const char *title, *x_name, *y_name;
	bool x_bytes; /* sizes: powers of two, "64K" */
	bool ratios;  /* y is linear, unless the values are far apart */
	struct chart_line lines[CHART_MAX_LINES];
	int nlines; /* they have one point at least, all together */
};

/* Appends one <svg> element. */
void chart_svg(const struct chart *c, FILE *out);
