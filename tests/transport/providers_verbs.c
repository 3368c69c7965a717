/* SPDX-License-Identifier: MIT */
/* The list of providers for test_net.c, with verbs alone. SHUNT_IBV_LIB names the library of tests/fake_ibverbs. */
#include <stdio.h>
#include <stdlib.h>
#include "transport/net/providers.h"
#include "transport/net/verbs/verbs.h"

const struct shunt_net_ops *const *shunt_net_providers(void)
{
	static const struct shunt_net_ops *const verbs[] = { &shunt_net_verbs_ops, NULL };
	struct shunt_net_info info[1];

	/* The suite leaves out a provider without devices; here that is a failure. */
	if (verbs[0]->devices(info, 1) != 1) {
		fprintf(stderr, "libibverbs shows no device\n");
		exit(1);
	}
	return verbs;
}
