/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/star.h"
#include <errno.h>
#include <sys/socket.h>
#include "base/io.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/wait.h"

#define CALL_MS 10000 /* another program at the address may say nothing */

static struct shunt_rendezvous *create(const struct shunt_star *star)
{
	struct shunt_rendezvous *rdzv = rdzv_create(&shunt_socket_tcp, rdzv_key(star->secret, star->secret_bytes));

	if (rdzv) {
		rdzv->rank = rdzv->member = star->rank;
		rdzv->nranks = star->nranks;
		rdzv->is_root = !star->rank;
	}
	return rdzv;
}

int shunt_star_listen(const struct shunt_star *star, struct shunt_netaddr *addr, struct shunt_rendezvous **rdzv_p)
{
	struct shunt_rendezvous *rdzv = create(star);
	int err;

	if (!rdzv)
		return -ENOMEM;
	err = shunt_socket_listen(&shunt_socket_tcp, addr, &rdzv->lobby.listen_fd);
	if (err)
		shunt_rendezvous_destroy(rdzv);
	else
		*rdzv_p = rdzv;
	return err;
}

int shunt_star_collect(const struct shunt_star *star, struct shunt_rendezvous *rdzv)
{
	struct rdzv_root root = { .lobby = &rdzv->lobby,
		.limit = star->limit,
		.nranks = star->nranks,
		.nmembers = star->nranks,
		.timeout_ms = star->timeout_ms,
		.cancel = star->cancel };

	rdzv->err = rdzv_root_run(&root, rdzv);
	rdzv->joined = !rdzv->err;
	rdzv_lobby_clear(&rdzv->lobby, true);
	rdzv_lobby_close(&rdzv->lobby);
	return rdzv->err;
}

int shunt_star_call(const struct shunt_star *star, const struct shunt_netaddr *addr, struct shunt_rendezvous **rdzv_p)
{
	struct shunt_rendezvous *rdzv = create(star);
	int64_t until = shunt_deadline_ms(star->timeout_ms < CALL_MS ? star->timeout_ms : CALL_MS);
	struct rdzv_ask ask = { .what = star->what,
		.member = star->rank,
		.nmembers = star->nranks,
		.rank = star->rank,
		.nranks = star->nranks,
		.challenge_deadline = until,
		.deadline = rdzv_member_deadline(star->timeout_ms),
		.who = "rank 0",
		.cancel = star->cancel };
	int err;

	if (!rdzv)
		return -ENOMEM;
	ask.key = &rdzv->lobby.key;
	err = shunt_socket_connect(&shunt_socket_tcp, addr, -1, until, star->cancel, &rdzv->root_fd);
	if (!err)
		err = rdzv_member_join(rdzv->root_fd, &ask, &rdzv->rows);
	if (!err)
		err = rdzv_keep_session(rdzv, &ask);
	if (err) {
		shunt_rendezvous_destroy(rdzv);
		return ask.answered || err == -ECANCELED ? err : -EAGAIN;
	}
	rdzv->joined = true;
	rdzv->root = 0;
	*rdzv_p = rdzv;
	return 0;
}

static bool is_closed(int fd)
{
	char byte;

	return fd >= 0 && !recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
}

bool shunt_star_is_broken(const struct shunt_rendezvous *rdzv)
{
	bool broken = is_closed(rdzv->root_fd);

	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		broken = broken || is_closed(rdzv->peer_fds[r]);
	return broken;
}

void shunt_star_abort(const struct shunt_rendezvous *rdzv)
{
	if (rdzv->root_fd >= 0)
		shutdown(rdzv->root_fd, SHUT_RDWR);
	for (int r = 0; rdzv->peer_fds && r < rdzv->nranks; r++)
		if (rdzv->peer_fds[r] >= 0)
			shutdown(rdzv->peer_fds[r], SHUT_RDWR);
}
