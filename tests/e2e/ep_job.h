/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Expert parallel calls of all ranks with random inputs, and what must come of them. Every rank makes all ranks' inputs
 * from the seed, so that each can tell what it must receive.
 */
#include <stdbool.h>
#include "shunt/ep.h"
#include "tests/e2e/ranks.h"
#include "tools/common/ep_reference.h"

enum { EP_MOST_RANKS = 12 };

/* Where tokens go. */
enum ep_routing {
	EP_ANYWHERE,  /* any expert, -1 and the same expert twice among them */
	EP_TO_ONE,    /* all to expert 0 */
	EP_TO_LAST,   /* all to the last expert */
	EP_NOWHERE,   /* all -1 */
	EP_SAME,      /* a token names one expert topk times */
	EP_TO_RANK_0, /* one rank's experts alone */
	EP_STAY,      /* on their rank, but for the first choice of rank 0, which goes anywhere */
};

struct ep_job {
	int nranks, experts, topk, hidden, max_tokens, form, dtype;
	int tokens[EP_MOST_RANKS];
	enum ep_routing routing;
	uint64_t seed;
	bool odd;        /* rows begin 2 bytes behind a multiple of 16 */
	uint32_t masked; /* ranks that are left out, as bits */
};
extern int ep_hosts; /* over which the ranks are spread in turns; 0: one host */
/* Of them those that have a rank. */
int ep_hosts_of(const struct ep_job *job);

/* Of one rank's calls: inputs of all ranks, in the host's memory, and this rank's memory of the device. */
struct ep_run {
	struct ep_job job;
	int rank;
	struct ep_inputs in;
	int64_t *topk_idx[EP_MOST_RANKS];
	float *topk_weights[EP_MOST_RANKS];
	uint16_t *x[EP_MOST_RANKS];
	struct shunt_ep_ll_dispatch dispatch;
	struct shunt_ep_ll_combine combine;
	void *memory[32];
	int nmemory;
};

/* The job's inputs of all ranks; no memory of the device. */
void ep_run_inputs(struct ep_run *run, const struct ep_job *job, int rank);
/* Memory of the device until ep_run_finish(): poisoned, or a copy of `from`, with poison behind. odd: as in the job. */
void *ep_run_memory(struct ep_run *run, const void *from, size_t bytes, bool odd);
/*
 * Bitwise, of the device's memory; dtype: any NaN is as good as another. Checks what lies behind, too. dev NULL: what a
 * test does not have is not compared.
 */
int ep_compare(const struct rank *r, const char *what, const void *dev, const void *host, size_t n, int dtype);
enum { EP_POISON = 0xa5 };
int ep_run_prepare(struct ep_run *run, const struct ep_job *job, const struct rank *r);
/* Compares what a dispatch has left with what it must leave; 0, or says what is wrong. */
int ep_run_check_dispatch(struct ep_run *run, const struct rank *r);
/* The experts' rows for the combine, which depend on expert, source and token. */
int ep_run_fill_rows(struct ep_run *run, const struct rank *r);
int ep_run_check_combine(struct ep_run *run, const struct rank *r);
void ep_run_finish(struct ep_run *run);
