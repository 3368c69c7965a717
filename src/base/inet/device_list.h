/* SPDX-License-Identifier: MIT */
#pragma once
/* Lists of devices, as NCCL_SOCKET_IFNAME and NCCL_IB_HCA have them: name[:port],... */
#include <stdbool.h>

/*
 * Matches a port of a device with [^][=]name[:port],... Names are prefixes; after "=" whole names; "^" in front
 * excludes them. An entry without a port matches all ports. port 0: the device has no ports, and ports in the list are
 * ignored. NULL and "" match everything.
 */
bool shunt_device_list_match(const char *spec, const char *name, int port);
/* Index of the port in a list of whole names, name[:port],..., from 0; -1: it is not in the list. */
int shunt_device_list_index(const char *list, const char *name, int port);
