/* SPDX-License-Identifier: MIT */
#include "shim/handles/handle_life.h"
#include <errno.h>

_Static_assert(ncclSuccess == 0, "a sound handle has no bits for the result");

#define ONLY(state) (1u << (state))
#define ANY 15u

/* A part of the word, with its states from 0 on. */
struct part {
	unsigned shift, states; /* states: mask of the state */
	unsigned bits;          /* mask of the state and what goes with it */
};

static const struct part use = { SHUNT_LIFE_USE_SHIFT, 3, 3 };
static const struct part memory = { SHUNT_LIFE_MEMORY_SHIFT, 1, 1 };
static const struct part place = { SHUNT_LIFE_PLACE_SHIFT, 1, 1 };
static const struct part tasks = { SHUNT_LIFE_TASKS_SHIFT, 3, ~0u >> SHUNT_LIFE_TASKS_SHIFT };

/* Moves a part from one of the states in from, which is a set, to another one, in the part's own bits. */
static int move(struct shunt_life *life, const struct part *part, unsigned from, unsigned to)
{
	unsigned word = atomic_load(&life->word), next;

	do {
		if (!(from & ONLY(word >> part->shift & part->states)))
			return -EBUSY;
		next = (word & ~(part->bits << part->shift)) | to << part->shift;
	} while (!atomic_compare_exchange_weak(&life->word, &word, next));
	return 0;
}

static unsigned with_result(enum shunt_life_tasks state, ncclResult_t result)
{
	return state | (unsigned)result << (SHUNT_LIFE_RESULT_SHIFT - SHUNT_LIFE_TASKS_SHIFT);
}

void shunt_life_init(struct shunt_life *life)
{
	atomic_store(&life->word, SHUNT_LIFE_UNKNOWN << SHUNT_LIFE_PLACE_SHIFT);
	atomic_store(&life->cancel, SHUNT_LIFE_GO);
}

int shunt_life_finalize(struct shunt_life *life)
{
	return move(life, &use, ONLY(SHUNT_LIFE_OPEN), SHUNT_LIFE_FINALIZED);
}

int shunt_life_revoke(struct shunt_life *life)
{
	return move(life, &use, ONLY(SHUNT_LIFE_OPEN), SHUNT_LIFE_REVOKED);
}

int shunt_life_stop(struct shunt_life *life)
{
	return move(life, &use, ANY, SHUNT_LIFE_REVOKED);
}

int shunt_life_suspend(struct shunt_life *life)
{
	return move(life, &memory, ONLY(SHUNT_LIFE_RESIDENT), SHUNT_LIFE_SUSPENDED);
}

int shunt_life_resume(struct shunt_life *life)
{
	return move(life, &memory, ONLY(SHUNT_LIFE_SUSPENDED), SHUNT_LIFE_RESIDENT);
}

int shunt_life_locate(struct shunt_life *life)
{
	return move(life, &place, ANY, SHUNT_LIFE_KNOWN);
}

int shunt_life_fail(struct shunt_life *life, ncclResult_t result)
{
	return move(life, &tasks, ONLY(SHUNT_LIFE_SOUND), with_result(SHUNT_LIFE_FAILED, result));
}

int shunt_life_lose(struct shunt_life *life, ncclResult_t result)
{
	return move(
	    life, &tasks, ONLY(SHUNT_LIFE_SOUND) | ONLY(SHUNT_LIFE_FAILED), with_result(SHUNT_LIFE_LOST, result));
}

unsigned shunt_life_revoke_tasks(struct shunt_life *life)
{
	unsigned before = atomic_load(&life->word) >> tasks.shift & tasks.bits;
	int go = SHUNT_LIFE_GO;

	atomic_compare_exchange_strong(&life->cancel, &go, SHUNT_LIFE_REVOKING);
	return before;
}

void shunt_life_tasks_revoked(struct shunt_life *life, unsigned before)
{
	int revoking = SHUNT_LIFE_REVOKING;

	move(life, &tasks, ONLY(SHUNT_LIFE_FAILED), before);
	atomic_compare_exchange_strong(&life->cancel, &revoking, SHUNT_LIFE_GO);
}

void shunt_life_abort(struct shunt_life *life)
{
	atomic_store(&life->cancel, SHUNT_LIFE_ABORTED);
}
