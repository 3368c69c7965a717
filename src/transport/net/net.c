/* SPDX-License-Identifier: MIT */
#include <stdatomic.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/net/providers.h"

static const struct shunt_net_ops *const providers[] = { &shunt_net_tcp_ops, NULL };

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

const struct shunt_net_ops *shunt_net_chosen(void)
{
	static atomic_bool logged;
	enum shunt_net_choice choice = shunt_config()->net;
	const char *name = shunt_net_names[choice];
	const struct shunt_net_ops *ops = choice == SHUNT_NET_AUTO ? providers[0] : shunt_net_find(name);

	if (ops)
		return ops;
	if (!atomic_exchange(&logged, true))
		shunt_warn("SHUNT_NET=%s is not in this build: using tcp", name);
	return &shunt_net_tcp_ops;
}
