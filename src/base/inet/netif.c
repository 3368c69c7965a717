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
#include "base/env.h"
#include "base/host.h"
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

static bool is_set(const char *value)
{
	return value && *value;
}

/* As in NCCL, a list of one character says nothing. */
static bool has_list(const struct shunt_netif_rules *rules)
{
	return is_set(rules->ifname) && rules->ifname[1];
}

static struct shunt_netaddr address_of(const struct ifaddrs *ifa)
{
	struct shunt_netaddr addr = { .len = ifa->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) :
		                                                                   sizeof(struct sockaddr_in6) };

	memcpy(&addr.ss, ifa->ifa_addr, addr.len);
	snprintf(addr.ifname, sizeof(addr.ifname), "%s", ifa->ifa_name);
	return addr;
}

/* ---- one address */

static bool is_inet(const struct ifaddrs *ifa)
{
	return ifa->ifa_addr && (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6);
}

/* An interface that is up, but has no carrier, keeps its addresses, and nobody reaches them. */
static bool is_usable(const struct ifaddrs *ifa)
{
	return is_inet(ifa) && (ifa->ifa_flags & IFF_UP) && (ifa->ifa_flags & IFF_RUNNING);
}

/* The bytes of an IPv4 or IPv6 address. */
static const uint8_t *bytes_of(const struct sockaddr *sa, size_t *n_p)
{
	*n_p = sa->sa_family == AF_INET ? 4 : 16;
	return sa->sa_family == AF_INET ? (const uint8_t *)&((const struct sockaddr_in *)sa)->sin_addr :
	                                  (const uint8_t *)&((const struct sockaddr_in6 *)sa)->sin6_addr;
}

static uint32_t scope_of(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)sa)->sin6_scope_id : 0;
}

static bool is_link_local(const struct sockaddr *sa)
{
	uint8_t b[16];
	size_t n;
	const uint8_t *from = bytes_of(sa, &n);

	memcpy(b, from, n);
	return n == 4 ? b[0] == 169 && b[1] == 254 : b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
}

static bool is_same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	size_t n;
	const uint8_t *bytes = bytes_of(a, &n);

	return a->sa_family == b->sa_family && !memcmp(bytes, bytes_of(b, &n), n);
}

/* True if theirs is in the subnet of ifa. */
static bool is_in_subnet(const struct ifaddrs *ifa, const struct sockaddr *theirs)
{
	const uint8_t *a, *b, *mask;
	size_t n;

	if (!ifa->ifa_netmask || ifa->ifa_addr->sa_family != theirs->sa_family ||
	    scope_of(ifa->ifa_addr) != scope_of(theirs))
		return false;
	b = bytes_of(theirs, &n);
	a = bytes_of(ifa->ifa_addr, &n);
	/* By the address's family: the mask's own is not filled in everywhere. */
	mask = theirs->sa_family == AF_INET ? (const uint8_t *)&((struct sockaddr_in *)ifa->ifa_netmask)->sin_addr :
	                                      (const uint8_t *)&((struct sockaddr_in6 *)ifa->ifa_netmask)->sin6_addr;
	for (size_t i = 0; i < n; i++)
		if ((a[i] ^ b[i]) & mask[i])
			return false;
	return true;
}

/* ---- choices, the first of which is taken that has an address */

enum choice {
	IN_SUBNET, /* of NCCL_COMM_ID, for the rendezvous */
	NAMED,     /* by NCCL_SOCKET_IFNAME */
	INFINIBAND,
	IN_SUBNET_FOR_DATA,
	ORDINARY,
	BRIDGE, /* to the containers of a host, which every host may have with the same address */
	DOCKER,
	LOOPBACK,
	LIBVIRT,
	LOOPBACK_OF_IPV6, /* NCCL never takes it */
	NEVER,
};

struct choosing {
	const struct shunt_netif_rules *rules;
	bool data;
	int af;
	struct shunt_netaddr root; /* of NCCL_COMM_ID; len 0: none */
};

static bool begins(const char *name, const char *with)
{
	return !strncmp(name, with, strlen(with));
}

/* "br-" and twelve hexadecimal digits: a network of Docker's. br-ex, say, is a host's main interface. */
static bool is_docker_network(const char *name)
{
	return begins(name, "br-") && strlen(name) == 15 && strspn(name + 3, "0123456789abcdef") == 12;
}

