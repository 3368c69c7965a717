/* SPDX-License-Identifier: MIT */
/*
 * The interpreter of execution plans: block b runs bytecode b of the rank's program (kernels/plan/args.h), operation
 * by operation. Threads synchronize at the end of an operation only where the program says so.
 *
 * Packets as LL, packets as LL128 and plans over hosts have kernels of their own: the code of one fits into registers.
 */
#include "kernels/net_check.h"
#include "kernels/plan/enter.h"
#include "kernels/plan/ll128_packets.h"
#include "kernels/plan/ll.h"
#include "kernels/plan/plain.h"
#include "kernels/plan/ports.h"
#include "kernels/plan/staging.h"
#include "kernels/progress.h"

/* Runs one operation that is not on LL128; false: gave up. */
template <typename T, bool BY_LL128, bool HOSTS>
GPU_FN bool plan_step(
    struct plan_run *r, const struct shunt_kargs_plan &a, const struct shunt_prog_op *op, const struct loop_iter &w)
{
	if constexpr (HOSTS)
		if (plan_is_port_op(op))
			return plan_port_step(r, op, w);
	switch (op->code) {
	case SHUNT_PROG_SYNC:
		return plan_sync(r);
	case SHUNT_PROG_BARRIER:
		return plan_barrier(
		    r, (uint64_t *)(r->resources[r->rank] + r->head->barriers_at + op->size * 64), op->nsrc);
	case SHUNT_PROG_SIGNAL:
		plan_signal(r, op);
		return true;
	case SHUNT_PROG_WAIT:
		return plan_wait(r, op);
	case SHUNT_PROG_SEM_ACQUIRE:
		return plan_sem_acquire(r, op);
	case SHUNT_PROG_SEM_RELEASE:
		plan_sem_release(r, op);
		return true;
	case SHUNT_PROG_COPY:
		plan_copy(r, op, w);
		return true;
	case SHUNT_PROG_REDUCE:
		plan_reduce<T>(r, op, w);
		return true;
	case SHUNT_PROG_READY:
		return plan_ready(r);
	case SHUNT_PROG_LOAD:
		if (a.k.flags >> op->flags & SHUNT_PLAN_LOAD0)
			plan_stage<T>(r, a, op);
		return true;
	case SHUNT_PROG_ENTER:
		return plan_enter(r);
	case SHUNT_PROG_LEAVE:
		return plan_leave(r);
	case SHUNT_PROG_STORE:
		if (a.k.flags >> op->flags & SHUNT_PLAN_STORE0)
			plan_stage<T>(r, a, op);
		return true;
	default:
		return BY_LL128 || plan_ll_step<T>(r, op);
	}
}

template <typename T, bool BY_LL128, bool HOSTS> GPU_FN void plan(struct plan_run *r, const struct shunt_kargs_plan &a)
{
	struct plan_now now = plan_start(r, a);
	/* Most launches have no work before and after the plan's own operations. */
	bool synced = false,
	     no_staging = !(r->program & SHUNT_PROG_STAGED) && !plan_resized(r, a) &&
	    !(r->flags & (SHUNT_PLAN_LOAD0 * 3 | SHUNT_PLAN_STORE0 * 3));
	uint32_t at = no_staging ? r->body : r->first, body = 0, end = 0;
	struct loop_iter w = { 0, 0 };
	uint64_t iters = 0;

	for (;;) {
		if (w.length && at == end) {
			w.at += w.length;
			if (--iters)
				at = body;
			else
				w.length = 0;
		}
		const struct shunt_prog_op *op = (const struct shunt_prog_op *)(r->bytecode + at);

		if (op->code == SHUNT_PROG_END || (no_staging && op->code == SHUNT_PROG_LEAVE))
			break;
		if (op->code == SHUNT_PROG_LOOP) {
			const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

			w.at = 0;
			w.length = o->index;
			iters = (op->size * r->chunk + w.length - 1) / w.length;
			body = at + (uint32_t)(sizeof(*op) + sizeof(*o));
			end = op->next;
			at = body;
			continue;
		}
		if (BY_LL128 && is_ll128_op(op)) {
			if (!plan_ll128_step<T>(r, now, op))
				return;
		} else {
			if (!synced)
				gpu_sync();
			synced = true;
			if (!plan_step<T, BY_LL128, HOSTS>(r, a, op, w))
				return;
		}
		at = op->next;
	}
	if (plan_sync(r))
		plan_finish(r, a);
}

template <bool HOSTS> GPU_FN void plan_check(const struct shunt_kargs_plan &a)
{
	if constexpr (HOSTS)
		net_check_calls(a.ctrl, a.k.check, a.k.count);
	else
		progress_check(a.ctrl, a.k);
}

#define INSTANCE(by_ll128, hosts, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_plan) a) \
	{ \
		struct plan_run *r = check_is_block(a.k, SHUNT_CHECK_CALLS) ? 0 : plan_prepare(a); \
		PROGRESS_AS(a, (void)0, plan_check<hosts>(a), plan<type, by_ll128, hosts>(r, a)) \
	}
#define PLAN_LL(shape, op, opn, type, typen) INSTANCE(false, false, shape, op, type)
#define PLAN_LL128(shape, op, opn, type, typen) INSTANCE(true, false, shape, op, type)
#define PLAN_HOSTS(shape, op, opn, type, typen) INSTANCE(false, true, shape, op, type)
SHUNT_PLAN_ROWS(PLAN_LL, plan)
SHUNT_PLAN_ROWS(PLAN_LL128, plan_ll128)
SHUNT_PLAN_ROWS(PLAN_HOSTS, plan_hosts)
