/* SPDX-License-Identifier: MIT */
/*
 * The second level of a rendezvous over several hosts: a star of their roots over TCP, with the root of the first host
 * in its middle. Every rank listens at an address that all know. So a root that has not come yet is found, and woken.
 */
#include "transport/rendezvous/uplink.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/inet/netif.h"
#include "base/log.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/wait.h"
#include "transport/rendezvous/wire/wire.h"

int shunt_rendezvous_set_hosts(struct shunt_rendezvous *rdzv, struct shunt_hosts *hosts, int rank)
{
	struct shunt_id key = shunt_id_derive(&rdzv->id, sizeof(rdzv->id), "uplink", 0, 0);
	struct shunt_rendezvous *uplink = rdzv_create(&shunt_socket_tcp, rdzv_key(&key, sizeof(key)));

	rdzv->hosts = hosts;
	if (!uplink)
		return -ENOMEM;
	uplink->level = RDZV_UPLINK;
	uplink->hosts = hosts;
	uplink->rank = uplink->member = hosts->host_of[rank];
	uplink->nranks = hosts->nhosts;
	uplink->is_root = !uplink->rank;
	uplink->lobby.listen_fd = hosts->listen_fd;
	hosts->listen_fd = -1;
	if (uplink->lobby.listen_fd >= 0) {
		rdzv_lobby_watch(&uplink->lobby);
		rdzv_lobby_include(&rdzv->lobby, &uplink->lobby);
	}
	rdzv->level = RDZV_HOST_RANKS;
	rdzv->uplink = uplink;
	return 0;
}

static int join_as_root(struct shunt_rendezvous *uplink, const atomic_int *cancel, char *text, size_t bytes)
{
	int watch[SHUNT_HOSTS_MAX_RANKS], leaders[SHUNT_HOSTS_MAX_RANKS], err;
	const struct shunt_members hosts = { uplink->nranks, leaders, " (each for its host)" };
	struct rdzv_root root = { .lobby = &uplink->lobby,
		.members = &hosts,
		.limit = "SHUNT_TIMEOUT",
		.nranks = uplink->nranks,
		.nmembers = uplink->nranks,
		.watch = watch,
		.rdzv = uplink,
		.timeout_ms = shunt_config()->timeout,
		.cancel = cancel };

	watch[0] = -1;
	for (int h = 1; h < uplink->nranks; h++)
		watch[h] = RDZV_WATCH_LATER; /* wakes the others, too */
	for (int h = 0; h < uplink->nranks; h++)
		leaders[h] = rdzv_speaker(uplink, h);
	err = rdzv_root_run(&root, uplink);
	for (int h = 0; h < uplink->nranks; h++)
		if (watch[h] >= 0)
			shunt_close_fd(&watch[h]);
	snprintf(text, bytes, "%s", root.text);
	return err;
}

static int join_as_member(struct shunt_rendezvous *uplink, const atomic_int *cancel, char *text, size_t bytes)
{
	int64_t deadline = rdzv_member_deadline(shunt_config()->timeout);
	struct shunt_netaddr addr = rdzv_uplink_address(uplink, 0);
	char root[128], why[168];
	bool own;
	struct rdzv_ask ask = { .key = &uplink->lobby.key,
		.what = "communicator set-up over hosts",
		.member = uplink->rank,
		.nmembers = uplink->nranks,
		.rank = uplink->rank,
		.nranks = uplink->nranks,
		.challenge_deadline = deadline,
		.deadline = deadline,
		.root = root,
		.who = root,
		.rdzv = uplink,
		.cancel = cancel };
	int err;

	rdzv_show_rank(uplink, 0, root, sizeof(root));
	err = rdzv_call_root(uplink, &addr, &ask);
	own = err && shunt_netif_explain(&addr, why, sizeof(why));
	if ((err == -ECONNREFUSED && !own) || err == -ECONNRESET || err == -EOWNERDEAD) {
		rdzv_because(uplink, "%s has ended or given up", root);
		err = -EOWNERDEAD;
	}
	if (err)
		rdzv_because(uplink, "%s cannot be reached: %s; %s", root, strerror(-err), why);
	snprintf(text, bytes, "%s", uplink->why);
	return err;
}

int rdzv_uplink_join(struct shunt_rendezvous *uplink, const atomic_int *cancel, char *text, size_t bytes)
{
	int err =
	    uplink->is_root ? join_as_root(uplink, cancel, text, bytes) : join_as_member(uplink, cancel, text, bytes);

	uplink->joined = !err;
	uplink->root = err || uplink->is_root ? -1 : 0;
	/* A failure ends connections in our backlog, too. */
	rdzv_lobby_clear(&uplink->lobby, err != 0);
	return err;
}

/* ---- other numbers */

/* Rank i of one level becomes to[i]. */
static void permute(struct shunt_rendezvous *rdzv, const uint8_t *to)
{
	uint8_t session[SHUNT_HOSTS_MAX_RANKS][RDZV_SECRET] = { 0 };
	struct shunt_rendezvous_row rows[SHUNT_HOSTS_MAX_RANKS] = { 0 };
	int fds[SHUNT_HOSTS_MAX_RANKS] = { 0 };
	size_t n = (size_t)rdzv->nranks;

	for (size_t i = 0; i < n; i++) {
		rows[to[i]] = rdzv->rows[i];
		if (!rdzv->is_root)
			continue;
		fds[to[i]] = rdzv->peer_fds[i];
		if (rdzv->session)
			memcpy(session[to[i]], rdzv->session[i], RDZV_SECRET);
	}
	memcpy(rdzv->rows, rows, n * sizeof(*rows));
	if (rdzv->is_root)
		memcpy(rdzv->peer_fds, fds, n * sizeof(*fds));
	if (rdzv->is_root && rdzv->session)
		memcpy(rdzv->session, session, n * sizeof(*session));
	explicit_bzero(session, sizeof(session));
	rdzv->rank = to[rdzv->rank];
	rdzv->root = rdzv->root < 0 ? -1 : to[rdzv->root];
}

int shunt_rendezvous_renumber(struct shunt_rendezvous *rdzv, const int32_t *rank_of)
{
	struct shunt_hosts *hosts = rdzv->hosts, before = *hosts;
	uint8_t local[SHUNT_HOSTS_MAX_RANKS] = { 0 }, host[SHUNT_HOSTS_MAX_RANKS] = { 0 };
	int order[SHUNT_HOSTS_MAX_RANKS];

	memset(order, -1, sizeof(order));
	for (int i = 0; i < before.nranks; i++) {
		if (rank_of[i] < 0 || rank_of[i] >= before.nranks || order[rank_of[i]] >= 0) {
			shunt_error("two ranks of a communicator say that they are rank %d of %d", (int)rank_of[i],
			    before.nranks);
			return -EINVAL;
		}
		order[rank_of[i]] = i;
	}
	shunt_hosts_select(hosts, order, before.nranks);
	for (int i = 0; i < before.nranks; i++) {
		host[before.host_of[i]] = hosts->host_of[rank_of[i]];
		if (before.host_of[i] == rdzv->uplink->rank)
			local[before.local_of[i]] = hosts->local_of[rank_of[i]];
	}
	permute(rdzv, local);
	if (rdzv->uplink->joined)
		permute(rdzv->uplink, host);
	else /* the root of this host has */
		rdzv->uplink->rank = host[rdzv->uplink->rank];
	return 0;
}
