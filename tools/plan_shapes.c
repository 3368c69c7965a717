/* SPDX-License-Identifier: MIT */
/*
 * The shapes of new plans. All of them reach peers through scratch alone, where the slot of a chunk says who sent it, so no rank
 * need know where others keep their data.
 *
 * Packet shapes (LL): every block does the same to its part of every slice. A packet carries the launch's flag, so nobody signals.
 * Scratch is double: a rank that has heard from all in launch f may overwrite what it sent in launch f - 1, since they have read
 * it. What is read is read as it was written, slice by slice: then Shunt sends it as lines. Blocks cost little, and the more there are,
 * the less each has to send before its data arrives: as many as our own kernels have.
 *
 * Pipelined shapes: a lane is a set of blocks, one for each stage, and has chunks of its own. A stage works in windows and tells
 * the next one after each. Slots hold whole chunks, so no stage waits for a later one. What is written to a peer's scratch must not
 * be in use there by the last launch: the receiver says that it has begun. (Not in the all-reduce. There a rank that has all
 * results has heard from all that they are through with what it sent; and results are written only after the peer's data for this
 * launch came. Messages of another size than the last cut scratch in another way: Shunt lets the ranks meet then.)
 *
 * Rings: a lane is a block with chunks of its own, which goes through all steps.
 *
 * Sums are in the order of ranks where slots can be listed in it. In packet operations our own operand comes last, so an all-reduce
 * in one shot takes the same rank's on all ranks for that one: results are equal to the bit everywhere.
 */
#include "plan.h"

enum { MAX_RANKS = 8 };

static struct plan_at own(char buffer, unsigned index)
{
	return (struct plan_at){buffer, -1, index, 1};
}

static struct plan_at at_peer(unsigned peer, unsigned index)
{
	return (struct plan_at){'s', (int)peer, index, 1};
}

/* The other ranks, beginning with the one `turn` + 1 behind us. */
static unsigned others(const struct plan_writer *w, unsigned turn, unsigned *peers)
{
	unsigned n = w->recipe->nranks;

	for (unsigned i = 0; i + 1 < n; i++)
		peers[i] = (w->rank + 1 + (turn + i) % (n - 1)) % n;
	return n - 1;
}

/* All ranks' slots but ours: from scratch, `from` on, to buffer, 0 on. One by one, as they were written: so they may travel as lines. */
static void unpack_others(struct plan_writer *w, unsigned from, char buffer)
{
	unsigned peers[MAX_RANKS], n = others(w, (unsigned)w->part, peers);

	for (unsigned i = 0; i < n; i++) {
		struct plan_at src = own('s', from + peers[i]), dst = own(buffer, peers[i]);

		plan_write_data(w, "upkt", &src, 1, &dst, 1);
	}
}

/* To every peer, as packets, from `buffer`: chunk 0 + peer * step; into slot `rank` there. */
static void pack_to_all(struct plan_writer *w, char buffer, unsigned first, unsigned step)
{
	struct plan_at src[MAX_RANKS], dst[MAX_RANKS];
	unsigned peers[MAX_RANKS], n = others(w, (unsigned)w->part, peers);

	for (unsigned i = 0; i < n; i++) {
		src[i] = own(buffer, first + peers[i] * step);
		dst[i] = at_peer(peers[i], w->rank);
	}
	plan_write_data(w, "ppkt", src, n, dst, n);
}

static void copy(struct plan_writer *w, char from, unsigned from_index, char to, unsigned to_index)
{
	struct plan_at src = own(from, from_index), dst = own(to, to_index);

	plan_write_data(w, "copy", &src, 1, &dst, 1);
}

/* Blocks that all do the same to their part of every slice. */
static void grouped(
    struct plan_writer *w, const struct plan_recipe *r, const unsigned chunks[3], void (*block)(struct plan_writer *w))
{
	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, false, 1);
		for (unsigned b = 0; b < r->blocks; b++) {
			w->part = (int)b;
			w->parts = (int)r->blocks;
			plan_write_block(w, b, 0, 1);
			block(w);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

/* ---- one shot, packets */

static void allreduce_oneshot_block(struct plan_writer *w)
{
	unsigned n = w->recipe->nranks, last = n == 2 ? w->rank : n - 1, nsrc = 1;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_at input = own('i', 0), mine = own('s', w->rank), sum = own(result, 0), src[MAX_RANKS] = {0};

	pack_to_all(w, 'i', 0, 0);
	src[0] = input;
	/* The plain operand is rank n - 1's on all ranks; of two ranks the order does not matter. */
	if (last != w->rank) {
		struct plan_at from = own('s', last);

		plan_write_data(w, "cpkt", &input, 1, &mine, 1);
		if (w->recipe->inplace)
			plan_write_nop(w);
		plan_write_data(w, "upkt", &from, 1, &sum, 1);
		src[0] = sum;
	}
	if (last != w->rank || w->recipe->inplace)
		plan_write_nop(w);
	for (unsigned p = 0; p < n; p++)
		if (p != last)
			src[nsrc++] = own('s', p);
	plan_write_data(w, "repkt", src, nsrc, &sum, 1);
}

static void allreduce_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	grouped(w, r, (const unsigned[]){1, 1, r->nranks}, allreduce_oneshot_block);
}

