/* SPDX-License-Identifier: MIT */
/*
 * Shapes for several hosts. Inside a host ranks load and store; between hosts each rank sends to the ranks with the
 * same index on other hosts, its rails. The sum of a host's ranks is made once, by one of them, and sums of hosts are
 * added in the order of the hosts: so all ranks have the same bits.
 *
 * hierarchical: an instance is a block with chunks of its own. Data for other hosts is put from scratch to scratch, and
 * scratch has no other data: over hosts scratch is in the host's memory, and data between ranks of one host stays in
 * their inputs and outputs. Ranks that use these enter a launch together. A rank that is alone on its host uses none,
 * and asks its rails first.
 *
 * hierarchical-ll: for small messages; everything goes as packets, and each block does its part of every slice. ll.c
 * says why no signals are needed.
 */
#include <string.h>
#include "tools/plan/shapes/shapes.h"

/* This rank's host and its index there, and their numbers. */
struct place {
	unsigned host, index, nhosts, locals;
};

static struct place place_of(const struct plan_writer *w)
{
	unsigned locals = plan_locals(w);

	return (struct place){ w->rank / locals, w->rank % locals, w->recipe->nhosts, locals };
}

/* The ranks with this rank's index on the other hosts, the next host first. */
static unsigned rails_of(const struct plan_writer *w, unsigned rails[PLAN_SHAPE_RANKS])
{
	struct place at = place_of(w);
	unsigned n = 0;

	for (unsigned i = 1; i < at.nhosts; i++)
		rails[n++] = plan_rail_rank(w, (at.host + i) % at.nhosts);
	return n;
}

/* The other ranks of the host, the next one first; with ascending, in the order of ranks. */
static unsigned mates_of(const struct plan_writer *w, bool ascending, unsigned mates[PLAN_SHAPE_RANKS])
{
	struct place at = place_of(w);
	unsigned n = 0;

	for (unsigned i = 1; i < at.locals; i++, n++) {
		unsigned index = ascending ? i - (i <= at.index) : (at.index + i) % at.locals;

		mates[n] = at.host * at.locals + index;
	}
	return n;
}

/* One source to the same chunk of several ranks, all of this host or all of others. */
static void write_to_all(struct plan_writer *w, const char *op, struct plan_slice from, struct plan_slice to,
    const unsigned *ranks, unsigned n)
{
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[PLAN_SHAPE_RANKS];

	for (unsigned i = 0; i < n; i++) {
		src[i] = from;
		dst[i] = to;
		dst[i].peer = (int)ranks[i];
	}
	/* Packets that are there already have one source. */
	if (n)
		plan_write_data(w, op, src, strcmp(op, "rppkt") ? n : 1, dst, n);
}

/* ---- hierarchical */

