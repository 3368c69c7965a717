/* SPDX-License-Identifier: MIT */
/* Selects the plan of a set that a call runs. The choice depends on nothing but the set and the call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/lock.h"
#include "plan/plan_registry_priv.h"

void shunt_plan_set_free(struct shunt_plan_set *set)
{
	if (!set)
		return;
	for (size_t i = 0; i < set->n; i++)
		shunt_plan_unref(set->entries[i].plan);
	if (set->selector) {
		shunt_lock_acquire(SHUNT_LOCK_PLANS);
		shunt_selector_unref(set->selector);
		shunt_lock_release(SHUNT_LOCK_PLANS);
	}
	free(set);
}

uint64_t shunt_plan_set_hash(const struct shunt_plan_set *set)
{
	return set->hash;
}

size_t shunt_plan_set_count(const struct shunt_plan_set *set)
{
	return set->n;
}

const struct shunt_plan *shunt_plan_set_at(const struct shunt_plan_set *set, size_t i)
{
	return i < set->n ? set->entries[i].plan : NULL;
}

/* The plan collective of one of NCCL's; false: none. */
static bool collective_of(enum shunt_kind kind, enum shunt_plan_collective *collective_p)
{
#define ROW(id, name, long_name, function, ranks, send, recv, op, place, nccl, plans) ROW_##plans(id)
#define ROW_UNPLANNED(id)
#define ROW_PLANNED(id) [SHUNT_##id] = { true, SHUNT_PLAN_##id },
	static const struct {
		bool planned;
		enum shunt_plan_collective collective;
	} collectives[SHUNT_NKINDS] = { SHUNT_COLLECTIVE_LIST(ROW) };
#undef ROW
#undef ROW_UNPLANNED
#undef ROW_PLANNED

	*collective_p = collectives[kind].collective;
	return collectives[kind].planned;
}

enum shunt_plan_inplace shunt_plan_call_inplace(const struct shunt_coll *coll, int rank)
{
	uint64_t bytes = coll->count * shunt_dtype_bytes[coll->dtype];

	return shunt_kind_in_place(coll->kind, coll->send, coll->recv, bytes, rank) ? SHUNT_PLAN_INPLACE_YES :
	                                                                              SHUNT_PLAN_INPLACE_NO;
}

/* True if the plan fits the call, whether that is in place or not. by_name: plans with tag "auto": 0 fit, too. */
static bool plan_fits(
    const struct shunt_plan *plan, const struct shunt_plan_set *set, const struct shunt_plan_query *call, bool by_name)
{
	enum shunt_plan_collective collective;
	uint64_t bytes;

	if (!collective_of(call->kind, &collective) || plan->collective != collective || (!by_name && !plan->automatic))
		return false;
	if ((unsigned)call->dtype >= SHUNT_NFORMATS || !(plan->dtypes >> call->dtype & 1))
		return false;
	/*
	 * A plan runs only for its own operator. One rank reduces nothing, so a plan without operators then fits all
	 * but PREMUL.
	 */
	if (shunt_kind_reduces(call->kind)) {
		if ((unsigned)call->redop >= SHUNT_PREMUL)
			return false;
		if (plan->redops != 1u << call->redop && (plan->redops || set->nranks != 1))
			return false;
	}
	return shunt_plan_message_bytes(collective, set->nranks, call->count, call->dtype, &bytes) &&
	    bytes >= plan->min_bytes && bytes <= plan->max_bytes;
}

const struct shunt_plan *shunt_plan_set_match(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, size_t nth)
{
	bool known = set->same_place && call->place != SHUNT_PLAN_INPLACE_ANY;

	/* If ranks never differ in this, plans made for the call's kind (in place or not) come first. */
	for (int turn = 0; turn < (known ? 2 : 1); turn++)
		for (size_t i = 0; i < set->n; i++) {
			const struct shunt_plan *plan = set->entries[i].plan;

			if (known && (plan->inplace == (call->place == SHUNT_PLAN_INPLACE_YES)) != (turn == 0))
				continue;
			if (plan_fits(plan, set, call, false) && !nth--)
				return plan;
		}
	return NULL;
}

const struct shunt_plan *shunt_plan_set_any(const struct shunt_plan_set *set, const struct shunt_plan_query *call)
{
	for (size_t i = 0; i < set->n; i++)
		if (plan_fits(set->entries[i].plan, set, call, true))
			return set->entries[i].plan;
	return NULL;
}

static size_t index_of(const struct shunt_plan_set *set, const struct shunt_plan *plan)
{
	size_t i = 0;

	while (set->entries[i].plan != plan)
		i++;
	return i;
}

/* Finds the plan of this name that is tried first, as names need not be unique. False: no plan of that name fits. */
static bool find_by_name(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const char *name, size_t *plan_p)
{
	const struct shunt_plan *plan;

	for (size_t i = 0; (plan = shunt_plan_set_match(set, call, i)); i++)
		if (!strcmp(plan->name, name)) {
			*plan_p = index_of(set, plan);
			return true;
		}
	for (size_t i = 0; i < set->n; i++)
		if (!strcmp(set->entries[i].plan->name, name) && plan_fits(set->entries[i].plan, set, call, true)) {
			*plan_p = i;
			return true;
		}
	return false;
}

bool shunt_plan_set_asks(const struct shunt_plan_set *set, enum shunt_kind kind)
{
	return set->selector && !shunt_kind_is_p2p(kind);
}

bool shunt_plan_set_same_place(const struct shunt_plan_set *set)
{
	return set->same_place;
}

