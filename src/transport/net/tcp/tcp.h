/* SPDX-License-Identifier: MIT */
#pragma once
/* The provider for interfaces, over sockets of TCP. */
#include "transport/net/net.h"

extern const struct shunt_net_ops shunt_net_tcp_ops;
