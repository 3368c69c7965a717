/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/hosts.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/env.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/log.h"
#include "transport/rendezvous/priv.h"

/* ---- addresses */

struct shunt_host_address shunt_host_address(const struct shunt_netaddr *addr)
{
	struct shunt_host_address at = { .family = addr->ss.ss_family == AF_INET ? 4 : 6 };

	if (at.family == 4) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)&addr->ss;

		at.port = sin->sin_port;
		memcpy(at.addr, &sin->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)&addr->ss;

		at.port = sin6->sin6_port;
		at.scope = sin6->sin6_scope_id;
		memcpy(at.addr, &sin6->sin6_addr, 16);
	}
	return at;
}

struct shunt_netaddr shunt_host_netaddr(const struct shunt_host_address *at)
{
	struct shunt_netaddr addr = { 0 };

	if (at->family == 4) {
		struct sockaddr_in *sin = (struct sockaddr_in *)&addr.ss;

		sin->sin_family = AF_INET;
		sin->sin_port = at->port;
		memcpy(&sin->sin_addr, at->addr, 4);
		addr.len = sizeof(*sin);
	} else {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&addr.ss;

		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = at->port;
		sin6->sin6_scope_id = at->scope;
		memcpy(&sin6->sin6_addr, at->addr, 16);
		addr.len = sizeof(*sin6);
	}
	return addr;
}

/* ---- placement */

static int first_of_host(const struct shunt_rendezvous_row *rows, int rank)
{
	for (int r = 0; r < rank; r++)
		if (!memcmp(rows[r].host, rows[rank].host, sizeof(rows[r].host)))
			return r;
	return rank;
}

int shunt_hosts_count(const struct shunt_rendezvous_row *rows, int nranks)
{
	int n = 0;

	for (int r = 0; r < nranks; r++)
		n += first_of_host(rows, r) == r;
	return n;
}

int shunt_hosts_rank(const struct shunt_hosts *hosts, int host, int local)
{
	for (int r = 0; r < hosts->nranks; r++)
		if (hosts->host_of[r] == host && hosts->local_of[r] == local)
			return r;
	return -1;
}

int shunt_hosts_find(const struct shunt_hosts *hosts, int member)
{
	for (int r = 0; r < hosts->nranks; r++)
		if (hosts->rank[r].row.member == member)
			return r;
	return -1;
}

/* From rank[].row, with nranks set. */
static void place(struct shunt_hosts *hosts)
{
	for (int r = 0; r < hosts->nranks; r++) {
		const struct shunt_rendezvous_row *row = &hosts->rank[r].row;
		int first = 0, h;

		while (memcmp(hosts->rank[first].row.host, row->host, sizeof(row->host)))
			first++;
		h = first == r ? hosts->nhosts++ : hosts->host_of[first];
		if (first == r || row->member < hosts->rank[hosts->leader[h]].row.member)
			hosts->leader[h] = (uint8_t)r;
		hosts->host_of[r] = (uint8_t)h;
		hosts->local_of[r] = hosts->nlocal[h]++;
		if (hosts->nlocal[h] > hosts->largest)
			hosts->largest = hosts->nlocal[h];
	}
}

/* ---- the round */

struct said {
	struct shunt_host_address at, group;
	char name[32];
};

static int listen_at(struct shunt_netaddr addr, struct shunt_host_address *at)
{
	int fd = -1, err = shunt_socket_listen(&shunt_socket_tcp, &addr, &fd);

	if (err) {
		shunt_error("this rank cannot listen for those of other hosts: %s", strerror(-err));
		return -1;
	}
	*at = shunt_host_address(&addr);
	return fd;
}

int shunt_host_address_listen(struct shunt_host_address *at, int *fd)
{
	struct shunt_netaddr addr;
	int err;

	if (*fd >= 0)
		return 0;
	err = shunt_netif_select(shunt_env("NCCL_SOCKET_IFNAME"), shunt_env("NCCL_SOCKET_FAMILY"), &addr);
	if (err)
		return err;
	*fd = listen_at(addr, at);
	return *fd < 0 ? -EADDRNOTAVAIL : 0;
}

int shunt_hosts_listen(struct shunt_hosts *hosts, int rank)
{
	return shunt_host_address_listen(&hosts->rank[rank].at, &hosts->listen_fd);
}

/* What fails is said by an address of no family. */
static void listen_here(struct said *said, struct shunt_hosts *hosts)
{
	struct shunt_netaddr addr;

	shunt_host_name(said->name, sizeof(said->name));
	if (shunt_netif_select(shunt_env("NCCL_SOCKET_IFNAME"), shunt_env("NCCL_SOCKET_FAMILY"), &addr))
		return;
	hosts->group_fd = listen_at(addr, &said->group);
	if (hosts->group_fd >= 0)
		hosts->listen_fd = listen_at(addr, &said->at);
}

