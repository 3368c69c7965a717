/* SPDX-License-Identifier: MIT */
#include "device/sim/fiber.h"
#include <stdint.h>
#include "device/sim/hooks.h"
#include "device/sim/sync.h"
extern "C" {
#include "base/lock.h"
}

#if !defined(SHUNT_SIM_UCONTEXT)
/*
 * void shunt_sim_switch(void **save_sp, void *sp): switches stacks. By the ABI the caller has saved the registers
 * that a call may clobber, so only the callee-saved registers are saved. Rounding modes are not switched: no kernel
 * changes them.
 */
#if defined(__x86_64__)
asm(R"(
	.text
	.p2align 4
	.globl shunt_sim_switch
	.hidden shunt_sim_switch
	.type shunt_sim_switch, @function
shunt_sim_switch:
	.cfi_startproc
	endbr64
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
	.cfi_endproc
	.size shunt_sim_switch, . - shunt_sim_switch
)");
#else
/* FRAME bytes: x29, x30, then the others. The return address is x30's. */
enum { FRAME = 160 };
asm(R"(
	.text
	.p2align 4
	.globl shunt_sim_switch
	.hidden shunt_sim_switch
	.type shunt_sim_switch, %function
shunt_sim_switch:
	.cfi_startproc
	hint 34 // bti c
	stp x29, x30, [sp, -160]!
	stp x19, x20, [sp, 16]
	stp x21, x22, [sp, 32]
	stp x23, x24, [sp, 48]
	stp x25, x26, [sp, 64]
	stp x27, x28, [sp, 80]
	stp d8, d9, [sp, 96]
	stp d10, d11, [sp, 112]
	stp d12, d13, [sp, 128]
	stp d14, d15, [sp, 144]
	mov x9, sp
	str x9, [x0]
	mov sp, x1
	ldp x19, x20, [sp, 16]
	ldp x21, x22, [sp, 32]
	ldp x23, x24, [sp, 48]
	ldp x25, x26, [sp, 64]
	ldp x27, x28, [sp, 80]
	ldp d8, d9, [sp, 96]
	ldp d10, d11, [sp, 112]
	ldp d12, d13, [sp, 128]
	ldp d14, d15, [sp, 144]
	ldp x29, x30, [sp], 160
	ret
	.cfi_endproc
	.size shunt_sim_switch, . - shunt_sim_switch
)");
#endif
#endif

#if defined(SHUNT_SIM_TSAN)
/*
 * ThreadSanitizer's fibers that were finished, for the next ones: each has memory of its own that is cleared when it is
 * created. A fiber that is taken again knows what the earlier one knew, which was over before it was finished.
 */
static struct {
	struct sim_lock lock;
	unsigned count;
	void *fiber[2048];
} spare;

static void free_lock(void) { spare.lock = {}; }
SHUNT_IN_FORKED_CHILD(free_lock)

/*
 * The fibers that are taken first have the smallest numbers, and 64 smaller ones are left to the child's own threads:
 * whatever orders threads costs ThreadSanitizer time by the greatest number among theirs.
 */
void shunt_sim_make_fibers(unsigned n)
{
	const unsigned most = sizeof(spare.fiber) / sizeof(*spare.fiber);
	void *low[64];

	for (void *&fiber : low)
		fiber = tsan_create();
	spare.count = n < most ? n : most;
	for (unsigned i = spare.count; i--;)
		spare.fiber[i] = tsan_create();
	for (void *fiber : low)
		tsan_destroy(fiber);
}

static void *take_spare(void)
{
	void *fiber = nullptr;

	sim_lock(&spare.lock);
	if (spare.count)
		fiber = spare.fiber[--spare.count];
	sim_unlock(&spare.lock);
	return fiber;
}

static bool keep_spare(void *fiber)
{
	bool room;

	sim_lock(&spare.lock);
	room = spare.count < sizeof(spare.fiber) / sizeof(*spare.fiber);
	if (room)
		spare.fiber[spare.count++] = fiber;
	sim_unlock(&spare.lock);
	return room;
}
#else
void shunt_sim_make_fibers(unsigned) {}

static void *take_spare(void) { return nullptr; }

static bool keep_spare(void *) { return false; }
#endif

void sim_fiber_init(struct sim_fiber *f, char *low, size_t bytes, void (*entry)(void), const struct sim_fiber *as)
{
	memset(f, 0, sizeof(*f));
	f->low = low;
	f->bytes = bytes;
	f->shares = as;
	f->tsan = as ? as->tsan : take_spare();
	if (!f->tsan)
		f->tsan = tsan_create();
#if defined(SHUNT_SIM_UCONTEXT)
	getcontext(&f->uc);
	f->uc.uc_stack.ss_sp = low;
	f->uc.uc_stack.ss_size = bytes;
	makecontext(&f->uc, entry, 0);
#else
	void **sp = (void **)(((uintptr_t)low + bytes) & ~(uintptr_t)15);

#if defined(__x86_64__)
	/*
	 * From the top: a zero return address that ends back traces, entry as the return address of the switch, six
	 * registers.
	 */
	*--sp = nullptr;
	*--sp = (void *)entry;
	f->sp = sp - 6;
#else
	/* The zero of x29 ends back traces; entry is the return address of the switch. */
	sp -= FRAME / sizeof(*sp);
	memset(sp, 0, FRAME);
	sp[1] = (void *)entry;
	f->sp = sp;
#endif
#endif
}

void sim_fiber_finish(struct sim_fiber *f)
{
	if (f->tsan && !f->shares && !keep_spare(f->tsan))
		tsan_destroy(f->tsan);
	memset(f, 0, sizeof(*f));
}
