/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_NET_TCP_TCP_H
#define SHUNT_TRANSPORT_NET_TCP_TCP_H
/* The provider for interfaces, over sockets of TCP. */
#include "transport/net/net.h"

extern const struct shunt_net_ops shunt_net_tcp_ops;
#endif
