/* SPDX-License-Identifier: MIT */
/* The table of operations of the sim: SHUNT_SIM_DEVICES devices that run kernels on CPU threads. */
#include <errno.h>
#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>
#include "device/sim/sim.h"
extern "C" {
#include "base/config.h"
#include "base/lock.h"
}

static __thread int current_device;

/* A forked child has no thread that runs a stream, and none that would release a lock. */
static void forget_work(void)
{
	sim_handle_forget();
	sim_stream_forget();
	sim_mem_forget();
	sim_link_forget();
	sim_enqueue_lock = {};
}
SHUNT_IN_FORKED_CHILD(forget_work)

int sim_device_count(int *count_p)
{
	*count_p = sim_device_total();
	return 0;
}

int sim_device_get(int *device_p)
{
	*device_p = current_device;
	return 0;
}

int sim_device_set(int device)
{
	if (!sim_device_ok(device))
		return -EINVAL;
	current_device = device;
	return 0;
}

/* The same in every process of this boot of this host: "sim", the device, 12 bytes of the boot's id. */
static void device_uuid(int device, uint8_t uuid[16])
{
	char text[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	unsigned n = 4;

	if (fd >= 0)
		close(fd);
	memset(uuid, 0, 16);
	memcpy(uuid, "sim", 3); /* NOLINT(bugprone-not-null-terminated-result): bytes, not text */
	uuid[3] = (uint8_t)device;
	for (ssize_t i = 0; i + 1 < got && n < 16; i += text[i] == '-' ? 1 : 2)
		if (text[i] != '-' && sscanf(text + i, "%2hhx", &uuid[n]) == 1)
			n++;
}

int sim_device_info(int device, struct shunt_gpu_info *info_p)
{
	if (!sim_device_ok(device))
		return -EINVAL;
	memset(info_p, 0, sizeof(*info_p));
	snprintf(info_p->name, sizeof(info_p->name), "Shunt sim device %d", device);
	device_uuid(device, info_p->uuid);
	info_p->sms = 8;
	info_p->sim = 1;
	info_p->tma = 1;
	return 0;
}

int sim_peer_check(int device, const struct shunt_gpu_info *peer, const char **reason_p)
{
	uint8_t mine[16];
	int link;

	if (!sim_device_ok(device))
		return -EINVAL;
	device_uuid(device, mine);
	if (!peer->sim || memcmp(mine, peer->uuid, 3) || memcmp(mine + 4, peer->uuid + 4, 12)) {
		*reason_p = "the peer is not a sim device of this host";
		return -EOPNOTSUPP;
	}
	if (mine[3] == peer->uuid[3])
		return SHUNT_LINK_SELF;
	link = shunt_link_rules_find(shunt_config()->sim_links, device, peer->uuid[3]);
	if (link > SHUNT_LINK_NVLINK)
		*reason_p = "SHUNT_SIM_LINKS says so";
	return link > SHUNT_LINK_PEER ? -EOPNOTSUPP : link;
}

unsigned sim_cluster_blocks(int) { return 0; }

bool sim_in_use(void) { return false; }

int sim_kernels_load(int device) { return sim_device_ok(device) ? 0 : -EINVAL; }

int sim_image_load(int, const struct shunt_gpu_image *, struct shunt_gpu_function *, char *why, size_t bytes)
{
	snprintf(why, bytes, "the sim runs no images");
	return -EOPNOTSUPP;
}

bool sim_kernel_exists(unsigned kernel) { return sim_kernel(kernel); }

#if SHUNT_LOCK_CHECKS
/* An operation that first looks at the locks that the thread holds, as each may wait for kernels. */
template <auto fn> struct checked;
template <typename R, typename... A, R (*fn)(A...)> struct checked<fn> {
	static R call(A... args)
	{
		shunt_lock_check_blocking("calls the device", true);
		return fn(args...);
	}
};
#define CHECKED(fn) checked<fn>::call
#else
#define CHECKED(fn) fn
#endif

extern "C" const struct shunt_gpu_ops shunt_gpu_sim_ops = {
	.name = "sim",
	.helpful_threads = 64,
#define OP(result, name, params) .name = CHECKED(sim_##name),
#define ASK(result, name, params) .name = sim_##name,
#include "device/gpu_ops.def"
};
