/* SPDX-License-Identifier: MIT */
#pragma once
/* Whether a rank reaches the addresses that ranks of other hosts offer. */
#include <stdatomic.h>
#include "transport/rendezvous/host_table.h"

/*
 * Connects to a rank of each other host, at rank[].group, all at once, and closes the connections: for the listeners
 * they are strangers, which a lobby drops. What a lost packet or a link that is down for a moment can explain is tried
 * again, for SHUNT_SETUP_TIMEOUT. 0; or -errno, and *failed_p is the rank that cannot be reached, or -1.
 */
int rdzv_reach_hosts(const struct shunt_hosts *hosts, int rank, const atomic_int *cancel, int *failed_p);
