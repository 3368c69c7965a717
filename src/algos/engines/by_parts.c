/* SPDX-License-Identifier: MIT */
/*
 * Calls of one host whose ranks are on several islands (topology.h): NVLink joins the ranks of an island, and the
 * host's memory or PCIe joins the islands. Each step is a collective of a part of the ranks, which have memory of their
 * own for that (struct shunt_part), in a launch of its own. The slow link carries one island's share only:
 *
 * | call       | on the island             | between the islands          | on the island                  |
 * |------------|---------------------------|------------------------------|--------------------------------|
 * | all-reduce | reduce-scatter            | all-reduce of the rank's part| all-gather                     |
 * | all-gather |                           | the ranks' blocks            | all-gather of each island's    |
 * | reduce-    | a reduction of each rank's| reduce-scatter of the parts  |                                |
 * | scatter    | part, to its rail's rank  | of the rail's ranks          |                                |
 *
 * Sums are by rank on the island, then by island, as over hosts (docs/decisions/016.md).
 */
#include <errno.h>
#include <string.h>
#include "algos/algos.h"

static void make_part(struct shunt_part *part, const struct shunt_sel_key *key, int nranks, int rank)
{
	shunt_topology_join(&part->topology, nranks, rank);
	part->key = *key;
	part->key.nranks = nranks;
	part->key.topology = &part->topology;
	part->key.takes_all = true; /* NCCL cannot take a step of a call */
	part->key.parts = NULL;
	part->key.plugins = NULL;
	part->key.tuning = part->key.by_link = NULL;
}

bool shunt_parts_make(struct shunt_part parts[SHUNT_PARTS], const struct shunt_sel_key *key)
{
	const struct shunt_topology *t = key->topology;
	struct shunt_topology islands;
	struct shunt_part *near = &parts[SHUNT_PART_ISLAND], *far = &parts[SHUNT_PART_RAIL];

	if (shunt_topology_is_split(t) || shunt_topology_within(t) <= SHUNT_LINK_NVLINK ||
	    !shunt_topology_find_islands(t, &islands))
		return false;
	make_part(near, key, islands.rails, islands.local_of[t->rank]);
	near->key.staged = false;
	memcpy(near->rank_of, shunt_topology_locals(&islands), (size_t)islands.rails);
	make_part(far, key, islands.nislands, islands.island_of[t->rank]);
	far->topology.within = t->within;
	for (int i = 0; i < islands.nislands; i++)
		far->rank_of[i] = islands.rank_at[i][islands.local_of[t->rank]];
	return true;
}

/* True: an island's ranks follow each other. */
static bool are_ranges(const struct shunt_part *parts)
{
	const struct shunt_part *near = &parts[SHUNT_PART_ISLAND];

	for (int i = 0; i < near->key.nranks; i++)
		if (near->rank_of[i] != near->rank_of[0] + i || near->rank_of[0] % near->key.nranks)
			return false;
	return true;
}

bool shunt_islands_fit(const struct shunt_sel_key *key, const struct shunt_coll *coll)
{
	const struct shunt_part *parts = key->parts;

	/* The launch that would record the event is not the call's last one. */
	if (!parts || coll->launched || shunt_dtype_is_format(coll->dtype))
		return false;
	if (coll->kind == SHUNT_ALLGATHER)
		return are_ranges(parts);
	if (coll->kind == SHUNT_REDUCESCATTER)
		return coll->redop != SHUNT_AVG;
	return coll->kind == SHUNT_ALLREDUCE && coll->redop != SHUNT_AVG &&
	    !(coll->count % (size_t)parts[SHUNT_PART_ISLAND].key.nranks);
}

/* Calls of the ranks of a part, which share a launch. */
static int step(
    const struct shunt_enqueue_ctx *enqueue, enum shunt_part_kind kind, const struct shunt_coll *colls, unsigned n)
{
	const struct shunt_part *part = &enqueue->sel_key->parts[kind];
	struct shunt_decision decisions[2 * SHUNT_MAX_RANKS] = { 0 };
	const struct shunt_coll *calls[2 * SHUNT_MAX_RANKS];
	struct shunt_enqueue_ctx sub = *enqueue;

	for (unsigned i = 0; i < n; i++) {
		calls[i] = &colls[i];
		if (!enqueue->select(&(struct shunt_sel){ .key = &part->key }, &colls[i], &decisions[i]))
			return -EOPNOTSUPP;
	}
	sub.sel_key = sub.limits.key = &part->key;
	sub.base = &part->kargs;
	if (!shunt_kind_is_p2p(colls->kind)) {
		int blocks = (int)shunt_grid_halve(sub.limits.few_ctas, decisions->geometry.blocks);

		sub.limits.max_ctas = shunt_limit_min(sub.limits.max_ctas, blocks > sub.limits.min_ctas ? blocks : 0);
		sub.limits.max_threads = decisions->geometry.threads;
	}
	sub.check = false;
	return n ? decisions->algo->enqueue(&sub, decisions, calls, n) : 0;
}

