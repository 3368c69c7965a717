/* SPDX-License-Identifier: MIT */
/*
 * The root's side of a join: it admits the members, watches those that have not come, and tells all of them the
 * outcome.
 */
#include "transport/rendezvous/join_root.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/config.h"
#include "base/inet/netif.h"
#include "base/io.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "transport/rendezvous/address.h"
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wait.h"
#include "transport/rendezvous/wire/wire.h"

#define POLL_MS 1000
#define POLL_SOON_MS 50 /* while a member's backlog is full */
#define PAUSE_MS 200    /* out of descriptors: a server leaves connections in the backlog */
#define SEND_MS 5000
#define CALL_MS 2500      /* of a member over TCP; then again: a new call begins with a packet at once */
#define CALL_AGAIN_MS 100 /* after one that failed at once */

void rdzv_root_fail(struct rdzv_root *root, int status, const char *fmt, ...)
{
	va_list ap;

	if (root->status != RDZV_OPEN)
		return;
	va_start(ap, fmt);
	vsnprintf(root->text, sizeof(root->text), fmt, ap);
	va_end(ap);
	root->status = status;
	root->last_event = shunt_now_ms();
}

/* Once the number of ranks is known. */
static int make_peers(struct rdzv_root *root, int nranks, int nmembers)
{
	size_t n = (size_t)(1 + RDZV_LOBBY_PLACES + nranks + (root->watch ? nmembers : 0));
	struct pollfd *pfds = calloc(n, sizeof(*pfds));

	root->peer = calloc((size_t)nranks, sizeof(*root->peer));
	root->present = calloc((size_t)nmembers, sizeof(*root->present));
	root->called = root->watch ? calloc((size_t)nmembers, sizeof(*root->called)) : NULL;
	if (!root->peer || !root->present || !pfds || (root->watch && !root->called)) {
		free(pfds);
		return -ENOMEM; /* a server without memory for all ranks goes on with those for which it has a place */
	}
	free(root->pfds);
	root->pfds = pfds;
	for (int r = 0; r < nranks; r++)
		root->peer[r].fd = -1;
	for (int s = 0; root->called && s < nmembers; s++)
		root->called[s].end = shunt_deadline_ms(shunt_config()->setup_timeout);
	root->nranks = nranks;
	root->nmembers = nmembers;
	return 0;
}

int rdzv_root_init(struct rdzv_root *root)
{
	struct rdzv_hello self;
	int err;

	root->status = RDZV_OPEN;
	root->first = root->rank;
	root->last_event = root->started = shunt_now_ms();
	root->wait_log = rdzv_wait_log_begin();
	if (root->rank < 0) {
		root->pfds = calloc(1 + RDZV_LOBBY_PLACES, sizeof(*root->pfds));
		return root->pfds ? 0 : -ENOMEM;
	}
	err = make_peers(root, root->nranks, root->nmembers);
	if (!err)
		err = rdzv_hello_init(&self, RDZV_WATCH, &root->lobby->key);
	if (err)
		return err;
	root->peer[root->rank].seen = root->present[root->member] = true;
	root->peer[root->rank].row = (struct shunt_rendezvous_row){ .member = root->member, .pid = self.pid };
	memcpy(root->peer[root->rank].row.host, self.host, sizeof(self.host));
	if (++root->arrived == root->nranks)
		root->status = 0;
	return 0;
}

void rdzv_root_finish(struct rdzv_root *root)
{
	for (int r = 0; root->peer && r < root->nranks; r++)
		shunt_close_socket(&root->peer[r].fd);
	free(root->peer);
	free(root->present);
	free(root->called);
	free(root->pfds);
	root->called = NULL;
	root->peer = NULL;
	root->present = NULL;
	root->pfds = NULL;
}

/* ---- answers */

static void send_answer(const struct rdzv_root *root, int fd, const uint8_t nonce[RDZV_NONCE], enum rdzv_kind kind,
    const char *text, const struct shunt_rendezvous_row *rows)
{
	struct rdzv_answer a = { .head = rdzv_head(kind), .nrows = rows ? (uint32_t)root->nranks : 0 };
	/* An answer fits the socket's empty buffer. A rank that lets the buffer fill up counts as dead. */
	int64_t deadline = shunt_now_ms() + (kind == RDZV_DONE ? SEND_MS : 0);

	if (kind == RDZV_DONE)
		a.status = rdzv_peer_error(root->status);
	snprintf(a.text, sizeof(a.text), "%s", text);
	rdzv_answer_sign(&a, rows, &root->lobby->key, nonce);
	if (!shunt_io_write(fd, &a, sizeof(a), deadline, NULL) && rows)
		(void)shunt_io_write(fd, rows, (size_t)root->nranks * sizeof(*rows), deadline, NULL);
}

