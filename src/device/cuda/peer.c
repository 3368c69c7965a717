/* SPDX-License-Identifier: MIT */
/* What joins devices, including those that CUDA_VISIBLE_DEVICES hides from this process. */
#include "device/cuda/dev.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* "GPU-01234567-89ab-cdef-0123-456789abcdef", as NVML writes it. */
static void uuid_text(const uint8_t uuid[16], char text[48])
{
	char *p = text + sprintf(text, "GPU");

	for (int i = 0; i < 16; i++)
		p += sprintf(p, i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

static bool nvml_load(void *lib, struct shunt_nvml_table *nvml)
{
	static const struct {
		const char *symbol;
		size_t offset;
	} calls[] = {
#define CALL(name, version, params) { "nvml" #name #version, offsetof(struct shunt_nvml_table, name) },
		SHUNT_NVML_CALLS(CALL)
#undef CALL
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *fn = dlsym(lib, calls[i].symbol);

		if (!fn)
			return false;
		memcpy((char *)nvml + calls[i].offset, &fn, sizeof(fn));
	}
	return true;
}

static int nvml_query_link(
    const struct shunt_nvml_table *nvml, const uint8_t mine[16], const uint8_t peer[16], const char **reason_p)
{
	void *dev, *peer_dev;
	char text[48];
	int status;

	uuid_text(mine, text);
	*reason_p = "NVML does not know our own device (a MIG slice cannot reach peers)";
	if (nvml->DeviceGetHandleByUUID(text, &dev))
		return -EOPNOTSUPP;
	uuid_text(peer, text);
	*reason_p = "the peer's device is hidden from this process and NVML does not know it";
	if (nvml->DeviceGetHandleByUUID(text, &peer_dev))
		return -EOPNOTSUPP;
	*reason_p = "the devices cannot write to each other's memory (NVML)";
	if (nvml->DeviceGetP2PStatus(dev, peer_dev, SHUNT_NVML_P2P_WRITE, &status) ||
	    status != SHUNT_NVML_P2P_STATUS_OK)
		return -EOPNOTSUPP;
	*reason_p = "the devices are not connected by NVLink (NVML)";
	if (nvml->DeviceGetP2PStatus(dev, peer_dev, SHUNT_NVML_P2P_NVLINK, &status) ||
	    status != SHUNT_NVML_P2P_STATUS_OK)
		return SHUNT_LINK_PEER;
	return SHUNT_LINK_NVLINK;
}

/* Runs at a communicator's set-up only. */
static int nvml_link(const uint8_t mine[16], const uint8_t peer[16], const char **reason_p)
{
	struct shunt_nvml_table nvml;
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	int link = -EOPNOTSUPP;

	*reason_p = "the peer's device is hidden from this process (CUDA_VISIBLE_DEVICES) and there is no NVML to ask "
	            "about it";
	if (!lib)
		return link;
	if (!nvml_load(lib, &nvml)) {
		*reason_p = "NVML lacks a call that we need";
	} else if (nvml.Init()) {
		*reason_p = "NVML could not be initialised";
	} else {
		link = nvml_query_link(&nvml, mine, peer, reason_p);
		nvml.Shutdown(); /* NVML counts its users, so the program can go on using it */
	}
	dlclose(lib);
	return link;
}

static int visible_link(int device, int peer, const char **reason_p)
{
	int dev = shunt_cu_devices[device].dev, peer_dev = shunt_cu_devices[peer].dev;
	int yes = 0;

	*reason_p = "the devices cannot access each other's memory";
	if (shunt_cu.DeviceCanAccessPeer(&yes, dev, peer_dev) || !yes)
		return -EOPNOTSUPP;
	/*
	 * Atomic operations travel over NVLink but not over PCIe. The driver has no attribute that is closer to
	 * naming the link.
	 */
	*reason_p = "the devices are not connected by NVLink";
	if (shunt_cu.DeviceGetP2PAttribute(&yes, SHUNT_CU_P2P_NATIVE_ATOMIC_SUPPORTED, dev, peer_dev) || !yes)
		return SHUNT_LINK_PEER;
	return SHUNT_LINK_NVLINK;
}

int shunt_cu_peer_check(int device, const struct shunt_gpu_info *peer, const char **reason_p)
{
	const struct shunt_gpu_info *mine;
	const char *reason = "the peer runs on the sim";
	int i, link = -EOPNOTSUPP;

	if ((unsigned)device >= (unsigned)shunt_cu_ndevices)
		return -EINVAL;
	mine = &shunt_cu_devices[device].info;
	for (i = 0; i < shunt_cu_ndevices; i++)
		if (!memcmp(shunt_cu_devices[i].info.uuid, peer->uuid, sizeof(peer->uuid)))
			break;
	if (!peer->sim && !memcmp(mine->uuid, peer->uuid, sizeof(peer->uuid)))
		return SHUNT_LINK_SELF;
	if (!peer->sim)
		link = i < shunt_cu_ndevices ? visible_link(device, i, &reason) :
		                               nvml_link(mine->uuid, peer->uuid, &reason);
	if (link != SHUNT_LINK_NVLINK)
		*reason_p = reason;
	return link;
}
