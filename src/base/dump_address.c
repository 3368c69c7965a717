/* SPDX-License-Identifier: MIT */
#include "base/dump_address.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

ino_t shunt_dump_namespace(const char *process)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%s/ns/pid", process);
	return stat(path, &st) ? 0 : st.st_ino;
}

socklen_t shunt_dump_address(struct sockaddr_un *address, uid_t uid, ino_t pid_namespace, pid_t pid)
{
	int n;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX; /* in the abstract namespace: the name vanishes with the process */
	n = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "shunt-doctor-%lu-%lu-%ld",
	    (unsigned long)uid, (unsigned long)pid_namespace, (long)pid);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}
