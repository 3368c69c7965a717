/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Descriptors that this process does not share with its children. A copy in a child would keep a connection open when
 * this process has died, an address or a port taken, an entry in an epoll set, and memory of a device in use. So a
 * forked child closes its copies before fork() returns there. It shuts nothing down: its parent goes on.
 *
 * Each such descriptor is noted where it is made, and is closed by a function of this file: a child would otherwise
 * close whatever has its number by then. tools/lint.sh looks for both.
 *
 * A child of the bare system calls clone and vfork keeps its copies until it calls exec: all are close-on-exec.
 */
#include <stdbool.h>
#include <sys/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/*
 * fd = SHUNT_FD(accept4(...)): makes a descriptor and notes it. An error passes through, and errno with it. A fork
 * waits meanwhile: what makes the descriptor must be one system call that does not wait.
 */
#define SHUNT_FD(make) (shunt_fd_begin(), shunt_fd_end(make))
void shunt_fd_begin(void);
int shunt_fd_end(int fd);

/* recvmsg() without a wait, whose descriptors are noted. */
struct msghdr;
ssize_t shunt_fd_receive(int from, struct msghdr *msg);

/* Notes a descriptor that a library has made, or does nothing if it is negative. */
void shunt_fd_note(int fd);
/* The library is about to close it. */
void shunt_fd_forget(int fd);

/*
 * False: the number is not ours. In a forked child, objects of its parent end at last, and have numbers of descriptors
 * that were closed at the fork: the program may use these by now.
 */
bool shunt_fd_is_ours(int fd);
/* Closes it, if it is not negative and ours, and makes it -1. */
void shunt_close_fd(int *fd);
/* The same for one that is in an epoll set: the set would keep the entry as long as a child has a copy. */
void shunt_close_watched(int epoll_fd, int *fd);

#ifdef __cplusplus
}
#endif
