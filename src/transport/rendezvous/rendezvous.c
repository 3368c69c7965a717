/* SPDX-License-Identifier: MIT */
/* Lifecycle of a rendezvous: the order of its calls, and its state after an error. */
#include "transport/rendezvous/rendezvous.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/io.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/presence.h"
#include "transport/rendezvous/uplink.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wait.h"

#define BACKLOG_MS 20 /* while the root's backlog is full */

int shunt_rendezvous_bind(const struct shunt_id *id, int member, struct shunt_rendezvous **rdzv_p)
{
	struct shunt_rendezvous *rdzv;
	struct shunt_netaddr addr;
	int err;

	if (member < 0)
		return -EINVAL;
	rdzv = rdzv_create(&shunt_socket_unix, rdzv_key(id, sizeof(*id)));
	if (!rdzv)
		return -ENOMEM;
	rdzv->id = *id;
	rdzv->member = member;
	rdzv_unix_address(id, member, &addr);
	err = shunt_socket_listen(&shunt_socket_unix, &addr, &rdzv->lobby.listen_fd);
	if (err) {
		shunt_warn("cannot listen on a Unix socket for member %d: %s", member, shunt_error_text(err).s);
		shunt_rendezvous_destroy(rdzv);
		return err;
	}
	rdzv_lobby_watch(&rdzv->lobby);
	*rdzv_p = rdzv;
	return 0;
}

/* True: one that has proved itself is there. */
static bool answer_lobby(struct rdzv_lobby *lobby)
{
	bool proven = false;

	/* Without descriptors, connections stay in the backlog until our own first call joins. */
	(void)rdzv_lobby_accept(lobby);
	for (int i = lobby->nconns - 1; i >= 0; i--) /* backwards: the last one takes the place of one that goes */
		rdzv_lobby_read(lobby, i);
	rdzv_lobby_expire(lobby, shunt_now_ms());
	for (int i = 0; i < lobby->nconns; i++)
		proven = proven || lobby->conn[i].proven;
	return proven;
}

bool shunt_rendezvous_answer(struct shunt_rendezvous *rdzv)
{
	bool proven;

	if (rdzv->joined || rdzv->err)
		return false;
	proven = answer_lobby(&rdzv->lobby);
	return (rdzv->uplink && answer_lobby(&rdzv->uplink->lobby)) || proven;
}

static int join_as_root(struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel)
{
	int ranks[SHUNT_HOSTS_MAX_RANKS];
	const struct shunt_members here = { rdzv->nranks, ranks, "" };
	struct rdzv_root root = { .lobby = &rdzv->lobby,
		.limit = "SHUNT_TIMEOUT",
		.members = rdzv->hosts ? &here : NULL,
		.rank = rdzv->rank,
		.member = rdzv->member,
		.nranks = rdzv->nranks,
		.nmembers = nmembers,
		.watch = watch,
		.rdzv = rdzv,
		.timeout_ms = shunt_config()->timeout,
		.cancel = cancel };

	for (int r = 0; rdzv->hosts && r < rdzv->nranks; r++)
		ranks[r] = rdzv_global_rank(rdzv, r);
	rdzv_root_gather(&root);
	/* The ranks of this host are here, and wait: now for those of the other hosts. */
	if (!root.status && rdzv->uplink)
		root.status = rdzv_uplink_join(rdzv->uplink, cancel, root.text, sizeof(root.text));
	return rdzv_root_conclude(&root, rdzv);
}

