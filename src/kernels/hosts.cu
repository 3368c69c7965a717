/* SPDX-License-Identifier: MIT */
/*
 * Calls over several hosts (kernels/net_rings.h): moves of chunks through rings, in one launch.
 *
 * Each block has one channel, or several in turn. It has all roles, or those of one group, so that one block sends
 * while another receives. Each warp looks at a role, and each lane at a ring of the role's next chunk. A role is ready
 * if its sources have that chunk and its outputs have room for it; then the whole block moves the chunk. So no role
 * waits for another, whichever peer is late.
 */
#include "kernels/elements.h"
#include "kernels/net_check.h"
#include "kernels/net_push.h"
#include "kernels/net_rings.h"
#include "kernels/progress.h"

GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_net_few &a) { return progress_ctrl(a.k); }
GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_net_many &a) { return progress_ctrl(a.k); }

enum { ROLE_WAITS, ROLE_READY, ROLE_DONE };

/* A ring of a move, as a block sees it that has the move's next chunk. */
struct net_end {
	uint64_t *counter;       /* slots that the peer has filled, or taken */
	uint64_t *mine;          /* slots that this rank has taken, or filled */
	uint64_t count;          /* ... and its value */
	uint64_t *seen_at, seen; /* of an output: the peer's counter, when this rank last looked */
	char *slots;             /* of the ring */
	uint64_t *told;          /* on one host: where the peer reads `mine`; else NULL */
	uint32_t ring;           /* from here on between hosts */
	uint32_t connection;
	uint32_t from, to; /* of an output: offsets of the slots here, and at the peer */
};

/* The launch's program, and the data of a thread about its block. */
struct net {
	const struct shunt_kargs *k;
	const struct shunt_net_role *role;
	const struct shunt_net_move *move;
	const uint16_t *end;
	struct net_end *found; /* by end; NULL: each look finds them */
	uint32_t roles, total;
	struct shunt_ctrl *ctrl;
	struct shunt_net_ctrl *net;
	uint32_t channel, channels, slot_bytes;
	uint32_t group, groups; /* the block has the roles of its group; one group: all */
};

/* The data that the threads of a block share. */
struct net_block {
	uint64_t chunk[SHUNT_NET_MANY_ROLES]; /* of the role's move: the next one of this channel */
	uint16_t move[SHUNT_NET_MANY_ROLES];  /* of the role */
	uint8_t state[SHUNT_NET_MANY_ROLES];  /* ROLE_DONE: another block's as well */
	char *at[SHUNT_NET_MAX_ENDS];         /* this chunk's place in each ring of the move */
	uint32_t expired;
	uint32_t forsaken; /* 1: the proxy thread was told so */
};

GPU_FN struct net_end net_find(const struct net &x, uint16_t end, bool source)
{
	uint32_t peer = end & 255, ring = SHUNT_NET_RING(end >> 8, x.channel);
	const struct shunt_net_pair *pair = &x.net->pair[peer];
	uint64_t first = (uint64_t)ring * SHUNT_NET_SLOTS * x.slot_bytes;
	struct net_end e;

	e.ring = ring;
	e.connection = pair->connection;
	e.from = (uint32_t)(pair->out_at + first);
	e.to = (uint32_t)(pair->to_at + first);
	e.seen_at = 0;
	e.seen = 0;
	if (source) {
		e.counter = &pair->in_tail[ring];
		e.mine = &x.net->received[peer][ring];
		e.slots = pair->in + first;
		e.told = pair->remote ? 0 : &pair->in_head[ring];
	} else {
		e.counter = &pair->out_head[ring];
		e.mine = &x.net->sent[peer][ring];
		e.slots = pair->out + first;
		e.told = pair->remote ? 0 : &pair->out_tail[ring];
		e.seen_at = &x.net->head_seen[peer][ring]; /* of an input it is another block's */
		e.seen = *e.seen_at;
	}
	e.count = *e.mine;
	return e;
}

