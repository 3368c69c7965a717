/* SPDX-License-Identifier: MIT */
#include "base/inet/netif.h"
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/inet/device_list.h"
#include "base/log.h"

static void parse_family(const char *family, int *af_p)
{
	*af_p = AF_UNSPEC;
	if (!family || !*family)
		return;
	if (!strcmp(family, "AF_INET"))
		*af_p = AF_INET;
	else if (!strcmp(family, "AF_INET6"))
		*af_p = AF_INET6;
	else
		shunt_warn("NCCL_SOCKET_FAMILY=%s is neither AF_INET nor AF_INET6; using any", family);
}

static socklen_t address_len(int af)
{
	return af == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Preference of an address; lower is better. A link-local address works, but only together with its interface. */
static int address_metric(const struct ifaddrs *ifa, bool chosen_by_user)
{
	static const char *const bridges[] = { "docker", "virbr", "br-", "veth", "cni", "podman" };
	int metric = 0;

	if (!chosen_by_user) {
		for (size_t i = 0; i < sizeof(bridges) / sizeof(bridges[0]); i++)
			if (!strncmp(ifa->ifa_name, bridges[i], strlen(bridges[i])))
				metric = 2;
		if (ifa->ifa_flags & IFF_LOOPBACK)
			metric = 4;
	}
	if (ifa->ifa_addr->sa_family == AF_INET6 &&
	    IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)ifa->ifa_addr)->sin6_addr))
		metric++;
	return metric;
}

static void log_no_interface(const struct ifaddrs *list, const char *spec, const char *family)
{
	char names[256] = "";
	size_t n = 0;

	for (; list && n < sizeof(names) - IF_NAMESIZE - 2; list = list->ifa_next) {
		const char *name = list->ifa_name, *found = strstr(names, name);

		if (!list->ifa_addr || (list->ifa_addr->sa_family != AF_INET && list->ifa_addr->sa_family != AF_INET6))
			continue;
		/* An interface may have several addresses: name it once. */
		while (found &&
		    ((found > names && found[-1] != ' ') || (found[strlen(name)] && found[strlen(name)] != ',')))
			found = strstr(found + 1, name);
		if (!found)
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", name);
	}
	shunt_error("no network interface for the bootstrap: NCCL_SOCKET_IFNAME=%s, NCCL_SOCKET_FAMILY=%s; addresses "
	            "exist on: %s",
	    spec ? spec : "", family ? family : "", n ? names : "none");
}

static int select_address(const char *spec, const char *exact_name, const char *family, struct shunt_netaddr *addr)
{
	struct ifaddrs *list, *best = NULL;
	int af, best_metric = 0, err = -EADDRNOTAVAIL;

	parse_family(family, &af);
	if (getifaddrs(&list))
		return -errno;
	for (struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		int metric;

		if (!ifa->ifa_addr || !(ifa->ifa_flags & IFF_UP) ||
		    (ifa->ifa_addr->sa_family != AF_INET && ifa->ifa_addr->sa_family != AF_INET6))
			continue;
		if ((af != AF_UNSPEC && ifa->ifa_addr->sa_family != af) ||
		    (exact_name ? strcmp(exact_name, ifa->ifa_name) != 0 :
		                  !shunt_device_list_match(spec, ifa->ifa_name, 0)))
			continue;
		metric = address_metric(ifa, exact_name || (spec && *spec));
		if (!best || metric < best_metric) {
			best = ifa;
			best_metric = metric;
		}
	}
	if (best) {
		*addr = (struct shunt_netaddr){ .len = address_len(best->ifa_addr->sa_family) };
		memcpy(&addr->ss, best->ifa_addr, addr->len);
		snprintf(addr->ifname, sizeof(addr->ifname), "%s", best->ifa_name);
		err = 0;
	} else if (!exact_name) {
		log_no_interface(list, spec, family);
	}
	freeifaddrs(list);
	return err;
}

static bool is_same_interface(const struct shunt_netaddr *addr, const char *name)
{
	return !strcmp(addr->ifname, name);
}

