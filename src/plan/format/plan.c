/* SPDX-License-Identifier: MIT */
/* A plan in memory: how long it stays, and where its loader and its checker are in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan/format/plan_priv.h"

#define NIL SHUNT_PLAN_NIL

static void log_where(const struct shunt_json_log *json, char *text, size_t bytes)
{
	const struct shunt_plan_location *at = &((const struct shunt_plan_log *)json)->at;
	size_t n;

#define MORE(...) (n = strlen(text), (void)snprintf(text + n, bytes - n, __VA_ARGS__))
	if (at->rank != NIL)
		MORE("rank %u%s", at->rank, at->block == NIL ? ": " : ", ");
	if (at->block != NIL)
		MORE("block %u%s", at->block, at->op == NIL ? ": " : ", ");
	if (at->op != NIL) {
		MORE("operation %u", at->op);
		if (at->inner != NIL)
			MORE(".%u", at->inner);
		if (at->code)
			MORE(" (%s%s%.300s)", at->code, at->lines ? ", " : "", at->lines ? at->lines : "");
		MORE(": ");
	}
#undef MORE
}

struct shunt_plan_log shunt_plan_log_init(const char *source, char *reason, size_t bytes)
{
	return (struct shunt_plan_log){
		.json = { .source = source, .reason = reason, .bytes = reason ? bytes : 0, .where = log_where },
		.at = { NIL, NIL, NIL, NIL, NULL, NULL },
	};
}

static struct shunt_plan_owned *owned_of(struct shunt_plan *plan)
{
	return (struct shunt_plan_owned *)plan;
}

struct shunt_plan *shunt_plan_ref(struct shunt_plan *plan)
{
	atomic_fetch_add_explicit(&owned_of(plan)->refcount, 1, memory_order_relaxed);
	return plan;
}

void shunt_plan_unref(struct shunt_plan *plan)
{
	struct shunt_plan_owned *owned = owned_of(plan);

	if (!plan || atomic_fetch_sub_explicit(&owned->refcount, 1, memory_order_acq_rel) != 1)
		return;
	shunt_arena_finish(&owned->arena);
	free(owned);
}