static enum choice choice_by_name(const char *name)
{
	static const struct {
		const char *name;
		enum choice choice;
	} rows[] = {
		{ "ib", INFINIBAND },
		{ "docker", DOCKER },
		{ "lo", LOOPBACK },
		{ "virbr", LIBVIRT },
		{ "veth", BRIDGE },
		{ "cni", BRIDGE },
		{ "podman", BRIDGE },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (begins(name, rows[i].name))
			return rows[i].choice;
	return is_docker_network(name) ? BRIDGE : ORDINARY;
}

static enum choice choice_of(const struct choosing *c, const struct ifaddrs *ifa)
{
	enum choice by_name = choice_by_name(ifa->ifa_name);

	if (!is_usable(ifa))
		return NEVER;
	/* As in NCCL, this subnet is taken whatever the list and the family say; for data the list is stronger. */
	if (c->root.len && is_in_subnet(ifa, (const struct sockaddr *)&c->root.ss)) {
		if (!c->data)
			return IN_SUBNET;
		if (!has_list(c->rules) && by_name != INFINIBAND)
			return IN_SUBNET_FOR_DATA;
	}
	if ((c->af != AF_UNSPEC && ifa->ifa_addr->sa_family != c->af) ||
	    (has_list(c->rules) && !shunt_device_list_match(c->rules->ifname, ifa->ifa_name, 0)))
		return NEVER;
	if (ifa->ifa_addr->sa_family == AF_INET6 &&
	    IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)ifa->ifa_addr)->sin6_addr))
		return LOOPBACK_OF_IPV6;
	if (!has_list(c->rules))
		return by_name;
	/* A list of what is excluded is no wish for the loopback. */
	return *c->rules->ifname == '^' && by_name >= BRIDGE ? by_name : NAMED;
}

/* Lower is better; NEVER * 2 and more: not at all. A link-local address is good only on one link. */
static int rank_of(const struct choosing *c, const struct ifaddrs *ifa)
{
	return 2 * (int)choice_of(c, ifa) + (is_inet(ifa) && is_link_local(ifa->ifa_addr));
}

/* 0 or -EINVAL (logged). */
static int begin(struct choosing *c, const struct shunt_netif_rules *rules, bool data)
{
	*c = (struct choosing){ .rules = rules, .data = data };
	parse_family(rules->family, &c->af);
	return is_set(rules->comm_id) ? shunt_netif_parse(rules->comm_id, rules->family, &c->root) : 0;
}

/* The first of the best. */
static const struct ifaddrs *best_of(const struct choosing *c, const struct ifaddrs *list)
{
	const struct ifaddrs *best = NULL;

	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next)
		if (rank_of(c, ifa) < 2 * NEVER && (!best || rank_of(c, ifa) < rank_of(c, best)))
			best = ifa;
	return best;
}

static bool was_named_before(const struct ifaddrs *list, const struct ifaddrs *ifa)
{
	for (; list != ifa; list = list->ifa_next)
		if (is_inet(list) && !strcmp(list->ifa_name, ifa->ifa_name))
			return true;
	return false;
}

static void log_no_interface(const struct ifaddrs *list, const struct shunt_netif_rules *rules)
{
	char names[256] = "";
	size_t n = 0;

	for (const struct ifaddrs *ifa = list; ifa && n < sizeof(names) - IF_NAMESIZE - 16; ifa = ifa->ifa_next) {
		if (!is_inet(ifa) || was_named_before(list, ifa))
			continue;
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s%s", n ? ", " : "", ifa->ifa_name,
		    !(ifa->ifa_flags & IFF_UP)          ? " (down)" :
		        !(ifa->ifa_flags & IFF_RUNNING) ? " (no carrier)" :
		                                          "");
	}
	shunt_error("no network interface for the bootstrap: NCCL_SOCKET_IFNAME=%s, NCCL_SOCKET_FAMILY=%s; addresses "
	            "exist on: %s",
	    rules->ifname ? rules->ifname : "", rules->family ? rules->family : "", n ? names : "none");
}

int shunt_netif_select(const struct shunt_netif_rules *rules, struct shunt_netaddr *addr)
{
	const struct ifaddrs *best;
	struct ifaddrs *list;
	struct choosing c;
	int err = begin(&c, rules, false);

	if (err)
		return err;
	if (getifaddrs(&list))
		return -errno;
	best = best_of(&c, list);
	if (best)
		*addr = address_of(best);
	else
		log_no_interface(list, rules);
	freeifaddrs(list);
	return best ? 0 : -EADDRNOTAVAIL;
}

int shunt_netif_here(struct shunt_netaddr *addr)
{
	struct shunt_netif_rules rules = { shunt_env("NCCL_SOCKET_IFNAME"), shunt_env("NCCL_SOCKET_FAMILY"),
		shunt_env("NCCL_COMM_ID") };

	return shunt_netif_select(&rules, addr);
}

