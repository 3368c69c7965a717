/* SPDX-License-Identifier: MIT */
/* The life of a handle: a random walk against its tables, and threads that make events at the same time. */
#include "shim/handles/handle_life.h"
#include "tests/shim/life_walk.h"
#include "tests/support/test.h"

TEST(test_life_is_as_the_tables_say)
{
	struct life_seen seen = { 0 };
	struct choices choices = { .seed = 88172645463325252 };

	life_walk(&choices, 400000, &seen);
	assert_int_equal(seen.events, (1 << 11) - 1);
	assert_true(seen.moved > 1000);
	assert_true(seen.refused > 1000);
	assert_int_equal(seen.visited, 3 * 2 * 2 * 3 * 3); /* every state of every part beside every other */
}

/* What the threads of one round share. */
struct round {
	struct shunt_life life;
	pthread_barrier_t start;
	atomic_int ended, suspended, failed, first_result;
	int fields; /* written before locate */
};

struct racer {
	struct round *round;
	int number;
};

enum { RACERS = 4, ROUNDS = 3000 };

static void race(struct round *r, int number)
{
	ncclResult_t result = (ncclResult_t)(ncclUnhandledCudaError + number);

	pthread_barrier_wait(&r->start);
	if (!number) {
		r->fields = 7;
		shunt_life_locate(&r->life);
	} else if (shunt_life_is_located(&r->life) && r->fields != 7) {
		atomic_store(&r->ended, 100);
	}
	if (!(number & 1 ? shunt_life_revoke(&r->life) : shunt_life_finalize(&r->life)))
		atomic_fetch_add(&r->ended, 1);
	for (int i = 0; i < 8; i++) {
		if (!shunt_life_suspend(&r->life))
			atomic_fetch_add(&r->suspended, 1);
		if (!shunt_life_resume(&r->life))
			atomic_fetch_sub(&r->suspended, 1);
	}
	if (!shunt_life_fail(&r->life, result)) {
		atomic_fetch_add(&r->failed, 1);
		atomic_store(&r->first_result, (int)result);
	}
	if (number == 1)
		shunt_life_tasks_revoked(&r->life, shunt_life_revoke_tasks(&r->life));
	if (number == 2)
		shunt_life_abort(&r->life);
}

static void *racer_thread(void *arg)
{
	const struct racer *racer = arg;

	for (int i = 0; i < ROUNDS; i++) {
		race(&racer->round[i], racer->number);
		pthread_barrier_wait(&racer->round[i].start);
	}
	return NULL;
}

/* One of the threads ends the use, and one gives the error; an abort stays, whatever comes with it. */
TEST(test_events_at_the_same_time_are_made_one_after_another)
{
	static struct round rounds[ROUNDS];
	struct racer racers[RACERS];
	pthread_t threads[RACERS];

	for (int i = 0; i < ROUNDS; i++) {
		shunt_life_init(&rounds[i].life);
		pthread_barrier_init(&rounds[i].start, NULL, RACERS);
	}
	for (int k = 0; k < RACERS; k++) {
		racers[k] = (struct racer){ rounds, k };
		assert_int_equal(pthread_create(&threads[k], NULL, racer_thread, &racers[k]), 0);
	}
	for (int k = 0; k < RACERS; k++)
		pthread_join(threads[k], NULL);
	for (int i = 0; i < ROUNDS; i++) {
		struct round *r = &rounds[i];

		assert_int_equal(r->ended, 1);
		assert_int_not_equal(shunt_life_use(&r->life), SHUNT_LIFE_OPEN);
		assert_int_equal(r->suspended, shunt_life_is_suspended(&r->life));
		/* Another failure may come after the revocation has forgiven the first. */
		assert_in_range(r->failed, 1, 2);
		if (shunt_life_tasks(&r->life) == SHUNT_LIFE_FAILED && r->failed == 1)
			assert_int_equal(shunt_life_result(&r->life), r->first_result);
		assert_true(shunt_life_is_located(&r->life));
		assert_int_equal(r->life.cancel, SHUNT_LIFE_ABORTED);
		pthread_barrier_destroy(&r->start);
	}
}
