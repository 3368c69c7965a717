/* SPDX-License-Identifier: MIT */
/*
 * Pipelined shapes: an instance is a set of blocks, one for each stage, and has chunks of its own: its chunk c is chunk
 * c * instances + instance of the buffer. A stage works in windows and signals the next one after each window. A slot
 * holds a whole chunk, so no stage waits for a later one.
 *
 * A rank may write to a peer's scratch only when the peer's last launch does not use it any more: the receiver signals
 * that it has begun this launch. The all-reduce needs no such signal: a rank with all results knows that all ranks have
 * read what it sent, and it writes results only after the peer's data of this launch has come. For messages of another
 * size, which divide scratch differently, Shunt quiesces the ranks first.
 */
#include "tools/plan/shapes/shapes.h"

/* Puts a chunk to every peer: first + peer * step of `buffer`. */
static void put_to_all(struct plan_instance *l, char buffer, unsigned first, unsigned step)
{
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[PLAN_SHAPE_RANKS];

	for (unsigned i = 0; i < l->npeers; i++) {
		src[i] = instance_own(l, buffer, first + l->peers[i] * step);
		dst[i] = instance_at_peer(l, l->peers[i], l->w->rank);
	}
	plan_write_data(l->w, "put", src, l->npeers, dst, l->npeers);
}

static void copy_from_all(struct plan_instance *l, unsigned slots, char to)
{
	for (unsigned i = 0; i < l->npeers; i++)
		plan_write_copy(l->w, instance_own(l, 's', slots + l->peers[i]), instance_own(l, to, l->peers[i]));
}

/* Operands of this rank's reduction: the ranks' slots in order, with its own from the input. */
static unsigned reduce_operands(const struct plan_instance *l, struct plan_slice *src)
{
	unsigned n = l->w->recipe->nranks;

	for (unsigned p = 0; p < n; p++)
		src[p] = p == l->w->rank ? instance_own(l, 'i', p) : instance_own(l, 's', p);
	return n;
}

/* Block instance * roles + role runs stage(instance, role). */
static void write_pipelined(struct plan_writer *w, const struct plan_recipe *r, const unsigned parts[3], unsigned links,
    void (*stage)(struct plan_instance *l, unsigned role))
{
	const unsigned chunks[3] = { parts[0] * r->instances, parts[1] * r->instances, parts[2] * r->instances };

	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, false, r->instances * links);
		for (unsigned b = 0; b < r->blocks; b++) {
			struct plan_instance l = { .w = w, .instance = b / r->shape->roles, .instances = r->instances };

			l.npeers = plan_other_ranks(w, l.instance, l.peers);
			plan_write_block(w, b, l.instance * links, links);
			stage(&l, b % r->shape->roles);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

/* Links: 0 operands are there, 1 results are there. */
static void allreduce_stage(struct plan_instance *l, unsigned role)
{
	struct plan_writer *w = l->w;
	unsigned n = w->recipe->nranks, nsrc;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[1 + PLAN_SHAPE_RANKS] = { instance_own(l, result, w->rank) };

	plan_write_pipeline(w);
	if (role == 0) {
		put_to_all(l, 'i', 0, 1);
		instance_signal(l, 0, l->peers, l->npeers);
	} else if (role == 1) {
		instance_wait(l, 0, l->peers, l->npeers);
		nsrc = reduce_operands(l, src);
		for (unsigned i = 0; i < l->npeers; i++)
			dst[1 + i] = instance_at_peer(l, l->peers[i], n + w->rank);
		plan_write_data(w, "res", src, nsrc, dst, n);
		instance_signal(l, 1, l->peers, l->npeers);
	} else {
		instance_wait(l, 1, l->peers, l->npeers);
		copy_from_all(l, n, result);
	}
	plan_write_pipeline_end(w);
}

void plan_shape_allreduce_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	write_pipelined(w, r, (const unsigned[]){ r->nranks, r->nranks, 2 * r->nranks }, 2, allreduce_stage);
}

/* The other collectives. Links: 0 the receiver has begun, 1 data is there. */
static void send_begin(struct plan_instance *l)
{
	instance_wait(l, 0, l->peers, l->npeers);
	plan_write_pipeline(l->w);
}

static void send_end(struct plan_instance *l)
{
	instance_signal(l, 1, l->peers, l->npeers);
	plan_write_pipeline_end(l->w);
}

static void receive_begin(struct plan_instance *l)
{
	plan_write_sync(l->w, "signal", 0, l->peers, l->npeers);
	plan_write_pipeline(l->w);
	instance_wait(l, 1, l->peers, l->npeers);
}

static void allgather_stage(struct plan_instance *l, unsigned role)
{
	struct plan_writer *w = l->w;
	bool inplace = w->recipe->inplace;

	if (role == 0) {
		send_begin(l);
		put_to_all(l, inplace ? 'o' : 'i', inplace ? w->rank : 0, 0);
		send_end(l);
		if (!inplace)
			plan_write_copy(w, instance_own(l, 'i', 0), instance_own(l, 'o', w->rank));
	} else {
		receive_begin(l);
		copy_from_all(l, 0, 'o');
		plan_write_pipeline_end(w);
	}
}

void plan_shape_allgather_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	write_pipelined(w, r, (const unsigned[]){ 1, r->nranks, r->nranks }, 2, allgather_stage);
}

static void reducescatter_stage(struct plan_instance *l, unsigned role)
{
	struct plan_writer *w = l->w;
	struct plan_slice src[PLAN_SHAPE_RANKS],
	    dst = w->recipe->inplace ? instance_own(l, 'i', w->rank) : instance_own(l, 'o', 0);

	if (role == 0) {
		send_begin(l);
		put_to_all(l, 'i', 0, 1);
		send_end(l);
	} else {
		unsigned nsrc = reduce_operands(l, src);

		receive_begin(l);
		plan_write_data(w, "re", src, nsrc, &dst, 1);
		plan_write_pipeline_end(w);
	}
}

void plan_shape_reducescatter_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	write_pipelined(w, r, (const unsigned[]){ r->nranks, 1, r->nranks }, 2, reducescatter_stage);
}

static void alltoall_stage(struct plan_instance *l, unsigned role)
{
	struct plan_writer *w = l->w;

	if (role == 0) {
		send_begin(l);
		put_to_all(l, 'i', 0, 1);
		send_end(l);
		plan_write_copy(w, instance_own(l, 'i', w->rank), instance_own(l, 'o', w->rank));
	} else {
		receive_begin(l);
		copy_from_all(l, 0, 'o');
		plan_write_pipeline_end(w);
	}
}

void plan_shape_alltoall_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	write_pipelined(w, r, (const unsigned[]){ r->nranks, r->nranks, r->nranks }, 2, alltoall_stage);
}
