/* SPDX-License-Identifier: MIT */
/* Lifecycle of a rendezvous: the order of its calls, and its state after an error. */
#include "transport/rendezvous/rendezvous.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/rendezvous/priv.h"

#define BACKLOG_MS 20 /* while the root's backlog is full */

struct shunt_rendezvous *shunt_rendezvous_create(const struct shunt_socket_kind *kind, struct rdzv_key key)
{
	struct shunt_rendezvous *rdzv = calloc(1, sizeof(*rdzv));

	if (rdzv)
		*rdzv =
		    (struct shunt_rendezvous){ .lobby = { .kind = kind, .key = key, .listen_fd = -1, .event_fd = -1 },
			    .root_fd = -1,
			    .root = -1,
			    .culprit = -1 };
	return rdzv;
}

int shunt_rendezvous_bind(const struct shunt_id *id, int member, struct shunt_rendezvous **rdzv_p)
{
	struct shunt_rendezvous *rdzv;
	struct shunt_netaddr addr;
	int err;

	if (member < 0)
		return -EINVAL;
	rdzv = shunt_rendezvous_create(&shunt_socket_unix, shunt_rendezvous_key(id, sizeof(*id)));
	if (!rdzv)
		return -ENOMEM;
	rdzv->id = *id;
	rdzv->member = member;
	shunt_rendezvous_unix_address(id, member, &addr);
	err = shunt_socket_listen(&shunt_socket_unix, &addr, &rdzv->lobby.listen_fd);
	if (err) {
		errno = -err;
		shunt_warn("cannot listen on a Unix socket for member %d: %m", member);
		shunt_rendezvous_destroy(rdzv);
		return err;
	}
	shunt_rendezvous_lobby_watch(&rdzv->lobby);
	*rdzv_p = rdzv;
	return 0;
}

static void close_connections(struct shunt_rendezvous *rdzv)
{
	if (rdzv->uplink)
		close_connections(rdzv->uplink);
	shunt_close_socket(&rdzv->root_fd);
	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		shunt_close_socket(&rdzv->peer_fds[r]);
}

void shunt_rendezvous_destroy(struct shunt_rendezvous *rdzv)
{
	if (!rdzv)
		return;
	close_connections(rdzv);
	shunt_rendezvous_lobby_finish(&rdzv->lobby);
	explicit_bzero(&rdzv->id, sizeof(rdzv->id));
	if (!rdzv_is_uplink(rdzv))
		shunt_hosts_destroy(rdzv->hosts);
	shunt_rendezvous_destroy(rdzv->uplink);
	free(rdzv->peer_fds);
	free(rdzv->session);
	free(rdzv->rows);
	free(rdzv);
}

/* True: one that has proved itself is there. */
static bool answer_lobby(struct rdzv_lobby *lobby)
{
	bool proven = false;

	/* Out of descriptors: who waits is heard when our own first call joins. */
	(void)shunt_rendezvous_lobby_accept(lobby);
	for (int i = lobby->nconns - 1; i >= 0; i--) /* backwards: the last one takes the place of one that goes */
		shunt_rendezvous_lobby_read(lobby, i);
	shunt_rendezvous_lobby_expire(lobby, shunt_now_ms());
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
	struct rdzv_root root = { .lobby = &rdzv->lobby,
		.what = "communicator set-up",
		.limit = "SHUNT_TIMEOUT",
		.rank = rdzv->rank,
		.member = rdzv->member,
		.nranks = rdzv->nranks,
		.nmembers = nmembers,
		.watch = watch,
		.rdzv = rdzv,
		.uplink = rdzv->uplink,
		.timeout_ms = shunt_config()->timeout,
		.cancel = cancel };

	return shunt_rendezvous_root_run(&root, rdzv);
}

