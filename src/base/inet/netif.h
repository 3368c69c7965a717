/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_INET_NETIF_H
#define SHUNT_BASE_INET_NETIF_H
/*
 * Interfaces and their addresses, selected by the rules of NCCL's variables. spec: of NCCL_SOCKET_IFNAME, a list of
 * base/inet/device_list.h. family: of NCCL_SOCKET_FAMILY, "AF_INET", "AF_INET6", or NULL or "" for any.
 */
#include <stdbool.h>
#include "base/inet/netaddr.h"

/*
 * Address of the first interface that is up and matches spec. Without spec, loopback and container bridges are the last
 * choice. The port is 0. 0, -EADDRNOTAVAIL (logged) or another -errno.
 */
int shunt_netif_select(const char *spec, const char *family, struct shunt_netaddr *addr);

#define SHUNT_NETIF_MAX 64
/*
 * All interfaces that are up and match spec, with an address of each, as above; loopback and bridges only where there
 * are no others. Their number, at most max and SHUNT_NETIF_MAX, or -errno.
 */
int shunt_netif_list(const char *spec, const char *family, struct shunt_netaddr *addrs, int max);

/*
 * Parses NCCL_COMM_ID: "host:port", "1.2.3.4:port", "[v6]:port", "[v6%interface]:port" or "interface:port". 0 or
 * -EINVAL (logged).
 */
int shunt_netif_parse(const char *text, const char *family, struct shunt_netaddr *addr);

/* Parses SHUNT_PORT_RANGE, "40000-40999". False: empty, or no range (logged once). */
bool shunt_netif_port_range(const char *text, unsigned *first_p, unsigned *last_p);
#endif