GPU_FN uint32_t net_slot(const struct net &x, const struct net_end &e)
{
	return ((uint32_t)e.count & (SHUNT_NET_SLOTS - 1)) * x.slot_bytes;
}

/* Can the ring give, or take, one more chunk? */
GPU_FN bool net_end_ready(struct net_end &e, bool source)
{
	if (source)
		return e.count < gpu_ld_acquire(e.counter);
	if (e.count >= e.seen + SHUNT_NET_SLOTS)
		*e.seen_at = e.seen = gpu_ld_credit(e.counter);
	return e.count < e.seen + SHUNT_NET_SLOTS;
}

/* As net_look_at() says, of an end. */
GPU_FN bool net_look_at_end(struct net_end &e, bool source, bool far, bool first)
{
	return (source && !e.told) != far || (!(far && first) && net_end_ready(e, source));
}

/*
 * Is end i of the move ready? far: looks at what comes from other hosts, else at the rest; ends that are not looked at
 * count as ready. first: as for net_look.
 */
GPU_FN bool net_look_at(const struct net &x, const struct shunt_net_move *move, uint32_t i, bool far, bool first)
{
	bool source = i < move->nsources;

	if (x.found)
		return net_look_at_end(x.found[move->ends + i], source, far, first);

	struct net_end e = net_find(x, x.end[move->ends + i], source);

	return net_look_at_end(e, source, far, first);
}

/*
 * Goes to the first chunk of this channel in the role's move or in a later one. By all lanes of the role's warp. moved:
 * the role has had chunks before.
 */
GPU_FN void net_settle(const struct net &x, struct net_block *b, uint32_t role, bool moved)
{
	uint32_t m = b->move[role], was = m;
	uint64_t chunk = b->chunk[role];
	const struct shunt_net_move *move = &x.move[x.role[role].first + m];

	for (; m < x.role[role].count; m++, move++, chunk = x.channel)
		if (chunk * shunt_net_chunk(move->bytes, x.channels, x.slot_bytes) < move->bytes)
			break;
	gpu_warp_sync();
	if (gpu_lane() == 0) {
		b->move[role] = (uint16_t)m;
		b->chunk[role] = chunk;
	}
	if (x.found && m < x.role[role].count && (!moved || m != was))
		for (uint32_t i = gpu_lane(); i < (uint32_t)move->nsources + move->noutputs; i += 32)
			x.found[move->ends + i] = net_find(x, x.end[move->ends + i], i < move->nsources);
	gpu_warp_sync();
}

/*
 * Looks at a role; the same for all lanes of the warp. first: does not look for data from other hosts: such a look goes
 * over PCIe, and this rank's first sends would wait for it.
 */
GPU_FN uint8_t net_look(const struct net &x, const struct net_block *b, uint32_t role, bool first)
{
	if (b->move[role] >= x.role[role].count)
		return ROLE_DONE;

	const struct shunt_net_move *move = &x.move[x.role[role].first + b->move[role]];

	/* Data from other hosts last: that look goes over PCIe, and other roles wait for it. */
	GPU_ROLL for (uint32_t far = 0; far < 2; far++) {
		bool ready = true;

		for (uint32_t i = gpu_lane(); i < (uint32_t)move->nsources + move->noutputs; i += 32)
			ready = ready && net_look_at(x, move, i, far != 0, first);
		if (!gpu_warp_all(ready))
			return ROLE_WAITS;
	}
	return ROLE_READY;
}

/* A chunk is in the slot, by the whole block. By one thread. */
GPU_FN void net_filled(const struct net &x, struct net_end &e, uint32_t bytes)
{
	uint32_t slot = net_slot(x, e);

	*e.mine = ++e.count;
	if (!e.told) {
		uint64_t place = net_place(x.net); /* the fence waits for it as well */

		gpu_fence();
		net_write(x.net, x.ctrl, place,
		    { SHUNT_NET_TRIGGER(e.connection, e.ring, SHUNT_NET_TRIGGER_SIGNAL | SHUNT_NET_TRIGGER_PUT), bytes,
		        e.from + slot, e.to + slot });
	} else {
		gpu_st_release(e.told, e.count);
	}
}

