/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_SYMM_VOTE_H
#define SHUNT_TRANSPORT_SYMM_VOTE_H
/*
 * What a rank says in a round: that it can go on, or why it cannot. Every rank gets the same table of votes, so all
 * come to the same outcome.
 */
#include <stdint.h>

struct shunt_vote {
	int32_t ok;
	char reason[96]; /* if not */
};

/* The first reason is the one that stays. */
void shunt_vote_refuse(struct shunt_vote *vote, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The first of n that is not ok; -1: all are. */
int shunt_vote_find_refusal(const struct shunt_vote *votes, int n);
#endif
