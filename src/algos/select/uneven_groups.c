/* SPDX-License-Identifier: MIT */
/* Which calls of a group are the parts of one all-gather or reduce-scatter. */
#include "algos/algos.h"
#include "algos/select/forced.h"

/*
 * Longest part, in bytes. Beyond it the rings of the p2p engine have more under way: on 4 H200 parts of up to 1 MB took
 * 13 us there, and 16 us in one hop; of 256 KB 7 us in one hop, and NCCL 18 us.
 */
#define MOST (512u << 10)

static bool fits(const struct shunt_coll *c, const struct shunt_decision *d)
{
	struct shunt_geometry geometry;
	const struct shunt_algo *forced;

	if (!(SHUNT_UNEVEN_KINDS >> c->kind & 1) || !d->algo ||
	    (d->algo->fuse != SHUNT_FUSE_COPY && d->algo->fuse != SHUNT_FUSE_REDUCE))
		return false;
	if (c->kind == SHUNT_REDUCE && (c->redop == SHUNT_PREMUL || !shunt_algo_hot(c->redop, c->dtype)))
		return false;
	return !shunt_forced_find(c->kind, shunt_coll_bytes(c), &forced, &geometry);
}

/* They may be parts of one collective. Values that all ranks share. */
static bool alike(const struct shunt_coll *a, const struct shunt_coll *b)
{
	return a->kind == b->kind && a->min_ctas == b->min_ctas && a->max_ctas == b->max_ctas &&
	    a->cta_policy == b->cta_policy &&
	    (a->kind == SHUNT_BROADCAST || (a->dtype == b->dtype && a->redop == b->redop));
}

/* True: call i is the first one of its kind of collective, so the calls after it that are alike are looked at for it.
 */
static bool leads(const struct shunt_coll *const *calls, const struct shunt_decision *decisions, size_t i)
{
	if (!fits(calls[i], &decisions[i]))
		return false;
	for (size_t k = 0; k < i; k++)
		if (alike(calls[i], calls[k]) && fits(calls[k], &decisions[k]))
			return false;
	return true;
}

void shunt_uneven_decide(
    const struct shunt_sel_key *key, const struct shunt_coll *const *calls, struct shunt_decision *decisions, size_t n)
{
	if (key->nranks < 2 || key->nranks > SHUNT_KARGS_MAX_RANKS || key->staged ||
	    shunt_topology_is_split(key->topology))
		return;
	for (size_t i = 0; i + 1 < n; i++) {
		uint32_t roots = 0;

		if (!leads(calls, decisions, i))
			continue;
		for (size_t k = i; k < n && roots != UINT32_MAX; k++)
			if (alike(calls[i], calls[k]) && fits(calls[k], &decisions[k]))
				roots = shunt_coll_bytes(calls[k]) > MOST ? UINT32_MAX : roots | 1u << calls[k]->root;
		if (roots == UINT32_MAX || !(roots & (roots - 1)))
			continue;
		for (size_t k = i; k < n; k++)
			if (alike(calls[i], calls[k]) && fits(calls[k], &decisions[k])) {
				decisions[k].algo = calls[k]->kind == SHUNT_REDUCE ? &shunt_reduce_scatterv_algo :
				                                                     &shunt_allgatherv_algo;
				decisions[k].path = decisions[k].algo->name;
				decisions[k].geometry = (struct shunt_geometry){ 0 };
			}
	}
}
