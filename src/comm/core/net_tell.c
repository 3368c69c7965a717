/* SPDX-License-Identifier: MIT */
#include "comm/core/net_tell.h"
#include "comm/core/communicator.h"
#include "transport/net/proxy/proxy.h"

void shunt_comm_net_wake(struct shunt_comm *comm)
{
	if (comm->net.proxy)
		shunt_proxy_wake(comm->net.proxy);
}

void shunt_comm_net_abort(struct shunt_comm *comm, int because_of)
{
	if (comm->net.proxy)
		shunt_proxy_abort(comm->net.proxy, because_of);
}

void shunt_comm_net_died(struct shunt_comm *comm, int rank)
{
	if (comm->net.proxy)
		shunt_proxy_died(comm->net.proxy, rank);
}
