/* SPDX-License-Identifier: MIT */
#include <string.h>
#include "base/config.h"
#include "transport/net/providers.h"
#include "transport/net/verbs.h"

static const struct shunt_net_ops *const providers[] = { &shunt_net_verbs_ops, &shunt_net_tcp_ops, NULL };

const struct shunt_net_ops *const *shunt_net_providers(void)
{
	return providers;
}

const struct shunt_net_ops *shunt_net_find(const char *name)
{
	for (size_t i = 0; providers[i]; i++)
		if (!strcmp(providers[i]->name, name))
			return providers[i];
	return NULL;
}

unsigned shunt_net_usable(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	enum shunt_net_choice choice = shunt_config()->net;
	unsigned usable = 0;

	for (size_t i = 0; providers[i]; i++) {
		bool last = !providers[i + 1];

		if (choice != SHUNT_NET_AUTO && !last && strcmp(providers[i]->name, shunt_net_names[choice]) != 0)
			continue;
		if (last || providers[i]->devices(info, SHUNT_NET_MAX_DEVICES) > 0)
			usable |= 1u << i;
	}
	return usable;
}
