/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Vote of a rank in a round: it can go on, or the reason why it cannot. Every rank gets the same table of votes, so all
 * come to the same outcome.
 */
#include <stdint.h>

struct shunt_vote {
	int32_t ok;
	char reason[124]; /* if not ok */
};

/* Sets ok to 0. The first reason stays. */
void shunt_vote_refuse(struct shunt_vote *vote, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Rank of the first of n votes that is not ok; -1: all are ok. */
int shunt_vote_find_refusal(const struct shunt_vote *votes, int n);
