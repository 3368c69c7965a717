/* SPDX-License-Identifier: MIT */
#include "topology/claim.h"
#include <strings.h>
#include "base/config.h"

/* The slower link wins, and its reason. */
static void slow_down(enum shunt_link *link, enum shunt_link to, const char **reason_p, const char *reason)
{
	if (to <= *link)
		return;
	*link = to;
	*reason_p = reason;
}

/* True: NCCL_P2P_LEVEL allows NVLink, and no peers over PCIe. */
static bool forbids_pcie(void)
{
	static const char *const below[] = { "NVL", "NVB", "C2C" };

	for (size_t i = 0; i < sizeof(below) / sizeof(below[0]); i++)
		if (!strcasecmp(shunt_nccl_env()->p2p_level, below[i]))
			return true;
	return false;
}

/* Drivers offer peer access also where stores over PCIe do not arrive. */
static bool links_trusted(const struct shunt_gpu_info *theirs)
{
	return theirs->sim;
}

enum shunt_link shunt_link_claim(const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs,
    int rank, int peer, bool obeys, const char **reason_p)
{
	const char *reason = "no peer access";
	int can = gpu->peer_check(device, theirs, &reason);
	enum shunt_link link = can < 0 ? SHUNT_LINK_SHARED : (enum shunt_link)can;

	*reason_p = reason;
	if (link == SHUNT_LINK_SELF)
		return link;
	if (link == SHUNT_LINK_PEER && !links_trusted(theirs))
		slow_down(&link, SHUNT_LINK_SHARED, reason_p, "no test of stores over PCIe between them has passed");
	if (obeys && link == SHUNT_LINK_PEER && forbids_pcie())
		slow_down(&link, SHUNT_LINK_SHARED, reason_p, "NCCL_P2P_LEVEL forbids peer access over PCIe");
	if (obeys && shunt_nccl_env_forbids_p2p())
		slow_down(&link, SHUNT_LINK_SHARED, reason_p, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access");
	slow_down(&link, shunt_link_rules_find(shunt_config()->links, rank, peer), reason_p, "SHUNT_LINKS says so");
	if (obeys && link == SHUNT_LINK_SHARED && shunt_nccl_env()->shm_disable == 1)
		slow_down(&link, SHUNT_LINK_NET, reason_p, "NCCL_SHM_DISABLE forbids the host's memory");
	return link;
}
