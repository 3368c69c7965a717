/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_SUPPORT_OWN_H
#define SHUNT_TESTS_SUPPORT_OWN_H
#include <stdlib.h>

/*
 * What a test must not get from who runs it: its files, and its addresses, which others may reach. To be called first.
 */
static inline void own_environment(void)
{
	static const char *const theirs[] = { "SHUNT_CACHE_DIR", "SHUNT_PLAN_DIR", "SHUNT_TUNING_FILE",
		"MSCCLPP_CACHE_DIR", "NCCL_CONF_FILE", "NCCL_COMM_ID", "NCCL_SOCKET_FAMILY" };

	for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++)
		unsetenv(theirs[i]);
	setenv("HOME", "/nonexistent", 1);
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}
#endif
