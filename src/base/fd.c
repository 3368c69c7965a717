/* SPDX-License-Identifier: MIT */
#include "base/fd.h"
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/lock.h"

#define MAX_FDS (1u << 20) /* the kernel's own limit, unless somebody has raised it: copies of more stay in a child */

/* SHUNT_LOCK_DESCRIPTORS. Pages that are never written cost nothing. */
static uint64_t noted[MAX_FDS / 64];
static unsigned nwords; /* bits are in the first of them only */

static void note(int fd)
{
	unsigned word = (unsigned)fd / 64;

	if (fd < 0 || (unsigned)fd >= MAX_FDS)
		return;
	noted[word] |= UINT64_C(1) << (unsigned)fd % 64;
	if (nwords <= word)
		nwords = word + 1;
}

static void forget(int fd)
{
	if (fd >= 0 && (unsigned)fd < MAX_FDS)
		noted[(unsigned)fd / 64] &= ~(UINT64_C(1) << (unsigned)fd % 64);
}

static void close_copies(void)
{
	for (unsigned word = 0; word < nwords; word++)
		for (; noted[word]; noted[word] &= noted[word] - 1)
			close((int)(word * 64 + (unsigned)__builtin_ctzll(noted[word])));
	nwords = 0;
}
SHUNT_IN_FORKED_CHILD(close_copies)

void shunt_fd_begin(void)
{
	shunt_lock_acquire(SHUNT_LOCK_DESCRIPTORS);
}

int shunt_fd_end(int fd)
{
	note(fd);
	shunt_lock_release(SHUNT_LOCK_DESCRIPTORS);
	return fd;
}

ssize_t shunt_fd_receive(int from, struct msghdr *msg)
{
	ssize_t n;

	shunt_fd_begin();
	n = recvmsg(from, msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			note(fd);
		}
	}
	shunt_lock_release(SHUNT_LOCK_DESCRIPTORS);
	return n;
}

void shunt_fd_note(int fd)
{
	shunt_fd_begin();
	shunt_fd_end(fd);
}

void shunt_fd_forget(int fd)
{
	shunt_lock_acquire(SHUNT_LOCK_DESCRIPTORS);
	forget(fd);
	shunt_lock_release(SHUNT_LOCK_DESCRIPTORS);
}

/* Who is no forked child has nobody's old numbers, and may have descriptors that were made elsewhere. */
static bool is_ours(int fd)
{
	return fd >= 0 &&
	    (!shunt_process_generation() || (unsigned)fd >= MAX_FDS ||
	        noted[(unsigned)fd / 64] >> (unsigned)fd % 64 & 1);
}

bool shunt_fd_is_ours(int fd)
{
	bool ours;

	shunt_lock_acquire(SHUNT_LOCK_DESCRIPTORS);
	ours = is_ours(fd);
	shunt_lock_release(SHUNT_LOCK_DESCRIPTORS);
	return ours;
}

static bool is_socket(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISSOCK(st.st_mode);
}

/* No fork sees a socket that is not noted any more. The end of others may wait for a device: the lock does not. */
void shunt_close_fd(int *fd)
{
	bool ours, closed;

	shunt_lock_acquire(SHUNT_LOCK_DESCRIPTORS);
	ours = is_ours(*fd);
	if (ours)
		forget(*fd);
	closed = ours && is_socket(*fd);
	if (closed)
		close(*fd);
	shunt_lock_release(SHUNT_LOCK_DESCRIPTORS);
	if (ours && !closed)
		close(*fd);
	*fd = -1;
}

void shunt_close_watched(int epoll_fd, int *fd)
{
	if (epoll_fd >= 0 && *fd >= 0)
		(void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, *fd, NULL);
	shunt_close_fd(fd);
}
