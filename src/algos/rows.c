/* SPDX-License-Identifier: MIT */
/*
 * The algorithms, as rows of one table. A row says which engine makes the launches, by which kernels. It may stand
 * anywhere in the table: tools list the rows in this order, and a row that others use has a name.
 */
#include <string.h>
#include "algos/algos.h"

/* Lines of 128 bytes, atomic operations and mapped memory of peers need NVLink. */
#define OVER_NVLINK .links = 1u << SHUNT_LINK_SELF | 1u << SHUNT_LINK_NVLINK
/* Kernels that are built for PCIe and shared memory, too (kernels/staged.h). */
#define STAGED_TOO \
	.links = 1u << SHUNT_LINK_SELF | 1u << SHUNT_LINK_NVLINK | 1u << SHUNT_LINK_PEER | 1u << SHUNT_LINK_SHARED

#define ROW(...) \
	&(const struct shunt_algo) \
	{ \
		__VA_ARGS__ \
	}
#define PAIRWISE(which, shape, text) \
	ROW(.name = "pairwise", .doc = "two ranks: " text, .kind = which, .fuse = SHUNT_FUSE_COPY, \
	    .shapes = { shape, shape, shape }, .geometry = shunt_oneshot_geometry, .enqueue = shunt_pairwise_enqueue, \
	    .among = SHUNT_AMONG_TWO, STAGED_TOO)
