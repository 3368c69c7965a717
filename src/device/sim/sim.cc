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

static int sim_device_count(int *count_p)
{
	*count_p = sim_device_total();
	return 0;
}

static int sim_device_get(int *device_p)
{
	*device_p = current_device;
	return 0;
}

static int sim_device_set(int device)
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

static int sim_device_info(int device, struct shunt_gpu_info *info_p)
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

static int sim_peer_check(int device, const struct shunt_gpu_info *peer, const char **reason_p)
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

static unsigned sim_cluster_blocks(int) { return 0; }

static bool sim_in_use(void) { return false; }

static int sim_kernels_load(int device) { return sim_device_ok(device) ? 0 : -EINVAL; }

static int sim_image_load(int, const struct shunt_gpu_image *, struct shunt_gpu_function *, char *why, size_t bytes)
{
	snprintf(why, bytes, "the sim runs no images");
	return -EOPNOTSUPP;
}

static bool sim_kernel_exists(unsigned kernel) { return sim_kernel(kernel); }

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
#define OP(fn) checked<fn>::call
#else
#define OP(fn) fn
#endif

extern "C" const struct shunt_gpu_ops shunt_gpu_sim_ops = {
	.name = "sim",
	.helpful_threads = 64,
	.open = OP(sim_open),
	.device_count = OP(sim_device_count),
	.in_use = sim_in_use,
	.device_get = OP(sim_device_get),
	.device_set = OP(sim_device_set),
	.device_info = OP(sim_device_info),
	.peer_check = OP(sim_peer_check),
	.share_alloc = OP(sim_share_alloc),
	.share_map = OP(sim_share_map),
	.share_borrow = OP(sim_share_borrow),
	.share_alias = OP(sim_share_alias),
	.share_free = OP(sim_share_free),
	.share_export = OP(sim_share_export),
	.mem_alloc = OP(sim_mem_alloc),
	.mem_free = OP(sim_mem_free),
	.mem_alloc_shared = OP(sim_mem_alloc_shared),
	.mem_dmabuf = OP(sim_mem_dmabuf),
	.mem_range = OP(sim_mem_range),
	.mem_info = OP(sim_mem_info),
	.host_alloc = OP(sim_host_alloc),
	.host_free = OP(sim_host_free),
	.host_register = OP(sim_host_register),
	.host_unregister = OP(sim_host_unregister),
	.copy = OP(sim_copy),
	.copy_async = OP(sim_copy_async),
	.memset_async = OP(sim_memset_async),
	.mark = OP(sim_mark),
	.kernels_load = OP(sim_kernels_load),
	.kernel_exists = OP(sim_kernel_exists),
	.launch = OP(sim_launch),
	.image_load = OP(sim_image_load),
	.launch_function = OP(sim_launch_function),
	.cluster_blocks = OP(sim_cluster_blocks),
	.stream_create = OP(sim_stream_create),
	.stream_sync = OP(sim_stream_sync),
	.stream_idle = OP(sim_stream_idle),
	.device_sync = OP(sim_device_sync),
	.stream_destroy = OP(sim_stream_destroy),
	.stream_capture = OP(sim_stream_capture),
	.event_create = OP(sim_event_create),
	.event_record = OP(sim_event_record),
	.event_wait = OP(sim_event_wait),
	.event_done = OP(sim_event_done),
	.event_elapsed_us = OP(sim_event_elapsed_us),
	.event_destroy = OP(sim_event_destroy),
	.capture_begin = OP(sim_capture_begin),
	.capture_end = OP(sim_capture_end),
	.capture_info = OP(sim_capture_info),
	.capture_wait = OP(sim_capture_wait),
	.capture_join = OP(sim_capture_join),
	.capture_record = OP(sim_capture_record),
	.capture_move_record = OP(sim_capture_move_record),
	.capture_retain = OP(sim_capture_retain),
	.graph_launch = OP(sim_graph_launch),
	.graph_destroy = OP(sim_graph_destroy),
};
