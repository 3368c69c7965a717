/* SPDX-License-Identifier: MIT */
/* Medians, and geometric means of ratios: how much slower the other libraries are than the first one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/bench/bench.h"

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(const double *values, int n, double *p99_p)
{
	double sorted[BENCH_MAX_ROUNDS];

	memcpy(sorted, values, (size_t)n * sizeof(double));
	qsort(sorted, (size_t)n, sizeof(double), compare);
	if (p99_p)
		*p99_p = sorted[(99 * n + 99) / 100 - 1];
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void bench_means_add(struct bench_means *m, int way, const double *us, int nlibs)
{
	double best = INFINITY;

	m->n[way]++;
	for (int i = 1; i < nlibs; i++) {
		best = fmin(best, us[i]);
		m->log_sum[way][i] += log(us[i] / us[0]);
	}
	if (nlibs > 1)
		m->log_sum[way][BENCH_BEST] += log(best / us[0]);
}

double bench_means_get(const struct bench_means *m, int lib, int way)
{
	double sum = 0;
	unsigned n = 0;

	for (int i = 0; i < BENCH_NWAYS; i++)
		if (way < 0 || i == way) {
			sum += m->log_sum[i][lib];
			n += m->n[i];
		}
	return n ? exp(sum / n) : 0;
}
