/* SPDX-License-Identifier: MIT */
/* Which calls over several islands are Shunt's in front of a real NCCL: by a tuning file, or by what was measured. */
#include <string.h>
#include "algos/select/tuning.h"
#include "base/hash.h"

#define KB ((uint64_t)1 << 10)
#define MB ((uint64_t)1 << 20)

/*
 * Sizes at which Shunt was not slower than NCCL. Islands of other sizes, other providers and other kinds are NCCL's,
 * until `shunt tune` has measured them there. Rows of one kind and place have sizes of their own.
 */
static const struct measured {
	enum shunt_kind kind;
	bool sim;
	uint8_t islands, each; /* ranks of each island; 0: any number */
	const char *net;       /* NULL: any */
	uint64_t from, upto;   /* bytes as in struct shunt_tuning_row, inclusive */
} measured[] = {
	{ SHUNT_ALLREDUCE, false, 2, 1, "tcp", 0, 64 * MB }, /* docs/results/2026-11-26-2xH200-hosts.json */
	{ SHUNT_ALLGATHER, false, 2, 1, "tcp", 0,
	    8 * MB }, /* docs/results/2026-11-27-2xH200-hosts.json, as all up to 8 MB */
	{ SHUNT_REDUCESCATTER, false, 2, 1, "tcp", 0, 8 * MB },
	{ SHUNT_BROADCAST, false, 2, 1, "tcp", 0, 8 * MB },
	{ SHUNT_REDUCE, false, 2, 1, "tcp", 0, 8 * MB },
	{ SHUNT_ALLTOALL, false, 2, 1, "tcp", 0, 8 * MB },
	{ SHUNT_GATHER, false, 2, 1, "tcp", 0, 8 * MB },
	{ SHUNT_SCATTER, false, 2, 1, "tcp", 0, 8 * MB },
	/* docs/results/2026-11-27-4xH200-hosts.json, as all below; docs/results/2026-11-27-4xH200-hosts-links.json */
	{ SHUNT_ALLREDUCE, false, 2, 2, "tcp", 0, 64 * MB },
	{ SHUNT_ALLGATHER, false, 2, 2, "tcp", 0, 16 * MB },
	{ SHUNT_REDUCESCATTER, false, 2, 2, "tcp", 0, 256 * KB },
	{ SHUNT_REDUCESCATTER, false, 2, 2, "tcp", 4 * MB, 16 * MB },
	{ SHUNT_BROADCAST, false, 2, 2, "tcp", 0, 16 * KB },
	{ SHUNT_BROADCAST, false, 2, 2, "tcp", 256 * KB, 16 * MB },
	{ SHUNT_REDUCE, false, 2, 2, "tcp", 16 * KB, 16 * MB },
	{ SHUNT_ALLREDUCE, false, 4, 1, "tcp", 0, 64 * MB },
	{ SHUNT_ALLGATHER, false, 4, 1, "tcp", 0, 64 * KB },
	{ SHUNT_ALLGATHER, false, 4, 1, "tcp", 4 * MB, 16 * MB },
	{ SHUNT_REDUCESCATTER, false, 4, 1, "tcp", 0, 16 * MB },
	{ SHUNT_BROADCAST, false, 4, 1, "tcp", 4 * MB, 16 * MB },
	{ SHUNT_REDUCE, false, 4, 1, "tcp", 0, 64 * KB },
	{ SHUNT_REDUCE, false, 4, 1, "tcp", 4 * MB, 16 * MB },
	{ SHUNT_ALLTOALL, false, 4, 1, "tcp", 0, 4 * MB },
	{ SHUNT_GATHER, false, 4, 1, "tcp", 0, 1 * KB },
	{ SHUNT_GATHER, false, 4, 1, "tcp", 256 * KB, 4 * MB },
	{ SHUNT_SCATTER, false, 4, 1, "tcp", 0, 4 * MB },
	{ SHUNT_ALLREDUCE, true, 0, 0, NULL, 0, 4 * MB },
	{ SHUNT_ALLGATHER, true, 0, 0, NULL, 0, 1 * MB },
	{ SHUNT_REDUCESCATTER, true, 0, 0, NULL, 0, 1 * MB },
	{ SHUNT_BROADCAST, true, 0, 0, NULL, 0, 64 * KB },
	{ SHUNT_REDUCE, true, 0, 0, NULL, 0, 64 * KB },
	{ SHUNT_ALLTOALL, true, 0, 1, NULL, 0, 64 * KB },
};

