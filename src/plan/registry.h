/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_REGISTRY_H
#define SHUNT_PLAN_REGISTRY_H
/*
 * The plans that this process has, and which of them a call runs.
 *
 * Plans come from the program (shunt/shunt.h), then from the directories and files of SHUNT_PLAN_DIR in the order of
 * the list, then from <SHUNT_CACHE_DIR>/default; in a directory, every *.json in the order of the names' bytes. That is
 * also the order in which they are tried, after their priority. A plan that is broken is refused with one warning, and
 * nothing else happens.
 *
 * A communicator takes what there is for its number of ranks when it is set up, as a set, and keeps that set: what is
 * registered or unregistered later concerns communicators that are set up later. So the ranks agree once, on the set's
 * hash, and from there on the choice for a call follows on each rank from the same set and from values of the call that
 * are the same on all ranks.
 *
 * In place or not is not such a value: NCCL lets a rank pass send == recv where another passes two buffers. A rank that
 * chose by its own pointers would hang with the others. So by default both kinds of plans match every call, and the
 * executor makes copies on ranks whose buffers are not what the plan expects (see plan.h). SHUNT_PLAN_SAME_PLACE=1 is
 * the user's promise that ranks never differ in this; only then is the place looked at, and plans made for it are tried
 * first. The promise is part of the hash.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "plan/format/plan.h"
#include "shunt/shunt.h"

enum shunt_plan_inplace { SHUNT_PLAN_INPLACE_ANY, SHUNT_PLAN_INPLACE_YES, SHUNT_PLAN_INPLACE_NO };

/* What the choice depends on. All but place must be equal on all ranks; place is ignored without the promise. */
struct shunt_plan_query {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop; /* means something where the kind reduces */
	uint64_t count;         /* as NCCL counts for this kind */
	enum shunt_plan_inplace place;
};

/* Immutable; counted. */
struct shunt_plan_set;

/*
 * The set for a communicator of nranks ranks, ranks_per_node on each host (0: unknown or not equal). The caller holds
 * it. Reads the directories on the first call in the process. NULL only if memory is out.
 */
struct shunt_plan_set *shunt_plan_set_get(int nranks, int ranks_per_node);
struct shunt_plan_set *shunt_plan_set_ref(struct shunt_plan_set *set);
void shunt_plan_set_unref(struct shunt_plan_set *set); /* NULL allowed */
/*
 * Equal if and only if all that steers the choice is. 0: there are no plans and no selector, the choice is always NONE.
 */
uint64_t shunt_plan_set_hash(const struct shunt_plan_set *set);
size_t shunt_plan_set_count(const struct shunt_plan_set *set);
const struct shunt_plan *shunt_plan_set_at(
    const struct shunt_plan_set *set, size_t i); /* in the order of trying; NULL beyond */

/* How a rank's buffers lie. No wonder that ranks may differ. */
enum shunt_plan_inplace shunt_plan_call_inplace(enum shunt_kind kind, enum shunt_dtype dtype, const void *send,
    const void *recv, uint64_t count, int rank, int nranks);

/* Pure: the nth plan (from 0) that fits a call, or NULL. A plan with tag "auto": 0 fits none. */
const struct shunt_plan *shunt_plan_set_match(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, size_t nth);

enum shunt_plan_choice {
	SHUNT_PLAN_CHOICE_NONE, /* nothing was chosen: go on with the native kernels' own selection */
	SHUNT_PLAN_CHOICE_PLAN,
	SHUNT_PLAN_CHOICE_NATIVE, /* the selector wants native kernels */
	SHUNT_PLAN_CHOICE_NCCL,   /* the selector wants NCCL */
};

/*
 * The choice for a call: what the selector says, if there is one and it says something that can be done, else the first
 * plan that fits. As pure as the selector. Calls of send and recv are nobody's: NONE.
 */
enum shunt_plan_choice shunt_plan_set_choose(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan **plan_p);

/*
 * When hashes differ: what a rank sends so that all can say which plan makes the difference. Of a fixed size, zeroed
 * where unused.
 */
#define SHUNT_PLAN_SUMMARY_ROWS 48
struct shunt_plan_summary {
	uint32_t nplans;   /* of all, also those that have no row */
	uint32_t selector; /* 1: there is one */
	uint32_t same_place;
	uint32_t unused;
	struct {
		uint64_t hash;
		char name[56]; /* cut */
	} rows[SHUNT_PLAN_SUMMARY_ROWS];
};
void shunt_plan_set_summary(const struct shunt_plan_set *set, struct shunt_plan_summary *summary);
/* One line about the first difference among n ranks' summaries, in rank order; "" if they do not show one. */
void shunt_plan_summaries_differ(const struct shunt_plan_summary *all, int n, char *reason, size_t bytes);

/*
 * For tests: forgets all plans and the selector, and takes these instead of the configuration's from the next use on.
 */
void shunt_plan_registry_reset(const char *plan_dir, const char *cache_dir, bool same_place);
#endif
