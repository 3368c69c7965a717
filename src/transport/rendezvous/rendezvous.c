/* SPDX-License-Identifier: MIT */
/* Lifecycle of a rendezvous: the order of its calls, and its state after an error. */
#include "transport/rendezvous/rendezvous.h"
#include <errno.h>
#include <stdlib.h>
#include "base/io.h"
#include "transport/rendezvous/priv.h"

int shunt_rendezvous_bind(const struct shunt_id *id, int member, struct shunt_rendezvous **rdzv_p)
{
	struct shunt_rendezvous *rdzv;
	int err;

	if (member < 0)
		return -EINVAL;
	rdzv = calloc(1, sizeof(*rdzv));
	if (!rdzv)
		return -ENOMEM;
	*rdzv = (struct shunt_rendezvous){ .id = *id, .member = member, .listen_fd = -1, .root_fd = -1 };
	err = shunt_rendezvous_listen(id, member, &rdzv->listen_fd);
	if (err) {
		shunt_rendezvous_destroy(rdzv);
		return err;
	}
	*rdzv_p = rdzv;
	return 0;
}

static void close_connections(struct shunt_rendezvous *rdzv)
{
	rdzv_close_socket(&rdzv->root_fd);
	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		rdzv_close_socket(&rdzv->peer_fds[r]);
}

void shunt_rendezvous_destroy(struct shunt_rendezvous *rdzv)
{
	if (!rdzv)
		return;
	close_connections(rdzv);
	rdzv_close_socket(&rdzv->listen_fd);
	free(rdzv->peer_fds);
	free(rdzv);
}

/* Tells peers that wait in our backlog that we have given up. */
static void refuse_backlog(struct shunt_rendezvous *rdzv)
{
	int fd;

	while ((fd = accept4(rdzv->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		rdzv_close_socket(&fd);
}

static int join_members(struct shunt_rendezvous *rdzv, int nmembers, const atomic_int *cancel, int *missing_p)
{
	int *watch = malloc((size_t)nmembers * sizeof(*watch));
	int root = -1, err;

	rdzv->peer_fds = malloc((size_t)rdzv->nranks * sizeof(*rdzv->peer_fds));
	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		rdzv->peer_fds[r] = -1;
	if (!watch || !rdzv->peer_fds) {
		free(watch);
		return -ENOMEM;
	}
	for (int s = 0; s < nmembers; s++)
		watch[s] = -1;
	err = shunt_rendezvous_count(rdzv, nmembers, watch, cancel, &root, missing_p);
	rdzv->is_root = !err && root == rdzv->member;
	if (rdzv->is_root)
		err = shunt_rendezvous_root_join(rdzv, nmembers, watch, cancel);
	for (int s = 0; s < nmembers; s++)
		rdzv_close_fd(&watch[s]);
	free(watch);
	return err || rdzv->is_root ? err : shunt_rendezvous_member_join(rdzv, nmembers, root, cancel);
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
		rdzv->rank = rank;
		rdzv->nranks = nranks;
		err = join_members(rdzv, nmembers, cancel, &missing);
	}
	if (!err) {
		rdzv->joined = true;
		return 0;
	}
	rdzv->err = err;
	close_connections(rdzv);
	refuse_backlog(rdzv);
	if (err == -ENOENT && missing_p)
		*missing_p = missing;
	/*
	 * After a wrong count the socket stays: peers that count later must get the same number. After other errors its
	 * end says that we gave up.
	 */
	if (!rdzv->count_mismatch)
		rdzv_close_socket(&rdzv->listen_fd);
	return err;
}

bool shunt_rendezvous_is_leader(const struct shunt_rendezvous *rdzv)
{
	return rdzv->is_leader;
}

int shunt_rendezvous_allgather(struct shunt_rendezvous *rdzv, const void *mine, size_t bytes, void *all, int fd,
    int *fds, int64_t timeout_ms, const atomic_int *cancel)
{
	struct rdzv_round round = { mine, bytes, all, fd, fds, shunt_deadline_ms(timeout_ms), cancel };
	int err;

	if (rdzv->err)
		return rdzv->err;
	if (!rdzv->joined)
		return -EINVAL;
	if ((fd >= 0 && !fds) || bytes > SHUNT_RENDEZVOUS_MAX_BYTES / (size_t)rdzv->nranks)
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

int shunt_rendezvous_fd(const struct shunt_rendezvous *rdzv)
{
	return rdzv->listen_fd;
}
