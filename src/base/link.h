/* SPDX-License-Identifier: MIT */
#pragma once
/* What joins two ranks, fastest first, and the rules by which SHUNT_LINKS and SHUNT_SIM_LINKS name links. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum shunt_link {
	SHUNT_LINK_SELF, /* one GPU */
	SHUNT_LINK_NVLINK,
	SHUNT_LINK_PEER,   /* the GPU's stores into the peer's memory over PCIe */
	SHUNT_LINK_SHARED, /* page-locked memory of the host */
	SHUNT_LINK_NET,
	SHUNT_LINKS
};
extern const char *const shunt_link_names[SHUNT_LINKS + 1]; /* "self", ..., NULL */

/* How the sim plays a pair of devices: an option of a rule of SHUNT_SIM_LINKS (docs/links.md). */
enum shunt_link_play {
	SHUNT_LINK_HONEST,
	SHUNT_LINK_OLD,    /* a store in 256 is left out: the reader sees what was there before */
	SHUNT_LINK_LOST,   /* a place is never written again */
	SHUNT_LINK_SWAP,   /* a store in 256 has its halves exchanged */
	SHUNT_LINK_SILENT, /* no store arrives */
	SHUNT_LINK_ONEWAY, /* none from the lower to the higher device */
	SHUNT_LINK_DIES,   /* none after the first `after` stores */
	SHUNT_LINK_POSTED, /* as PCIe is allowed to be: stores and looks in any order; no atomics, no lines of 128 bytes
	                    */
	SHUNT_LINK_PLAYS
};
/*
 * How far apart two devices are, in NCCL's words, nearest first. LOC: one device; NVL, NVB, C2C: no PCIe; PIX: one
 * switch; PXB: several; P2C, PXN: not between two GPUs; PHB: a host bridge or a NUMA node; SYS: between NUMA nodes.
 */
#define SHUNT_DISTANCES(X) X(LOC) X(NVL) X(NVB) X(C2C) X(PIX) X(PXB) X(P2C) X(PXN) X(PHB) X(SYS)
enum shunt_distance {
#define DISTANCE(name) SHUNT_DISTANCE_##name,
	SHUNT_DISTANCES(DISTANCE)
#undef DISTANCE
};
extern const char *const shunt_distance_names[SHUNT_DISTANCE_SYS + 2]; /* "LOC", ..., NULL */

struct shunt_link_rule {
	enum shunt_link link;
	enum shunt_distance distance;
	enum shunt_link_play play;
	uint32_t after; /* stores, of SHUNT_LINK_DIES */
};

/* What is not a rule in such a text ("0-1:nvlink;2/3-*:none", docs/links.md): where it begins. NULL: all is right. */
const char *shunt_link_rules_check(const char *text);
/* The link of a pair: of the last rule that names it, in either order. NVLink if there is none. */
enum shunt_link shunt_link_rules_find(const char *text, int a, int b);
/* The same, with the rule's options. */
struct shunt_link_rule shunt_link_rules_look(const char *text, int a, int b);

#ifdef __cplusplus
}
#endif
