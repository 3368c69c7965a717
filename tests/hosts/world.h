/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ranks on several hosts, which are network namespaces (tools/common/netns), or, with `named`, names that SHUNT_HOSTID
 * gives: these need no root, and have no wire. A body runs as in tests/e2e/ranks.h, each rank a process on its host.
 */
#include "tests/e2e/ranks.h"
#include "tools/common/netns/netns.h"

#ifdef __SANITIZE_THREAD__
#define WORLD_TSAN 1
#else
#define WORLD_TSAN 0
#endif

struct world {
	const char *place; /* the host of each rank, a digit each: "0011" has ranks 0 and 1 on the first one */
	bool named;
	bool plain;                      /* ThreadSanitizer leaves it out: another world has the same threads */
	unsigned dies;                   /* bits of ranks that must end by SIGKILL */
	int limit_s;                     /* as in struct ranks */
	const char *env[8][2];           /* set in each rank, or unset where the value is NULL; ends with NULL */
	int odd;                         /* this rank has odd_env, too */
	const char *odd_env[2];          /* NULL: none */
	const struct netns_extra *extra; /* NULL: none */
	bool link_local;                 /* over IPv6, of which the hosts have link-local addresses alone */
	rank_fn body;
	void (*meanwhile)(struct netns *netns); /* in the test's process, before the ranks start; may be NULL */
};

/* Runs it; number of ranks that failed, -EPERM: not `named`, and not root or a kernel without
 * TAPs (said). */
int world_run(const struct world *world);
/* Ranks that there may be; a test of more passes. */
extern size_t world_most;
/* The same as a test: skipped for lack of namespaces, and failed with any rank. */
void run_world(const struct world *world);
/* For bodies: host of a rank, the link of a host (of namespaces), the text of the last error. */
int world_host(int rank);
struct netns *world_netns(void);
const char *world_error(void);
/* Memory that the ranks share, zero at first. */
struct world_shared {
	atomic_int step[8];
	ncclUniqueId id[8];
};
struct world_shared *world_shared(void);
/* Waits until this step is n, with an end. 0 or 1. */
int world_await(int step, int n);
/* As RANKS_TEST(): the body runs in each of these worlds. */
#define HOSTS_TEST(function, ...) \
	static int function##_of_rank(struct rank *r); \
	TEST(function) \
	{ \
		struct world worlds_[] = { __VA_ARGS__ }; \
\
		for (size_t i = 0; i < sizeof(worlds_) / sizeof(worlds_[0]); i++) { \
			worlds_[i].body = function##_of_rank; \
			run_world(&worlds_[i]); \
		} \
	} \
	static int function##_of_rank(struct rank *r)
