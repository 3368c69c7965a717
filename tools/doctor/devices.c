/* SPDX-License-Identifier: MIT */
/* Driver, GPUs, and peer access between them. */
#include "tools/common/libc.h"
#include "algos/select/nvls.h"
#include "base/config.h"
#include "device/gpu_ops.h"
#include "tools/common/links.h"
#include "tools/common/tool.h"
#include "tools/common/where.h"
#include "tools/doctor/doctor.h"

static const char topic[] = "devices";

/* A driver loads what the compiler of its own major version of CUDA made, or an older one. */
static void kernels_check(struct findings *f, int driver)
{
	struct doctor_elf elf;
	char lib[PATH_MAX];
	unsigned major, minor;

	if (tool_lib_path(lib) || doctor_elf_read(lib, &elf) || sscanf(elf.kernels, "nvcc %u.%u", &major, &minor) != 2)
		return;
	if ((unsigned)driver / 1000 >= major)
		return;
	finding_add(f, FINDING_ERROR, topic,
	    "install a driver for CUDA 13.0 (580) or later, or build Shunt with the nvcc of an older CUDA toolkit",
	    "the driver is for CUDA up to %d.%d, too old for the kernels in %s (%s): all calls go to NCCL",
	    driver / 1000, driver % 1000 / 10, lib, elf.kernels);
}

static bool driver_check(struct findings *f, bool real_nccl)
{
	int (*get_version)(int *version) = NULL;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	char module[64];
	int version = 0;

	tool_driver_version(module, sizeof(module));
	if (lib)
		*(void **)&get_version = dlsym(lib, "cuDriverGetVersion");
	if (!lib && !*module && real_nccl) {
		finding_add(f, FINDING_ERROR, topic,
		    "install the driver, or set SHUNT_NCCL_LIB=none to run on the sim, which is for tests",
		    "there is no NVIDIA driver here, and the real NCCL that would be used cannot do without: no "
		    "communicator can be made");
		return false;
	}
	if (!lib && !*module) {
		finding_add(f, FINDING_INFO, topic, "on a machine with GPUs: install the driver",
		    "there is no NVIDIA driver here: collectives run on the sim, which is for tests");
		return false;
	}
	if (!lib) {
		finding_add(f, FINDING_ERROR, topic,
		    "in a container: docker run --gpus all, with the NVIDIA container toolkit",
		    "the kernel has driver %s, but libcuda.so.1 cannot be opened: %s", module, dlerror());
		return false;
	}
	if (!get_version || get_version(&version)) {
		finding_add(f, FINDING_ERROR, topic, "reinstall the driver", "libcuda.so.1 does not say its version");
		return false; /* cppcheck-suppress resourceLeak; a driver is not unloaded */
	}
	kernels_check(f, version);
	if (!*module)
		finding_add(f, FINDING_WARN, topic,
		    "load the nvidia module, or make the devices visible in the container",
		    "libcuda.so.1 is for CUDA %d.%d, but the kernel has no NVIDIA driver", version / 1000,
		    version % 1000 / 10);
	else
		finding_add(f, FINDING_OK, topic, "", "driver %s, for CUDA up to %d.%d", module, version / 1000,
		    version % 1000 / 10);
	return true;
}

