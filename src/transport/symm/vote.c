/* SPDX-License-Identifier: MIT */
#include "transport/symm/vote.h"
#include <stdarg.h>
#include <stdio.h>

void shunt_vote_refuse(struct shunt_vote *v, const char *fmt, ...)
{
	va_list ap;

	if (!v->ok)
		return;
	v->ok = 0;
	va_start(ap, fmt);
	vsnprintf(v->reason, sizeof(v->reason), fmt, ap);
	va_end(ap);
}

int shunt_vote_find_refusal(const struct shunt_vote *votes, int n)
{
	for (int r = 0; r < n; r++)
		if (!votes[r].ok)
			return r;
	return -1;
}
