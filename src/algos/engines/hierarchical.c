/* SPDX-License-Identifier: MIT */
/*
 * Calls over several hosts, as programs of moves (kernels/net_rings.h), in one launch each.
 *
 * Data that several ranks of a host need, or reduce, crosses the network once. Of each host the first `rails` ranks, as
 * many as the smallest host has, are rails: rail i exchanges data with the rails i of the other hosts. A reduction adds
 * up within each host first, by rank, rounds to the type, and then adds up the hosts' sums in their order, and rounds
 * again: the same bits at every size and on all ranks (docs/decisions/016.md).
 *
 * Legs keep roles of a launch apart that fill rings to the same rank: 0 carries inputs, 1 and 2 results.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"

_Static_assert(SHUNT_TOPOLOGY_RANKS == SHUNT_NET_MAX_RANKS && SHUNT_TOPOLOGY_LOCAL == SHUNT_KARGS_MAX_RANKS,
    "kernels have room for all ranks of a topology");

/*
 * If a rail's part has at most this size, each rail sends its sum to all others, and all add the sums up: one network
 * leg instead of two.
 */
#define ONE_LEG_PART (128u << 10)
/* Groups of roles: sending and receiving overlap if neither stores to memory that the other loads. */
enum { GROUP_SEND, GROUP_RECEIVE };
#define THREAD_BYTES 64u /* of a chunk, that a thread has under way at once (NET_PACKS in kernels/hosts.cu) */

struct program {
	const struct shunt_topology *at;
	int rank, host, local; /* this rank */
	int nlocal, rails;
	struct shunt_kargs_net_many *args; /* filled here; small ones are copied */
	unsigned nroles, nmoves, nends;
	uint64_t align;   /* own addresses and sizes, or-ed */
	uint64_t largest; /* bytes of a move */
	bool full;
	bool packets; /* by packets (kernels/net_packets.h): sends come first, and no ring leads to this rank itself */
	uint8_t sends, receives; /* ... to and from which ranks */
};

static char *offset(const void *base, uint64_t bytes)
{
	return (char *)(uintptr_t)base + bytes;
}

static int mate(const struct program *p, int local)
{
	return p->at->rank_at[p->host][local];
}

/* ---- writing a program */

/* A role of this group (kernels/net_rings.h). */
static void role_in(struct program *p, unsigned group)
{
	if (p->nroles && !p->args->role[p->nroles - 1].count)
		p->nroles--; /* the last one has no moves */
	if (p->nroles == SHUNT_NET_MANY_ROLES) {
		p->full = true;
		return;
	}
	p->args->role[p->nroles++] = (struct shunt_net_role){ .first = (uint16_t)p->nmoves, .group = group };
}

/*
 * The group of the roles that send a share. The share of a mate comes back in the same group, since it is stored over
 * the data that was sent.
 */
static unsigned group_of(const struct program *p, int g)
{
	return g == p->local ? GROUP_SEND : (unsigned)g % SHUNT_NET_GROUPS;
}

/* A move without ends, of the last role. */
static struct shunt_net_move *move(struct program *p, const void *from, void *to, uint64_t bytes)
{
	static struct shunt_net_move none;
	struct shunt_net_move *m = &p->args->move[p->nmoves];

	if (p->nmoves == SHUNT_NET_MANY_MOVES || !p->nroles || p->full) {
		p->full = true;
		return &none; /* nothing is launched */
	}
	*m = (struct shunt_net_move){ .from = from, .to = to, .bytes = bytes, .ends = (uint16_t)p->nends };
	p->nmoves++;
	p->args->role[p->nroles - 1].count++;
	p->align |= (uintptr_t)from | (uintptr_t)to | bytes;
	p->largest = bytes > p->largest ? bytes : p->largest;
	return m;
}

static void end(struct program *p, uint8_t *count, int rank, unsigned leg)
{
	if (p->nends == SHUNT_NET_MANY_ENDS) {
		p->full = true;
		return;
	}
	p->args->end[p->nends++] = SHUNT_NET_END((unsigned)rank, leg);
	++*count;
}

