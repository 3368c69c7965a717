/* SPDX-License-Identifier: MIT */
/* shunt info: the host's name, its interfaces, and the interface at which ranks of other hosts would find it. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include "tools/common/libc.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "tools/common/nics.h"
#include "tools/info/info.h"
#include "transport/net/tcp/tcp.h"

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
	bool found = !shunt_netif_here(&chosen);

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
		printf("  %-11s %s%s\n", ifa->ifa_name, text,
		    is_it                            ? "  (ranks of other hosts find this one here)" :
		        ifa->ifa_flags & IFF_RUNNING ? "" :
		                                       "  (no carrier)");
	}
	freeifaddrs(list);
}

static void info_tcp(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	int n = shunt_net_tcp_ops.devices(info, SHUNT_NET_MAX_DEVICES);
	char text[256];

	if (n <= 0) {
		printf("tcp           no interface that can be used\n");
		return;
	}
	tool_interface_show(&info[0], text, sizeof(text));
	printf("tcp           %s\n", text);
}

void info_nics(void)
{
	struct shunt_verbs_look *look = malloc(sizeof(*look));
	struct tool_gpus gpus;
	char text[512];

	info_tcp();
	if (!look || tool_gpus_find(&gpus)) {
		free(look);
		return;
	}
	shunt_verbs_look(SHUNT_NET_MEMORY_MOST, look);
	printf("verbs         ");
	if (*look->none)
		printf("none: %s\n", look->none);
	for (int i = 0; i < look->n; i++) {
		const struct shunt_verbs_port *port = &look->ports[i];

		tool_nic_show(look, i, &gpus, text, sizeof(text));
		printf("%s%s", i ? "              " : "", text);
		if (port->fails)
			printf(" (cannot %s: %s)", port->fails, strerror(-port->err));
		putchar('\n');
	}
	for (int i = 0; i < look->nleft_out; i++)
		printf("              %s\n", look->left_out[i]);
	free(gpus.at);
	free(look);
}