/* A chunk is out of the slot. By one thread. */
GPU_FN void net_taken(const struct net &x, struct net_end &e)
{
	*e.mine = ++e.count;
	if (e.told) {
		gpu_st_credit(e.told, e.count);
	} else if (e.count % SHUNT_NET_CREDIT_BATCH == 0) {
		net_push(x.net, x.ctrl, /* about loads */
		    { SHUNT_NET_TRIGGER(e.connection, SHUNT_NET_CREDIT_CHANNEL + e.ring, SHUNT_NET_TRIGGER_SIGNAL),
		        SHUNT_NET_CREDIT_BATCH, 0, 0 });
	}
}

GPU_FN void net_end_moved(const struct net &x, struct net_end &e, bool source, uint32_t bytes)
{
	if (source)
		net_taken(x, e);
	else
		net_filled(x, e, bytes);
}

/* The chunk is moved: says so to the other side of the move's end i. By one thread. */
GPU_FN void net_moved(const struct net &x, const struct shunt_net_move *m, uint32_t i, uint32_t bytes)
{
	bool source = i < m->nsources;

	if (x.found) {
		net_end_moved(x, x.found[m->ends + i], source, bytes);
		return;
	}

	struct net_end e = net_find(x, x.end[m->ends + i], source);

	net_end_moved(x, e, source, bytes);
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
template <uint32_t N> struct net_packs {
	struct gpu_v16 v[N];
};

/* The packs at byte `at` of the chunk and from there on, a block's width apart; slot NULL: of own memory. */
template <typename T>
GPU_FN void net_load(const struct net_chunk &c, const char *slot, uint32_t at, struct net_packs<NET_PACKS> &p)
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

/* The data of a chunk's move at one place, and the slots of its sources. */
struct net_from_slots {
	const struct net_chunk &chunk;
	char *const *slot;
	uint32_t at;

	template <typename T> GPU_METHOD bool own(struct net_packs<NET_PACKS> &p) const
	{
		net_load<T>(chunk, nullptr, at, p);
		return true;
	}
	template <typename T> GPU_METHOD bool source(uint32_t i, struct net_packs<NET_PACKS> &p) const
	{
		net_load<T>(chunk, slot[i], at, p);
		return true;
	}
};

/* All sources in their order. False: one of them does not come. */
template <typename T, typename Op, uint32_t N, typename From>
GPU_FN bool net_reduced(const struct net &x, const struct shunt_net_move *m, const From &from, struct net_packs<N> &p)
{
	uint32_t n = m->nsources + (m->from ? 1u : 0u);

	if constexpr (is_same<Op, op_copy>::value) {
		return m->from ? from.template own<T>(p) : from.template source<T>(0, p);
	} else {
		if (n == 1 && !m->from) /* a result that is passed on, bit by bit */
			return from.template source<T>(0, p);

		struct acc<T, Op> acc[N];

		GPU_ROLL for (uint32_t i = 0, s = 0; i < n; i++) {
			bool own = m->from && i == m->own;

			if (!(own ? from.template own<T>(p) : from.template source<T>(s, p)))
				return false;
			s += !own;
			if (own && (m->flags & SHUNT_NET_MOVE_SCALE) && (x.k->flags & SHUNT_K_PREMUL)) GPU_UNROLL
				for (uint32_t k = 0; k < N; k++)
					p.v[k] = premultiply<T, Op>(p.v[k], load_scalar<T>(*x.k));
			if (n == 1)
				return true; /* one input is rounded by nobody */
			GPU_UNROLL for (uint32_t k = 0; k < N; k++) {
				if (i)
					acc[k].add(p.v[k], x.k->flags);
				else
					acc[k].start(p.v[k], x.k->flags);
			}
		}
		GPU_UNROLL for (uint32_t k = 0; k < N; k++)
			p.v[k] = acc[k].result(x.k->flags);
		if constexpr (average<T>::exists && is_same<Op, op_sum>::value)
			if ((m->flags & SHUNT_NET_MOVE_FINISH) && (x.k->flags & SHUNT_K_DIVIDE)) GPU_UNROLL
				for (uint32_t k = 0; k < N; k++)
					p.v[k] = divide<T>(p.v[k], x.total, x.k->flags & SHUNT_K_SIGNED);
		return true;
	}
}

/* Moves the next chunk of a role that is ready. By the whole block, which has met before. */
template <typename T, typename Op> GPU_FN void net_move(const struct net &x, struct net_block *b, uint32_t role)
{
	const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];
	uint32_t size = shunt_net_chunk(m->bytes, x.channels, x.slot_bytes), n = m->nsources + m->noutputs;
	struct net_chunk c;

	c.move = m;
	c.at = b->chunk[role] * size;
	c.bytes = m->bytes - c.at < size ? (uint32_t)(m->bytes - c.at) : size;
	c.from_aligned = !((uintptr_t)m->from & 15);
	c.to_aligned = !((uintptr_t)m->to & 15);
	for (uint32_t i = gpu_tid(); i < n; i += gpu_ntid()) {
		struct net_end e = x.found ? x.found[m->ends + i] : net_find(x, x.end[m->ends + i], i < m->nsources);

		b->at[i] = e.slots + net_slot(x, e);
	}
	gpu_sync();
	GPU_ROLL for (uint32_t at = gpu_tid() * 16; at < c.bytes; at += NET_PACKS * gpu_ntid() * 16) {
		struct net_packs<NET_PACKS> p;

		net_reduced<T, Op>(x, m, net_from_slots{ c, b->at, at }, p);
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
	for (uint32_t i = gpu_tid(); i < n; i += gpu_ntid())
		net_moved(x, m, i, (c.bytes + 15) & ~15u);
	if (gpu_tid() == 0)
		b->chunk[role] += x.channels;
}

/* Reports the first role that still waits, and the first of its rings that is not ready. By one thread. */
GPU_NOINLINE void net_report(const struct net &x, const struct net_block *b, uint32_t reason)
{
	for (uint32_t role = 0; role < x.roles; role++) {
		if (b->state[role] == ROLE_DONE)
			continue;

		const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];

		for (uint32_t i = 0; i < (uint32_t)m->nsources + m->noutputs; i++) {
			bool source = i < m->nsources;
			struct net_end e = net_find(x, x.end[m->ends + i], source);

			if (net_end_ready(e, source))
				continue;
			spin_report(x.ctrl, reason, x.net->rank, x.end[m->ends + i] & 255, x.channel,
			    source ? e.count + 1 : e.count + 1 - SHUNT_NET_SLOTS, gpu_ld_relaxed(e.counter));
			return;
		}
	}
	spin_report(x.ctrl, reason, x.net->rank, SHUNT_FAULT_ANY_PEER, x.channel, 0, 0);
}

