/* SPDX-License-Identifier: MIT */
#include "tests/support/fake_cuda/fake_cuda.h"

#include <stdint.h>
#include <string.h>

#include "device/cuda/cuda_abi.h"

#define PROTOTYPE(name, version, params) __attribute__((visibility("default"))) int nvml##name##version params;
SHUNT_NVML_CALLS(PROTOTYPE)

struct fake_nvml fake_nvml;

int nvmlInit_v2(void)
{
	if (fake_nvml.no_init)
		return 9;
	fake_nvml.users++;
	return 0;
}

int nvmlShutdown(void)
{
	fake_nvml.users--;
	return 0;
}

/* Knows the fake driver's devices, the hidden one too. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **dev)
{
	for (int i = 0; i < FAKE_DEVICES; i++) {
		char text[] = "GPU-axaxaxax-axax-axax-axax-axaxaxaxaxax";

		for (char *p = text; *p; p++)
			if (*p == 'x')
				*p = (char)('0' + i);
		if (!strcmp(uuid, text)) {
			*dev = (void *)(uintptr_t)(i + 1);
			return 0;
		}
	}
	return 6;
}

int nvmlDeviceGetP2PStatus(void *dev, void *peer, int cap, int *status)
{
	if (dev == peer)
		return 2;
	*status = (cap == SHUNT_NVML_P2P_WRITE && fake_nvml.no_write) ||
	    (cap == SHUNT_NVML_P2P_NVLINK && fake_nvml.no_nvlink);
	return 0;
}
