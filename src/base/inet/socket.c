/* SPDX-License-Identifier: MIT */
/* Unix and TCP sockets: their options, and checks of the process at the other end. */
#include "base/inet/socket.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "base/config.h"
#include "base/inet/netif.h"
#include "base/io.h"
#include "base/rlimits.h"
#include "base/log.h"

/*
 * A network may be away for a moment, in which switches find another way: 25 s. Probes are many, for each may be lost:
 * where a tenth of them is, five in a row would all be lost once in some hours of the idle connections of one job.
 */
#define KEEP_IDLE_S 10
#define KEEP_PROBE_S 1
#define KEEP_PROBES 15
_Static_assert(KEEP_IDLE_S + KEEP_PROBE_S * KEEP_PROBES == SHUNT_TCP_SILENCE_MS / 1000, "one limit of silence");

/* ---- Unix */

static void unix_prepare(int fd, sa_family_t family)
{
	(void)fd;
	(void)family;
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

/*
 * The other end must have the uid that we had when we made our socket; a process that connects to us may also have our
 * present uid. Processes may change their uid, sooner or later than others, but all must find the same sockets valid.
 */
static bool unix_admits(int listen_fd, int fd, bool accepted)
{
	uid_t theirs = 0, ours = 0;

	if (peer_uid(fd, &theirs) || peer_uid(listen_fd, &ours))
		return false;
	return theirs == ours || (accepted && theirs == geteuid());
}

const struct shunt_socket_kind shunt_socket_unix = { "Unix", unix_prepare, unix_admits };

/* ---- TCP */

static void tcp_prepare(int fd, sa_family_t family)
{
	int one = 1, zero = 0, idle = KEEP_IDLE_S, probe = KEEP_PROBE_S, probes = KEEP_PROBES,
	    again = SHUNT_TCP_AGAIN_MS;
	unsigned unacknowledged = SHUNT_TCP_SILENCE_MS;

	/* A fixed port must be usable again at once. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* A round is a short message in each direction, and the next one waits for it. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* Ends the connection when the host has gone or the network is down: no process there can say so. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe, sizeof(probe));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged, sizeof(unacknowledged));
	setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &again, sizeof(again));
	/* Older kernels: the first six times without a longer wait, where few packets are on their way. */
	setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof(one));
	/* A socket for any address takes connections over IPv4, too. */
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
}

/*
 * If no process listens and the kernel happens to choose the very port for our end, the socket is connected to itself.
 * A reset closes it: TIME_WAIT would keep the port from rank 0.
 */
static bool tcp_admits(int listen_fd, int fd, bool accepted)
{
	struct sockaddr_storage ours = { 0 }, theirs = { 0 };
	socklen_t ours_len = sizeof(ours), theirs_len = sizeof(theirs);
	struct linger reset = { .l_onoff = 1 };

	(void)listen_fd;
	if (accepted || getsockname(fd, (struct sockaddr *)&ours, &ours_len) ||
	    getpeername(fd, (struct sockaddr *)&theirs, &theirs_len) || memcmp(&ours, &theirs, sizeof(ours)))
		return true;
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	return false;
}

const struct shunt_socket_kind shunt_socket_tcp = { "TCP", tcp_prepare, tcp_admits };

/* ---- both */

static int new_socket(const struct shunt_socket_kind *kind, sa_family_t family)
{
	int fd = SHUNT_FD(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (fd >= 0)
		kind->prepare(fd, family);
	return fd;
}

static int listen_at(const struct shunt_socket_kind *kind, struct shunt_netaddr *addr, int *fd_p)
{
	int fd = new_socket(kind, addr->ss.ss_family), err;
	socklen_t len = sizeof(addr->ss);

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&addr->ss, addr->len) || listen(fd, SOMAXCONN) ||
	    getsockname(fd, (struct sockaddr *)&addr->ss, &len)) {
		err = -errno;
		shunt_close_fd(&fd);
		return err;
	}
	*fd_p = fd;
	return 0;
}

int shunt_socket_listen(const struct shunt_socket_kind *kind, struct shunt_netaddr *addr, int *fd_p)
{
	in_port_t *port = shunt_netaddr_port(addr);
	unsigned first = 0, last = 0;
	int err = -EADDRINUSE;

	if (!port || *port || !shunt_netif_port_range(shunt_config()->port_range, &first, &last))
		return listen_at(kind, addr, fd_p);
	/*
	 * Many processes of a host look for a port at the same time: each begins somewhere else. Two that are bound to
	 * one port, as SO_REUSEADDR allows, find out when they listen.
	 */
	for (unsigned n = last - first + 1, i = 0, start = (unsigned)getpid() % n; i < n && err == -EADDRINUSE; i++) {
		*port = htons((in_port_t)(first + (start + i) % n));
		err = listen_at(kind, addr, fd_p);
	}
	if (err) {
		*port = 0;
		shunt_error("no port of SHUNT_PORT_RANGE=%s can be had: %s", shunt_config()->port_range,
		    shunt_error_text(err).s);
	}
	return err;
}

static int finish_connect(int fd, int64_t deadline, const atomic_int *cancel)
{
	struct pollfd pfd = { .fd = fd, .events = POLLOUT };
	int err = shunt_io_poll(&pfd, 1, deadline, cancel), pending = 0;
	socklen_t len = sizeof(pending);

	if (err < 0)
		return err;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &pending, &len) ? -errno : -pending;
}

int shunt_socket_connect_begin(const struct shunt_socket_kind *kind, const struct shunt_netaddr *addr, int *fd_p)
{
	int fd = new_socket(kind, addr->ss.ss_family), err;

	if (fd < 0)
		return -errno;
	do
		err = connect(fd, (const struct sockaddr *)&addr->ss, addr->len) ? -errno : 0;
	while (err == -EINTR && kind == &shunt_socket_unix);
	if (err && err != -EINPROGRESS && err != -EINTR) {
		shunt_close_fd(&fd);
		return err;
	}
	*fd_p = fd;
	return 0;
}

bool shunt_socket_is_connected(int fd)
{
	struct sockaddr_storage theirs;
	socklen_t len = sizeof(theirs);

	return fd >= 0 && !getpeername(fd, (struct sockaddr *)&theirs, &len);
}

int shunt_socket_connect(const struct shunt_socket_kind *kind, const struct shunt_netaddr *addr, int listen_fd,
    int64_t deadline, const atomic_int *cancel, int *fd_p)
{
	int fd = -1, err = shunt_socket_connect_begin(kind, addr, &fd);

	if (err)
		return err;
	if (!shunt_socket_is_connected(fd))
		err = finish_connect(fd, deadline, cancel);
	if (!err && !kind->admits(listen_fd, fd, false))
		err = -ECONNREFUSED;
	if (err) {
		shunt_close_fd(&fd);
		return err;
	}
	*fd_p = fd;
	return 0;
}
