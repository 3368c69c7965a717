/* SPDX-License-Identifier: MIT */
/* Messages with descriptors, in pieces as they come. */
#include <errno.h>
#include <string.h>
#include "core/io.h"
#include "core/log.h"
#include "transport/meet_priv.h"

void shunt_meet_inbox_close(struct meet_inbox *in)
{
	while (in->nfds)
		meet_close_fd(&in->fds[--in->nfds]);
}

int shunt_meet_inbox_read(struct meet_inbox *in)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * MEET_MAX_FDS)];
	} control;
	struct iovec iov = { in->buf + in->got, in->want - in->got };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
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
		shunt_error("the kernel dropped descriptors that a rank passed: the limit of open files (ulimit -n) is "
		            "reached, or a "
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

int shunt_meet_inbox_fill(struct meet_inbox *in, void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel)
{
	int64_t look = 0;

	in->buf = buf;
	in->got = 0;
	in->want = bytes;
	while (in->got < in->want) {
		struct pollfd pfd = { .fd = in->fd, .events = POLLIN };
		int err = shunt_meet_poll(&pfd, 1, &look, deadline, cancel);

		if (err > 0)
			err = shunt_meet_inbox_read(in);
		if (err < 0)
			return err;
	}
	return 0;
}

/* So many bytes of the parts are done. */
static void skip(struct iovec *parts, size_t nparts, size_t bytes)
{
	for (size_t i = 0; i < nparts; i++) {
		size_t n = bytes < parts[i].iov_len ? bytes : parts[i].iov_len;

		parts[i].iov_base = (char *)parts[i].iov_base + n;
		parts[i].iov_len -= n;
		bytes -= n;
	}
}

int shunt_meet_send(int fd, const void *head, size_t head_bytes, const int *fds, int nfds, const void *body,
    size_t body_bytes, int64_t deadline, const atomic_int *cancel)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * MEET_MAX_FDS)];
	} control;
	struct iovec parts[2] = { { (void *)(uintptr_t)head, head_bytes }, { (void *)(uintptr_t)body, body_bytes } };
	struct msghdr msg = { .msg_iov = parts, .msg_iovlen = 2 };
	struct cmsghdr *rights = (struct cmsghdr *)control.buf;
	int64_t look = 0;

	if (nfds) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
		memcpy(CMSG_DATA(rights), fds, sizeof(int) * (size_t)nfds);
	}
	while (parts[0].iov_len || parts[1].iov_len) {
		struct pollfd pfd = { .fd = fd, .events = POLLOUT };
		int err = shunt_meet_poll(&pfd, 1, &look, deadline, cancel);
		ssize_t n;

		if (err < 0)
			return err;
		n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return shunt_io_error(errno);
		if (n <= 0)
			continue;
		skip(parts, 2, (size_t)n);
		msg.msg_control = NULL; /* went with the first byte */
		msg.msg_controllen = 0;
	}
	return 0;
}
