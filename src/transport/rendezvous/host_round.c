/* SPDX-License-Identifier: MIT */
/* The rounds in which ranks of several hosts say where they listen, and whether they reach each other there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/inet/socket.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/reach.h"

/* What a rank says in the first round, */
struct said {
	struct shunt_host_address at, group;
	char name[32];
};

/* and in the second. */
struct reached {
	int32_t err;  /* 0: it reaches all */
	int32_t rank; /* that it cannot reach; -1: it has failed for another reason */
	char why[168];
};

static int listen_at(struct shunt_netaddr addr, struct shunt_host_address *at)
{
	int fd = -1, err = shunt_socket_listen(&shunt_socket_tcp, &addr, &fd);

	if (err) {
		shunt_error("this rank cannot listen for those of other hosts: %s", shunt_error_text(err).s);
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
	char at[80];

	shunt_host_name(said->name, sizeof(said->name));
	if (!shunt_netif_here(&addr)) {
		shunt_netaddr_show_host(&addr, at, sizeof(at));
		shunt_info(SHUNT_LOG_BOOTSTRAP, "ranks of other hosts find this rank at %s (%s)", at, addr.ifname);
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

/*
 * Ranks connect to each other later, when one of them may wait for the other for long. So they try it here, and an
 * address that another host does not reach is an error of the init, with one line on all ranks. bad: an error that all
 * have; for a root that is no rank they have the round nevertheless.
 */
static int reach(const struct shunt_ranks *ranks, const struct shunt_hosts *hosts, int bad)
{
	struct shunt_ranks later = *ranks;
	struct reached mine = { 0 }, all[SHUNT_HOSTS_MAX_RANKS];
	struct shunt_netaddr theirs;
	char at[80], name[128];
	int err, rank = -1;

	mine.err = bad ? bad : rdzv_reach_hosts(hosts, ranks->rank, ranks->cancel, &rank);
	mine.rank = rank;
	if (mine.err == -ECANCELED)
		return mine.err;
	if (rank >= 0) {
		theirs = shunt_host_netaddr(&hosts->rank[rank].group);
		(void)shunt_netif_explain(&theirs, mine.why, sizeof(mine.why));
	}
	later.timeout_ms = shunt_hosts_reached_ms(ranks->timeout_ms);
	err = shunt_rendezvous_allgather(&later, &mine, sizeof(mine), all, -1, NULL);
	err = bad ? bad : err;
	for (int r = 0; r < hosts->nranks && !err; r++) {
		if (!all[r].err)
			continue;
		err = -EADDRNOTAVAIL;
		all[r].why[sizeof(all[r].why) - 1] = '\0';
		shunt_hosts_show_rank(hosts, r, name, sizeof(name));
		if (all[r].rank < 0 || all[r].rank >= hosts->nranks) {
			rdzv_because(ranks->rendezvous, "%s cannot try to reach the other hosts: %s", name,
			    strerror(-all[r].err));
			continue;
		}
		theirs = shunt_host_netaddr(&hosts->rank[all[r].rank].group);
		shunt_netaddr_show_host(&theirs, at, sizeof(at));
		rdzv_because(ranks->rendezvous, "%s cannot reach rank %d on %s at %s: %s; %s", name, (int)all[r].rank,
		    hosts->rank[all[r].rank].name, at, strerror(-all[r].err), all[r].why);
	}
	return err;
}

size_t shunt_hosts_said_bytes(void)
{
	return sizeof(struct said);
}

size_t shunt_hosts_reached_bytes(void)
{
	return sizeof(struct reached);
}

int64_t shunt_hosts_reached_ms(int64_t timeout_ms)
{
	return timeout_ms > 0 ? timeout_ms + shunt_config()->setup_timeout : timeout_ms;
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
		err = reach(ranks, hosts, check(hosts, ranks->rendezvous));
		ranks->rendezvous->err = err;
	}
	if (err)
		shunt_hosts_destroy(hosts);
	else
		*hosts_p = hosts;
	return err;
}