static int allreduce(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *coll)
{
	const struct shunt_part *near = &enqueue->sel_key->parts[SHUNT_PART_ISLAND];
	struct shunt_coll c = *coll;
	int err;

	c.algo = NULL;
	c.count /= (size_t)near->key.nranks;
	c.kind = SHUNT_REDUCESCATTER;
	c.recv = (char *)coll->recv + near->kargs.rank * shunt_coll_bytes(&c);
	err = step(enqueue, SHUNT_PART_ISLAND, &c, 1);
	c.send = c.recv;
	if (c.redop == SHUNT_PREMUL)
		c.redop = SHUNT_SUM;
	c.kind = SHUNT_ALLREDUCE;
	err = err ? err : step(enqueue, SHUNT_PART_RAIL, &c, 1);
	c.kind = SHUNT_ALLGATHER;
	c.recv = coll->recv;
	return err ? err : step(enqueue, SHUNT_PART_ISLAND, &c, 1);
}

static int allgather(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *coll)
{
	const struct shunt_part *parts = enqueue->sel_key->parts, *near = &parts[SHUNT_PART_ISLAND],
	                        *far = &parts[SHUNT_PART_RAIL];
	uint64_t bytes = shunt_coll_bytes(coll);
	struct shunt_coll c[2 * SHUNT_MAX_RANKS];
	unsigned n = 0;
	int err;

	for (int i = 0; i < far->key.nranks; i++) {
		if (i == far->kargs.rank)
			continue;
		c[n] = c[n + 1] = *coll;
		c[n].kind = SHUNT_SEND;
		c[n + 1].kind = SHUNT_RECV;
		c[n + 1].recv = (char *)coll->recv + far->rank_of[i] * bytes;
		c[n].root = c[n + 1].root = i;
		c[n].algo = c[n + 1].algo = NULL;
		n += 2;
	}
	err = step(enqueue, SHUNT_PART_RAIL, c, n);
	for (int i = 0; i < far->key.nranks; i++) {
		c[i] = *coll;
		c[i].algo = NULL;
		c[i].recv = (char *)coll->recv + (uint64_t)i * near->key.nranks * bytes;
		if (i != far->kargs.rank)
			c[i].send = (char *)coll->recv + far->rank_of[i] * bytes;
	}
	return err ? err : step(enqueue, SHUNT_PART_ISLAND, c, (unsigned)far->key.nranks);
}

/*
 * As much of each part at a time as the room has space for. All ranks of an island sum up for rank l of it what rank l
 * of each island is to have, and rank l hands that on.
 */
static int reducescatter(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *coll)
{
	const struct shunt_part *near = &enqueue->sel_key->parts[SHUNT_PART_ISLAND],
	                        *far = &enqueue->sel_key->parts[SHUNT_PART_RAIL];
	int each = near->key.nranks, islands = far->key.nranks, err = 0;
	uint64_t bytes = shunt_coll_bytes(coll), size = shunt_dtype_bytes[coll->dtype],
	         most = SHUNT_PARTS_ROOM(near->key.sim) / (unsigned)islands / 128 * 128;
	struct shunt_topology t;

	shunt_topology_find_islands(enqueue->sel_key->topology, &t);
	for (uint64_t from = 0; from < bytes && !err; from += most) {
		struct shunt_coll c[SHUNT_MAX_RANKS], between = *coll;

		between.algo = NULL;
		between.count = (bytes - from < most ? bytes - from : most) / size;
		for (int i = 0; i < islands * each; i++) {
			c[i] = between;
			c[i].kind = SHUNT_REDUCE;
			c[i].root = i % each;
			c[i].send = (char *)(uintptr_t)coll->send + t.rank_at[i / each][i % each] * bytes + from;
			c[i].recv = (char *)near->room + (unsigned)(i / each) * between.count * size;
		}
		err = step(enqueue, SHUNT_PART_ISLAND, c, (unsigned)(islands * each));
		between.send = near->room;
		between.recv = (char *)coll->recv + from;
		if (between.redop == SHUNT_PREMUL)
			between.redop = SHUNT_SUM;
		err = err ? err : step(enqueue, SHUNT_PART_RAIL, &between, 1);
	}
	return err;
}

int shunt_islands_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	(void)decisions;
	(void)ncalls; /* they do not fuse */
	switch (calls[0]->kind) {
	case SHUNT_ALLREDUCE:
		return allreduce(enqueue, calls[0]);
	case SHUNT_REDUCESCATTER:
		return reducescatter(enqueue, calls[0]);
	default:
		return allgather(enqueue, calls[0]);
	}
}