/* ---- interfaces */

/* The best address of each interface that has the best choice; those with a link-local address alone come last. */
static int list_interfaces(const struct choosing *c, const struct ifaddrs *list, struct shunt_netaddr *addrs, int max)
{
	const struct ifaddrs *best = best_of(c, list);
	int choice = best ? rank_of(c, best) / 2 : NEVER, n = 0;

	for (int local = 0; local < 2 && choice < NEVER; local++) {
		/* Where nobody named them, they are other things: a management board, a port without a network. */
		if (local && n && choice != NAMED)
			break;
		for (const struct ifaddrs *ifa = list; ifa && n < max; ifa = ifa->ifa_next) {
			int i = 0;

			if (rank_of(c, ifa) != 2 * choice + local)
				continue;
			while (i < n && strcmp(addrs[i].ifname, ifa->ifa_name))
				i++;
			if (i == n && !(n && choice == IN_SUBNET_FOR_DATA))
				addrs[n++] = address_of(ifa);
		}
	}
	return n;
}

int shunt_netif_list(const struct shunt_netif_rules *rules, struct shunt_netaddr *addrs, int max)
{
	struct ifaddrs *list;
	struct choosing c;
	int n = begin(&c, rules, true);

	if (n)
		return n;
	if (getifaddrs(&list))
		return -errno;
	n = list_interfaces(&c, list, addrs, max);
	freeifaddrs(list);
	return n;
}

/* ---- addresses of others */

/* The interface of this host that has the address; "" if none. Its index, or 0. */
static unsigned find_own(const struct shunt_netaddr *addr, char name[IF_NAMESIZE])
{
	struct ifaddrs *list = NULL;

	*name = '\0';
	if (getifaddrs(&list))
		return 0;
	for (const struct ifaddrs *ifa = list; ifa && !*name; ifa = ifa->ifa_next)
		if (is_inet(ifa) && is_same_address(ifa->ifa_addr, (const struct sockaddr *)&addr->ss))
			snprintf(name, IF_NAMESIZE, "%s", ifa->ifa_name);
	freeifaddrs(list);
	return *name ? if_nametoindex(name) : 0;
}

void shunt_netif_set_scope(struct shunt_netaddr *addr)
{
	struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&addr->ss;
	struct shunt_netaddr ours = { 0 };
	char name[IF_NAMESIZE];
	unsigned index;

	if (sin6->sin6_family != AF_INET6 || !is_link_local((const struct sockaddr *)sin6))
		return;
	index = find_own(addr, name);
	if (!index && !shunt_netif_here(&ours) && is_link_local((const struct sockaddr *)&ours.ss))
		index = scope_of((const struct sockaddr *)&ours.ss);
	if (index)
		sin6->sin6_scope_id = index;
}

bool shunt_netif_explain(const struct shunt_netaddr *theirs, char *text, size_t bytes)
{
	static const char advice[] = "NCCL_SOCKET_IFNAME must name a network that joins the hosts";
	char at[80], host[64], name[IF_NAMESIZE];
	struct shunt_netaddr ours;

	shunt_host_name(host, sizeof(host));
	find_own(theirs, name);
	if (*name) {
		snprintf(text, bytes, "%s; %s has that address itself (%s)", advice, host, name);
	} else if (shunt_netif_here(&ours)) {
		snprintf(text, bytes, "%s", advice);
	} else {
		shunt_netaddr_show_host(&ours, at, sizeof(at));
		snprintf(text, bytes, "%s; %s offers %s (%s)", advice, host, at, ours.ifname);
	}
	return *name;
}

/* ---- NCCL_COMM_ID */

/* The address of an interface by its name. */
static int find_interface(const char *name, int af, struct shunt_netaddr *addr)
{
	const struct ifaddrs *best = NULL;
	struct ifaddrs *list;

	if (getifaddrs(&list))
		return -errno;
	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next)
		if (is_usable(ifa) && (af == AF_UNSPEC || ifa->ifa_addr->sa_family == af) &&
		    !strcmp(name, ifa->ifa_name) &&
		    (!best || (is_link_local(best->ifa_addr) && !is_link_local(ifa->ifa_addr))))
			best = ifa;
	if (best)
		*addr = address_of(best);
	freeifaddrs(list);
	return best ? 0 : -EADDRNOTAVAIL;
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
	    (brackets || find_interface(host, af, addr)) && (brackets || resolve_host(host, af, 0, addr))) {
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