enum { NMEASURED = sizeof(measured) / sizeof(measured[0]) };

/* Before the set-up the ranks' places may not be known. */
static bool is_placed(const struct shunt_topology *t)
{
	return t->nlocal[0];
}

static bool fits(const struct measured *m, const struct shunt_sel_key *key, enum shunt_kind kind)
{
	const struct shunt_topology *t = key->topology;

	return m->kind == kind && m->sim == key->sim && (!m->net || !key->net || !strcmp(m->net, key->net)) &&
	    (!is_placed(t) || ((!m->islands || m->islands == t->nislands) && (!m->each || m->each == t->rails)));
}

/* Before the set-up: the row of any file on which the ranks may agree with which Shunt takes the call, or NULL. */
static const struct shunt_tuning_row *any_files_row(
    const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes)
{
	const struct shunt_tuning_set *set = shunt_tuning_files();
	const struct shunt_topology *at = key->topology;

	for (size_t i = 0; i < set->n; i++) {
		const struct shunt_machine *m = &set->tables[i]->machine;
		const struct shunt_tuning_row *r;

		if (!m->nhosts || (is_placed(at) && (m->nhosts != at->nislands || m->nranks != at->nranks)))
			continue;
		r = shunt_tuning_row(set->tables[i], kind, bytes);
		if (r && !r->forward)
			return r;
	}
	return NULL;
}

bool shunt_tuning_serves_islands(const struct shunt_sel_key *key, enum shunt_kind kind)
{
	const struct shunt_topology *t = key->topology;

	if (key->takes_all)
		return true;
	switch (kind) {
	case SHUNT_ALLREDUCE:
	case SHUNT_ALLGATHER:
	case SHUNT_REDUCESCATTER:
	case SHUNT_BROADCAST:
	case SHUNT_REDUCE:
		return shunt_topology_is_regular(t);
	case SHUNT_ALLTOALL:
	case SHUNT_GATHER:
	case SHUNT_SCATTER:
		return key->pairs || t->nislands == t->nranks;
	default:
		return key->pairs;
	}
}

enum shunt_tuning_side shunt_tuning_over_islands(
    const struct shunt_sel_key *key, enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p)
{
	const struct shunt_tuning_row *row = key->tuning ? shunt_tuning_row(key->tuning, kind, bytes) : NULL;
	const struct shunt_tuning_row *early = key->early ? any_files_row(key, kind, bytes) : NULL;
	enum shunt_tuning_side side = SHUNT_TUNING_UNMEASURED;

	row = early ? early : row;
	*algo_p = row ? row->algo : shunt_algo_over_islands(kind);
	if (row)
		return row->forward ? SHUNT_TUNING_NCCLS : SHUNT_TUNING_OURS;
	for (size_t i = 0; i < NMEASURED && side != SHUNT_TUNING_OURS; i++)
		if (fits(&measured[i], key, kind))
			side = bytes >= measured[i].from && bytes <= measured[i].upto ? SHUNT_TUNING_OURS :
			                                                                SHUNT_TUNING_NCCLS;
	return side;
}

void shunt_tuning_islands_crossovers(
    const struct shunt_sel_key *key, enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx)
{
	for (size_t i = 0; i < NMEASURED; i++)
		if (fits(&measured[i], key, kind)) {
			add(ctx, measured[i].from);
			add(ctx, measured[i].upto + 1);
		}
}

uint64_t shunt_tuning_islands_hash(uint64_t seed)
{
	for (size_t i = 0; i < NMEASURED; i++) {
		const struct measured *m = &measured[i];
		uint64_t numbers[] = { m->kind, m->sim, m->islands, m->each, m->from, m->upto };

		seed = shunt_fnv1a(seed, numbers, sizeof(numbers));
		seed = shunt_fnv1a(seed, m->net ? m->net : "", m->net ? strlen(m->net) : 0);
	}
	return seed;
}
