/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Plans over several hosts (kernels/plan/args.h): operations on ports between hosts, which push triggers for the proxy
 * thread, and the waits of ranks for each other before and after a launch. A rank waits for the ranks of its host, and
 * for ranks to which a port leads: no other rank shares memory with it.
 */
#include "kernels/net_push.h"
#include "kernels/plan/enter.h"
#include "kernels/plan/ll.h"

GPU_FN bool plan_is_port_op(const struct shunt_prog_op *op)
{
	return (op->code >= SHUNT_PROG_PORT_PUT && op->code <= SHUNT_PROG_PORT_FLUSH) || op->code == SHUNT_PROG_READY ||
	    op->code == SHUNT_PROG_ENTER || op->code == SHUNT_PROG_LEAVE;
}

GPU_FN const struct shunt_plan_ports *plan_ports(const struct plan_run *r)
{
	return (const struct shunt_plan_ports *)r->resources[2 * r->head->nranks];
}

GPU_FN struct shunt_net_ctrl *plan_net(const struct plan_run *r)
{
	return (struct shunt_net_ctrl *)((char *)r->ctrl + SHUNT_NET_CTRL_AT);
}

/* Behind a fence; false: gave up. By one thread. */
GPU_NOINLINE bool plan_port_push(
    struct plan_run *r, uint32_t rank, uint32_t channel, uint32_t what, uint32_t bytes, uint32_t from, uint32_t to)
{
	struct shunt_net_ctrl *net = plan_net(r);
	uint32_t first = SHUNT_NET_TRIGGER(net->pair[rank].connection, plan_ports(r)->first_channel + channel, what);
	uint32_t reason = net_push(net, r->ctrl, { first, bytes, from, to });

	if (reason)
		plan_give_up(r, reason, rank, gpu_ld_relaxed(&net->pushed), gpu_ld_relaxed(&net->words->taken));
	return !reason;
}

GPU_FN bool plan_port_signal(struct plan_run *r, uint32_t rank, uint32_t channel)
{
	return plan_port_push(r, rank, channel, SHUNT_NET_TRIGGER_SIGNAL, 1, 0, 0);
}

/* Puts units of the region's from one offset to another, and signals. By one thread. */
GPU_FN bool plan_port_put(struct plan_run *r, const struct shunt_prog_operand &signal, uint32_t what, uint64_t units,
    uint64_t from, uint64_t to)
{
	uint32_t region = plan_ports(r)->region;
	bool signals = signal.index != SHUNT_PLAN_NO_SLOT;

	gpu_fence();
	if (!units)
		return !signals || plan_port_signal(r, signal.rank, (uint32_t)signal.index);
	for (uint64_t at = 0; at < units; at += SHUNT_NET_REGION_PUT) {
		bool last = units - at <= SHUNT_NET_REGION_PUT;
		uint32_t n = last ? (uint32_t)(units - at) : SHUNT_NET_REGION_PUT;

		if (!plan_port_push(r, signal.rank, signals && last ? (uint32_t)signal.index : 0,
		        what | (signals && last ? SHUNT_NET_TRIGGER_SIGNAL : 0), SHUNT_NET_REGION_BYTES(region, n),
		        (uint32_t)(from + at), (uint32_t)(to + at)))
			return false;
	}
	return true;
}

/* Waits for the packets of the block's share. By all threads; false: gave up. */
GPU_FN bool plan_port_await(struct plan_run *r, const char *from, uint64_t n)
{
	GPU_ROLL for (uint64_t first = gpu_tid(); first < n; first += PIECES * gpu_ntid()) {
		struct gpu_v16 v[PIECES];

		if (!plan_ll_load_batch(r, from, first, n, v))
			return false;
	}
	return plan_sync(r);
}

GPU_NOINLINE bool plan_port_send(
    struct plan_run *r, const struct shunt_prog_op *op, const struct loop_iter &w, bool packets)
{
	const struct shunt_prog_addr *o = (const struct shunt_prog_addr *)(op + 1);
	const struct shunt_prog_operand signal = ((const struct shunt_prog_operand *)(op + 1))[2];
	uint64_t units, n = plan_block_share(r, op, w, &units);
	const char *from = plan_addr(r, o[0], units, packets);
	const char *to = plan_addr(r, o[1], units, packets), *here = r->resources[r->head->nranks + r->rank],
	           *there = r->resources[r->head->nranks + signal.rank];
	uint32_t what = SHUNT_NET_TRIGGER_REGION | SHUNT_NET_TRIGGER_PUT | (packets ? SHUNT_NET_TRIGGER_PACKETS : 0);

	if (packets && !plan_port_await(r, from, n))
		return false;
	return gpu_tid() ||
	    plan_port_put(r, signal, what, n << packets, (uint64_t)(from - here) / SHUNT_NET_REGION_UNIT,
	        (uint64_t)(to - there) / SHUNT_NET_REGION_UNIT);
}

/* By one thread, so that signals come behind the puts before them. */
GPU_NOINLINE bool plan_port_signals(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	if (gpu_tid())
		return true;
	gpu_fence();
	for (uint32_t j = 0; j < op->nsrc; j++)
		if (!plan_port_signal(r, o[j].rank, (uint32_t)o[j].index))
			return false;
	return true;
}

GPU_NOINLINE bool plan_port_wait(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid()) {
		uint64_t *waits = &plan_slot(r, o[j], r->rank)->waits;

		if (!plan_await(r, &plan_ports(r)->raised[o[j].index], gpu_fetch_add(waits, 1) + 1, o[j].rank))
			return false;
	}
	return true;
}

