/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The life of a handle. It has independent parts. Each part has states, and a function for each event. Any thread may
 * call any of these functions at any time; an event is one compare-exchange. 0, or -EBUSY where the table says
 * "refused": then nothing has changed.
 *
 * use: may calls come?
 *
 * | event                                                               | OPEN      | FINALIZED | REVOKED |
 * |---------------------------------------------------------------------|-----------|-----------|---------|
 * | finalize                                                            | FINALIZED | refused   | refused |
 * | revoke                                                              | REVOKED   | refused   | refused |
 * | stop: running kernels were stopped, whatever the program said before | REVOKED  | REVOKED   | REVOKED |
 *
 * memory:
 *
 * | event   | RESIDENT  | SUSPENDED |
 * |---------|-----------|-----------|
 * | suspend | SUSPENDED | refused   |
 * | resume  | refused   | RESIDENT  |
 *
 * place: are rank, size and device known? A thread that sees KNOWN also sees all that the caller wrote before the
 * event.
 *
 * | event  | UNKNOWN | KNOWN |
 * |--------|---------|-------|
 * | locate | KNOWN   | KNOWN |
 *
 * tasks: how tasks ended that the program did not wait for (standalone)
 *
 * | event                                                       | SOUND  | FAILED                  | LOST    |
 * |-------------------------------------------------------------|--------|-------------------------|---------|
 * | fail: one failed                                            | FAILED | refused                 | refused |
 * | lose: the first one failed, so the ranks never connected    | LOST   | LOST                    | refused |
 * | forgive: those under way were revoked; later ones may do well | SOUND | the state before those | LOST |
 *
 * cancel: must waits of tasks give up? The transport reads the word: anything but 0 ends a wait.
 *
 * | event                                            | GO       | REVOKING | ABORTED |
 * |--------------------------------------------------|----------|----------|---------|
 * | revoke_tasks: those under way have to end        | REVOKING | REVOKING | ABORTED |
 * | tasks_revoked: they have ended (forgive, as well) | GO      | GO       | ABORTED |
 * | abort                                            | ABORTED  | ABORTED  | ABORTED |
 */
#include <stdatomic.h>
#include <stdbool.h>
#include "shim/nccl/abi.h"

enum shunt_life_use { SHUNT_LIFE_OPEN, SHUNT_LIFE_FINALIZED, SHUNT_LIFE_REVOKED };
enum shunt_life_memory { SHUNT_LIFE_RESIDENT, SHUNT_LIFE_SUSPENDED };
enum shunt_life_place { SHUNT_LIFE_KNOWN, SHUNT_LIFE_UNKNOWN };
enum shunt_life_tasks { SHUNT_LIFE_SOUND, SHUNT_LIFE_FAILED, SHUNT_LIFE_LOST };
enum shunt_life_cancel { SHUNT_LIFE_GO, SHUNT_LIFE_REVOKING, SHUNT_LIFE_ABORTED };

/* Where each part's state is in the word. */
enum {
	SHUNT_LIFE_USE_SHIFT = 0,
	SHUNT_LIFE_MEMORY_SHIFT = 2,
	SHUNT_LIFE_PLACE_SHIFT = 3,
	SHUNT_LIFE_TASKS_SHIFT = 4,
	SHUNT_LIFE_RESULT_SHIFT = 8, /* the ncclResult_t of FAILED or LOST */
};

struct shunt_life {
	atomic_uint word;
	atomic_int cancel; /* enum shunt_life_cancel */
};

/* OPEN, RESIDENT, UNKNOWN, SOUND, GO. */
void shunt_life_init(struct shunt_life *life);

int shunt_life_finalize(struct shunt_life *life);
int shunt_life_revoke(struct shunt_life *life);
int shunt_life_stop(struct shunt_life *life);
int shunt_life_suspend(struct shunt_life *life);
int shunt_life_resume(struct shunt_life *life);
int shunt_life_locate(struct shunt_life *life);
/* The result is an error. */
int shunt_life_fail(struct shunt_life *life, ncclResult_t result);
int shunt_life_lose(struct shunt_life *life, ncclResult_t result);
/* Returns the state of the tasks so far, for tasks_revoked. */
unsigned shunt_life_revoke_tasks(struct shunt_life *life);
void shunt_life_tasks_revoked(struct shunt_life *life, unsigned before);
void shunt_life_abort(struct shunt_life *life);

/* OPEN and RESIDENT. */
static inline bool shunt_life_is_open(const struct shunt_life *life)
{
	return !(atomic_load(&life->word) & ((1u << SHUNT_LIFE_PLACE_SHIFT) - 1));
}

/* ... and KNOWN. One load. */
static inline bool shunt_life_takes_calls(const struct shunt_life *life)
{
	return !(atomic_load_explicit(&life->word, memory_order_acquire) & ((1u << SHUNT_LIFE_TASKS_SHIFT) - 1));
}

static inline enum shunt_life_use shunt_life_use(const struct shunt_life *life)
{
	return (enum shunt_life_use)(atomic_load(&life->word) >> SHUNT_LIFE_USE_SHIFT & 3);
}

static inline bool shunt_life_is_suspended(const struct shunt_life *life)
{
	return atomic_load(&life->word) >> SHUNT_LIFE_MEMORY_SHIFT & 1;
}

static inline bool shunt_life_is_located(const struct shunt_life *life)
{
	return !(atomic_load_explicit(&life->word, memory_order_acquire) >> SHUNT_LIFE_PLACE_SHIFT & 1);
}

static inline enum shunt_life_tasks shunt_life_tasks(const struct shunt_life *life)
{
	return (enum shunt_life_tasks)(atomic_load(&life->word) >> SHUNT_LIFE_TASKS_SHIFT & 3);
}

/* Success, or the error of FAILED or LOST. */
static inline ncclResult_t shunt_life_result(const struct shunt_life *life)
{
	return (ncclResult_t)(atomic_load(&life->word) >> SHUNT_LIFE_RESULT_SHIFT);
}
