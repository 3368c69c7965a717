/* SPDX-License-Identifier: MIT */
/* Patterns with several communicators or streams, and with late ranks. */
#include "tools/conform/patterns.h"

/* A slow rank, another one each time. The fast ranks must neither run ahead of it nor overwrite its inputs. */
void conform_pattern_skew(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned i = 0; i < 8; i++) {
		if (conform_random(b, i, 0) % (unsigned)b->nranks == (unsigned)b->rank)
			conform_delay(b, 200 + (unsigned)(conform_random(b, i, 1) % 3000));
		conform_call(b, c->coll, 0, c->count);
	}
}

/* Different collectives while the previous result is still on its way. */
void conform_pattern_mixed_skew(struct conform_build *b, const struct conform_case *c)
{
	static const enum bench_coll_id order[] = { BENCH_COLL_BROADCAST, BENCH_COLL_BROADCAST, BENCH_COLL_REDUCE,
		BENCH_COLL_ALLREDUCE, BENCH_COLL_GATHER, BENCH_COLL_SCATTER, BENCH_COLL_ALLGATHER,
		BENCH_COLL_REDUCESCATTER, BENCH_COLL_ALLTOALL };

	for (unsigned i = 0; i < 3 * sizeof(order) / sizeof(order[0]); i++) {
		if (conform_random(b, i, 7) % 4 == (unsigned)b->rank % 4)
			conform_delay(b, (unsigned)(conform_random(b, i, 8) % 2000));
		conform_call(b, order[i % (sizeof(order) / sizeof(order[0]))],
		    (int)(conform_random(b, i, 9) % (unsigned)b->nranks), conform_uneven(b, c, i, 0));
	}
}

/* Both halves at the same time, then all ranks, then in reverse order. */
void conform_pattern_comms(struct conform_build *b, const struct conform_case *c)
{
	static const enum conform_comm order[] = { CONFORM_HALVES, CONFORM_WORLD, CONFORM_REVERSED, CONFORM_HALVES,
		CONFORM_HALVES, CONFORM_REVERSED };

	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		b->comm = order[i];
		conform_call(b, c->coll, 0, c->count + i);
	}
}

void conform_pattern_comms_group(struct conform_build *b, const struct conform_case *c)
{
	conform_group_start(b);
	conform_pattern_comms(b, c);
	conform_group_end(b);
}

/* Calls and messages on several communicators in one group. Their ranks differ from the world's. */
void conform_pattern_comms_messages(struct conform_build *b, const struct conform_case *c)
{
	static const enum conform_comm order[] = { CONFORM_HALVES, CONFORM_WORLD, CONFORM_REVERSED, CONFORM_CHILD,
		CONFORM_SOME, CONFORM_SELF, CONFORM_TIES };
	int members[RANKS_MAX], me = 0;

	conform_group_start(b);
	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		int n = conform_comm_members(order[i], b->rank, b->nranks, members, &me);

		b->comm = order[i];
		if (!n)
			continue;
		conform_call(b, BENCH_COLL_SEND, (me + 1) % n, c->count + i);
		conform_call(b, BENCH_COLL_ALLREDUCE, 0, c->count);
		conform_call(b, BENCH_COLL_RECV, (me + n - 1) % n, c->count + i);
	}
	conform_group_end(b);
}

/* Non-blocking communicators: calls, messages, a group of several calls. */
void conform_pattern_async(struct conform_build *b, const struct conform_case *c)
{
	int members[RANKS_MAX], me = 0, n;

	for (unsigned i = 0; i < 4; i++) {
		b->comm = i & 1 ? CONFORM_ASYNC_CHILD : CONFORM_ASYNC;
		n = conform_comm_members(b->comm, b->rank, b->nranks, members, &me);
		conform_call(b, BENCH_COLL_ALLREDUCE, 0, c->count + i);
		conform_group_start(b);
		conform_call(b, BENCH_COLL_SEND, (me + 1) % n, c->count);
		conform_call(b, BENCH_COLL_RECV, (me + n - 1) % n, c->count);
		conform_call(b, BENCH_COLL_BROADCAST, n - 1, c->count);
		conform_group_end(b);
	}
}

void conform_pattern_streams(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned i = 0; i < 10; i++) {
		b->stream = i / 2 % 2;
		conform_call(b, c->coll, 0, i % 3 ? c->count : 3);
	}
}

/* Two streams in one group: each waits for both. */
void conform_pattern_streams_group(struct conform_build *b, const struct conform_case *c)
{
	for (unsigned round = 0; round < 3; round++) {
		conform_group_start(b);
		for (unsigned i = 0; i < 6; i++) {
			b->stream = (i + round) & 1;
			conform_call(b, i % 3 == 2 ? BENCH_COLL_ALLGATHER : BENCH_COLL_ALLREDUCE, 0,
			    conform_uneven(b, c, i, round));
			conform_ring(b, conform_uneven(b, c, i, 10 + round), 1);
		}
		conform_group_end(b);
	}
}
