/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * All locks of the library, in the order in which a thread may take them: while it holds a lock it takes only locks of
 * later rows, and never two of one row. So no two threads can wait for each other's locks.
 *
 * | kind | meaning |
 * |---|---|
 * | PROCESS | one for the process: whoever holds it prints nothing, writes no file, and calls no device |
 * | OPENING | one for the process, held while what it guards is loaded or opened for the first time, which may call the
 * device or load a library. It prints nothing (shunt_log_hold). Ending or aborting a communicator takes none of them |
 * | OBJECT | a struct shunt_mutex of each object |
 *
 * Where SHUNT_LOCK_CHECKS is 1 (meson.build: debug builds and those with a sanitizer) a thread that breaks a rule ends
 * the process with a line that names both locks. Elsewhere the checks are not compiled.
 *
 * A forked child finds each process-wide lock free, whichever thread of its parent held it at the fork: that thread is
 * not in the child and would never release it. The data that such a lock guards describes threads, connections and
 * communicators that the child does not have: SHUNT_IN_FORKED_CHILD names a function that drops this data. What the
 * child goes on using changes by one store, so that it is whole whenever the fork comes. A fork waits for one lock,
 * that of the descriptors (base/fd.h). All this needs the C library's fork(). A child of the bare system calls clone
 * and vfork runs no handlers: it is taken for its parent, and must call nothing of Shunt before it calls exec.
 */
#include <pthread.h>
#include <stdbool.h>

/* X(name, kind, where and what) */
#define SHUNT_LOCKS(X) \
	X(REAL, OPENING, "shim/mode.c: opens the real NCCL") \
	X(PENDING, PROCESS, "shim/overlay/pending_child.c: children whose handles NCCL has not written yet") \
	X(ENTRY, OBJECT, "shim/handles/handles.h: an entry's operators and sets, and its rank becoming known") \
	X(COMM, OBJECT, "comm/core/communicator.h: a communicator's set-up and launches") \
	X(PLUGIN_IMAGES, OPENING, "comm/setup/plugin_set.c: loads images of plug-ins") \
	X(PLAN_FILES, OPENING, "plan/plan_registry.c: reads the plans' directories") \
	X(PLANS, PROCESS, "plan/plan_registry.c: the process's plans") \
	X(PLAN_NAMES, PROCESS, "comm/calls/plan_calls.c: names of plans") \
	X(ANSWERS, OBJECT, "comm/parts/answers.h: what a selector has answered for a communicator") \
	X(PLUGIN_FILES, OPENING, "algos/plugin_files.c: reads the files of SHUNT_PLUGINS") \
	X(PLUGINS, PROCESS, "algos/plugins.c: the process's plug-ins, and their rows") \
	X(PROFILER_FILE, OPENING, "comm/observe/profiler.c: opens the profiler plug-in") \
	X(PROFILER, OBJECT, "comm/observe/profiler.c: launches whose times a plug-in waits for") \
	X(FORCED, PROCESS, "algos/select/forced.c: rules for algorithms") \
	X(WINDOWS, OBJECT, "comm/calls/windows.h: a communicator's windows") \
	X(LINK, OBJECT, "transport/rendezvous/directory.c: a connection to a directory of hosts") \
	X(DIRECTORY, PROCESS, "transport/rendezvous/directory.c: the directory of this process, and connections") \
	X(REGISTRY, PROCESS, "comm/parts/comm_registry.c: the communicators, and what threads of ours do for them") \
	X(READING, OBJECT, "comm/observe/recorder.c: held while a thread reads the device's words") \
	X(RECORDER, OBJECT, "comm/observe/recorder.c: where the device's words are") \
	X(DEVICE_READ, OBJECT, "comm/observe/recorder.c: one reading of the device") \
	X(HANDLES, PROCESS, "shim/handles/handles.c: writers of the table of handles") \
	X(GROUPS, PROCESS, "shim/ep.c: expert parallel groups, and who uses them") \
	X(LINGERING, PROCESS, "comm/setup/farewell.c: connections that stay open for peers that are late") \
	X(PROXY, PROCESS, "transport/net/proxy/proxy_thread.c: the proxy's threads, and what they are to do") \
	X(SOCKETS, OBJECT, "transport/net/tcp/tcp_workers.c: the sockets that a thread carries") \
	X(PIECES, OBJECT, \
	    "transport/net/tcp/tcp_priv.h: pieces of an endpoint, or the memory of a device, for its threads") \
	X(SYMM, PROCESS, "transport/symm/shared.c: memory that ranks of this process share, and its users") \
	X(KERNELS, OPENING, "device/cuda/kernel.c: loads the kernels") \
	X(DEVICE, OBJECT, "device/cuda/dev.h: a device's first use, and access to memory from it") \
	X(CALLBACKS, PROCESS, "base/callback.c: functions of the program, and who ends them") \
	X(HOST, PROCESS, "base/host.c: what was found out about this host") \
	X(ENVIRONMENT, PROCESS, "base/env.c: values from NCCL's configuration files") \
	X(THREADS, PROCESS, "comm/observe/thread_note.c: the threads that call NCCL") \
	X(LOG, PROCESS, "base/log.c: the file of the log, and the last error") \
	X(TRUST, PROCESS, "topology/trust.c: what self-tests of links have found") \
	X(DESCRIPTORS, PROCESS, "base/fd.c: which descriptors a forked child closes; a fork waits for it")