/* The best address of each interface, those of the best interfaces first, in the system's order. */
static int list_addresses(
    const struct ifaddrs *list, const char *spec, int af, struct shunt_netaddr *addrs, int *metrics, int max)
{
	int n = 0;

	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		int metric, slot, end;

		if (!ifa->ifa_addr || !(ifa->ifa_flags & IFF_UP) ||
		    (ifa->ifa_addr->sa_family != AF_INET && ifa->ifa_addr->sa_family != AF_INET6) ||
		    (af != AF_UNSPEC && ifa->ifa_addr->sa_family != af) ||
		    !shunt_device_list_match(spec, ifa->ifa_name, 0))
			continue;
		metric = address_metric(ifa, spec && *spec);
		for (end = 0; end < n && !is_same_interface(&addrs[end], ifa->ifa_name); end++)
			;
		if (end < n && metrics[end] <= metric)
			continue;
		if (end == n && n < max) {
			n++;
		} else if (end == n) {
			if (!n || metrics[n - 1] <= metric)
				continue;
			end--;
		}
		for (slot = end; slot > 0 && metrics[slot - 1] > metric; slot--) {
			addrs[slot] = addrs[slot - 1];
			metrics[slot] = metrics[slot - 1];
		}
		addrs[slot] = (struct shunt_netaddr){ .len = address_len(ifa->ifa_addr->sa_family) };
		memcpy(&addrs[slot].ss, ifa->ifa_addr, addrs[slot].len);
		snprintf(addrs[slot].ifname, sizeof(addrs[slot].ifname), "%s", ifa->ifa_name);
		metrics[slot] = metric;
	}
	return n;
}

int shunt_netif_list(const char *spec, const char *family, struct shunt_netaddr *addrs, int max)
{
	int metrics[SHUNT_NETIF_MAX] = { 0 }, n, af, last;
	struct ifaddrs *list;

	parse_family(family, &af);
	if (getifaddrs(&list))
		return -errno;
	n = list_addresses(list, spec, af, addrs, metrics, max < SHUNT_NETIF_MAX ? max : SHUNT_NETIF_MAX);
	freeifaddrs(list);
	/* An address of the next choice may be the same on all hosts. */
	for (last = 0; last < n && metrics[last] / 2 == metrics[0] / 2; last++)
		;
	return last;
}

int shunt_netif_select(const char *spec, const char *family, struct shunt_netaddr *addr)
{
	return select_address(spec, NULL, family, addr);
}

static int resolve_host(const char *host, int af, int flags, struct shunt_netaddr *addr)
{
	struct addrinfo hints = { .ai_family = af, .ai_socktype = SOCK_STREAM, .ai_flags = flags }, *list;

	if (getaddrinfo(host, NULL, &hints, &list))
		return -ENOENT;
	*addr = (struct shunt_netaddr){ .len = list->ai_addrlen };
	memcpy(&addr->ss, list->ai_addr, list->ai_addrlen);
	freeaddrinfo(list);
	return 0;
}

int shunt_netif_parse(const char *text, const char *family, struct shunt_netaddr *addr)
{
	bool brackets = *text == '[';
	const char *colon = brackets ? strstr(text, "]:") : strrchr(text, ':');
	const char *port_text;
	char host[256], *end;
	unsigned long port;
	size_t n;
	int af;

	if (!colon)
		goto bad;
	n = (size_t)(colon - text) - brackets;
	port_text = colon + 1 + brackets;
	port = strtoul(port_text, &end, 10);
	if (*port_text < '0' || *port_text > '9' || *end || port == 0 || port > 65535 || n == 0 || n >= sizeof(host))
		goto bad;
	memcpy(host, text + brackets, n);
	host[n] = '\0';
	if (!brackets && strchr(host, ':'))
		goto bad;
	parse_family(family, &af);
	/* Try interfaces before the resolver, which may take long to find that eth0 is no host. */
	if (resolve_host(host, brackets ? AF_INET6 : AF_UNSPEC, AI_NUMERICHOST, addr) &&
	    (brackets || select_address(NULL, host, family, addr)) && (brackets || resolve_host(host, af, 0, addr))) {
		shunt_error("NCCL_COMM_ID=%s: there is no host or interface %s", text, host);
		return -EINVAL;
	}
	*shunt_netaddr_port(addr) = htons((uint16_t)port);
	return 0;
bad:
	shunt_error("NCCL_COMM_ID=%s is not host:port, [IPv6 address]:port or interface:port", text);
	return -EINVAL;
}

bool shunt_netif_port_range(const char *text, unsigned *first_p, unsigned *last_p)
{
	static atomic_bool logged;
	int end = 0;

	if (!*text)
		return false;
	if (sscanf(text, "%u-%u%n", first_p, last_p, &end) == 2 && !text[end] && *first_p && *first_p <= *last_p &&
	    *last_p <= 65535)
		return true;
	if (!atomic_exchange(&logged, true))
		shunt_warn("SHUNT_PORT_RANGE=%s is no range such as 40000-40999: the kernel chooses the ports", text);
	return false;
}
