/* SPDX-License-Identifier: MIT */
/*
 * The hub's side of a join: it lets the members in, watches those that have not come, and tells all of them the
 * outcome.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/config.h"
#include "core/io.h"
#include "core/log.h"
#include "core/random.h"
#include "transport/meet_priv.h"
#include "transport/meet_wire.h"

#define MAX_PENDING 64
#define CROWD_MS 1000 /* to say who one is when all places are taken */
#define LOOK_MS 1000
#define LOOK_SOON_MS 50 /* while a member's backlog is full */

/* A connection that has not yet said who it is. */
struct pending {
	int fd;
	int64_t since;
	size_t got;
	uint8_t nonce[MEET_NONCE];
	struct meet_hello hello;
};

struct hub {
	struct shunt_meet *meet;
	int nslots;
	struct pending pending[MAX_PENDING];
	int npending;
	int *watch; /* per slot: a connection in that member's backlog, which breaks when it dies; -1 none, or
	               MEET_WATCH_LATER */
	bool *here; /* per slot: its hello came */
	uint8_t (*nonce)[MEET_NONCE]; /* per rank */
	struct pollfd *pfds;
	int arrived; /* without ourselves */
	int64_t look;
};

static void hub_finish(struct hub *hub)
{
	for (int i = 0; i < hub->npending; i++)
		meet_close_socket(&hub->pending[i].fd);
	free(hub->here);
	free(hub->nonce);
	free(hub->pfds);
}

static void pending_drop(struct hub *hub, int i)
{
	meet_close_socket(&hub->pending[i].fd);
	hub->pending[i] = hub->pending[--hub->npending];
}

