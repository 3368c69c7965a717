/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Which address a rank offers: the interfaces of this host, chosen by the rules of NCCL's variables. docs/hosts.md has
 * them as a table.
 */
#include <stdbool.h>
#include <stddef.h>
#include "base/inet/netaddr.h"

/* The values of the variables that have a say; NULL or "": not set. */
struct shunt_netif_rules {
	const char *ifname;  /* NCCL_SOCKET_IFNAME, a list of base/inet/device_list.h */
	const char *family;  /* NCCL_SOCKET_FAMILY: AF_INET or AF_INET6 */
	const char *comm_id; /* NCCL_COMM_ID */
};

/*
 * The address at which the others find this rank, or its directory. The port is 0. 0; -EADDRNOTAVAIL: none is allowed
 * (logged); -EINVAL: the variable NCCL_COMM_ID cannot be read (logged); another -errno. Asks the resolver if that
 * variable has a name.
 */
int shunt_netif_select(const struct shunt_netif_rules *rules, struct shunt_netaddr *addr);
/* The same, by the variables of this process. */
int shunt_netif_here(struct shunt_netaddr *addr);

/* The interfaces that may carry data, with an address of each: their number, at most max, or -errno as above. */
int shunt_netif_list(const struct shunt_netif_rules *rules, struct shunt_netaddr *addrs, int max);

/*
 * An IPv6 link-local address that came from another host gets the index of our interface, in place of that host's: of
 * the interface whose address this process offers.
 */
void shunt_netif_set_scope(struct shunt_netaddr *addr);

/*
 * For the log, of an address that cannot be reached: the variable to set, and the address of this host. True: it is an
 * address of this host itself.
 */
bool shunt_netif_explain(const struct shunt_netaddr *theirs, char *text, size_t bytes);

/*
 * Parses NCCL_COMM_ID: "host:port", "1.2.3.4:port", "[v6]:port", "[v6%interface]:port" or "interface:port". 0 or
 * -EINVAL (logged).
 */
int shunt_netif_parse(const char *text, const char *family, struct shunt_netaddr *addr);

/* Parses SHUNT_PORT_RANGE, "40000-40999". False: empty, or no range (logged once). */
bool shunt_netif_port_range(const char *text, unsigned *first_p, unsigned *last_p);