/* Waits until the sources of all that this thread has pushed to the connection can be used again. Result as above. */
GPU_FN uint32_t net_flush(struct shunt_net_ctrl *net, struct shunt_ctrl *ctrl, uint32_t connection)
{
	uint64_t pushed = gpu_fetch_add(&net->pushed, 0); /* by other blocks, too: at least this thread's */
	const struct shunt_net_words *words = net->words;
	struct spin spin;

	spin_init(&spin, ctrl);
	for (;;) {
		uint32_t reason;

		if (gpu_ld_acquire(&words->taken) >= pushed) {
			uint64_t busy = gpu_ld_acquire(&words->busy[connection]);

			if (!busy || busy > pushed)
				return 0;
		}
		reason = spin_expired(&spin);
		if (reason)
			return reason;
	}
}

/* By one thread. */
GPU_NOINLINE bool plan_port_flush(struct plan_run *r, uint32_t rank)
{
	struct shunt_net_ctrl *net = plan_net(r);
	uint32_t connection = net->pair[rank].connection, reason = net_flush(net, r->ctrl, connection);

	if (reason)
		plan_give_up(
		    r, reason, rank, gpu_ld_relaxed(&net->pushed), gpu_ld_relaxed(&net->words->busy[connection]));
	return !reason;
}

GPU_FN bool plan_port_flushes(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = 0; j < op->nsrc && gpu_tid() == 0; j++)
		if (!plan_port_flush(r, o[j].rank))
			return false;
	return true;
}

/* ---- before and after the plan's own operations */

/* Waits until rank j has entered, or left, launch `want`. */
GPU_FN bool plan_port_await_rank(struct plan_run *r, uint32_t j, bool leave, uint64_t want)
{
	const struct shunt_plan_ports *ports = plan_ports(r);
	const struct shunt_plan_peer *peer = &plan_peers(r, r->rank)[j];
	uint32_t reach = ports->reach[j];
	const uint64_t *counter = leave ? &peer->left : &peer->entered;

	if (reach == SHUNT_PLAN_BY_PORT)
		counter = &ports->raised[ports->slots + (leave ? r->head->nranks : 0) + j];
	return reach == SHUNT_PLAN_NEVER || plan_await(r, counter, want, j);
}

/* Tells rank j that this rank has entered, or left. By one thread of block 0. */
GPU_FN bool plan_port_tell_rank(struct plan_run *r, uint32_t j, bool leave)
{
	const struct shunt_plan_ports *ports = plan_ports(r);

	if (ports->reach[j] == SHUNT_PLAN_NEVER)
		return true;
	if (ports->reach[j] == SHUNT_PLAN_BY_MEMORY) {
		struct shunt_plan_peer *peer = &plan_peers(r, j)[r->rank];

		gpu_st_release(leave ? &peer->left : &peer->entered, r->launch);
		return true;
	}
	/* The puts of this launch may still read memory that the next launch writes. */
	if (leave && !plan_port_flush(r, j))
		return false;
	gpu_fence();
	return plan_port_signal(r, j, ports->slots + (leave ? r->head->nranks : 0) + r->rank);
}

GPU_NOINLINE bool plan_ports_ready(struct plan_run *r)
{
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_port_await_rank(r, j, true, r->launch - 1))
			return false;
	return plan_sync(r);
}

GPU_NOINLINE bool plan_ports_enter(struct plan_run *r)
{
	bool staged = r->program & SHUNT_PROG_STAGED;
	uint64_t *counter = &plan_grid(r)->enter, all;

	if (!staged && !(r->flags & (SHUNT_PLAN_LOAD0 * 3)))
		return true;
	all = plan_blocks_arrive(counter, r->head->nblocks);
	if (gpu_bid() == 0 || !staged) {
		if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
			return false;
		if (!plan_sync(r))
			return false;
	}
	if (!staged)
		return true;
	for (uint32_t j = gpu_tid(); j < r->head->nranks && gpu_bid() == 0; j += gpu_ntid())
		if (!plan_port_tell_rank(r, j, false))
			return false;
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_port_await_rank(r, j, false, r->launch))
			return false;
	return plan_sync(r);
}

GPU_NOINLINE bool plan_ports_leave(struct plan_run *r)
{
	bool staged = r->program & SHUNT_PROG_STAGED, store = r->flags & (SHUNT_PLAN_STORE0 * 3);
	uint64_t *counter = &plan_grid(r)->leave, all;

	if (!staged && !store)
		return true;
	all = plan_blocks_arrive(counter, r->head->nblocks);
	if (gpu_bid() == 0 || store) {
		if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
			return false;
		if (!plan_sync(r))
			return false;
	}
	for (uint32_t j = gpu_tid(); j < r->head->nranks && staged && gpu_bid() == 0; j += gpu_ntid())
		if (!plan_port_tell_rank(r, j, true))
			return false;
	return true;
}

GPU_FN bool plan_port_step(struct plan_run *r, const struct shunt_prog_op *op, const struct loop_iter &w)
{
	switch (op->code) {
	case SHUNT_PROG_PORT_PUT:
	case SHUNT_PROG_PORT_PACKETS:
		return plan_port_send(r, op, w, op->code == SHUNT_PROG_PORT_PACKETS);
	case SHUNT_PROG_PORT_SIGNAL:
		return plan_port_signals(r, op);
	case SHUNT_PROG_PORT_WAIT:
		return plan_port_wait(r, op);
	case SHUNT_PROG_PORT_FLUSH:
		return plan_port_flushes(r, op);
	case SHUNT_PROG_READY:
		return plan_ports_ready(r);
	case SHUNT_PROG_ENTER:
		return plan_ports_enter(r);
	default:
		return plan_ports_leave(r);
	}
}
