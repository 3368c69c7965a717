/* SPDX-License-Identifier: MIT */
#pragma once
/* Shunt's view of an ncclConfig_t. */
#include <stdbool.h>
#include <stddef.h>
#include "shim/nccl/abi.h"

struct shunt_comm_config {
	bool blocking;
	int max_ctas;     /* 0: no limit */
	bool no_sms;      /* CTAPolicy zero, alone or with efficiency, or NCCL_CTA_POLICY */
	bool few_ctas;    /* CTAPolicy efficiency alone, or NCCL_CTA_POLICY */
	bool no_clusters; /* cgaClusterSize 0 */
	bool nvls_off;    /* nvlsHostMode keeps NVLink multicast out of windows */
	bool in_order;    /* launchOrderImplicit, or NCCL_LAUNCH_ORDER_IMPLICIT */
	char name[48];    /* commName, cut; "" if there is none */
};

/*
 * Reads a configuration as NCCL does: only as many bytes as the caller has, without fields that are newer than the
 * caller, and with every value checked. 0, or -EINVAL and the reason; *out is set in either case. A value that the
 * program leaves out is NCCL's default, also for a child; config NULL takes everything from inherit (NULL: the
 * defaults). NCCL_COMM_BLOCKING, NCCL_MAX_CTAS, NCCL_CGA_CLUSTER_SIZE, NCCL_CTA_POLICY and, if it is set,
 * NCCL_LAUNCH_ORDER_IMPLICIT override the configuration.
 */
int shunt_comm_config_read(const ncclConfig_t *config, const struct shunt_comm_config *inherit,
    struct shunt_comm_config *out, char *reason, size_t bytes);
