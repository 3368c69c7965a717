/* SPDX-License-Identifier: MIT */
#include "comm/observe/thread_note.h"
#include <pthread.h>
#include "base/lock.h"

_Thread_local struct shunt_inside shunt_inside_note;

static struct shunt_inside *threads; /* with SHUNT_LOCK_THREADS */
static pthread_key_t end_key;
static bool have_end_key;

static void keep_this_thread(void)
{
	struct shunt_inside *in = &shunt_inside_note;

	in->next = NULL;
	threads = in->listed ? in : NULL;
}
SHUNT_IN_FORKED_CHILD(keep_this_thread)

/* `listed` stays: what the thread calls from a later destructor is not seen, and its memory is not used afterwards. */
static void thread_ends(void *value)
{
	struct shunt_inside **at = &threads;

	shunt_lock_acquire(SHUNT_LOCK_THREADS);
	while (*at && *at != value)
		at = &(*at)->next;
	if (*at)
		*at = (*at)->next;
	shunt_lock_release(SHUNT_LOCK_THREADS);
}

static void make_end_key(void)
{
	have_end_key = !pthread_key_create(&end_key, thread_ends);
}

struct shunt_inside *shunt_inside_list(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct shunt_inside *in = &shunt_inside_note;

	pthread_once(&once, make_end_key);
	if (in->listed || !have_end_key || pthread_setspecific(end_key, in))
		return in; /* a thread whose end is not noticed must not be in the list */
	in->listed = true;
	shunt_lock_acquire(SHUNT_LOCK_THREADS);
	in->next = threads;
	threads = in;
	shunt_lock_release(SHUNT_LOCK_THREADS);
	return in;
}

void shunt_inside_note_function(struct shunt_inside *in)
{
	atomic_store_explicit(&in->tag, in->next_tag, memory_order_relaxed);
	atomic_store_explicit(&in->seq, 0, memory_order_relaxed);
	atomic_store_explicit(&in->since_ns, shunt_inside_clock(), memory_order_relaxed);
	in->next_tag = 0;
}

size_t shunt_inside_read(struct shunt_inside_call *calls, size_t cap)
{
	size_t n = 0;

	shunt_lock_acquire(SHUNT_LOCK_THREADS);
	for (struct shunt_inside *in = threads; in && n < cap; in = in->next) {
		const char *function = atomic_load_explicit(&in->function, memory_order_acquire);

		calls[n] = (struct shunt_inside_call){ function, atomic_load_explicit(&in->tag, memory_order_relaxed),
			atomic_load_explicit(&in->seq, memory_order_relaxed),
			atomic_load_explicit(&in->since_ns, memory_order_relaxed) };
		n += function != NULL;
	}
	shunt_lock_release(SHUNT_LOCK_THREADS);
	return n;
}

uint64_t shunt_inside_first_seq(uint64_t tag)
{
	uint64_t first = UINT64_MAX;

	shunt_lock_acquire(SHUNT_LOCK_THREADS);
	for (struct shunt_inside *in = threads; in; in = in->next) {
		uint64_t seq = atomic_load_explicit(&in->seq, memory_order_relaxed);

		if (atomic_load_explicit(&in->function, memory_order_acquire) && seq && seq < first &&
		    atomic_load_explicit(&in->tag, memory_order_relaxed) == tag)
			first = seq;
	}
	shunt_lock_release(SHUNT_LOCK_THREADS);
	return first;
}
