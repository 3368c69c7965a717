/* SPDX-License-Identifier: MIT */
/*
 * Jump stubs: exported functions of which only the name is known. Each jumps through its row of shunt_stubs. The
 * first target is a resolver: it keeps every argument register and the stack as they are, lets C open the real NCCL and
 * fill in all rows, and jumps again. A function that the real library lacks ends in shunt_stub_missing(row). struct
 * shunt_stub in stubs.h has the layout of a row.
 */
#if defined(__x86_64__)

#define FWD1(name) \
	.text; \
	.globl nccl##name; .type nccl##name, @function; \
	.p2align 4; \
nccl##name: \
	endbr64; \
	jmp *row_##name(%rip); \
	.size nccl##name, . - nccl##name; \
	STUB_TAIL(name)
#define FWD(name) \
	.text; \
	.globl pnccl##name; .type pnccl##name, @function; \
	.weak nccl##name; .type nccl##name, @function; \
	.p2align 4; \
pnccl##name: \
nccl##name: \
	endbr64; \
	jmp *row_##name(%rip); \
	.size pnccl##name, . - pnccl##name; \
	.size nccl##name, . - nccl##name; \
	STUB_TAIL(name)
#define STUB_TAIL(name) \
lazy_##name: \
	endbr64; \
	leaq row_##name(%rip), %r11; \
	jmp resolve; \
missing_##name: \
	endbr64; \
	leaq row_##name(%rip), %rdi; \
	jmp shunt_stub_missing; \
	STUB_ROW(name)

	.text
	.hidden shunt_stub_missing
	.hidden shunt_stubs_fill
	.type resolve, @function
	.p2align 4
resolve:                /* r11: the row */
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	subq $208, %rsp
	movq %rax, 0(%rsp)
	movq %rdi, 8(%rsp)
	movq %rsi, 16(%rsp)
	movq %rdx, 24(%rsp)
	movq %rcx, 32(%rsp)
	movq %r8, 40(%rsp)
	movq %r9, 48(%rsp)
	movq %r10, 56(%rsp)
	movq %r11, 64(%rsp)
	movups %xmm0, 80(%rsp)
	movups %xmm1, 96(%rsp)
	movups %xmm2, 112(%rsp)
	movups %xmm3, 128(%rsp)
	movups %xmm4, 144(%rsp)
	movups %xmm5, 160(%rsp)
	movups %xmm6, 176(%rsp)
	movups %xmm7, 192(%rsp)
	leaq shunt_stubs(%rip), %rdi
	call shunt_stubs_fill
	movups 192(%rsp), %xmm7
	movups 176(%rsp), %xmm6
	movups 160(%rsp), %xmm5
	movups 144(%rsp), %xmm4
	movups 128(%rsp), %xmm3
	movups 112(%rsp), %xmm2
	movups 96(%rsp), %xmm1
	movups 80(%rsp), %xmm0
	movq 64(%rsp), %r11
	movq 56(%rsp), %r10
	movq 48(%rsp), %r9
	movq 40(%rsp), %r8
	movq 32(%rsp), %rcx
	movq 24(%rsp), %rdx
	movq 16(%rsp), %rsi
	movq 8(%rsp), %rdi
	movq 0(%rsp), %rax
	leave
	.cfi_def_cfa %rsp, 8
	jmp *(%r11)
	.cfi_endproc
	.size resolve, . - resolve

#elif defined(__aarch64__)

#define FWD1(name) \
	.text; \
	.globl nccl##name; .type nccl##name, %function; \
	.p2align 4; \
nccl##name: \
	STUB_JUMP(name); \
	.size nccl##name, . - nccl##name; \
	STUB_TAIL(name)
#define FWD(name) \
	.text; \
	.globl pnccl##name; .type pnccl##name, %function; \
	.weak nccl##name; .type nccl##name, %function; \
	.p2align 4; \
pnccl##name: \
nccl##name: \
	STUB_JUMP(name); \
	.size pnccl##name, . - pnccl##name; \
	.size nccl##name, . - nccl##name; \
	STUB_TAIL(name)
/* hint 34 is "bti c"; x16 and x17 are the registers that linkers use for the same purpose. */
#define STUB_JUMP(name) \
	hint 34; \
	adrp x16, row_##name; \
	ldr x16, [x16, :lo12:row_##name]; \
	br x16
#define STUB_TAIL(name) \
lazy_##name: \
	hint 34; \
	adrp x17, row_##name; \
	add x17, x17, :lo12:row_##name; \
	b resolve; \
missing_##name: \
	hint 34; \
	adrp x0, row_##name; \
	add x0, x0, :lo12:row_##name; \
	b shunt_stub_missing; \
	STUB_ROW(name)

	.text
	.hidden shunt_stub_missing
	.hidden shunt_stubs_fill
	.type resolve, %function
	.p2align 4
resolve:                /* x17: the row; x8: address of a large result */
	.cfi_startproc
	stp x29, x30, [sp, #-224]!
	.cfi_def_cfa_offset 224
	.cfi_offset x29, -224
	.cfi_offset x30, -216
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	stp x8, x17, [sp, #80]
	stp q0, q1, [sp, #96]
	stp q2, q3, [sp, #128]
	stp q4, q5, [sp, #160]
	stp q6, q7, [sp, #192]
	adrp x0, shunt_stubs
	add x0, x0, :lo12:shunt_stubs
	bl shunt_stubs_fill
	ldp q6, q7, [sp, #192]
	ldp q4, q5, [sp, #160]
	ldp q2, q3, [sp, #128]
	ldp q0, q1, [sp, #96]
	ldp x8, x17, [sp, #80]
	ldp x6, x7, [sp, #64]
	ldp x4, x5, [sp, #48]
	ldp x2, x3, [sp, #32]
	ldp x0, x1, [sp, #16]
	ldp x29, x30, [sp], #224
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	ldr x16, [x17]
	br x16
	.cfi_endproc
	.size resolve, . - resolve

#else
#error "jump stubs are written for x86-64 and aarch64 only"
#endif

/* A row: target, missing, name, logged. */
#define STUB_STRING(text) #text
#define STUB_ROW(name) \
	.section .rodata.stubs, "a"; \
string_##name: .asciz STUB_STRING(nccl##name); \
	.data; \
row_##name: \
	.quad lazy_##name, missing_##name, string_##name, 0; \
	.text

	.data
	.p2align 4
shunt_stubs:
#include "shim/nccl/symbols.def"
	.data
	.quad 0, 0, 0, 0

	.section .note.GNU-stack, "", %progbits
