/* SPDX-License-Identifier: MIT */
#pragma once
/* The built-in providers, and the choice of SHUNT_NET. Any thread. */
#include "transport/net/net.h"

/* All, by preference; NULL ends the list. */
const struct shunt_net_ops *const *shunt_net_providers(void);
/* NULL: no provider has this name. */
const struct shunt_net_ops *shunt_net_find(const char *name);
/*
 * Bits of the providers that may carry data on this host: SHUNT_NET allows them, and they have a device. The last of
 * the list, tcp, always may: all others fall back to it.
 */
unsigned shunt_net_usable(void);
/* Beside these: SHUNT_IBV_MODE asks for additions to words (SHUNT_NET_ADD), and all of verbs' devices take them. */
#define SHUNT_NET_USABLE_ADDS (1u << 31)
