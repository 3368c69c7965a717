/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_BENCH_HTML_HTML_H
#define SHUNT_TOOLS_BENCH_HTML_HTML_H
/*
 * shunt bench report: what runs wrote with --json, as one HTML file that needs no other. For each collective, type,
 * operator and way it has a panel: a chart of times and one of bandwidths, every library a line, and the numbers below.
 * Runs of one kind share a panel, and a line if they measured one library at different sizes. Functions return 0, or
 * -errno after a message unless it is -ENOMEM.
 */
#include <jansson.h>
#include "tools/bench/bench.h"
#include "tools/bench/html/chart.h"

enum { HTML_MAX_LIMITS = 16, HTML_MAX_SERIES = CHART_MAX_LINES - 1 };

struct html_series {
	char name[96];
	int file;
	size_t lib; /* in the file's list */
	bool gemm;  /* its times beside multiplications */
	struct chart_point *us, *busbw;
	json_t **cells; /* borrowed */
	size_t n;
};

/* What shares a chart. */
struct html_panel {
	char key[256];                 /* its title, and what makes it one */
	const struct bench_coll *coll; /* NULL: none that is known */
	int nranks;
	bool host;
	struct html_series series[HTML_MAX_SERIES];
	int nseries;
};

struct html_limit {
	char coll[32]; /* "": all */
	double gbps;
};

struct html_report {
	const char *output, *png, *title;
	struct html_limit limits[HTML_MAX_LIMITS];
	int nlimits;
	json_t **files;
	const char *const *names;
	int nfiles;
	struct html_panel *panels;
	int npanels;
};

/* ---- bench_html_read.c ---- */

/* Fills files and panels from the files' names. */
int html_read(struct html_report *r);
void html_free(struct html_report *r);
/* Of a JSON object; "" and 0 if there is none. */
const char *html_string(json_t *object, const char *key);
double html_number(json_t *object, const char *key);
/* The time of a series at a size; 0: it has none. */
double html_time_at(const struct html_series *s, double bytes);

/* ---- bench_html_means.c ---- */

/* A panel's means: of each series' times over those of the first one, and of the fastest of the others at each size. */
void html_means_write(const struct html_panel *p, FILE *out);
/* All means at a glance, where there is more than one library. */
void html_summary_write(const struct html_report *r, FILE *out);

/* ---- bench_html_write.c ---- */

int html_write(const struct html_report *r);
#endif
