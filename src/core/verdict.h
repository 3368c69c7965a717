/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_CORE_VERDICT_H
#define SHUNT_CORE_VERDICT_H
/*
 * What a rank says in a round: that it can go on, or why it cannot. Every rank gets the same table of verdicts, so all
 * come to the same outcome.
 */
#include <stdint.h>

struct shunt_verdict {
	int32_t ok;
	char why[96]; /* if not */
};

/* The first reason is the one that stays. */
void shunt_verdict_refuse(struct shunt_verdict *verdict, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The first of n that is not ok; -1: all are. */
int shunt_verdict_find(const struct shunt_verdict *verdicts, int n);
#endif
