/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Annotations of the sim for the sanitizers.
 *
 * ThreadSanitizer is to check the kernels, not this runtime. The files of src/device/sim are built without its
 * instrumentation but with -DSHUNT_SIM_TSAN, and announce by hand every order that a device promises. An order
 * announced by accident would hide a race, so the runtime locks with futexes that TSan cannot see, and its objects
 * come from sim_new().
 */
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
#error "build the sim runtime without -fsanitize=thread and with -DSHUNT_SIM_TSAN"
#endif

#if defined(SHUNT_SIM_TSAN)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void __tsan_write16(void *addr);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
}
static inline void *tsan_current(void) { return __tsan_get_current_fiber(); }
static inline void *tsan_create(void) { return __tsan_create_fiber(0); }
static inline void tsan_destroy(void *fiber) { __tsan_destroy_fiber(fiber); }
/* 1: the switch itself orders nothing */
static inline void tsan_switch(void *fiber) { __tsan_switch_to_fiber(fiber, 1); }
static inline void tsan_acquire(void *token) { __tsan_acquire(token); }
static inline void tsan_release(void *token) { __tsan_release(token); }
static inline void tsan_write16(void *p) { __tsan_write16(p); }
static inline void tsan_ignore_begin(void) { __tsan_ignore_thread_begin(); }
static inline void tsan_ignore_end(void) { __tsan_ignore_thread_end(); }
#else
static inline void *tsan_current(void) { return nullptr; }
static inline void *tsan_create(void) { return nullptr; }
static inline void tsan_destroy(void *) {}
static inline void tsan_switch(void *) {}
static inline void tsan_acquire(void *) {}
static inline void tsan_release(void *) {}
static inline void tsan_write16(void *) {}
static inline void tsan_ignore_begin(void) {}
static inline void tsan_ignore_end(void) {}
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
static inline void asan_leave(void **fake, const void *low, size_t bytes)
{
	__sanitizer_start_switch_fiber(fake, low, bytes);
}
static inline void asan_enter(void *fake, const void **low, size_t *bytes)
{
	__sanitizer_finish_switch_fiber(fake, low, bytes);
}
static inline void asan_forget(void *p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
static inline void asan_leave(void **, const void *, size_t) {}
static inline void asan_enter(void *, const void **, size_t *) {}
static inline void asan_forget(void *, size_t) {}
#endif

/* Zeroed memory. TSan does not see its allocation and freeing as accesses of the calling thread. */
static inline void *sim_new(size_t bytes)
{
	tsan_ignore_begin();
	void *p = calloc(1, bytes ? bytes : 1); /* so that NULL means no memory */
	tsan_ignore_end();
	return p;
}

static inline void sim_delete(void *p)
{
	tsan_ignore_begin();
	free(p);
	tsan_ignore_end();
}
