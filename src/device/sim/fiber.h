/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Contexts of execution that switch by hand within one OS thread: a few instructions on x86-64 and aarch64, ucontext
 * elsewhere (or with -DSHUNT_SIM_UCONTEXT). A context for the thread itself starts as all zeroes plus
 * sim_fiber_adopt().
 */
#include <stddef.h>
#include "device/sim/sanitize.h"

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(SHUNT_SIM_UCONTEXT)
#define SHUNT_SIM_UCONTEXT
#endif
#if defined(SHUNT_SIM_UCONTEXT)
#include <ucontext.h>
#endif

struct sim_fiber {
#if defined(SHUNT_SIM_UCONTEXT)
	ucontext_t uc;
#else
	void *sp;
#endif
	void *tsan;
	bool shares;     /* another one's tsan */
	void *fake;      /* ASan's */
	const void *low; /* of the stack */
	size_t bytes;
};

/*
 * The caller owns the stack. entry must never return, and calls sim_fiber_entered first. as: ThreadSanitizer takes f
 * for this one, which runs in the same OS thread and lives longer; NULL: for a thread of its own.
 */
void sim_fiber_init(struct sim_fiber *f, char *low, size_t bytes, void (*entry)(void), const struct sim_fiber *as);
void sim_fiber_finish(struct sim_fiber *f);

/* Makes f the context of the calling thread. */
static inline void sim_fiber_adopt(struct sim_fiber *f) { f->tsan = tsan_current(); }

extern "C" void shunt_sim_switch(void **save_sp, void *sp);

/* *prev tells each resumed context which context ran before it (ASan reports the bounds of that stack). */
static inline void sim_fiber_switch(struct sim_fiber *from, struct sim_fiber *to, struct sim_fiber **prev)
{
	*prev = from;
	asan_leave(&from->fake, to->low, to->bytes);
	if (to->tsan != from->tsan)
		tsan_switch(to->tsan);
#if defined(SHUNT_SIM_UCONTEXT)
	swapcontext(&from->uc, &to->uc);
#else
	shunt_sim_switch(&from->sp, to->sp);
#endif
	asan_enter(from->fake, &(*prev)->low, &(*prev)->bytes);
}

static inline void sim_fiber_entered(struct sim_fiber **prev) { asan_enter(nullptr, &(*prev)->low, &(*prev)->bytes); }
