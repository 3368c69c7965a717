/* SPDX-License-Identifier: MIT */
#include "tests/support/grace.h"
#include "comm/core/peers.h"
#include "comm/parts/service.h"
#include "tests/support/until.h"

int grace_ms = 2000;
static atomic_int looks;

/* The linker leads the library's calls here. */
int __wrap_shunt_peers_grace_ms(void);
int __wrap_shunt_peers_grace_ms(void)
{
	return grace_ms;
}

int __real_shunt_service_watch_process_locked(int pidfd, uint64_t key, const struct shunt_service_deaths *of);
int __wrap_shunt_service_watch_process_locked(int pidfd, uint64_t key, const struct shunt_service_deaths *of);

static _Atomic(const struct shunt_service_deaths *) peers;

static void died(uint64_t key)
{
	atomic_load(&peers)->died(key);
}

static int look(void)
{
	int ms = atomic_load(&peers)->poll();

	atomic_fetch_add(&looks, 1);
	return ms;
}

int __wrap_shunt_service_watch_process_locked(int pidfd, uint64_t key, const struct shunt_service_deaths *of)
{
	static const struct shunt_service_deaths counted = { died, look };

	atomic_store(&peers, of);
	return __real_shunt_service_watch_process_locked(pidfd, key, &counted);
}

bool grace_is_over(void)
{
	return until_counted(&looks, atomic_load(&looks) + 15, "looks at the peers"); /* ten of them are a grace */
}
