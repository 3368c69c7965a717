/* SPDX-License-Identifier: MIT */
/* Checks a library's results: fresh data of all classes, compared with a reference; and the bytes around the result. */
#include <errno.h>
#include <string.h>
#include "tools/bench/rank.h"

enum { POISON = 0xa5 };

static uint64_t send_count(const struct bench_rank *r, const struct bench_task *t)
{
	return t->count * bench_coll_blocks(r->o->coll, r->o->coll->send_many, r->shared->launch.nranks);
}

static uint64_t recv_count(const struct bench_rank *r, const struct bench_task *t)
{
	return t->count * bench_coll_blocks(r->o->coll, r->o->coll->recv_many, r->shared->launch.nranks);
}

/* A way to call a library, with one class of data. */
struct check {
	struct bench_rank *r;
	const struct bench_task *t;
	int lib, way;
	void *graph; /* NULL: eager */
	const struct bench_data *data;
	uint64_t wrong;
};

static int input_upload(struct bench_rank *r, const struct bench_data *data, const struct bench_task *t, char *dst)
{
	size_t size = shunt_dtype_bytes[t->dtype], per_block = BENCH_BLOCK_BYTES / size;
	uint64_t count = send_count(r, t);
	int err = 0;

	for (uint64_t first = 0; !err && first < count; first += per_block) {
		size_t n = count - first < per_block ? count - first : per_block;

		bench_data_input(data, r->rank, first, n, r->block);
		err = bench_rank_check(r, "copy", r->lib.memcpy(dst + first * size, r->block, n * size));
	}
	return err;
}

/*
 * Checks one block of the result, which begins at src. text: gets the first wrong element unless it has a text already.
 */
static int block_check(
    const struct check *c, int block, const char *src, uint64_t *wrong_p, char *text, size_t text_bytes)
{
	struct bench_rank *r = c->r;
	const struct bench_data *data = c->data;
	const struct bench_task *t = c->t;
	size_t size = shunt_dtype_bytes[t->dtype], per_block = BENCH_BLOCK_BYTES / size;
	struct bench_block b =
	    bench_coll_block(r->o->coll, r->rank, r->shared->launch.nranks, r->o->root, block, t->count);
	int err;

	for (uint64_t first = 0; first < b.count; first += per_block) {
		size_t n = b.count - first < per_block ? b.count - first : per_block;
		uint64_t at = b.from_at + first;

		err = bench_rank_check(r, "copy", r->lib.memcpy(r->block, src + (b.at + first) * size, n * size));
		if (err)
			return err;
		*wrong_p += b.from < 0 ?
		    bench_data_check(data, at, n, r->block, *text ? NULL : text, text_bytes) :
		    bench_data_check_copy(data, b.from, at, n, r->block, *text ? NULL : text, text_bytes);
		atomic_fetch_add(&r->progress->heartbeats, 1);
	}
	return 0;
}

static int result_check(struct check *c, unsigned set)
{
	struct bench_rank *r = c->r;
	const struct bench_task *t = c->t;
	int way = c->way;
	const char *src = bench_recv_at(r, t, c->lib, way % BENCH_NPLACES, set);
	int blocks = r->o->coll->recv_many ? r->shared->launch.nranks : 1, err = 0;
	uint64_t wrong = 0;
	char text[768] = "";

	if (!bench_coll_has_recv(r->o->coll, r->rank, r->o->root))
		return 0;
	for (int block = 0; !err && block < blocks; block++)
		err = block_check(c, block, src, &wrong, text, sizeof(text));
	if (wrong)
		tool_error("rank %d: %s, %s %s, %s %s-place, %llu bytes: %llu wrong; %s", r->rank,
		    r->nccl[c->lib].label, shunt_dtype_name(t->dtype), shunt_redop_name(t->redop),
		    bench_mode_names[way / BENCH_NPLACES], way % BENCH_NPLACES == BENCH_IN ? "in" : "out-of",
		    (unsigned long long)t->bytes, (unsigned long long)wrong, text);
	c->wrong += wrong;
	return err;
}

/*
 * These must not change: the bytes behind the result; out of place, the input, and the receive buffer of a rank without
 * a result.
 */