/*
 * The launch waits for a rank of another host that has left. Tells the ranks of this host, whose launches may wait for
 * this launch, and the proxy thread, which ends the communicator as if that rank had died. By one thread.
 */
GPU_NOINLINE void net_forsaken(const struct net &x, uint32_t left)
{
	const struct shunt_net_pair *pair = &x.net->pair[left];

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
		if (b->state[role] == ROLE_DONE)
			continue;

		const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];

		for (uint32_t i = 0; i < (uint32_t)m->nsources + m->noutputs && !b->forsaken; i++) {
			struct net_end e = net_find(x, x.end[m->ends + i], i < m->nsources);

			/* All data that the rank sent is visible once it is known to have left. */
			if (!e.told && gpu_ld_acquire(&x.net->words->gone[e.connection]) &&
			    !net_end_ready(e, i < m->nsources)) {
				b->forsaken = 1;
				net_forsaken(x, x.end[m->ends + i] & 255);
			}
		}
	}
}

/* Adds the time since the last look to the account of the ranks for which a role waits. By one thread. */
GPU_NOINLINE void net_account(const struct net &x, const struct net_block *b, uint64_t began)
{
	uint64_t now = gpu_clock_ns();

	for (uint32_t role = 0; role < x.roles; role++) {
		if (b->state[role] == ROLE_DONE)
			continue;

		const struct shunt_net_move *m = &x.move[x.role[role].first + b->move[role]];

		for (uint32_t i = 0; i < (uint32_t)m->nsources + m->noutputs; i++) {
			struct net_end e = net_find(x, x.end[m->ends + i], i < m->nsources);

			if (!net_end_ready(e, i < m->nsources))
				spin_waited(&x.ctrl->host_ctrl->waits[x.end[m->ends + i] & 255], began, now);
		}
	}
}