enum shunt_lock {
#define SHUNT_LOCK_ENUM(name, kind, what) SHUNT_LOCK_##name,
	SHUNT_LOCKS(SHUNT_LOCK_ENUM)
#undef SHUNT_LOCK_ENUM
	    SHUNT_NLOCKS
};

/* A lock of an object. */
struct shunt_mutex {
	pthread_mutex_t mutex;
	enum shunt_lock lock; /* its row */
};

#ifndef SHUNT_LOCK_CHECKS
#define SHUNT_LOCK_CHECKS 0
#endif
#if SHUNT_LOCK_CHECKS
/* tries: it does not wait, so any order will do. */
void shunt_lock_check_take(enum shunt_lock lock, bool tries);
void shunt_lock_check_release(enum shunt_lock lock);
/* The thread is about to do what may take for ever. opens: OPENING locks may be held. */
void shunt_lock_check_blocking(const char *what, bool opens);
#else
static inline void shunt_lock_check_take(enum shunt_lock lock, bool tries)
{
}
static inline void shunt_lock_check_release(enum shunt_lock lock)
{
}
static inline void shunt_lock_check_blocking(const char *what, bool opens)
{
}
#endif

/* For pthread_cond_wait, by a thread that holds the lock. */
extern pthread_mutex_t shunt_lock_mutex[SHUNT_NLOCKS];

static inline void shunt_lock_acquire(enum shunt_lock lock)
{
	shunt_lock_check_take(lock, false);
	pthread_mutex_lock(&shunt_lock_mutex[lock]);
}

static inline void shunt_lock_release(enum shunt_lock lock)
{
	shunt_lock_check_release(lock);
	pthread_mutex_unlock(&shunt_lock_mutex[lock]);
}

static inline void shunt_mutex_init(struct shunt_mutex *m, enum shunt_lock lock)
{
	pthread_mutex_init(&m->mutex, NULL);
	m->lock = lock;
}

static inline void shunt_mutex_destroy(struct shunt_mutex *m)
{
	pthread_mutex_destroy(&m->mutex);
}

static inline void shunt_mutex_lock(struct shunt_mutex *m)
{
	shunt_lock_check_take(m->lock, false);
	pthread_mutex_lock(&m->mutex);
}

/* True: taken. */
static inline bool shunt_mutex_trylock(struct shunt_mutex *m)
{
	if (pthread_mutex_trylock(&m->mutex))
		return false;
	shunt_lock_check_take(m->lock, true);
	return true;
}

static inline void shunt_mutex_unlock(struct shunt_mutex *m)
{
	shunt_lock_check_release(m->lock);
	pthread_mutex_unlock(&m->mutex); /* last: another thread may free it now */
}

/* How many forks lie between the process that loaded the library and this one. */
unsigned shunt_process_generation(void);

/* fn runs in a forked child, on its only thread, before fork() returns there. From a constructor. */
void shunt_in_forked_child(void (*fn)(void));
#define SHUNT_IN_FORKED_CHILD(fn) \
	__attribute__((constructor)) static void fn##_in_forked_child(void) \
	{ \
		shunt_in_forked_child(fn); \
	}
