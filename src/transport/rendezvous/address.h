/* SPDX-License-Identifier: MIT */
#pragma once
/* Where members listen, whether they do, and calls that fail. */
#include <errno.h>
#include <stdbool.h>
#include "base/id.h"
#include "base/inet/netaddr.h"
#include "transport/rendezvous/object.h"

/* Where a member of a communicator listens, among the abstract Unix sockets. */
void rdzv_unix_address(const struct shunt_id *id, int member, struct shunt_netaddr *addr);

/* Where the root of a host listens. */
struct shunt_netaddr rdzv_uplink_address(const struct shunt_rendezvous *uplink, int host);

/*
 * Connects to a member. 0: it is present, and *fd_p is the connection, or -1 if its backlog is full. -ECONNREFUSED: it
 * is not present. Or another -errno. Of an uplink, a member is the root of another host, and *fd_p may still be
 * connecting.
 */
int rdzv_probe(const struct shunt_rendezvous *rdzv, int member, int *fd_p);

/*
 * True: a TCP call that failed with this error may succeed the next time, as packets were lost or a network was down.
 * False: the failure is final, because nobody listens, or the listener has closed the connection.
 */
static inline bool rdzv_may_call_again(int err)
{
	return err == -EAGAIN || err == -ETIMEDOUT || err == -ECONNRESET || err == -EHOSTUNREACH || err == -EHOSTDOWN ||
	    err == -ENETUNREACH || err == -ENETDOWN || err == -EADDRNOTAVAIL;
}
