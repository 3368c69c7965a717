/* SPDX-License-Identifier: MIT */
/*
 * The root's side of a join: it admits the members, watches those that have not come, and tells all of them the
 * outcome.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/rendezvous/priv.h"
#include "transport/rendezvous/wire.h"

#define MAX_PENDING_CONNS 64
#define HELLO_BUSY_MS 1000 /* time for a hello while all places are taken */
#define POLL_MS 1000
#define POLL_SOON_MS 50 /* while a member's backlog is full */

/* A connection without a complete hello. */
struct pending_conn {
	int fd;
	int64_t since;
	size_t got;
	uint8_t nonce[RDZV_NONCE];
	struct rdzv_hello hello;
};

struct root {
	struct shunt_rendezvous *rdzv;
	int nmembers;
	struct pending_conn pending_conn[MAX_PENDING_CONNS];
	int npending_conns;
	int *watch;    /* per member: a connection in that member's backlog, which breaks when it dies; -1 none, or
	                  RDZV_WATCH_LATER */
	bool *present; /* per member: its hello has come */
	uint8_t (*nonce)[RDZV_NONCE]; /* per rank */
	struct pollfd *pfds;
	int arrived; /* ranks, without ourselves */
	int64_t next_check;
};

static void root_finish(struct root *root)
{
	for (int i = 0; i < root->npending_conns; i++)
		rdzv_close_socket(&root->pending_conn[i].fd);
	free(root->present);
	free(root->nonce);
	free(root->pfds);
}

static void pending_conn_drop(struct root *root, int i)
{
	rdzv_close_socket(&root->pending_conn[i].fd);
	root->pending_conn[i] = root->pending_conn[--root->npending_conns];
}