static void allgather_oneshot_block(struct plan_writer *w)
{
	bool inplace = w->recipe->inplace;

	pack_to_all(w, inplace ? 'o' : 'i', inplace ? w->rank : 0, 0);
	if (!inplace)
		copy(w, 'i', 0, 'o', w->rank);
	unpack_others(w, 0, 'o');
}

static void allgather_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	grouped(w, r, (const unsigned[]){1, r->nranks, r->nranks}, allgather_oneshot_block);
}

static void reducescatter_oneshot_block(struct plan_writer *w)
{
	struct plan_at src[MAX_RANKS] = {own('i', w->rank)}, dst = w->recipe->inplace ? own('i', w->rank) : own('o', 0);
	unsigned nsrc = 1;

	pack_to_all(w, 'i', 0, 1);
	for (unsigned p = 0; p < w->recipe->nranks; p++)
		if (p != w->rank)
			src[nsrc++] = own('s', p);
	plan_write_data(w, "repkt", src, nsrc, &dst, 1);
}

static void reducescatter_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	grouped(w, r, (const unsigned[]){r->nranks, 1, r->nranks}, reducescatter_oneshot_block);
}

static void alltoall_oneshot_block(struct plan_writer *w)
{
	pack_to_all(w, 'i', 0, 1);
	copy(w, 'i', w->rank, 'o', w->rank);
	unpack_others(w, 0, 'o');
}

static void alltoall_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	grouped(w, r, (const unsigned[]){r->nranks, r->nranks, r->nranks}, alltoall_oneshot_block);
}

/* ---- two shots, packets: chunk p is reduced by rank p; slots 0 .. n - 1 are what to reduce, n .. 2n - 1 results */

static void allreduce_twoshot_block(struct plan_writer *w)
{
	unsigned n = w->recipe->nranks, peers[MAX_RANKS], nsrc = 1;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_at src[MAX_RANKS] = {own('i', w->rank)}, dst[MAX_RANKS] = {own(result, w->rank)};

	pack_to_all(w, 'i', 0, 1);
	for (unsigned p = 0; p < n; p++)
		if (p != w->rank)
			src[nsrc++] = own('s', p);
	others(w, (unsigned)w->part, peers);
	for (unsigned i = 0; i + 1 < n; i++)
		dst[1 + i] = at_peer(peers[i], n + w->rank);
	plan_write_data(w, "respkt", src, nsrc, dst, n);
	unpack_others(w, n, result);
}

static void allreduce_twoshot(struct plan_writer *w, const struct plan_recipe *r)
{
	grouped(w, r, (const unsigned[]){r->nranks, r->nranks, 2 * r->nranks}, allreduce_twoshot_block);
}

/* ---- pipelines. Chunk c of lane l is chunk c * lanes + l; links of a lane: see each stage */

struct stage {
	struct plan_writer *w;
	unsigned lane, lanes, peers[MAX_RANKS], npeers;
};

static unsigned chunk(const struct stage *s, unsigned c)
{
	return c * s->lanes + s->lane;
}

static void wait_all(struct stage *s, unsigned link)
{
	plan_write_sync(s->w, "wait", link, s->peers, s->npeers);
	plan_write_nop(s->w);
}

static void signal_all(struct stage *s, unsigned link)
{
	plan_write_nop(s->w);
	plan_write_sync(s->w, "signal", link, s->peers, s->npeers);
}

/* Puts to every peer its chunk of `buffer`: first + peer * step. */
static void put_to_all(struct stage *s, char buffer, unsigned first, unsigned step)
{
	struct plan_at src[MAX_RANKS], dst[MAX_RANKS];

	for (unsigned i = 0; i < s->npeers; i++) {
		src[i] = own(buffer, chunk(s, first + s->peers[i] * step));
		dst[i] = at_peer(s->peers[i], chunk(s, s->w->rank));
	}
	plan_write_data(s->w, "put", src, s->npeers, dst, s->npeers);
}