static int guards_check(struct check *c, unsigned set)
{
	struct bench_rank *r = c->r;
	const struct bench_task *t = c->t;
	int lib = c->lib;
	size_t size = shunt_dtype_bytes[t->dtype], per_block = BENCH_BLOCK_BYTES / 2 / size;
	char *now = r->block, *before = r->block + BENCH_BLOCK_BYTES / 2;
	bool in_place = c->way % BENCH_NPLACES == BENCH_IN;
	uint64_t touched = 0, used = in_place ? t->bytes : recv_count(r, t) * size;
	/* A rank without a result has poison from the start of the buffer: only that is checked. */
	uint64_t skip = in_place || bench_coll_has_recv(r->o->coll, r->rank, r->o->root) ? used : 0;
	int err =
	    bench_rank_check(r, "copy", r->lib.memcpy(now, bench_recv_buffer(r, lib, set) + skip, BENCH_GUARD_BYTES));

	if (err)
		return err;
	for (int i = 0; i < BENCH_GUARD_BYTES; i++)
		touched += (unsigned char)now[i] != POISON;
	if (touched)
		tool_error("rank %d: %s, %llu bytes: %llu bytes behind the result were written", r->rank,
		    r->nccl[lib].label, (unsigned long long)t->bytes, (unsigned long long)touched);
	c->wrong += touched;
	if (in_place)
		return 0;
	touched = 0;
	for (uint64_t first = 0, count = send_count(r, t); first < count; first += per_block) {
		size_t n = count - first < per_block ? count - first : per_block;

		err = bench_rank_check(
		    r, "copy", r->lib.memcpy(now, bench_send_buffer(r, lib, set) + first * size, n * size));
		if (err)
			return err;
		bench_data_input(c->data, r->rank, first, n, before);
		touched += memcmp(now, before, n * size) != 0;
	}
	if (touched)
		tool_error("rank %d: %s, %llu bytes: the input was written", r->rank, r->nccl[lib].label,
		    (unsigned long long)t->bytes);
	c->wrong += touched;
	return 0;
}

static int class_check(struct check *c)
{
	enum bench_place place = c->way % BENCH_NPLACES;
	const struct bench_task *t = c->t;
	struct bench_rank *r = c->r;
	int lib = c->lib;
	int err = 0;

	/* A stale or missing result must not look right. */
	for (unsigned set = 0; !err && set < r->o->group; set++)
		err = bench_rank_check(r, "memset",
		    r->lib.memset_async(
		        bench_recv_buffer(r, lib, set), POISON, t->bytes + BENCH_GUARD_BYTES, r->stream));
	if (!err)
		err = bench_sync(r, lib);
	for (unsigned set = 0; !err && set < r->o->group; set++)
		err = input_upload(r, c->data, t, bench_send_at(r, t, lib, place, set));
	if (!err)
		err = c->graph ? bench_rank_check(r, "graph launch", r->lib.graph_launch(c->graph, r->stream)) :
		                 bench_call(r, t, lib, place, 0);
	if (!err)
		err = bench_sync(r, lib);
	for (unsigned set = 0; !err && set < r->o->group; set++) {
		err = result_check(c, set);
		if (!err)
			err = guards_check(c, set);
	}
	return err;
}

/* All ranks make calls and graphs in the same order, as the ABI demands. */
int bench_way_check(struct bench_rank *r, const struct bench_task *t, int lib, int way, uint64_t *wrong_p)
{
	bool as_graph = way / BENCH_NPLACES == BENCH_GRAPH;
	struct check c = { .r = r, .t = t, .lib = lib, .way = way };
	int err = 0;

	if (as_graph)
		err = bench_capture(r, t, lib, way % BENCH_NPLACES, 1, &c.graph);
	for (int class = 0; !err && class < BENCH_NCLASSES; class++) {
		/* Fresh data each time, the same on all ranks. */
		uint64_t seed = r->o->seed +
		    ((((t->bytes * SHUNT_NFORMATS + t->dtype) * SHUNT_NREDOPS + t->redop) * BENCH_NWAYS +
		         (uint64_t)way) *
		            RANKS_MAX_LIBS +
		        (uint64_t)lib) *
		        BENCH_NCLASSES +
		    (uint64_t)class;
		struct bench_data *data;

		if (!bench_data_has(t->dtype, class))
			continue;
		bench_rank_progress(r, RANKS_CHECK, lib, way);
		data = bench_data_create(t->dtype, t->redop, class, r->shared->launch.nranks, seed);
		c.data = data;
		err = data ? class_check(&c) : bench_rank_check(r, "host memory", -ENOMEM);
		bench_data_destroy(data);
	}
	if (c.graph)
		r->lib.graph_destroy(c.graph);
	*wrong_p += c.wrong;
	return err;
}
