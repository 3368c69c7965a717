/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_NET_VERBS_H
#define SHUNT_TRANSPORT_NET_VERBS_H
/*
 * The provider for NICs with RDMA, by libibverbs: InfiniBand and RoCE. Without the library, without such a NIC, and
 * with NCCL_IB_DISABLE it has no devices. It has run on tests/fake_ibverbs alone, on no NIC yet.
 */
#include "transport/net/net.h"

extern const struct shunt_net_ops shunt_net_verbs_ops;
#endif
