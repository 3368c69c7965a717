/* SPDX-License-Identifier: MIT */
/* The round in which ranks of several hosts say where they listen. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/inet/socket.h"
#include "base/log.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/object.h"

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
	err = shunt_netif_here(&addr);
	if (err)
		return err;
	*fd = listen_at(addr, at);
	return *fd < 0 ? -EADDRNOTAVAIL : 0;
}

int shunt_hosts_listen(struct shunt_hosts *hosts, int rank)
{
	return shunt_host_address_listen(&hosts->rank[rank].at, &hosts->listen_fd);
}

/* On a failure, which is logged, the rank sends an address without a family. */
static void listen_here(struct said *said, struct shunt_hosts *hosts, struct shunt_rendezvous *rdzv)
{
	struct shunt_netaddr addr;

	shunt_host_name(said->name, sizeof(said->name));
	if (!shunt_netif_here(&addr)) {
		hosts->group_fd = listen_at(addr, &said->group);
		if (hosts->group_fd >= 0)
			hosts->listen_fd = listen_at(addr, &said->at);
	}
	if (hosts->listen_fd < 0)
		rdzv_because(rdzv, "%s", shunt_last_error());
}

static void fill(struct shunt_hosts *hosts, const struct shunt_rendezvous_row *rows, const struct said *all, int nranks)
{
	hosts->nranks = nranks;
	for (int r = 0; r < nranks; r++) {
		hosts->rank[r] = (struct shunt_host_rank){ .row = rows[r], .at = all[r].at, .group = all[r].group };
		memcpy(hosts->rank[r].name, all[r].name, sizeof(all[r].name) - 1);
	}
	shunt_hosts_place(hosts);
}

/* Alike on all ranks. */
static int check(const struct shunt_hosts *hosts, struct shunt_rendezvous *rdzv)
{
	int none = 0;

	while (none < hosts->nranks && hosts->rank[none].at.family)
		none++;
	if (none < hosts->nranks) {
		rdzv_because(rdzv, "rank %d (%s) cannot listen for ranks of other hosts; its own log has the reason",
		    none, hosts->rank[none].name);
		return -EADDRNOTAVAIL;
	}
	if (hosts->largest > SHUNT_HOSTS_MAX_LOCAL) {
		rdzv_because(rdzv,
		    "a host has %d of the communicator's ranks; over several hosts %d is the most that one may have",
		    hosts->largest, SHUNT_HOSTS_MAX_LOCAL);
		return -EINVAL;
	}
	return 0;
}

size_t shunt_hosts_said_bytes(void)
{
	return sizeof(struct said);
}

int shunt_hosts_exchange(const struct shunt_ranks *ranks, struct shunt_hosts **hosts_p)
{
	struct said mine = { 0 }, all[SHUNT_HOSTS_MAX_RANKS];
	struct shunt_hosts *hosts;
	int err;

	if (ranks->nranks > SHUNT_HOSTS_MAX_RANKS) {
		rdzv_because(ranks->rendezvous, "%d ranks on several hosts: %d is the most that they may be",
		    ranks->nranks, SHUNT_HOSTS_MAX_RANKS);
		return ranks->rendezvous->err = -EINVAL;
	}
	hosts = calloc(1, sizeof(*hosts));
	if (!hosts)
		return shunt_rendezvous_lacks_memory(ranks);
	hosts->listen_fd = hosts->group_fd = -1;
	listen_here(&mine, hosts, ranks->rendezvous);
	err = shunt_rendezvous_allgather(ranks, &mine, sizeof(mine), all, -1, NULL);
	if (!err) {
		fill(hosts, shunt_rendezvous_rows(ranks->rendezvous), all, ranks->nranks);
		err = check(hosts, ranks->rendezvous);
		ranks->rendezvous->err = err;
	}
	if (err)
		shunt_hosts_destroy(hosts);
	else
		*hosts_p = hosts;
	return err;
}
