/* SPDX-License-Identifier: MIT */
/*
 * Calls over several hosts (kernels/net.h): moves of chunks through rings, in one launch.
 *
 * Each block has a channel, or some, one after the other, and all roles. Warps look at roles, lanes at the rings of a
 * role's next chunk; a role whose sources have that chunk and whose outputs have room for it is ready, and the whole
 * block moves it. So no role waits behind another one, whichever peer is late.
 */
#include "kernels/elements.h"
#include "kernels/net.h"
#include "kernels/net_check.h"
#include "kernels/net_push.h"
#include "kernels/progress.h"

GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_net_few &a) { return progress_ctrl(a.k); }
GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_net_many &a) { return progress_ctrl(a.k); }

enum { ROLE_WAITS, ROLE_READY, ROLE_DONE };

/* The launch's program, and what a thread needs of its block. */
struct net {
	const struct shunt_kargs *k;
	const struct shunt_net_role *role;
	const struct shunt_net_move *move;
	const uint16_t *end;
	uint32_t roles, total;
	struct shunt_ctrl *ctrl;
	struct shunt_net_ctrl *net;
	uint32_t channel;
};

/* What a block shares. */
struct net_block {
	uint64_t chunk[SHUNT_NET_MANY_ROLES]; /* of the role's move: the next one of this channel */
	uint16_t move[SHUNT_NET_MANY_ROLES];  /* of the role */
	uint8_t state[SHUNT_NET_MANY_ROLES];
	char *at[SHUNT_NET_MAX_ENDS]; /* this chunk's place in each ring of the move */
	uint32_t waiting, ready;
	uint32_t expired;
	uint32_t forsaken; /* 1: the proxy thread was told so */
};

GPU_FN uint32_t net_ring(const struct net &x, uint16_t end) { return SHUNT_NET_RING(end >> 8, x.channel); }

GPU_FN char *net_slot(const struct net &x, char *rings, uint32_t ring, uint64_t number)
{
	return rings +
	    ((uint64_t)ring * SHUNT_NET_SLOTS + ((uint32_t)number & (SHUNT_NET_SLOTS - 1))) * x.net->slot_bytes;
}

/* Can the ring give, or take, one more chunk? */
GPU_FN bool net_end_ready(const struct net &x, uint16_t end, bool source)
{
	uint32_t peer = end & 255, ring = net_ring(x, end);
	const struct shunt_net_pair *pair = &x.net->pair[peer];

	if (source)
		return x.net->received[peer][ring] < gpu_ld_acquire(&pair->in_tail[ring]);
	if (x.net->sent[peer][ring] >= x.net->head_seen[peer][ring] + SHUNT_NET_SLOTS)
		x.net->head_seen[peer][ring] = gpu_ld_credit(&pair->out_head[ring]);
	return x.net->sent[peer][ring] < x.net->head_seen[peer][ring] + SHUNT_NET_SLOTS;
}

/* First chunk of this channel in move m of the role or in a later one. By all lanes of a warp, which it may leave. */
GPU_FN void net_settle(const struct net &x, struct net_block *b, uint32_t role)
{
	uint32_t m = b->move[role];

	while (m < x.role[role].count) {
		const struct shunt_net_move *move = &x.move[x.role[role].first + m];
		uint32_t chunk = shunt_net_chunk(move->bytes, x.net->channels, x.net->slot_bytes);

		if (b->chunk[role] * chunk < move->bytes)
			break;
		b->chunk[role] = x.channel;
		m++;
	}
	b->move[role] = (uint16_t)m;
}

/* Looks at a role; the same for all lanes of the warp. */
GPU_FN uint8_t net_look(const struct net &x, const struct net_block *b, uint32_t role)
{
	if (b->move[role] >= x.role[role].count)
		return ROLE_DONE;

	const struct shunt_net_move *move = &x.move[x.role[role].first + b->move[role]];

	/* What came from other hosts last: that look goes over PCIe, and other roles wait for it. */
	GPU_ROLL for (uint32_t far = 0; far < 2; far++) {
		bool ready = true;

		for (uint32_t e = gpu_lane(); e < (uint32_t)move->nsources + move->noutputs; e += 32) {
			uint16_t end = x.end[move->ends + e];
			bool source = e < move->nsources;

			if ((source && x.net->pair[end & 255].remote) == (far != 0))
				ready = ready && net_end_ready(x, end, source);
		}
		if (!gpu_warp_all(ready))
			return ROLE_WAITS;
	}
	return ROLE_READY;
}