static struct shunt_rendezvous_row *make_rows(const struct rdzv_root *root)
{
	struct shunt_rendezvous_row *rows = calloc((size_t)root->nranks, sizeof(*rows));

	for (int r = 0; rows && r < root->nranks; r++)
		rows[r] = root->peer[r].row;
	return rows;
}

static void answer_rank(struct rdzv_root *root, int r, const struct shunt_rendezvous_row *rows, bool keeps)
{
	struct rdzv_peer *peer = &root->peer[r];

	if (peer->fd < 0)
		return;
	send_answer(root, peer->fd, peer->nonce, RDZV_DONE, root->text, rows);
	root->answered++;
	if (!keeps)
		shunt_close_socket(&peer->fd);
}

static void answer_all(struct rdzv_root *root, const struct shunt_rendezvous_row *rows, bool keeps)
{
	for (int own = 0; own < 2; own++)
		for (int r = 0; r < root->nranks; r++)
			if (root->peer && (root->peer[r].row.pid == (uint32_t)getpid()) == own)
				answer_rank(root, r, rows, keeps);
}

void rdzv_root_answer_all(struct rdzv_root *root, bool keeps)
{
	struct shunt_rendezvous_row *rows = root->status ? NULL : make_rows(root);

	if (!root->status && !rows) {
		root->status = -ENOMEM;
		snprintf(root->text, sizeof(root->text), "no memory for %d ranks", root->nranks);
	}
	answer_all(root, rows, keeps);
	free(rows);
}

static void format_missing(const struct rdzv_root *root, char *text, size_t bytes)
{
	bool *seen = malloc((size_t)root->nranks);

	*text = '\0';
	for (int r = 0; seen && r < root->nranks; r++)
		seen[r] = root->peer[r].seen;
	if (seen)
		rdzv_show_missing(root->members, seen, root->nranks, text, bytes);
	free(seen);
}

/* Over TCP also where they are awaited: perhaps they cannot come there. */
static void format_place(const struct rdzv_root *root, char *text, size_t bytes)
{
	struct shunt_netaddr addr = { .len = sizeof(addr.ss) };
	char at[80];

	*text = '\0';
	if (root->lobby->kind != &shunt_socket_tcp ||
	    getsockname(root->lobby->listen_fd, (struct sockaddr *)&addr.ss, &addr.len))
		return;
	shunt_netaddr_show(&addr, at, sizeof(at));
	snprintf(text, bytes, ", awaited at %s (NCCL_SOCKET_IFNAME)", at);
}

/* ---- ranks that come */

/* A rank that has come before, whose connection broke on its side: its last call counts, until answers are sent. */
static bool comes_again(const struct rdzv_root *root, const struct rdzv_hello *h)
{
	const struct rdzv_peer *peer;
	bool open = root->status == RDZV_OPEN || (!root->status && !root->answered);

	if (!open || root->first < 0 || h->rank < 0 || h->rank >= root->nranks)
		return false;
	peer = &root->peer[h->rank];
	return peer->seen && h->caller && peer->caller == h->caller && peer->row.member == h->member &&
	    peer->row.pid == h->pid && h->nranks == root->nranks;
}

