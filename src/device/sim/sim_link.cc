/* SPDX-License-Identifier: MIT */
/*
 * Links that are not as good as memory, as SHUNT_SIM_LINKS has them for the link of a rule, PCIe and NVLink or the
 * memory of the host. Whose memory it is says the name of the memfd, which each process finds in its own table of
 * mappings; that table is read at launches, where some link is played.
 *
 * A link that lies: a kernel's store into memory of another device, or into another rank's segment of the host's
 * memory, comes wrong or never.
 *
 * A posted link: the block keeps such stores, and those into its own rank's segment, word by word. They arrive in any
 * order while the block waits for something, and all at once where it releases, fences or ends. A look at such memory
 * may be as old as the block's last one at that word; what the block acquires ends that for all words. For
 * ThreadSanitizer a store is made where the kernel makes it.
 */
#include <stdio.h>
#include <string.h>
#include "device/sim/block.h"
#include "device/sim/hooks.h"
#include "device/sim/sim.h"
extern "C" {
#include "base/config.h"
}

enum { DEVICES = 8, RANGES = 512, ONE_IN = 256, KEPT = 128, LOOKS = 64 };

struct range {
	uintptr_t from, to;
	int owner, of_host; /* no padding: ranges are compared byte by byte */
};
struct ranges {
	struct ranges *older;
	unsigned n;
	struct range at[RANGES];
};

struct sim_posted {
	unsigned n;
	uint64_t random;
	struct {
		uint64_t *to, word;
	} store[KEPT]; /* one for a word */
	struct {
		const uint64_t *at;
		uint64_t seen;
	} look[LOOKS];
};

bool shunt_sim_links_play;

static struct shunt_link_rule rules[DEVICES][DEVICES];
static uint32_t stores[DEVICES][DEVICES], packs[DEVICES][DEVICES]; /* packs: stores of 16 bytes */
static const void *lost[DEVICES][DEVICES];
static struct ranges *newest; /* those before it stay, as kernels may read them */
static struct sim_lock reading;
static bool posted_host[DEVICES]; /* some pair of the device goes through the host's memory, posted */
static struct shunt_sim_link_count counts[DEVICES][DEVICES];

void sim_link_forget(void) { reading = {}; }

