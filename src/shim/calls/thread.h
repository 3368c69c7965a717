/* SPDX-License-Identifier: MIT */
#pragma once
/* All that the shim keeps for a thread. */
#include "comm/observe/thread_note.h"
#include "shim/calls/call_group.h"

struct shunt_thread {
	unsigned inside;           /* how deep the thread is inside the real NCCL */
	bool watched;              /* its end is noticed */
	struct shunt_inside *note; /* what it is inside of; NULL before the first call of NCCL */
	struct shunt_group group;
	struct shunt_coll_call inline_calls[SHUNT_INLINE_CALLS]; /* of a group that needs no more */
};

extern _Thread_local struct shunt_thread shunt_this_thread;

/*
 * The struct's address, to be passed on. Each use of the thread-local name is a call of the C library, and without the
 * barrier the compiler uses the name again.
 */
static inline struct shunt_thread *shunt_thread(void)
{
	struct shunt_thread *thread = &shunt_this_thread;

	__asm__("" : "+r"(thread));
	return thread;
}

/* From now on `abandon` is called if the thread ends inside a group. On the ending thread. */
__attribute__((cold)) void shunt_thread_watch_end(
    struct shunt_thread *thread, void (*abandon)(struct shunt_group *group));

/* What the thread is inside of; to be entered before each call of NCCL. */
static inline struct shunt_inside *shunt_thread_note(struct shunt_thread *thread)
{
	if (!thread->note)
		thread->note = shunt_inside_list();
	return thread->note;
}

static inline struct shunt_thread *shunt_thread_of(struct shunt_group *group)
{
	return (struct shunt_thread *)((char *)group - offsetof(struct shunt_thread, group));
}

/* Begins a group, or a level of one. */
static inline void shunt_group_enter(struct shunt_thread *thread, void (*abandon)(struct shunt_group *group))
{
	if (!thread->watched)
		shunt_thread_watch_end(thread, abandon);
	thread->group.depth++;
}

/* The thread's open group, or NULL. */
static inline struct shunt_group *shunt_group_of(struct shunt_thread *thread)
{
	return thread->group.depth ? &thread->group : NULL;
}

static inline struct shunt_group *shunt_group_open(void)
{
	return shunt_group_of(shunt_thread());
}

/* Remembers the result as the open group's error if it is one and there is a group; returns it. */
ncclResult_t shunt_group_result(ncclResult_t result);
