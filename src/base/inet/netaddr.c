/* SPDX-License-Identifier: MIT */
#include "base/inet/netaddr.h"
#include <netdb.h>
#include <stdio.h>

in_port_t *shunt_netaddr_port(struct shunt_netaddr *addr)
{
	switch (addr->ss.ss_family) {
	case AF_INET:
		return &((struct sockaddr_in *)&addr->ss)->sin_port;
	case AF_INET6:
		return &((struct sockaddr_in6 *)&addr->ss)->sin6_port;
	default:
		return NULL;
	}
}

void shunt_netaddr_show(const struct shunt_netaddr *addr, char *text, size_t bytes)
{
	char host[NI_MAXHOST], port[NI_MAXSERV];

	if (getnameinfo((const struct sockaddr *)&addr->ss, addr->len, host, sizeof(host), port, sizeof(port),
	        NI_NUMERICHOST | NI_NUMERICSERV))
		snprintf(text, bytes, "(unknown address)");
	else
		snprintf(text, bytes, addr->ss.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

void shunt_netaddr_show_host(const struct shunt_netaddr *addr, char *text, size_t bytes)
{
	char host[NI_MAXHOST];

	if (getnameinfo((const struct sockaddr *)&addr->ss, addr->len, host, sizeof(host), NULL, 0, NI_NUMERICHOST))
		snprintf(host, sizeof(host), "(unknown address)");
	snprintf(text, bytes, "%.*s", (int)bytes - 1, host);
}