void sim_link_open(void)
{
	for (int a = 0; a < DEVICES; a++)
		for (int b = 0; b < DEVICES; b++) {
			rules[a][b] = shunt_link_rules_look(shunt_config()->sim_links, a, b);
			shunt_sim_links_play |= a != b && rules[a][b].play != SHUNT_LINK_HONEST;
			posted_host[a] |=
			    a != b && rules[a][b].play == SHUNT_LINK_POSTED && rules[a][b].link == SHUNT_LINK_SHARED;
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
	tsan_ignore_begin(); /* of the C library's functions; it does not see the lock */
	sim_lock(&reading);
	read_maps(r);
	r->older = newest;
	if (newest && newest->n == r->n && !memcmp(newest->at, r->at, sizeof(r->at)))
		sim_delete(r);
	else
		__atomic_store_n(&newest, r, __ATOMIC_RELEASE);
	sim_unlock(&reading);
	tsan_ignore_end();
}

static const struct range *range_of(const void *p)
{
	const struct ranges *r = __atomic_load_n(&newest, __ATOMIC_ACQUIRE);

	unsigned from = 0, to = r ? r->n : 0;

	while (from < to) { /* the table of mappings is sorted */
		unsigned mid = (from + to) / 2;

		if ((uintptr_t)p < r->at[mid].from)
			to = mid;
		else if ((uintptr_t)p >= r->at[mid].to)
			from = mid + 1;
		else
			return &r->at[mid];
	}
	return nullptr;
}

/* Whose memory behind a posted link this is, as the running block's device sees it; -1: no such memory. */
static int posted_owner(const void *p)
{
	int from = sim_this_block()->launch->device;
	const struct range *range = from < DEVICES ? range_of(p) : nullptr;

	if (!range)
		return -1;
	if (range->owner == from)
		return range->of_host && posted_host[from] ? from : -1;

	const struct shunt_link_rule *rule = &rules[from][range->owner];

	return rule->play == SHUNT_LINK_POSTED && rule->link == (range->of_host ? SHUNT_LINK_SHARED : SHUNT_LINK_PEER) ?
	    range->owner :
	    -1;
}

static struct sim_posted *kept_of(struct sim_block *b)
{
	if (!b->posted && (b->posted = (struct sim_posted *)sim_new(sizeof(*b->posted))))
		b->posted->random = ((unsigned)b->launch->device * 1024u + b->self.bid + 1) * 0x9e3779b97f4a7c15u;
	if (!b->posted) {
		shunt_error("sim: no memory for a block's stores"); /* a kernel cannot return an error */
		__builtin_trap();
	}
	return b->posted;
}

static void arrive(struct sim_posted *k, unsigned i)
{
	__atomic_store_n(k->store[i].to, k->store[i].word, __ATOMIC_RELEASE);
	k->store[i] = k->store[--k->n];
}

void sim_link_drain(struct sim_block *b, bool all)
{
	struct sim_posted *k = b->posted;

	if (!k)
		return;
	for (unsigned left = all ? k->n : (k->n + 1) / 2; left; left--)
		arrive(k, (unsigned)(sim_random(&k->random) % k->n));
}

static void keep(struct sim_posted *k, uint64_t *to, uint64_t word)
{
	unsigned i = 0;

	while (i < k->n && k->store[i].to != to)
		i++;
	if (i == KEPT) {
		arrive(k, (unsigned)(sim_random(&k->random) % KEPT));
		i--;
	}
	if (i == k->n)
		k->store[k->n++].to = to;
	k->store[i].word = word;
	if (k->look[(uintptr_t)to / 8 % LOOKS].at == to)
		k->look[(uintptr_t)to / 8 % LOOKS].at = nullptr;
}

static void post(int owner, void *to, const struct gpu_v16 *v, uint32_t bytes, enum sim_store how)
{
	struct sim_block *b = sim_this_block();
	uint64_t *word = (uint64_t *)to;

	__atomic_fetch_add(&counts[b->launch->device][owner].stored, bytes, __ATOMIC_RELAXED);
	if (how == SIM_STORE_PLAIN)
		tsan_write16(to);
	if (how == SIM_STORE_PACKET)
		tsan_release(to);
	keep(kept_of(b), word, v->lo);
	if (bytes == sizeof(*v))
		keep(kept_of(b), word + 1, v->hi);
}

extern "C" void shunt_sim_link_release(void) { sim_link_drain(sim_this_block(), true); }

extern "C" bool shunt_sim_link_looks(const uint64_t *at, enum sim_look how, uint64_t *seen_p)
{
	struct sim_block *b = sim_this_block();
	int owner = posted_owner(at);

	if (owner >= 0) {
		struct sim_posted *k = kept_of(b);
		auto *look = &k->look[(uintptr_t)at / 8 % LOOKS];

		__atomic_fetch_add(&counts[b->launch->device][owner].loaded, sizeof(*at), __ATOMIC_RELAXED);
		for (unsigned i = 0; i < k->n; i++)
			if (k->store[i].to == at)
				arrive(k, i);
		if (look->at != at || sim_random(&k->random) % 4)
			*look = { at, __atomic_load_n(at, __ATOMIC_ACQUIRE) };
		*seen_p = look->seen;
		if (how != SIM_LOOK_PLAIN)
			tsan_acquire((void *)at);
	}
	for (unsigned i = 0; b->posted && how == SIM_LOOK_ACQUIRE && i < LOOKS; i++)
		b->posted->look[i].at = nullptr;
	return owner >= 0;
}

extern "C" void shunt_sim_link_forbid(const void *at, const char *what)
{
	if (posted_owner(at) < 0)
		return;
	shunt_error("sim: %s on memory behind a link that has only stores and loads", what);
	__builtin_trap();
}

extern "C" struct shunt_sim_link_count shunt_sim_link_counts(int device, int owner)
{
	return { __atomic_load_n(&counts[device][owner].stored, __ATOMIC_RELAXED),
		__atomic_load_n(&counts[device][owner].loaded, __ATOMIC_RELAXED) };
}

extern "C" bool shunt_sim_link_takes(void *to, struct gpu_v16 *v, uint32_t bytes, enum sim_store how)
{
	const struct sim_block *b = sim_this_block();
	const struct range *range = range_of(to);

	if (how == SIM_STORE_RELEASE && bytes == sizeof(uint64_t))
		shunt_sim_link_release();
	else if (int posted = posted_owner(to); posted >= 0 && bytes >= sizeof(uint64_t)) {
		post(posted, to, v, bytes, how);
		return true;
	}
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