/* Again, if the root had to make room. A root that has gone is not there any more. */
static int join_as_member(struct shunt_rendezvous *rdzv, int nmembers, int root, const atomic_int *cancel)
{
	int64_t deadline = shunt_rendezvous_member_deadline(shunt_config()->timeout);
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
		.cancel = cancel };
	int err = 0;

	/* Its rank is known after the join. */
	snprintf(who, sizeof(who), "rank %d (of a split or shrink: of the parent)", root);
	snprintf(what, sizeof(what), "%s to begin", who);
	for (;;) {
		if (rdzv->root_fd >= 0)
			err = shunt_rendezvous_member_join(rdzv->root_fd, &ask, &rdzv->rows);
		if (err == -ECONNRESET) /* its socket is closed, with us in its backlog */
			err = -EOWNERDEAD;
		if (err != -EAGAIN && (err || rdzv->root_fd >= 0))
			break;
		shunt_close_socket(&rdzv->root_fd);
		err = shunt_rendezvous_probe(rdzv, root, &rdzv->root_fd);
		if (!err && rdzv->root_fd < 0) { /* its backlog is full */
			err = shunt_io_poll(NULL, 0, shunt_now_ms() + BACKLOG_MS, cancel);
			err = err == -ETIMEDOUT && shunt_now_ms() < deadline ? 0 : err;
		}
		if (err) {
			err = err == -ECONNREFUSED ? -EOWNERDEAD : err;
			break;
		}
	}
	/* Whatever follows our hello is logged where it is read. */
	if (err == -EOWNERDEAD && !ask.said_hello)
		shunt_error("%s failed: %s has ended or given up", ask.what, who);
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
	err = shunt_rendezvous_count(rdzv, nmembers, watch, cancel, &root, missing_p);
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
	shunt_rendezvous_lobby_clear(
	    &rdzv->lobby, err != 0); /* an end tells who waits in our backlog that we have given up */
	if (!err) {
		rdzv->joined = true;
		return 0;
	}
	rdzv->err = err;
	close_connections(rdzv);
	if (err == -ENOENT && missing_p)
		*missing_p = missing;
	/*
	 * After a wrong count the socket stays: peers that count later must get the same number. After other errors its
	 * end says that we gave up.
	 */
	if (!rdzv->count_mismatch)
		shunt_rendezvous_lobby_close(&rdzv->lobby);
	return err;
}

bool shunt_rendezvous_is_leader(const struct shunt_rendezvous *rdzv)
{
	return rdzv->is_leader;
}

/* A rank that is alone. */
static void gather_alone(const void *mine, size_t bytes, void *all, int *fds)
{
	if (bytes)
		memcpy(all, mine, bytes);
	if (fds)
		fds[0] = -1;
}

int shunt_rendezvous_allgather(
    const struct shunt_ranks *ranks, const void *mine, size_t bytes, void *all, int fd, int *fds)
{
	struct rdzv_round round = { mine, bytes, all, fd, fds, shunt_deadline_ms(ranks->timeout_ms), ranks->cancel };
	struct shunt_rendezvous *rdzv = ranks->rendezvous;
	int err;

	if (ranks->nranks == 1) {
		gather_alone(mine, bytes, all, fds);
		return 0;
	}
	if (rdzv->err)
		return rdzv->err;
	if (!rdzv->joined)
		return -EINVAL;
	if ((fd >= 0 && !fds) || bytes > SHUNT_RENDEZVOUS_MAX_BYTES / (size_t)rdzv_total(rdzv))
		err = -EINVAL;
	else
		err = rdzv->is_root ? shunt_rendezvous_root_allgather(rdzv, &round) :
		                      shunt_rendezvous_member_allgather(rdzv, &round);
	rdzv->round++;
	if (err) {
		rdzv->err = err;
		close_connections(rdzv);
	}
	return err;
}

int shunt_rendezvous_lacks_memory(const struct shunt_ranks *ranks)
{
	if (ranks->nranks > 1)
		shunt_rendezvous_allgather(ranks, NULL, 0, NULL, -1, NULL);
	return -ENOMEM;
}

const struct shunt_hosts *shunt_rendezvous_hosts(const struct shunt_rendezvous *rdzv)
{
	return rdzv->hosts;
}

struct shunt_hosts *shunt_rendezvous_hosts_of(struct shunt_rendezvous *rdzv)
{
	return rdzv->hosts;
}

bool shunt_rendezvous_passes_fds(const struct shunt_ranks *ranks)
{
	return ranks->nranks == 1 || ranks->rendezvous->lobby.kind == &shunt_socket_unix;
}

const struct shunt_rendezvous_row *shunt_rendezvous_rows(const struct shunt_rendezvous *rdzv)
{
	return rdzv->rows;
}

int shunt_rendezvous_fd(const struct shunt_rendezvous *rdzv)
{
	return rdzv->lobby.event_fd;
}

int shunt_rendezvous_socket(const struct shunt_rendezvous *rdzv)
{
	return rdzv->lobby.listen_fd;
}
