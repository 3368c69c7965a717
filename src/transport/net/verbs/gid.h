/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The choice of the addresses (GIDs) of a connection over verbs. An end offers those that its settings allow; both
 * ends then choose from the two lists, and find the same pair. Pure functions.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHUNT_GID_MAX_OFFERED 8

enum shunt_gid_type { SHUNT_GID_IB, SHUNT_GID_ROCE_V1, SHUNT_GID_ROCE_V2 };

struct shunt_gid {
	uint8_t raw[16];
	uint8_t type;
	uint8_t index; /* in its port's table */
};

struct shunt_gids {
	const struct shunt_gid *list;
	int n;
};

struct shunt_gid_rules {
	int index;   /* this one alone; -1: any */
	int family;  /* AF_INET or AF_INET6 alone; 0: any */
	int version; /* of RoCE, 1 or 2 alone; 0: any */
	uint8_t range[16];
	unsigned range_bits; /* of the prefix; 0: any */
};

/*
 * From the settings; family "AF_INET", range "10.0.0.0/8" or "fd00::/8"; empty, NULL: any. 0, or -EINVAL: bad_p is the
 * text that cannot be read; the rest is taken.
 */
int shunt_gid_rules_parse(const char *family, const char *range, struct shunt_gid_rules *rules_p, const char **bad_p);

/* How well a GID suits, less is better: RoCE v2 over IPv4, over IPv6, over a link's own IPv6, the same of v1. */
int shunt_gid_class(const struct shunt_gid *gid);
/*
 * Of a port's table those that the rules allow, the better first, at most SHUNT_GID_MAX_OFFERED: their number. Of
 * InfiniBand the first that is set. Empty entries are left out.
 */
int shunt_gid_offer(
    const struct shunt_gid *table, int n, const struct shunt_gid_rules *rules, struct shunt_gid *offered);
/*
 * Indices of the best pair of one class; of equal pairs the first. first: this end decides between pairs that suit both
 * alike; it is false on the other end. False: no pair has one version and family.
 */
bool shunt_gid_choose(struct shunt_gids own, struct shunt_gids peers, bool first, int *own_p, int *peers_p);
/* "10.0.0.1" or "fe80::1". bytes >= 46. */
void shunt_gid_show(const struct shunt_gid *gid, char *text, size_t bytes);
