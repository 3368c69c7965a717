/* SPDX-License-Identifier: MIT */
/* Patterns of messages: in groups, without, and between ranks that group them in another way. */
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

/* Several messages for one peer in one group keep their order. */
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

/* One rank sends, one receives, and no group: a pipeline of stages. */
void conform_pattern_pipeline(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned batch = 0; batch < 4; batch++) {
		if (b->rank)
			conform_call(b, BENCH_COLL_RECV, b->rank - 1, c->count + batch);
		if (b->rank + 1 < b->nranks)
			conform_call(b, BENCH_COLL_SEND, b->rank + 1, c->count + batch);
	}
}

/* The root in a group, the others without: how torch's gather and scatter look. */
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

/* Every rank with every other, both ways. */
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

/* To both neighbours and from both, as halos are exchanged; with two ranks these are two messages of one pair. */
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

/* Every type, so that sizes and alignments of all kinds meet in one group. */
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
 * There and back without a group: the other end answers when it has the message. The last of an odd number has no
 * partner.
 */
void conform_pattern_ping_pong(struct conform_build *b, const struct conform_case *c)
{
	int peer = b->rank ^ 1;

	for (unsigned i = 0; i < 4 && peer < b->nranks; i++)
		for (int half = 0; half < 2; half++)
			conform_call(b, (b->rank + half) % 2 ? BENCH_COLL_RECV : BENCH_COLL_SEND, peer,
			    conform_uneven(b, c, i, (unsigned)(peer / 2)));
}

/* The two ends of a pair need not agree about where groups begin and end. */
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
