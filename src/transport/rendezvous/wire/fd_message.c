/* SPDX-License-Identifier: MIT */
/* Messages with descriptors, sent and received piece by piece. */
#include "transport/rendezvous/wire/fd_message.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/inet/socket.h"
#include "base/io.h"
#include "base/log.h"
#include "base/rlimits.h"
#include "transport/rendezvous/wire/wait.h"

void rdzv_recv_close(struct rdzv_recv *in)
{
	while (in->nfds)
		shunt_close_fd(&in->fds[--in->nfds]);
}

int rdzv_recv_read(struct rdzv_recv *in)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * RDZV_MAX_FDS)];
	} control;
	struct iovec iov = { in->buf + in->received, in->expected - in->received };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	ssize_t n;
	int err = 0;

	n = shunt_fd_receive(in->fd, &msg);
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
				shunt_close_fd(&fd);
				err = -EPROTO;
			}
		}
	}
	if (!err && (msg.msg_flags & MSG_CTRUNC)) {
		shunt_error("the kernel dropped descriptors that a rank passed: %s, or a security policy forbids it",
		    shunt_error_text(-EMFILE).s);
		err = -EMFILE;
	}
	if (err)
		return err;
	if (n == 0)
		return -EOWNERDEAD;
	in->received += (size_t)n;
	return 0;
}

int rdzv_recv_fill(struct rdzv_recv *in, void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel)
{
	int64_t next_check = 0;

	in->buf = buf;
	in->received = 0;
	in->expected = bytes;
	while (in->received < in->expected) {
		struct pollfd pfd = { .fd = in->fd, .events = POLLIN };
		int err = rdzv_poll(&pfd, 1, &next_check, deadline, cancel);

		if (err > 0)
			err = rdzv_recv_read(in);
		if (err < 0)
			return err;
	}
	return 0;
}

/* Advances the parts by `bytes`. */
static void iov_advance(struct iovec *iov_parts, size_t nparts, size_t bytes)
{
	for (size_t i = 0; i < nparts; i++) {
		size_t n = bytes < iov_parts[i].iov_len ? bytes : iov_parts[i].iov_len;

		iov_parts[i].iov_base = (char *)iov_parts[i].iov_base + n;
		iov_parts[i].iov_len -= n;
		bytes -= n;
	}
}

int rdzv_send_all(int fd, const struct rdzv_send *out, int64_t deadline, const atomic_int *cancel)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * RDZV_MAX_FDS)];
	} control;
	struct iovec iov_parts[2] = { { (void *)(uintptr_t)out->head, out->head_bytes },
		{ (void *)(uintptr_t)out->body, out->body_bytes } };
	struct msghdr msg = { .msg_iov = iov_parts, .msg_iovlen = 2 };
	struct cmsghdr *rights = (struct cmsghdr *)control.buf;
	int64_t next_check = 0;

	if (out->nfds) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)out->nfds);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)out->nfds);
		memcpy(CMSG_DATA(rights), out->fds, sizeof(int) * (size_t)out->nfds);
	}
	while (iov_parts[0].iov_len || iov_parts[1].iov_len) {
		struct pollfd pfd = { .fd = fd, .events = POLLOUT };
		int err = rdzv_poll(&pfd, 1, &next_check, deadline, cancel);
		ssize_t n;

		if (err < 0)
			return err;
		n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return shunt_io_error(errno);
		if (n <= 0)
			continue;
		iov_advance(iov_parts, 2, (size_t)n);
		msg.msg_control = NULL; /* sent with the first byte */
		msg.msg_controllen = 0;
	}
	return 0;
}
