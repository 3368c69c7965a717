/* SPDX-License-Identifier: MIT */
/*
 * Waiting for peers that may die. The connections of a dead process break, unless a child of the bare system call holds
 * copies of them (base/fd.h). So a long wait also checks the processes, and shuts down the connections of dead ones.
 * Bytes that they sent before can still be read.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/inet/socket.h"
#include "base/io.h"
#include "transport/rendezvous/wire/wait.h"

#define LIVENESS_CHECK_MS 100

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/*
 * Opens a pidfd of the process that connected, or listens, at the other end. -ESRCH: it has died; another -errno:
 * unknown.
 */
static int open_peer_pidfd(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(int);
	int pidfd;

	shunt_fd_begin();
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len))
		pidfd = -1;
	if (shunt_fd_end(pidfd) >= 0)
		return pidfd;
	if (errno == ESRCH || errno == EINVAL) /* dead; the code depends on the kernel */
		return -ESRCH;
	/*
	 * Before Linux 6.5. The PID is as seen from our PID namespace; 0: the process is not in it. If another process
	 * has the PID by now, the death goes unnoticed. A live peer is never taken for dead.
	 */
	len = sizeof(cred);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.pid <= 0)
		return -ENOTSUP;
	pidfd = SHUNT_FD((int)syscall(SYS_pidfd_open, cred.pid, 0));
	return pidfd < 0 ? -errno : pidfd;
}

static bool unix_peer_is_dead(int fd)
{
	int pidfd = open_peer_pidfd(fd);
	struct pollfd pidfd_poll = { .fd = pidfd, .events = POLLIN };
	bool dead = pidfd == -ESRCH || (pidfd >= 0 && poll(&pidfd_poll, 1, 0) > 0 && (pidfd_poll.revents & POLLIN));

	shunt_close_fd(&pidfd);
	return dead;
}

static bool peer_is_dead(int fd)
{
	int domain = AF_UNSPEC;
	socklen_t len = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) || domain != AF_UNIX)
		return false;
	return unix_peer_is_dead(fd);
}

int rdzv_poll(struct pollfd *fds, nfds_t n, int64_t *next_check, int64_t deadline, const atomic_int *cancel)
{
	for (;;) {
		int err;

		if (!*next_check)
			*next_check = shunt_now_ms() + LIVENESS_CHECK_MS;
		if (shunt_now_ms() >= *next_check) {
			for (nfds_t i = 0; i < n; i++)
				if (fds[i].fd >= 0 && peer_is_dead(fds[i].fd))
					shutdown(fds[i].fd, SHUT_RDWR);
			*next_check = shunt_now_ms() + LIVENESS_CHECK_MS;
		}
		err = shunt_io_poll(fds, n, *next_check < deadline ? *next_check : deadline, cancel);
		if (err != -ETIMEDOUT || shunt_now_ms() >= deadline)
			return err;
	}
}