/* Nothing can go on at the moment: why the wait ends, SHUNT_FAULT_*, or 0. By one thread. */
GPU_FN uint32_t net_waits(const struct net &x, struct net_block *b, struct spin *spin)
{
	uint32_t expired = spin_expired(spin);
	uint64_t left;

	if (expired || spin->tries % GPU_SPIN_CHECK)
		return expired;
	net_account(x, b, spin->began);
	if (b->forsaken)
		return 0;
	left = gpu_ld_relaxed(&x.net->forsaken);
	if (left) {
		b->forsaken = 1;
		net_forsaken(x, (uint32_t)left - 1);
	} else if (gpu_ld_relaxed(&x.net->words->left)) {
		net_find_left(x, b);
	}
	return 0;
}

/* The states of the block's roles: is there one of this state? */
GPU_FN bool net_any(const struct net &x, const struct net_block *b, uint8_t state)
{
	bool any = false;

	GPU_ROLL for (uint32_t role = 0; role < x.roles; role++)
		any = any || b->state[role] == state;
	return any;
}

/* The block's roles of the channel, until they are done or a wait expires: false. */
template <typename T, typename Op> GPU_FN bool net_run(const struct net &x, struct net_block *b)
{
	struct spin spin;
	bool first = true;

	gpu_sync(); /* the channel before, or the copy of the program */
	spin_init(&spin, x.ctrl);
	if (gpu_tid() == 0)
		b->forsaken = b->expired = 0;
	for (uint32_t role = gpu_tid(); role < x.roles; role += gpu_ntid()) {
		b->chunk[role] = x.channel;
		b->move[role] = 0;
		b->state[role] = x.groups == 1 || x.role[role].group == x.group ? ROLE_READY : ROLE_DONE;
	}
	for (;; first = false) {
		gpu_sync();
		for (uint32_t role = gpu_tid() / 32; role < x.roles; role += gpu_ntid() / 32) {
			uint8_t state = b->state[role];

			gpu_warp_sync();
			if (state == ROLE_DONE)
				continue;
			if (state == ROLE_READY) /* it has moved a chunk, or is to begin */
				net_settle(x, b, role, !first);
			state = net_look(x, b, role, first);
			if (gpu_lane() == 0)
				b->state[role] = state;
		}
		gpu_sync();
		if (net_any(x, b, ROLE_READY)) {
			spin_init(&spin, x.ctrl);
			GPU_ROLL for (uint32_t role = 0; role < x.roles; role++)
				if (b->state[role] == ROLE_READY)
					net_move<T, Op>(x, b, role);
			continue;
		}
		if (!net_any(x, b, ROLE_WAITS))
			return true;
		if (gpu_tid() == 0)
			b->expired = net_waits(x, b, &spin);
		gpu_sync();
		if (b->expired)
			break;
	}
	if (gpu_tid() == 0)
		net_report(x, b, b->expired);
	return false;
}

