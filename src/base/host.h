/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What a host is: the processes that can find each other over abstract Unix sockets. These have one boot, one network
 * namespace and one user. SHUNT_HOSTID replaces boot and namespace, and is part of the sockets' names, so that
 * processes with different values are on different hosts. docs/decisions/012.md.
 */
#include <stddef.h>
#include <stdint.h>
#include "base/hash.h"

/*
 * Identity of this process's host: equal in all processes of the host, and different elsewhere. Keyed: it reveals
 * nothing to a process without the key. The user is that of the process's first call. 0, or -EMFILE and its like: the
 * process has no descriptor for the look-up.
 */
int shunt_host_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes);
/* Identity of the machine: equal on all hosts, as above, that one boot has. */
int shunt_host_machine_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes);
/* The name that SHUNT_HOSTID and its aliases give this host; empty: none. */
const char *shunt_host_override(void);
/* For the log: SHUNT_HOSTID, else the host's name. */
void shunt_host_name(char *text, size_t bytes);
