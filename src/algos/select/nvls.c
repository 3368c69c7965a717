/* SPDX-License-Identifier: MIT */
#include "algos/select/nvls.h"

enum { OLDEST_NCCL = 22700, READS_HOST_MODE = 23200, OLDEST_CC = 90 };

static const char *const names[SHUNT_NVLS_N] = {
	[SHUNT_NVLS_POSSIBLE] = "",
	[SHUNT_NVLS_NO_NCCL] = "there is no real NCCL",
	[SHUNT_NVLS_OLD_NCCL] = "NCCL before 2.27 has no kernels for windows",
	[SHUNT_NVLS_VARIABLE] = "NCCL_NVLS_ENABLE=0",
	[SHUNT_NVLS_CONFIG] = "nvlsHostMode in the communicator's configuration keeps it out of windows",
	[SHUNT_NVLS_CC] = "the GPU's compute capability is below 9.0",
	[SHUNT_NVLS_DEVICE] = "the driver says that the GPU has no multicast",
	[SHUNT_NVLS_DENIED] = "NCCL says that the communicator has none",
	[SHUNT_NVLS_SHARED] = "ranks share a GPU",
};

enum shunt_nvls shunt_nvls_of_rank(const struct shunt_gpu_info *gpu, const struct shunt_nvls_nccl *nccl, int enable)
{
	if (!nccl->version)
		return SHUNT_NVLS_NO_NCCL;
	if (nccl->version < OLDEST_NCCL)
		return SHUNT_NVLS_OLD_NCCL;
	if (!enable)
		return SHUNT_NVLS_VARIABLE;
	if (nccl->windows_off && nccl->version >= READS_HOST_MODE)
		return SHUNT_NVLS_CONFIG;
	if (gpu->cc < OLDEST_CC)
		return SHUNT_NVLS_CC;
	if (!gpu->multicast)
		return SHUNT_NVLS_DEVICE;
	return nccl->denied ? SHUNT_NVLS_DENIED : SHUNT_NVLS_POSSIBLE;
}

const char *shunt_nvls_name(enum shunt_nvls nvls)
{
	return (unsigned)nvls < SHUNT_NVLS_N ? names[nvls] : "unknown";
}
