/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/host_table.h"
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/inet/netif.h"
#include "base/inet/socket.h"

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
		shunt_netif_set_scope(&addr);
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

void shunt_hosts_place(struct shunt_hosts *hosts)
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

void shunt_hosts_select(struct shunt_hosts *hosts, const int *ranks, int n)
{
	struct shunt_host_rank table[SHUNT_HOSTS_MAX_RANKS] = { 0 };

	for (int r = 0; r < n; r++)
		table[r] = hosts->rank[ranks[r]];
	*hosts = (struct shunt_hosts){ .nranks = n, .listen_fd = hosts->listen_fd, .group_fd = hosts->group_fd };
	memcpy(hosts->rank, table, (size_t)n * sizeof(*table));
	shunt_hosts_place(hosts);
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

void shunt_hosts_show_rank(const struct shunt_hosts *hosts, int rank, char *text, size_t bytes)
{
	char host[128];

	shunt_hosts_show(hosts, hosts->host_of[rank], host, sizeof(host));
	snprintf(text, bytes, hosts->by_member ? "the parent's rank %d on %s" : "rank %d on %s",
	    hosts->by_member ? hosts->rank[rank].row.member : rank, host);
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