static int hub_accept(struct hub *hub)
{
	struct meet_challenge challenge = { .magic = MEET_MAGIC, .version = MEET_VERSION };

	while (hub->npending < MAX_PENDING) {
		int fd = accept4(hub->meet->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct pending *p = &hub->pending[hub->npending];

		if (fd < 0)
			return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : -errno;
		if (!shunt_meet_same_user(hub->meet, fd, true) ||
		    shunt_random(challenge.nonce, sizeof(challenge.nonce)) ||
		    send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(challenge)) {
			meet_close_socket(&fd);
			continue;
		}
		*p = (struct pending){ .fd = fd, .since = shunt_now_ms() };
		memcpy(p->nonce, challenge.nonce, sizeof(p->nonce));
		hub->npending++;
	}
	return 0;
}

/* Checks a complete hello: 0 admitted, -EAGAIN a stranger, or the error that ends the join. */
static int hub_admit(struct hub *hub, struct pending *p)
{
	const struct meet_hello *h = &p->hello;
	struct shunt_meet *meet = hub->meet;
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_meet_prove_hello(mac, &meet->id, p->nonce, h);
	if (h->magic != MEET_MAGIC || !shunt_mac_equal(mac, h->mac))
		return -EAGAIN;
	if (h->version != MEET_VERSION) {
		shunt_error(
		    "a member of the communicator speaks meet protocol %u, we speak %u", h->version, MEET_VERSION);
		return -EPROTO;
	}
	if (h->nranks != meet->nranks || h->nslots != hub->nslots) {
		shunt_error("rank %d says that the communicator has %d ranks in %d slots, rank %d says %d in %d",
		    h->rank, h->nranks, h->nslots, meet->rank, meet->nranks, hub->nslots);
		return -EINVAL;
	}
	if (h->rank < 0 || h->rank >= meet->nranks || h->slot < 0 || h->slot >= hub->nslots) {
		shunt_error("rank %d in slot %d is out of range (%d ranks, %d slots)", h->rank, h->slot, meet->nranks,
		    hub->nslots);
		return -EINVAL;
	}
	if (h->rank == meet->rank || meet->fd_of[h->rank] >= 0 || h->slot == meet->slot || hub->here[h->slot]) {
		shunt_error(
		    "two members of the communicator say that they are rank %d or in slot %d", h->rank, h->slot);
		return -EINVAL;
	}
	meet->fd_of[h->rank] = p->fd;
	p->fd = -1;
	hub->here[h->slot] = true;
	memcpy(hub->nonce[h->rank], h->nonce, MEET_NONCE);
	hub->arrived++;
	return 0;
}

/* Reads what a pending connection has sent; drops it when it is broken, foreign or done. */
static int hub_read_hello(struct hub *hub, int i)
{
	struct pending *p = &hub->pending[i];
	ssize_t n = recv(p->fd, (char *)&p->hello + p->got, sizeof(p->hello) - p->got, MSG_DONTWAIT);
	int err = 0;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	p->got += n > 0 ? (size_t)n : 0;
	if (n > 0 && p->got < sizeof(p->hello))
		return 0;
	if (n > 0)
		err = hub_admit(hub, p);
	pending_drop(hub, i);
	return err == -EAGAIN ? 0 : err;
}

static void hub_name_missing(const struct hub *hub, char *what, size_t bytes)
{
	int n = snprintf(what, bytes, "rank");

	for (int r = 0; r < hub->meet->nranks && n < (int)bytes - 8; r++)
		if (r != hub->meet->rank && hub->meet->fd_of[r] < 0)
			n += snprintf(what + n, bytes - (size_t)n, " %d", r);
}

/* Between two steps: time to say who is missing, or to give up? */
static int hub_look_at_clock(const struct hub *hub, struct meet_patience *patience, int64_t deadline)
{
	char what[256];

	if (shunt_now_ms() < patience->next_log && shunt_now_ms() < deadline)
		return 0;
	hub_name_missing(hub, what, sizeof(what));
	if (shunt_now_ms() >= deadline) {
		shunt_error("communicator set-up gave up waiting for %s after %lld s: stopped or hanging? "
		            "SHUNT_TIMEOUT limits this wait",
		    what, (long long)(shunt_config()->timeout / 1000));
		return -ETIMEDOUT;
	}
	shunt_meet_still_waiting(patience, what);
	return 0;
}

/* Keeps a connection in the backlog of each member that has not come; notices those whose socket has gone. */
static int hub_watch(struct hub *hub)
{
	for (int s = 0; s < hub->nslots; s++) {
		int err;

		if (hub->watch[s] != MEET_WATCH_LATER || hub->here[s])
			continue;
		hub->watch[s] = -1;
		err = shunt_meet_probe(hub->meet, s, &hub->watch[s]);
		if (err == -ECONNREFUSED) {
			shunt_error("the member of the communicator in slot %d died before it came to the set-up", s);
			return -EOWNERDEAD;
		}
		if (err)
			return err;
		if (hub->watch[s] < 0)
			hub->watch[s] = MEET_WATCH_LATER;
	}
	return 0;
}

/*
 * Until something happens, or it is time for another look. hub->pfds: the listening socket, the pending, the ranks, the
 * watched.
 */
static int hub_poll(struct hub *hub, int64_t deadline, const atomic_int *cancel)
{
	struct shunt_meet *meet = hub->meet;
	struct pollfd *pfds = hub->pfds;
	int64_t again = shunt_now_ms() + LOOK_MS;
	int n = 0, err;

	/* Full: the rest stays in the backlog until one of these has proved itself or has been dropped. */
	pfds[n++] = (struct pollfd){ .fd = hub->npending < MAX_PENDING ? meet->listen_fd : -1, .events = POLLIN };
	for (int i = 0; i < hub->npending; i++)
		pfds[n++] = (struct pollfd){ .fd = hub->pending[i].fd, .events = POLLIN };
	for (int r = 0; r < meet->nranks; r++)
		pfds[n++] = (struct pollfd){ .fd = meet->fd_of[r], .events = POLLRDHUP };
	for (int s = 0; s < hub->nslots; s++) {
		if (hub->watch[s] >= 0)
			pfds[n++] = (struct pollfd){ .fd = hub->watch[s], .events = POLLRDHUP };
		else if (hub->watch[s] == MEET_WATCH_LATER)
			again = shunt_now_ms() + LOOK_SOON_MS;
	}
	err = shunt_meet_poll(pfds, (nfds_t)n, &hub->look, again < deadline ? again : deadline, cancel);
	return err < 0 && err != -ETIMEDOUT ? err : 0;
}

static int hub_notice_deaths(const struct hub *hub)
{
	const struct pollfd *ranks = hub->pfds + 1 + hub->npending, *watched = ranks + hub->meet->nranks;

	for (int r = 0; r < hub->meet->nranks; r++) {
		if (ranks[r].revents) {
			shunt_error("rank %d died during the communicator's set-up", r);
			return -EOWNERDEAD;
		}
	}
	for (int s = 0; s < hub->nslots; s++) {
		/* A member that fails after it came is seen on its own connection. */
		if (hub->watch[s] >= 0 && (watched++)->revents && !hub->here[s]) {
			shunt_error("the member of the communicator in slot %d died before it came to the set-up", s);
			return -EOWNERDEAD;
		}
	}
	return 0;
}

/* Hears those who have something to say, and drops those who take too long to. */
static int hub_hear(struct hub *hub)
{
	int64_t now = shunt_now_ms(),
	        limit = shunt_config()->setup_timeout > 0 ? shunt_config()->setup_timeout : SHUNT_NEVER;

	if (hub->npending == MAX_PENDING && limit > CROWD_MS)
		limit = CROWD_MS;
	for (int i = hub->npending - 1; i >= 0; i--) { /* backwards: dropping moves the last one down */
		if (hub->pfds[1 + i].revents) {
			int err = hub_read_hello(hub, i);

			if (err)
				return err;
		} else if (now - hub->pending[i].since > limit) {
			pending_drop(hub, i);
		}
	}
	return 0;
}

static int hub_step(struct hub *hub, int64_t deadline, const atomic_int *cancel)
{
	int err = hub_watch(hub);

	if (!err)
		err = hub_poll(hub, deadline, cancel);
	if (!err)
		err = hub_notice_deaths(hub);
	if (!err)
		err = hub_hear(hub);
	if (!err && hub->pfds[0].revents)
		err = hub_accept(hub);
	return err;
}

int shunt_meet_hub_join(struct shunt_meet *meet, int nslots, int *watch, const atomic_int *cancel)
{
	struct hub hub = { .meet = meet, .nslots = nslots, .watch = watch };
	int64_t deadline = shunt_meet_join_deadline(true);
	struct meet_patience patience = shunt_meet_patience();
	int err = 0;

	hub.here = calloc((size_t)nslots, sizeof(*hub.here));
	hub.nonce = calloc((size_t)meet->nranks, sizeof(*hub.nonce));
	hub.pfds = calloc((size_t)(1 + MAX_PENDING + 2 * meet->nranks), sizeof(*hub.pfds));
	if (!hub.here || !hub.nonce || !hub.pfds)
		err = -ENOMEM;
	while (!err && hub.arrived < meet->nranks - 1) {
		err = hub_step(&hub, patience.next_log < deadline ? patience.next_log : deadline, cancel);
		if (!err && hub.arrived < meet->nranks - 1)
			err = hub_look_at_clock(&hub, &patience, deadline);
	}
	for (int r = 0; hub.nonce && r < meet->nranks; r++) {
		struct meet_welcome welcome = {
			.magic = MEET_MAGIC, .version = MEET_VERSION, .status = meet_tell(err)
		};

		if (meet->fd_of[r] < 0)
			continue;
		shunt_meet_prove_welcome(welcome.mac, &meet->id, hub.nonce[r], &welcome);
		/* It fits the empty socket buffer; a peer that died meanwhile shows in the first round. */
		(void)!send(meet->fd_of[r], &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	hub_finish(&hub);
	return err;
}
