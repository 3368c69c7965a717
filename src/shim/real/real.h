/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The real NCCL: found and opened by the first call, once per process (shim/mode.c). Its functions are called as
 * real_X(...), with X as in ncclX. A function that the real NCCL lacks, and in standalone every function, logs one line
 * and returns ncclInvalidUsage.
 *
 * The real library calls some of its own exports through the PLT, and so may call our functions. While a thread is
 * inside real_X, its calls have a table of their own, and every entry point hands the call on at once.
 *
 * A thread's note (comm/observe/thread_note.h) has the function while it is inside, so that others can tell where it
 * hangs.
 *
 * While a thread has a group of ours open, the first real_X with an ncclResult_t opens the real library's group before
 * its own call. Most groups never need it. If opening fails, real_X returns that result and makes no call.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include "shim/nccl/abi.h"
#include "shim/nccl/result.h"
#include "shim/calls/thread.h"

struct shunt_real {
#define TYPED(name, params, args) ncclResult_t(*name) params;
#define TEXT(name, params, args) const char *(*name)params;
#define VOID(name, params, args) void(*name) params;
#include "shim/nccl/symbols.def"
};

extern struct shunt_real shunt_real;

/*
 * Looks for the real NCCL and opens it. False: there is none. To be called once, with the thread inside: a constructor
 * of the library may call NCCL.
 */
bool shunt_real_open(void);
/*
 * The real NCCL's version, 22809 for 2.28.9; 0: there is no real NCCL, or it tells no version. After shunt_real_open.
 */
int shunt_real_version(void);
/* Address of a function of the real library by its full name, or NULL. After shunt_real_open. */
void *shunt_real_symbol(const char *name);
/*
 * Logs, once per name in the process, that the function is not available; returns ncclInvalidUsage. name has static
 * storage.
 */
ncclResult_t shunt_real_missing(const char *name, atomic_bool *logged);

static inline void shunt_real_note_error(ncclResult_t result)
{
	if (result != ncclSuccess && result != ncclInProgress)
		atomic_store_explicit(&shunt_real_error_is_last, true, memory_order_relaxed);
}

/* Opens the real library's group, which the thread's group owes it. */
ncclResult_t shunt_real_open_group(void);

#define TYPED(name, params, args) \
	static inline ncclResult_t real_##name params \
	{ \
		struct shunt_thread *me = shunt_thread(); \
		ncclResult_t result = me->group.real_due ? shunt_real_open_group() : ncclSuccess; \
		if (result != ncclSuccess) \
			return result; \
		struct shunt_inside *note = shunt_thread_note(me); \
		const char *before = shunt_inside_enter(note, "nccl" #name); \
		me->inside++; \
		result = shunt_real.name args; \
		me->inside--; \
		shunt_inside_leave(note, before); \
		shunt_real_note_error(result); \
		return result; \
	}
#define TEXT(name, params, args) \
	static inline const char *real_##name params \
	{ \
		const char *text; \
		shunt_thread()->inside++; \
		text = shunt_real.name args; \
		shunt_thread()->inside--; \
		return text; \
	}
#define VOID(name, params, args) \
	static inline void real_##name params \
	{ \
		shunt_thread()->inside++; \
		shunt_real.name args; \
		shunt_thread()->inside--; \
	}
#include "shim/nccl/symbols.def"