/* Sources of a move come in the order of the sum, outputs behind them. */
static void source(struct program *p, struct shunt_net_move *m, int rank, unsigned leg)
{
	if (p->packets)
		p->receives |= (uint8_t)(1u << rank);
	end(p, &m->nsources, rank, leg);
}

static void output(struct program *p, struct shunt_net_move *m, int rank, unsigned leg)
{
	if (p->packets)
		p->sends |= (uint8_t)(1u << rank);
	end(p, &m->noutputs, rank, leg);
}

static void output_to_mates(struct program *p, struct shunt_net_move *m, int but, unsigned leg)
{
	for (int l = 0; l < p->nlocal; l++)
		if (l != p->local && l != but)
			output(p, m, mate(p, l), leg);
}

static void output_to_rails(struct program *p, struct shunt_net_move *m, unsigned leg)
{
	for (int h = 0; h < p->at->nislands; h++)
		if (h != p->host)
			output(p, m, p->at->rank_at[h][p->local], leg);
}

/* The sum within the host, of this rank's own input and the mates'. */
static struct shunt_net_move *sum_of_mates(struct program *p, const void *from, uint64_t bytes)
{
	struct shunt_net_move *m = move(p, from, NULL, bytes);

	m->own = (uint8_t)p->local;
	m->flags = SHUNT_NET_MOVE_SCALE;
	for (int l = 0; l < p->nlocal; l++)
		if (l != p->local)
			source(p, m, mate(p, l), 0);
	return m;
}

/*
 * The sum over hosts, of the data that came from rank who[h] of each host h. This host's data is at `own`, which nobody
 * writes meanwhile; NULL: in this rank's ring to itself.
 */
static struct shunt_net_move *sum_of_hosts(struct program *p, const void *own, void *to, uint64_t bytes, const int *who)
{
	struct shunt_net_move *m = move(p, own, to, bytes);

	m->own = (uint8_t)p->host;
	m->flags = SHUNT_NET_MOVE_FINISH | SHUNT_NET_MOVE_SCALE;
	for (int h = 0; h < p->at->nislands; h++)
		if (h != p->host || !own)
			source(p, m, h == p->host ? p->rank : who[h], 0);
	return m;
}

/*
 * This rank's input, if it is the sum of its host and the result is not stored over it; else NULL. By packets it may
 * be: the thread that stores has loaded and sent it before.
 */
static const void *host_input(const struct program *p, const void *in, const void *out)
{
	return p->packets || (p->nlocal == 1 && in != out) ? in : NULL;
}

static void rails_of(const struct program *p, int who[SHUNT_NET_MAX_RANKS])
{
	for (int h = 0; h < p->at->nislands; h++)
		who[h] = p->local < p->rails ? p->at->rank_at[h][p->local] : -1;
}

static void send_scaled(struct program *p, const void *from, uint64_t bytes, int rank)
{
	struct shunt_net_move *m = move(p, from, NULL, bytes);

	m->flags = SHUNT_NET_MOVE_SCALE;
	output(p, m, rank, 0);
}

/* ---- all-reduce */

struct span {
	uint64_t first, bytes;
};

/* The span that rail `rail` of host `host` adds up; host -1: of all hosts, if there is one network leg. */
static struct span share(const struct program *p, uint64_t bytes, int rail, int host)
{
	uint64_t first, last;

	shunt_partition(0, bytes, (unsigned)rail, (unsigned)p->rails, &first, &last);
	if (host >= 0)
		shunt_partition(first, last, (unsigned)host, (unsigned)p->at->nislands, &first, &last);
	return (struct span){ first, last - first };
}

