/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_DUMP_ADDRESS_H
#define SHUNT_BASE_DUMP_ADDRESS_H
/* Where a process answers those who ask what it knows of its communicators (comm/observe/dump.h). */
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/*
 * Address of a process's socket. uid: its user; namespace: inode of its pid namespace; pid: in that namespace. So
 * processes of different containers that share a network have different names.
 */
socklen_t shunt_dump_address(struct sockaddr_un *address, uid_t uid, ino_t pid_namespace, pid_t pid);
/* Inode of a process's pid namespace; 0: not to be known. "self" or a number. */
ino_t shunt_dump_namespace(const char *process);
#endif
