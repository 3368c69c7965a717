/* SPDX-License-Identifier: MIT */
#pragma once
/* The network devices of this machine as text, for shunt info and shunt doctor. */
#include <stddef.h>
#include "transport/net/nic.h"
#include "transport/net/verbs/verbs.h"

/* GPUs that the driver shows, with their places; 0: there are none, or no driver. */
struct tool_gpus {
	int n;
	struct shunt_pci_place *at;
};
/* Opens the driver, if there is one. 0 or -ENOMEM; the caller frees at. */
int tool_gpus_find(struct tool_gpus *gpus_p);

/* "mlx5_0 port 1, InfiniBand, LID 4, 200 Gb/s, NUMA node 0, for GPU 0 2". */
void tool_nic_show(const struct shunt_verbs_look *look, int i, const struct tool_gpus *gpus, char *text, size_t bytes);
/* "eth0, 10.0.0.1, 10 Gb/s, NUMA node 0". */
void tool_interface_show(const struct shunt_net_info *info, char *text, size_t bytes);
