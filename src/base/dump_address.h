/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Address of the Unix socket at which a process answers requests for a dump of its communicators (comm/observe/dump.h).
 */
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/*
 * Address of a process's socket; returns its length. uid: the process's user; pid_namespace: inode of its PID
 * namespace; pid: its number in that namespace. The namespace keeps apart processes of containers that share a network.
 */
socklen_t shunt_dump_address(struct sockaddr_un *address, uid_t uid, ino_t pid_namespace, pid_t pid);
/* Inode of a process's PID namespace; 0: unknown. process: "self" or a number. */
ino_t shunt_dump_namespace(const char *process);
