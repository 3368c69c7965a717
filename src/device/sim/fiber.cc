/* SPDX-License-Identifier: MIT */
#include "device/sim/fiber.h"
#include <stdint.h>

#if !defined(SHUNT_SIM_UCONTEXT)
/*
 * void shunt_sim_switch(void **save_sp, void *sp): switches stacks. By the ABI the caller has saved the registers
 * that a call may clobber, so only the callee-saved registers are saved. Rounding modes are not switched: no kernel
 * changes them.
 */
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
#endif

void sim_fiber_init(struct sim_fiber *f, char *low, size_t bytes, void (*entry)(void))
{
	memset(f, 0, sizeof(*f));
	f->low = low;
	f->bytes = bytes;
	f->tsan = tsan_create();
#if defined(SHUNT_SIM_UCONTEXT)
	getcontext(&f->uc);
	f->uc.uc_stack.ss_sp = low;
	f->uc.uc_stack.ss_size = bytes;
	makecontext(&f->uc, entry, 0);
#else
	/*
	 * From the top: a zero return address that ends back traces, entry as the return address of the switch, six
	 * registers.
	 */
	void **sp = (void **)(((uintptr_t)low + bytes) & ~(uintptr_t)15);

	*--sp = nullptr;
	*--sp = (void *)entry;
	f->sp = sp - 6;
#endif
}

void sim_fiber_finish(struct sim_fiber *f)
{
	if (f->tsan)
		tsan_destroy(f->tsan);
	memset(f, 0, sizeof(*f));
}
