/* SPDX-License-Identifier: MIT */
/* Means of a report: how much slower the other libraries are than the first one. */
#include <math.h>
#include "tools/bench/html/html.h"

/*
 * Geometric mean over sizes of the time of series k over that of the first one; k < 0: of the fastest of the others at
 * each size. *n_p: number of sizes. Times during multiplications are not compared with times without.
 */
static double series_mean(const struct html_panel *p, int k, int *n_p)
{
	const struct html_series *a = &p->series[0];
	double sum = 0;

	*n_p = 0;
	for (size_t i = 0; i < a->n; i++) {
		double best = INFINITY;

		for (int j = 1; j < p->nseries; j++) {
			double us = html_time_at(&p->series[j], a->us[i].x);

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

void html_means_write(const struct html_panel *p, FILE *out)
{
	int others = 0;

	for (int k = 1; k <= p->nseries; k++) {
		bool best = k == p->nseries;
		int n;
		double mean = series_mean(p, best ? -1 : k, &n);

		if (!n || (best && others < 2))
			continue;
		others++;
		fputs("<p>Time of ", out);
		tool_escape(best ? "the fastest of the others" : p->series[k].name, out);
		fputs(" over that of ", out);
		tool_escape(p->series[0].name, out);
		fprintf(out, ", geometric mean of %d sizes: <b>%.3f</b></p>\n", n, mean);
	}
}

void html_summary_write(const struct html_report *r, FILE *out)
{
	bool any = false;

	for (int i = 0; i < r->npanels; i++) {
		const struct html_panel *p = &r->panels[i];
		int n;
		double best = series_mean(p, -1, &n);

		if (!n)
			continue;
		if (!any)
			fputs("<h2>How much longer the others take</h2>\n<table><tr><th>measured</th><th>first "
			      "library</th><th>the others, geometric "
			      "means over sizes</th><th>the fastest of them at each size</th></tr>\n",
			    out);
		any = true;
		fputs("<tr><td>", out);
		tool_escape(p->key, out);
		fputs("</td><td>", out);
		tool_escape(p->series[0].name, out);
		fputs("</td><td>", out);
		for (int k = 1, some = 0; k < p->nseries; k++) {
			int sizes;
			double mean = series_mean(p, k, &sizes);

			if (!sizes)
				continue;
			fputs(some++ ? ", " : "", out);
			tool_escape(p->series[k].name, out);
			fprintf(out, " %.3f", mean);
		}
		fprintf(out, "</td><td><b>%.3f</b></td></tr>\n", best);
	}
	if (any)
		fputs("</table>\n", out);
}
