/* SPDX-License-Identifier: MIT */
/* A meet from its socket to its end: which call may come when, and what an error leaves behind. */
#include "transport/meet.h"
#include <errno.h>
#include <stdlib.h>
#include "core/io.h"
#include "transport/meet_priv.h"

int shunt_meet_bind(const struct shunt_id *id, int slot, struct shunt_meet **meet_p)
{
	struct shunt_meet *meet;
	int err;

	if (slot < 0)
		return -EINVAL;
	meet = calloc(1, sizeof(*meet));
	if (!meet)
		return -ENOMEM;
	*meet = (struct shunt_meet){ .id = *id, .slot = slot, .listen_fd = -1, .hub_fd = -1 };
	err = shunt_meet_listen(id, slot, &meet->listen_fd);
	if (err) {
		shunt_meet_destroy(meet);
		return err;
	}
	*meet_p = meet;
	return 0;
}

static void drop_connections(struct shunt_meet *meet)
{
	meet_close_socket(&meet->hub_fd);
	for (int r = 0; meet->fd_of && r < meet->nranks; r++)
		meet_close_socket(&meet->fd_of[r]);
}

void shunt_meet_destroy(struct shunt_meet *meet)
{
	if (!meet)
		return;
	drop_connections(meet);
	meet_close_socket(&meet->listen_fd);
	free(meet->fd_of);
	free(meet);
}

/* Peers that wait in our backlog learn that we do not come. */
static void refuse_waiting(struct shunt_meet *meet)
{
	int fd;

	while ((fd = accept4(meet->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		meet_close_socket(&fd);
}

static int join(struct shunt_meet *meet, int nslots, const atomic_int *cancel, int *missing_p)
{
	int *watch = malloc((size_t)nslots * sizeof(*watch));
	int hub = -1, err;

	meet->fd_of = malloc((size_t)meet->nranks * sizeof(*meet->fd_of));
	for (int r = 0; meet->fd_of && r < meet->nranks; r++)
		meet->fd_of[r] = -1;
	if (!watch || !meet->fd_of) {
		free(watch);
		return -ENOMEM;
	}
	for (int s = 0; s < nslots; s++)
		watch[s] = -1;
	err = shunt_meet_count(meet, nslots, watch, cancel, &hub, missing_p);
	meet->hub = !err && hub == meet->slot;
	if (meet->hub)
		err = shunt_meet_hub_join(meet, nslots, watch, cancel);
	for (int s = 0; s < nslots; s++)
		meet_close_fd(&watch[s]);
	free(watch);
	return err || meet->hub ? err : shunt_meet_spoke_join(meet, nslots, hub, cancel);
}

int shunt_meet_join(struct shunt_meet *meet, int nslots, int rank, int nranks, const atomic_int *cancel, int *missing_p)
{
	int missing = -1, err;

	if (missing_p)
		*missing_p = -1;
	if (meet->err)
		return meet->err;
	if (meet->joined)
		return -EINVAL;
	if (nranks < 1 || nranks > SHUNT_MEET_MAX_RANKS || rank < 0 || rank >= nranks || nslots < nranks ||
	    meet->slot >= nslots)
		err = -EINVAL;
	else {
		meet->rank = rank;
		meet->nranks = nranks;
		err = join(meet, nslots, cancel, &missing);
	}
	if (!err) {
		meet->joined = true;
		return 0;
	}
	meet->err = err;
	drop_connections(meet);
	refuse_waiting(meet);
	if (err == -ENOENT && missing_p)
		*missing_p = missing;
	/*
	 * After a wrong count the socket stays: peers that look later must count the same. Else its end says that we
	 * gave up.
	 */
	if (!meet->miscounted)
		meet_close_socket(&meet->listen_fd);
	return err;
}

bool shunt_meet_leads(const struct shunt_meet *meet)
{
	return meet->leads;
}

int shunt_meet_gather(struct shunt_meet *meet, const void *mine, size_t bytes, void *all, int fd, int *fds,
    int64_t timeout_ms, const atomic_int *cancel)
{
	struct meet_round round = { mine, bytes, all, fd, fds, shunt_deadline_ms(timeout_ms), cancel };
	int err;

	if (meet->err)
		return meet->err;
	if (!meet->joined)
		return -EINVAL;
	if ((fd >= 0 && !fds) || bytes > SHUNT_MEET_MAX_BYTES / (size_t)meet->nranks)
		err = -EINVAL;
	else
		err = meet->hub ? shunt_meet_hub_gather(meet, &round) : shunt_meet_spoke_gather(meet, &round);
	meet->round++;
	if (err) {
		meet->err = err;
		drop_connections(meet);
	}
	return err;
}

int shunt_meet_fd(const struct shunt_meet *meet)
{
	return meet->listen_fd;
}
