/* SPDX-License-Identifier: MIT */
#pragma once
/* The memory of an expert parallel group: what a shape of calls needs, and how much a group has. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "algos/algo.h"
#include "shunt/ep.h"

/* A group, as far as its launches depend on it. Alike on all ranks, except for `rank`. */
struct shunt_ep_room {
	int nranks, rank, most_topk;
	int local, sources; /* most ranks of a host, and most ranks of other hosts that a rank has; 0: one host */
	uint32_t flags;     /* SHUNT_EP_* of shunt/ep.h */
	uint64_t normal_bytes, ll_bytes;
	const struct shunt_sel_key *key;
	const struct shunt_ep_hosts *hosts; /* kernels/ep.h; NULL: one host */
	bool rank_sums;                     /* SHUNT_EP_SUM=rank */
};

/* Texts of errors. */
struct shunt_ep_why {
	char text[192];
};
/* Sets the text; returns err. */
int shunt_ep_refuse(struct shunt_ep_why *why, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* -EINVAL unless value is in [from, to]. */
int shunt_ep_check_range(struct shunt_ep_why *why, const char *name, int64_t value, int64_t from, int64_t to);
/* -EINVAL unless the ranks can share so many experts. */
int shunt_ep_check_experts(struct shunt_ep_why *why, int64_t experts, int nranks);
/* -EINVAL if one of n pointers is NULL. */
int shunt_ep_check_pointers(struct shunt_ep_why *why, const char *const *names, const void *const *pointers, size_t n);

/* shunt_ep_bytes(): 0, or -EINVAL. */
int shunt_ep_room_needed(
    const struct shunt_ep_shape *shape, uint64_t *normal_p, uint64_t *ll_p, struct shunt_ep_why *why);

/* How a call of normal mode divides the memory. */
struct shunt_ep_rings {
	unsigned blocks, threads; /* two warps of a block are a channel */
	uint32_t slots;           /* of a ring */
	uint64_t at;              /* the first ring */
	uint32_t far_slots;       /* of a ring to another host */
};
/*
 * blocks: as many as asked for, or fewer where there is no room. lines: of a slot. -ENOSPC: there is no room for one
 * block.
 */
int shunt_ep_room_rings(const struct shunt_ep_room *room, int blocks, uint32_t lines, struct shunt_ep_rings *rings,
    struct shunt_ep_why *why);
/*
 * Over hosts: bytes of normal mode for each rank of a host and, of page-locked memory, for each of another host and
 * direction; how many a notify may need; and where the latter begin.
 */
uint64_t shunt_ep_normal_part(const struct shunt_ep_room *room);
uint64_t shunt_ep_notify_part(int nranks);
uint64_t shunt_ep_normal_least(const struct shunt_ep_room *room); /* normal_bytes, for a notify */
uint64_t shunt_ep_far_at(const struct shunt_ep_room *room);
/* Words of 8 bytes in front of a row on the wire, in bytes. */
uint32_t shunt_ep_front(uint32_t topk, uint32_t scales);

/* What calls of so many tokens and elements need of ll_bytes. */
uint64_t shunt_ep_ll_needed(const struct shunt_ep_room *room, int64_t tokens, int64_t hidden);
/* Bytes of a unit of the low latency part (kernels/ep.h), and where that part begins. */
uint64_t shunt_ep_ll_unit(const struct shunt_ep_room *room);
uint64_t shunt_ep_ll_at(const struct shunt_ep_room *room);
/* SHUNT_EP_SUM=rank: where the weights begin. */
uint64_t shunt_ep_weights_at(const struct shunt_ep_room *room);
/* Bytes of all of a rank's memory behind the collectives' control words; and, over hosts, of page-locked memory. */
uint64_t shunt_ep_own_bytes(const struct shunt_ep_room *room);
uint64_t shunt_ep_net_bytes(const struct shunt_ep_room *room);
