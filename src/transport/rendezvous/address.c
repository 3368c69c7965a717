/* SPDX-License-Identifier: MIT */
/* Where members listen, and whether they do. */
#include "transport/rendezvous/address.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "base/hash.h"
#include "base/host.h"
#include "base/io.h"
#include "transport/rendezvous/object.h"

/*
 * The name must not reveal the id: it can be read in /proc/net/unix. The name of a host (SHUNT_HOSTID) is part of it,
 * so that ranks with different names of hosts do not find each other.
 */
void rdzv_unix_address(const struct shunt_id *id, int member, struct shunt_netaddr *addr)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	const char *host = shunt_host_override();
	uint8_t mac[SHUNT_MAC_BYTES];
	int32_t number = member;
	int n;

	shunt_mac(mac, shunt_bytes(id, sizeof(*id)), "shunt rdzv name", shunt_bytes(&number, sizeof(number)),
	    shunt_bytes(host, strlen(host)));
	n = snprintf(sun.sun_path + 1, sizeof(sun.sun_path) - 1, "shunt-");
	for (int i = 0; i < 16; i++)
		n += snprintf(sun.sun_path + 1 + n, sizeof(sun.sun_path) - 1 - (size_t)n, "%02x", mac[i]);
	*addr = (struct shunt_netaddr){ .len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n) };
	memcpy(&addr->ss, &sun, sizeof(sun));
}

struct shunt_netaddr rdzv_uplink_address(const struct shunt_rendezvous *uplink, int host)
{
	const struct shunt_hosts *hosts = uplink->hosts;

	return shunt_host_netaddr(&hosts->rank[hosts->leader[host]].at);
}

static int probe_host(const struct shunt_rendezvous *uplink, int host, int *fd_p)
{
	struct shunt_netaddr addr = rdzv_uplink_address(uplink, host);

	return shunt_socket_connect_begin(&shunt_socket_tcp, &addr, fd_p);
}

int rdzv_probe(const struct shunt_rendezvous *rdzv, int member, int *fd_p)
{
	struct shunt_netaddr addr;
	int err;

	if (rdzv->level == RDZV_UPLINK)
		return probe_host(rdzv, member, fd_p);
	rdzv_unix_address(&rdzv->id, member, &addr);
	err = shunt_socket_connect(&shunt_socket_unix, &addr, rdzv->lobby.listen_fd, SHUNT_NEVER, NULL, fd_p);
	return err == -EAGAIN ? 0 : err;
}