static void copy_from_all(struct stage *s, unsigned slots, char to)
{
	for (unsigned i = 0; i < s->npeers; i++)
		copy(s->w, 's', chunk(s, slots + s->peers[i]), to, chunk(s, s->peers[i]));
}

/* What this rank reduces: all ranks' slots in order, and ours from the input. */
static unsigned operands(const struct stage *s, struct plan_at *src)
{
	unsigned n = s->w->recipe->nranks;

	for (unsigned p = 0; p < n; p++)
		src[p] = p == s->w->rank ? own('i', chunk(s, p)) : own('s', chunk(s, p));
	return n;
}

/* Block lane * roles + stage does stage(s, number). */
static void staged(struct plan_writer *w, const struct plan_recipe *r, const unsigned parts[3], unsigned links,
    void (*stage)(struct stage *s, unsigned role))
{
	const unsigned chunks[3] = {parts[0] * r->lanes, parts[1] * r->lanes, parts[2] * r->lanes};

	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, false, r->lanes * links);
		for (unsigned b = 0; b < r->blocks; b++) {
			struct stage s = {.w = w, .lane = b / r->shape->roles, .lanes = r->lanes};

			s.npeers = others(w, s.lane, s.peers);
			plan_write_block(w, b, s.lane * links, links);
			stage(&s, b % r->shape->roles);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

/* Links: 0 what is to be reduced is there, 1 results are. */
static void allreduce_stage(struct stage *s, unsigned role)
{
	struct plan_writer *w = s->w;
	unsigned n = w->recipe->nranks, nsrc;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_at src[MAX_RANKS], dst[MAX_RANKS] = {own(result, chunk(s, w->rank))};

	plan_write_pipeline(w);
	if (role == 0) {
		put_to_all(s, 'i', 0, 1);
		signal_all(s, 0);
	} else if (role == 1) {
		wait_all(s, 0);
		nsrc = operands(s, src);
		for (unsigned i = 0; i < s->npeers; i++)
			dst[1 + i] = at_peer(s->peers[i], chunk(s, n + w->rank));
		plan_write_data(w, "res", src, nsrc, dst, n);
		signal_all(s, 1);
	} else {
		wait_all(s, 1);
		copy_from_all(s, n, result);
	}
	plan_write_pipeline_end(w);
}

static void allreduce_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	staged(w, r, (const unsigned[]){r->nranks, r->nranks, 2 * r->nranks}, 2, allreduce_stage);
}

/* The others. Links: 0 the receiver has begun, 1 data is there. */
static void send_begin(struct stage *s)
{
	wait_all(s, 0);
	plan_write_pipeline(s->w);
}

static void send_end(struct stage *s)
{
	signal_all(s, 1);
	plan_write_pipeline_end(s->w);
}

static void receive_begin(struct stage *s)
{
	plan_write_sync(s->w, "signal", 0, s->peers, s->npeers);
	plan_write_pipeline(s->w);
	wait_all(s, 1);
}

static void allgather_stage(struct stage *s, unsigned role)
{
	struct plan_writer *w = s->w;
	bool inplace = w->recipe->inplace;

	if (role == 0) {
		send_begin(s);
		put_to_all(s, inplace ? 'o' : 'i', inplace ? w->rank : 0, 0);
		send_end(s);
		if (!inplace)
			copy(w, 'i', chunk(s, 0), 'o', chunk(s, w->rank));
	} else {
		receive_begin(s);
		copy_from_all(s, 0, 'o');
		plan_write_pipeline_end(w);
	}
}

static void allgather_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	staged(w, r, (const unsigned[]){1, r->nranks, r->nranks}, 2, allgather_stage);
}

static void reducescatter_stage(struct stage *s, unsigned role)
{
	struct plan_writer *w = s->w;
	struct plan_at src[MAX_RANKS], dst = w->recipe->inplace ? own('i', chunk(s, w->rank)) : own('o', chunk(s, 0));

	if (role == 0) {
		send_begin(s);
		put_to_all(s, 'i', 0, 1);
		send_end(s);
	} else {
		unsigned nsrc = operands(s, src);

		receive_begin(s);
		plan_write_data(w, "re", src, nsrc, &dst, 1);
		plan_write_pipeline_end(w);
	}
}

