/* SPDX-License-Identifier: MIT */
/* Which devices are connected by NVLink, including those that CUDA_VISIBLE_DEVICES hides from this process. */
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

static const char *nvml_query_nvlink(
    const struct shunt_nvml_table *nvml, const uint8_t mine[16], const uint8_t peer[16])
{
	void *dev, *peer_dev;
	char text[48];
	int status;

	uuid_text(mine, text);
	if (nvml->DeviceGetHandleByUUID(text, &dev))
		return "NVML does not know our own device (a MIG slice cannot reach peers)";
	uuid_text(peer, text);
	if (nvml->DeviceGetHandleByUUID(text, &peer_dev))
		return "the peer's device is hidden from this process and NVML does not know it";
	if (nvml->DeviceGetP2PStatus(dev, peer_dev, SHUNT_NVML_P2P_WRITE, &status) ||
	    status != SHUNT_NVML_P2P_STATUS_OK)
		return "the devices cannot write to each other's memory (NVML)";
	if (nvml->DeviceGetP2PStatus(dev, peer_dev, SHUNT_NVML_P2P_NVLINK, &status) ||
	    status != SHUNT_NVML_P2P_STATUS_OK)
		return "the devices are not connected by NVLink (NVML)";
	return NULL;
}

/*
 * NULL: the two devices are connected by NVLink. Else the reason for no or for unknown. Runs at a communicator's
 * set-up only.
 */
static const char *nvml_link_reason(const uint8_t mine[16], const uint8_t peer[16])
{
	struct shunt_nvml_table nvml;
	const char *reason;
	void *lib;

	lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return "the peer's device is hidden from this process (CUDA_VISIBLE_DEVICES) and there is no NVML to "
		       "ask about it";
	if (!nvml_load(lib, &nvml)) {
		reason = "NVML lacks a call that we need";
	} else if (nvml.Init()) {
		reason = "NVML could not be initialised";
	} else {
		reason = nvml_query_nvlink(&nvml, mine, peer);
		nvml.Shutdown(); /* NVML counts its users, so the program can go on using it */
	}
	dlclose(lib);
	return reason;
}

static const char *visible_link_reason(int device, int peer)
{
	int dev = shunt_cu_devices[device].dev, peer_dev = shunt_cu_devices[peer].dev;
	int yes = 0;

	if (shunt_cu.DeviceCanAccessPeer(&yes, dev, peer_dev) || !yes)
		return "the devices cannot access each other's memory";
	/*
	 * Atomic operations travel over NVLink but not over PCIe. The driver has no attribute that is closer to
	 * naming the link.
	 */
	if (shunt_cu.DeviceGetP2PAttribute(&yes, SHUNT_CU_P2P_NATIVE_ATOMIC_SUPPORTED, dev, peer_dev) || !yes)
		return "the devices are not connected by NVLink";
	return NULL;
}

int shunt_cu_peer_check(int device, const struct shunt_gpu_info *peer, const char **reason_p)
{
	const struct shunt_gpu_info *mine;
	const char *reason = NULL;
	int i;

	if ((unsigned)device >= (unsigned)shunt_cu_ndevices)
		return -EINVAL;
	mine = &shunt_cu_devices[device].info;
	for (i = 0; i < shunt_cu_ndevices; i++)
		if (!memcmp(shunt_cu_devices[i].info.uuid, peer->uuid, sizeof(peer->uuid)))
			break;
	if (peer->sim)
		reason = "the peer runs on the sim";
	else if (!memcmp(mine->uuid, peer->uuid, sizeof(peer->uuid)))
		return 0;
	else if (i < shunt_cu_ndevices)
		reason = visible_link_reason(device, i);
	else
		reason = nvml_link_reason(mine->uuid, peer->uuid);
	if (!reason)
		return 0;
	*reason_p = reason;
	return -EOPNOTSUPP;
}
