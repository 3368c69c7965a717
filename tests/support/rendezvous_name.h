/* SPDX-License-Identifier: MIT */
#pragma once
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/id.h"

/* The socket of a member, as documented in transport/rendezvous/rendezvous.h, and written anew: a change there must not
 * go unnoticed here. */
static inline socklen_t rendezvous_name(const struct shunt_id *id, int32_t member, struct sockaddr_un *addr)
{
	uint8_t mac[SHUNT_MAC_BYTES];
	size_t n = 6;

	shunt_mac(mac, shunt_bytes(id, sizeof(*id)), "shunt rdzv name", shunt_bytes(&member, sizeof(member)),
	    (struct shunt_bytes){ 0 });
	memset(addr, 0, sizeof(*addr));
	addr->sun_family = AF_UNIX;
	memcpy(addr->sun_path + 1, "shunt-", 6);
	for (int i = 0; i < 16; i++)
		n += (size_t)sprintf(addr->sun_path + 1 + n, "%02x", mac[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* A connection, not blocking, or -1. */
static inline int rendezvous_call(const struct shunt_id *id, int slot)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un addr;
	socklen_t len = rendezvous_name(id, slot, &addr);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, len)) {
		close(fd);
		fd = -1;
	}
	return fd;
}
