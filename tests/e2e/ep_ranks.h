/* SPDX-License-Identifier: MIT */
#pragma once
/* Ranks that make the calls of ep_job.h and ep_normal_job.h by libshunt, on one host or over hosts, which are names. */
#include "tests/e2e/ep_normal_job.h"

/*
 * Runs the tests of a program, whose first argument may say over which hosts: "hosts2" or "hosts3" by tcp, "verbs2" or
 * "verbs3" by the libibverbs of tests/fake_ibverbs. The next one is a filter; without it tests named test_long_ are
 * left out. Without alone SHUNT_NCCL_LIB stays as it is, if it is set.
 */
int ep_main(int argc, char **argv, bool alone);
/*
 * As ranks_run(), over these hosts; then, and with SHUNT_MULTI_RANK_GPU on GPUs, ranks are processes. dies: bits of
 * those that must end by SIGKILL.
 */
int ep_ranks_run(enum ranks_how how, int n, unsigned dies, rank_fn body);
int ep_ranks_run_as(struct ranks *ranks);

/* Id k of groups, which rank 0 makes. */
const void *ep_id(const struct rank *r, int k);
/* Bytes of memory for low latency calls; for calls of normal mode of so many blocks, with rings of 2 slots. */
uint64_t ep_job_bytes(const struct ep_job *job, uint32_t flags);
uint64_t ep_normal_bytes(const struct ep_normal_job *job, int blocks);
/* Group k of all ranks that has room for the job, or so many bytes of normal mode. */
int ep_group_make(const struct rank *r, int k, const struct ep_job *job, uint32_t flags, uint64_t timeout_ns,
    struct shunt_ep **group_p);
int ep_normal_group(
    const struct rank *r, int k, uint64_t bytes, uint32_t flags, uint64_t timeout_ns, struct shunt_ep **group_p);

/* Makes the calls; the first two are the routing. Asks for the counts, and checks them, unless `worst`. */
int ep_normal_route(struct ep_normal_run *n, struct shunt_ep *group, const struct rank *r);
int ep_normal_go(struct ep_normal_run *n, struct shunt_ep *group, const struct rank *r);