/* One network leg: every rail has all hosts' sums of its share, and adds them up. */
static void allreduce_one_leg(struct program *p, const struct shunt_coll *c, uint64_t bytes)
{
	int who[SHUNT_NET_MAX_RANKS];
	struct shunt_net_move *m;
	const void *own;
	struct span s;

	rails_of(p, who);
	for (int g = 0; g < p->rails; g++) {
		s = share(p, bytes, g, -1);
		if (!s.bytes)
			continue;
		role_in(p, group_of(p, g));
		if (g != p->local) {
			send_scaled(p, offset(c->send, s.first), s.bytes, mate(p, g));
			role_in(p, group_of(p, g));
			m = move(p, NULL, offset(c->recv, s.first), s.bytes);
			source(p, m, mate(p, g), 1);
			continue;
		}
		own = host_input(p, offset(c->send, s.first), offset(c->recv, s.first));
		m = sum_of_mates(p, offset(c->send, s.first), s.bytes);
		output_to_rails(p, m, 0);
		if (!own)
			output(p, m, p->rank, 0);
		role_in(p, GROUP_RECEIVE);
		m = sum_of_hosts(p, own, offset(c->recv, s.first), s.bytes, who);
		output_to_mates(p, m, -1, 1);
	}
}

/* A part that passes through the hosts' rails, for allreduce_two_legs. */
static void gather_share(struct program *p, const struct shunt_coll *c, struct span s, int from, unsigned leg)
{
	struct shunt_net_move *m;

	if (!s.bytes)
		return;
	m = move(p, NULL, offset(c->recv, s.first), s.bytes);
	source(p, m, from, leg);
	if (leg == 1 && p->at->island_of[from] != p->host)
		output_to_mates(p, m, -1, 2);
}

/* Two network legs: every rail adds up the part of its share that is its host's, and the rails gather the parts. */
static void allreduce_two_legs(struct program *p, const struct shunt_coll *c, uint64_t bytes)
{
	int nhosts = p->at->nislands, who[SHUNT_NET_MAX_RANKS];
	struct shunt_net_move *m;
	struct span s;

	rails_of(p, who);
	for (int g = 0; g < p->rails; g++) {
		role_in(p, group_of(p, g));
		for (int h = 0; h < nhosts; h++) {
			s = share(p, bytes, g, h);
			if (!s.bytes)
				continue;
			if (g != p->local) {
				send_scaled(p, offset(c->send, s.first), s.bytes, mate(p, g));
				continue;
			}
			m = sum_of_mates(p, offset(c->send, s.first), s.bytes);
			output(p, m, h == p->host ? p->rank : who[h], 0);
		}
		if (g == p->local) {
			role_in(p, GROUP_RECEIVE);
			s = share(p, bytes, g, p->host);
			if (s.bytes) {
				m = sum_of_hosts(p, NULL, offset(c->recv, s.first), s.bytes, who);
				output_to_mates(p, m, -1, 1);
				output_to_rails(p, m, 1);
			}
		} else {
			role_in(p, group_of(p, g));
			gather_share(p, c, share(p, bytes, g, p->host), mate(p, g), 1);
		}
		role_in(p, group_of(p, g));
		for (int h = 0; h < nhosts; h++)
			if (h != p->host)
				gather_share(p, c, share(p, bytes, g, h), g == p->local ? who[h] : mate(p, g),
				    g == p->local ? 1 : 2);
	}
}

static void add_allreduce(struct program *p, const struct shunt_coll *c, uint64_t bytes)
{
	if (p->packets || p->at->nislands == 2 || (p->at->nislands <= 4 && bytes / (unsigned)p->rails <= ONE_LEG_PART))
		allreduce_one_leg(p, c, bytes);
	else
		allreduce_two_legs(p, c, bytes);
}

/* ---- reduce-scatter and all-gather: the part of a rank goes through the rail that has its index, modulo rails */

/* A loop over each rank of the host whose part goes through the rail, in rank order. */
#define EACH_RANK_OF_RAIL(p, host, rail, rank) \
	for (int l_ = (rail), rank; l_ < (p)->at->nlocal[host] && ((rank = (p)->at->rank_at[host][l_]), true); \
	    l_ += (p)->rails)

