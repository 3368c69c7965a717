/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The answers of a selector for a communicator. A selector must give equal answers to equal questions, so each question
 * is asked once. An answer holds for one set of plans: before the set-up the set may still change, and with the set the
 * names that the selector is offered.
 */
#include <stdint.h>
#include "algos/algo.h"
#include "base/lock.h"
#include "plan/plan_registry.h"

/* plan: of PLAN, its index in the set. path: of OTHER. */
struct shunt_answer {
	enum shunt_plan_choice choice;
	size_t plan;
	struct shunt_path path;
};

struct shunt_answers {
	struct shunt_mutex lock; /* of the members below; nothing is called with it */
	uint32_t forgotten;      /* how often the process had forgotten all answers when the first of these came */
	size_t n, capacity;      /* capacity: 0 or a power of two */
	struct shunt_answers_row *rows;
};

void shunt_answers_init(struct shunt_answers *a);
void shunt_answers_finish(struct shunt_answers *a);
/*
 * The answer of the set's selector, remembered or asked for now. NONE: there is no answer, or it cannot be followed;
 * the first answer that cannot gets a line in the log. Any thread; not under a lock of the process.
 */
struct shunt_answer shunt_answers_get(
    struct shunt_answers *a, const struct shunt_plan_set *set, const struct shunt_plan_query *call);
