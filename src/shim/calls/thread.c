/* SPDX-License-Identifier: MIT */
#include "shim/calls/thread.h"
#include <pthread.h>
#include "base/lock.h"
#include "base/log.h"

_Thread_local struct shunt_thread shunt_this_thread;

/* A forked child is not inside its parent's group, whose communicators it does not have. */
static void drop_group(void)
{
	shunt_thread()->group = (struct shunt_group){ 0 };
}
SHUNT_IN_FORKED_CHILD(drop_group)

/* Its value for a thread is what to call. Not a destructor of the language: the program's own may still end the group.
 */
static pthread_key_t end_key;
static bool have_end_key;

static void thread_ends(void *value)
{
	struct shunt_thread *thread = shunt_thread();
	void (*abandon)(struct shunt_group *);

	__builtin_memcpy(&abandon, &value, sizeof(abandon));
	thread->watched = false; /* a later destructor of the program may begin a group again */
	if (!thread->group.depth)
		return;
	shunt_warn(
	    "a thread ends inside a group: ncclGroupStart without ncclGroupEnd; what it called there is not done");
	thread->group.depth = 0;
	abandon(&thread->group);
}

static void make_end_key(void)
{
	have_end_key = !pthread_key_create(&end_key, thread_ends);
}

void shunt_thread_watch_end(struct shunt_thread *thread, void (*abandon)(struct shunt_group *group))
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *value;

	__builtin_memcpy(&value, &abandon, sizeof(value));
	pthread_once(&once, make_end_key);
	/* Without a key, or memory for its value, the thread's group stays: the program made a mistake in the first
	 * place. */
	if (have_end_key)
		(void)pthread_setspecific(end_key, value);
	thread->watched = true;
}

ncclResult_t shunt_group_result(ncclResult_t result)
{
	struct shunt_group *g = &shunt_thread()->group;

	if (g->depth && g->error == ncclSuccess && result != ncclInProgress)
		g->error = result;
	return result;
}
