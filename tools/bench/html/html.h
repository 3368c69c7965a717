/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * shunt bench report: turns the files of --json into one HTML file without external parts. Each collective, type,
 * operator and way has a panel: a chart of times, a chart of bandwidths, with a line for each library, and a table.
 * Runs of one kind share a panel; they share a line if they measured one library at different sizes. Functions return
 * 0, or -errno after a message (none for -ENOMEM).
 */
#include <jansson.h>
#include "tools/bench/bench.h"
#include "tools/bench/html/chart.h"

enum { HTML_MAX_FILE = 256 << 20, HTML_MAX_LIMITS = 16, HTML_MAX_SERIES = CHART_MAX_LINES - 1 };

struct html_series {
	char name[96];
	int file;
	size_t lib; /* in the file's list */
	bool gemm;  /* its times during multiplications */
	struct chart_point *us, *busbw;
	double *p99;    /* us */
	json_t **cells; /* borrowed */
	size_t n;
};

/* Series that share a chart. */
struct html_panel {
	char key[256];                 /* its title, and the key of its series */
	char both[256];                /* the key without the mode: eager and graph stand side by side */
	const struct bench_coll *coll; /* NULL: unknown */
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
	const char *output, *title;
	struct html_limit limits[HTML_MAX_LIMITS];
	int nlimits;
	json_t **files;
	const char *const *names;
	int nfiles;
	struct html_panel *panels;
	int npanels;
};

/* ---- read.c ---- */

/* Fills files and panels from the files' names. */
int html_read(struct html_report *r);
void html_free(struct html_report *r);
/* A member of a JSON object; "" and 0 if it is missing. */
const char *html_string(json_t *object, const char *key);
double html_number(json_t *object, const char *key);
/* "2026-11-26", or "" where the file does not say when it was measured. */
const char *html_day(const struct html_report *r, int file, char day[11]);
/* The time of a series at a size; 0: none. */
double html_time_at(const struct html_series *s, double bytes);

/* ---- means.c ---- */

/*
 * A panel's means: the times of each series, and of the fastest of the others at each size, over those of the first
 * one.
 */
void html_means_write(const struct html_panel *p, FILE *out);
/* All means in one table, if there are several libraries. */
void html_summary_write(const struct html_report *r, FILE *out);

/* ---- write.c ---- */

int html_write(const struct html_report *r);
