/* SPDX-License-Identifier: MIT */
/*
 * The interpreter of execution plans: block b runs image b of the rank's program (plan_args.h), operation by operation.
 * Nothing meets at the end of an operation but where the program says so.
 *
 * The two ways that packets travel are kernels of their own: one alone fits into registers.
 */
#include "kernels/plan_enter.h"
#include "kernels/plan_lines.h"
#include "kernels/plan_packets.h"
#include "kernels/plan_plain.h"
#include "kernels/plan_user.h"
#include "kernels/progress.h"

/* One operation that is not on lines; false: gave up. */
template <typename T, bool IN_LINES>
GPU_FN bool plan_step(
    struct plan_run *r, const struct shunt_kargs_plan &a, const struct shunt_prog_op *op, const struct window &w)
{
	switch (op->code) {
	case SHUNT_PROG_SYNC:
		return plan_sync(r);
	case SHUNT_PROG_BARRIER:
		return plan_barrier(
		    r, (uint64_t *)(r->arena[r->rank] + r->head->barriers_at + op->size * 64), op->nsrc);
	case SHUNT_PROG_SIGNAL:
		plan_signal(r, op);
		return true;
	case SHUNT_PROG_WAIT:
		return plan_wait(r, op);
	case SHUNT_PROG_TAKE:
		return plan_take(r, op);
	case SHUNT_PROG_GIVE:
		plan_give(r, op);
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
		return IN_LINES || packets_step<T>(r, op);
	}
}

template <typename T, bool IN_LINES> GPU_FN void plan(struct plan_run *r, const struct shunt_kargs_plan &a)
{
	struct plan_now now = plan_start(r, a);
	/* In most launches there is nothing to do before and after the plan's own operations. */
	bool met = false,
	     bare = !(r->program & SHUNT_PROG_SHADOWED) && !plan_resized(r, a) &&
	    !(r->flags & (SHUNT_PLAN_LOAD0 * 3 | SHUNT_PLAN_STORE0 * 3));
	uint32_t at = bare ? r->body : r->first, body = 0, end = 0;
	struct window w = { 0, 0 };
	uint64_t windows = 0;

	for (;;) {
		if (w.length && at == end) {
			w.at += w.length;
			if (--windows)
				at = body;
			else
				w.length = 0;
		}
		const struct shunt_prog_op *op = (const struct shunt_prog_op *)(r->image + at);

		if (op->code == SHUNT_PROG_END || (bare && op->code == SHUNT_PROG_LEAVE))
			break;
		if (op->code == SHUNT_PROG_LOOP) {
			const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

			w.at = 0;
			w.length = o->index;
			windows = (op->size * r->chunk + w.length - 1) / w.length;
			body = at + (uint32_t)(sizeof(*op) + sizeof(*o));
			end = op->next;
			at = body;
			continue;
		}
		if (IN_LINES && is_on_lines(op)) {
			if (!lines_step<T>(r, now, op))
				return;
		} else {
			if (!met)
				gpu_sync();
			met = true;
			if (!plan_step<T, IN_LINES>(r, a, op, w))
				return;
		}
		at = op->next;
	}
	if (plan_sync(r))
		plan_finish(r, a);
}

#define INSTANCE(in_lines, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_plan) a) \
	{ \
		struct plan_run *r = check_is_here(a.k, SHUNT_CHECK_CALLS) ? 0 : plan_prepare(a); \
		PROGRESS_APART(a, plan<type, in_lines>(r, a)) \
	}
#define PACKETS(shape, op, opn, type, typen) INSTANCE(false, shape, op, type)
#define LINES(shape, op, opn, type, typen) INSTANCE(true, shape, op, type)
SHUNT_PLAN_ROWS(PACKETS, plan)
SHUNT_PLAN_ROWS(LINES, plan_lines)
