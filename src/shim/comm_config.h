/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_COMM_CONFIG_H
#define SHUNT_SHIM_COMM_CONFIG_H
/* What an ncclConfig_t asks for. */
#include <stdbool.h>
#include <stddef.h>
#include "shim/nccl/abi.h"

struct shunt_comm_config {
	bool blocking;
	int max_ctas;     /* 0: no limit */
	bool no_sms;      /* CTAPolicy zero */
	bool no_clusters; /* cgaClusterSize 0 */
	bool in_order;    /* launchOrderImplicit, or NCCL_LAUNCH_ORDER_IMPLICIT */
	char name[48];    /* commName, cut; "" if there is none */
};

/*
 * Reads a configuration as NCCL does: of as many bytes as the caller has, without the fields that are newer than the
 * caller, every value checked (0 or -EINVAL and the reason; *out is set nevertheless). What the program does not say is
 * NCCL's default, also for a child: only config NULL makes it take all after inherit (NULL: the defaults).
 * NCCL_COMM_BLOCKING, NCCL_MAX_CTAS, NCCL_CGA_CLUSTER_SIZE and, where it is set, NCCL_LAUNCH_ORDER_IMPLICIT win over
 * all of it.
 */
int shunt_comm_config_read(const ncclConfig_t *config, const struct shunt_comm_config *inherit,
    struct shunt_comm_config *out, char *reason, size_t bytes);
#endif
