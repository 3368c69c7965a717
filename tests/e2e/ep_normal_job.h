/* SPDX-License-Identifier: MIT */
#pragma once
/* Calls of normal mode with random inputs, and what must come of them (ep_job.h). */
#include "tests/e2e/ep_job.h"

struct ep_normal_job {
	struct ep_job job; /* hidden, dtype: of the combine; max_tokens, form and masked are not used */
	int row_bytes, nscales;
	bool columns;        /* scales lie by column */
	int alignment, topk; /* of the dispatch: 0 or job.topk */
	int dispatch_blocks, combine_blocks, biases;
	int room;   /* rows behind those that come; less than 0: so many too few */
	bool worst; /* the host does not ask for counts */
};

struct ep_normal_run {
	struct ep_run run; /* inputs, and memory */
	struct ep_normal_job job;
	int rows; /* that come */
	uint64_t ticket;
	struct shunt_ep_layout layout;
	struct shunt_ep_notify notify;
	struct shunt_ep_dispatch dispatch;
	struct shunt_ep_combine combine;
};

void ep_normal_prepare(struct ep_normal_run *n, const struct ep_normal_job *job, const struct rank *r);
/* After the stream: of all that was called. */
int ep_normal_check(struct ep_normal_run *n, const struct rank *r);
void ep_normal_finish(struct ep_normal_run *n);
/* How often tokens of all ranks name an expert. */
int ep_normal_tokens(const struct ep_normal_run *n, int expert);