bool shunt_plan_set_first_wrong(const struct shunt_plan_set *set)
{
	return set->selector && !atomic_exchange(&set->selector->was_wrong, true);
}

bool shunt_plan_set_ask(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, struct shunt_plan_answer *answer)
{
	enum { MAX_NAMES = 64 };
	const char *names[MAX_NAMES], *said;
	const struct shunt_plan *plan;
	struct shunt_plan_request request = { .size = sizeof(request),
		.collective = shunt_kind_name(call->kind),
		.nranks = set->nranks,
		.ranks_per_node = set->ranks_per_node,
		.dtype = call->dtype,
		.redop = call->redop,
		.plans = names };
	enum shunt_plan_collective collective;

	*answer = (struct shunt_plan_answer){ .choice = SHUNT_PLAN_CHOICE_NONE };
	if (!shunt_plan_set_asks(set, call->kind))
		return true;
	if (!collective_of(call->kind, &collective))
		collective = SHUNT_PLAN_CUSTOM;
	if (!shunt_plan_message_bytes(collective, set->nranks, call->count, call->dtype, &request.bytes))
		return true;
	while (request.nplans < MAX_NAMES && (plan = shunt_plan_set_match(set, call, request.nplans)))
		names[request.nplans++] = plan->name;
	answer->bytes = request.bytes;
	if (!shunt_selector_ask(set->selector, &request, &said))
		return atomic_exchange(&set->selector->end_noticed, true);
	if (!said)
		return true;
	if (!strcmp(said, "native")) {
		answer->choice = SHUNT_PLAN_CHOICE_NATIVE;
	} else if (!strcmp(said, "nccl")) {
		answer->choice = SHUNT_PLAN_CHOICE_NCCL;
	} else if (find_by_name(set, call, said, &answer->plan)) {
		answer->choice = SHUNT_PLAN_CHOICE_PLAN;
	} else {
		answer->choice = SHUNT_PLAN_CHOICE_OTHER;
		snprintf(answer->other, sizeof(answer->other), "%s", said);
	}
	return true;
}

enum shunt_plan_choice shunt_plan_set_choose(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan **plan_p)
{
	const struct shunt_plan *plan;

	if (!set->n || shunt_kind_is_p2p(call->kind))
		return SHUNT_PLAN_CHOICE_NONE;
	plan = shunt_plan_set_match(set, call, 0);
	if (!plan)
		return SHUNT_PLAN_CHOICE_NONE;
	*plan_p = plan;
	return SHUNT_PLAN_CHOICE_PLAN;
}

void shunt_plan_set_summary(const struct shunt_plan_set *set, struct shunt_plan_summary *summary)
{
	memset(summary, 0, sizeof(*summary));
	summary->nplans = (uint32_t)set->n;
	summary->selector = set->selector != NULL;
	summary->same_place = set->same_place;
	for (size_t i = 0; i < set->n && i < SHUNT_PLAN_SUMMARY_ROWS; i++) {
		summary->rows[i].hash = set->entries[i].plan->hash;
		snprintf(summary->rows[i].name, sizeof(summary->rows[i].name), "%s", set->entries[i].plan->name);
	}
}

static uint32_t row_count(const struct shunt_plan_summary *s)
{
	return s->nplans < SHUNT_PLAN_SUMMARY_ROWS ? s->nplans : SHUNT_PLAN_SUMMARY_ROWS;
}

/* The first row of a that b lacks, or -1. */
static int missing(const struct shunt_plan_summary *a, const struct shunt_plan_summary *b)
{
	for (uint32_t i = 0; i < row_count(a); i++) {
		uint32_t j = 0;

		while (j < row_count(b) && b->rows[j].hash != a->rows[i].hash)
			j++;
		if (j == row_count(b))
			return (int)i;
	}
	return -1;
}

static bool summary_has_name(const struct shunt_plan_summary *s, const char *name)
{
	for (uint32_t i = 0; i < row_count(s); i++)
		if (!strncmp(s->rows[i].name, name, sizeof(s->rows[i].name)))
			return true;
	return false;
}

void shunt_plan_summaries_differ(const struct shunt_plan_summary *all, int n, char *reason, size_t bytes)
{
	*reason = '\0';
	for (int r = 1; r < n && !*reason; r++) {
		const struct shunt_plan_summary *a = &all[0], *b = &all[r];
		int i = missing(a, b), j = missing(b, a);

		if (i >= 0 && summary_has_name(b, a->rows[i].name))
			snprintf(reason, bytes, "plan %.55s of rank %d differs from rank 0's", a->rows[i].name, r);
		else if (i >= 0)
			snprintf(reason, bytes, "rank %d has no plan %.55s, rank 0 has", r, a->rows[i].name);
		else if (j >= 0)
			snprintf(reason, bytes, "rank %d has a plan %.55s, rank 0 has none", r, b->rows[j].name);
		else if (a->nplans != b->nplans)
			snprintf(reason, bytes, "rank %d has %u plans for this many ranks, rank 0 has %u", r, b->nplans,
			    a->nplans);
		else if (a->selector != b->selector)
			snprintf(reason, bytes, "rank %d has %s selector, rank 0 has %s", r, b->selector ? "a" : "no",
			    a->selector ? "one" : "none");
		else if (a->same_place != b->same_place)
			snprintf(reason, bytes, "rank %d has SHUNT_PLAN_SAME_PLACE=%u, rank 0 has %u", r, b->same_place,
			    a->same_place);
		else if (memcmp(a, b, sizeof(*a)))
			snprintf(reason, bytes, "rank %d has its plans in another order than rank 0", r);
	}
}