static void add_reduce_scatter(struct program *p, const struct shunt_coll *c, uint64_t part)
{
	int who[SHUNT_NET_MAX_RANKS], nhosts = p->at->nislands;
	struct shunt_net_move *m;

	rails_of(p, who);
	for (int g = 0; g < p->rails; g++) {
		role_in(p, GROUP_SEND);
		/*
		 * All hosts take the parts in one order, so that no rank waits for a rail that is busy with another
		 * part.
		 */
		for (int h = 0; h < nhosts; h++)
			EACH_RANK_OF_RAIL(p, h, g, r)
			{
				if (g != p->local) {
					send_scaled(p, offset(c->send, (unsigned)r * part), part, mate(p, g));
					continue;
				}
				if (p->packets && h == p->host)
					continue;
				m = sum_of_mates(p, offset(c->send, (unsigned)r * part), part);
				output(p, m, h == p->host ? p->rank : who[h], 0);
			}
	}
	role_in(p, p->local < p->rails ? GROUP_RECEIVE : GROUP_SEND);
	if (p->local < p->rails) {
		EACH_RANK_OF_RAIL(p, p->host, p->local, r)
		{
			m = sum_of_hosts(p, p->packets ? offset(c->send, (unsigned)r * part) : NULL,
			    r == p->rank ? c->recv : NULL, part, who);
			if (r != p->rank)
				output(p, m, r, 1);
		}
	} else {
		m = move(p, NULL, c->recv, part);
		source(p, m, mate(p, p->local % p->rails), 1);
	}
}

/* The roles of a rail: its own host's blocks to the other rails and to its mates, and the other hosts' to its mates. */
static void all_gather_rail(struct program *p, const struct shunt_coll *c, uint64_t part)
{
	struct shunt_net_move *m;

	role_in(p, GROUP_SEND);
	EACH_RANK_OF_RAIL(p, p->host, p->local, r)
	{
		char *to = offset(c->recv, (unsigned)r * part);

		m = r == p->rank ? move(p, c->send, to == c->send ? NULL : to, part) : move(p, NULL, to, part);
		if (r != p->rank)
			source(p, m, r, 0);
		output_to_rails(p, m, 0);
		output_to_mates(p, m, p->at->local_of[r], 1);
	}
	role_in(p, GROUP_RECEIVE);
	for (int h = 0; h < p->at->nislands; h++) {
		if (h == p->host)
			continue;
		EACH_RANK_OF_RAIL(p, h, p->local, r)
		{
			m = move(p, NULL, offset(c->recv, (unsigned)r * part), part);
			source(p, m, p->at->rank_at[h][p->local], 0);
			output_to_mates(p, m, -1, 2);
		}
	}
}

static void add_all_gather(struct program *p, const struct shunt_coll *c, uint64_t part)
{
	struct shunt_net_move *m;
	char *own = offset(c->recv, (unsigned)p->rank * part);

	if (p->local < p->rails) {
		all_gather_rail(p, c, part);
	} else {
		role_in(p, GROUP_SEND);
		m = move(p, c->send, own == c->send ? NULL : own, part);
		output(p, m, mate(p, p->local % p->rails), 0);
	}
	for (int g = 0; g < p->rails; g++) {
		if (g == p->local)
			continue;
		role_in(p, GROUP_RECEIVE);
		EACH_RANK_OF_RAIL(p, p->host, g, r)
		if (r != p->rank) {
			m = move(p, NULL, offset(c->recv, (unsigned)r * part), part);
			source(p, m, mate(p, g), 1);
		}
		role_in(p, GROUP_RECEIVE);
		for (int h = 0; h < p->at->nislands; h++) {
			if (h == p->host)
				continue;
			EACH_RANK_OF_RAIL(p, h, g, r)
			{
				m = move(p, NULL, offset(c->recv, (unsigned)r * part), part);
				source(p, m, mate(p, g), 2);
			}
		}
	}
}

/* ---- broadcast and reduce: through one rank of each host, the root on its own */

static int head_of(const struct program *p, int host, int root)
{
	return p->at->rank_at[host][p->at->local_of[root] % p->at->nlocal[host]];
}

