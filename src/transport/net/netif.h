/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_NET_NETIF_H
#define SHUNT_TRANSPORT_NET_NETIF_H
/* Selects the address that the bootstrap listens on, by the rules of NCCL's variables. */
#include <net/if.h>
#include <stdbool.h>
#include <sys/socket.h>

struct shunt_netaddr {
	struct sockaddr_storage ss;
	socklen_t len;
	char ifname[IF_NAMESIZE]; /* "" if not known */
};

/*
 * Matches an interface's name with NCCL_SOCKET_IFNAME: comma-separated prefixes; after "=" whole names; "^" in front of
 * either excludes them. NULL and "" match everything.
 */
bool shunt_netif_match(const char *spec, const char *ifname);

/*
 * Address of the first interface that is up and matches spec. family: "AF_INET", "AF_INET6", or NULL or "" for any.
 * Without spec, loopback and container bridges are the last choice. The port is 0. 0, -EADDRNOTAVAIL (logged) or
 * another -errno.
 */
int shunt_netif_select(const char *spec, const char *family, struct shunt_netaddr *addr);

#define SHUNT_NETIF_MAX 64
/*
 * All interfaces that are up and match spec, with an address of each, as above; those of the last choice only where
 * there are no others. Their number, at most max and SHUNT_NETIF_MAX, or -errno.
 */
int shunt_netif_list(const char *spec, const char *family, struct shunt_netaddr *addrs, int max);

/*
 * Parses NCCL_COMM_ID: "host:port", "1.2.3.4:port", "[v6]:port", "[v6%interface]:port" or "interface:port". 0 or
 * -EINVAL (logged).
 */
int shunt_netif_parse(const char *text, const char *family, struct shunt_netaddr *addr);

/* Parses SHUNT_PORT_RANGE, "40000-40999". False: empty, or no range (logged once). */
bool shunt_netif_port_range(const char *text, unsigned *first_p, unsigned *last_p);

/* "127.0.0.1:1234" or "[::1]:1234". */
void shunt_netaddr_show(const struct shunt_netaddr *addr, char *text, size_t bytes);
/* "127.0.0.1" or "fe80::1%eth0". */
void shunt_netaddr_show_host(const struct shunt_netaddr *addr, char *text, size_t bytes);
#endif
