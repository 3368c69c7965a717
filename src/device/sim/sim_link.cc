/* SPDX-License-Identifier: MIT */
/*
 * Links that lie, as SHUNT_SIM_LINKS has them for the link of a rule, PCIe and NVLink or the memory of the host: a
 * kernel's store into memory of another device, or into another rank's segment of the host's memory, comes late, wrong,
 * or never. Whose memory it is says the name of the memfd, which each process finds in its own table of mappings; that
 * table is read at launches, where some link lies.
 */
#include <stdio.h>
#include <string.h>
#include "device/sim/block.h"
#include "device/sim/sim.h"
extern "C" {
#include "base/config.h"
}

enum { DEVICES = 8, RANGES = 512, ONE_IN = 256 };

struct range {
	uintptr_t from, to;
	int owner, of_host; /* no padding: ranges are compared byte by byte */
};
struct ranges {
	struct ranges *older;
	unsigned n;
	struct range at[RANGES];
};

bool shunt_sim_links_play;

static struct shunt_link_rule rules[DEVICES][DEVICES];
static uint32_t stores[DEVICES][DEVICES], packs[DEVICES][DEVICES]; /* packs: stores of 16 bytes */
static const void *lost[DEVICES][DEVICES];
static struct ranges *newest; /* those before it stay, as kernels may read them */
static struct sim_lock reading;

void sim_link_forget(void) { reading = {}; }

void sim_link_open(void)
{
	for (int a = 0; a < DEVICES; a++)
		for (int b = 0; b < DEVICES; b++) {
			rules[a][b] = shunt_link_rules_look(shunt_config()->sim_links, a, b);
			shunt_sim_links_play |= a != b && rules[a][b].play != SHUNT_LINK_HONEST;
		}
}

static void read_maps(struct ranges *r)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];

	while (f && r->n < RANGES && fgets(line, sizeof(line), f)) {
		const char *name = strstr(line, "/memfd:shunt-");
		struct range *at = &r->at[r->n];

		if (name && sscanf(line, "%lx-%lx", &at->from, &at->to) == 2 &&
		    (sscanf(name, "/memfd:shunt-sim-%d", &at->owner) == 1 ||
		        (at->of_host = sscanf(name, "/memfd:shunt-memory-%d", &at->owner) == 1)))
			r->n += at->owner >= 0 && at->owner < DEVICES;
	}
	if (f)
		fclose(f);
}

void sim_link_look(void)
{
	struct ranges *r;

	if (!shunt_sim_links_play)
		return;
	r = (struct ranges *)sim_new(sizeof(*r));
	if (!r)
		return;
	sim_lock(&reading);
	read_maps(r);
	r->older = newest;
	if (newest && newest->n == r->n && !memcmp(newest->at, r->at, sizeof(r->at)))
		sim_delete(r);
	else
		__atomic_store_n(&newest, r, __ATOMIC_RELEASE);
	sim_unlock(&reading);
}

static const struct range *range_of(const void *p)
{
	const struct ranges *r = __atomic_load_n(&newest, __ATOMIC_ACQUIRE);

	for (unsigned i = 0; r && i < r->n; i++)
		if ((uintptr_t)p - r->at[i].from < r->at[i].to - r->at[i].from)
			return &r->at[i];
	return nullptr;
}

extern "C" bool shunt_sim_link_loses(void *to, struct gpu_v16 *v, uint32_t bytes)
{
	const struct sim_block *b = (const struct sim_block *)shunt_sim_self; /* self is its first member */
	const struct range *range = range_of(to);
	int from = b->launch->device, owner = range ? range->owner : from;
	uint32_t n = 0;

	if (owner == from || from >= DEVICES || range->of_host != (rules[from][owner].link == SHUNT_LINK_SHARED))
		return false;

	const struct shunt_link_rule *rule = &rules[from][owner];
	const void **place = &lost[from][owner], *gone;

	if (bytes == 16)
		n = __atomic_add_fetch(&packs[from][owner], 1, __ATOMIC_RELAXED);
	switch (rule->play) {
	case SHUNT_LINK_OLD:
		return n && n % ONE_IN == 0;
	case SHUNT_LINK_LOST:
		if (n && n % ONE_IN == 0)
			__atomic_store_n(place, to, __ATOMIC_RELAXED);
		gone = __atomic_load_n(place, __ATOMIC_RELAXED);
		return gone == to;
	case SHUNT_LINK_SWAP:
		if (n && n % ONE_IN == 0)
			*v = { v->hi, v->lo };
		return false;
	case SHUNT_LINK_SILENT:
		return true;
	case SHUNT_LINK_ONEWAY:
		return from < owner;
	case SHUNT_LINK_DIES:
		return __atomic_add_fetch(&stores[from][owner], 1, __ATOMIC_RELAXED) > rule->after;
	default:
		return false;
	}
}
