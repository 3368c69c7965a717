/* SPDX-License-Identifier: MIT */
#include <stddef.h>
#include <string.h>
#include "topology/topology.h"

const struct shunt_topology shunt_topology_one_island = { .nislands = 1, .within = SHUNT_LINK_NVLINK };

void shunt_topology_join(struct shunt_topology *t, int nranks, int rank)
{
	int n = nranks < SHUNT_TOPOLOGY_LOCAL ? nranks : SHUNT_TOPOLOGY_LOCAL;

	memset(t, 0, sizeof(*t));
	t->nislands = 1;
	t->nranks = n < 0 ? 0 : n;
	t->rank = rank >= 0 && rank < n ? rank : 0;
	shunt_topology_complete(t);
}

void shunt_topology_complete(struct shunt_topology *t)
{
	t->rails = SHUNT_TOPOLOGY_LOCAL;
	t->within = SHUNT_LINK_NVLINK;
	memset(t->link, SHUNT_LINK_NVLINK, sizeof(t->link));
	for (int i = 0; i < t->nislands; i++)
		t->nlocal[i] = 0;
	for (int r = 0; r < t->nranks; r++) {
		uint8_t island = t->island_of[r];

		t->local_of[r] = t->nlocal[island]++;
		t->rank_at[island][t->local_of[r]] = (uint8_t)r;
	}
	for (int i = 0; i < t->nislands; i++)
		t->rails = t->nlocal[i] < t->rails ? t->nlocal[i] : t->rails;
}

void shunt_topology_place(struct shunt_topology *t, int nranks, int nislands, int rank, const uint8_t *island_of)
{
	const size_t at = offsetof(struct shunt_topology, nranks); /* behind nislands */
	struct shunt_topology placed = { .nislands = nislands, .nranks = nranks, .rank = rank };

	memcpy(placed.island_of, island_of, (size_t)nranks);
	shunt_topology_complete(&placed);
	memcpy((char *)t + at, (const char *)&placed + at, offsetof(struct shunt_topology, within) - at);
	__atomic_store_n(&t->within, placed.within, __ATOMIC_RELAXED);
	__atomic_store_n(&t->nislands, nislands, __ATOMIC_RELEASE);
}

bool shunt_topology_agree(
    struct shunt_topology *t, const uint8_t claims[][SHUNT_TOPOLOGY_LOCAL], unsigned served, int *a_p, int *b_p)
{
	uint8_t within = t->nranks > t->nislands ? SHUNT_LINK_SELF : SHUNT_LINK_NVLINK;

	for (int a = 0; a < t->nranks; a++)
		for (int i = 0; i < t->nlocal[t->island_of[a]]; i++) {
			int b = t->rank_at[t->island_of[a]][i];
			uint8_t mine = claims[a][i], theirs = claims[b][t->local_of[a]],
			        link = mine > theirs ? mine : theirs;

			while (a != b && link < SHUNT_LINK_NET && !(served >> link & 1))
				link++;
			if (a != b && link >= SHUNT_LINK_NET) {
				*a_p = mine < theirs ? b : a;
				*b_p = mine < theirs ? a : b;
				return false;
			}
			t->link[a][i] = a == b ? (uint8_t)SHUNT_LINK_SELF : link;
			within = link > within ? link : within;
		}
	__atomic_store_n(&t->within, within > SHUNT_LINK_NVLINK ? within : SHUNT_LINK_NVLINK, __ATOMIC_RELAXED);
	return true;
}

bool shunt_topology_find_islands(const struct shunt_topology *t, struct shunt_topology *islands)
{
	*islands = (struct shunt_topology){ .nranks = t->nranks, .rank = t->rank };
	for (int r = 0; r < t->nranks; r++) {
		int island = 0;

		for (int other = 0; other < r && island < islands->nislands;) {
			if (islands->island_of[other] != island ||
			    t->link[r][t->local_of[other]] <= SHUNT_LINK_NVLINK) {
				other++;
				continue;
			}
			island++;
			other = 0;
		}
		islands->island_of[r] = (uint8_t)island;
		islands->nislands += island == islands->nislands;
	}
	shunt_topology_complete(islands);
	return islands->nislands > 1 && islands->rails > 1 && shunt_topology_is_regular(islands);
}

int shunt_topology_largest(const struct shunt_topology *t)
{
	int largest = 0;

	for (int i = 0; i < t->nislands; i++)
		largest = t->nlocal[i] > largest ? t->nlocal[i] : largest;
	return largest;
}

int shunt_topology_rail(const struct shunt_topology *t, int rank)
{
	return t->local_of[rank] < t->rails ? t->local_of[rank] : t->rails + rank;
}

bool shunt_topology_connects(const struct shunt_topology *t, bool all, int a, int b)
{
	if (shunt_topology_is_joint(t, a, b))
		return false;
	return all || shunt_topology_rail(t, a) == shunt_topology_rail(t, b);
}

void shunt_topology_spread(uint32_t nranks, uint32_t nislands, uint8_t *island_of)
{
	for (uint32_t r = 0; r < nranks; r++)
		island_of[r] = (uint8_t)((uint64_t)r * nislands / nranks);
}