/* The error in a hello, or 0. */
static void check_hello(struct rdzv_root *root, const struct rdzv_hello *h)
{
	bool known = root->first >= 0;
	int twice = root->rank < 0 ? -EEXIST : -EINVAL;

	if (h->head.version != RDZV_VERSION || strcmp(h->shunt, SHUNT_VERSION))
		rdzv_root_fail(root, -EPROTO, "rank %d has Shunt %s (rendezvous protocol %u), the root has %s (%u)",
		    h->rank, h->shunt, h->head.version, SHUNT_VERSION, RDZV_VERSION);
	else if (h->nranks < 1 || h->nranks > SHUNT_BOOTSTRAP_MAX_RANKS || h->rank < 0 || h->rank >= h->nranks)
		rdzv_root_fail(root, -EINVAL, "rank %d of %d is out of range", h->rank, h->nranks);
	else if (known && h->nranks != root->nranks)
		rdzv_root_fail(root, -EINVAL, "rank %d says that there are %d ranks, rank %d says %d", h->rank,
		    h->nranks, root->first, root->nranks);
	else if (h->nmembers < h->nranks || (root->rank < 0 && h->nmembers != h->nranks) ||
	    (known && h->nmembers != root->nmembers))
		rdzv_root_fail(root, -EINVAL, "rank %d says that its %d ranks are among %d members, the root says %d",
		    h->rank, h->nranks, h->nmembers, known ? root->nmembers : h->nranks);
	else if (h->member < 0 || h->member >= h->nmembers)
		rdzv_root_fail(
		    root, -EINVAL, "rank %d, member %d of %d, is out of range", h->rank, h->member, h->nmembers);
	else if (known && root->peer[h->rank].seen)
		rdzv_root_fail(root, twice, "two processes or threads joined as rank %d", h->rank);
	else if (known && root->present[h->member])
		rdzv_root_fail(root, twice, "rank %d joined as member %d, as another rank did", h->rank, h->member);
	else if (!known && make_peers(root, h->nranks, h->nmembers))
		rdzv_root_fail(root, -ENOMEM, "no memory for %d ranks", h->nranks);
}

/* One that has proved itself but comes too late, or is refused. */
static void answer_late(struct rdzv_root *root, int fd, const struct rdzv_hello *h)
{
	send_answer(root, fd, h->nonce, RDZV_DONE, root->text, NULL);
	if (root->peer && h->rank >= 0 && h->rank < root->nranks && !root->peer[h->rank].seen) {
		root->peer[h->rank].seen = true;
		root->answered++;
	}
	shunt_close_socket(&fd);
}

/* Takes over the connection. */
static void admit(struct rdzv_root *root, const struct rdzv_conn *conn)
{
	const struct rdzv_hello *h = &conn->hello;
	bool again = comes_again(root, h);
	struct rdzv_peer *peer;
	int fd = conn->fd;

	if (again && conn->turn < root->peer[h->rank].turn) {
		shunt_close_socket(&fd); /* two calls were heard at once, the last one first */
		return;
	}
	if (root->status == RDZV_OPEN && !again)
		check_hello(root, h);
	if (root->status != RDZV_OPEN && !again) {
		answer_late(root, fd, h);
		return;
	}
	if (root->first < 0) {
		root->first = h->rank;
		root->started = shunt_now_ms();
		root->wait_log = rdzv_wait_log_begin();
	}
	peer = &root->peer[h->rank];
	shunt_close_socket(&peer->fd);
	*peer = (struct rdzv_peer){ .fd = fd,
		.seen = true,
		.caller = h->caller,
		.turn = conn->turn,
		.row = { .member = h->member, .pid = h->pid, .caller = h->caller } };
	memcpy(peer->nonce, h->nonce, sizeof(peer->nonce));
	memcpy(peer->row.host, h->host, sizeof(h->host));
	rdzv_session(peer->session, &root->lobby->key, conn->nonce, h->nonce);
	root->present[h->member] = true;
	root->last_event = shunt_now_ms();
	root->arrived += !again;
	if (root->arrived < root->nranks)
		return;
	root->status = 0;
	snprintf(root->text, sizeof(root->text), "all %d ranks are here", root->nranks);
}

/* Admits a connection that has proved itself. A root of the same members that looked whether we live stays as it is. */
static void admit_proven(struct rdzv_root *root)
{
	struct rdzv_lobby *lobby = root->lobby;

	for (int i = lobby->nconns - 1; i >= 0; i--) /* backwards: the last one takes the place */
		if (lobby->conn[i].proven && lobby->conn[i].hello.head.kind == RDZV_HELLO) {
			struct rdzv_conn conn = lobby->conn[i];

			rdzv_lobby_take(lobby, i);
			admit(root, &conn);
		}
}

/* ---- members that have not come */

/* For the log: a rank, or, where the ranks are hosts, a host. */
static void root_name(const struct rdzv_root *root, int rank, char *text, size_t bytes)
{
	if (root->rdzv)
		rdzv_show_rank(root->rdzv, rank, text, bytes);
	else
		snprintf(text, bytes, "rank %d", rank);
}

