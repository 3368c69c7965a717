/* SPDX-License-Identifier: MIT */
/* The socket of a member: its name, and the user behind it. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/un.h>
#include "base/hash.h"
#include "base/log.h"
#include "transport/rendezvous/priv.h"

/* The name must not reveal the id: it can be read in /proc/net/unix. */
static socklen_t socket_address(const struct shunt_id *id, int member, struct sockaddr_un *addr)
{
	uint8_t mac[SHUNT_MAC_BYTES];
	int32_t number = member;
	int n;

	shunt_mac(mac, id, sizeof(*id), "shunt rdzv name", &number, sizeof(number), NULL, 0);
	*addr = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(addr->sun_path + 1, sizeof(addr->sun_path) - 1, "shunt-");
	for (int i = 0; i < 16; i++)
		n += snprintf(addr->sun_path + 1 + n, sizeof(addr->sun_path) - 1 - (size_t)n, "%02x", mac[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int shunt_rendezvous_listen(const struct shunt_id *id, int member, int *fd_p)
{
	struct sockaddr_un addr;
	socklen_t len = socket_address(id, member, &addr);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;

	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) || listen(fd, SOMAXCONN)) {
		err = -errno;
		shunt_warn("cannot listen on a Unix socket for member %d: %m", member);
		rdzv_close_fd(&fd);
		return err;
	}
	*fd_p = fd;
	return 0;
}

/* uid of the process that made the connection, or the listening socket. */
static int peer_uid(int fd, uid_t *uid_p)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return -errno;
	*uid_p = cred.uid;
	return 0;
}

bool shunt_rendezvous_same_user(const struct shunt_rendezvous *rdzv, int fd, bool now)
{
	uid_t theirs = 0, ours = 0;

	if (peer_uid(fd, &theirs) || peer_uid(rdzv->listen_fd, &ours))
		return false;
	return theirs == ours || (now && theirs == geteuid());
}

int shunt_rendezvous_probe(const struct shunt_rendezvous *rdzv, int member, int *fd_p)
{
	struct sockaddr_un addr;
	socklen_t len = socket_address(&rdzv->id, member, &addr);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;

	if (fd < 0)
		return -errno;
	do
		err = connect(fd, (struct sockaddr *)&addr, len) ? -errno : 0;
	while (err == -EINTR);
	/* A socket of another user counts as absent. */
	if (!err && !shunt_rendezvous_same_user(rdzv, fd, false))
		err = -ECONNREFUSED;
	if (err)
		rdzv_close_fd(&fd);
	if (err == -EAGAIN)
		err = 0;
	if (!err)
		*fd_p = fd;
	return err;
}