static void write_instances(struct plan_writer *w, const struct plan_recipe *r, const unsigned parts[3],
    void (*instance)(struct plan_instance *l, const struct place *at))
{
	const unsigned chunks[3] = { parts[0] * r->instances, parts[1] * r->instances, parts[2] * r->instances };

	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, false, r->instances);
		for (unsigned i = 0; i < r->instances; i++) {
			struct plan_instance l = { .w = w, .instance = i, .instances = r->instances };
			struct place at = place_of(w);

			l.npeers = rails_of(w, l.peers);
			plan_write_block(w, i, i, 1);
			if (at.locals == 1) {
				plan_write_sync(w, "signal", 0, l.peers, l.npeers);
				instance_wait(&l, 0, l.peers, l.npeers);
			}
			instance(&l, &at);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

/* Sums chunk c of the inputs of the host's ranks, this rank's first, in scratch. */
static void sum_host(struct plan_instance *l, unsigned c, unsigned slot)
{
	struct plan_slice src[PLAN_SHAPE_RANKS] = { instance_own(l, 'i', c) }, sum = instance_own(l, 's', slot);
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(l->w, true, mates);

	for (unsigned i = 0; i < n; i++)
		src[1 + i] = (struct plan_slice){ 'i', (int)mates[i], instance_chunk(l, c), 1 };
	if (n)
		plan_write_data(l->w, "rre", src, 1 + n, &sum, 1);
	else
		plan_write_copy(l->w, src[0], sum);
}

/* Puts a slot to the same slot of all rails, or to another slot of one of them, and signals. */
static void put_to_rails(struct plan_instance *l, unsigned slot)
{
	plan_write_nop(l->w);
	write_to_all(l->w, "pws", instance_own(l, 's', slot), instance_own(l, 's', slot), l->peers, l->npeers);
}

static void put_to_rail(struct plan_instance *l, unsigned slot, unsigned rail, unsigned to)
{
	struct plan_slice src = instance_own(l, 's', slot), dst = instance_at_peer(l, rail, to);

	plan_write_nop(l->w);
	plan_write_data(l->w, "pws", &src, 1, &dst, 1);
}

/* Gives the same chunk of `buffer` to the host's other ranks. */
static void put_to_mates(struct plan_instance *l, struct plan_slice from, char buffer, unsigned c)
{
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(l->w, false, mates);

	write_to_all(l->w, "put", from, instance_own(l, buffer, c), mates, n);
}

/* All ranks of the host have given. */
static void sync_mates(struct plan_instance *l)
{
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(l->w, false, mates);

	if (!n)
		return;
	instance_signal(l, 0, mates, n);
	plan_write_sync(l->w, "wait", 0, mates, n);
}

/* Slot h: the sum of host h of the part that this rank and its rails add up. */
static void allreduce_instance(struct plan_instance *l, const struct place *at)
{
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[PLAN_SHAPE_RANKS];
	char result = l->w->recipe->inplace ? 'i' : 'o';
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(l->w, false, mates);

	sum_host(l, at->index, at->host);
	put_to_rails(l, at->host);
	instance_wait(l, 0, l->peers, l->npeers);
	for (unsigned h = 0; h < at->nhosts; h++)
		src[h] = instance_own(l, 's', h);
	dst[0] = instance_own(l, result, at->index);
	for (unsigned i = 0; i < n; i++)
		dst[1 + i] = (struct plan_slice){ result, (int)mates[i], dst[0].index, 1 };
	plan_write_data(l->w, n ? "res" : "re", src, at->nhosts, dst, 1 + n);
	sync_mates(l);
}

void plan_shape_allreduce_hosts(struct plan_writer *w, const struct plan_recipe *r)
{
	unsigned locals = r->nranks / r->nhosts;

	w->mates = r->inplace ? "i" : "io";
	write_instances(w, r, (const unsigned[]){ locals, locals, r->nhosts }, allreduce_instance);
}

/* Slot h: the block of this rank's rail on host h. */
static void allgather_instance(struct plan_instance *l, const struct place *at)
{
	struct plan_writer *w = l->w;
	struct plan_slice mine = w->recipe->inplace ? instance_own(l, 'o', w->rank) : instance_own(l, 'i', 0);

	plan_write_copy(w, mine, instance_own(l, 's', at->host));
	put_to_rails(l, at->host);
	put_to_mates(l, mine, 'o', w->rank);
	if (!w->recipe->inplace)
		plan_write_copy(w, mine, instance_own(l, 'o', w->rank));
	instance_wait(l, 0, l->peers, l->npeers);
	for (unsigned i = 0; i < l->npeers; i++) {
		struct plan_slice block = instance_own(l, 's', l->peers[i] / at->locals);

		put_to_mates(l, block, 'o', l->peers[i]);
		plan_write_copy(w, block, instance_own(l, 'o', l->peers[i]));
	}
	sync_mates(l);
}

void plan_shape_allgather_hosts(struct plan_writer *w, const struct plan_recipe *r)
{
	w->mates = "o";
	write_instances(w, r, (const unsigned[]){ 1, r->nranks, r->nhosts }, allgather_instance);
}

/* Slot h: this host's sum for the rail on host h; nhosts + h: the sum of host h for this rank. */
static void reducescatter_instance(struct plan_instance *l, const struct place *at)
{
	struct plan_writer *w = l->w;
	struct plan_slice src[PLAN_SHAPE_RANKS],
	    dst = w->recipe->inplace ? instance_own(l, 'i', w->rank) : instance_own(l, 'o', 0);

	for (unsigned i = 0; i < l->npeers; i++) {
		sum_host(l, l->peers[i], l->peers[i] / at->locals);
		put_to_rail(l, l->peers[i] / at->locals, l->peers[i], at->nhosts + at->host);
	}
	sum_host(l, w->rank, at->host);
	instance_wait(l, 0, l->peers, l->npeers);
	for (unsigned h = 0; h < at->nhosts; h++)
		src[h] = instance_own(l, 's', h == at->host ? h : at->nhosts + h);
	plan_write_data(w, "re", src, at->nhosts, &dst, 1);
}

void plan_shape_reducescatter_hosts(struct plan_writer *w, const struct plan_recipe *r)
{
	w->mates = "i";
	write_instances(w, r, (const unsigned[]){ r->nranks, 1, 2 * r->nhosts }, reducescatter_instance);
}

/* ---- hierarchical-ll */

static void write_grouped(struct plan_writer *w, const struct plan_recipe *r, const unsigned chunks[3],
    void (*block)(struct plan_writer *w, const struct place *at))
{
	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, false, 1);
		for (unsigned b = 0; b < r->blocks; b++) {
			struct place at = place_of(w);

			w->part = (int)b;
			w->parts = (int)r->blocks;
			plan_write_block(w, b, 0, 1);
			block(w, &at);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

/* Passes packets of the own scratch on to the same slot of the rails. */
static void packets_to_rails(struct plan_writer *w, unsigned slot)
{
	unsigned rails[PLAN_SHAPE_RANKS], n = rails_of(w, rails);

	write_to_all(w, "rppkt", plan_local_slice('s', slot), plan_local_slice('s', slot), rails, n);
}

static void unpack(struct plan_writer *w, unsigned slot, struct plan_slice to)
{
	struct plan_slice from = plan_local_slice('s', slot);

	plan_write_data(w, "upkt", &from, 1, &to, 1);
}

/*
 * Sums chunk c of the host's ranks, those of the others being in slots first + index, as packets in slot `sum` and, if
 * there are others, in `plain`.
 */
static void sum_host_packets(struct plan_writer *w, unsigned c, unsigned first, unsigned sum, struct plan_slice plain)
{
	struct plan_slice src[PLAN_SHAPE_RANKS] = { plan_local_slice('i', c) },
	                  dst[2] = { plain, plan_local_slice('s', sum) };
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(w, true, mates);

	for (unsigned i = 0; i < n; i++)
		src[1 + i] = plan_local_slice('s', first + mates[i] % plan_locals(w));
	if (n)
		plan_write_data(w, "recpkt", src, 1 + n, dst, 2);
	else
		plan_write_data(w, "cpkt", src, 1, &dst[1], 1);
}

/*
 * Operands of the sum over hosts, which are packets in slots first + h. Packet operations add the plain operand last:
 * it is the last host's on all ranks, and is unpacked to `plain` for that.
 */
static unsigned host_operands(struct plan_writer *w, unsigned first, struct plan_slice plain, struct plan_slice *src)
{
	unsigned last = w->recipe->nhosts - 1;

	plan_write_nop(w);
	unpack(w, first + last, plain);
	plan_write_nop(w);
	src[0] = plain;
	for (unsigned h = 0; h < last; h++)
		src[1 + h] = plan_local_slice('s', first + h);
	return 1 + last;
}

/* Slots: the mates' operands by index, the sums of hosts, the mates' results by index. */
static void allreduce_block(struct plan_writer *w, const struct place *at)
{
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(w, false, mates), sums = at->locals, results = sums + at->nhosts;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[PLAN_SHAPE_RANKS] = { plan_local_slice(result, at->index) };
	unsigned nsrc;

	for (unsigned i = 0; i < n; i++) {
		src[i] = plan_local_slice('i', mates[i] % at->locals);
		dst[1 + i] = plan_peer_slice(mates[i], at->index);
	}
	if (n)
		plan_write_data(w, "ppkt", src, n, dst + 1, n);
	sum_host_packets(w, at->index, 0, sums + at->host, dst[0]);
	packets_to_rails(w, sums + at->host);
	nsrc = host_operands(w, sums, dst[0], src);
	for (unsigned i = 0; i < n; i++)
		dst[1 + i].index = results + at->index;
	plan_write_data(w, n ? "respkt" : "repkt", src, nsrc, dst, 1 + n);
	for (unsigned i = 0; i < n; i++)
		unpack(w, results + mates[i] % at->locals, plan_local_slice(result, mates[i] % at->locals));
}

void plan_shape_allreduce_hosts_ll(struct plan_writer *w, const struct plan_recipe *r)
{
	unsigned locals = r->nranks / r->nhosts;

	write_grouped(w, r, (const unsigned[]){ locals, locals, 2 * locals + r->nhosts }, allreduce_block);
}

/* Slot r: the block of rank r. */
static void allgather_block(struct plan_writer *w, const struct place *at)
{
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(w, false, mates), rails[PLAN_SHAPE_RANKS],
	                                  nrails = rails_of(w, rails);
	struct plan_slice mine = w->recipe->inplace ? plan_local_slice('o', w->rank) : plan_local_slice('i', 0),
	                  slot = plan_local_slice('s', w->rank);

	plan_write_data(w, "cpkt", &mine, 1, &slot, 1);
	packets_to_rails(w, w->rank);
	write_to_all(w, "ppkt", mine, slot, mates, n);
	if (!w->recipe->inplace)
		plan_write_copy(w, mine, plan_local_slice('o', w->rank));
	for (unsigned i = 0; i < n; i++)
		unpack(w, mates[i], plan_local_slice('o', mates[i]));
	for (unsigned k = 0; k < nrails; k++) {
		write_to_all(w, "rppkt", plan_local_slice('s', rails[k]), plan_local_slice('s', rails[k]), mates, n);
		unpack(w, rails[k], plan_local_slice('o', rails[k]));
	}
	for (unsigned k = 0; k < nrails; k++)
		for (unsigned i = 0; i < n; i++) {
			unsigned from = rails[k] / at->locals * at->locals + mates[i] % at->locals;

			unpack(w, from, plan_local_slice('o', from));
		}
}

void plan_shape_allgather_hosts_ll(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ 1, r->nranks, r->nranks }, allgather_block);
}