static void fail_watched(struct rdzv_root *root, int member, int err)
{
	bool over_hosts = root->rdzv && root->rdzv->level == RDZV_UPLINK, own = false;
	char name[128], why[168] = "";

	if (over_hosts) {
		struct shunt_netaddr addr = rdzv_uplink_address(root->rdzv, member);

		rdzv_show_rank(root->rdzv, member, name, sizeof(name));
		own = shunt_netif_explain(&addr, why, sizeof(why));
	} else {
		snprintf(name, sizeof(name), "rank %d (of a split or shrink: of the parent)", member);
	}
	if ((err == -ECONNREFUSED && !own) || err == -EOWNERDEAD)
		rdzv_root_fail(root, -EOWNERDEAD, "%s died or gave up before it came to the set-up", name);
	else if (rdzv_may_call_again(err) || own)
		rdzv_root_fail(root, err, "%s cannot be reached: %s; %s", name, strerror(-err), why);
	else
		rdzv_root_fail(root, err, "%s cannot be looked for: %s", name, strerror(-err));
}

/* Calls a member again if that may help, until its time is over. */
static void call_failed(struct rdzv_root *root, int member, int err)
{
	struct rdzv_called *called = &root->called[member];
	int64_t now = shunt_now_ms();

	if (!rdzv_may_call_again(err) || now >= called->end) {
		fail_watched(root, member, err);
		return;
	}
	shunt_close_socket(&root->watch[member]);
	root->watch[member] = RDZV_WATCH_LATER;
	called->again = now + CALL_AGAIN_MS;
}

/* A call over TCP is made again if it has not connected in time. A connected call waits for the member. */
static void look_at_call(struct rdzv_root *root, int member)
{
	struct rdzv_called *called = &root->called[member];
	int64_t now = shunt_now_ms();

	if (called->heard || now < called->again)
		return;
	if (!shunt_socket_is_connected(root->watch[member])) {
		call_failed(root, member, -ETIMEDOUT);
		return;
	}
	if (!root->lobby->kind->admits(root->lobby->listen_fd, root->watch[member], false)) {
		call_failed(root, member, -ECONNREFUSED);
		return;
	}
	called->again = now + CALL_MS;
	called->end = shunt_deadline_ms(shunt_config()->setup_timeout);
}

/* Connects to the members whose backlog was full before; notices those whose socket has gone. */
static void probe_watched(struct rdzv_root *root)
{
	bool tcp = root->lobby->kind == &shunt_socket_tcp;

	for (int s = 0; root->watch && s < root->nmembers; s++) {
		int64_t now = shunt_now_ms();
		int err;

		if (root->present[s])
			continue;
		if (tcp && root->watch[s] >= 0)
			look_at_call(root, s);
		if (root->watch[s] != RDZV_WATCH_LATER || now < root->called[s].again)
			continue;
		root->watch[s] = -1;
		root->called[s].again = now + (tcp ? CALL_MS : 0);
		root->called[s].heard = false;
		err = rdzv_probe(root->rdzv, s, &root->watch[s]);
		if (err)
			call_failed(root, s, err);
		if (root->watch[s] < 0)
			root->watch[s] = RDZV_WATCH_LATER;
	}
}

/*
 * Reads a message of a member: its challenge, which we answer, so that the member knows that the ranks are joining; or
 * that it has no place for us. -EOWNERDEAD: the member is gone. Another error: it could not be called.
 */