static void add_broadcast(struct program *p, const struct shunt_coll *c, uint64_t bytes)
{
	int head = p->host == p->at->island_of[c->root] ? c->root : head_of(p, p->host, c->root);
	struct shunt_net_move *m;

	role_in(p, GROUP_SEND);
	if (p->rank == c->root) {
		m = move(p, c->send, c->recv == c->send ? NULL : c->recv, bytes);
		for (int h = 0; h < p->at->nislands; h++)
			if (h != p->host)
				output(p, m, head_of(p, h, c->root), 0);
		output_to_mates(p, m, -1, 1);
		return;
	}
	m = move(p, NULL, c->recv, bytes);
	source(p, m, p->rank == head ? c->root : head, p->rank == head ? 0 : 1);
	if (p->rank == head)
		output_to_mates(p, m, -1, 1);
}

static void add_reduce(struct program *p, const struct shunt_coll *c, uint64_t bytes)
{
	int head = p->host == p->at->island_of[c->root] ? c->root : head_of(p, p->host, c->root);
	int who[SHUNT_NET_MAX_RANKS];

	role_in(p, GROUP_SEND);
	if (p->rank != head) {
		send_scaled(p, c->send, bytes, head);
		return;
	}
	if (!p->packets || p->rank != c->root)
		output(p, sum_of_mates(p, c->send, bytes), c->root, 0);
	if (p->rank != c->root)
		return;
	for (int h = 0; h < p->at->nislands; h++)
		who[h] = head_of(p, h, c->root);
	role_in(p, GROUP_RECEIVE);
	sum_of_hosts(p, p->packets ? c->send : NULL, c->recv, bytes, who);
}

/* ---- messages */

/* Each pair by itself: gather, scatter and all-to-all. */
static void add_pairs(struct program *p, const struct shunt_coll *c, uint64_t part)
{
	bool root = p->rank == c->root, sends = shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, root),
	     receives = shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, root);

	for (int i = 0; sends && i < p->at->nranks; i++) {
		int to = (p->rank + i) % p->at->nranks;
		char *in = offset(c->send, shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, to) * part);
		char *out = offset(c->recv, shunt_kind_part_of(c->kind, SHUNT_SIDE_RECV, to) * part);

		if (!i && receives && in != out) {
			role_in(p, GROUP_SEND);
			move(p, in, out, part);
		}
		if (i && shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, to == c->root)) {
			role_in(p, GROUP_SEND);
			output(p, move(p, in, NULL, part), to, 0);
		}
	}
	for (int i = 1; receives && i < p->at->nranks; i++) {
		int from = (p->rank - i + p->at->nranks) % p->at->nranks;
		char *out = offset(c->recv, shunt_kind_part_of(c->kind, SHUNT_SIDE_RECV, from) * part);

		if (shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, from == c->root)) {
			role_in(p, GROUP_RECEIVE);
			source(p, move(p, NULL, out, part), from, 0);
		}
	}
}

/* A group's messages with one rank in one direction, from *next on and at most `most`. True: more follow. */
static bool add_messages(struct program *p, const struct shunt_coll *const *calls, size_t n, int peer,
    enum shunt_kind kind, size_t *next, unsigned most)
{
	unsigned taken = 0;

	role_in(p, kind == SHUNT_SEND ? GROUP_SEND : GROUP_RECEIVE);
	for (; *next < n; ++*next) {
		const struct shunt_coll *c = calls[*next];
		struct shunt_net_move *m;

		if (c->kind != kind || c->root != peer || !c->count)
			continue;
		if (taken++ == most)
			return true;
		m = kind == SHUNT_SEND ? move(p, c->send, NULL, shunt_coll_bytes(c)) :
		                         move(p, NULL, c->recv, shunt_coll_bytes(c));
		if (kind == SHUNT_SEND)
			output(p, m, peer, 0);
		else
			source(p, m, peer, 0);
	}
	return false;
}

/* Messages to this rank itself: the i-th send goes to the i-th receive. */
static bool add_own_messages(
    struct program *p, const struct shunt_coll *const *calls, size_t n, size_t *send, size_t *recv, unsigned most)
{
	role_in(p, GROUP_SEND);
	for (unsigned taken = 0;; taken++, ++*send, ++*recv) {
		uint64_t bytes;

		while (*send < n &&
		    (calls[*send]->kind != SHUNT_SEND || calls[*send]->root != p->rank || !calls[*send]->count))
			++*send;
		while (*recv < n &&
		    (calls[*recv]->kind != SHUNT_RECV || calls[*recv]->root != p->rank || !calls[*recv]->count))
			++*recv;
		if (*send == n || *recv == n)
			return false;
		if (taken == most)
			return true;
		bytes = shunt_coll_bytes(calls[*send]);
		if (shunt_coll_bytes(calls[*recv]) < bytes) /* NCCL accepts two sizes silently */
			bytes = shunt_coll_bytes(calls[*recv]);
		if (calls[*send]->send != calls[*recv]->recv)
			move(p, calls[*send]->send, calls[*recv]->recv, bytes);
	}
}

