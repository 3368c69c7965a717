/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/wire/lobby.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include "base/fd.h"
#include "base/io.h"
#include "base/os.h"

#define HELLO_MS 10000
#define ACCEPT_BATCH 64 /* then challenged connections are read */

static void event_ctl(const struct rdzv_lobby *lobby, int op, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	/* A connection that cannot be added is heard when the next one comes. */
	if (lobby->event_fd >= 0 && fd >= 0)
		(void)epoll_ctl(lobby->event_fd, op, fd, &event);
}

void rdzv_lobby_watch(struct rdzv_lobby *lobby)
{
	lobby->event_fd = SHUNT_FD(epoll_create1(EPOLL_CLOEXEC));
	event_ctl(lobby, EPOLL_CTL_ADD, lobby->listen_fd);
}

void rdzv_lobby_include(struct rdzv_lobby *lobby, const struct rdzv_lobby *other)
{
	event_ctl(lobby, EPOLL_CTL_ADD, other->event_fd);
}

int rdzv_lobby_take(struct rdzv_lobby *lobby, int i)
{
	int fd = lobby->conn[i].fd;

	/* Not left to close: a forked child may hold a copy. */
	event_ctl(lobby, EPOLL_CTL_DEL, fd);
	lobby->conn[i] = lobby->conn[--lobby->nconns];
	return fd;
}

static void drop(struct rdzv_lobby *lobby, int i)
{
	int fd = rdzv_lobby_take(lobby, i);

	shunt_close_socket(&fd);
}

/* It may be a rank that had no time to answer. */
static void send_away(struct rdzv_lobby *lobby, int i)
{
	struct rdzv_head busy = rdzv_head(RDZV_BUSY);

	(void)!send(lobby->conn[i].fd, &busy, sizeof(busy), MSG_NOSIGNAL | MSG_DONTWAIT);
	drop(lobby, i);
}

void rdzv_lobby_read(struct rdzv_lobby *lobby, int i)
{
	struct rdzv_conn *c = &lobby->conn[i];
	uint8_t more;
	ssize_t n;

	if (c->proven) /* says nothing more until it has its answer */
		n = recv(c->fd, &more, 1, MSG_DONTWAIT) < 0 ? -1 : 0;
	else
		n = recv(c->fd, (char *)&c->hello + c->got, sizeof(c->hello) - c->got, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		drop(lobby, i);
		return;
	}
	c->got += (uint32_t)n;
	if (c->got < sizeof(c->hello))
		return;
	c->proven = rdzv_hello_proves(&c->hello, &lobby->key, c->nonce);
	c->hello.shunt[sizeof(c->hello.shunt) - 1] = '\0';
	if (!c->proven)
		drop(lobby, i);
}

/* Sends the oldest connection away that has not proved itself. False: there is none. */
static bool make_room(struct rdzv_lobby *lobby)
{
	for (int places = lobby->nconns;;) {
		int oldest = -1;

		for (int i = 0; i < lobby->nconns; i++)
			if (!lobby->conn[i].proven && (oldest < 0 || lobby->conn[i].turn < lobby->conn[oldest].turn))
				oldest = i;
		if (oldest < 0)
			return false;
		rdzv_lobby_read(lobby, oldest); /* its hello may be here already */
		if (lobby->nconns < places)
			return true;
		if (!lobby->conn[oldest].proven) {
			send_away(lobby, oldest);
			return true;
		}
	}
}

static void challenge(struct rdzv_lobby *lobby, int fd)
{
	struct rdzv_challenge challenge = { .head = rdzv_head(RDZV_CHALLENGE) };
	struct rdzv_conn *c;

	if (!lobby->kind->admits(lobby->listen_fd, fd, true) ||
	    shunt_random(challenge.nonce, sizeof(challenge.nonce)) ||
	    send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(challenge) ||
	    (lobby->nconns == RDZV_LOBBY_PLACES && !make_room(lobby))) {
		shunt_close_socket(&fd);
		return;
	}
	c = &lobby->conn[lobby->nconns++];
	*c = (struct rdzv_conn){ .fd = fd, .since = shunt_now_ms(), .turn = ++lobby->turns };
	memcpy(c->nonce, challenge.nonce, sizeof(c->nonce));
	event_ctl(lobby, EPOLL_CTL_ADD, fd);
}

int rdzv_lobby_accept(struct rdzv_lobby *lobby)
{
	if (lobby->listen_fd < 0)
		return 0;
	if (!lobby->conn)
		lobby->conn = calloc(RDZV_LOBBY_PLACES, sizeof(*lobby->conn));
	if (!lobby->conn)
		return -ENOMEM;
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = SHUNT_FD(accept4(lobby->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

		if (fd >= 0)
			challenge(lobby, fd);
		else if ((errno == EMFILE || errno == ENFILE) && make_room(lobby))
			continue;
		else
			return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : -errno;
	}
	return 0;
}

void rdzv_lobby_expire(struct rdzv_lobby *lobby, int64_t now)
{
	for (int i = lobby->nconns - 1; i >= 0; i--) /* backwards: a drop puts the last one in its place */
		if (!lobby->conn[i].proven && now - lobby->conn[i].since > HELLO_MS)
			send_away(lobby, i);
}

void rdzv_lobby_clear(struct rdzv_lobby *lobby, bool backlog)
{
	int fd;

	while (lobby->nconns)
		drop(lobby, lobby->nconns - 1);
	free(lobby->conn);
	lobby->conn = NULL;
	while (backlog && lobby->listen_fd >= 0 &&
	    (fd = SHUNT_FD(accept4(lobby->listen_fd, NULL, NULL, SOCK_CLOEXEC))) >= 0)
		shunt_close_socket(&fd);
}

void rdzv_lobby_close(struct rdzv_lobby *lobby)
{
	event_ctl(lobby, EPOLL_CTL_DEL, lobby->listen_fd);
	shunt_close_socket(&lobby->listen_fd);
}

void rdzv_lobby_finish(struct rdzv_lobby *lobby)
{
	rdzv_lobby_clear(lobby, false);
	rdzv_lobby_close(lobby);
	shunt_close_fd(&lobby->event_fd);
	explicit_bzero(&lobby->key, sizeof(lobby->key));
}
