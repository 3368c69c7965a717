/* SPDX-License-Identifier: MIT */
/* Patterns of collectives and messages, in one group or in sequence. */
#include "tools/conform/patterns.h"

/* An all-gather of blocks of different sizes: a broadcast from every rank. */
void conform_pattern_all_gather_v(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int root = 0; root < b->nranks; root++)
		conform_call(b, BENCH_COLL_BROADCAST, root, conform_uneven(b, c, (unsigned)root, 0));
	conform_group_end(b);
}

void conform_pattern_reduce_scatter_v(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int root = 0; root < b->nranks; root++)
		conform_call(b, BENCH_COLL_REDUCE, root, conform_uneven(b, c, (unsigned)root, 0));
	conform_group_end(b);
}

void conform_pattern_zero_bytes(struct conform_build *b, const struct conform_case *c)
{
	conform_ring(b, 0, 1);
	conform_ring(b, c->count, 1);
	conform_ring(b, 0, 1);
	conform_call(b, BENCH_COLL_ALLREDUCE, 0, 0);
	conform_call(b, BENCH_COLL_ALLREDUCE, 0, 1);
}

/* The gradients of many small layers. */
void conform_pattern_buckets(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (unsigned i = 0; i < 32; i++) {
		b->dtype = i % 5 == 4 ? SHUNT_F16 : c->dtype;
		conform_call(b, BENCH_COLL_ALLREDUCE, 0, conform_uneven(b, c, i, 0));
	}
	conform_group_end(b);
}

void conform_pattern_mixed(struct conform_build *b, const struct conform_case *c)
{
	static const enum bench_coll_id order[] = { BENCH_COLL_ALLREDUCE, BENCH_COLL_BROADCAST, BENCH_COLL_ALLGATHER,
		BENCH_COLL_REDUCE, BENCH_COLL_REDUCESCATTER, BENCH_COLL_ALLREDUCE, BENCH_COLL_ALLTOALL,
		BENCH_COLL_GATHER, BENCH_COLL_SCATTER };

	conform_group_start(b);
	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		conform_call(b, order[i], (int)i % b->nranks, conform_uneven(b, c, i, 0));
		if (i % 3 == 0)
			conform_ring(b, c->count, 1); /* nested */
	}
	conform_group_end(b);
}

void conform_pattern_nested(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	conform_call(b, BENCH_COLL_ALLREDUCE, 0, c->count);
	conform_group_start(b);
	conform_group_start(b);
	conform_group_end(b);
	conform_call(b, BENCH_COLL_ALLREDUCE, 0, c->count / 2);
	conform_group_end(b);
	conform_call(b, BENCH_COLL_ALLREDUCE, 0, 1);
	conform_group_end(b);
	conform_group_start(b); /* an empty group */
	conform_group_end(b);
}

/* One size after the other: a call must not take data of an earlier size for its own. */
void conform_pattern_sizes(struct conform_build *b, const struct conform_case *c)
{
	static const unsigned divide[] = { 1, 1000, 100, 1, 10, 10000, 1, 1, 1000 };

	for (unsigned i = 0; i < sizeof(divide) / sizeof(divide[0]); i++)
		conform_call(b, c->coll, (int)i % b->nranks, c->count / divide[i]);
}

/* In one group every rank is the root of a broadcast and of a reduce, each of another size. */
void conform_pattern_every_root(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	for (int root = 0; root < b->nranks; root++) {
		conform_call(b, BENCH_COLL_BROADCAST, root, conform_uneven(b, c, (unsigned)root, 0));
		conform_call(b, BENCH_COLL_REDUCE, b->nranks - 1 - root, conform_uneven(b, c, (unsigned)root, 1));
	}
	conform_group_end(b);
}

/* Collectives in order, with the messages of a ring between them, at another position on every rank. */
void conform_pattern_places(struct conform_build *b, const struct conform_case *c)
{
	static const enum bench_coll_id order[] = { BENCH_COLL_ALLREDUCE, BENCH_COLL_ALLGATHER, BENCH_COLL_BROADCAST,
		BENCH_COLL_REDUCESCATTER, BENCH_COLL_REDUCE, BENCH_COLL_ALLREDUCE };
	enum { N = sizeof(order) / sizeof(order[0]), MESSAGES = 4 };
	int next = (b->rank + 1) % b->nranks, before = (b->rank + b->nranks - 1) % b->nranks;
	unsigned sent = 0, received = 0;

	conform_group_start(b);
	for (unsigned i = 0; i <= N; i++) {
		uint64_t x = conform_random(b, i, 100 + (unsigned)b->rank);

		for (; sent < MESSAGES && (i == N || x % 3 == 0); x /= 3, sent++)
			conform_call(b, BENCH_COLL_SEND, next, conform_uneven(b, c, (unsigned)b->rank, 10 + sent));
		for (; received < MESSAGES && (i == N || x % 5 < 2); x /= 5, received++)
			conform_call(b, BENCH_COLL_RECV, before, conform_uneven(b, c, (unsigned)before, 10 + received));
		if (i < N)
			conform_call(b, order[i], (int)i % b->nranks, conform_uneven(b, c, i, 0));
	}
	conform_group_end(b);
}

/* Empty calls of every kind, single and in a group. An empty message still needs its peer. */
void conform_pattern_empty(struct conform_build *b, const struct conform_case *c)
{
	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			conform_group_start(b);
		for (int coll = 0; coll < BENCH_NCOLLS; coll++)
			if (CONFORM_ALL_COLLS >> coll & 1)
				conform_call(b, coll, b->nranks - 1, 0);
		conform_ring(b, 0, 1);
		conform_call(b, BENCH_COLL_ALLREDUCE, 0, c->count);
		if (grouped)
			conform_group_end(b);
	}
}

/* One operator after the other: a call must not take data of an earlier operator for its own. */
void conform_pattern_operators(struct conform_build *b, const struct conform_case *c)
{
	static const enum shunt_dtype types[] = { SHUNT_F32, SHUNT_BF16, SHUNT_I32, SHUNT_F8E5M2 };

	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			conform_group_start(b);
		for (unsigned i = 0; i < 2 * SHUNT_NREDOPS; i++) {
			b->redop = i % SHUNT_NREDOPS;
			b->dtype = types[i % 4];
			b->scalar_on_device = i & 1;
			conform_call(
			    b, i % 3 ? BENCH_COLL_ALLREDUCE : BENCH_COLL_REDUCESCATTER, 0, conform_uneven(b, c, i, 0));
		}
		if (grouped)
			conform_group_end(b);
	}
}

/* A group that is only estimated, then the same group for real. The estimate must have no effect, also later. */
void conform_pattern_simulate(struct conform_build *b, const struct conform_case *c)
{
	for (int launched = 0; launched < 3; launched++) {
		conform_group_start(b);
		conform_call(b, BENCH_COLL_ALLREDUCE, 0, c->count);
		conform_call(b, BENCH_COLL_ALLGATHER, 0, c->count / 2);
		if (launched % 2)
			conform_group_end(b);
		else
			conform_group_simulate(b);
	}
}

void conform_pattern_simulate_messages(struct conform_build *b, const struct conform_case *c)
{
	for (int launched = 0; launched < 3; launched++) {
		conform_group_start(b);
		conform_call(b, BENCH_COLL_SEND, (b->rank + 1) % b->nranks, c->count);
		conform_call(b, BENCH_COLL_RECV, (b->rank + b->nranks - 1) % b->nranks, c->count);
		if (launched % 2)
			conform_group_end(b);
		else
			conform_group_simulate(b);
	}
}