/* A chunk is in the slot, by the whole block. By one thread. */
GPU_FN void net_filled(const struct net &x, uint16_t end, uint32_t bytes)
{
	uint32_t peer = end & 255, ring = net_ring(x, end);
	const struct shunt_net_pair *pair = &x.net->pair[peer];
	uint64_t number = x.net->sent[peer][ring];

	x.net->sent[peer][ring] = number + 1;
	if (pair->remote) {
		uint64_t slot =
		    ((uint64_t)ring * SHUNT_NET_SLOTS + ((uint32_t)number & (SHUNT_NET_SLOTS - 1))) * x.net->slot_bytes;

		gpu_fence();
		net_push(x.net, x.ctrl,
		    { SHUNT_NET_TRIGGER(pair->connection, ring, SHUNT_NET_TRIGGER_SIGNAL | SHUNT_NET_TRIGGER_PUT),
		        bytes, (uint32_t)(pair->out_at + slot), (uint32_t)(pair->to_at + slot) });
	} else {
		gpu_st_release(&pair->out_tail[ring], number + 1);
	}
}

/* A chunk is out of the slot. By one thread. */
GPU_FN void net_taken(const struct net &x, uint16_t end)
{
	uint32_t peer = end & 255, ring = net_ring(x, end);
	const struct shunt_net_pair *pair = &x.net->pair[peer];
	uint64_t number = x.net->received[peer][ring] + 1;

	x.net->received[peer][ring] = number;
	if (!pair->remote) {
		gpu_st_credit(&pair->in_head[ring], number);
	} else if (number % SHUNT_NET_CREDIT_BATCH == 0) {
		gpu_fence();
		net_push(x.net, x.ctrl,
		    { SHUNT_NET_TRIGGER(pair->connection, SHUNT_NET_CREDIT_CHANNEL + ring, SHUNT_NET_TRIGGER_SIGNAL),
		        SHUNT_NET_CREDIT_BATCH, 0, 0 });
	}
}

/* One chunk of a move, as a block sees it. */
struct net_chunk {
	const struct shunt_net_move *move;
	uint64_t at;    /* in own memory */
	uint32_t bytes; /* of the chunk */
	bool from_aligned, to_aligned;
};

/* A thread's packs that are under way together: a look into page-locked memory takes a microsecond and more. */
enum { NET_PACKS = 4 };
struct net_packs {
	struct gpu_v16 v[NET_PACKS];
};

/* The packs at byte `at` of the chunk and from there on, a block's width apart; slot NULL: of own memory. */
template <typename T>
GPU_FN void net_load(const struct net_chunk &c, const char *slot, uint32_t at, struct net_packs &p)
{
	GPU_UNROLL for (uint32_t i = 0; i < NET_PACKS; i++) {
		uint32_t here = at + i * gpu_ntid() * 16;

		if (here >= c.bytes)
			p.v[i] = {};
		else if (slot)
			p.v[i] = gpu_ld16_stream(slot + here);
		else
			p.v[i] = load_user<T>((const char *)c.move->from + c.at, here, 16, c.bytes, c.from_aligned);
	}
}

/* All sources in their order. */
template <typename T, typename Op>
GPU_FN void net_reduced(
    const struct net &x, const struct net_chunk &c, char *const *slot, uint32_t at, struct net_packs &p)
{
	const struct shunt_net_move *m = c.move;
	uint32_t n = m->nsources + (m->from ? 1u : 0u);

	if constexpr (is_same<Op, op_copy>::value) {
		net_load<T>(c, m->from ? nullptr : slot[0], at, p);
	} else {
		if (n == 1 && !m->from) { /* a result that is passed on, bit by bit */
			net_load<T>(c, slot[0], at, p);
			return;
		}

		struct acc<T, Op> acc[NET_PACKS];

		GPU_ROLL for (uint32_t i = 0, s = 0; i < n; i++) {
			bool own = m->from && i == m->own;

			net_load<T>(c, own ? nullptr : slot[s], at, p);
			s += !own;
			if (own && (m->flags & SHUNT_NET_MOVE_SCALE) && (x.k->flags & SHUNT_K_PREMUL)) GPU_UNROLL
				for (uint32_t k = 0; k < NET_PACKS; k++)
					p.v[k] = premultiply<T, Op>(p.v[k], load_scalar<T>(*x.k));
			if (n == 1)
				return; /* one input is rounded by nobody */
			GPU_UNROLL for (uint32_t k = 0; k < NET_PACKS; k++) {
				if (i)
					acc[k].add(p.v[k], x.k->flags);
				else
					acc[k].start(p.v[k]);
			}
		}
		GPU_UNROLL for (uint32_t k = 0; k < NET_PACKS; k++)
			p.v[k] = acc[k].result();
		if constexpr (average<T>::exists && is_same<Op, op_sum>::value)
			if ((m->flags & SHUNT_NET_MOVE_FINISH) && (x.k->flags & SHUNT_K_DIVIDE)) GPU_UNROLL
				for (uint32_t k = 0; k < NET_PACKS; k++)
					p.v[k] = divide<T>(p.v[k], x.total, x.k->flags & SHUNT_K_SIGNED);
	}
}