/* Again, if the root had to make room. A root that has gone is not there any more. */
static int join_as_member(struct shunt_rendezvous *rdzv, int nmembers, int root, const atomic_int *cancel)
{
	int64_t deadline = rdzv_member_deadline(shunt_config()->timeout);
	char what[96], who[64];
	struct rdzv_ask ask = { .key = &rdzv->lobby.key,
		.what = "communicator set-up",
		.member = rdzv->member,
		.nmembers = nmembers,
		.rank = rdzv->rank,
		.nranks = rdzv->nranks,
		.challenge_deadline = deadline,
		.deadline = deadline,
		.root = what,
		.who = who,
		.rdzv = rdzv,
		.cancel = cancel };
	int err = 0;

	/* Its rank is known after the join. */
	snprintf(who, sizeof(who), "rank %d (of a split or shrink: of the parent)", root);
	snprintf(what, sizeof(what), "%s to begin", who);
	for (;;) {
		if (rdzv->root_fd >= 0)
			err = rdzv_member_join(rdzv->root_fd, &ask, &rdzv->rows);
		if (err == -ECONNRESET) /* its socket is closed, with us in its backlog */
			err = -EOWNERDEAD;
		if (err != -EAGAIN && (err || rdzv->root_fd >= 0))
			break;
		shunt_close_socket(&rdzv->root_fd);
		err = rdzv_probe(rdzv, root, &rdzv->root_fd);
		if (!err && rdzv->root_fd < 0) { /* its backlog is full */
			err = shunt_io_poll(NULL, 0, shunt_now_ms() + BACKLOG_MS, cancel);
			err = err == -ETIMEDOUT && shunt_now_ms() < deadline ? 0 : err;
		}
		if (err) {
			err = err == -ECONNREFUSED ? -EOWNERDEAD : err;
			break;
		}
	}
	if (err == -EOWNERDEAD)
		rdzv_because(rdzv, "%s has ended or given up", who);
	return err;
}

static int join_members(struct shunt_rendezvous *rdzv, int nmembers, const atomic_int *cancel, int *missing_p)
{
	int *watch = malloc((size_t)nmembers * sizeof(*watch));
	int root = -1, err;

	if (!watch)
		return -ENOMEM;
	for (int s = 0; s < nmembers; s++)
		watch[s] = -1;
	err = rdzv_count_members(rdzv, nmembers, watch, cancel, &root, missing_p);
	rdzv->is_root = !err && root == rdzv->member;
	if (rdzv->is_root)
		err = join_as_root(rdzv, nmembers, watch, cancel);
	for (int s = 0; s < nmembers; s++)
		shunt_close_fd(&watch[s]);
	free(watch);
	if (!err && !rdzv->is_root)
		err = join_as_member(rdzv, nmembers, root, cancel);
	for (int r = 0; !err && !rdzv->is_root && r < rdzv->nranks; r++)
		if (rdzv->rows[r].member == root)
			rdzv->root = r;
	return err;
}

/* Ends connections in the backlog, too. */
static void end_lobby(struct rdzv_lobby *lobby)
{
	rdzv_lobby_clear(lobby, true);
	rdzv_lobby_close(lobby);
}

void shunt_rendezvous_give_up(struct shunt_rendezvous *rdzv)
{
	end_lobby(&rdzv->lobby);
	if (rdzv->uplink)
		end_lobby(&rdzv->uplink->lobby);
}

int shunt_rendezvous_join(
    struct shunt_rendezvous *rdzv, int nmembers, int rank, int nranks, const atomic_int *cancel, int *missing_p)
{
	int missing = -1, err;

	if (missing_p)
		*missing_p = -1;
	if (rdzv->err)
		return rdzv->err;
	if (rdzv->joined)
		return -EINVAL;
	if (nranks < 1 || nranks > SHUNT_RENDEZVOUS_MAX_RANKS || rank < 0 || rank >= nranks || nmembers < nranks ||
	    rdzv->member >= nmembers)
		err = -EINVAL;
	else {
		rdzv->rank = rdzv->hosts ? rdzv->hosts->local_of[rank] : rank;
		rdzv->nranks = rdzv->hosts ? rdzv->hosts->nlocal[rdzv->hosts->host_of[rank]] : nranks;
		err = join_members(rdzv, nmembers, cancel, &missing);
	}
	/* The end of a connection tells ranks in our backlog that we have given up. */
	rdzv_lobby_clear(&rdzv->lobby, err != 0);
	if (!err) {
		rdzv->joined = true;
		return 0;
	}
	rdzv_set_error(rdzv, err);
	rdzv_close_connections(rdzv);
	if (rdzv->uplink)
		end_lobby(&rdzv->uplink->lobby);
	if (err == -ENOENT && missing_p)
		*missing_p = missing;
	/*
	 * After a wrong count the socket stays: peers that count later must get the same number. After other errors its
	 * end says that we gave up.
	 */
	if (!rdzv->count_mismatch)
		rdzv_lobby_close(&rdzv->lobby);
	return err;
}

void shunt_rendezvous_close(struct shunt_rendezvous *rdzv)
{
	rdzv_lobby_close(&rdzv->lobby);
	shunt_close_fd(&rdzv->lobby.event_fd);
	if (rdzv->uplink)
		shunt_close_fd(&rdzv->uplink->lobby.event_fd);
}
