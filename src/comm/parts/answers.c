/* SPDX-License-Identifier: MIT */
#include "comm/parts/answers.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/log.h"
#include "shunt/shunt.h"

/* A program whose sizes never repeat would fill the memory: beyond this many answers it begins anew. */
#define MAX_ANSWERS 4096

/* Without padding, because its bytes are hashed. set: the hash of the set; 0: the row is free. */
struct question {
	uint64_t set, count;
	uint32_t kind, dtype, redop, place;
};

struct shunt_answers_row {
	struct question question;
	struct shunt_answer answer;
};

static _Atomic uint32_t forgotten;

void shunt_plan_forget_answers(void)
{
	atomic_fetch_add(&forgotten, 1);
	atomic_fetch_add_explicit(&shunt_select_version, 1, memory_order_release);
}

void shunt_answers_init(struct shunt_answers *a)
{
	*a = (struct shunt_answers){ 0 };
	shunt_mutex_init(&a->lock, SHUNT_LOCK_ANSWERS);
}

void shunt_answers_finish(struct shunt_answers *a)
{
	free(a->rows);
	shunt_mutex_destroy(&a->lock);
}

/* The row of the question, or the free one where it belongs. There is one: the table is never full. */
static struct shunt_answers_row *find_row(
    struct shunt_answers_row *rows, size_t capacity, const struct question *question)
{
	size_t i = shunt_fnv1a(0, question, sizeof(*question));

	while (rows[i & (capacity - 1)].question.set &&
	    memcmp(&rows[i & (capacity - 1)].question, question, sizeof(*question)))
		i++;
	return &rows[i & (capacity - 1)];
}

static bool recall(struct shunt_answers *a, const struct question *question, struct shunt_answer *answer)
{
	const struct shunt_answers_row *row = NULL;

	shunt_mutex_lock(&a->lock);
	if (a->forgotten == atomic_load(&forgotten) && a->n)
		row = find_row(a->rows, a->capacity, question);
	if (row && row->question.set)
		*answer = row->answer;
	else
		row = NULL;
	shunt_mutex_unlock(&a->lock);
	return row;
}

/* Makes room for one more. False: no memory. */
static bool grow(struct shunt_answers *a)
{
	size_t capacity = a->capacity ? 2 * a->capacity : 32;
	struct shunt_answers_row *rows;

	if (2 * (a->n + 1) <= a->capacity)
		return true;
	rows = calloc(capacity, sizeof(*rows));
	if (!rows)
		return false;
	for (size_t i = 0; i < a->capacity; i++)
		if (a->rows[i].question.set)
			*find_row(rows, capacity, &a->rows[i].question) = a->rows[i];
	free(a->rows);
	a->rows = rows;
	a->capacity = capacity;
	return true;
}

/* now: how often all was forgotten before the question. An answer from before the last time is not kept. */
static void remember(
    struct shunt_answers *a, const struct question *question, const struct shunt_answer *answer, uint32_t now)
{
	struct shunt_answers_row *row;

	shunt_mutex_lock(&a->lock);
	if ((a->forgotten != now || a->n == MAX_ANSWERS) && a->capacity) {
		memset(a->rows, 0, a->capacity * sizeof(*a->rows));
		a->n = 0;
	}
	a->forgotten = now;
	if (now == atomic_load(&forgotten) && grow(a)) {
		row = find_row(a->rows, a->capacity, question);
		a->n += !row->question.set;
		*row = (struct shunt_answers_row){ *question, *answer };
	}
	shunt_mutex_unlock(&a->lock);
}

/* Turns an answer that is no plan into an algorithm; without one, says so once for each selector. */
static struct shunt_answer resolve(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan_answer *said)
{
	struct shunt_answer answer = { .choice = said->choice, .plan = said->plan };

	if (said->choice != SHUNT_PLAN_CHOICE_OTHER || shunt_path_parse(call->kind, said->other, &answer.path))
		return answer;
	answer.choice = SHUNT_PLAN_CHOICE_NONE;
	if (shunt_plan_set_first_wrong(set))
		shunt_warn("the selector wants \"%.64s\" for %s of %" PRIu64
		           " bytes of %s, but no plan of that name fits, "
		           "and %s has no such algorithm (`shunt info -a` lists them): going on without its answer",
		    said->other, shunt_kind_name(call->kind), said->bytes, shunt_dtype_name(call->dtype),
		    shunt_kind_name(call->kind));
	return answer;
}

struct shunt_answer shunt_answers_get(
    struct shunt_answers *a, const struct shunt_plan_set *set, const struct shunt_plan_query *call)
{
	struct question question = { .set = shunt_plan_set_hash(set),
		.count = call->count,
		.kind = call->kind,
		.dtype = call->dtype,
		.redop = shunt_kind_reduces(call->kind) ? call->redop : 0,
		.place = shunt_plan_set_same_place(set) ? call->place : SHUNT_PLAN_INPLACE_ANY };
	uint32_t now = atomic_load(&forgotten);
	struct shunt_plan_answer said;
	struct shunt_answer answer = { .choice = SHUNT_PLAN_CHOICE_NONE };

	if (!shunt_plan_set_asks(set, call->kind) || recall(a, &question, &answer))
		return answer;
	if (!shunt_plan_set_ask(set, call, &said))
		shunt_warn("the selector has been ended, but communicators that were first used with it go on: calls "
		           "about which it was never asked, such as %s of %" PRIu64 " bytes, go on without its answer",
		    shunt_kind_name(call->kind), said.bytes);
	answer = resolve(set, call, &said);
	remember(a, &question, &answer, now);
	return answer;
}
