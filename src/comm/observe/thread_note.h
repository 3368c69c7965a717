/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What a thread is doing inside the real NCCL, which may never return. The thread writes its note before each call of
 * NCCL, and takes no lock for it; the reader, which answers for the process (dump.h), sees the notes of all threads.
 *
 * A call that the recorder has just noted has its time, and the clock is not read again. For every other function it is
 * read. ncclGroupStart and ncclGroupEnd keep the note of the last call in the group.
 *
 * A thread is in the list from its first call until it ends. A forked child's list has only the thread that forked.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Only its thread writes. Zeroed memory is a note of a thread that is outside. */
struct shunt_inside {
	_Atomic(const char *) function; /* such as "ncclAllReduce", with static storage; NULL: the thread is outside */
	atomic_uint_fast64_t tag;       /* the communicator's (recorder.h); 0: not known */
	atomic_uint_fast64_t seq;       /* the recorder's number of the call; 0: it is none of the recorder's */
	atomic_uint_fast64_t since_ns;  /* CLOCK_MONOTONIC, coarse */
	uint64_t next_tag;              /* of the next function */
	bool noted;                     /* tag, seq and since_ns are the next function's already */
	bool listed;
	struct shunt_inside *next;
};

extern _Thread_local struct shunt_inside shunt_inside_note;

/* Time of the last clock tick: reading the exact clock costs more than all the rest. */
static inline uint64_t shunt_inside_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The next function that this thread enters makes the call that the recorder has just noted. */
static inline void shunt_inside_note_call(uint64_t tag, uint64_t seq, uint64_t time_ns)
{
	struct shunt_inside *in = &shunt_inside_note;

	__asm__("" : "+r"(in)); /* each use of a thread-local name is a call of the C library */
	atomic_store_explicit(&in->tag, tag, memory_order_relaxed);
	atomic_store_explicit(&in->seq, seq, memory_order_relaxed);
	atomic_store_explicit(&in->since_ns, time_ns, memory_order_relaxed);
	in->noted = true;
}

/* This thread's note, which is listed from now on. */
struct shunt_inside *shunt_inside_list(void);
/* A function that the recorder knows nothing of. */
__attribute__((cold)) void shunt_inside_note_function(struct shunt_inside *in);

/* Returns what shunt_inside_leave needs: NCCL may call us, and we NCCL again. */
static inline const char *shunt_inside_enter(struct shunt_inside *in, const char *function)
{
	const char *before = atomic_load_explicit(&in->function, memory_order_relaxed);

	if (!in->noted)
		shunt_inside_note_function(in);
	in->noted = false;
	atomic_store_explicit(&in->function, function, memory_order_release);
	return before;
}

static inline void shunt_inside_leave(struct shunt_inside *in, const char *before)
{
	atomic_store_explicit(&in->function, before, memory_order_release);
}

/* ---- for readers */

struct shunt_inside_call {
	const char *function;
	uint64_t tag, seq, since_ns;
};
/* Copies at most cap calls that threads are inside; returns how many. */
size_t shunt_inside_read(struct shunt_inside_call *calls, size_t cap);
/* The first call of a communicator that a thread is inside, by its seq; UINT64_MAX: none. */
uint64_t shunt_inside_first_seq(uint64_t tag);