static int root_accept(struct root *root)
{
	struct rdzv_challenge challenge = { .magic = RDZV_MAGIC, .version = RDZV_VERSION };

	while (root->npending_conns < MAX_PENDING_CONNS) {
		int fd = accept4(root->rdzv->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct pending_conn *p = &root->pending_conn[root->npending_conns];

		if (fd < 0)
			return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : -errno;
		if (!shunt_rendezvous_same_user(root->rdzv, fd, true) ||
		    shunt_random(challenge.nonce, sizeof(challenge.nonce)) ||
		    send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(challenge)) {
			rdzv_close_socket(&fd);
			continue;
		}
		*p = (struct pending_conn){ .fd = fd, .since = shunt_now_ms() };
		memcpy(p->nonce, challenge.nonce, sizeof(p->nonce));
		root->npending_conns++;
	}
	return 0;
}

/* Checks a complete hello: 0 admitted, -EAGAIN a stranger, or the error that ends the join. */
static int root_admit(struct root *root, struct pending_conn *p)
{
	const struct rdzv_hello *h = &p->hello;
	struct shunt_rendezvous *rdzv = root->rdzv;
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_rendezvous_mac_hello(mac, &rdzv->id, p->nonce, h);
	if (h->magic != RDZV_MAGIC || !shunt_mac_equal(mac, h->mac))
		return -EAGAIN;
	if (h->version != RDZV_VERSION) {
		shunt_error("a member of the communicator speaks rendezvous protocol %u, we speak %u", h->version,
		    RDZV_VERSION);
		return -EPROTO;
	}
	if (h->nranks != rdzv->nranks || h->nmembers != root->nmembers) {
		shunt_error(
		    "rank %d says that the communicator has %d ranks among %d members, rank %d says %d among %d",
		    h->rank, h->nranks, h->nmembers, rdzv->rank, rdzv->nranks, root->nmembers);
		return -EINVAL;
	}
	if (h->rank < 0 || h->rank >= rdzv->nranks || h->member < 0 || h->member >= root->nmembers) {
		shunt_error("rank %d, member %d is out of range (%d ranks, %d members)", h->rank, h->member,
		    rdzv->nranks, root->nmembers);
		return -EINVAL;
	}
	if (h->rank == rdzv->rank || rdzv->peer_fds[h->rank] >= 0 || h->member == rdzv->member ||
	    root->present[h->member]) {
		shunt_error(
		    "two members of the communicator say that they are rank %d or member %d", h->rank, h->member);
		return -EINVAL;
	}
	rdzv->peer_fds[h->rank] = p->fd;
	p->fd = -1;
	root->present[h->member] = true;
	memcpy(root->nonce[h->rank], h->nonce, RDZV_NONCE);
	root->arrived++;
	return 0;
}

/* Reads from a pending connection; drops it when it is broken, foreign or done. */
static int root_read_hello(struct root *root, int i)
{
	struct pending_conn *p = &root->pending_conn[i];
	ssize_t n = recv(p->fd, (char *)&p->hello + p->got, sizeof(p->hello) - p->got, MSG_DONTWAIT);
	int err = 0;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	p->got += n > 0 ? (size_t)n : 0;
	if (n > 0 && p->got < sizeof(p->hello))
		return 0;
	if (n > 0)
		err = root_admit(root, p);
	pending_conn_drop(root, i);
	return err == -EAGAIN ? 0 : err;
}

static void root_format_missing(const struct root *root, char *what, size_t bytes)
{
	int n = snprintf(what, bytes, "rank");

	for (int r = 0; r < root->rdzv->nranks && n < (int)bytes - 8; r++)
		if (r != root->rdzv->rank && root->rdzv->peer_fds[r] < 0)
			n += snprintf(what + n, bytes - (size_t)n, " %d", r);
}

/* Between two steps: logs the missing ranks when it is time, or gives up. */
static int root_check_deadline(const struct root *root, struct rdzv_wait_log *wait_log, int64_t deadline)
{
	char what[256];

	if (shunt_now_ms() < wait_log->next_log && shunt_now_ms() < deadline)
		return 0;
	root_format_missing(root, what, sizeof(what));
	if (shunt_now_ms() >= deadline) {
		shunt_error("communicator set-up gave up waiting for %s after %lld s: stopped or hanging? "
		            "SHUNT_TIMEOUT limits this wait",
		    what, (long long)(shunt_config()->timeout / 1000));
		return -ETIMEDOUT;
	}
	shunt_rendezvous_log_waiting(wait_log, what);
	return 0;
}

/* Connects to the members whose backlog was full before; notices those whose socket has gone. */
static int root_probe_watched(struct root *root)
{
	for (int s = 0; s < root->nmembers; s++) {
		int err;

		if (root->watch[s] != RDZV_WATCH_LATER || root->present[s])
			continue;
		root->watch[s] = -1;
		err = shunt_rendezvous_probe(root->rdzv, s, &root->watch[s]);
		if (err == -ECONNREFUSED) {
			shunt_error("member %d of the communicator died before it came to the set-up", s);
			return -EOWNERDEAD;
		}
		if (err)
			return err;
		if (root->watch[s] < 0)
			root->watch[s] = RDZV_WATCH_LATER;
	}
	return 0;
}

/*
 * Waits for an event or the next check. root->pfds: the listening socket, the pending connections, the ranks, the
 * watched members.
 */
static int root_poll(struct root *root, int64_t deadline, const atomic_int *cancel)
{
	struct shunt_rendezvous *rdzv = root->rdzv;
	struct pollfd *pfds = root->pfds;
	int64_t next_poll = shunt_now_ms() + POLL_MS;
	int n = 0, err;

	/*
	 * If all places are taken, further connections stay in the backlog until a pending one is admitted or dropped.
	 */
	pfds[n++] =
	    (struct pollfd){ .fd = root->npending_conns < MAX_PENDING_CONNS ? rdzv->listen_fd : -1, .events = POLLIN };
	for (int i = 0; i < root->npending_conns; i++)
		pfds[n++] = (struct pollfd){ .fd = root->pending_conn[i].fd, .events = POLLIN };
	for (int r = 0; r < rdzv->nranks; r++)
		pfds[n++] = (struct pollfd){ .fd = rdzv->peer_fds[r], .events = POLLRDHUP };
	for (int s = 0; s < root->nmembers; s++) {
		if (root->watch[s] >= 0)
			pfds[n++] = (struct pollfd){ .fd = root->watch[s], .events = POLLRDHUP };
		else if (root->watch[s] == RDZV_WATCH_LATER)
			next_poll = shunt_now_ms() + POLL_SOON_MS;
	}
	err = shunt_rendezvous_poll(
	    pfds, (nfds_t)n, &root->next_check, next_poll < deadline ? next_poll : deadline, cancel);
	return err < 0 && err != -ETIMEDOUT ? err : 0;
}

static int root_check_deaths(const struct root *root)
{
	const struct pollfd *ranks = root->pfds + 1 + root->npending_conns, *watched = ranks + root->rdzv->nranks;

	for (int r = 0; r < root->rdzv->nranks; r++) {
		if (ranks[r].revents) {
			shunt_error("rank %d died during the communicator's set-up", r);
			return -EOWNERDEAD;
		}
	}
	for (int s = 0; s < root->nmembers; s++) {
		/* The death of a member that has come shows on its own connection. */
		if (root->watch[s] >= 0 && (watched++)->revents && !root->present[s]) {
			shunt_error("member %d of the communicator died before it came to the set-up", s);
			return -EOWNERDEAD;
		}
	}
	return 0;
}

/* Reads from the pending connections that are readable, and drops those whose hello is overdue. */
static int root_read_pending(struct root *root)
{
	int64_t now = shunt_now_ms(),
	        limit = shunt_config()->setup_timeout > 0 ? shunt_config()->setup_timeout : SHUNT_NEVER;

	if (root->npending_conns == MAX_PENDING_CONNS && limit > HELLO_BUSY_MS)
		limit = HELLO_BUSY_MS;
	for (int i = root->npending_conns - 1; i >= 0; i--) { /* backwards: a drop puts the last entry in its place */
		if (root->pfds[1 + i].revents) {
			int err = root_read_hello(root, i);

			if (err)
				return err;
		} else if (now - root->pending_conn[i].since > limit) {
			pending_conn_drop(root, i);
		}
	}
	return 0;
}

static int root_step(struct root *root, int64_t deadline, const atomic_int *cancel)
{
	int err = root_probe_watched(root);

	if (!err)
		err = root_poll(root, deadline, cancel);
	if (!err)
		err = root_check_deaths(root);
	if (!err)
		err = root_read_pending(root);
	if (!err && root->pfds[0].revents)
		err = root_accept(root);
	return err;
}

int shunt_rendezvous_root_join(struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel)
{
	struct root root = { .rdzv = rdzv, .nmembers = nmembers, .watch = watch };
	int64_t deadline = shunt_rendezvous_join_deadline(true);
	struct rdzv_wait_log wait_log = shunt_rendezvous_wait_log();
	int err = 0;

	root.present = calloc((size_t)nmembers, sizeof(*root.present));
	root.nonce = calloc((size_t)rdzv->nranks, sizeof(*root.nonce));
	root.pfds = calloc((size_t)(1 + MAX_PENDING_CONNS + 2 * rdzv->nranks), sizeof(*root.pfds));
	if (!root.present || !root.nonce || !root.pfds)
		err = -ENOMEM;
	while (!err && root.arrived < rdzv->nranks - 1) {
		err = root_step(&root, wait_log.next_log < deadline ? wait_log.next_log : deadline, cancel);
		if (!err && root.arrived < rdzv->nranks - 1)
			err = root_check_deadline(&root, &wait_log, deadline);
	}
	for (int r = 0; root.nonce && r < rdzv->nranks; r++) {
		struct rdzv_welcome welcome = {
			.magic = RDZV_MAGIC, .version = RDZV_VERSION, .status = rdzv_peer_error(err)
		};

		if (rdzv->peer_fds[r] < 0)
			continue;
		shunt_rendezvous_mac_welcome(welcome.mac, &rdzv->id, root.nonce[r], &welcome);
		/* The message fits the empty socket buffer. A peer that has died meanwhile shows in the first round. */
		(void)!send(rdzv->peer_fds[r], &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	root_finish(&root);
	return err;
}
