/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Which ranks are on which host, alike on all ranks, and the addresses at which each rank listens. base/host.h says
 * what a host is. A communicator of one host has no struct shunt_hosts.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "base/inet/netaddr.h"
#include "transport/rendezvous/rendezvous.h"

#define SHUNT_HOSTS_MAX_RANKS 64 /* docs/decisions/014.md */
#define SHUNT_HOSTS_MAX_LOCAL 8  /* of one host */

/* An address on the wire. */
struct shunt_host_address {
	uint8_t family; /* 4 or 6; 0: none */
	uint8_t zero;
	uint16_t port;    /* network order, as in sockaddr */
	uint32_t scope;   /* of an IPv6 link-local address, on the host that has it */
	uint8_t addr[16]; /* IPv4: the first four bytes */
};

/* The data about each rank that all ranks have. */
struct shunt_host_rank {
	struct shunt_rendezvous_row row;
	struct shunt_host_address at;    /* where it listens for the roots of other hosts (uplink.c) */
	struct shunt_host_address group; /* where it listens for the ranks of a child (bootstrap_group.h) */
	char name[32];                   /* of its host, for the log */
};

struct shunt_hosts {
	int nranks, nhosts;
	int largest;                             /* most ranks that a host has */
	uint8_t host_of[SHUNT_HOSTS_MAX_RANKS];  /* hosts are in the order of their lowest ranks */
	uint8_t local_of[SHUNT_HOSTS_MAX_RANKS]; /* index among the ranks of its host, in rank order */
	uint8_t nlocal[SHUNT_HOSTS_MAX_RANKS];   /* per host: number of ranks */
	/* Per host: the rank with the lowest member, which speaks for the host */
	uint8_t leader[SHUNT_HOSTS_MAX_RANKS];
	struct shunt_host_rank rank[SHUNT_HOSTS_MAX_RANKS];
	int listen_fd, group_fd; /* this rank's sockets at rank[own].at and .group; -1: none. The struct owns them */
	bool by_member;          /* of a child: numbers are not its ranks yet, but go by rank[].row.member */
};

/* Number of hosts in the rows of a join. */
int shunt_hosts_count(const struct shunt_rendezvous_row *rows, int nranks);
/* The rank that has this index on this host. */
int shunt_hosts_rank(const struct shunt_hosts *hosts, int host, int local);
/* The rank of this member, or -1. */
int shunt_hosts_find(const struct shunt_hosts *hosts, int member);

/*
 * Two rounds among ranks that have joined over TCP: every rank says where it listens, and then whether it reaches the
 * other hosts there. At most SHUNT_HOSTS_MAX_RANKS. 0, or -errno alike on all ranks, with shunt_rendezvous_why();
 * -EADDRNOTAVAIL: an address cannot be had, or cannot be reached. The caller destroys *hosts_p.
 */
int shunt_hosts_exchange(const struct shunt_ranks *ranks, struct shunt_hosts **hosts_p);
/* The bytes of one rank's message in these rounds, for a root that is no rank. */
size_t shunt_hosts_said_bytes(void);
size_t shunt_hosts_reached_bytes(void);
/* The time for the second round, in which a rank may try for long, if the first has timeout_ms. */
int64_t shunt_hosts_reached_ms(int64_t timeout_ms);
/* Fills the fields of hosts from rank[].row and nranks. */
void shunt_hosts_place(struct shunt_hosts *hosts);
/* Keeps the ranks with these numbers, in this order; 0 ranks are allowed. */
void shunt_hosts_select(struct shunt_hosts *hosts, const int *ranks, int n);
/*
 * Listens at the address that this rank offers (base/inet/netif.h). *fd: a socket, which stays as it is; or -1,
 * which becomes one. 0 or -errno (logged).
 */
int shunt_host_address_listen(struct shunt_host_address *at, int *fd);
/* Lets this rank listen for the roots of other hosts, if it does not yet: rank[rank].at. 0 or -errno (logged). */
int shunt_hosts_listen(struct shunt_hosts *hosts, int rank);
/* NULL is allowed. */
void shunt_hosts_destroy(struct shunt_hosts *hosts);

/* For the log: "node1 (10.0.0.1)", the name of a host and the address of its leader. */
void shunt_hosts_show(const struct shunt_hosts *hosts, int host, char *text, size_t bytes);
/* For the log: "rank 3 on node1 (10.0.0.1)", or "the parent's rank 3 on ...". */
void shunt_hosts_show_rank(const struct shunt_hosts *hosts, int rank, char *text, size_t bytes);
/* For the log: "ranks 0-1 on node1 (10.0.0.1), ranks 2-3 on node2 (10.0.0.2)", cut where text is full. */
void shunt_hosts_describe(const struct shunt_hosts *hosts, char *text, size_t bytes);

struct shunt_host_address shunt_host_address(const struct shunt_netaddr *addr);
/* A link-local address of another host gets our interface: base/inet/netif.h. */
struct shunt_netaddr shunt_host_netaddr(const struct shunt_host_address *at);