/* Moves the next chunk of a role that is ready. By the whole block, which has met before. */
template <typename T, typename Op> GPU_FN void net_move(const struct net &x, struct net_block *b, uint32_t role)
{
	const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];
	uint32_t size = shunt_net_chunk(m->bytes, x.net->channels, x.net->slot_bytes), n = m->nsources + m->noutputs;
	struct net_chunk c;

	c.move = m;
	c.at = b->chunk[role] * size;
	c.bytes = m->bytes - c.at < size ? (uint32_t)(m->bytes - c.at) : size;
	c.from_aligned = !((uintptr_t)m->from & 15);
	c.to_aligned = !((uintptr_t)m->to & 15);
	for (uint32_t e = gpu_tid(); e < n; e += gpu_ntid()) {
		uint16_t end = x.end[m->ends + e];
		uint32_t peer = end & 255, ring = net_ring(x, end);
		const struct shunt_net_pair *pair = &x.net->pair[peer];

		b->at[e] = e < m->nsources ? net_slot(x, pair->in, ring, x.net->received[peer][ring]) :
		                             net_slot(x, pair->out, ring, x.net->sent[peer][ring]);
	}
	gpu_sync();
	GPU_ROLL for (uint32_t at = gpu_tid() * 16; at < c.bytes; at += NET_PACKS * gpu_ntid() * 16) {
		struct net_packs p;

		net_reduced<T, Op>(x, c, b->at, at, p);
		GPU_UNROLL for (uint32_t i = 0; i < NET_PACKS; i++) {
			uint32_t here = at + i * gpu_ntid() * 16;

			if (here >= c.bytes)
				break;
			if (m->to)
				store_user<T>((char *)m->to + c.at, here, 16, c.bytes, c.to_aligned, p.v[i]);
			GPU_ROLL for (uint32_t o = 0; o < m->noutputs; o++)
				gpu_st16_stream(b->at[m->nsources + o] + here, p.v[i]);
		}
	}
	gpu_sync();
	for (uint32_t e = gpu_tid(); e < n; e += gpu_ntid()) {
		uint16_t end = x.end[m->ends + e];

		if (e < m->nsources)
			net_taken(x, end);
		else
			net_filled(x, end, (c.bytes + 15) & ~15u);
	}
	if (gpu_tid() == 0)
		b->chunk[role] += x.net->channels;
}

/* Reports the first role that still waits, and the first of its rings that is not ready. By one thread. */
GPU_NOINLINE void net_report(const struct net &x, const struct net_block *b, uint32_t reason)
{
	for (uint32_t role = 0; role < x.roles; role++) {
		if (b->move[role] >= x.role[role].count)
			continue;

		const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];

		for (uint32_t e = 0; e < (uint32_t)m->nsources + m->noutputs; e++) {
			uint16_t end = x.end[m->ends + e];
			uint32_t peer = end & 255, ring = net_ring(x, end);
			bool source = e < m->nsources;

			if (net_end_ready(x, end, source))
				continue;
			spin_report(x.ctrl, reason, x.net->rank, peer, x.channel,
			    source ? x.net->received[peer][ring] + 1 : x.net->sent[peer][ring] + 1 - SHUNT_NET_SLOTS,
			    gpu_ld_relaxed(
			        source ? &x.net->pair[peer].in_tail[ring] : &x.net->pair[peer].out_head[ring]));
			return;
		}
	}
	spin_report(x.ctrl, reason, x.net->rank, SHUNT_FAULT_ANY_PEER, x.channel, 0, 0);
}

/*
 * The launch waits for a rank of another host that has left: tells the ranks of this host, whose launches may wait for
 * this one, and the proxy thread, which ends the communicator as if that rank had died. By one thread.
 */
GPU_NOINLINE void net_forsaken(const struct net &x, struct net_block *b, uint32_t left)
{
	const struct shunt_net_pair *pair = &x.net->pair[left];

	b->forsaken = 1;
	for (uint32_t l = 0; l < x.k->nranks; l++)
		if (l != x.k->rank)
			gpu_st_relaxed(
			    &((struct shunt_net_ctrl *)(x.k->peer[l] + SHUNT_NET_CTRL_AT))->forsaken, 1 + left);
	net_push(x.net, x.ctrl,
	    { SHUNT_NET_TRIGGER(pair->connection, 0, SHUNT_NET_TRIGGER_FORSAKEN), left, pair->remote, 0 });
}

