/* SPDX-License-Identifier: MIT */
#include <stdatomic.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/net/providers.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/verbs/verbs.h"

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

/* The words are in the host's memory: an addition to them would not wait for data that goes to a GPU's memory. */
static bool wants_additions(void)
{
	static atomic_bool said;

	if (shunt_config()->ibv_mode == SHUNT_IBV_HOST && shunt_config()->net_gpu_memory &&
	    !atomic_exchange(&said, true))
		shunt_warn(
		    "SHUNT_NET_GPU_MEMORY needs signals that are counted: SHUNT_IBV_MODE=host becomes host-no-atomic");
	return shunt_config()->ibv_mode == SHUNT_IBV_HOST && !shunt_config()->net_gpu_memory;
}

/* SHUNT_IBV_MODE=host holds only if every NIC that a rank might take has atomics. */
static bool all_add(const struct shunt_net_info *info, int n)
{
	static atomic_bool said;

	for (int i = 0; i < n; i++) {
		if (info[i].adds)
			continue;
		if (!atomic_exchange(&said, true))
			shunt_warn("%s has no atomics: SHUNT_IBV_MODE=host becomes host-no-atomic", info[i].where);
		return false;
	}
	return n > 0;
}

unsigned shunt_net_usable(void)
{
	struct shunt_net_info info[SHUNT_NET_MAX_DEVICES];
	enum shunt_net_choice choice = shunt_config()->net;
	unsigned usable = 0;

	for (size_t i = 0; providers[i]; i++) {
		bool last = !providers[i + 1];
		int n;

		if (choice != SHUNT_NET_AUTO && !last && strcmp(providers[i]->name, shunt_net_names[choice]) != 0)
			continue;
		n = last ? 0 : providers[i]->devices(info, SHUNT_NET_MAX_DEVICES);
		if (last || n > 0)
			usable |= 1u << i;
		if (n > 0 && wants_additions() && all_add(info, n))
			usable |= SHUNT_NET_USABLE_ADDS;
	}
	return usable;
}