static void reducescatter_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	staged(w, r, (const unsigned[]){r->nranks, 1, r->nranks}, 2, reducescatter_stage);
}

static void alltoall_stage(struct stage *s, unsigned role)
{
	struct plan_writer *w = s->w;

	if (role == 0) {
		send_begin(s);
		put_to_all(s, 'i', 0, 1);
		send_end(s);
		copy(w, 'i', chunk(s, w->rank), 'o', chunk(s, w->rank));
	} else {
		receive_begin(s);
		copy_from_all(s, 0, 'o');
		plan_write_pipeline_end(w);
	}
}

static void alltoall_pipelined(struct plan_writer *w, const struct plan_recipe *r)
{
	staged(w, r, (const unsigned[]){r->nranks, r->nranks, r->nranks}, 2, alltoall_stage);
}

/* ---- rings: data to the next rank, through slot k in step k */

static unsigned behind(const struct stage *s, unsigned steps)
{
	unsigned n = s->w->recipe->nranks;

	return (s->w->rank + 2 * n - steps) % n;
}

static void from_last(struct stage *s)
{
	unsigned last = behind(s, 1);

	plan_write_sync(s->w, "wait", 0, &last, 1);
	plan_write_nop(s->w);
}

static void to_next(struct stage *s)
{
	unsigned next = (s->w->rank + 1) % s->w->recipe->nranks;

	plan_write_nop(s->w);
	plan_write_sync(s->w, "signal", 0, &next, 1);
}

static void put_next(struct stage *s, struct plan_at src, unsigned slot)
{
	struct plan_at dst = at_peer((s->w->rank + 1) % s->w->recipe->nranks, chunk(s, slot));

	plan_write_data(s->w, "put", &src, 1, &dst, 1);
	to_next(s);
}

/* Both neighbours have begun this launch, so nobody is in their scratch any more. */
static void ring_begin(struct stage *s)
{
	unsigned next = (s->w->rank + 1) % s->w->recipe->nranks, last = behind(s, 1);

	plan_write_sync(s->w, "signal", 0, &last, 1);
	plan_write_sync(s->w, "wait", 0, &next, 1);
	plan_write_nop(s->w);
}

/* Every chunk goes once around and is added to; the last rank that does so is the chunk's, which writes the result to dst[0], and
 * to dst[1] if ndst is 2. */
static void ring_reduce(struct stage *s, struct plan_at *dst, unsigned ndst)
{
	struct plan_writer *w = s->w;
	unsigned n = w->recipe->nranks, next = (w->rank + 1) % n;

	put_next(s, own('i', chunk(s, behind(s, 1))), 0);
	for (unsigned k = 0; k + 1 < n; k++) {
		struct plan_at src[2] = {own('s', chunk(s, k)), own('i', chunk(s, behind(s, k + 2)))};
		struct plan_at on[2] = {src[0], at_peer(next, chunk(s, k + 1))};

		from_last(s);
		if (k + 2 < n) {
			plan_write_data(w, "res", src, 2, on, 2);
			to_next(s);
		} else {
			plan_write_data(w, ndst == 1 ? "re" : "res", src, 2, dst, ndst);
		}
	}
}

/* What comes is handed on, and copied to its place. slots: where the first of them is. */
static void ring_gather(struct stage *s, unsigned slots, char to)
{
	unsigned n = s->w->recipe->nranks;

	for (unsigned k = 0; k + 1 < n; k++) {
		from_last(s);
		if (k + 2 < n)
			put_next(s, own('s', chunk(s, slots + k)), slots + k + 1);
		copy(s->w, 's', chunk(s, slots + k), to, chunk(s, behind(s, k + 1)));
	}
}

static void ringed(struct plan_writer *w, const struct plan_recipe *r, const unsigned parts[3], void (*lane)(struct stage *s))
{
	const unsigned chunks[3] = {parts[0] * r->lanes, parts[1] * r->lanes, parts[2] * r->lanes};

	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, true, r->lanes);
		for (unsigned l = 0; l < r->lanes; l++) {
			struct stage s = {.w = w, .lane = l, .lanes = r->lanes};

			plan_write_block(w, l, l, 1);
			ring_begin(&s);
			lane(&s);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

static void allreduce_ring_lane(struct stage *s)
{
	unsigned n = s->w->recipe->nranks, rank = s->w->rank;
	char result = s->w->recipe->inplace ? 'i' : 'o';
	struct plan_at dst[2] = {own(result, chunk(s, rank)), at_peer((rank + 1) % n, chunk(s, n - 1))};

	ring_reduce(s, dst, 2);
	to_next(s);
	ring_gather(s, n - 1, result);
}

static void allreduce_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	ringed(w, r, (const unsigned[]){r->nranks, r->nranks, 2 * (r->nranks - 1)}, allreduce_ring_lane);
}