/* One line for each GPU; together they are a matrix. The reason is one for the slowest link. */
static void peers_check(struct findings *f, const struct shunt_gpu_ops *gpu, const struct shunt_gpu_info *info, int n)
{
	enum shunt_link slowest = SHUNT_LINK_NVLINK;
	char reason[SHUNT_LINK_WHY] = "?";
	int bad = 0;

	for (int i = 0; i < n; i++) {
		char links[768], why[SHUNT_LINK_WHY];
		enum shunt_link link;

		tool_links_show(gpu, info, n, i, links, sizeof(links), &link, why);
		bad += link > SHUNT_LINK_NVLINK;
		if (link > slowest) {
			slowest = link;
			memcpy(reason, why, sizeof(reason));
		}
		finding_add(f, FINDING_INFO, topic, "", "GPU %d (%s, sm_%u) reaches:%s", i, info[i].name,
		    (unsigned)info[i].cc, *links ? links : " none");
	}
	if (n < 2)
		finding_add(f, FINDING_INFO, topic, "", "one GPU: there are no peers");
	else if (bad)
		finding_add(f, FINDING_WARN, topic,
		    "look at nvidia-smi topo -m and nvidia-smi nvlink -s; shunt doctor --links tests what such pairs "
		    "have",
		    "%d of %d GPUs do not reach all others over NVLink: %s", bad, n, reason);
	else
		finding_add(f, FINDING_OK, topic, "", "all %d GPUs reach each other over NVLink", n);
}

/* Whether NCCL may use NVLink multicast here: then it, and not Shunt, does large all-reduces in windows. */
static void multicast_check(struct findings *f, const struct shunt_gpu_info *info, int n, bool real_nccl)
{
	const struct shunt_nvls_nccl nccl = { .version = real_nccl ? INT_MAX : 0 };
	int enable = shunt_nccl_env()->nvls_enable, with = 0, bad = 0;
	enum shunt_nvls why = SHUNT_NVLS_POSSIBLE;

	for (int i = 0; i < n; i++) {
		enum shunt_nvls one = shunt_nvls_of_rank(&info[i], &nccl, enable);

		with += info[i].multicast != 0;
		if (one && !why) {
			why = one;
			bad = i;
		}
	}
	if (!real_nccl)
		return;
	if (why && enable == 1)
		finding_add(f, FINDING_WARN, topic,
		    "unset it, or see to the fabric manager (nvidia-smi -q says its state)",
		    "NCCL_NVLS_ENABLE=1 asks for NVLink multicast, which GPU %d cannot have: %s; calls in windows are "
		    "chosen as without it",
		    bad, shunt_nvls_name(why));
	else if (why)
		finding_add(f, FINDING_INFO, topic, "",
		    "NCCL has no NVLink multicast (%d of %d GPUs say that they could): %s", with, n,
		    shunt_nvls_name(why));
	else
		finding_add(f, FINDING_INFO, topic,
		    "where NCCL fails with it (401, 802), see to the fabric manager, or set NCCL_NVLS_ENABLE=0; Shunt "
		    "needs "
		    "none",
		    "NCCL may use NVLink multicast: from 512 KB (6 ranks and more), 1 MB (5) or 8 MB (3 and 4) on, "
		    "all-reduces in windows are NCCL's; estimated, `shunt tune` measures it");
}

void doctor_devices(struct findings *f, bool real_nccl)
{
	const struct shunt_gpu_ops *gpu = &shunt_gpu_cuda_ops;
	struct shunt_gpu_info info[16];
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;

	if (!driver_check(f, real_nccl))
		return;
	if (gpu->open(NULL) || gpu->device_count(&n) || !n) {
		finding_add(f, FINDING_ERROR, topic, visible ? "look at CUDA_VISIBLE_DEVICES" : "look at nvidia-smi",
		    "the driver shows no GPU that can be used%s%s", visible ? ": CUDA_VISIBLE_DEVICES=" : "",
		    visible ? visible : "");
		return;
	}
	if (visible)
		finding_add(f, FINDING_INFO, topic, "", "CUDA_VISIBLE_DEVICES=%s: %d to be seen", visible, n);
	if (n > 16)
		n = 16;
	for (int i = 0; i < n; i++)
		if (gpu->device_info(i, &info[i])) {
			finding_add(
			    f, FINDING_ERROR, topic, "look at nvidia-smi and dmesg", "GPU %d cannot be asked", i);
			return;
		}
	peers_check(f, gpu, info, n);
	multicast_check(f, info, n, real_nccl);
}