#include "kernels/net_packets.h"

/* A small launch's program. */
struct net_program {
	struct shunt_net_role role[SHUNT_NET_FEW_ROLES];
	struct shunt_net_move move[SHUNT_NET_FEW_MOVES];
	uint16_t end[SHUNT_NET_FEW_ENDS];
};
static_assert(sizeof(struct shunt_kargs_net_few) ==
            __builtin_offsetof(struct shunt_kargs_net_few, role) + sizeof(struct net_program) &&
        __builtin_offsetof(struct shunt_kargs_net_few, role) % 8 == 0,
    "it is the end of the arguments");

/* Copies it to shared memory: looks at arguments one after the other take a microsecond each. */
GPU_FN void net_set_program(struct net &x, const struct shunt_kargs_net_few &a)
{
	GPU_SHARED(struct net_program, program, 1);
	GPU_SHARED(struct net_end, found, SHUNT_NET_FEW_ENDS);

	for (uint32_t i = gpu_tid(); i < sizeof(*program) / 8; i += gpu_ntid())
		((uint64_t *)program)[i] = ((const uint64_t *)a.role)[i];
	x.role = program->role;
	x.move = program->move;
	x.end = program->end;
	x.found = found;
}

GPU_FN void net_set_program(struct net &x, const struct shunt_kargs_net_many &a)
{
	x.role = a.role;
	x.move = a.move;
	x.end = a.end;
	x.found = 0;
}

template <typename T, typename Op> GPU_FN bool net_by_packets(const struct net &x, const struct shunt_kargs_net_few &a)
{
	if (!(a.sends | a.receives))
		return false;
	net_packets_run<T, Op>(x, a);
	return true;
}

template <typename T, typename Op> GPU_FN bool net_by_packets(const struct net &, const struct shunt_kargs_net_many &)
{
	return false;
}

template <typename T, typename Op, typename A> GPU_FN void net_kernel(const A &a)
{
	GPU_SHARED(struct net_block, block, 1);
	struct net x;
	uint32_t blocks = check_kernel_blocks(a.k), channels = a.k.channels;

	x.k = &a.k;
	net_set_program(x, a);
	x.roles = a.roles;
	x.total = a.total;
	x.ctrl = progress_ctrl(a);
	x.net = (struct shunt_net_ctrl *)((char *)x.ctrl + SHUNT_NET_CTRL_AT);
	x.channels = x.net->channels;
	x.slot_bytes = x.net->slot_bytes;
	if (net_by_packets<T, Op>(x, a))
		return;
	x.groups = blocks > channels ? blocks / channels : 1;
	x.group = x.groups > 1 ? gpu_bid() / channels : 0;
	/* A launch that may have few blocks has several channels in each: all ranks take them in the same order. */
	GPU_ROLL for (x.channel = x.groups > 1 ? gpu_bid() % channels : gpu_bid(); x.channel < channels;
	    x.channel += blocks)
		if (!net_run<T, Op>(x, block))
			break;
}

#define NET_KERNEL(args, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct args) a) PROGRESS_AS( \
	    a, gpu_warp_sync(), net_check_calls(progress_ctrl(a), a.k.check, a.k.count), net_kernel<type, op_##op>(a))
#define NET_FEW(shape, op, opn, type, typen) NET_KERNEL(shunt_kargs_net_few, shape, op, type)
#define NET_MANY(shape, op, opn, type, typen) NET_KERNEL(shunt_kargs_net_many, shape, op, type)
SHUNT_KERNEL_ROWS(NET_FEW, hosts)
SHUNT_FORMAT_ROWS(NET_FEW, hosts)
SHUNT_COPY_ROWS(NET_FEW, hosts)
SHUNT_KERNEL_ROWS(NET_MANY, hosts_many)
SHUNT_FORMAT_ROWS(NET_MANY, hosts_many)
SHUNT_COPY_ROWS(NET_MANY, hosts_many)