static int hear_watched(struct rdzv_root *root, int member)
{
	struct rdzv_challenge challenge = { .head = { 0 } }; /* short messages come whole over Unix sockets */
	struct rdzv_hello hello;
	int *watch = &root->watch[member];
	ssize_t n = recv(*watch, &challenge, sizeof(challenge), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0 && root->lobby->kind == &shunt_socket_tcp && !root->called[member].heard)
		return -errno;
	if (n <= 0)
		return -EOWNERDEAD;
	root->called[member].heard = true;
	if (rdzv_head_is(&challenge.head, RDZV_BUSY)) {
		shunt_close_socket(watch);
		*watch = RDZV_WATCH_LATER;
	} else if (n == sizeof(challenge) && rdzv_head_is(&challenge.head, RDZV_CHALLENGE) &&
	    !rdzv_hello_init(&hello, RDZV_WATCH, &root->lobby->key)) {
		hello.member = root->member;
		hello.nmembers = root->nmembers;
		hello.rank = root->rank;
		hello.nranks = root->nranks;
		rdzv_hello_sign(&hello, &root->lobby->key, challenge.nonce);
		(void)!send(*watch, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	return 0;
}

/* ---- steps */

/* pfds: the listening socket, the connections without a proof, the ranks, the watched members. */
static int fill_pfds(const struct rdzv_root *root, int64_t *until)
{
	struct pollfd *pfds = root->pfds;
	int n = 0;

	pfds[n++] = (struct pollfd){ .fd = root->lobby->listen_fd, .events = POLLIN };
	for (int i = 0; i < root->lobby->nconns; i++)
		pfds[n++] = (struct pollfd){ .fd = root->lobby->conn[i].fd, .events = POLLIN };
	/* Ranks send nothing after the hello: any event means that the rank is gone. */
	for (int r = 0; root->peer && r < root->nranks; r++)
		pfds[n++] = (struct pollfd){ .fd = root->peer[r].fd, .events = POLLIN | POLLRDHUP };
	for (int s = 0; root->watch && s < root->nmembers; s++) {
		pfds[n++] =
		    (struct pollfd){ .fd = root->watch[s] >= 0 ? root->watch[s] : -1, .events = POLLIN | POLLRDHUP };
		if (root->watch[s] == RDZV_WATCH_LATER && *until > shunt_now_ms() + POLL_SOON_MS)
			*until = shunt_now_ms() + POLL_SOON_MS;
	}
	return n;
}

static void check_deaths(struct rdzv_root *root, int nconns)
{
	const struct pollfd *ranks = root->pfds + 1 + nconns, *watched = ranks + root->nranks;
	char name[128];

	for (int r = 0; root->peer && root->status == RDZV_OPEN && r < root->nranks; r++) {
		if (ranks[r].fd < 0 || !ranks[r].revents)
			continue;
		shunt_close_socket(&root->peer[r].fd);
		root->answered++;
		root_name(root, r, name, sizeof(name));
		rdzv_root_fail(root, -EOWNERDEAD, "%s died or gave up before all ranks had come", name);
	}
	for (int s = 0; root->watch && root->status == RDZV_OPEN && s < root->nmembers; s++) {
		/* The death of a member that has come shows on its own connection. */
		int err = watched[s].fd >= 0 && watched[s].revents ? hear_watched(root, s) : 0;

		if (err && root->present[s])
			shunt_close_socket(&root->watch[s]);
		else if (err)
			call_failed(root, s, err);
	}
}

/* Logs the missing ranks when that is due, or gives up. */
static void check_deadline(struct rdzv_root *root)
{
	int64_t waited = shunt_now_ms() - root->started;
	char text[200], place[128];

	if (root->status != RDZV_OPEN || root->first < 0)
		return;
	format_place(root, place, sizeof(place));
	if (root->timeout_ms > 0 && waited >= root->timeout_ms) {
		format_missing(root, text, *place ? 64 : 96);
		rdzv_root_fail(root, -ETIMEDOUT, "not all ranks came within %lld s of the first (%s), %s%s",
		    (long long)(root->timeout_ms / 1000), root->limit, text, place);
		return;
	}
	if (!rdzv_wait_log_due(&root->wait_log))
		return;
	format_missing(root, text, 72);
	snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s", place);
	if (root->rank >= 0)
		shunt_warn(
		    "rank %d waits for the other ranks: %s", root->rdzv ? rdzv_own(root->rdzv) : root->rank, text);
	for (int r = 0; r < root->nranks; r++)
		if (root->peer[r].fd >= 0)
			send_answer(root, root->peer[r].fd, root->peer[r].nonce, RDZV_WAIT, text, NULL);
}

/* Until when to wait at most. */
static int64_t next_check(const struct rdzv_root *root)
{
	int64_t until = shunt_now_ms() + POLL_MS;

	if (root->status != RDZV_OPEN || root->first < 0)
		return until;
	if (root->timeout_ms > 0 && root->started + root->timeout_ms < until)
		until = root->started + root->timeout_ms;
	return root->wait_log.next_log < until ? root->wait_log.next_log : until;
}

/* A server goes on after any failure, because for instance the limit of open files may be raised again. */
static void go_on(struct rdzv_root *root, int err)
{
	if (!root->said_limit && err != -ECANCELED)
		shunt_warn("the bootstrap cannot take ranks in, and tries again: %s", shunt_error_text(err).s);
	root->said_limit = true;
	(void)poll(NULL, 0, PAUSE_MS);
}

static void poll_failed(struct rdzv_root *root, int err)
{
	if (root->rank < 0)
		go_on(root, err);
	else if (err == -ECANCELED)
		rdzv_root_fail(root, err, "rank %d gave up", root->rank);
	else
		rdzv_root_fail(root, err, "the connections cannot be waited for: %s", shunt_error_text(err).s);
}

void rdzv_root_step(struct rdzv_root *root)
{
	struct rdzv_lobby *lobby = root->lobby;
	int64_t until = next_check(root);
	int nconns, err;
	nfds_t n;

	admit_proven(root);
	probe_watched(root);
	if (root->status != RDZV_OPEN && root->rank >= 0)
		return;
	nconns = lobby->nconns;
	n = (nfds_t)fill_pfds(root, &until);
	err = lobby->kind == &shunt_socket_unix ? rdzv_poll(root->pfds, n, &root->next_check, until, root->cancel) :
	                                          shunt_io_poll(root->pfds, n, until, root->cancel);
	if (err < 0 && err != -ETIMEDOUT) {
		poll_failed(root, err);
		return;
	}
	if (err > 0) {
		check_deaths(root, nconns);
		for (int i = nconns - 1; i >= 0; i--) /* backwards: the last one takes the place of one that goes */
			if (root->pfds[1 + i].revents)
				rdzv_lobby_read(lobby, i);
		err = root->pfds[0].revents ? rdzv_lobby_accept(lobby) : 0;
		if (err && root->rank >= 0)
			rdzv_root_fail(root, err, "no connection can be accepted: %s", shunt_error_text(err).s);
		else if (err)
			go_on(root, err);
		admit_proven(root);
	}
	rdzv_lobby_expire(lobby, shunt_now_ms());
	check_deadline(root);
}

int rdzv_root_hand_over(struct rdzv_root *root, struct shunt_rendezvous *rdzv)
{
	size_t n = (size_t)root->nranks;
	bool tcp = root->lobby->kind == &shunt_socket_tcp;

	rdzv->rows = make_rows(root);
	rdzv->peer_fds = malloc(n * sizeof(*rdzv->peer_fds));
	rdzv->session = tcp ? calloc(n, sizeof(*rdzv->session)) : NULL;
	for (size_t r = 0; rdzv->peer_fds && r < n; r++)
		rdzv->peer_fds[r] = -1;
	if (!rdzv->rows || !rdzv->peer_fds || (tcp && !rdzv->session))
		return -ENOMEM;
	for (size_t r = 0; tcp && r < n; r++)
		memcpy(rdzv->session[r], root->peer[r].session, RDZV_SECRET);
	return 0;
}

void rdzv_root_gather(struct rdzv_root *root)
{
	int err = rdzv_root_init(root);

	if (err) {
		root->status = err;
		snprintf(root->text, sizeof(root->text), "%s", shunt_error_text(err).s);
	}
	while (root->status == RDZV_OPEN)
		rdzv_root_step(root);
}

int rdzv_root_conclude(struct rdzv_root *root, struct shunt_rendezvous *rdzv)
{
	if (!root->status && rdzv_root_hand_over(root, rdzv)) {
		root->status = -ENOMEM;
		snprintf(root->text, sizeof(root->text), "no memory for %d ranks", root->nranks);
	}
	if (root->status)
		rdzv_because(rdzv, "%s", root->text);
	answer_all(root, root->status ? NULL : rdzv->rows, true);
	for (int r = 0; !root->status && r < root->nranks; r++) {
		rdzv->peer_fds[r] = root->peer[r].fd;
		root->peer[r].fd = -1;
	}
	rdzv_root_finish(root);
	return root->status;
}

int rdzv_root_run(struct rdzv_root *root, struct shunt_rendezvous *rdzv)
{
	rdzv_root_gather(root);
	return rdzv_root_conclude(root, rdzv);
}
