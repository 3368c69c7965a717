/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous/reach.h"
#include <errno.h>
#include <poll.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/inet/socket.h"
#include "base/io.h"
#include "transport/rendezvous/address.h"

#define ATTEMPT_MS 2500
#define AGAIN_MS 20

/* A call of one rank. */
struct call {
	int rank, fd;
	int err;       /* of the last attempt; 0: it was reached */
	int64_t until; /* of this attempt, or of the pause after it */
	bool done;
};

static void end_attempt(struct call *call, int err, int64_t end)
{
	struct linger reset = { .l_onoff = 1 };

	/* Reset: nothing of the connection stays, neither here nor in the listener's backlog. */
	if (call->fd >= 0)
		setsockopt(call->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	shunt_close_fd(&call->fd);
	call->err = err;
	call->done = !err || !rdzv_may_call_again(err) || shunt_now_ms() >= end;
	call->until = shunt_now_ms() + AGAIN_MS;
}

static void begin_attempt(const struct shunt_hosts *hosts, struct call *call, int64_t end)
{
	struct shunt_netaddr addr = shunt_host_netaddr(&hosts->rank[call->rank].group);
	int err = shunt_socket_connect_begin(&shunt_socket_tcp, &addr, &call->fd);

	if (err)
		end_attempt(call, err, end);
	else
		call->until = shunt_now_ms() + ATTEMPT_MS < end ? shunt_now_ms() + ATTEMPT_MS : end;
}

/* An attempt that has an outcome, or has had its time. */
static void look(struct call *call, bool ready, int64_t end)
{
	int pending = 0;
	socklen_t len = sizeof(pending);

	if (ready && getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &pending, &len))
		pending = errno;
	if (ready && !pending && !shunt_socket_tcp.admits(-1, call->fd, false))
		pending = ECONNREFUSED;
	if (ready)
		end_attempt(call, -pending, end);
	else if (shunt_now_ms() >= call->until)
		end_attempt(call, -ETIMEDOUT, end);
}

static int step(const struct shunt_hosts *hosts, struct call *calls, int n, int64_t end, const atomic_int *cancel)
{
	struct pollfd pfds[SHUNT_HOSTS_MAX_RANKS];
	int64_t until = end;
	int err;

	for (int i = 0; i < n; i++) {
		if (!calls[i].done && calls[i].fd < 0 && shunt_now_ms() >= calls[i].until)
			begin_attempt(hosts, &calls[i], end);
		if (!calls[i].done && calls[i].until < until)
			until = calls[i].until;
		pfds[i] = (struct pollfd){ .fd = calls[i].fd, .events = POLLOUT };
	}
	err = shunt_io_poll(pfds, (nfds_t)n, until, cancel);
	if (err < 0 && err != -ETIMEDOUT)
		return err;
	for (int i = 0; i < n; i++)
		if (calls[i].fd >= 0)
			look(&calls[i], pfds[i].revents != 0, end);
	return 0;
}

int rdzv_reach_hosts(const struct shunt_hosts *hosts, int rank, const atomic_int *cancel, int *failed_p)
{
	int64_t end = shunt_deadline_ms(shunt_config()->setup_timeout);
	struct call calls[SHUNT_HOSTS_MAX_RANKS];
	int n = 0, open, err = 0;

	*failed_p = -1;
	/* The ranks of a host share its addresses: they share the work. */
	for (int h = 0; h < hosts->nhosts; h++)
		if (h != hosts->host_of[rank])
			calls[n++] =
			    (struct call){ .rank = shunt_hosts_rank(hosts, h, hosts->local_of[rank] % hosts->nlocal[h]),
				    .fd = -1 };
	open = n;
	while (open && !err) {
		err = step(hosts, calls, n, end, cancel);
		open = 0;
		for (int i = 0; i < n; i++) {
			open += !calls[i].done;
			if (!calls[i].done || !calls[i].err || err)
				continue;
			*failed_p = calls[i].rank;
			err = calls[i].err;
		}
	}
	for (int i = 0; i < n; i++)
		shunt_close_fd(&calls[i].fd);
	return err;
}
