/* SPDX-License-Identifier: MIT */
/* Patterns of messages: in groups, without groups, and with different groups on the two ranks. */
#include "tools/conform/patterns.h"

void conform_pattern_all_to_all_v(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int peer = 0; peer < b->nranks; peer++) {
		conform_call(b, BENCH_COLL_SEND, peer, conform_uneven(b, c, (unsigned)b->rank, (unsigned)peer));
		conform_call(b, BENCH_COLL_RECV, peer, conform_uneven(b, c, (unsigned)peer, (unsigned)b->rank));
	}
	conform_group_end(b);
}

void conform_pattern_ring(struct conform_build *b, const struct conform_case *c)
{
	for (int step = 1; step < b->nranks; step++)
		conform_ring(b, c->count, step);
	conform_ring(b, c->count, 1);
}

/* Several messages to one peer in one group keep their order. */
void conform_pattern_in_order(struct conform_build *b, const struct conform_case *c)
{
	int next = (b->rank + 1) % b->nranks, before = (b->rank + b->nranks - 1) % b->nranks;

	conform_group_start(b);
	for (unsigned i = 0; i < 6; i++)
		conform_call(b, BENCH_COLL_SEND, next, conform_uneven(b, c, (unsigned)b->rank, i));
	for (unsigned i = 0; i < 6; i++)
		conform_call(b, BENCH_COLL_RECV, before, conform_uneven(b, c, (unsigned)before, i));
	conform_group_end(b);
}

void conform_pattern_self(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (unsigned i = 0; i < 3; i++) {
		conform_call(b, BENCH_COLL_SEND, b->rank, conform_uneven(b, c, i, 1));
		conform_call(b, BENCH_COLL_RECV, b->rank, conform_uneven(b, c, i, 1));
	}
	conform_group_end(b);
}

/* Each rank receives from the previous one and sends to the next, without a group: a pipeline of stages. */
void conform_pattern_pipeline(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned batch = 0; batch < 4; batch++) {
		if (b->rank)
			conform_call(b, BENCH_COLL_RECV, b->rank - 1, c->count + batch);
		if (b->rank + 1 < b->nranks)
			conform_call(b, BENCH_COLL_SEND, b->rank + 1, c->count + batch);
	}
}

/* The root uses a group, the other ranks do not, as in torch's gather and scatter. */
void conform_pattern_star(struct conform_build *b, const struct conform_case *c)
{
	for (int out = 0; out < 2; out++) {
		enum bench_coll_id mine = out ? BENCH_COLL_SEND : BENCH_COLL_RECV,
		                   theirs = out ? BENCH_COLL_RECV : BENCH_COLL_SEND;

		if (b->rank) {
			conform_call(b, theirs, 0, c->count);
			continue;
		}
		conform_group_start(b);
		for (int peer = 1; peer < b->nranks; peer++)
			conform_call(b, mine, peer, c->count);
		conform_group_end(b);
	}
}

/* Every rank with every other rank, in both directions. */
void conform_pattern_pairs(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int peer = 0; peer < b->nranks; peer++) {
		if (peer == b->rank)
			continue;
		conform_call(b, BENCH_COLL_RECV, peer, c->count);
		conform_call(b, BENCH_COLL_SEND, peer, c->count);
	}
	conform_group_end(b);
}

/* Halo exchange: to and from both neighbours. With two ranks these are two messages of one pair. */
void conform_pattern_halo(struct conform_build *b, const struct conform_case *c)
{
	int next = (b->rank + 1) % b->nranks, before = (b->rank + b->nranks - 1) % b->nranks;

	conform_group_start(b);
	conform_call(b, BENCH_COLL_SEND, next, c->count);
	conform_call(b, BENCH_COLL_RECV, before, c->count);
	conform_call(b, BENCH_COLL_SEND, before, c->count);
	conform_call(b, BENCH_COLL_RECV, next, c->count);
	conform_group_end(b);
}

/* All types in one group: sizes and alignments of all kinds. */
void conform_pattern_message_types(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int dtype = 0; dtype < SHUNT_NDTYPES; dtype++) {
		b->dtype = dtype;
		conform_call(b, BENCH_COLL_SEND, (b->rank + 1) % b->nranks, conform_uneven(b, c, (unsigned)dtype, 1));
		conform_call(b, BENCH_COLL_RECV, (b->rank + b->nranks - 1) % b->nranks,
		    conform_uneven(b, c, (unsigned)dtype, 1));
	}
	conform_group_end(b);
}

/*
 * There and back without a group: the partner answers after the message has come. The last of an odd number of ranks
 * has no partner.
 */
void conform_pattern_ping_pong(struct conform_build *b, const struct conform_case *c)
{
	int peer = b->rank ^ 1;

	for (unsigned i = 0; i < 4 && peer < b->nranks; i++)
		for (int half = 0; half < 2; half++)
			conform_call(b, (b->rank + half) % 2 ? BENCH_COLL_RECV : BENCH_COLL_SEND, peer,
			    conform_uneven(b, c, i, (unsigned)(peer / 2)));
}

/* The two ranks of a pair have different group boundaries. */
void conform_pattern_grouped_apart(struct conform_build *b, const struct conform_case *c)
{
	int peer = b->rank ^ 1;

	if (peer >= b->nranks)
		return;
	for (unsigned i = 0; i < 6; i++) {
		unsigned each = b->rank % 2 ? 3 : 1; /* messages in a group */

		if (i % each == 0 && each > 1)
			conform_group_start(b);
		conform_call(b, b->rank % 2 ? BENCH_COLL_RECV : BENCH_COLL_SEND, peer,
		    conform_uneven(b, c, i, (unsigned)(peer / 2)));
		if (i % each == each - 1 && each > 1)
			conform_group_end(b);
	}
}
