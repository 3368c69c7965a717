/* SPDX-License-Identifier: MIT */
#include "tests/support/limits.h"
#include "base/config.h"
#include "comm/core/communicator.h"
#include "comm/parts/comm_registry.h"

/* A thread of the library that reads a limit meanwhile takes the old one or the new one: both are right. */
__attribute__((no_sanitize("thread"))) void limits_set(int timeout_ms, int setup_timeout_ms)
{
	struct shunt_config *config = (struct shunt_config *)shunt_config();

	config->timeout = timeout_ms;
	config->setup_timeout = setup_timeout_ms;
}

static bool is_comm(const struct shunt_registration *r)
{
	return r->comm;
}

void limits_of_kernels(int ms)
{
	struct shunt_registration *r = shunt_registry_next(NULL, is_comm);

	__atomic_store_n(&r->comm->words->limit_ns, (uint64_t)ms * 1000000, __ATOMIC_RELEASE);
	while ((r = shunt_registry_next(r, is_comm)))
		;
}