/* Slots: the mates' operands, by the host that they are for and by index; sums for rails by host; sums of hosts. */
static void reducescatter_block(struct plan_writer *w, const struct place *at)
{
	unsigned mates[PLAN_SHAPE_RANKS], n = mates_of(w, false, mates), rails[PLAN_SHAPE_RANKS],
	                                  nrails = rails_of(w, rails), sums = w->recipe->nranks,
	                                  got = sums + at->nhosts;
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[PLAN_SHAPE_RANKS],
	    result = w->recipe->inplace ? plan_local_slice('i', w->rank) : plan_local_slice('o', 0);
	unsigned nsrc;

	for (unsigned k = 0; k < at->nhosts; k++) {
		unsigned first = (at->host + 1 + k) % at->nhosts * at->locals;

		for (unsigned i = 0; i < n; i++) {
			src[i] = plan_local_slice('i', first + mates[i] % at->locals);
			dst[i] = plan_peer_slice(mates[i], first + at->index);
		}
		if (n)
			plan_write_data(w, "ppkt", src, n, dst, n);
	}
	/*
	 * In place, this rank's input must be read before the place of the result is used for the sums of other ranks.
	 */
	sum_host_packets(w, w->rank, at->host * at->locals, got + at->host, result);
	for (unsigned k = 0; k < nrails; k++) {
		unsigned host = rails[k] / at->locals;
		struct plan_slice from = plan_local_slice('s', sums + host),
		                  to = plan_peer_slice(rails[k], got + at->host);

		sum_host_packets(w, rails[k], host * at->locals, sums + host, result);
		plan_write_data(w, "rppkt", &from, 1, &to, 1);
	}
	nsrc = host_operands(w, got, result, src);
	plan_write_data(w, "repkt", src, nsrc, &result, 1);
}

void plan_shape_reducescatter_hosts_ll(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ r->nranks, 1, r->nranks + 2 * r->nhosts }, reducescatter_block);
}