/* ---- launches */

static struct program begin(const struct shunt_enqueue_ctx *enqueue, struct shunt_kargs_net_many *args)
{
	const struct shunt_topology *at = enqueue->sel_key->topology;

	args->k = *enqueue->base;
	args->k.flags = 0;
	args->total = (uint32_t)at->nranks;
	return (struct program){ .at = at,
		.rank = at->rank,
		.host = at->island_of[at->rank],
		.local = shunt_topology_local(at),
		.nlocal = shunt_topology_nlocal(at),
		.rails = at->rails,
		.args = args };
}

static void set_factor(struct shunt_kargs *k, const struct shunt_decision *decision, const struct shunt_coll *c, int n)
{
	k->flags = decision->flags;
	if (!(k->flags & SHUNT_K_PREMUL))
		return;
	if (c->redop == SHUNT_PREMUL)
		shunt_algo_set_factor(k, decision, c);
	else
		k->scalar = shunt_dtype_reciprocal(c->dtype, n);
}

static bool is_few(const struct program *p)
{
	return p->nroles <= SHUNT_NET_FEW_ROLES && p->nmoves <= SHUNT_NET_FEW_MOVES && p->nends <= SHUNT_NET_FEW_ENDS;
}

/* A program under construction, and its launch. */
struct draft {
	struct shunt_kargs_net_many program;
	struct shunt_work work;
};

static void fill_args(const struct program *p, struct shunt_work *work)
{
	struct shunt_kargs_net_few *few = &work->args.net_few;

	if (!is_few(p)) {
		work->kernel += SHUNT_KERNEL(SHUNT_SHAPE_hosts_many, 0, 0) - SHUNT_KERNEL(SHUNT_SHAPE_hosts, 0, 0);
		work->args.net_many = *p->args;
		return;
	}
	few->k = p->args->k;
	few->roles = (uint16_t)p->args->roles;
	few->sends = p->sends;
	few->receives = p->receives;
	few->total = p->args->total;
	memcpy(few->role, p->args->role, p->nroles * sizeof(*few->role));
	memcpy(few->move, p->args->move, p->nmoves * sizeof(*few->move));
	memcpy(few->end, p->args->end, p->nends * sizeof(*few->end));
}

/* A thread for each four packs of a chunk, and a warp for each role. */
static unsigned threads_for(unsigned nroles, uint64_t chunk)
{
	uint64_t threads = (chunk / THREAD_BYTES + 31) & ~(uint64_t)31;

	if (threads < nroles * 32)
		threads = nroles * 32;
	return threads < SHUNT_MAX_THREADS ? (unsigned)threads : SHUNT_MAX_THREADS;
}