static void fill(struct shunt_hosts *hosts, const struct shunt_rendezvous_row *rows, const struct said *all, int nranks)
{
	hosts->nranks = nranks;
	for (int r = 0; r < nranks; r++) {
		hosts->rank[r] = (struct shunt_host_rank){ .row = rows[r], .at = all[r].at, .group = all[r].group };
		memcpy(hosts->rank[r].name, all[r].name, sizeof(all[r].name) - 1);
	}
	place(hosts);
}

/* Alike on all ranks. */
static int check(const struct shunt_hosts *hosts, int rank)
{
	int none = 0;

	while (none < hosts->nranks && hosts->rank[none].at.family)
		none++;
	if (none < hosts->nranks) {
		shunt_error("rank %d (%s) cannot listen for ranks of other hosts; its own log has the reason", none,
		    hosts->rank[none].name);
		return -EADDRNOTAVAIL;
	}
	if (hosts->largest > SHUNT_HOSTS_MAX_LOCAL) {
		if (!rank)
			shunt_error("a host has %d of the communicator's ranks; over several hosts %d is the most that "
			            "one may have",
			    hosts->largest, SHUNT_HOSTS_MAX_LOCAL);
		return -EINVAL;
	}
	return 0;
}

int shunt_hosts_exchange(const struct shunt_ranks *ranks, struct shunt_hosts **hosts_p)
{
	struct said mine = { 0 }, all[SHUNT_HOSTS_MAX_RANKS];
	struct shunt_hosts *hosts;
	int err;

	if (ranks->nranks > SHUNT_HOSTS_MAX_RANKS) {
		if (!ranks->rank)
			shunt_error("%d ranks on several hosts: %d is the most that they may be", ranks->nranks,
			    SHUNT_HOSTS_MAX_RANKS);
		return -EINVAL;
	}
	hosts = calloc(1, sizeof(*hosts));
	if (!hosts)
		return shunt_rendezvous_lacks_memory(ranks);
	hosts->listen_fd = hosts->group_fd = -1;
	listen_here(&mine, hosts);
	err = shunt_rendezvous_allgather(ranks, &mine, sizeof(mine), all, -1, NULL);
	if (!err) {
		fill(hosts, shunt_rendezvous_rows(ranks->rendezvous), all, ranks->nranks);
		err = check(hosts, ranks->rank);
	}
	if (err)
		shunt_hosts_destroy(hosts);
	else
		*hosts_p = hosts;
	return err;
}

void shunt_hosts_select(struct shunt_hosts *hosts, const int *ranks, int n)
{
	struct shunt_host_rank table[SHUNT_HOSTS_MAX_RANKS] = { 0 };

	for (int r = 0; r < n; r++)
		table[r] = hosts->rank[ranks[r]];
	*hosts = (struct shunt_hosts){ .nranks = n, .listen_fd = hosts->listen_fd, .group_fd = hosts->group_fd };
	memcpy(hosts->rank, table, (size_t)n * sizeof(*table));
	place(hosts);
}

size_t shunt_hosts_said_bytes(void)
{
	return sizeof(struct said);
}

void shunt_hosts_destroy(struct shunt_hosts *hosts)
{
	if (!hosts)
		return;
	shunt_close_socket(&hosts->listen_fd);
	shunt_close_socket(&hosts->group_fd);
	free(hosts);
}

/* ---- for the log */

void shunt_hosts_show(const struct shunt_hosts *hosts, int host, char *text, size_t bytes)
{
	const struct shunt_host_rank *leader = &hosts->rank[hosts->leader[host]];
	struct shunt_netaddr addr = shunt_host_netaddr(&leader->at);
	char at[80], *port;

	shunt_netaddr_show(&addr, at, sizeof(at));
	port = strrchr(at, ':');
	if (port)
		*port = '\0';
	snprintf(text, bytes, "%s (%s)", leader->name, at);
}

void shunt_hosts_describe(const struct shunt_hosts *hosts, char *text, size_t bytes)
{
	size_t n = 0;

	for (int h = 0; h < hosts->nhosts && n < bytes; h++) {
		const char *comma = "";
		char host[128];

		n += (size_t)snprintf(text + n, bytes - n, "%srank%s ", h ? ", " : "", hosts->nlocal[h] > 1 ? "s" : "");
		for (int r = 0; r < hosts->nranks && n < bytes; r++) {
			int end = r;

			if (hosts->host_of[r] != h)
				continue;
			while (end + 1 < hosts->nranks && hosts->host_of[end + 1] == h)
				end++;
			n += (size_t)snprintf(text + n, bytes - n, end > r ? "%s%d-%d" : "%s%d", comma, r, end);
			comma = "+";
			r = end;
		}
		shunt_hosts_show(hosts, h, host, sizeof(host));
		if (n < bytes)
			n += (size_t)snprintf(text + n, bytes - n, " on %s", host);
	}
}
