/* SPDX-License-Identifier: MIT */
#include "base/io.h"
#include <errno.h>
#include <sys/socket.h>
#include <time.h>
#include "base/fd.h"

#define TICK_MS 50

int64_t shunt_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t shunt_now_ms(void)
{
	return shunt_now_ns() / 1000000;
}

int64_t shunt_deadline_ms(int64_t ms)
{
	int64_t now = shunt_now_ms();

	return ms <= 0 || ms > SHUNT_NEVER - now ? SHUNT_NEVER : now + ms;
}

int shunt_io_poll(struct pollfd *fds, nfds_t n, int64_t deadline, const atomic_int *cancel)
{
	for (;;) {
		int64_t left = deadline == SHUNT_NEVER ? TICK_MS : deadline - shunt_now_ms();
		int ready;

		if (cancel && atomic_load(cancel))
			return -ECANCELED;
		ready = poll(fds, n, left <= 0 ? 0 : left > TICK_MS ? TICK_MS : (int)left);
		if (ready > 0)
			return ready;
		if (ready < 0 && errno != EINTR)
			return -errno;
		if (left <= 0)
			return -ETIMEDOUT;
	}
}

void shunt_io_close_all(const int *fds, int n)
{
	for (int i = 0; i < n; i++) {
		int fd = fds[i];

		shunt_close_fd(&fd);
	}
}

int shunt_io_error(int err)
{
	return err == EPIPE || err == ECONNRESET || err == ENOTCONN || err == ECONNABORTED ? -EOWNERDEAD : -err;
}

int shunt_io_write(int fd, const void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel)
{
	const uint8_t *p = buf;

	while (bytes) {
		struct pollfd pfd = { .fd = fd, .events = POLLOUT };
		int err = shunt_io_poll(&pfd, 1, deadline, cancel);
		ssize_t n;

		if (err < 0)
			return err;
		n = send(fd, p, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0) {
			if (errno == EAGAIN || errno == EINTR)
				continue;
			return shunt_io_error(errno);
		}
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}
