/* SPDX-License-Identifier: MIT */
#include "transport/meet.h"
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "core/config.h"
#include "core/hash.h"
#include "core/io.h"
#include "core/log.h"
#include "transport/meet_wire.h"

#define FIRST_LOG_MS 30000
#define MAX_PENDING 64
#define CROWD_MS 1000 /* to say who one is when all places are taken */
#define AWAIT_MIN_MS 1
#define AWAIT_MAX_MS 32
#define WATCH_LATER (-2) /* that member is there, but its backlog is full at the moment */

struct shunt_meet {
	struct shunt_id id;
	int slot;
	int listen_fd;
	int rank, nranks;
	bool hub, joined, miscounted, leads;
	int err; /* sticky */
	uint32_t round;
	int hub_fd; /* spoke: to the hub */
	int *fd_of; /* hub: connection of each rank, -1 for our own */
};

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Also ends the connection where a forked child still holds a copy of the descriptor. */
static void close_socket(int *fd)
{
	if (*fd >= 0)
		shutdown(*fd, SHUT_RDWR);
	close_fd(fd);
}

/* The name must not give the id away: it can be read in /proc/net/unix. */
static socklen_t address_of(const struct shunt_id *id, int slot, struct sockaddr_un *addr)
{
	uint8_t mac[SHUNT_MAC_BYTES];
	int32_t number = slot;
	int n;

	shunt_mac(mac, id, sizeof(*id), "shunt meet name", &number, sizeof(number), NULL, 0);
	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(addr->sun_path + 1, sizeof(addr->sun_path) - 1, "shunt-");
	for (int i = 0; i < 16; i++)
		n += snprintf(addr->sun_path + 1 + n, sizeof(addr->sun_path) - 1 - (size_t)n, "%02x", mac[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int shunt_meet_bind(const struct shunt_id *id, int slot, struct shunt_meet **meet_p)
{
	struct sockaddr_un addr;
	socklen_t len = address_of(id, slot, &addr);
	struct shunt_meet *meet;
	int err;

	if (slot < 0)
		return -EINVAL;
	meet = calloc(1, sizeof(*meet));
	if (!meet)
		return -ENOMEM;
	*meet = (struct shunt_meet){.id = *id, .slot = slot, .hub_fd = -1};
	meet->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (meet->listen_fd < 0 || bind(meet->listen_fd, (struct sockaddr *)&addr, len) || listen(meet->listen_fd, SOMAXCONN)) {
		err = -errno;
		shunt_warn("cannot listen on a Unix socket for slot %d: %m", slot);
		shunt_meet_destroy(meet);
		return err;
	}
	*meet_p = meet;
	return 0;
}

static void drop_connections(struct shunt_meet *meet)
{
	close_socket(&meet->hub_fd);
	for (int r = 0; meet->fd_of && r < meet->nranks; r++)
		close_socket(&meet->fd_of[r]);
}

void shunt_meet_destroy(struct shunt_meet *meet)
{
	if (!meet)
		return;
	drop_connections(meet);
	close_socket(&meet->listen_fd);
	free(meet->fd_of);
	free(meet);
}

/* Peers that wait in our backlog learn that we do not come. */
static void refuse_waiting(struct shunt_meet *meet)
{
	int fd;

	while ((fd = accept4(meet->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close_socket(&fd);
}

static bool same_user(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && cred.uid == geteuid();
}

/*
 * Connects to a slot. 0 and *fd_p = the connection, or -1 when its backlog is full (it is there, though); -ECONNREFUSED: not there.
 */
static int probe(const struct shunt_meet *meet, int slot, int *fd_p)
{
	struct sockaddr_un addr;
	socklen_t len = address_of(&meet->id, slot, &addr);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;

	if (fd < 0)
		return -errno;
	do
		err = connect(fd, (struct sockaddr *)&addr, len) ? -errno : 0;
	while (err == -EINTR);
	/* A stranger who took the name is as good as nobody. */
	if (!err && !same_user(fd))
		err = -ECONNREFUSED;
	if (err) {
		close(fd);
		fd = -1;
	}
	if (err == -EAGAIN)
		err = 0;
	if (!err)
		*fd_p = fd;
	return err;
}

/* What the peers are told of our error: to them, our being cancelled is a member that gave up. */
static int tell(int err)
{
	return err == -ECANCELED ? -EOWNERDEAD : err;
}

struct waiting {
	int64_t next_log, step;
};

/* Says at 30 s, and then ever more rarely, who is still awaited. what: completes "waiting for". */
static void log_waiting(struct waiting *w, const char *what)
{
	int64_t now = shunt_now_ms();

	if (now < w->next_log)
		return;
	shunt_warn("communicator set-up has been waiting %lld s for %s", (long long)(w->step / 1000), what);
	w->next_log = now + w->step;
	w->step *= 2;
}

static struct waiting waiting_start(void)
{
	return (struct waiting){shunt_now_ms() + FIRST_LOG_MS, FIRST_LOG_MS};
}

/* For the members to come. The hub speaks first: it knows who is missing. */
static int64_t join_deadline(bool hub)
{
	const struct shunt_config *config = shunt_config();

	if (config->timeout <= 0 || config->setup_timeout <= 0)
		return hub ? shunt_deadline_ms(config->timeout) : SHUNT_NEVER;
	return shunt_deadline_ms(config->timeout + (hub ? 0 : config->setup_timeout));
}

/* ------------------------------------------------------------------------------------------------------ spoke */

static int wait_for_hub(
    int fd, void *buf, size_t bytes, const char *what, struct waiting *w, int64_t deadline, const atomic_int *cancel)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	int err;

	while ((err = shunt_io_poll(&pfd, 1, w->next_log < deadline ? w->next_log : deadline, cancel)) == -ETIMEDOUT) {
		if (shunt_now_ms() >= deadline) {
			shunt_error("communicator set-up gave up waiting for %s: stopped or hanging? SHUNT_TIMEOUT limits this wait", what);
			return err;
		}
		log_waiting(w, what);
	}
	if (err < 0)
		return err;
	return shunt_io_read(fd, buf, bytes, shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
}

static int spoke_join(struct shunt_meet *meet, int nslots, int hub_slot, const atomic_int *cancel)
{
	int64_t deadline = join_deadline(false);
	struct waiting w = waiting_start();
	struct meet_challenge challenge;
	struct meet_welcome welcome;
	struct meet_hello hello = {.magic = MEET_MAGIC,
	    .version = MEET_VERSION,
	    .slot = meet->slot,
	    .nslots = nslots,
	    .rank = meet->rank,
	    .nranks = meet->nranks};
	uint8_t mac[SHUNT_MAC_BYTES];
	char what[64];
	int err;

	snprintf(what, sizeof(what), "the member in slot %d to begin", hub_slot);
	err = wait_for_hub(meet->hub_fd, &challenge, sizeof(challenge), what, &w, deadline, cancel);
	if (err)
		return err;
	if (challenge.magic != MEET_MAGIC || challenge.version != MEET_VERSION)
		return -EPROTO;
	err = shunt_random(hello.nonce, sizeof(hello.nonce));
	if (err)
		return err;
	shunt_mac(hello.mac, &meet->id, sizeof(meet->id), "shunt meet hello", challenge.nonce, sizeof(challenge.nonce), &hello,
	    offsetof(struct meet_hello, mac));
	err = shunt_io_write(meet->hub_fd, &hello, sizeof(hello), shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
	if (!err) /* the hub's log names the ranks */
		err = wait_for_hub(meet->hub_fd, &welcome, sizeof(welcome), "other ranks", &w, deadline, cancel);
	if (err)
		return err;
	shunt_mac(mac, &meet->id, sizeof(meet->id), "shunt meet welcome", hello.nonce, sizeof(hello.nonce), &welcome,
	    offsetof(struct meet_welcome, mac));
	if (welcome.magic != MEET_MAGIC || welcome.version != MEET_VERSION || !shunt_mac_equal(mac, welcome.mac) ||
	    welcome.status > 0)
		return -EPROTO;
	return welcome.status;
}

/* -------------------------------------------------------------------------------------------------------- hub */

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
	int *watch; /* per slot: a connection in that member's backlog, which breaks when it dies; -1 none, or WATCH_LATER */
	bool *here; /* per slot: its hello came */
	uint8_t (*nonce)[MEET_NONCE]; /* per rank */
	struct pollfd *pfds;
	int arrived; /* without ourselves */
};

static void hub_finish(struct hub *hub)
{
	for (int i = 0; i < hub->npending; i++)
		close_socket(&hub->pending[i].fd);
	for (int s = 0; hub->watch && s < hub->nslots; s++)
		close_fd(&hub->watch[s]);
	free(hub->watch);
	free(hub->here);
	free(hub->nonce);
	free(hub->pfds);
}

static void pending_drop(struct hub *hub, int i)
{
	close_socket(&hub->pending[i].fd);
	hub->pending[i] = hub->pending[--hub->npending];
}

static int hub_accept(struct hub *hub)
{
	struct meet_challenge challenge = {.magic = MEET_MAGIC, .version = MEET_VERSION};

	while (hub->npending < MAX_PENDING) {
		int fd = accept4(hub->meet->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct pending *p = &hub->pending[hub->npending];

		if (fd < 0)
			return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : -errno;
		if (!same_user(fd) || shunt_random(challenge.nonce, sizeof(challenge.nonce)) ||
		    send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(challenge)) {
			close_socket(&fd);
			continue;
		}
		*p = (struct pending){.fd = fd, .since = shunt_now_ms()};
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

	shunt_mac(
	    mac, &meet->id, sizeof(meet->id), "shunt meet hello", p->nonce, sizeof(p->nonce), h, offsetof(struct meet_hello, mac));
	if (h->magic != MEET_MAGIC || !shunt_mac_equal(mac, h->mac))
		return -EAGAIN;
	if (h->version != MEET_VERSION) {
		shunt_error("a member of the communicator speaks meet protocol %u, we speak %u", h->version, MEET_VERSION);
		return -EPROTO;
	}
	if (h->nranks != meet->nranks || h->nslots != hub->nslots) {
		shunt_error("rank %d says that the communicator has %d ranks in %d slots, rank %d says %d in %d", h->rank,
		    h->nranks, h->nslots, meet->rank, meet->nranks, hub->nslots);
		return -EINVAL;
	}
	if (h->rank < 0 || h->rank >= meet->nranks || h->slot < 0 || h->slot >= hub->nslots) {
		shunt_error("rank %d in slot %d is out of range (%d ranks, %d slots)", h->rank, h->slot, meet->nranks, hub->nslots);
		return -EINVAL;
	}
	if (h->rank == meet->rank || meet->fd_of[h->rank] >= 0 || h->slot == meet->slot || hub->here[h->slot]) {
		shunt_error("two members of the communicator say that they are rank %d or in slot %d", h->rank, h->slot);
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
static int hub_look_at_clock(const struct hub *hub, struct waiting *w, int64_t deadline)
{
	char what[256];

	if (shunt_now_ms() < w->next_log && shunt_now_ms() < deadline)
		return 0;
	hub_name_missing(hub, what, sizeof(what));
	if (shunt_now_ms() >= deadline) {
		shunt_error("communicator set-up gave up waiting for %s after %lld s: stopped or hanging? SHUNT_TIMEOUT limits this wait",
		    what, (long long)(shunt_config()->timeout / 1000));
		return -ETIMEDOUT;
	}
	log_waiting(w, what);
	return 0;
}

/* Keeps a connection in the backlog of each member that has not come; notices those whose socket has gone. */
static int hub_watch(struct hub *hub)
{
	for (int s = 0; s < hub->nslots; s++) {
		int err;

		if (hub->watch[s] != WATCH_LATER || hub->here[s])
			continue;
		hub->watch[s] = -1;
		err = probe(hub->meet, s, &hub->watch[s]);
		if (err == -ECONNREFUSED) {
			shunt_error("the member of the communicator in slot %d died before it came to the set-up", s);
			return -EOWNERDEAD;
		}
		if (err)
			return err;
		if (hub->watch[s] < 0)
			hub->watch[s] = WATCH_LATER;
	}
	return 0;
}

static int hub_step(struct hub *hub, int64_t deadline, const atomic_int *cancel)
{
	struct shunt_meet *meet = hub->meet;
	int64_t now, patience = shunt_config()->setup_timeout > 0 ? shunt_config()->setup_timeout : SHUNT_NEVER;
	int n = 0, npending = hub->npending, err = hub_watch(hub);
	struct pollfd *pfds = hub->pfds;
	int64_t tick = 1000;

	if (err)
		return err;
	/* Full: the rest stays in the backlog until one of these has proved itself or has been dropped. */
	pfds[n++] = (struct pollfd){.fd = npending < MAX_PENDING ? meet->listen_fd : -1, .events = POLLIN};
	for (int i = 0; i < npending; i++)
		pfds[n++] = (struct pollfd){.fd = hub->pending[i].fd, .events = POLLIN};
	for (int r = 0; r < meet->nranks; r++)
		pfds[n++] = (struct pollfd){.fd = meet->fd_of[r], .events = POLLRDHUP};
	for (int s = 0; s < hub->nslots; s++) {
		if (hub->watch[s] >= 0)
			pfds[n++] = (struct pollfd){.fd = hub->watch[s], .events = POLLRDHUP};
		else if (hub->watch[s] == WATCH_LATER)
			tick = 50;
	}
	now = shunt_now_ms() + tick;
	err = shunt_io_poll(pfds, (nfds_t)n, now < deadline ? now : deadline, cancel);
	if (err < 0 && err != -ETIMEDOUT)
		return err;
	for (int r = 0; r < meet->nranks; r++) {
		if (pfds[1 + npending + r].revents) {
			shunt_error("rank %d died during the communicator's set-up", r);
			return -EOWNERDEAD;
		}
	}
	n = 1 + npending + meet->nranks;
	for (int s = 0; s < hub->nslots; s++) {
		/* A member that fails after it came is seen on its own connection. */
		if (hub->watch[s] >= 0 && pfds[n++].revents && !hub->here[s]) {
			shunt_error("the member of the communicator in slot %d died before it came to the set-up", s);
			return -EOWNERDEAD;
		}
	}
	now = shunt_now_ms();
	if (npending == MAX_PENDING && patience > CROWD_MS)
		patience = CROWD_MS;
	for (int i = npending - 1; i >= 0; i--) { /* backwards: dropping moves the last one down */
		if (pfds[1 + i].revents) {
			err = hub_read_hello(hub, i);
			if (err)
				return err;
		} else if (now - hub->pending[i].since > patience) {
			pending_drop(hub, i);
		}
	}
	return pfds[0].revents ? hub_accept(hub) : 0;
}

static int hub_join(struct shunt_meet *meet, int nslots, int *watch, const atomic_int *cancel)
{
	struct hub hub = {.meet = meet, .nslots = nslots, .watch = watch};
	int64_t deadline = join_deadline(true);
	struct waiting w = waiting_start();
	int err = 0;

	hub.here = calloc((size_t)nslots, sizeof(*hub.here));
	hub.nonce = calloc((size_t)meet->nranks, sizeof(*hub.nonce));
	hub.pfds = calloc((size_t)(1 + MAX_PENDING + 2 * meet->nranks), sizeof(*hub.pfds));
	if (!hub.here || !hub.nonce || !hub.pfds)
		err = -ENOMEM;
	while (!err && hub.arrived < meet->nranks - 1) {
		err = hub_step(&hub, w.next_log < deadline ? w.next_log : deadline, cancel);
		if (!err && hub.arrived < meet->nranks - 1)
			err = hub_look_at_clock(&hub, &w, deadline);
	}
	for (int r = 0; hub.nonce && r < meet->nranks; r++) {
		struct meet_welcome welcome = {.magic = MEET_MAGIC, .version = MEET_VERSION, .status = tell(err)};

		if (meet->fd_of[r] < 0)
			continue;
		shunt_mac(welcome.mac, &meet->id, sizeof(meet->id), "shunt meet welcome", hub.nonce[r], MEET_NONCE, &welcome,
		    offsetof(struct meet_welcome, mac));
		/* It fits the empty socket buffer; a peer that died meanwhile shows in the first round. */
		(void)!send(meet->fd_of[r], &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	hub_finish(&hub);
	return err;
}

/* ------------------------------------------------------------------------------------------------------- join */

/*
 * The connection to the hub is made and held before the rest is looked at. So whoever counts the members and finds one missing can
 * tell all who counted before by closing what waits in its backlog; nobody waits for a hub that has given up.
 */
static int find_members(struct shunt_meet *meet, int nslots, int *watch, const atomic_int *cancel, int *hub_p, int *missing_p)
{
	int64_t deadline = join_deadline(true);
	int count = 0, hub = -1, missing = -1, err;

	for (int s = 0; s < nslots; s++) {
		int fd = -1;

		watch[s] = -1;
		if (s == meet->slot) {
			err = 0;
		} else {
			err = probe(meet, s, &fd);
			while (!err && fd < 0 && hub < 0) { /* the hub's backlog is full */
				err = shunt_io_poll(NULL, 0, shunt_now_ms() + 20, cancel);
				if (err == -ETIMEDOUT && shunt_now_ms() < deadline)
					err = probe(meet, s, &fd);
			}
		}
		if (err == -ECONNREFUSED) {
			missing = missing < 0 ? s : missing;
			continue;
		}
		if (err)
			return err;
		count++;
		if (hub < 0) {
			hub = s;
			meet->hub_fd = fd;
		} else if (hub == meet->slot && s != meet->slot && count <= meet->nranks) {
			watch[s] = fd >= 0 ? fd : WATCH_LATER;
		} else {
			close_fd(&fd);
		}
	}
	meet->miscounted = count != meet->nranks;
	meet->leads = hub == meet->slot && count > 1;
	if (count > meet->nranks) {
		shunt_error("the communicator has %d ranks, but %d members are here", meet->nranks, count);
		return -EINVAL;
	}
	if (count < meet->nranks) {
		*missing_p = missing;
		return -ENOENT;
	}
	*hub_p = hub;
	return 0;
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
	err = find_members(meet, nslots, watch, cancel, &hub, missing_p);
	meet->hub = !err && hub == meet->slot;
	if (meet->hub)
		return hub_join(meet, nslots, watch, cancel); /* takes watch */
	for (int s = 0; s < nslots; s++)
		close_fd(&watch[s]);
	free(watch);
	return err ? err : spoke_join(meet, nslots, hub, cancel);
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
	if (nranks < 1 || nranks > SHUNT_MEET_MAX_RANKS || rank < 0 || rank >= nranks || nslots < nranks || meet->slot >= nslots)
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
	/* After a wrong count the socket stays: peers that look later must count the same. Else its end says that we gave up. */
	if (!meet->miscounted)
		close_socket(&meet->listen_fd);
	return err;
}

/* One connection to each is enough: it is dropped at once, and takes no place once the member has looked at it. */
int shunt_meet_await(struct shunt_meet *meet, int nslots, int nranks, int64_t timeout_ms, const atomic_int *cancel)
{
	int64_t end = timeout_ms > 0 ? shunt_deadline_ms(timeout_ms) : SHUNT_NEVER, pause = AWAIT_MIN_MS;
	bool *here = nslots > 0 ? calloc((size_t)nslots, sizeof(*here)) : NULL;
	struct waiting w = waiting_start();
	char what[64];
	int count = 1, err = here ? 0 : -ENOMEM;

	if (!err && meet->slot >= nslots)
		err = -EINVAL;
	while (!err) {
		for (int s = 0; s < nslots && !err; s++) {
			int fd = -1;

			if (s == meet->slot || here[s])
				continue;
			err = probe(meet, s, &fd);
			close_fd(&fd);
			here[s] = !err;
			count += !err;
			err = err == -ECONNREFUSED ? 0 : err;
		}
		if (err || count >= nranks)
			break;
		if (shunt_now_ms() >= end) {
			err = -ETIMEDOUT;
			break;
		}
		snprintf(what, sizeof(what), "%d of %d ranks", nranks - count, nranks);
		log_waiting(&w, what);
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + pause, cancel);
		err = err == -ETIMEDOUT ? 0 : err;
		pause = pause < AWAIT_MAX_MS ? 2 * pause : pause;
	}
	free(here);
	return err;
}

bool shunt_meet_leads(const struct shunt_meet *meet)
{
	return meet->leads;
}

/* ----------------------------------------------------------------------------------------------------- gather */

#define MAX_FDS SHUNT_MEET_MAX_RANKS

/* Incoming bytes of one peer, with the descriptors that came along. */
struct inbox {
	int fd;
	char *buf;
	size_t got, want;
	int fds[MAX_FDS];
	int nfds, max_fds;
};

static void inbox_close(struct inbox *in)
{
	while (in->nfds)
		close_fd(&in->fds[--in->nfds]);
}

/* Takes what is there: 0 (perhaps nothing or not all), -EOWNERDEAD, -EPROTO (descriptors that nobody announced). */
static int inbox_read(struct inbox *in)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	} control;
	struct iovec iov = {in->buf + in->got, in->want - in->got};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(in->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int err = 0;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : shunt_io_error(errno);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (in->nfds < in->max_fds) {
				in->fds[in->nfds++] = fd;
			} else {
				close(fd);
				err = -EPROTO;
			}
		}
	}
	if (!err && (msg.msg_flags & MSG_CTRUNC)) {
		shunt_error("the kernel dropped descriptors that a rank passed: the limit of open files (ulimit -n) is reached, or a "
		            "security policy forbids it");
		err = -EMFILE;
	}
	if (err)
		return err;
	if (n == 0)
		return -EOWNERDEAD;
	in->got += (size_t)n;
	return 0;
}

/* Fills the inbox up to want. */
static int inbox_fill(struct inbox *in, char *buf, size_t bytes, int64_t deadline, const atomic_int *cancel)
{
	in->buf = buf;
	in->got = 0;
	in->want = bytes;
	while (in->got < in->want) {
		struct pollfd pfd = {.fd = in->fd, .events = POLLIN};
		int err = shunt_io_poll(&pfd, 1, deadline, cancel);

		if (err > 0)
			err = inbox_read(in);
		if (err < 0)
			return err;
	}
	return 0;
}

/* Sends head with the descriptors attached to its first byte, then body. */
static int send_message(int fd, const void *head, size_t head_bytes, const int *fds, int nfds, const void *body, size_t body_bytes,
    int64_t deadline, const atomic_int *cancel)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	} control;
	struct iovec iov = {(void *)(uintptr_t)head, head_bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;
	int err;

	if (nfds) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
		CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), fds, sizeof(int) * (size_t)nfds);
	}
	for (;;) {
		struct pollfd pfd = {.fd = fd, .events = POLLOUT};

		err = shunt_io_poll(&pfd, 1, deadline, cancel);
		if (err < 0)
			return err;
		n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0)
			break;
		if (errno != EAGAIN && errno != EINTR)
			return shunt_io_error(errno);
	}
	err = shunt_io_write(fd, (const char *)head + n, head_bytes - (size_t)n, deadline, cancel);
	return err ? err : shunt_io_write(fd, body, body_bytes, deadline, cancel);
}

static int spoke_gather(struct shunt_meet *meet, const void *mine, size_t bytes, void *all, int fd, int *fds, int64_t deadline,
    const atomic_int *cancel)
{
	struct meet_part part = {
	    .magic = MEET_MAGIC, .bytes = bytes, .round = meet->round, .uses_fds = fds != NULL, .has_fd = fd >= 0};
	struct meet_result result;
	struct inbox in = {.fd = meet->hub_fd, .max_fds = fds ? meet->nranks - 1 : 0};
	uint8_t has[SHUNT_MEET_MAX_RANKS];
	int next = 0, count = 0, err;

	err = send_message(meet->hub_fd, &part, sizeof(part), &fd, fd >= 0, mine, bytes, deadline, cancel);
	if (err && err != -EOWNERDEAD)
		return err;
	/* A hub that has failed may still have left its reason. */
	err = inbox_fill(&in, (char *)&result, sizeof(result), deadline, cancel);
	if (err)
		goto out;
	err = -EPROTO;
	if (result.magic != MEET_MAGIC || result.round != meet->round || result.status > 0)
		goto out;
	err = result.status;
	if (err)
		goto out;
	err = -EPROTO;
	if (result.bytes != bytes)
		goto out;
	err = inbox_fill(&in, (char *)has, (size_t)meet->nranks, deadline, cancel);
	if (!err)
		err = inbox_fill(&in, all, bytes * (size_t)meet->nranks, deadline, cancel);
	if (err)
		goto out;
	for (int r = 0; r < meet->nranks; r++)
		count += has[r] && r != meet->rank;
	if (count != in.nfds) {
		err = -EPROTO;
		goto out;
	}
	for (int r = 0; fds && r < meet->nranks; r++)
		fds[r] = has[r] && r != meet->rank ? in.fds[next++] : -1;
	in.nfds = 0;
out:
	inbox_close(&in);
	return err;
}

/* The hub's view of one round: what has come of each rank. */
struct round {
	struct inbox *in;       /* per rank */
	struct meet_part *part; /* per rank */
	bool *body;             /* per rank: the header is complete */
	struct pollfd *pfds;
};

/* A rank's header is complete: check it and go on with the bytes. */
static int hub_check_part(struct shunt_meet *meet, struct round *round, int r, size_t bytes, char *all, bool uses_fds)
{
	const struct meet_part *part = &round->part[r];
	struct inbox *in = &round->in[r];

	if (part->magic != MEET_MAGIC || part->round != meet->round || part->has_fd != in->nfds)
		return -EPROTO;
	if (part->bytes != bytes || part->uses_fds != uses_fds) {
		shunt_error("rank %d contributes %llu bytes, rank %d contributes %zu", r, (unsigned long long)part->bytes,
		    meet->rank, bytes);
		return -EINVAL;
	}
	round->body[r] = true;
	in->max_fds = in->nfds; /* no more of them */
	in->buf = bytes ? all + (size_t)r * bytes : (char *)&round->part[r];
	in->got = 0;
	in->want = bytes;
	return 0;
}

static int hub_collect(struct shunt_meet *meet, struct round *round, size_t bytes, char *all, bool uses_fds, int64_t deadline,
    const atomic_int *cancel)
{
	int left = meet->nranks - 1, err;

	for (int r = 0; r < meet->nranks; r++) {
		round->in[r] = (struct inbox){.fd = meet->fd_of[r],
		    .buf = (char *)&round->part[r],
		    .want = sizeof(round->part[r]),
		    .max_fds = uses_fds ? 1 : 0};
		round->pfds[r] = (struct pollfd){.fd = meet->fd_of[r], .events = POLLIN};
	}
	while (left) {
		err = shunt_io_poll(round->pfds, (nfds_t)meet->nranks, deadline, cancel);
		if (err < 0)
			return err;
		for (int r = 0; r < meet->nranks; r++) {
			struct inbox *in = &round->in[r];

			if (!round->pfds[r].revents)
				continue;
			err = inbox_read(in);
			if (!err && in->got == in->want && !round->body[r])
				err = hub_check_part(meet, round, r, bytes, all, uses_fds);
			if (err == -EOWNERDEAD)
				shunt_error("rank %d died during the communicator's set-up", r);
			if (err)
				return err;
			if (round->body[r] && in->got == in->want) {
				if (round->pfds[r].events == POLLIN)
					left--;
				round->pfds[r].events = POLLRDHUP; /* done; from now on only its death matters */
			}
		}
	}
	return 0;
}

/* One rank's result: everybody's descriptors but its own, in rank order. */
static int hub_reply(struct shunt_meet *meet, struct round *round, int to, int status, size_t bytes, const char *all, int fd,
    bool uses_fds, int64_t deadline, const atomic_int *cancel)
{
	struct {
		struct meet_result result;
		uint8_t has[SHUNT_MEET_MAX_RANKS];
	} head = {.result = {.magic = MEET_MAGIC, .bytes = bytes, .round = meet->round, .status = status}};
	int send_fds[MAX_FDS], n = 0;

	if (status) {
		/* As much as fits: the round is lost, and so is a peer that does not listen. */
		(void)!send(meet->fd_of[to], &head.result, sizeof(head.result), MSG_NOSIGNAL | MSG_DONTWAIT);
		return 0;
	}
	for (int r = 0; uses_fds && r < meet->nranks; r++) {
		int give = r == meet->rank ? fd : round->in[r].nfds ? round->in[r].fds[0] : -1;

		head.has[r] = give >= 0;
		if (give >= 0 && r != to)
			send_fds[n++] = give;
	}
	return send_message(meet->fd_of[to], &head, sizeof(head.result) + (size_t)meet->nranks, send_fds, n, all,
	    bytes * (size_t)meet->nranks, deadline, cancel);
}

static int hub_gather(struct shunt_meet *meet, const void *mine, size_t bytes, void *all, int fd, int *fds, int64_t deadline,
    const atomic_int *cancel)
{
	size_t n = (size_t)meet->nranks;
	struct round round = {calloc(n, sizeof(*round.in)), calloc(n, sizeof(*round.part)), calloc(n, sizeof(*round.body)),
	    calloc(n, sizeof(*round.pfds))};
	int err = round.in && round.part && round.body && round.pfds ? 0 : -ENOMEM;

	if (!err) {
		if (bytes)
			memcpy((char *)all + (size_t)meet->rank * bytes, mine, bytes);
		err = hub_collect(meet, &round, bytes, all, fds != NULL, deadline, cancel);
	}
	for (int r = 0, status = tell(err); r < meet->nranks; r++) {
		int e = r == meet->rank ? 0 : hub_reply(meet, &round, r, status, bytes, all, fd, fds != NULL, deadline, cancel);

		err = err ? err : e;
	}
	for (int r = 0; round.in && r < meet->nranks; r++) {
		if (!err && fds)
			fds[r] = round.in[r].nfds ? round.in[r].fds[--round.in[r].nfds] : -1;
		inbox_close(&round.in[r]);
	}
	free(round.in);
	free(round.part);
	free(round.body);
	free(round.pfds);
	return err;
}

int shunt_meet_gather(
    struct shunt_meet *meet, const void *mine, size_t bytes, void *all, int fd, int *fds, int64_t timeout_ms,
    const atomic_int *cancel)
{
	int64_t deadline = shunt_deadline_ms(timeout_ms);
	int err;

	if (meet->err)
		return meet->err;
	if (!meet->joined)
		return -EINVAL;
	if ((fd >= 0 && !fds) || bytes > SHUNT_MEET_MAX_BYTES / (size_t)meet->nranks)
		err = -EINVAL;
	else if (meet->nranks == 1 || meet->hub)
		err = hub_gather(meet, mine, bytes, all, fd, fds, deadline, cancel);
	else
		err = spoke_gather(meet, mine, bytes, all, fd, fds, deadline, cancel);
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
