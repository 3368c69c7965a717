/* SPDX-License-Identifier: MIT */
/* shunt info: what this host is called, its interfaces, and the one that ranks of other hosts would find it at. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include "base/env.h"
#include "base/host.h"
#include "tools/info/info.h"
#include "transport/net/netif.h"

static void show(const struct ifaddrs *ifa, char *text, size_t bytes)
{
	struct shunt_netaddr addr = { .len = ifa->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) :
		                                                                   sizeof(struct sockaddr_in6) };
	char *port;

	memcpy(&addr.ss, ifa->ifa_addr, addr.len);
	shunt_netaddr_show(&addr, text, bytes);
	port = strrchr(text, ':');
	if (port)
		*port = '\0';
}

void info_host(void)
{
	struct shunt_netaddr chosen = { 0 };
	struct ifaddrs *list = NULL;
	char name[64], text[80];
	bool found = !shunt_netif_select(shunt_env("NCCL_SOCKET_IFNAME"), shunt_env("NCCL_SOCKET_FAMILY"), &chosen);

	shunt_host_name(name, sizeof(name));
	printf("host          %s%s\n", name, *shunt_host_override() ? " (SHUNT_HOSTID)" : "");
	if (getifaddrs(&list))
		return;
	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		bool is_it;

		if (!ifa->ifa_addr || !(ifa->ifa_flags & IFF_UP) ||
		    (ifa->ifa_addr->sa_family != AF_INET && ifa->ifa_addr->sa_family != AF_INET6))
			continue;
		is_it = found && !memcmp(&chosen.ss, ifa->ifa_addr, chosen.len);
		show(ifa, text, sizeof(text));
		printf(
		    "  %-11s %s%s\n", ifa->ifa_name, text, is_it ? "  (ranks of other hosts find this one here)" : "");
	}
	freeifaddrs(list);
}
