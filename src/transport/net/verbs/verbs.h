/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The provider for NICs with RDMA, by libibverbs: InfiniBand and RoCE. Without the library, without such a NIC, and
 * with NCCL_IB_DISABLE it has no devices. It has run on tests/fake_ibverbs alone, on no NIC yet.
 */
#include "transport/net/net.h"

extern const struct shunt_net_ops shunt_net_verbs_ops;

/* The NICs with verbs of this machine, for shunt info and shunt doctor. */
struct shunt_verbs_look {
	char none[420]; /* why there are no devices; "": there are some */
	int n;          /* devices, as the provider numbers them */
	struct shunt_verbs_port {
		struct shunt_net_info info;
		char gid[96];      /* the address that it offers first: "RoCE v2, GID 3, 10.0.0.1" */
		const char *fails; /* "be opened", "find an address" or "register memory": it cannot; NULL */
		int err;           /* -errno of that */
	} ports[SHUNT_NET_MAX_DEVICES];
	int nleft_out; /* NICs and ports that are there and not used, each with the reason */
	char left_out[SHUNT_NET_MAX_DEVICES][160];
};
/* Opens each device, and registers that many bytes with it for a moment. Any thread; takes milliseconds. */
void shunt_verbs_look(size_t bytes, struct shunt_verbs_look *look_p);
/* "RoCE v2, GID 3, 10.0.0.1" of an open device of this provider; "": none. bytes >= 96. */
void shunt_verbs_address(struct shunt_net_device *device, char *text, size_t bytes);