/* kernel: of the shape `hosts`. */
static int launch(const struct shunt_enqueue_ctx *enqueue, struct program *p, unsigned kernel, struct shunt_work *work)
{
	const struct shunt_sel_key *sel_key = enqueue->sel_key;
	const struct shunt_limits *limits = &enqueue->limits;
	unsigned most = shunt_grid_halve(limits->few_ctas, SHUNT_NET_GROUPS * SHUNT_NET_CHANNELS), channels, groups;
	uint64_t chunk, chunks;

	if (p->full)
		return -E2BIG;
	if (p->nroles && !p->args->role[p->nroles - 1].count)
		p->nroles--;
	if (!p->nroles)
		return 0; /* this rank takes no part */
	p->args->roles = p->nroles;
	chunk = shunt_net_chunk(p->largest, sel_key->net_channels, sel_key->net_slot_bytes);
	chunks = (p->largest + chunk - 1) / chunk;
	channels = chunks < sel_key->net_channels ? (unsigned)chunks : sel_key->net_channels;
	p->args->k.channels = (uint16_t)channels;
	/* The limit may be the call's, or this rank's alone: fewer blocks have the same channels. */
	if (limits->max_ctas && (unsigned)limits->max_ctas < most)
		most = (unsigned)limits->max_ctas;
	if (p->packets)
		most = 1;
	groups = p->nroles > 1 && channels * SHUNT_NET_GROUPS <= most ? SHUNT_NET_GROUPS : 1;
	*work = (struct shunt_work){ .kernel = kernel,
		.blocks = channels < most ? channels * groups : most,
		.threads = sel_key->sim ? 64 :
		    p->packets          ? SHUNT_NET_PACKET_PACKS(p->largest) / 32 * 32 + 32 : /* one for the credits */
		                          threads_for(p->nroles, p->largest < chunk ? p->largest : chunk) };
	fill_args(p, work);
	return enqueue->emit(enqueue->ctx, work);
}

static unsigned copy_kernel(const struct program *p)
{
	return SHUNT_KERNEL(SHUNT_SHAPE_hosts, SHUNT_KOP_COPY, shunt_copy_type(p->align));
}

static int enqueue_messages(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls, size_t n, struct draft *draft)
{
	const struct shunt_topology *at = enqueue->sel_key->topology;
	size_t next[2][SHUNT_NET_MAX_RANKS] = { 0 }, own[2] = { 0 };
	bool more = true;
	int err = 0;

	/* As many of each pair in a launch as all pairs have room for. */
	while (more && !err) {
		struct program p = begin(enqueue, &draft->program);
		unsigned most = SHUNT_NET_MANY_MOVES / (2 * (unsigned)at->nranks);

		more = add_own_messages(&p, calls, n, &own[0], &own[1], most);
		for (int i = 1; i < at->nranks; i++) {
			int to = (at->rank + i) % at->nranks, from = (at->rank - i + at->nranks) % at->nranks;

			more |= add_messages(&p, calls, n, to, SHUNT_SEND, &next[0][to], most);
			more |= add_messages(&p, calls, n, from, SHUNT_RECV, &next[1][from], most);
		}
		err = launch(enqueue, &p, copy_kernel(&p), &draft->work);
	}
	return err;
}

static int enqueue_collective(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
    const struct shunt_coll *c, struct draft *draft)
{
	struct program p = begin(enqueue, &draft->program);
	uint64_t bytes = shunt_coll_bytes(c);

	p.packets = p.at->nislands == p.at->nranks && p.at->nranks <= (int)SHUNT_NET_PACKET_RANKS &&
	    bytes <= SHUNT_NET_PACKET_MOST;
	switch (c->kind) {
	case SHUNT_ALLREDUCE:
		add_allreduce(&p, c, bytes);
		break;
	case SHUNT_REDUCESCATTER:
		add_reduce_scatter(&p, c, bytes);
		break;
	case SHUNT_REDUCE:
		add_reduce(&p, c, bytes);
		break;
	case SHUNT_ALLGATHER:
		add_all_gather(&p, c, bytes);
		break;
	case SHUNT_BROADCAST:
		add_broadcast(&p, c, bytes);
		break;
	default:
		add_pairs(&p, c, bytes);
		break;
	}
	if (shunt_kind_reduces(c->kind))
		set_factor(&p.args->k, decision, c, p.at->nranks);
	return launch(enqueue, &p, shunt_kind_reduces(c->kind) ? decision->kernel : copy_kernel(&p), &draft->work);
}

int shunt_hierarchical_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	struct draft *draft = malloc(sizeof(*draft));
	int err = 0;

	if (!draft)
		return -ENOMEM;
	if (shunt_kind_is_p2p(calls[0]->kind))
		err = enqueue_messages(enqueue, calls, ncalls, draft);
	else
		for (size_t i = 0; i < ncalls && !err; i++)
			err = enqueue_collective(enqueue, &decisions[i], calls[i], draft);
	free(draft);
	return err;
}