/* Does a role wait for a rank of another host that has left? By one thread. */
GPU_NOINLINE void net_find_left(const struct net &x, struct net_block *b)
{
	for (uint32_t role = 0; role < x.roles && !b->forsaken; role++) {
		if (b->move[role] >= x.role[role].count)
			continue;

		const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];

		for (uint32_t e = 0; e < (uint32_t)m->nsources + m->noutputs && !b->forsaken; e++) {
			uint16_t end = x.end[m->ends + e];
			const struct shunt_net_pair *pair = &x.net->pair[end & 255];

			/* What it has sent shows once it is known to have left. */
			if (pair->remote && gpu_ld_acquire(&x.net->words->gone[pair->connection]) &&
			    !net_end_ready(x, end, e < m->nsources))
				net_forsaken(x, b, end & 255);
		}
	}
}

/* Nothing can go on at the moment: why the wait ends, SHUNT_FAULT_*, or 0. By one thread. */
GPU_FN uint32_t net_waits(const struct net &x, struct net_block *b, struct spin *spin)
{
	uint32_t expired = spin_expired(spin);
	uint64_t left;

	if (expired || b->forsaken || spin->tries % GPU_SPIN_CHECK)
		return expired;
	left = gpu_ld_relaxed(&x.net->forsaken);
	if (left)
		net_forsaken(x, b, (uint32_t)left - 1);
	else if (gpu_ld_relaxed(&x.net->words->left))
		net_find_left(x, b);
	return 0;
}

/* All roles of the channel, until they are done or a wait expires: false. */
template <typename T, typename Op> GPU_NOINLINE bool net_run(const struct net &x, struct net_block *b)
{
	struct spin spin;
	bool expired;

	spin_init(&spin, x.ctrl);
	if (gpu_tid() == 0)
		b->forsaken = 0;
	for (uint32_t role = gpu_tid(); role < x.roles; role += gpu_ntid()) {
		b->chunk[role] = x.channel;
		b->move[role] = 0;
	}
	for (;;) {
		gpu_sync();
		if (gpu_tid() == 0)
			b->waiting = b->ready = b->expired = 0;
		for (uint32_t role = gpu_tid(); role < x.roles; role += gpu_ntid())
			net_settle(x, b, role);
		gpu_sync();
		for (uint32_t role = gpu_tid() / 32; role < x.roles; role += gpu_ntid() / 32) {
			uint8_t state = net_look(x, b, role);

			if (gpu_lane() == 0)
				b->state[role] = state;
		}
		gpu_sync();
		if (gpu_tid() == 0) {
			for (uint32_t role = 0; role < x.roles; role++) {
				b->ready += b->state[role] == ROLE_READY;
				b->waiting += b->state[role] == ROLE_WAITS;
			}
			if (b->ready)
				spin_init(&spin, x.ctrl);
			else if (b->waiting)
				b->expired = net_waits(x, b, &spin);
		}
		gpu_sync();
		expired = b->expired;
		if (expired || !(b->ready | b->waiting))
			break;
		GPU_ROLL for (uint32_t role = 0; role < x.roles; role++)
			if (b->state[role] == ROLE_READY)
				net_move<T, Op>(x, b, role);
	}
	if (expired && gpu_tid() == 0)
		net_report(x, b, b->expired);
	return !expired;
}

template <typename T, typename Op, typename A> GPU_FN void net_kernel(const A &a)
{
	GPU_SHARED(struct net_block, block, 1);
	struct net x;

	x.k = &a.k;
	x.role = a.role;
	x.move = a.move;
	x.end = a.end;
	x.roles = a.roles;
	x.total = a.total;
	x.ctrl = progress_ctrl(a);
	x.net = (struct shunt_net_ctrl *)((char *)x.ctrl + SHUNT_NET_CTRL_AT);
	/* A launch that may have few blocks has several channels in each: all ranks take them in the same order. */
	GPU_ROLL for (x.channel = gpu_bid(); x.channel < a.k.channels; x.channel += check_kernel_blocks(a.k))
		if (!net_run<T, Op>(x, block))
			break;
}

#define NET_KERNEL(args, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct args) a) PROGRESS_AS( \
	    a, gpu_warp_sync(), net_check_calls(progress_ctrl(a), a.k.check, a.k.count), net_kernel<type, op_##op>(a))
#define NET_FEW(shape, op, opn, type, typen) NET_KERNEL(shunt_kargs_net_few, shape, op, type)
#define NET_MANY(shape, op, opn, type, typen) NET_KERNEL(shunt_kargs_net_many, shape, op, type)
SHUNT_KERNEL_ROWS(NET_FEW, hosts)
SHUNT_COPY_ROWS(NET_FEW, hosts)
SHUNT_KERNEL_ROWS(NET_MANY, hosts_many)
SHUNT_COPY_ROWS(NET_MANY, hosts_many)