#define EXCHANGE(which, suffix, text) \
	ROW(.name = "oneshot", .doc = "without NVLink, more than two ranks: " text, .kind = which, \
	    .fuse = SHUNT_FUSE_COPY, \
	    .shapes = { SHUNT_SHAPE_staged_exchange4##suffix, SHUNT_SHAPE_staged_exchange4##suffix, \
	        SHUNT_SHAPE_staged_exchange8##suffix }, \
	    .geometry = shunt_oneshot_geometry, .enqueue = shunt_pairwise_enqueue, \
	    .links = 1u << SHUNT_LINK_PEER | 1u << SHUNT_LINK_SHARED)
#define LL128 { SHUNT_SHAPE_ll128_2, SHUNT_SHAPE_ll128_4, SHUNT_SHAPE_simple8 } /* the last one has both protocols */
#define SIMPLE { SHUNT_SHAPE_simple2, SHUNT_SHAPE_simple4, SHUNT_SHAPE_simple8 }
#define P2P(called, text, which, fuses, kernels, ...) \
	ROW(.name = called, .doc = text, .kind = which, .fuse = fuses, .shapes = kernels, \
	    .enqueue = shunt_p2p_enqueue, STAGED_TOO, __VA_ARGS__)
#define BOTH(kind, fuse, doc) \
	P2P("ll128", doc, kind, fuse, LL128), \
	    P2P("simple", doc ", by the Simple protocol", kind, fuse, SIMPLE, .proto = SHUNT_MESSAGE_SIMPLE)
#define BARRIER { SHUNT_SHAPE_barrier, SHUNT_SHAPE_barrier, SHUNT_SHAPE_barrier }
#define CE(which, text) \
	ROW(.name = "ce", .doc = "windows, no SMs: " text, .kind = which, .fuse = SHUNT_FUSE_SYMMEM, \
	    .shapes = BARRIER, .enqueue = shunt_ce_enqueue, .copies = true, OVER_NVLINK)
#define CE_SHARED(which, text) \
	ROW(.name = "ce_shared", .doc = "shared memory, no SMs: " text, .kind = which, .fuse = SHUNT_FUSE_NONE, \
	    .shapes = BARRIER, .enqueue = shunt_ce_shared_enqueue, .copies = true, .links = 1u << SHUNT_LINK_SHARED)
#define DIRECT_SHAPES { SHUNT_SHAPE_direct2, SHUNT_SHAPE_direct4, SHUNT_SHAPE_direct8 }
#define DIRECT(which, text) \
	ROW(.name = "direct", .doc = "windows, zero copy: " text, .kind = which, .fuse = SHUNT_FUSE_SYMMEM, \
	    .shapes = DIRECT_SHAPES, .enqueue = shunt_direct_enqueue, OVER_NVLINK)
#define OVER_ISLANDS(which, text) \
	.doc = "over hosts: " text, .kind = which, .fuse = SHUNT_FUSE_NONE, \
	.shapes = { SHUNT_SHAPE_hosts, SHUNT_SHAPE_hosts, SHUNT_SHAPE_hosts }, .over_islands = true, \
	.enqueue = shunt_hierarchical_enqueue, OVER_NVLINK
#define HIERARCHICAL(which, text) ROW(.name = "hierarchical", OVER_ISLANDS(which, text))
#define ISLANDS(which, text) \
	ROW(.name = "islands", .doc = "NVLink in parts of a host: " text, .kind = which, .fuse = SHUNT_FUSE_NONE, \
	    .shapes = SIMPLE, .by_parts = true, .enqueue = shunt_islands_enqueue, \
	    .links = 1u << SHUNT_LINK_PEER | 1u << SHUNT_LINK_SHARED)
#define PLANNED(which) \
	ROW(.name = "plan", .planned = true, OVER_ISLANDS(which, "a plan, such as the default ones; else hierarchical"))

/* Rows that other rows use. */
static const struct shunt_algo oneshot = { .name = "oneshot",
	.doc = "every rank sends all it has to all, each reduces everything; one hop",
	.kind = SHUNT_ALLREDUCE,
	.fuse = SHUNT_FUSE_LL128,
	.shapes = { SHUNT_SHAPE_oneshot2, SHUNT_SHAPE_oneshot4, SHUNT_SHAPE_oneshot8 },
	.few = { SHUNT_SHAPE_oneshot2_few, SHUNT_SHAPE_oneshot4_few, SHUNT_SHAPE_oneshot8_few },
	.geometry = shunt_oneshot_geometry,
	.enqueue = shunt_ll128_enqueue,
	STAGED_TOO };
static const struct shunt_algo twoshot = { .name = "twoshot",
	.doc = "reduce-scatter, then all-gather, flags in the data; two hops",
	.kind = SHUNT_ALLREDUCE,
	.fuse = SHUNT_FUSE_LL128,
	.shapes = { SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot8 },
	.few = { SHUNT_SHAPE_twoshot4_few, SHUNT_SHAPE_twoshot4_few, SHUNT_SHAPE_twoshot8_few },
	.geometry = shunt_twoshot_geometry,
	.enqueue = shunt_ll128_enqueue,
	.among = SHUNT_AMONG_MORE,
	.uses = &oneshot,
	STAGED_TOO };

static const struct shunt_algo *const rows[] = {
	&oneshot,
	&twoshot,
	ROW(.name = "oneshot", .doc = "every rank sends to each its part, which that one reduces; one hop",
	    .kind = SHUNT_REDUCESCATTER, .fuse = SHUNT_FUSE_LL128,
	    .shapes = { SHUNT_SHAPE_reduce_scatter2, SHUNT_SHAPE_reduce_scatter4, SHUNT_SHAPE_reduce_scatter8 },
	    .few = { SHUNT_SHAPE_reduce_scatter2_few, SHUNT_SHAPE_reduce_scatter4_few,
	        SHUNT_SHAPE_reduce_scatter8_few },
	    .geometry = shunt_oneshot_geometry, .enqueue = shunt_ll128_enqueue, STAGED_TOO),
	PAIRWISE(SHUNT_ALLGATHER, SHUNT_SHAPE_pairwise,
	    "a channel sends its LL128 lines of our part, and stores those of the other's"),
	PAIRWISE(SHUNT_ALLTOALL, SHUNT_SHAPE_pairwise_parts,
	    "a channel sends its LL128 lines of the other's part, and stores those of ours"),
	EXCHANGE(SHUNT_ALLGATHER, , "every rank stores its part, which all load; no credits"),
	EXCHANGE(SHUNT_ALLTOALL, _parts, "every rank stores to each its part; no credits"),
	BOTH(SHUNT_ALLGATHER, SHUNT_FUSE_COPY, "every rank sends its part to all"),
	BOTH(SHUNT_REDUCESCATTER, SHUNT_FUSE_REDUCE,
	    "every rank sends part r to rank r, which reduces what comes in rank order"),
	BOTH(SHUNT_ALLTOALL, SHUNT_FUSE_COPY, "every rank sends part r to rank r"),
	BOTH(SHUNT_BROADCAST, SHUNT_FUSE_COPY, "the root sends to all"),
	P2P("pipelined", "the root sends a share to each, and each passes its share on to the others", SHUNT_BROADCAST,
	    SHUNT_FUSE_COPY, LL128, .single = shunt_pipelined, .among = SHUNT_AMONG_MORE),
	BOTH(SHUNT_REDUCE, SHUNT_FUSE_REDUCE, "all send to the root, which reduces in rank order"),
	P2P("twoshot",
	    "every rank sends part r to rank r, which reduces what comes in rank order and sends it to the root",
	    SHUNT_REDUCE, SHUNT_FUSE_REDUCE, LL128, .single = shunt_reduce_twoshot, .among = SHUNT_AMONG_MORE,
	    .uses = &twoshot),
	BOTH(SHUNT_GATHER, SHUNT_FUSE_COPY, "all send to the root"),
	BOTH(SHUNT_SCATTER, SHUNT_FUSE_COPY, "the root sends part r to rank r"),
	BOTH(SHUNT_SEND, SHUNT_FUSE_COPY, "the sender pushes, the receiver takes"),
	P2P("simple", "reduce-scatter and all-gather, by the Simple protocol; two ranks send each other everything",
	    SHUNT_ALLREDUCE, SHUNT_FUSE_NONE, SIMPLE, .proto = SHUNT_MESSAGE_SIMPLE),
	CE(SHUNT_ALLGATHER, "copy engines put every rank's part into all"),
	CE(SHUNT_ALLTOALL, "copy engines put part r into rank r"),
	CE(SHUNT_BROADCAST, "the root's copy engine hands out shares, which the others put into each other"),
	CE(SHUNT_GATHER, "the root's copy engine gets all parts"),
	CE(SHUNT_SCATTER, "the root's copy engine puts part r into rank r"),
	CE_SHARED(SHUNT_ALLGATHER, "copy engines put every rank's part there, once, and get the others'"),
	CE_SHARED(SHUNT_ALLTOALL, "copy engines put part r there for rank r, and get this rank's"),
	CE_SHARED(SHUNT_BROADCAST, "the root's copy engine puts all there, once"),
	CE_SHARED(SHUNT_GATHER, "copy engines put all parts there, which the root's gets"),
	CE_SHARED(SHUNT_SCATTER, "the root's copy engine puts part r there for rank r"),
	DIRECT(SHUNT_ALLREDUCE, "every rank reduces its part of all inputs, and stores it into all outputs"),
	DIRECT(SHUNT_REDUCESCATTER, "rank r reduces part r of all inputs where they lie"),
	DIRECT(SHUNT_REDUCE, "the root reduces all inputs where they lie"),
	ISLANDS(SHUNT_ALLREDUCE, "each island's ranks reduce their parts, which islands add up, and gather"),
	ISLANDS(SHUNT_ALLGATHER, "each block crosses to an island once, whose ranks gather what came"),
	ISLANDS(
	    SHUNT_REDUCESCATTER, "each island sums up for one of its ranks what a rail gets, whose ranks add that up"),
	HIERARCHICAL(SHUNT_ALLREDUCE, "sums of each host's ranks, then of the hosts, which all ranks get"),
	HIERARCHICAL(SHUNT_REDUCESCATTER, "sums of each host's ranks go to the rank's host, which adds them up"),
	HIERARCHICAL(SHUNT_ALLGATHER, "each block crosses the network once to a host, and is passed on there"),
	HIERARCHICAL(SHUNT_BROADCAST, "to one rank of each host, which passes it on"),
	HIERARCHICAL(SHUNT_REDUCE, "one rank of each host adds up its ranks, the root the hosts"),
	HIERARCHICAL(SHUNT_ALLTOALL, "every rank sends part r to rank r"),
	HIERARCHICAL(SHUNT_GATHER, "all send to the root"),
	HIERARCHICAL(SHUNT_SCATTER, "the root sends part r to rank r"),
	HIERARCHICAL(SHUNT_SEND, "the sender pushes, the receiver takes"),
	PLANNED(SHUNT_ALLREDUCE),
	PLANNED(SHUNT_REDUCESCATTER),
	PLANNED(SHUNT_ALLGATHER),
};

const struct shunt_algo shunt_local_algo = {
	.name = "local",
	.doc = "one rank by itself",
	.kind = SHUNT_NKINDS,
	.fuse = SHUNT_FUSE_NONE,
	.shapes = { SHUNT_SHAPE_simple8, SHUNT_SHAPE_simple8, SHUNT_SHAPE_simple8 },
	.enqueue = shunt_p2p_enqueue,
	.links = ~0u,
};

const struct shunt_algo *shunt_algo_row(size_t i)
{
	return i < sizeof(rows) / sizeof(rows[0]) ? rows[i] : NULL;
}

unsigned shunt_algo_links(bool over_islands)
{
	unsigned links = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		links |= rows[i]->over_islands == over_islands ? rows[i]->links : 0;
	return links;
}

const struct shunt_algo *shunt_algo_over_islands(enum shunt_kind kind)
{
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		if (a->over_islands && a->kind == kind)
			return a;
	return NULL;
}

const struct shunt_algo *shunt_algo_row_find(enum shunt_kind kind, const char *name)
{
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		if (a->kind == kind && !strcmp(a->name, name))
			return a;
	return NULL;
}
