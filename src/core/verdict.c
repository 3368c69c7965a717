/* SPDX-License-Identifier: MIT */
#include "core/verdict.h"
#include <stdarg.h>
#include <stdio.h>

void shunt_verdict_refuse(struct shunt_verdict *v, const char *fmt, ...)
{
	va_list ap;

	if (!v->ok)
		return;
	v->ok = 0;
	va_start(ap, fmt);
	vsnprintf(v->why, sizeof(v->why), fmt, ap);
	va_end(ap);
}

int shunt_verdict_find(const struct shunt_verdict *verdicts, int n)
{
	for (int r = 0; r < n; r++)
		if (!verdicts[r].ok)
			return r;
	return -1;
}
