/* SPDX-License-Identifier: MIT */
/* The built-in tables, and what a table needs before it is used. */
#include "algos/select/tuning.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "base/hash.h"

#define KB ((uint64_t)1 << 10)
#define MB ((uint64_t)1 << 20)
#define END UINT64_MAX

/*
 * The values for 2 and 4 ranks of compute capability 9.0 are measured on H200 (docs/results); those for 3 and 5 to 8
 * ranks are estimates from them. Other generations use them, too.
 */
enum mark { MEASURED, ESTIMATED, SIM };
/* In place of a compute capability, all generations alike: through shared memory of the host; over PCIe. */
#define SHARED 1
#define PEER 2
/*
 * Over PCIe the same algorithms, up to this size. NCCL stores into peers' memory as well, and nobody has measured from
 * where it is the faster one.
 */
#define MOST_OVER_PEERS (8 * KB)

struct group {
	enum mark mark;
	uint16_t cc;       /* SHARED, PEER: any */
	uint8_t low, high; /* ranks */
	const char *source;
};

static const struct group groups[] = {
	{ MEASURED, 90, 2, 2, "built-in, measured on H200" },
	{ ESTIMATED, 90, 3, 3, "built-in, estimated from 2 and 4 ranks of H200" },
	{ MEASURED, 90, 4, 4, "built-in, measured on H200" },
	{ ESTIMATED, 90, 5, 8, "built-in, estimated from 2 and 4 ranks of H200" },
	{ SIM, 0, 2, 8, "built-in, for the sim" },
	{ ESTIMATED, SHARED, 2, 8, "built-in, for shared memory, from 2 and 4 H200" },
	{ ESTIMATED, PEER, 2, 8, "built-in, over PCIe, not measured" },
};

struct range {
	enum shunt_kind kind;
	uint16_t cc;       /* 0: the sim */
	uint8_t low, high; /* ranks */
	uint64_t upto;
	const char *algo;
	struct shunt_geometry geometry;
	bool forward;
};

