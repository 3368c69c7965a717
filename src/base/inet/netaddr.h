/* SPDX-License-Identifier: MIT */
#pragma once
/* An address of a socket, with the interface that it belongs to. */
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

struct shunt_netaddr {
	struct sockaddr_storage ss;
	socklen_t len;
	char ifname[IF_NAMESIZE]; /* "" if not known */
};

/* Where the port stands, in the network's byte order; NULL: the address is not of IPv4 or IPv6. */
in_port_t *shunt_netaddr_port(struct shunt_netaddr *addr);

/* "127.0.0.1:1234" or "[::1]:1234". */
void shunt_netaddr_show(const struct shunt_netaddr *addr, char *text, size_t bytes);
/* "127.0.0.1" or "fe80::1%eth0". */
void shunt_netaddr_show_host(const struct shunt_netaddr *addr, char *text, size_t bytes);
