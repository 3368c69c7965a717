/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The plans of this process, and the choice of a plan for a call.
 *
 * Plans come from the program (shunt/shunt.h), then from the directories and files of SHUNT_PLAN_DIR in the order of
 * the list, then from <SHUNT_CACHE_DIR>/default. In a directory, every *.json counts, in the order of the names' bytes.
 * The default plans for several hosts, which run by name only, are read when they are wanted.
 * Plans are tried by priority, and plans of one priority in this order. A broken plan is refused with one warning,
 * without further effect.
 *
 * When a communicator is set up it takes the plans for its number of ranks as a set, and keeps that set. Plans that are
 * registered or unregistered later concern only communicators that are set up later. So the ranks agree once, on the
 * set's hash. From then on each rank derives the choice for a call from the same set, and from values of the call that
 * are the same on all ranks.
 *
 * "In place or not" is no such value: NCCL lets a rank pass send == recv where another rank passes two buffers. A rank
 * that chose by its own pointers would hang with the others. So by default both kinds of plans match every call, and
 * the executor makes copies on ranks whose buffers are not what the plan expects (see plan.h). SHUNT_PLAN_SAME_PLACE=1
 * is the user's promise that ranks never differ in this. Only then does the choice depend on it: plans made for the
 * call's kind are tried first. The promise is part of the hash.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"
#include "plan/format/hosts.h"
#include "plan/format/plan.h"
#include "shunt/shunt.h"

enum shunt_plan_inplace { SHUNT_PLAN_INPLACE_ANY, SHUNT_PLAN_INPLACE_YES, SHUNT_PLAN_INPLACE_NO };

/* The input of the choice. All but place must be equal on all ranks. place is ignored without the user's promise. */
struct shunt_plan_query {
	enum shunt_kind kind;
	enum shunt_dtype dtype;
	enum shunt_redop redop; /* valid if the kind reduces */
	uint64_t count;         /* as NCCL counts for this kind */
	enum shunt_plan_inplace place;
};

/* Immutable. */
struct shunt_plan_set;

/*
 * The set for a communicator of nranks ranks, ranks_per_node on each host (0: unknown or not equal). The caller frees
 * it. The first call in the process reads the directories. NULL: out of memory.
 */
struct shunt_plan_set *shunt_plan_set_get(int nranks, int ranks_per_node);
/*
 * Reads the default plans for so many hosts with so many ranks each, if this process has not yet: those of the
 * directory SHUNT_DEFAULT_PLANS, or of the installation, whose files end in "_HOSTSxLOCALS.json". There are none for
 * other numbers than 1 to 64 and 1 to 8. Either all ranks of a communicator call this, or none, before they take its
 * set.
 */
void shunt_plan_defaults_load(int nhosts, int nlocals);

/* The same over several hosts: without plans that do not fit; speak: a line about each of these that a user asked for.
 */
struct shunt_plan_set *shunt_plan_set_get_over(
    int nranks, int ranks_per_node, const struct shunt_plan_placement *placement, bool speak);
void shunt_plan_set_free(struct shunt_plan_set *set); /* NULL allowed */
/*
 * Equal if and only if everything that steers the choice is equal. 0: no plans and no selector, so the choice is always
 * NONE.
 */
uint64_t shunt_plan_set_hash(const struct shunt_plan_set *set);
size_t shunt_plan_set_count(const struct shunt_plan_set *set);
const struct shunt_plan *shunt_plan_set_at(
    const struct shunt_plan_set *set, size_t i); /* in the order in which plans are tried; NULL beyond */

/* YES if this rank's buffers are in place, else NO. Ranks may differ. */
enum shunt_plan_inplace shunt_plan_call_inplace(const struct shunt_coll *coll, int rank);

/* The nth plan (from 0) that fits a call, or NULL. A plan with tag "auto": 0 fits no call. Pure. */
const struct shunt_plan *shunt_plan_set_match(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, size_t nth);

/* The first plan that fits a call, if there is one also with tag "auto": 0, or NULL. Pure. */
const struct shunt_plan *shunt_plan_set_any(const struct shunt_plan_set *set, const struct shunt_plan_query *call);

enum shunt_plan_choice {
	SHUNT_PLAN_CHOICE_NONE, /* no choice: go on with the selection of native kernels */
	SHUNT_PLAN_CHOICE_PLAN,
	SHUNT_PLAN_CHOICE_NATIVE, /* the selector wants native kernels */
	SHUNT_PLAN_CHOICE_NCCL,   /* the selector wants NCCL */
	SHUNT_PLAN_CHOICE_OTHER,  /* the selector names no plan that fits: an algorithm, or nothing that there is */
};

/* The choice for a call without the selector: the first plan that fits, or NONE. Pure. Send and receive: always NONE.
 */
enum shunt_plan_choice shunt_plan_set_choose(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan **plan_p);

/* A selector's answer to one question. */
struct shunt_plan_answer {
	enum shunt_plan_choice choice;
	size_t plan;     /* PLAN: its index in the set */
	uint64_t bytes;  /* of the message, as the selector was told */
	char other[128]; /* OTHER: the answer, cut */
};
/*
 * Asks the set's selector. NONE: the set has no selector, or the selector has ended or has no answer. False: the
 * selector has ended, and this call is the first to notice. Pure if the selector is. Not under a lock of the process.
 */
bool shunt_plan_set_ask(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, struct shunt_plan_answer *answer);
/* True: there is a selector to ask about calls of this kind. */
bool shunt_plan_set_asks(const struct shunt_plan_set *set, enum shunt_kind kind);
/* True: the user has promised that ranks never differ in whether a call is in place. */
bool shunt_plan_set_same_place(const struct shunt_plan_set *set);
/* True for the first caller: the set's selector has named something that there is not. */
bool shunt_plan_set_first_wrong(const struct shunt_plan_set *set);

/*
 * Summary of a set. If the ranks' hashes differ they exchange summaries, to find the plan that makes the difference.
 * Fixed size; unused bytes are zero.
 */
#define SHUNT_PLAN_SUMMARY_ROWS 48
struct shunt_plan_summary {
	uint32_t nplans;   /* all plans, those without a row included */
	uint32_t selector; /* 1: the set has a selector */
	uint32_t same_place;
	uint32_t unused;
	struct {
		uint64_t hash;
		char name[56]; /* cut to fit */
	} rows[SHUNT_PLAN_SUMMARY_ROWS];
};
void shunt_plan_set_summary(const struct shunt_plan_set *set, struct shunt_plan_summary *summary);
/* One line about the first difference among n ranks' summaries, in rank order; "" if they do not show one. */
void shunt_plan_summaries_differ(const struct shunt_plan_summary *all, int n, char *reason, size_t bytes);

/* For tests: drops all plans and the selector. From the next use on these values replace the configuration's. */
void shunt_plan_registry_reset(const char *plan_dir, const char *cache_dir, bool same_place);