#define WIDE { 64, 512, 0 } /* blocks, threads of a block, channels */
#define STAGED_ON(kind, low, high, upto, algo, blocks) \
	{ SHUNT_##kind, SHARED, low, high, upto, algo, { blocks, 512, 0 }, false }
#define STAGED(kind, low, high, upto, algo) STAGED_ON(kind, low, high, upto, algo, SHUNT_STAGED_BLOCKS)
/* NCCL is faster up to here; alone, the algorithm runs. */
#define STAGED_SLOWER(kind, low, high, upto, algo) \
	{ SHUNT_##kind, SHARED, low, high, upto, algo, { SHUNT_STAGED_BLOCKS, 512, 0 }, true }
#define STAGED_NCCL(kind) { SHUNT_##kind, SHARED, 2, 8, END, "simple", { SHUNT_STAGED_BLOCKS, 512, 0 }, true }
#define OURS(kind, low, high, upto, algo) { SHUNT_##kind, 90, low, high, upto, algo, WIDE, false }
#define ON_48(kind, low, high, upto, algo) { SHUNT_##kind, 90, low, high, upto, algo, { 48, 512, 0 }, false }
#define NCCL(kind, low, high, algo) { SHUNT_##kind, 90, low, high, END, algo, WIDE, true }
#define ON_SIM(kind, upto, algo) { SHUNT_##kind, 0, 2, 8, upto, algo, { 0 }, false }
#define ON_TWO_OF_SIM(kind, upto, algo) { SHUNT_##kind, 0, 2, 2, upto, algo, { 0 }, false }
static const struct range ranges[] = {
	OURS(ALLREDUCE, 2, 2, 16 * MB, "oneshot"),
	OURS(ALLREDUCE, 2, 2, END, "simple"),
	OURS(ALLREDUCE, 3, 4, 128 * KB, "oneshot"),
	OURS(ALLREDUCE, 5, 8, 32 * KB, "oneshot"),
	OURS(ALLREDUCE, 3, 4, 1 * MB, "twoshot"),
	ON_48(ALLREDUCE, 3, 4, 8 * MB,
	    "twoshot"), /* 64 blocks take twice the rounds from 2 MB on, the second almost empty */
	OURS(ALLREDUCE, 3, 8, 16 * MB, "twoshot"),
	NCCL(ALLREDUCE, 3, 8, "twoshot"),
	OURS(ALLGATHER, 2, 2, 8 * MB, "pairwise"),
	OURS(ALLGATHER, 2, 2, END, "simple"),
	OURS(ALLGATHER, 3, 4, 4 * MB, "ll128"),
	OURS(ALLGATHER, 3, 4, 16 * MB, "simple"),
	OURS(ALLGATHER, 5, 8, 64 * KB, "ll128"),
	NCCL(ALLGATHER, 3, 4, "simple"),
	NCCL(ALLGATHER, 5, 8, "ll128"),
	OURS(REDUCESCATTER, 2, 2, 16 * MB, "oneshot"),
	OURS(REDUCESCATTER, 2, 2, END, "simple"),
	OURS(REDUCESCATTER, 3, 4, 16 * MB, "oneshot"),
	OURS(REDUCESCATTER, 5, 8, 16 * KB, "oneshot"),
	NCCL(REDUCESCATTER, 3, 8, "oneshot"),
	OURS(ALLTOALL, 2, 2, 8 * MB, "pairwise"),
	OURS(ALLTOALL, 2, 2, END, "simple"),
	OURS(ALLTOALL, 3, 4, 4 * MB, "ll128"),
	OURS(ALLTOALL, 3, 4, 32 * MB, "simple"), /* 64 MB: 0.93 to 1.07 times as fast as NCCL, by the machine */
	OURS(ALLTOALL, 5, 8, 64 * KB, "ll128"),
	NCCL(ALLTOALL, 3, 4, "simple"),
	NCCL(ALLTOALL, 5, 8, "ll128"),
	OURS(BROADCAST, 2, 2, 4 * MB, "ll128"),
	OURS(BROADCAST, 2, 2, 128 * MB, "simple"),
	OURS(BROADCAST, 3, 4, 128 * KB, "ll128"),
	OURS(BROADCAST, 3, 4, 4 * MB, "pipelined"),
	OURS(BROADCAST, 5, 8, 64 * KB, "ll128"),
	OURS(BROADCAST, 5, 8, 4 * MB, "pipelined"),
	NCCL(BROADCAST, 2, 2, "simple"),
	NCCL(BROADCAST, 3, 8, "pipelined"),
	OURS(REDUCE, 2, 2, 8 * MB, "ll128"),
	OURS(REDUCE, 2, 2, 64 * MB, "simple"),
	OURS(REDUCE, 3, 4, 256 * KB, "ll128"),
	OURS(REDUCE, 3, 4, 2 * MB, "twoshot"),
	OURS(REDUCE, 5, 8, 16 * KB, "ll128"),
	OURS(REDUCE, 5, 8, 2 * MB, "twoshot"),
	NCCL(REDUCE, 2, 2, "simple"),
	NCCL(REDUCE, 3, 8, "twoshot"),
	OURS(GATHER, 2, 2, 8 * MB, "ll128"),
	OURS(GATHER, 2, 2, 64 * MB, "simple"),
	OURS(GATHER, 3, 4, 4 * MB, "ll128"),
	OURS(GATHER, 3, 4, 8 * MB, "simple"),
	OURS(GATHER, 5, 8, 64 * KB, "ll128"),
	NCCL(GATHER, 2, 2, "simple"),
	NCCL(GATHER, 3, 4, "simple"),
	NCCL(GATHER, 5, 8, "ll128"),
	OURS(SCATTER, 2, 2, 8 * MB, "ll128"),
	OURS(SCATTER, 2, 2, 256 * MB, "simple"),
	OURS(SCATTER, 3, 4, 2 * MB, "ll128"),
	OURS(SCATTER, 3, 4, 8 * MB, "simple"),
	OURS(SCATTER, 5, 8, 64 * KB, "ll128"),
	NCCL(SCATTER, 2, 2, "simple"),
	NCCL(SCATTER, 3, 4, "simple"),
	NCCL(SCATTER, 5, 8, "ll128"),
	OURS(SEND, 2, 2, 8 * MB, "ll128"),
	OURS(SEND, 2, 2, 256 * MB, "simple"),
	OURS(SEND, 3, 4, 8 * MB, "ll128"),
	OURS(SEND, 3, 4, 256 * MB, "simple"),
	OURS(SEND, 5, 8, 64 * KB, "ll128"),
	NCCL(SEND, 2, 2, "simple"),
	NCCL(SEND, 3, 4, "simple"),
	NCCL(SEND, 5, 8, "ll128"),
	/* Larger messages: fewer blocks disturb each other less, until it takes many to fill the link both ways. */
	STAGED(ALLREDUCE, 2, 2, 512 * KB, "oneshot"),
	STAGED_ON(ALLREDUCE, 2, 2, 2 * MB, "oneshot", 8),
	STAGED_ON(ALLREDUCE, 2, 2, 4 * MB, "simple", 16),
	STAGED(ALLREDUCE, 2, 2, 64 * MB, "simple"),
	STAGED(ALLREDUCE, 3, 4, 64 * KB, "oneshot"),
	STAGED(ALLREDUCE, 5, 8, 16 * KB, "oneshot"),
	STAGED(ALLREDUCE, 3, 8, 1 * MB, "twoshot"),
	STAGED_SLOWER(ALLREDUCE, 3, 4, 16 * MB - 1, "simple"),
	STAGED(ALLREDUCE, 3, 4, 256 * MB, "simple"),
	STAGED_NCCL(ALLREDUCE),
	STAGED(ALLGATHER, 2, 2, 256 * KB, "pairwise"),
	STAGED_ON(ALLGATHER, 2, 2, 4 * MB, "pairwise", 8),
	STAGED(ALLGATHER, 2, 2, 32 * MB, "simple"),
	STAGED(ALLGATHER, 3, 4, 256 * KB, "oneshot"),
	STAGED(ALLGATHER, 5, 8, 16 * KB, "oneshot"),
	STAGED_SLOWER(ALLGATHER, 3, 4, 4 * MB - 1, "simple"),
	STAGED(ALLGATHER, 3, 4, 64 * MB, "simple"),
	STAGED_NCCL(ALLGATHER),
	STAGED(REDUCESCATTER, 2, 2, 256 * KB, "oneshot"),
	STAGED_ON(REDUCESCATTER, 2, 2, 1 * MB, "oneshot", 8), /* above, some calls take many times as long */
	STAGED_SLOWER(REDUCESCATTER, 2, 2, 4 * MB - 1, "simple"),
	STAGED_ON(REDUCESCATTER, 2, 2, 4 * MB, "simple", 16),
	STAGED(REDUCESCATTER, 2, 2, 32 * MB, "simple"),
	STAGED(REDUCESCATTER, 3, 4, 256 * KB, "oneshot"),
	STAGED(REDUCESCATTER, 5, 8, 16 * KB, "oneshot"),
	STAGED_SLOWER(REDUCESCATTER, 3, 4, 4 * MB - 1, "simple"),
	STAGED(REDUCESCATTER, 3, 4, 64 * MB, "simple"),
	STAGED_NCCL(REDUCESCATTER),
	STAGED(ALLTOALL, 2, 2, 256 * KB, "pairwise"),
	STAGED_ON(ALLTOALL, 2, 2, 4 * MB, "pairwise", 8),
	STAGED(ALLTOALL, 2, 2, 32 * MB, "simple"),
	STAGED(ALLTOALL, 3, 4, 128 * KB, "oneshot"),
	STAGED(ALLTOALL, 5, 8, 16 * KB, "oneshot"),
	STAGED_SLOWER(ALLTOALL, 3, 4, 2 * MB - 1, "simple"),
	STAGED(ALLTOALL, 3, 4, 64 * MB, "simple"),
	STAGED_NCCL(ALLTOALL),
	STAGED(BROADCAST, 2, 2, 8 * KB, "ll128"),
	STAGED_SLOWER(BROADCAST, 2, 2, 64 * KB, "ll128"),
	STAGED(BROADCAST, 2, 2, 512 * KB, "ll128"),
	STAGED(BROADCAST, 2, 2, 2 * MB, "simple"),
	STAGED(BROADCAST, 3, 8, 16 * KB, "ll128"),
	STAGED_SLOWER(BROADCAST, 3, 8, 32 * KB, "ll128"),
	STAGED_NCCL(BROADCAST),
	STAGED(REDUCE, 2, 2, 4 * KB, "ll128"),
	STAGED_SLOWER(REDUCE, 2, 2, 512 * KB - 1, "ll128"),
	STAGED(REDUCE, 2, 2, 2 * MB, "simple"),
	STAGED(REDUCE, 3, 8, 256 * KB, "twoshot"),
	STAGED_SLOWER(REDUCE, 3, 8, 512 * KB, "twoshot"),
	STAGED_NCCL(REDUCE),
	STAGED(GATHER, 2, 2, 4 * KB, "ll128"),
	STAGED_SLOWER(GATHER, 2, 2, 1 * MB - 1, "ll128"),
	STAGED(GATHER, 2, 2, 2 * MB, "simple"),
	STAGED_SLOWER(GATHER, 2, 2, 8 * MB - 1, "simple"),
	STAGED(GATHER, 2, 2, 32 * MB, "simple"),
	STAGED(GATHER, 3, 8, 2 * KB, "ll128"),
	STAGED_SLOWER(GATHER, 3, 8, 32 * KB, "ll128"),
	STAGED_NCCL(GATHER),
	STAGED(SCATTER, 2, 2, 4 * KB, "ll128"),
	STAGED_SLOWER(SCATTER, 2, 2, 1 * MB - 1, "ll128"),
	STAGED(SCATTER, 2, 2, 2 * MB, "simple"),
	STAGED_SLOWER(SCATTER, 2, 2, 8 * MB - 1, "simple"),
	STAGED(SCATTER, 2, 2, 32 * MB, "simple"),
	STAGED(SCATTER, 3, 8, 4 * KB, "ll128"),
	STAGED_SLOWER(SCATTER, 3, 8, 32 * KB, "ll128"),
	STAGED_NCCL(SCATTER),
	STAGED(SEND, 2, 2, 8 * KB, "ll128"),
	STAGED_SLOWER(SEND, 2, 2, 256 * KB, "ll128"),
	STAGED(SEND, 3, 8, 64 * KB, "ll128"),
	STAGED_NCCL(SEND),
	ON_SIM(ALLREDUCE, 16 * KB, "oneshot"),
	ON_SIM(ALLREDUCE, 64 * KB, "twoshot"),
	ON_SIM(ALLREDUCE, END, "simple"),
	ON_TWO_OF_SIM(ALLGATHER, 16 * KB, "pairwise"),
	ON_SIM(ALLGATHER, 32 * KB, "ll128"),
	ON_SIM(ALLGATHER, END, "simple"),
	ON_SIM(REDUCESCATTER, 16 * KB, "oneshot"),
	ON_SIM(REDUCESCATTER, 32 * KB, "ll128"),
	ON_SIM(REDUCESCATTER, END, "simple"),
	ON_TWO_OF_SIM(ALLTOALL, 16 * KB, "pairwise"),
	ON_SIM(ALLTOALL, 32 * KB, "ll128"),
	ON_SIM(ALLTOALL, END, "simple"),
	ON_SIM(BROADCAST, 16 * KB, "ll128"),
	ON_SIM(BROADCAST, 32 * KB, "pipelined"),
	ON_SIM(BROADCAST, END, "simple"),
	ON_SIM(REDUCE, 16 * KB, "ll128"),
	ON_SIM(REDUCE, 32 * KB, "twoshot"),
	ON_SIM(REDUCE, END, "simple"),
	ON_SIM(GATHER, 32 * KB, "ll128"),
	ON_SIM(GATHER, END, "simple"),
	ON_SIM(SCATTER, 32 * KB, "ll128"),
	ON_SIM(SCATTER, END, "simple"),
	ON_SIM(SEND, 16 * KB, "ll128"), /* small, so that tests have groups with both */
	ON_SIM(SEND, END, "simple"),
};
#undef OURS
#undef ON_48
#undef NCCL
#undef STAGED
#undef STAGED_NCCL
#undef STAGED_ON
#undef STAGED_SLOWER
#undef ON_SIM
#undef ON_TWO_OF_SIM

/*
 * Message size from which on calls in windows use them, for 2 ranks and for more. 0: never; END: only if the SMs are to
 * be left alone. Measured on 2 and 4 H200: from there on NCCL's best and our staged kernels are slower. Reductions
 * differ: among 4 ranks direct ones won little or nothing, and between 2 ranks Simple in clusters is faster than all
 * but the reduce.
 */
static const uint64_t symmem_from[SHUNT_NKINDS][2] = {
	[SHUNT_ALLGATHER] = { 64 * MB, 16 * MB },
	[SHUNT_ALLTOALL] = { 64 * MB, 32 * MB },
	[SHUNT_BROADCAST] = { 128 * MB, END },
	[SHUNT_GATHER] = { 64 * MB, 64 * MB },
	[SHUNT_SCATTER] = { 64 * MB, 64 * MB },
	[SHUNT_REDUCE] = { 64 * MB, 0 },
};

/*
 * Bytes from which all-reduces in windows are NCCL's where it uses NVLink multicast, by the number of ranks; 0: never.
 * Estimates from what others have published of NCCL on 8 H100 and H200, beside our estimates for these numbers of
 * ranks: machines that let programs use multicast were not at hand (KNOWN_ISSUES.md).
 */
static const uint64_t nvls_from[SHUNT_MAX_RANKS + 1] = {
	[3] = 8 * MB, [4] = 8 * MB, [5] = 1 * MB, [6] = 512 * KB, [7] = 512 * KB, [8] = 512 * KB
};

enum { NRANGES = sizeof(ranges) / sizeof(ranges[0]), NGROUPS = sizeof(groups) / sizeof(groups[0]), MAX_TABLES = 32 };

/* The tables that the groups make, one for each number of ranks. Each has room for all ranges. */
static struct {
	struct shunt_tuning tables[MAX_TABLES];
	struct shunt_tuning_row rows[MAX_TABLES][NRANGES];
	size_t n;
	uint64_t hash;
} built;
static pthread_once_t built_once = PTHREAD_ONCE_INIT;

static uint64_t hash_number(uint64_t seed, uint64_t number)
{
	return shunt_fnv1a(seed, &number, sizeof(number));
}

/* Fills first[] and the hash. The rows are sorted. */
static void index_rows(struct shunt_tuning *t)
{
	const struct shunt_machine *m = &t->machine;
	uint64_t h = shunt_fnv1a(0, m->gpu, strlen(m->gpu));
	size_t i = 0;

	h = hash_number(
	    hash_number(hash_number(h, m->cc), m->driver), (uint64_t)m->nranks * 4 + m->sim * 2 + t->vs_nccl);
	for (int k = 0; k <= SHUNT_NKINDS; k++) {
		while (i < t->nrows && (int)t->rows[i].kind < k)
			i++;
		t->first[k] = (uint16_t)i;
	}
	h = hash_number(h, (uint64_t)m->nccl * 4 + (uint64_t)(m->nvls + 1));
	h = shunt_fnv1a(hash_number(h, (uint64_t)m->nhosts), m->net, strlen(m->net));
	h = hash_number(h, (uint64_t)m->link * 256 + m->islands);
	for (int k = 0; k < SHUNT_NKINDS; k++)
		if (t->windows >> k & 1)
			h = hash_number(hash_number(h, (uint64_t)k), t->windows_from[k]);
	for (i = 0; i < t->nrows; i++) {
		const struct shunt_tuning_row *r = &t->rows[i];

		h = hash_number(hash_number(h, r->upto), r->kind * 2u + r->forward);
		h = shunt_fnv1a(h, r->algo->name, strlen(r->algo->name));
		h = hash_number(
		    h, (uint64_t)r->geometry.blocks << 32 | (uint64_t)r->geometry.threads << 16 | r->geometry.channels);
	}
	t->hash = h ? h : 1; /* 0 stands for no table */
}

/* most: what is larger is NCCL's. */
static void add_range(struct shunt_tuning *t, const struct range *r, uint64_t most)
{
	const struct shunt_tuning_row *last = t->nrows ? &t->rows[t->nrows - 1] : NULL;
	uint64_t from = last && last->kind == r->kind ? last->upto : 0;
	struct shunt_tuning_row row = { r->kind, r->forward, r->upto, shunt_algo_find(r->kind, r->algo), r->geometry };

	if (from < most && r->upto > most) {
		t->rows[t->nrows] = row;
		t->rows[t->nrows++].upto = most;
	}
	row.forward |= r->upto > most;
	t->rows[t->nrows++] = row;
}

static void build_one(const struct group *g, int nranks)
{
	struct shunt_tuning *t = &built.tables[built.n];

	t->rows = built.rows[built.n++];
	t->machine = (struct shunt_machine){ .cc = g->cc, .nranks = nranks, .sim = g->mark == SIM };
	t->source = g->source;
	t->builtin = true;
	t->vs_nccl = g->mark == MEASURED;
	/* By kind, and within a kind in the order of `ranges`, which is by size. */
	for (int kind = 0; kind < SHUNT_NKINDS; kind++)
		for (size_t i = 0; i < NRANGES; i++) {
			const struct range *r = &ranges[i];

			if ((int)r->kind == kind && r->cc == (g->cc == PEER ? SHARED : g->cc) && nranks >= r->low &&
			    nranks <= r->high)
				add_range(t, r, g->cc == PEER ? MOST_OVER_PEERS : END);
		}
	index_rows(t);
	built.hash = hash_number(built.hash, t->hash);
}

static void build(void)
{
	for (size_t i = 0; i < NGROUPS; i++)
		for (int n = groups[i].low; n <= groups[i].high; n++)
			build_one(&groups[i], n);
	built.hash = shunt_fnv1a(built.hash, symmem_from, sizeof(symmem_from));
	built.hash = shunt_fnv1a(built.hash, nvls_from, sizeof(nvls_from));
}

const struct shunt_algo *shunt_tuning_symmem(int nranks, bool no_sms, enum shunt_kind kind, uint64_t bytes)
{
	uint64_t from = symmem_from[kind][nranks > 2];

	/* Reductions need SMs in any case. */
	if (!from || (bytes < from && (!no_sms || shunt_kind_reduces(kind))))
		return NULL;
	return shunt_algo_row_find(kind, shunt_kind_reduces(kind) ? "direct" : "ce");
}

uint64_t shunt_tuning_windows_from(const struct shunt_sel_key *sel_key, enum shunt_kind kind, bool *file_p)
{
	const struct shunt_tuning *t = sel_key->tuning;

	*file_p = t && t->windows >> kind & 1;
	if (*file_p)
		return t->windows_from[kind];
	if (!sel_key->nvls || kind != SHUNT_ALLREDUCE || !nvls_from[sel_key->nranks])
		return UINT64_MAX;
	return nvls_from[sel_key->nranks];
}

const struct shunt_tuning *shunt_tuning_builtin(bool sim, unsigned cc, int nranks)
{
	const struct shunt_tuning *best = NULL;

	pthread_once(&built_once, build);
	for (size_t i = 0; i < built.n; i++) {
		const struct shunt_tuning *t = &built.tables[i];

		if (t->machine.sim != sim || t->machine.nranks != nranks || t->machine.cc == SHARED ||
		    t->machine.cc == PEER)
			continue;
		/* The newest table that is not newer than the device, else the oldest one. */
		if (!best ||
		    (t->machine.cc <= cc ? best->machine.cc > cc || t->machine.cc > best->machine.cc :
		                           best->machine.cc > t->machine.cc))
			best = t;
	}
	return best;
}

/* link: the slowest one, or 0. */
static const struct shunt_tuning *builtin_over(unsigned link, bool sim, unsigned cc, int nranks)
{
	unsigned of_link = link == SHUNT_LINK_PEER ? PEER : SHARED;

	if (link <= SHUNT_LINK_NVLINK || sim)
		return shunt_tuning_builtin(sim, cc, nranks);
	pthread_once(&built_once, build);
	for (size_t i = 0; i < built.n; i++)
		if (built.tables[i].machine.cc == of_link && built.tables[i].machine.nranks == nranks)
			return &built.tables[i];
	return NULL;
}

const struct shunt_tuning *shunt_tuning_builtin_of(const struct shunt_sel_key *key)
{
	return builtin_over(key->staged ? shunt_topology_within(key->topology) : 0, key->sim, key->cc, key->nranks);
}

const struct shunt_tuning *shunt_tuning_builtin_at(size_t i)
{
	pthread_once(&built_once, build);
	return i < built.n ? &built.tables[i] : NULL;
}

uint64_t shunt_tuning_builtin_hash(void)
{
	pthread_once(&built_once, build);
	return built.hash;
}

const struct shunt_tuning_row *shunt_tuning_row(const struct shunt_tuning *t, enum shunt_kind kind, uint64_t bytes)
{
	for (unsigned i = t->first[kind]; i < t->first[kind + 1]; i++)
		if (bytes <= t->rows[i].upto)
			return &t->rows[i];
	return NULL;
}

static int by_kind_and_size(const void *a, const void *b)
{
	const struct shunt_tuning_row *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return (x->upto > y->upto) - (x->upto < y->upto);
}

int shunt_tuning_finalize(struct shunt_tuning *t)
{
	/* Calls that a file over several hosts does not have go by tuning_islands.c. */
	const struct shunt_tuning *base =
	    t->machine.nhosts ? NULL : builtin_over(t->machine.link, t->machine.sim, t->machine.cc, t->machine.nranks);
	struct shunt_tuning_row *rows;
	size_t n = t->nrows, had = n;

	rows = reallocarray(t->rows, n + SHUNT_NKINDS + (base ? base->nrows : 0), sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	t->rows = rows;
	qsort(rows, had, sizeof(*rows), by_kind_and_size);
	for (size_t i = 0; i < had; i++) {
		bool last = i + 1 == had || rows[i + 1].kind != rows[i].kind;

		if (!last && rows[i + 1].upto == rows[i].upto)
			return -EINVAL;
		t->own |= 1u << rows[i].kind;
		/* Sizes that were not measured go to the real NCCL. */
		if (last && rows[i].upto != END) {
			rows[n] = rows[i];
			rows[n].upto = END;
			rows[n++].forward = true;
		}
	}
	for (size_t i = 0; base && i < base->nrows; i++) {
		if (!(t->own >> base->rows[i].kind & 1))
			rows[n++] = base->rows[i];
	}
	t->nrows = n;
	qsort(rows, n, sizeof(*rows), by_kind_and_size);
	index_rows(t);
	return 0;
}
