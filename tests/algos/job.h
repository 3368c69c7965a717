/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One collective call of all ranks of a world: fresh random inputs, poisoned outputs, and what must be there
 * afterwards.
 */
#include "tests/algos/world.h"
#include "tools/common/reference.h"

struct job {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop op;
	size_t count;
	int root, skew; /* elements off the 16-byte boundary */
	bool in_place;
	/* The rest is job_prepare's. */
	struct shunt_coll call[8];
	char *base[8][2], *input[8];
	char scalar[8][8];
};

void job_prepare(struct world *w, struct job *j, uint64_t seed);
/*
 * After all ranks' streams have been waited for; fails the test where a result, an input or a byte behind an output is
 * wrong.
 */
void job_check(const struct world *w, const struct job *j);
void job_drop(const struct world *w, struct job *j);