static void allgather_ring_lane(struct stage *s)
{
	struct plan_writer *w = s->w;
	struct plan_at mine = w->recipe->inplace ? own('o', chunk(s, w->rank)) : own('i', chunk(s, 0));

	put_next(s, mine, 0);
	if (!w->recipe->inplace)
		copy(w, 'i', mine.index, 'o', chunk(s, w->rank));
	ring_gather(s, 0, 'o');
}

static void allgather_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	ringed(w, r, (const unsigned[]){1, r->nranks, r->nranks - 1}, allgather_ring_lane);
}

static void reducescatter_ring_lane(struct stage *s)
{
	struct plan_at dst = s->w->recipe->inplace ? own('i', chunk(s, s->w->rank)) : own('o', chunk(s, 0));

	ring_reduce(s, &dst, 1);
}

static void reducescatter_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	ringed(w, r, (const unsigned[]){r->nranks, 1, r->nranks - 1}, reducescatter_ring_lane);
}

/* ---- */

#define ALLREDUCE .collective = "all_reduce", .plan_collective = "allreduce", .reduces = true, .can_inplace = true, .inplace = true
#define ALLGATHER .collective = "all_gather", .plan_collective = "allgather", .can_inplace = true
#define REDUCESCATTER .collective = "reduce_scatter", .plan_collective = "reducescatter", .reduces = true, .can_inplace = true
#define ALLTOALL .collective = "all_to_all", .plan_collective = "alltoall"
#define ONESHOT .name = "oneshot-ll", .packets = true
#define PIPELINED .name = "pipelined", .pipelined = true, .max_bytes = UINT64_MAX
#define RING .name = "ring", .roles = 1, .blocks = 16, .max_bytes = UINT64_MAX, .priority = -1
#define SMALL (16 << 10)
#define MIDDLE (1 << 20)

const struct plan_shape plan_shapes[] = {
    {ALLREDUCE, ONESHOT, .blocks = 16, .max_bytes = SMALL, .write = allreduce_oneshot,
        .summary = "everybody sends all to all and reduces everything; packets"},
    {ALLREDUCE, .name = "twoshot-ll", .packets = true, .blocks = 64, .min_bytes = SMALL + 1, .max_bytes = MIDDLE,
        .write = allreduce_twoshot, .summary = "each rank reduces one part and sends the result to all; packets"},
    {ALLREDUCE, PIPELINED, .roles = 3, .blocks = 48, .min_bytes = MIDDLE + 1, .write = allreduce_pipelined,
        .summary = "the same in windows: send, reduce and collect at the same time"},
    {ALLREDUCE, RING, .min_bytes = MIDDLE + 1, .write = allreduce_ring,
        .summary = "parts go around twice, from neighbour to neighbour"},
    {ALLGATHER, ONESHOT, .blocks = 64, .max_bytes = MIDDLE, .write = allgather_oneshot, .summary = "everybody sends to all; packets"},
    {ALLGATHER, PIPELINED, .roles = 2, .blocks = 32, .min_bytes = MIDDLE + 1, .write = allgather_pipelined,
        .summary = "the same in windows: send and copy out at the same time"},
    {ALLGATHER, RING, .min_bytes = MIDDLE + 1, .write = allgather_ring, .summary = "parts go around once"},
    {REDUCESCATTER, ONESHOT, .blocks = 64, .max_bytes = MIDDLE, .write = reducescatter_oneshot,
        .summary = "everybody sends each its part; packets"},
    {REDUCESCATTER, PIPELINED, .roles = 2, .blocks = 32, .min_bytes = MIDDLE + 1, .write = reducescatter_pipelined,
        .summary = "the same in windows: send and reduce at the same time"},
    {REDUCESCATTER, RING, .min_bytes = MIDDLE + 1, .write = reducescatter_ring, .summary = "parts go around once and are added to"},
    {ALLTOALL, ONESHOT, .blocks = 64, .max_bytes = MIDDLE, .write = alltoall_oneshot, .summary = "everybody sends each its part; packets"},
    {ALLTOALL, PIPELINED, .roles = 2, .blocks = 32, .min_bytes = MIDDLE + 1, .write = alltoall_pipelined,
        .summary = "the same in windows: send and copy out at the same time"},
    {0},
};
