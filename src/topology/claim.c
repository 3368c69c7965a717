/* SPDX-License-Identifier: MIT */
#include "topology/claim.h"
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "topology/pci.h"

/* The slower link wins, and its reason. */
static void slow_down(enum shunt_link *link, enum shunt_link to, char why[SHUNT_LINK_WHY], const char *reason)
{
	if (to <= *link)
		return;
	*link = to;
	snprintf(why, SHUNT_LINK_WHY, "%s", reason);
}

/* The devices do not reach each other, as `reason` says. */
static void explain(const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs,
    const char *reason, char why[SHUNT_LINK_WHY])
{
	char cause[SHUNT_LINK_WHY] = "";
	struct shunt_gpu_info own;

	if (!theirs->sim && !gpu->device_info(device, &own))
		shunt_pci_small_bar(own.pci, cause, sizeof(cause));
	if (!theirs->sim && !*cause)
		shunt_pci_small_bar(theirs->pci, cause, sizeof(cause));
	snprintf(why, SHUNT_LINK_WHY, "%s%s%s", reason, *cause ? "; " : "", cause);
}

enum shunt_distance shunt_link_distance(
    const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs, enum shunt_link link)
{
	static const enum shunt_distance of_pci[] = { [SHUNT_PCI_SWITCH] = SHUNT_DISTANCE_PIX,
		[SHUNT_PCI_SWITCHES] = SHUNT_DISTANCE_PXB,
		[SHUNT_PCI_BRIDGE] = SHUNT_DISTANCE_PHB,
		[SHUNT_PCI_NODE] = SHUNT_DISTANCE_PHB,
		[SHUNT_PCI_SYSTEM] = SHUNT_DISTANCE_SYS };
	struct shunt_pci_place here, there;
	struct shunt_gpu_info own;

	if (link <= SHUNT_LINK_NVLINK)
		return link == SHUNT_LINK_SELF ? SHUNT_DISTANCE_LOC : SHUNT_DISTANCE_NVL;
	if (theirs->sim)
		return shunt_link_rules_look(shunt_config()->sim_links, device, theirs->uuid[3]).distance;
	if (gpu->device_info(device, &own))
		return SHUNT_DISTANCE_SYS;
	shunt_pci_place(own.pci, &here);
	shunt_pci_place(theirs->pci, &there);
	return of_pci[shunt_pci_distance(&here, &there)];
}

int shunt_link_devices(const struct shunt_gpu_info *const *info, int n)
{
	int devices = 0;

	for (int i = 0; i < n; i++) {
		bool other = true;

		for (int k = 0; k < i; k++)
			other &= memcmp(info[i]->uuid, info[k]->uuid, sizeof(info[i]->uuid)) != 0;
		devices += other;
	}
	return devices;
}

enum shunt_distance shunt_link_farthest(bool amd, int ndevices)
{
	return amd && ndevices <= 2 ? SHUNT_DISTANCE_SYS : SHUNT_DISTANCE_PXB;
}

enum shunt_link shunt_link_claim(const struct shunt_gpu_ops *gpu, int device, const struct shunt_gpu_info *theirs,
    int rank, int peer, int ndevices, char why[SHUNT_LINK_WHY])
{
	const char *reason = "no peer access";
	int can = gpu->peer_check(device, theirs, &reason);
	enum shunt_link link = can < 0 ? SHUNT_LINK_SHARED : (enum shunt_link)can;

	if (link == SHUNT_LINK_SELF)
		return link;
	if (can < 0)
		explain(gpu, device, theirs, reason, why);
	else
		snprintf(why, SHUNT_LINK_WHY, "%s", reason);
	int level = shunt_nccl_p2p_level(shunt_nccl_env());
	enum shunt_distance most =
	    level < 0 ? shunt_link_farthest(shunt_pci_amd(), ndevices) : (enum shunt_distance)level;

	if (ndevices && level != SHUNT_DISTANCE_LOC && link == SHUNT_LINK_PEER &&
	    shunt_link_distance(gpu, device, theirs, link) > most)
		slow_down(&link, SHUNT_LINK_SHARED, why,
		    level < 0 ? "peers over PCIe are beyond a host bridge, and NCCL_P2P_LEVEL is not set" :
		                "peers over PCIe are farther apart than NCCL_P2P_LEVEL says");
	if (strstr(theirs->name, " MIG "))
		slow_down(&link, SHUNT_LINK_NET, why, "MIG slices are left to NCCL, as none was at hand");
	if (ndevices && shunt_nccl_env_forbids_p2p())
		slow_down(&link, SHUNT_LINK_SHARED, why, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access");
	slow_down(&link, shunt_link_rules_find(shunt_config()->links, rank, peer), why, "SHUNT_LINKS says so");
	if (ndevices && link == SHUNT_LINK_SHARED && shunt_nccl_env()->shm_disable == 1)
		slow_down(&link, SHUNT_LINK_NET, why, "NCCL_SHM_DISABLE forbids the host's memory");
	return link;
}
